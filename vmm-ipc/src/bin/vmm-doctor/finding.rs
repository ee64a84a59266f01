//! What is found: on what was looked at, in which state it is, and what to do.

use std::fmt::Display;

/// How a finding bears on sharing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing to do.
    Note,
    /// May be the cause of what fails, here or later.
    Warning,
    /// Does not work.
    Problem,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Note => "note",
            State::Warning => "warning",
            State::Problem => "problem",
        }
    }
}

pub struct Finding {
    /// What was looked at.
    pub subject: String,
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do.
    pub advice: Option<String>,
}

impl Finding {
    pub fn ok(subject: impl Display, found: impl Display) -> Self {
        Finding {
            subject: subject.to_string(),
            state: State::Ok,
            found: found.to_string(),
            advice: None,
        }
    }

    pub fn note(subject: impl Display, found: impl Display) -> Self {
        Finding {
            state: State::Note,
            ..Finding::ok(subject, found)
        }
    }

    pub fn warning(subject: impl Display, found: impl Display, advice: impl Display) -> Self {
        Finding {
            state: State::Warning,
            advice: Some(advice.to_string()),
            ..Finding::ok(subject, found)
        }
    }

    pub fn problem(subject: impl Display, found: impl Display, advice: impl Display) -> Self {
        Finding {
            state: State::Problem,
            ..Finding::warning(subject, found, advice)
        }
    }

    pub fn advise(mut self, advice: impl Display) -> Self {
        self.advice = Some(advice.to_string());
        self
    }
}

pub struct Section {
    /// `machine`, `driver`, or the UUID of a device.
    pub name: String,
    pub title: String,
    pub findings: Vec<Finding>,
}

pub struct Report {
    pub emulator: bool,
    /// Every visible device, and whether sharing works on it.
    pub devices: Vec<(String, bool)>,
    pub sections: Vec<Section>,
}

impl Report {
    /// Whether sharing works on every visible device, and there is one.
    pub fn works(&self) -> bool {
        !self.devices.is_empty() && self.devices.iter().all(|(_, works)| *works)
    }
}
