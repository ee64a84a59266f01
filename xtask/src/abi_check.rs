//! `cargo xtask abi-check`.

use lexopt::Parser;

use crate::Result;

pub fn run(_arguments: Parser) -> Result {
    Err("not written yet".into())
}
