//! Conformance and cross-process suites.
