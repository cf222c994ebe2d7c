//! Lowering: from a graph of regions to a [`Plan`] of CUDA C++ kernels.

mod arena;
mod chain;
mod cost;
mod device;
mod direct_convolution;
mod error;
mod family;
mod fft;
mod gemm;
mod index;
mod layer_norm;
mod lower;
mod map;
mod network;
mod plan;
mod registry;
mod scalar;
mod source;
mod storage;
#[cfg(test)]
mod testing;
mod tuning;
mod vector;
mod warpgroup;

pub use device::Device;
pub use error::LowerError;
pub use family::{Candidate, Family, Kernel, Lowered, Pointer, Refusal};
pub use lower::{MAX_LAUNCHES, Mode, lower};
pub use plan::{ALIGNMENT, Argument, Buffer, KernelSource, Launch, Place, Plan};
pub use registry::{Price, families, lower_region, price};
pub use tuning::{
    RegionTimes, TUNING_SCHEMA, Tuning, TuningDatabase, TuningEntry, TuningError, region_key, source_hash,
};
