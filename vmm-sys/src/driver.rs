//! The loaded driver: the table's function pointers and what keeps them valid.

use core::ffi::{c_int, c_void};
use std::fmt;

use libloading::Library;

use crate::error::Error;
use crate::symbols::{SYMBOLS, Symbol};
use crate::table::for_each_symbol;
use crate::types::*;

/// A CUDA driver, loaded and resolved, as it is.
///
/// Every symbol of the table is resolved once, when the driver is loaded, and called through a
/// method with its C name. The library stays loaded for as long as this value lives. Nothing is
/// initialised: call [`Driver::cuInit`].
pub struct Driver {
    table: Table,
    version: c_int,
    emulator: bool,
    /// Unloaded after the table that points into it; `None` where something else keeps the code.
    _library: Option<Library>,
}

/// Answers where a symbol is, or null.
pub(crate) type Lookup<'a> = &'a mut dyn FnMut(usize, &'static Symbol) -> *mut c_void;

macro_rules! define_table {
    ($($need:ident $method:ident $symbol:literal $export:literal $tag:literal $pfn:ident $text:literal $(, $safety:literal)?;)*) => {
        /// One function pointer a symbol, in the order of [`SYMBOLS`].
        #[derive(Clone)]
        #[allow(non_snake_case)]
        pub(crate) struct Table {
            $(pub(crate) $method: $pfn,)*
        }

        impl Table {
            /// Ask for every symbol of the table.
            ///
            /// # Safety
            ///
            /// What `lookup` returns for a symbol is null or a function of the symbol's type.
            pub(crate) unsafe fn resolve(lookup: Lookup<'_>) -> Self {
                let mut symbols = SYMBOLS.iter().enumerate();
                let mut next = || match symbols.next() {
                    Some((index, symbol)) => lookup(index, symbol),
                    None => core::ptr::null_mut(),
                };
                Table {
                    $($method: {
                        // SAFETY: the type is an optional function pointer, for which null is none,
                        // and the caller vouches for what is not null.
                        unsafe { core::mem::transmute::<*mut c_void, $pfn>(next()) }
                    },)*
                }
            }

            /// Which symbols were found, in the order of [`SYMBOLS`].
            pub(crate) fn found(&self) -> impl Iterator<Item = bool> {
                [$(self.$method.is_some(),)*].into_iter()
            }
        }
    };
}

for_each_symbol!(define_table);

impl Driver {
    /// # Safety
    ///
    /// The table's functions stay callable while `library`, or without one the process, lives.
    pub(crate) unsafe fn assemble(
        table: Table,
        version: c_int,
        emulator: bool,
        library: Option<Library>,
    ) -> Self {
        Driver {
            table,
            version,
            emulator,
            _library: library,
        }
    }

    /// The CUDA version that the driver implements, as CUDA writes it: 13000 is 13.0.
    #[doc(alias = "cuDriverGetVersion")]
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Whether this is this project's software driver, which has no GPU behind it.
    pub fn is_emulator(&self) -> bool {
        self.emulator
    }

    /// Whether both values call one and the same library: loading it twice gives two values of one
    /// driver.
    pub fn is_same_library(&self, other: &Driver) -> bool {
        let code = |driver: &Driver| driver.table.cuInit.map(|call| call as *const ());
        code(self) == code(other)
    }

    /// Every symbol of the table, and whether this driver has it.
    pub fn symbols(&self) -> impl ExactSizeIterator<Item = Resolved> {
        let found: Vec<bool> = self.table.found().collect();
        let driver_version = self.version;
        SYMBOLS
            .iter()
            .zip(found)
            .map(move |(&symbol, found)| Resolved {
                symbol,
                found,
                driver_version,
            })
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    #[cold]
    pub(crate) fn missing(&self, symbol: &'static str, since: u32) -> Error {
        Error::missing(symbol, since, self.version)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("version", &self.version)
            .field("emulator", &self.emulator)
            .finish_non_exhaustive()
    }
}

/// A symbol of the table, and what a driver made of it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Resolved {
    /// The line of the table.
    pub symbol: Symbol,
    /// Whether the driver has the symbol in this version.
    pub found: bool,
    /// The driver's version.
    pub driver_version: i32,
}

impl Resolved {
    /// Why the symbol was not found, in words; `None` where it was.
    pub fn why_not(&self) -> Option<String> {
        let since = crate::error::Version(self.symbol.tag as i32);
        let have = crate::error::Version(self.driver_version);
        if self.found {
            None
        } else if (self.driver_version as u32) < self.symbol.tag {
            Some(format!(
                "it came with CUDA {since} and the driver implements {have}"
            ))
        } else {
            Some(format!(
                "the driver implements CUDA {have} but does not offer it"
            ))
        }
    }
}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Driver>();
};
