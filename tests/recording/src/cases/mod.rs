//! The questions, by subject.

mod address;
mod belongings;
mod capture;
mod context;
mod copy;
mod create;
mod device;
mod early;
mod function_waits;
mod host_copies;
mod host_function;
mod inside;
mod joins;
mod map;
mod pointer;
mod share;
mod stream;
mod symbols;

use crate::rig::{Answer, Rig};

/// One question.
pub struct Case {
    /// Subject and name, with a dot between them.
    pub name: String,
    /// What is asked, in words.
    pub words: String,
    /// Whether it comes before `cuInit`.
    pub early: bool,
    /// Whether it spoils its process for the cases after it.
    pub alone: bool,
    /// Asks.
    pub ask: Box<dyn Fn(&mut Rig) -> Answer>,
}

/// Every question, the early ones first.
pub fn all() -> Vec<Case> {
    let mut list = List(Vec::new());
    early::add(&mut list);
    symbols::add(&mut list);
    device::add(&mut list);
    context::add(&mut list);
    address::add(&mut list);
    create::add(&mut list);
    map::add(&mut list);
    copy::add(&mut list);
    share::add(&mut list);
    pointer::add(&mut list);
    stream::add(&mut list);
    capture::add(&mut list);
    joins::add(&mut list);
    host_copies::add(&mut list);
    host_function::add(&mut list);
    function_waits::add(&mut list);
    belongings::add(&mut list);
    list.0.sort_by_key(|case| (case.alone, !case.early));
    list.0
}

/// The list under construction.
pub struct List(Vec<Case>);

impl List {
    fn add(
        &mut self,
        name: impl Into<String>,
        words: impl Into<String>,
        ask: impl Fn(&mut Rig) -> Answer + 'static,
    ) {
        self.push(name.into(), words.into(), false, false, Box::new(ask));
    }

    fn alone(
        &mut self,
        name: impl Into<String>,
        words: impl Into<String>,
        ask: impl Fn(&mut Rig) -> Answer + 'static,
    ) {
        self.push(name.into(), words.into(), false, true, Box::new(ask));
    }

    fn early(
        &mut self,
        name: impl Into<String>,
        words: impl Into<String>,
        ask: impl Fn(&mut Rig) -> Answer + 'static,
    ) {
        self.push(name.into(), words.into(), true, false, Box::new(ask));
    }

    fn push(
        &mut self,
        name: String,
        words: String,
        early: bool,
        alone: bool,
        ask: Box<dyn Fn(&mut Rig) -> Answer>,
    ) {
        self.0.push(Case {
            name,
            words,
            early,
            alone,
            ask,
        });
    }
}
