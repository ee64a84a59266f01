//! Finding a driver and resolving the table.

use core::ffi::{c_char, c_int, c_ulong, c_void};
use std::env;
use std::error::Error as _;
use std::ffi::{CStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::driver::{Driver, Table};
use crate::error::Version;
use crate::symbols::{SYMBOLS, Symbol};
use crate::types::*;

/// The five-argument `cuGetProcAddress` of CUDA 12: what a driver is, as far as this crate knows.
pub type GetProcAddress = unsafe extern "C" fn(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cuda_version: c_int,
    flags: cuuint64_t,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult;

/// The four-argument form of CUDA 11.3.
type GetProcAddress11 =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, cuuint64_t) -> CUresult;

/// The oldest driver with virtual memory management: CUDA 10.2.
pub const OLDEST_VERSION: i32 = 10020;

/// The version under which the driver keeps the per-thread forms of everything older, and below
/// which it finds none of them. `cargo xtask abi-check` compares their types with the table's.
const PER_THREAD_VERSION: c_int = 7000;

/// The name that only this project's software driver answers.
const EMULATOR: &CStr = c"vmmEmulatorVersion";

/// How to load a driver.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct LoadOptions {
    per_thread_default_stream: bool,
}

impl LoadOptions {
    /// The defaults: the legacy default stream.
    pub fn new() -> Self {
        LoadOptions::default()
    }

    /// Whether calls that run on the default stream run on the thread's own instead of the legacy
    /// one.
    pub fn per_thread_default_stream(mut self, on: bool) -> Self {
        self.per_thread_default_stream = on;
        self
    }

    /// As [`Driver::load`], with these options.
    ///
    /// # Errors
    ///
    /// As [`Driver::load`].
    pub fn load(&self) -> Result<Driver, LoadError> {
        let named = env::var_os("VMM_LIBCUDA").filter(|path| !path.is_empty() && !is_secure());
        let path = named.unwrap_or_else(|| OsString::from(SYSTEM));
        // SAFETY: the system's CUDA driver, which programs link against without a second thought,
        // or what whoever controls the environment named instead. They could preload anything:
        // where the loader would not let them, the variable is not looked at.
        unsafe { self.load_from(path) }
    }

    /// As [`Driver::load_from`], with these options.
    ///
    /// # Errors
    ///
    /// As [`Driver::load`].
    ///
    /// # Safety
    ///
    /// As [`Driver::load_from`].
    pub unsafe fn load_from(&self, path: impl AsRef<Path>) -> Result<Driver, LoadError> {
        let path = path.as_ref();
        // SAFETY: the caller vouches for the library's initialisers.
        let library = unsafe { Library::new(path) }.map_err(|error| LoadError {
            kind: LoadErrorKind::LibraryNotFound {
                paths: vec![path.to_owned()],
            },
            // What the system's loader says is one step further down.
            detail: Some(match error.source() {
                Some(reason) => reason.to_string(),
                None => error.to_string(),
            }),
        })?;
        // SAFETY: the caller vouches that the library is a driver.
        unsafe { self.resolve(library, path) }
    }

    /// As [`Driver::from_get_proc_address`], with these options.
    ///
    /// # Errors
    ///
    /// As [`Driver::load`].
    ///
    /// # Safety
    ///
    /// As [`Driver::from_get_proc_address`].
    pub unsafe fn from_get_proc_address(&self, get: GetProcAddress) -> Result<Driver, LoadError> {
        // SAFETY: the caller vouches for the function and for how long its answers live.
        unsafe { self.assemble(Source::V2(get), None, Path::new("")) }
    }

    /// # Safety
    ///
    /// `library` is a driver.
    unsafe fn resolve(&self, library: Library, path: &Path) -> Result<Driver, LoadError> {
        let (v2, v1) = (
            find(&library, "cuGetProcAddress_v2"),
            find(&library, "cuGetProcAddress"),
        );
        let source = if !v2.is_null() {
            // SAFETY: this name has had this type since it came with CUDA 12.0.
            Source::V2(unsafe { core::mem::transmute::<*mut c_void, GetProcAddress>(v2) })
        } else if !v1.is_null() {
            // SAFETY: this name has had this type since it came with CUDA 11.3.
            Source::V1(unsafe { core::mem::transmute::<*mut c_void, GetProcAddress11>(v1) })
        } else if find(&library, "cuInit").is_null() {
            return Err(LoadError {
                kind: LoadErrorKind::NotADriver {
                    path: path.to_owned(),
                },
                detail: None,
            });
        } else {
            Source::Exports
        };
        // SAFETY: the addresses are those of `library`, which the driver keeps.
        unsafe { self.assemble(source, Some(library), path) }
    }

