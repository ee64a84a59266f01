//! To come.
use crate::{Case, Context, Failure, Link, cases};
pub const CASES: &[Case] = cases![];
pub fn stepped_exporter(_: &Context, _: Link) -> Result<(), Failure> {
    Ok(())
}
pub fn stepped_importer(_: &Context, _: Link) -> Result<(), Failure> {
    Ok(())
}
