//! The CPU backend: evaluates a graph of regions in f32 on all cores.

mod executable;
mod memory;

pub use executable::CpuExecutable;
pub use memory::{available_bytes, peak_bytes, require_memory};
