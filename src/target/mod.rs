//! The machines that a block is compiled for, as the extraction sees them.

mod cpu;

pub use cpu::CpuTarget;
