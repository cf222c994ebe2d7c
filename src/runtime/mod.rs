//! Running compiled blocks.

pub mod cpu;
