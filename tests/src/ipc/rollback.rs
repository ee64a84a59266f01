//! To come.
use crate::{Case, Context, Failure, Link, cases};
pub const CASES: &[Case] = cases![];