    /// # Safety
    ///
    /// `source` answers with functions of the types asked for, which live as long as `library`, or
    /// without one as long as the process.
    unsafe fn assemble(
        &self,
        source: Source,
        library: Option<Library>,
        path: &Path,
    ) -> Result<Driver, LoadError> {
        let ask = Ask {
            source,
            library: library.as_ref(),
            path,
            per_thread: self.per_thread_default_stream,
        };
        let version = ask.version()?;
        if version < OLDEST_VERSION {
            return Err(LoadError {
                kind: LoadErrorKind::TooOld {
                    found: version,
                    needed: OLDEST_VERSION,
                },
                detail: None,
            });
        }
        let mut refused = None;
        let mut lookup = |_: usize, symbol: &'static Symbol| match ask.symbol(symbol, version) {
            Ok(address) => address,
            Err(code) => {
                refused.get_or_insert((symbol, code));
                core::ptr::null_mut()
            }
        };
        // SAFETY: `source` answers with functions of the version asked for, whose type is the
        // line's (checked at compile time).
        let table = unsafe { Table::resolve(&mut lookup) };
        if let Some((symbol, code)) = refused {
            return Err(LoadError {
                kind: LoadErrorKind::TagRefused {
                    symbol: symbol.name,
                    tag: symbol.tag,
                    code,
                },
                detail: None,
            });
        }
        let missing: Vec<&'static str> = SYMBOLS
            .iter()
            .zip(table.found())
            .filter(|(symbol, found)| symbol.required && !found)
            .map(|(symbol, _)| symbol.export)
            .collect();
        if !missing.is_empty() {
            return Err(LoadError {
                kind: LoadErrorKind::MissingSymbols {
                    symbols: missing,
                    driver_version: version,
                },
                detail: None,
            });
        }
        let emulator = ask.is_emulator(version);
        // SAFETY: the caller vouches for how long the functions live.
        Ok(unsafe { Driver::assemble(table, version, emulator, library) })
    }
}

impl Driver {
    /// Load the system's driver: `libcuda.so.1`, or what the environment variable `VMM_LIBCUDA`
    /// names. Nothing is initialised.
    ///
    /// Never plain `libcuda.so`, which on machines with the toolkit may be its stub.
    ///
    /// # Errors
    ///
    /// See [`LoadErrorKind`].
    pub fn load() -> Result<Driver, LoadError> {
        LoadOptions::new().load()
    }

    /// Load the driver at `path`.
    ///
    /// # Errors
    ///
    /// See [`LoadErrorKind`].
    ///
    /// # Safety
    ///
    /// The library is a CUDA driver, or something whose symbols have the same types and meaning: its
    /// code runs in this process.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Driver, LoadError> {
        // SAFETY: passed on to the caller.
        unsafe { LoadOptions::new().load_from(path) }
    }

    /// A driver by its `cuGetProcAddress`, in the five-argument form.
    ///
    /// # Errors
    ///
    /// See [`LoadErrorKind`].
    ///
    /// # Safety
    ///
    /// `get` behaves as the driver's: what it gives for a name and a version is a function of that
    /// version's type, callable for as long as the process runs.
    pub unsafe fn from_get_proc_address(get: GetProcAddress) -> Result<Driver, LoadError> {
        // SAFETY: passed on to the caller.
        unsafe { LoadOptions::new().from_get_proc_address(get) }
    }
}

/// The driver of the system, wherever the loader finds it.
const SYSTEM: &str = "libcuda.so.1";

/// How a driver is asked for its symbols: the newer the better.
#[derive(Clone, Copy)]
enum Source {
    V2(GetProcAddress),
    V1(GetProcAddress11),
    /// By exported name: drivers before 11.3.
    Exports,
}

struct Ask<'a> {
    source: Source,
    library: Option<&'a Library>,
    /// Where the library is; empty without one.
    path: &'a Path,
    per_thread: bool,
}

