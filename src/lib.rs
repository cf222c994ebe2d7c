//! Compiler and CUDA-graph runtime for the forward pass of a HyenaBlock.

pub mod check;
mod error;
pub mod files;

pub use error::{Error, Stage};
