//! CUDA virtual memory shared between processes.
