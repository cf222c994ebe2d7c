//! Runs plans on NVIDIA GPUs: NVRTC compiles the kernels, one CUDA graph holds all launches, every call replays it.
//!
//! The way of a plan: [`discovery`] finds the driver and NVRTC, [`nvrtc`] compiles through the [`cache`],
//! [`CudaExecutable::new`] checks the plan, loads its kernels, allocates the arena once, computes what frozen weights
//! fix, and instantiates the graph. [`CudaExecutable::launch`] replays it, and changes only the pointers that differ
//! from the call before.
//!
//! Everything unsafe of the crate is in this module. Two rules carry most of its reasons: memory and code that
//! work in flight may use are released only after waiting for the device, and plans are checked before a driver call
//! depends on them.

mod arena;
pub mod cache;
mod device;
pub mod discovery;
mod error;
mod executable;
mod graph;
mod layout;
mod members;
mod memory;
mod module;
pub mod nvrtc;
mod nvrtc_library;
mod pointers;
mod pool;
mod read_back;
#[cfg(feature = "cust")]
mod read_back_cust;
mod timing;
mod weights;

pub use arena::SharedArena;
pub use cache::Cache;
pub use device::{CudaDevice, DeviceInfo, Limits, Stream};
pub use error::{CompileFailure, CudaError, DriverFailure, Result};
pub use executable::{BindOptions, CudaExecutable, bytes_needed};
pub use layout::Tensor;
pub use members::{Case, CudaMembers, ExecutableCache, Member};
pub use memory::{DeviceBuffer, DevicePointer, POINTER_ALIGNMENT};
pub use nvrtc::{CompiledKernel, KNOWN_ARCHITECTURES, Resources};
pub use nvrtc_library::NvrtcLibrary;
pub use read_back::{GraphMismatch, GraphReadBack, NodeReadBack};
pub use timing::{Arguments, Timer};
pub use weights::{DeviceWeights, upload_weights};
