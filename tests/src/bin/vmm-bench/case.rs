//! What is shared: so many chunks of such a size.

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

pub struct Case {
    pub name: &'static str,
    pub chunks: usize,
    pub size: usize,
    /// Its part of the time, relative to the others.
    pub weight: f64,
    /// What the first share is to reach, against naive and best-effort C.
    pub goals: (Option<f64>, Option<f64>),
}

impl Case {
    pub fn bytes(&self) -> usize {
        self.chunks * self.size
    }
}

pub const CASES: &[Case] = &[
    case("1 x 2 MiB", 1, 2 * MIB, 1.0, (Some(0.15), Some(1.10))),
    case("1 x 1 GiB", 1, GIB, 1.0, (Some(0.20), Some(1.10))),
    case("1 x 16 GiB", 1, 16 * GIB, 2.0, (Some(0.40), Some(1.05))),
    case("16 x 1 GiB", 16, GIB, 2.0, (None, None)),
    case("253 x 2 MiB", 253, 2 * MIB, 2.0, (None, None)),
    case("1024 x 2 MiB", 1024, 2 * MIB, 5.0, (Some(0.75), Some(1.05))),
    case("4096 x 2 MiB", 4096, 2 * MIB, 8.0, (None, None)),
];

const fn case(
    name: &'static str,
    chunks: usize,
    size: usize,
    weight: f64,
    goals: (Option<f64>, Option<f64>),
) -> Case {
    Case {
        name,
        chunks,
        size,
        weight,
        goals,
    }
}
