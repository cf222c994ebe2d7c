//! Compiler and CUDA-graph runtime for the forward pass of a HyenaBlock.
//!
//! A [`HyenaBlock`] is a configuration with weights. [`compile`] turns the configuration, for one batch size and
//! sequence length, into a graph of fused regions and, for a GPU, a plan of kernels; an [`Executable`] binds that to
//! weights and runs it: one CUDA graph replayed per call, or the same regions evaluated on the CPU.
//!
//! ```
//! use hyenac::inputs::{Distribution, generate};
//! use hyenac::{BlockConfig, CompileOptions, DeviceChoice, Executable, Machine, compile};
//!
//! # fn main() -> Result<(), hyenac::Error> {
//! let config = BlockConfig { d_model: 32, d_inner: 64, ..BlockConfig::hyenadna() };
//! let inputs = generate(Distribution::Trained, &config, 1, 100, 0)?;
//!
//! let options = CompileOptions { machine: Machine::Cpu, ..CompileOptions::new(1, 100) };
//! let compilation = compile(&config, &options)?;
//! let mut executable = Executable::build(&compilation, &inputs.block, DeviceChoice::Cpu)?;
//! let output = executable.run(&inputs.hidden_states)?;
//!
//! let reference = inputs.block.reference(&inputs.hidden_states, 1, 100)?;
//! assert!(hyenac::check::Comparison::of(&output, &reference).within(hyenac::check::IEEE_BAR));
//! # Ok(())
//! # }
//! ```
//!
//! Blocks come from files with [`files::BlockFile`], results go to files with [`files::write_tensors`].

mod block;
pub mod check;
mod compile;
mod error;
mod executable;
pub mod files;
pub mod inputs;
pub mod runtime;
pub mod target;

pub use block::HyenaBlock;
pub use compile::{Compilation, CompileOptions, RuleFile, TuningChoice, TuningFile, compile, compile_cached, rules};
pub use error::{Error, Stage};
pub use executable::{Backend, DeviceChoice, Executable, Present};
pub use hyenac_ir::{BlockConfig, FilterLayout, Positions};
pub use hyenac_kernels::{Device, Mode, Plan};
pub use hyenac_passes::{Fuse, Precision, Report};
pub use runtime::cuda::Cache;
pub use target::Machine;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
