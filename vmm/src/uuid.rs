//! The name of a device that is the same in every process.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The 16 bytes that name a GPU (or a MIG instance) in every process, whatever its ordinal there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// From the bytes in the order in which the driver gives them.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Uuid(bytes)
    }

    /// The bytes in the order in which the driver gives them.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// As `nvidia-smi -L` prints it: `GPU-` and five groups of hexadecimal digits.
impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads what `Display` and `nvidia-smi -L` write, with or without `GPU-` or `MIG-` in front.
impl FromStr for Uuid {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(
                format!("reading the UUID {text:?}"),
                "it is not of the form GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx",
            )
        };
        let digits = text
            .strip_prefix("GPU-")
            .or_else(|| text.strip_prefix("MIG-"))
            .unwrap_or(text);
        let groups = digits.split('-').map(str::len);
        if !groups.clone().eq([8, 4, 4, 4, 12]) && !groups.eq([32]) {
            return Err(wrong());
        }
        let mut bytes = [0_u8; 16];
        let mut nibbles = digits.chars().filter(|&c| c != '-').map(|c| c.to_digit(16));
        for byte in &mut bytes {
            let (Some(Some(high)), Some(Some(low))) = (nibbles.next(), nibbles.next()) else {
                return Err(wrong());
            };
            *byte = (high << 4 | low) as u8;
        }
        if nibbles.next().is_some() {
            return Err(wrong());
        }
        Ok(Uuid(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_are_inverse() {
        let uuid =
            Uuid::from_bytes(*b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\xff");
        assert_eq!(uuid.to_string(), "GPU-00010203-0405-0607-0809-0a0b0c0d0eff");
        assert_eq!(uuid.to_string().parse::<Uuid>().unwrap(), uuid);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "GPU-",
            "GPU-00",
            "GPU-zz010203-0405-0607-0809-0a0b0c0d0eff",
            "GPU-00010203-0405-0607-0809-0a0b0c0d0eff00",
            "GPU-0001--------02030405060708090a0b0c0d0e0f",
            "00010203-04050607-0809-0a0b0c0d0eff",
        ] {
            assert!(text.parse::<Uuid>().is_err(), "{text}");
        }
    }
}
