//! `libcuda.so.1`: every function of the emulator under its exported name.
//!
//! The names are in a library of their own so that a Rust program that links the emulator does not
//! export them, which would take the place of a real driver's.
#![allow(missing_docs)] // the functions are CUDA's

use vmm_emulator::{Code, EXPORTS};

macro_rules! exports {
    ($($name:ident $tag:literal $export:ident $module:ident :: $function:ident;)*) => {
        /// The place of every function in the table.
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        enum Place {
            $($export,)*
        }

        $(
            /// Jumps to the function of this name, with the arguments as they are.
            ///
            /// # Safety
            /// As CUDA says of the function.
            #[allow(non_snake_case)]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $export() {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(
                    "lea rax, [rip + {table}]",
                    "jmp qword ptr [rax + {offset}]",
                    table = sym EXPORTS,
                    offset = const Place::$export as usize * 8,
                );
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(
                    "adrp x16, {table}",
                    "add x16, x16, :lo12:{table}",
                    "mov x17, #{offset}",
                    "ldr x16, [x16, x17]",
                    "br x16",
                    table = sym EXPORTS,
                    offset = const Place::$export as usize * 8,
                );
            }
        )*
    };
}

vmm_emulator::for_each_symbol!(exports);

macro_rules! refusals {
    ($($name:ident $tag:literal $export:ident;)*) => {
        $(
            /// Whatever the arguments, they are not looked at.
            #[allow(non_snake_case)]
            #[unsafe(no_mangle)]
            pub extern "C" fn $export() -> Code {
                vmm_emulator::refuse(stringify!($name), stringify!($export))
            }
        )*
    };
}

vmm_emulator::for_each_missing!(refusals);
