//! Schedules and the sizes that follow from them, as `common.cuh` computes them.

use hyenac_ir::DType;
use serde::{Deserialize, Serialize};

use super::NAME;
use super::recognise::Convolution;
use crate::device::Device;

/// Format of the multiplied values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operands {
    /// Toeplitz tiles on the tensor cores.
    F16,
    /// Plain FMA.
    F32,
}

impl Operands {
    /// What operands of this precision use; there is no variant of its own for tf32.
    pub fn of(precision: DType) -> Operands {
        if precision == DType::F16 { Operands::F16 } else { Operands::F32 }
    }

    pub fn name(self) -> &'static str {
        match self {
            Operands::F16 => "f16",
            Operands::F32 => "f32",
        }
    }

    /// Lengths of a time block.
    pub fn positions(self) -> &'static [usize] {
        match self {
            Operands::F16 => &[16, 32, 64],
            Operands::F32 => &[8, 16],
        }
    }

    /// Numbers of columns that a warp computes at a time.
    pub fn groups(self) -> &'static [usize] {
        match self {
            Operands::F16 => &[8, 16],
            Operands::F32 => &[32],
        }
    }
}

/// How the work is cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    pub family: String,
    pub operands: Operands,
    /// Positions of a time block.
    pub positions: usize,
    /// Columns (time block, batch) that a warp computes at a time.
    pub group: usize,
    /// Warps of a thread block.
    pub warps: usize,
    /// Channels of a thread block.
    pub channels: usize,
    /// Batches of a thread block.
    pub batches: usize,
    /// Thread blocks that share out the columns of the same channels and batches.
    pub splits: usize,
}

/// The largest number of thread blocks of a launch.
const MOST_THREAD_BLOCKS: usize = (1 << 31) - 1;
/// Warps of a thread block that the kernels are compiled for, and splits that are worth it.
pub const WARPS: [usize; 4] = [1, 2, 4, 8];
pub const SPLITS: [usize; 4] = [1, 2, 4, 8];

/// Sizes of one schedule for one convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct Geometry {
    /// Elements that staging and storing handle at a time.
    pub width: usize,
    pub time_blocks: usize,
    /// Groups of columns of one channel.
    pub groups: usize,
    /// Most groups of one channel that a thread block computes.
    pub split_groups: usize,
    pub thread_blocks: u32,
    pub shared_bytes: usize,
}

impl Geometry {
    /// The sizes.
    ///
    /// # Errors
    /// Why the schedule does not fit the convolution or the device.
    pub fn new(convolution: &Convolution, schedule: &Schedule, device: &Device) -> Result<Geometry, String> {
        let Schedule { operands, positions, group, warps, channels, batches, splits, .. } = *schedule;
        if schedule.family != NAME || operands != Operands::of(convolution.precision) {
            return Err("belongs to another family or another precision".to_owned());
        }
        let known = operands.positions().contains(&positions)
            && operands.groups().contains(&group)
            && WARPS.contains(&warps)
            && SPLITS.contains(&splits);
        if !known || channels == 0 || batches == 0 || channels > convolution.channels || batches > convolution.batches {
            return Err("is not one of those offered".to_owned());
        }
        let time_blocks = convolution.length.div_ceil(positions);
        let groups = (time_blocks * batches).div_ceil(group);
        let thread_blocks = convolution
            .channels
            .div_ceil(channels)
            .saturating_mul(convolution.batches.div_ceil(batches))
            .saturating_mul(splits);
        if thread_blocks > MOST_THREAD_BLOCKS {
            return Err(format!("needs {thread_blocks} thread blocks, the limit is {MOST_THREAD_BLOCKS}"));
        }
        let padded = time_blocks * positions;
        let rows = (groups + 1) * group;
        let results = 4 * warps * group * (positions + 4);
        let channel = match operands {
            Operands::F16 => 2 * (rows * (positions + 8) + 2 * copy_elements(padded)),
            Operands::F32 => 4 * (rows * (positions + 4) + padded),
        };
        let shared_bytes = results + channels * channel;
        // The counter of the warps' queue lies in static shared memory.
        let limit = device.shared_bytes_per_block as usize - 16;
        if shared_bytes > limit {
            return Err(format!("needs {shared_bytes} bytes of shared memory, the limit is {limit}"));
        }
        Ok(Geometry {
            width: convolution.width,
            time_blocks,
            groups,
            split_groups: groups.div_ceil(splits),
            thread_blocks: thread_blocks as u32,
            shared_bytes,
        })
    }

    /// Block diagonals of a group of columns.
    pub fn diagonals(&self, schedule: &Schedule, group: usize) -> usize {
        (((group + 1) * schedule.group - 1) / schedule.batches).min(self.time_blocks - 1) + 1
    }
}

/// Elements of one copy of the reversed f16 filter: 16 banks more than a multiple of 32, and at least 8 elements of
/// zeros behind the filter.
pub fn copy_elements(padded_length: usize) -> usize {
    (padded_length + 8 + 31) / 64 * 64 + 32
}
