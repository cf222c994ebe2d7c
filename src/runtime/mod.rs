//! Running compiled blocks.

pub mod cpu;
pub mod cuda;
