//! Sizes: rounded up where asked, never past the end of the address space.

use crate::error::{Error, Result};

/// `bytes` rounded up to a multiple of `granularity`, a power of two.
pub(crate) fn round_up(
    bytes: usize,
    granularity: usize,
    attempt: impl FnOnce() -> String,
) -> Result<usize> {
    match bytes.checked_next_multiple_of(granularity) {
        Some(rounded) if rounded <= isize::MAX as usize => Ok(rounded),
        _ => Err(Error::invalid(
            attempt(),
            format!(
                "{bytes} bytes, rounded up to multiples of {granularity}, are more than there are addresses"
            ),
        )),
    }
}

/// The sum of some sizes.
pub(crate) fn total(
    sizes: impl IntoIterator<Item = usize>,
    attempt: impl FnOnce() -> String,
) -> Result<usize> {
    sizes
        .into_iter()
        .try_fold(0_usize, usize::checked_add)
        .filter(|&sum| sum <= isize::MAX as usize)
        .ok_or_else(|| {
            Error::invalid(
                attempt(),
                "the sizes add up to more than there are addresses",
            )
        })
}
