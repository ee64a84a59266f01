//! What the headers leave awkward: a location's id is in a union without a name.

use core::ffi::c_int;

use crate::types::{CUmemLocation, CUmemLocation_st__bindgen_ty_1, CUmemLocationType};

// `cargo xtask abi-check` compares this with C, where the member has no union's name.
const _: () = assert!(core::mem::offset_of!(CUmemLocation, __bindgen_anon_1) == 4);

/// Safe code cannot write the shorter member of the union, which would leave bytes unwritten:
///
/// ```compile_fail,E0616
/// let location = vmm_sys::CUmemLocation::default();
/// let _ = location.__bindgen_anon_1;
/// ```
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
        // SAFETY: only this file and `Default` make a union (its member is private to the crate), and
        // both write all four bytes.
        unsafe { self.__bindgen_anon_1.id }
    }
}
