//! Every way hyenac can fail, by stage.

use std::fmt;

use hyenac_ir::IrError;
use hyenac_kernels::{LowerError, TuningError};
use hyenac_passes::{PassError, RuleError};
use miette::Diagnostic;

use crate::files::FileError;
use crate::runtime::cuda::CudaError;

/// A stage of compilation, after which the result is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The reference graph of the block.
    Reference,
    /// The graph of regions.
    Optimized,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Reference => "building the block",
            Stage::Optimized => "rewriting",
        })
    }
}

/// Why hyenac could not do what it was asked to.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum Error {
    /// A file of tensors cannot be read or written.
    #[error(transparent)]
    #[diagnostic(code(hyenac::file), help("{}", .0.advice()))]
    File(#[from] FileError),

    /// A configuration outside the limits, or one that has no meaning.
    #[error("configuration: {0}")]
    #[diagnostic(code(hyenac::config), help("see `hyenac --help` for the sizes that a block may have"))]
    Config(#[source] IrError),

    /// A flag or an argument that contradicts another one, or the data.
    #[error("{what}: {why}")]
    #[diagnostic(code(hyenac::usage))]
    Usage {
        /// The flag or argument.
        what: String,
        /// What is wrong with it, and what would be right.
        why: String,
    },

    /// A target that nobody knows.
    #[error("unknown target `{name}`")]
    #[diagnostic(code(hyenac::target), help("known targets: {known}"))]
    UnknownTarget {
        /// The name given.
        name: String,
        /// The names there are.
        known: String,
    },

    /// A weight or an input that is missing or has another shape.
    #[error("tensor `{name}`: expected {expected}, found {found}")]
    #[diagnostic(code(hyenac::tensor))]
    Tensor {
        /// Its name.
        name: String,
        /// The shape or number of elements it must have.
        expected: String,
        /// What it has.
        found: String,
    },

    /// A file of rules does not load.
    #[error(transparent)]
    #[diagnostic(code(hyenac::rules), help("docs/rules.md describes the rule language"))]
    Rules(#[from] RuleError),

    /// A tuning database does not load, or is another device's.
    #[error("{name}: {source}")]
    #[diagnostic(code(hyenac::tuning), help("`hyenac tune --out FILE` writes one; `--tuning none` uses none"))]
    Tuning {
        /// The file.
        name: String,
        /// What is wrong with it.
        source: TuningError,
    },

    /// The graph cannot be rewritten.
    #[error(transparent)]
    #[diagnostic(code(hyenac::rewrite))]
    Rewrite(#[from] PassError),

    /// A stage broke the rules of the IR.
    #[error("the graph is invalid after {stage}: {source}")]
    #[diagnostic(code(hyenac::verify), help("this is a bug of hyenac, or of a rule given with --rules"))]
    Verify {
        /// The stage.
        stage: Stage,
        /// The invariant that does not hold.
        source: IrError,
    },

    /// The graph of regions has no plan.
    #[error(transparent)]
    #[diagnostic(code(hyenac::lower), help("`--fuse none` lowers every op by itself"))]
    Lower(#[from] LowerError),

    /// What is to be done does not fit into memory. Nothing has been allocated.
    #[error("{what} needs {needed} bytes of {place} memory, {available} are available")]
    #[diagnostic(code(hyenac::memory), help("use a smaller batch or a shorter sequence"))]
    Memory {
        /// What is too large.
        what: String,
        /// `host` or `device`.
        place: &'static str,
        /// Bytes it needs.
        needed: u64,
        /// Bytes there are.
        available: u64,
    },

    /// The CUDA runtime: no device, no compiler, or a failure of one of them.
    #[error(transparent)]
    #[diagnostic(code(hyenac::cuda))]
    Cuda(#[from] CudaError),

    /// An op failed while it was evaluated on the CPU.
    #[error("evaluation: {0}")]
    #[diagnostic(code(hyenac::run))]
    Run(#[source] IrError),

    /// A result differs from the reference by more than the bar.
    #[error("check failed: {0}")]
    #[diagnostic(code(hyenac::check), help("docs/numerics.md derives the bars"))]
    Check(String),
}

impl Error {
    /// The exit code of the command line: 1 a check failed, 2 bad input or usage, 3 no usable device.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Check(_) | Error::Verify { .. } | Error::Run(_) => 1,
            Error::File(_)
            | Error::Config(_)
            | Error::Usage { .. }
            | Error::UnknownTarget { .. }
            | Error::Tensor { .. }
            | Error::Rules(_)
            | Error::Tuning { .. }
            | Error::Rewrite(_)
            | Error::Lower(_)
            | Error::Memory { .. } => 2,
            Error::Cuda(error) => match error {
                CudaError::UnknownArch { .. }
                | CudaError::OutOfMemory { .. }
                | CudaError::OverBudget { .. }
                | CudaError::ArenaRange { .. }
                | CudaError::MissingWeight { .. }
                | CudaError::FrozenWeights
                | CudaError::TensorCount { .. }
                | CudaError::TensorSize { .. }
                | CudaError::Misaligned { .. }
                | CudaError::Overlap { .. } => 2,
                CudaError::GraphMismatch(_) => 1,
                // Missing, unsuitable or failing: there is no device that can be used.
                _ => 3,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_tell_checks_input_and_devices_apart() {
        assert_eq!(Error::Check("too far".to_owned()).exit_code(), 1);
        assert_eq!(Error::Usage { what: "--batch".to_owned(), why: "contradicts".to_owned() }.exit_code(), 2);
        let memory = |needed| CudaError::OutOfMemory { what: "the arena".to_owned(), needed, free: 1 };
        assert_eq!(Error::Cuda(memory(2)).exit_code(), 2);
        for missing in [CudaError::DriverMissing, CudaError::NvrtcMissing { tried: Vec::new() }] {
            assert_eq!(Error::Cuda(missing).exit_code(), 3);
        }
    }

    #[test]
    fn files_come_with_advice() {
        let path = std::path::PathBuf::from("w.safetensors");
        let error = Error::File(FileError::Format { path, why: "it is empty".to_owned() });
        assert_eq!(error.to_string(), "w.safetensors is not a valid safetensors file: it is empty");
        assert!(error.help().unwrap().to_string().contains("truncated"));
    }

    #[test]
    fn memory_says_what_is_needed_and_what_there_is() {
        let error = Error::Memory { what: "the plan".to_owned(), place: "host", needed: 123, available: 45 };
        assert_eq!(error.to_string(), "the plan needs 123 bytes of host memory, 45 are available");
    }
}
