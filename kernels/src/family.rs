//! What a kernel family offers: prices for regions, and kernels for the regions it priced.
//!
//! Law: what [`Family::candidates`] accepts, [`Family::lower`] lowers with that schedule.

use hyenac_ir::Region;

use crate::device::Device;
use crate::error::LowerError;
use crate::plan::KernelSource;

/// One way to run a region.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Name of the family.
    pub family: &'static str,
    /// The family's schedule as JSON, read back by [`Family::lower`].
    pub schedule: String,
    /// Modelled time inside a graph, microseconds, boundaries included.
    pub time_us: f64,
    /// Lower bound by bytes and flops, microseconds.
    pub floor_us: f64,
    /// Number of launches.
    pub launches: u32,
    /// Device memory needed beside operands and outputs, bytes.
    pub scratch_bytes: u64,
}

/// Why a region has no kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The op that does not fit.
    pub op: String,
    /// What does not fit, with the limit.
    pub why: String,
    /// Whether a region that contains this one as a fragment could still be accepted.
    pub larger: bool,
}

/// A pointer parameter of an emitted kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pointer {
    /// Operand of the region, read only.
    Operand(usize),
    /// Output of the region.
    Output(usize),
    /// Scratch buffer of the lowering, read and written.
    Scratch(usize),
}

/// A kernel and how it is launched.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Name and source.
    pub source: KernelSource,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_bytes: u32,
    /// Pointer parameters, in order.
    pub pointers: Vec<Pointer>,
    /// For a kernel whose blocks all call `wait_for_inputs` before they write, or touch scratch: the operands that they
    /// do not read before that. None for a kernel that never waits.
    pub late: Option<Vec<usize>>,
    /// Whether its blocks call `begin_next`, so that launches which wait may begin before it ends.
    pub calls_next: bool,
}

/// A lowered region: kernels that run one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// In order; each waits for the one before.
    pub kernels: Vec<Kernel>,
    /// Sizes of the scratch buffers, bytes.
    pub scratch: Vec<u64>,
}

/// A folder of this crate: a price model and an emitter for one shape of region.
pub trait Family: Sync {
    /// Name, as in schedules, tables and the snapshot folder.
    fn name(&self) -> &'static str;

    /// Every schedule worth considering for this region, in a deterministic order.
    ///
    /// # Errors
    /// Why this family has no kernel for it.
    fn candidates(&self, region: &Region, device: &Device) -> Result<Vec<Candidate>, Refusal>;

    /// The kernels of a region under a schedule that [`Family::candidates`] returned for it.
    ///
    /// # Errors
    /// When the schedule is not one of this family for this region.
    fn lower(&self, region: &Region, schedule: &str, device: &Device) -> Result<Lowered, LowerError>;
}
