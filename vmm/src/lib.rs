//! Owned CUDA virtual memory.
