//! The library has every function of the table, under the name that a real one exports.

use std::collections::BTreeSet;
use vmm_emulator::{Config, EXPORTED};
use vmm_sys::SYMBOLS;

#[test]
fn every_symbol_of_the_table_is_exported_and_resolves() {
    let exported: BTreeSet<&str> = EXPORTED.iter().copied().collect();
    assert_eq!(exported.len(), EXPORTED.len(), "a name is exported twice");
    let lacking: Vec<&str> = SYMBOLS
        .iter()
        .map(|symbol| symbol.export)
        .filter(|export| !exported.contains(export))
        .collect();
    assert!(lacking.is_empty(), "not exported: {lacking:?}");
    let driver = Config::new().install().unwrap().driver().unwrap();
    let lacking: Vec<_> = driver
        .symbols()
        .filter(|resolved| !resolved.found)
        .map(|resolved| resolved.symbol.export)
        .collect();
    assert!(lacking.is_empty(), "not resolved: {lacking:?}");
}
