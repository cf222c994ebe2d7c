//! Plans: what is launched, in which order, on which bytes. Pure data.

use serde::{Deserialize, Serialize};

use crate::device::Device;

/// A kernel as source text. Shapes are constants of the source, so that its only parameters are pointers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelSource {
    /// Name of the `extern "C" __global__` function.
    pub name: String,
    /// A complete CUDA C++ translation unit that includes nothing.
    pub source: String,
}

/// Where the bytes of a buffer live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A tensor the caller gives with each call.
    Input(String),
    /// A tensor of the weights.
    Weight(String),
    /// Output `n` of the graph, in memory the caller gives with each call.
    Output(usize),
    /// Bytes of the arena, live during a call.
    Arena(u64),
    /// Bytes computed once from frozen weights and kept as long as the executable.
    Frozen(u64),
    /// Bytes of the arena that only the set-up launches use.
    SetupArena(u64),
}

/// A buffer that launches read or write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Deterministic name, for tables and pictures.
    pub name: String,
    /// Element type and shape as text, for example `f16[1, 768, 1024]`; `bytes` for scratch.
    pub ty: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Where it lives.
    pub place: Place,
}

/// One pointer argument of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Argument {
    /// Index into [`Plan::buffers`].
    pub buffer: usize,
    /// Byte offset within the buffer.
    pub offset: u64,
    /// Whether the kernel writes through this pointer (it may read it too).
    pub writes: bool,
}

/// One kernel launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Index into [`Plan::kernels`].
    pub kernel: usize,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_bytes: u32,
    /// Pointers, in the order of the kernel's parameters.
    pub arguments: Vec<Argument>,
    /// Launches of the same list that must have finished, ascending; never contains a later launch.
    pub after: Vec<usize>,
    /// Those of `after` that need not have ended before this launch begins, since its blocks wait for them themselves
    /// before they read what those write.
    pub early: Vec<usize>,
    /// The kernel family that emitted it.
    pub family: String,
    /// The schedule, in the family's words.
    pub schedule: String,
    /// Predicted time and floor, microseconds (0 for all but the first launch of a region).
    pub predicted_us: f64,
    /// Lower bound by bytes and flops, microseconds.
    pub floor_us: f64,
    /// The region's body in one line, for people.
    pub computes: String,
}

/// Everything the runtime needs to build one CUDA graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The device it was made for.
    pub device: Device,
    /// Distinct kernels, in order of first use.
    pub kernels: Vec<KernelSource>,
    /// All buffers.
    pub buffers: Vec<Buffer>,
    /// Run once at bind when weights are frozen; empty for live weights.
    pub setup: Vec<Launch>,
    /// Run by every replay.
    pub launches: Vec<Launch>,
    /// Size of the arena shared by calls, bytes.
    pub arena_bytes: u64,
    /// Size of what frozen weights keep, bytes.
    pub frozen_bytes: u64,
    /// Size of the arena that `setup` needs, bytes; free again after bind.
    pub setup_arena_bytes: u64,
    /// The largest set of bytes that is live at one time of a call, a lower bound for `arena_bytes`.
    pub largest_live_bytes: u64,
}

/// Alignment of every buffer in an arena, bytes.
pub const ALIGNMENT: u64 = 256;
