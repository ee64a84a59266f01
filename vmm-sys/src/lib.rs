//! The CUDA driver as it is: table, loader, types.
