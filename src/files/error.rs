//! What can be wrong with a file of tensors.

use std::io;
use std::path::PathBuf;

/// Why a file cannot be read as a block, or a result cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// What was tried: open, read, write, create, rename.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Not a safetensors file, or a damaged one. Nothing of its claimed size was allocated.
    #[error("{} is not a valid safetensors file: {why}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, with the numbers found.
        why: String,
    },
    /// A tensor that must be there is not.
    #[error(
        "{} has no tensor `{name}` (expected {expected}){}",
        .path.display(),
        .similar.as_ref().map(|found| format!("; did you mean `{found}`, which is not a tensor of a block?")).unwrap_or_default()
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type and shape, extents by name where they are not known.
        expected: String,
        /// The unknown tensor of the file whose name comes nearest.
        similar: Option<String>,
    },
    /// A tensor has another dtype than the block's arithmetic takes.
    #[error("tensor `{name}` of {}: expected {expected}, found {found}", .path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The dtypes that are accepted.
        expected: &'static str,
        /// The dtype in the file.
        found: String,
    },
    /// A tensor has another shape than the rest of the file implies.
    #[error("tensor `{name}` of {}: expected shape {expected}, found {found:?}", .path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The shape it must have.
        expected: String,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// A tensor that is really there, but larger than the memory there is.
    #[error("tensor `{name}` of {} needs {needed} bytes of host memory, {available} are available", .path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its size in bytes.
        needed: u64,
        /// Bytes there are.
        available: u64,
    },
    /// A metadata value that is no number, or out of range.
    #[error("metadata of {}: `{key}` = `{value}`: {why}", .path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        why: String,
    },
}

impl FileError {
    /// What the user can do about it.
    pub fn advice(&self) -> &'static str {
        match self {
            FileError::Io { .. } => "check the path, the permissions and the free space",
            FileError::Format { .. } => {
                "the file may be truncated or of another format; write it again with safetensors.save_file"
            }
            FileError::Missing { .. } => "rename or add the tensor; names are those of a HyenaBlock's parameters",
            FileError::Dtype { .. } => "convert the tensor before saving it: weights and hidden states are F32",
            FileError::Shape { .. } => {
                "sizes are read off norm1_weight, mlp_fc1_weight, filter_linear1_weight and short_conv_weight"
            }
            FileError::Memory { .. } => "use a machine with more memory, or a smaller input",
            FileError::Metadata { .. } => "correct the metadata, or override it with --eps, --shift or --l-max",
        }
    }
}
