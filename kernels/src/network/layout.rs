//! How a chain is cut over blocks and warps.

use std::borrow::Cow;

use hyenac_ir::{DType, Graph, Op, Value};
use serde::{Deserialize, Serialize};

use crate::chain::{Chain, Layer};
use crate::device::Device;
use crate::family::Refusal;

/// Positions that the tensor core's narrow side holds.
pub const OCTET: usize = 8;
/// Columns, and inner elements, of one fragment of weights.
pub const FRAGMENT: usize = 16;
/// Bytes of an octet of positions in one step of the inner dimension, both parts.
pub const STEP_BYTES: usize = 512;
const WARPS: [usize; 2] = [4, 8];
const POSITIONS: [usize; 3] = [8, 16, 32];
const COLUMNS: [usize; 3] = [64, 128, 256];
/// Registers for all but weights and what belongs to columns.
const WORKING_REGISTERS: usize = 64;
/// Registers that a thread may want by this count; the compiler has more, so that it need not spill.
const MOST_REGISTERS: usize = 232;
const REGISTERS: usize = 65536;

/// How a chain is cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Name of the family.
    pub family: Cow<'static, str>,
    /// Warps of a block.
    pub warps: usize,
    /// Positions of a tile.
    pub positions: usize,
    /// Columns of the last layer that a block computes.
    pub columns: usize,
}

impl Schedule {
    /// Every schedule that fits, with its layout, narrow tiles first.
    pub fn all(chain: &Chain, output_bytes: usize, device: &Device) -> Vec<(Schedule, Layout)> {
        let wanted = chain.layers.last().map_or(0, |last| last.columns.next_multiple_of(FRAGMENT));
        let mut all = Vec::new();
        for warps in WARPS {
            for positions in POSITIONS {
                for (rank, columns) in COLUMNS.into_iter().enumerate() {
                    // Narrow results are one group; wide ones are cut.
                    if rank > 0 && columns > wanted {
                        continue;
                    }
                    let columns = columns.min(wanted);
                    let schedule = Schedule { family: Cow::Borrowed(super::NAME), warps, positions, columns };
                    if let Some(layout) = Layout::of(chain, &schedule, output_bytes, device) {
                        all.push((schedule, layout));
                    }
                }
            }
        }
        all
    }
}

/// A layer's share of a warp.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The layer.
    pub layer: Layer,
    /// Warps side by side along its columns; the others take other positions.
    pub column_warps: usize,
    /// Fragments of 16 columns of a warp.
    pub tiles: usize,
    /// Steps of 16 of its inner dimension.
    pub steps: usize,
    /// Octets of positions of a warp.
    pub octets: usize,
    /// Octets that are computed at a time.
    pub part: usize,
    /// Whether its products are of split operands.
    pub split: bool,
}

/// Extents of a schedule for a chain.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The layers.
    pub layers: Vec<Placed>,
    /// Tiles down the rows.
    pub row_tiles: usize,
    /// Groups of columns of the last layer.
    pub groups: usize,
    /// Tiles of a group that run at once; a block walks over them in steps of this.
    pub walkers: usize,
    /// Blocks that a multiprocessor holds.
    pub resident: usize,
    /// Bytes of each of the two tiles of activations.
    pub tile_bytes: usize,
    /// Dynamic shared memory, bytes.
    pub shared_bytes: usize,
}

impl Layout {
    fn of(chain: &Chain, schedule: &Schedule, output_bytes: usize, device: &Device) -> Option<Layout> {
        let mut layers = Vec::new();
        let mut registers = WORKING_REGISTERS;
        for (position, &layer) in chain.layers.iter().enumerate() {
            let last = position + 1 == chain.layers.len();
            let fragments = if last { schedule.columns } else { layer.columns }.div_ceil(FRAGMENT);
            // A power of two that divides the fragments, so that no warp is without work.
            let column_warps = schedule.warps.min(1 << fragments.trailing_zeros());
            let rows = OCTET * (schedule.warps / column_warps);
            if !schedule.positions.is_multiple_of(rows) {
                return None;
            }
            let (tiles, octets) = (fragments / column_warps, schedule.positions / rows);
            let steps = layer.inner.div_ceil(FRAGMENT);
            let part = if tiles > 1 || octets == 1 { 1 } else { 2 };
            let split = layer.precision != DType::F16;
            registers += tiles * (8 * steps + 4);
            layers.push(Placed { layer, column_warps, tiles, steps, octets, part, split });
        }
        let threads = 32 * schedule.warps;
        let steps = layers.iter().map(|placed| placed.steps).max()?;
        let tile_bytes = schedule.positions / OCTET * steps * STEP_BYTES;
        // The longer way round of the two that the result may lie in, see `emit`.
        let staged = |outer: usize, inner: usize| outer * (inner * output_bytes + 16);
        let (positions, columns) = (schedule.positions, schedule.columns);
        let shared_bytes = 2 * tile_bytes + staged(positions, columns).max(staged(columns, positions));
        if registers > MOST_REGISTERS || shared_bytes > device.shared_bytes_per_block as usize {
            return None;
        }
        let (row_tiles, groups) =
            (chain.rows.div_ceil(schedule.positions), chain.layers.last()?.columns.div_ceil(schedule.columns));
        let by_registers = REGISTERS / (threads * registers.next_multiple_of(8));
        let by_memory = device.shared_bytes_per_block as usize / (shared_bytes + 1024);
        let resident = by_registers.min(by_memory).clamp(1, 4);
        let walkers = row_tiles.min((device.multiprocessors as usize * resident / groups).max(1));
        Some(Layout { layers, row_tiles, groups, walkers, resident, tile_bytes, shared_bytes })
    }

    /// Tiles that a block works through, at most.
    pub fn rounds(&self) -> usize {
        self.row_tiles.div_ceil(self.walkers)
    }
}

/// Refuses what split f16 operands do not hold: values that are not known to be small, and formats in between.
pub fn check_operands(body: &Graph, chain: &Chain) -> Result<(), Refusal> {
    let refuse = |why: &str, larger: bool| Refusal { op: "linear".to_owned(), why: why.to_owned(), larger };
    for layer in &chain.layers {
        let rounded_weight = layer.weight_dtype == DType::F16;
        if layer.precision == DType::Tf32 || rounded_weight != (layer.precision == DType::F16) {
            return Err(refuse("a network's operands are both f32 or both f16", false));
        }
        if !is_small(body, layer.input) {
            return Err(refuse("a network's activations are sines, or come from them", true));
        }
    }
    Ok(())
}

/// Whether a value is known to lie between -1 and 1, or in f16.
fn is_small(body: &Graph, value: Value) -> bool {
    let operand = |position: usize| is_small(body, body.operand(value.node, position));
    match body.op(value) {
        Op::Sin {} | Op::PositionalEmbedding { .. } | Op::Cast { dtype: DType::F16 } => true,
        Op::Scalar { value } => value.abs() <= 1.0,
        Op::Neg {} | Op::Abs {} | Op::Slice { .. } | Op::Reshape { .. } | Op::Transpose { .. } | Op::Cast { .. } => {
            operand(0)
        }
        Op::Mul {} => operand(0) && operand(1),
        _ => false,
    }
}
