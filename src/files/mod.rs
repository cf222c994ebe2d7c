//! Files of tensors in the safetensors format: blocks, inputs and results.

mod block;
mod error;
mod read;
mod write;

pub use block::{BlockFile, HiddenStates, Settings, read_hidden_states};
pub use error::FileError;
pub use read::{Entry, TensorFile, nearest};
pub use write::{TensorRef, write_tensors, write_whole};

#[cfg(test)]
mod tests;
