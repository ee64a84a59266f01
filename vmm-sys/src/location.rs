//! What the headers leave awkward: a location's id is in a union without a name.

use core::ffi::c_int;

use crate::types::{CUmemLocation, CUmemLocation_st__bindgen_ty_1, CUmemLocationType};

// `cargo xtask abi-check` compares this with C, where the member has no union's name.
const _: () = assert!(core::mem::offset_of!(CUmemLocation, __bindgen_anon_1) == 4);

impl CUmemLocation {
    /// A location of this type, with the number of the device or the NUMA node.
    pub const fn new(type_: CUmemLocationType, id: c_int) -> Self {
        CUmemLocation {
            type_,
            __bindgen_anon_1: CUmemLocation_st__bindgen_ty_1 { id },
        }
    }

    /// The number of the device or the NUMA node.
    pub const fn id(&self) -> c_int {
        // SAFETY: every value of the union is four bytes that make an integer.
        unsafe { self.__bindgen_anon_1.id }
    }
}
