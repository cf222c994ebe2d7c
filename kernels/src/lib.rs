//! Lowering: from a graph of regions to a [`Plan`] of CUDA C++ kernels.

mod cost;
mod device;
mod error;
mod family;
mod index;
mod plan;
mod scalar;

pub use device::Device;
pub use error::LowerError;
pub use family::{Candidate, Family, Kernel, Lowered, Pointer, Refusal};
pub use plan::{ALIGNMENT, Argument, Buffer, KernelSource, Launch, Place, Plan};
