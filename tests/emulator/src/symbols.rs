//! Every function by name and version, and which of them an older driver has.

use crate::api::{
    context, copy, device, entry, event, legacy, linear, missing, pinned, pointer, stream, vmm,
};
use crate::api::{
    copy::per_thread as copy_per_thread, event::per_thread as event_per_thread,
    stream::per_thread as stream_per_thread,
};
use crate::code::Code;
use std::ffi::{c_int, c_void};

/// A function whose arguments are not known here.
#[doc(hidden)]
pub type Function = unsafe extern "C" fn();

struct Row {
    name: &'static str,
    tag: c_int,
    export: &'static str,
    function: Function,
}

impl Row {
    fn is_per_thread(&self) -> bool {
        self.export.ends_with("_ptds") || self.export.ends_with("_ptsz")
    }
}

macro_rules! table {
    ($($name:ident $tag:literal $export:ident $module:ident :: $function:ident;)*) => {
        const ROWS: &[Row] = &[$(Row {
            name: stringify!($name),
            tag: $tag,
            export: stringify!($export),
            function: untyped!($module::$function),
        },)*];

        /// The functions in the order of `for_each_symbol`.
        #[doc(hidden)]
        pub static EXPORTS: [Function; ROWS.len()] = [$(untyped!($module::$function),)*];

    };
}

macro_rules! missing {
    ($($name:ident $tag:literal $export:ident;)*) => {
        const MISSING: &[Row] = &[$(Row {
            name: stringify!($name),
            tag: $tag,
            export: stringify!($export),
            function: refusing!($name $export),
        },)*];
    };
}

macro_rules! refusing {
    ($name:ident $export:ident) => {{
        unsafe extern "C" fn refuse() -> Code {
            missing::refuse(stringify!($name), stringify!($export))
        }
        untyped!(refuse)
    }};
}

macro_rules! untyped {
    ($function:path) => {
        // SAFETY: only the type is forgotten; whoever calls restores it.
        unsafe { std::mem::transmute::<*const (), Function>($function as *const ()) }
    };
}

crate::for_each_symbol!(table);
crate::for_each_missing!(missing);

/// What programs made with the headers of CUDA 12.0 and later call another function by.
const RENAMED: &[Row] = &[Row {
    name: "cuGraphInstantiate",
    tag: 12_000,
    export: "cuGraphInstantiateWithFlags",
    function: refusing!(cuGraphInstantiate cuGraphInstantiateWithFlags),
}];

fn rows() -> impl Iterator<Item = &'static Row> + Clone {
    ROWS.iter().chain(MISSING).chain(RENAMED)
}

/// The names that the library exports.
#[doc(hidden)]
pub fn exported() -> impl Iterator<Item = &'static str> {
    ROWS.iter().chain(MISSING).map(|row| row.export)
}

/// What `cuGetProcAddress` finds.
pub(crate) enum Answer {
    Found(Function),
    Unknown,
    TagTooLow,
}

impl Answer {
    pub fn address(&self) -> *mut c_void {
        match self {
            Self::Found(function) => *function as *mut c_void,
            Self::Unknown | Self::TagTooLow => std::ptr::null_mut(),
        }
    }

    /// `CUdriverProcAddressQueryResult`.
    pub fn status(&self) -> c_int {
        match self {
            Self::Found(_) => crate::abi::QUERY_FOUND,
            Self::Unknown => crate::abi::QUERY_UNKNOWN,
            Self::TagTooLow => crate::abi::QUERY_TAG_TOO_LOW,
        }
    }
}

/// The newest form that is not newer than the version asked for, nor than the driver. A function
/// with forms for per-thread default streams has no others where those are wanted: the forms of
/// older functions came with CUDA 7.0 and answer to no lower version.
pub(crate) fn find(name: &[u8], version: c_int, per_thread: bool, driver: c_int) -> Answer {
    if name == b"vmmEmulatorVersion" {
        return Answer::Found(untyped!(entry::vmmEmulatorVersion));
    }
    let named = rows().filter(|row| row.name.as_bytes() == name);
    let per_thread = per_thread && named.clone().any(Row::is_per_thread);
    let known = named.filter(|row| row.tag <= driver && row.is_per_thread() == per_thread);
    match known
        .clone()
        .filter(|row| row.tag <= version)
        .max_by_key(|row| row.tag)
    {
        Some(row) => Answer::Found(row.function),
        None if known.count() > 0 => Answer::TagTooLow,
        None => Answer::Unknown,
    }
}