impl Ask<'_> {
    fn version(&self) -> Result<c_int, LoadError> {
        type GetVersion = unsafe extern "C" fn(*mut c_int) -> CUresult;
        let not_a_driver = |detail: Option<String>| LoadError {
            kind: LoadErrorKind::NotADriver {
                path: self.path.to_owned(),
            },
            detail,
        };
        // The oldest tag there is: every driver answers it.
        let address = self.address(c"cuDriverGetVersion", 2020, None);
        let address = match address {
            Ok(address) if !address.is_null() => address,
            Ok(_) => return Err(not_a_driver(Some("it has no cuDriverGetVersion".into()))),
            Err(CUresult::CUDA_ERROR_STUB_LIBRARY) => return Err(LoadError::stub()),
            Err(code) => {
                return Err(not_a_driver(Some(format!(
                    "cuGetProcAddress answered {code}"
                ))));
            }
        };
        // SAFETY: the type of this symbol has never changed.
        let get = unsafe { core::mem::transmute::<*mut c_void, GetVersion>(address) };
        let mut version = 0;
        // SAFETY: the out pointer is a live local.
        match unsafe { get(&mut version) } {
            CUresult::CUDA_SUCCESS => Ok(version),
            CUresult::CUDA_ERROR_STUB_LIBRARY => Err(LoadError::stub()),
            code => Err(not_a_driver(Some(format!(
                "cuDriverGetVersion answered {code}"
            )))),
        }
    }

    /// Null where the driver does not have the symbol; an error where it refuses to say.
    fn symbol(&self, symbol: &Symbol, version: c_int) -> Result<*mut c_void, CUresult> {
        // A driver refuses tags of a newer major version than its own, without harm.
        if symbol.tag as c_int > version {
            return Ok(core::ptr::null_mut());
        }
        let tag = symbol.tag as c_int;
        let found = self.address(symbol.c_name, tag, Some(symbol))?;
        if found.is_null() && self.per_thread && tag < PER_THREAD_VERSION {
            return self.address(symbol.c_name, PER_THREAD_VERSION, Some(symbol));
        }
        Ok(found)
    }

    fn is_emulator(&self, version: c_int) -> bool {
        self.address(EMULATOR, version, None)
            .is_ok_and(|address| !address.is_null())
    }

    fn address(
        &self,
        name: &CStr,
        tag: c_int,
        symbol: Option<&Symbol>,
    ) -> Result<*mut c_void, CUresult> {
        let flags = match self.per_thread {
            true => CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
            false => CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_LEGACY_STREAM,
        };
        let flags = cuuint64_t::from(flags.0);
        let mut address = core::ptr::null_mut();
        let code = match self.source {
            Source::V2(get) => {
                let mut status =
                    CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
                // SAFETY: the name is terminated and both out pointers are live locals.
                unsafe { get(name.as_ptr(), &mut address, tag, flags, &mut status) }
            }
            // SAFETY: as above.
            Source::V1(get) => unsafe { get(name.as_ptr(), &mut address, tag, flags) },
            Source::Exports => {
                address = self.export(name, symbol);
                CUresult::CUDA_SUCCESS
            }
        };
        match code {
            CUresult::CUDA_SUCCESS => Ok(address),
            // The four-argument form answers so for what it does not have.
            CUresult::CUDA_ERROR_NOT_FOUND => Ok(core::ptr::null_mut()),
            code => Err(code),
        }
    }

    /// The symbol by the name under which the library exports its version.
    fn export(&self, name: &CStr, symbol: Option<&Symbol>) -> *mut c_void {
        let Some(library) = self.library else {
            return core::ptr::null_mut();
        };
        let export = match symbol {
            Some(symbol) => symbol.export.to_owned(),
            None => name.to_string_lossy().into_owned(),
        };
        let endings: &[&str] = if self.per_thread {
            &["_ptsz", "_ptds", ""]
        } else {
            &[""]
        };
        endings
            .iter()
            .map(|ending| find(library, &format!("{export}{ending}")))
            .find(|address| !address.is_null())
            .unwrap_or(core::ptr::null_mut())
    }
}

/// Where an exported symbol is, or null.
fn find(library: &Library, name: &str) -> *mut c_void {
    // SAFETY: the address is only looked at here; who calls it vouches for its type.
    let address = unsafe { library.get::<*mut c_void>(name.as_bytes()) }
        .ok()
        // SAFETY: the library is kept for as long as the table that the address goes into.
        .and_then(|symbol| unsafe { symbol.try_as_raw_ptr() });
    address.unwrap_or(core::ptr::null_mut())
}

