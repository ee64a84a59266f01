//! The checks and tools of this workspace.

fn main() {}
