//! Compiler and CUDA-graph runtime for the forward pass of a HyenaBlock.

mod block;
pub mod check;
mod error;
pub mod files;
pub mod inputs;
pub mod runtime;
pub mod target;

pub use block::HyenaBlock;
pub use hyenac_kernels::Mode;
pub use error::{Error, Stage};
pub use hyenac_ir::{BlockConfig, FilterLayout, Positions};