/// Why no driver was loaded.
#[derive(Debug)]
pub struct LoadError {
    kind: LoadErrorKind,
    detail: Option<String>,
}

/// The ways in which loading a driver fails.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadErrorKind {
    /// No such library, or it could not be loaded.
    LibraryNotFound {
        /// What was tried, in order.
        paths: Vec<PathBuf>,
    },
    /// The library is the toolkit's stub, which only programs are linked against.
    Stub,
    /// The library loads but is no CUDA driver.
    NotADriver {
        /// The library; empty where there is no file.
        path: PathBuf,
    },
    /// The driver is older than virtual memory management.
    TooOld {
        /// The CUDA version that it implements.
        found: i32,
        /// The oldest that will do.
        needed: i32,
    },
    /// The driver lacks symbols that this crate cannot do without.
    MissingSymbols {
        /// All of them, by exported name.
        symbols: Vec<&'static str>,
        /// The CUDA version that the driver implements.
        driver_version: i32,
    },
    /// The driver refused to look a symbol up in a version that it should know.
    TagRefused {
        /// The symbol.
        symbol: &'static str,
        /// The version asked for.
        tag: u32,
        /// The driver's answer.
        code: CUresult,
    },
}

impl LoadErrorKind {
    /// Whether the system has no driver. A library that is there and does not work, or that somebody
    /// named and is not there, is something else: a program that goes on without a GPU should not
    /// pass it over.
    pub fn is_driver_absent(&self) -> bool {
        match self {
            LoadErrorKind::LibraryNotFound { paths } => {
                paths.iter().all(|path| path.as_os_str() == SYSTEM)
            }
            _ => false,
        }
    }
}

impl LoadError {
    fn stub() -> Self {
        LoadError {
            kind: LoadErrorKind::Stub,
            detail: None,
        }
    }

    /// What went wrong.
    pub fn kind(&self) -> &LoadErrorKind {
        &self.kind
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            LoadErrorKind::LibraryNotFound { paths } => {
                let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
                write!(f, "no CUDA driver library: tried {}", paths.join(", "))?;
            }
            LoadErrorKind::Stub => f.write_str(
                "the library is the CUDA toolkit's stub (CUDA_ERROR_STUB_LIBRARY, 34), not a driver: \
                 take its folder (often .../lib64/stubs) off LD_LIBRARY_PATH, or install the driver",
            )?,
            LoadErrorKind::NotADriver { path } if path.as_os_str().is_empty() => {
                f.write_str("this is no CUDA driver")?;
            }
            LoadErrorKind::NotADriver { path } => {
                write!(f, "{} is no CUDA driver", path.display())?;
            }
            LoadErrorKind::TooOld { found, needed } => write!(
                f,
                "the driver implements CUDA {}, and {} or newer is needed: update the driver",
                Version(*found),
                Version(*needed)
            )?,
            LoadErrorKind::MissingSymbols { symbols, driver_version } => write!(
                f,
                "the driver (CUDA {}) lacks {}: reinstall or update it",
                Version(*driver_version),
                symbols.join(", ")
            )?,
            LoadErrorKind::TagRefused { symbol, tag, code } => write!(
                f,
                "the driver refused to look up {symbol} for CUDA {}: {code}",
                Version(*tag as i32)
            )?,
        }
        if let Some(detail) = &self.detail {
            write!(f, " ({detail})")?;
        }
        match &self.kind {
            kind if kind.is_driver_absent() => f.write_str(
                "; install NVIDIA's driver, start the container with the GPU (`--gpus all`), or name \
                 the library with VMM_LIBCUDA",
            ),
            LoadErrorKind::LibraryNotFound { .. } => f.write_str(
                "; name another library (VMM_LIBCUDA), or none for the driver of the system",
            ),
            LoadErrorKind::NotADriver { .. } => {
                f.write_str("; name the driver's libcuda.so.1, or unset VMM_LIBCUDA")
            }
            LoadErrorKind::TagRefused { .. } => f.write_str("; reinstall the driver"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for LoadError {}

/// Whether this program has more rights than whoever started it (set-uid, file capabilities), so that
/// the environment is not to be trusted.
fn is_secure() -> bool {
    unsafe extern "C" {
        fn getauxval(kind: c_ulong) -> c_ulong;
    }
    const AT_SECURE: c_ulong = 23;
    // SAFETY: reads a value that the kernel passed to this process; any number may be asked for.
    unsafe { getauxval(AT_SECURE) != 0 }
}
