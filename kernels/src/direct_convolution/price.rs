//! The price model.

use std::collections::{BTreeMap, BTreeSet};

use hyenac_ir::{DType, Graph, Op, Region, Value};

use super::NAME;
use super::geometry::{Geometry, Operands, SPLITS, Schedule};
use super::recognise::Convolution;
use crate::cost::{memory_us, scalar_work, traffic_bytes};
use crate::device::Device;
use crate::family::{Candidate, Refusal};

/// Candidates of each tile that are offered.
const OFFERED: usize = 3;
/// Share of `mma.sync`'s rate that the Toeplitz product reaches.
const MATRIX_EFFICIENCY: f64 = 0.6;
/// Share of the FMA rate that the sliding window reaches.
const FMA_EFFICIENCY: f64 = 0.6;
/// One dependent `mma.sync`, microseconds: about 33 cycles.
const MATRIX_LATENCY_US: f64 = 0.019;
/// One instruction of a warp that has a scheduler to itself, microseconds.
const ISSUE_US: f64 = 0.0006;
/// One access of a warp to shared memory, microseconds.
const SHARED_US: f64 = 0.0007;
/// Between two `mma.sync` of one scheduler, microseconds: about 6.4 cycles.
const MATRIX_ISSUE_US: f64 = 0.0037;
/// A round of loads that a thread issues together and then waits for, microseconds.
const LOAD_US: f64 = 0.6;
/// The block's barrier and the last store, microseconds.
const PHASES_US: f64 = 0.4;
/// Smallest unit of a memory access, bytes.
const SECTOR: f64 = 32.0;

/// Schedules for a convolution, cheapest first.
///
/// # Errors
/// When none fits the device.
pub fn candidates(region: &Region, convolution: &Convolution, device: &Device) -> Result<Vec<Candidate>, Refusal> {
    let costs = Costs::of(region, convolution, device);
    let mut offers: Vec<(f64, Schedule)> = Vec::new();
    let mut obstacle = String::new();
    for schedule in schedules(convolution, device) {
        match Geometry::new(convolution, &schedule, device) {
            Ok(geometry) => offers.push((costs.time_us(convolution, &schedule, &geometry, device), schedule)),
            Err(why) => obstacle = why,
        }
    }
    if offers.is_empty() {
        let why = format!("{obstacle}; convolve with rfft, spectrum_mul and irfft");
        return Err(Refusal { op: "long_conv".to_owned(), why, larger: false });
    }
    // Stable, so that equal prices keep the order of enumeration.
    offers.sort_by(|a, b| a.0.total_cmp(&b.0));
    // A few of each tile, so that tuning sees them all.
    let mut kept: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    offers.retain(|(_, schedule)| {
        let count = kept.entry((schedule.positions, schedule.group)).or_default();
        *count += 1;
        *count <= OFFERED
    });
    let floor_us = costs.floor_us;
    Ok(offers
        .into_iter()
        .map(|(time_us, schedule)| Candidate {
            family: NAME,
            schedule: serde_json::to_string(&schedule).unwrap_or_default(),
            time_us: time_us.max(floor_us),
            floor_us,
            launches: 1,
            scratch_bytes: 0,
        })
        .collect())
}

/// Schedules worth pricing.
fn schedules(convolution: &Convolution, device: &Device) -> Vec<Schedule> {
    let operands = Operands::of(convolution.precision);
    let Convolution { batches, channels, length, .. } = *convolution;
    let mut schedules = Vec::new();
    let mut add = |positions: usize, group: usize, block_channels: usize, block_batches: usize, splits: usize| {
        let items = (length.div_ceil(positions) * block_batches).div_ceil(group).div_ceil(splits) * block_channels;
        // As many warps as there is work for, but enough to keep loads in flight while staging.
        let busy = items.next_power_of_two().clamp(2, 8);
        for warps in [busy, 2 * busy, busy / 2] {
            if (2..=8).contains(&warps) {
                schedules.push(Schedule {
                    family: NAME.to_owned(),
                    operands,
                    positions,
                    group,
                    warps,
                    channels: block_channels,
                    batches: block_batches,
                    splits,
                });
            }
        }
    };
    for &positions in operands.positions() {
        // Short blocks waste fewer positions of a short sequence, long ones reuse more.
        let largest = operands.positions().iter().copied().max().unwrap_or(positions);
        let fits = (length > positions / 2 || positions == operands.positions()[0])
            && (length <= 16 * positions || positions == largest);
        if !fits {
            continue;
        }
        for &group in operands.groups() {
            // Half as many batches a block until one is left; those that exceed shared memory are dropped later.
            let mut block_batches = batches.min(2048);
            loop {
                let blocks = channels * batches.div_ceil(block_batches);
                let few = blocks < 2 * device.multiprocessors as usize;
                for splits in SPLITS {
                    let groups = (length.div_ceil(positions) * block_batches).div_ceil(group);
                    if splits == 1 || few && splits <= groups && blocks * splits <= 8 * device.multiprocessors as usize
                    {
                        add(positions, group, 1, block_batches, splits);
                    }
                }
                if block_batches == batches {
                    for block_channels in [2, 4, 8] {
                        if block_channels <= channels && block_channels * block_batches * length <= 8192 {
                            add(positions, group, block_channels, block_batches, 1);
                        }
                    }
                }
                if block_batches == 1 || blocks >= 8 * device.multiprocessors as usize {
                    break;
                }
                block_batches = block_batches.div_ceil(2);
            }
        }
    }
    schedules
}

/// Whether every element that the region reads or writes at each time step lies in memory beside its neighbour in time.
pub fn runs_along_time(region: &Region, convolution: &Convolution, device: &Device) -> bool {
    let costs = Costs::of(region, convolution, device);
    [&costs.signal, &costs.filter, &costs.finish].iter().all(|reads| reads.strided.is_empty())
}

/// What does not depend on the schedule.
struct Costs {
    floor_us: f64,
    traffic_us: f64,
    scalar_us: f64,
    /// Bytes from L2 for one element of the signal, of the filter, and of the epilogue with its stores.
    signal: Reads,
    filter: Reads,
    finish: Reads,
}

impl Costs {
    fn of(region: &Region, convolution: &Convolution, device: &Device) -> Costs {
        let body = region.body();
        let Convolution { batches, channels, length, .. } = *convolution;
        let pairs = 0.5 * length as f64 * (length + 1) as f64 * (batches * channels) as f64;
        let rate = match Operands::of(convolution.precision) {
            Operands::F16 => device.f16_rate,
            Operands::F32 => device.f32_rate,
        };
        let scalar = scalar_work(body);
        let bytes = traffic_bytes(region);
        let peak_us = 2.0 * pairs / rate + scalar.time_us(device);
        let mut finish = Reads::default();
        for (&output, axes) in body.outputs().iter().zip(&convolution.axes) {
            finish.collect(body, output, axes.iter().position(|&axis| axis == 2), convolution, &mut BTreeSet::new());
            let contiguous = axes.last() == Some(&2) || length == 1;
            finish.add(body.ty(output).dtype, contiguous);
        }
        let mut signal = Reads::default();
        signal.collect(body, convolution.signal, Some(2), convolution, &mut BTreeSet::new());
        let mut filter = Reads::default();
        filter.collect(body, convolution.filter, Some(1), convolution, &mut BTreeSet::new());
        Costs {
            floor_us: (bytes / device.memory_bandwidth).max(peak_us),
            traffic_us: memory_us(bytes, device),
            // The prologue is computed again where the epilogue needs it.
            scalar_us: 2.0 * scalar.time_us(device) / FMA_EFFICIENCY,
            signal,
            filter,
            finish,
        }
    }

    fn time_us(&self, convolution: &Convolution, schedule: &Schedule, geometry: &Geometry, device: &Device) -> f64 {
        let multiprocessors = f64::from(device.multiprocessors);
        let p = schedule.positions as f64;
        let columns = schedule.group as f64;

        // Diagonals of the busiest split, and of the heaviest group.
        let mut diagonals = vec![0usize; schedule.splits];
        for rank in 0..geometry.groups {
            let (turn, place) = (rank / schedule.splits, rank % schedule.splits);
            let split = if turn % 2 == 1 { schedule.splits - 1 - place } else { place };
            diagonals[split] += geometry.diagonals(schedule, geometry.groups - 1 - rank);
        }
        let busiest = diagonals.iter().copied().max().unwrap_or(0) as f64;
        let heaviest = geometry.diagonals(schedule, geometry.groups - 1) as f64;

        // Thread blocks that the busiest multiprocessor works through, a round of resident ones at a time.
        let blocks = (f64::from(geometry.thread_blocks) / multiprocessors).ceil();
        let by_memory = (device.shared_bytes_per_block as usize + 1024) / (geometry.shared_bytes + 1024);
        let resident = (by_memory.min(16 / schedule.warps).max(1) as f64).min(blocks);
        let rounds = (blocks / resident).ceil();
        let items = geometry.split_groups * schedule.channels;

        let steps = blocks * schedule.channels as f64 * busiest;
        let (unit_us, chain_us) = match schedule.operands {
            Operands::F16 => {
                let (tiles, columns) = (p / 16.0, columns / 8.0);
                let products = tiles * tiles * columns;
                let sums = if columns == 1.0 && tiles > 1.0 { 2.0 } else { 1.0 };
                let chain = (tiles * MATRIX_LATENCY_US / sums).max(products * MATRIX_ISSUE_US);
                let rate = device.f16_rate * MATRIX_EFFICIENCY / multiprocessors;
                // Short blocks are bound by their operands: every diagonal reads 2 T words and 2 T matrices a column
                // tile from shared memory, and moves pointers.
                let shared = 2.0 * tiles * (1.0 + columns) * SHARED_US;
                let issue = (10.0 + 3.0 * tiles + products) * ISSUE_US / 4.0;
                (steps * (4096.0 * products / rate).max(shared).max(issue), heaviest * chain)
            }
            Operands::F32 => {
                let rate = device.f32_rate * FMA_EFFICIENCY / multiprocessors;
                (steps * 2.0 * p * p * columns / rate, heaviest * p * p * ISSUE_US / FMA_EFFICIENCY)
            }
        };
        let matrix_us = unit_us.max(rounds * chain_us);

        // What the busiest multiprocessor moves to and from L2.
        let elements = (schedule.channels * schedule.batches * convolution.length) as f64;
        let taps = (schedule.channels * convolution.length) as f64;
        let share = 1.0 / schedule.splits as f64;
        let neighbours = schedule.channels as f64;
        let bytes = blocks
            * (elements * (self.signal.bytes(neighbours) + share * self.finish.bytes(neighbours))
                + taps * self.filter.bytes(neighbours));
        let moving_us = (bytes / device.l2_bandwidth_per_multiprocessor).max(self.traffic_us);

        // One round of blocks overlaps only by chance with the work of another.
        let work_us = matrix_us + self.scalar_us;
        // Loads that a thread has in flight together, see the unrolled loops of `common.cuh`.
        let together = if geometry.width == 8 { 4.0 } else { 8.0 };
        let width = geometry.width as f64;
        let threads = 32.0 * schedule.warps as f64;
        let loads = (elements / width / threads / together).ceil()
            + (taps / width / threads / together).ceil()
            + (items as f64 / schedule.warps as f64).ceil() * (p * columns / width / 32.0 / together).ceil();
        device.launch_us
            + (PHASES_US + LOAD_US * loads) * (1.0 + 0.3 * (rounds - 1.0))
            + work_us.max(moving_us)
            + 0.5 * work_us.min(moving_us)
    }
}

/// Reads (and stores) of one element.
#[derive(Default)]
struct Reads {
    /// Bytes whose neighbours in time are neighbours in memory.
    contiguous: f64,
    /// Accesses that each move a sector of their own, shared by neighbouring channels at best, and their bytes.
    strided: Vec<f64>,
}

impl Reads {
    fn add(&mut self, dtype: DType, contiguous: bool) {
        if contiguous {
            self.contiguous += dtype.bytes() as f64;
        } else {
            self.strided.push(dtype.bytes() as f64);
        }
    }

    /// Bytes moved when a block handles this many neighbouring channels.
    fn bytes(&self, neighbours: f64) -> f64 {
        self.contiguous + self.strided.iter().map(|bytes| (SECTOR / neighbours).max(*bytes)).sum::<f64>()
    }

    /// Adds the reads of an element, with time along `axis` of `value`; `None` when it is not known which.
    fn collect(
        &mut self,
        body: &Graph,
        value: Value,
        axis: Option<usize>,
        convolution: &Convolution,
        seen: &mut BTreeSet<Value>,
    ) {
        if value.node == convolution.node || !seen.insert(value) {
            return;
        }
        let ty = body.ty(value);
        let last = axis.is_some_and(|axis| axis + 1 == ty.rank());
        match body.op(value) {
            // Values without an element for each time step stay in registers or caches.
            Op::Parameter { .. } => {
                if ty.elements() >= convolution.length && axis.is_none_or(|axis| ty.shape[axis] > 1) {
                    self.add(ty.dtype, last || convolution.length == 1);
                }
            }
            Op::Transpose { permutation } => {
                let axis = axis.map(|axis| permutation[axis]);
                self.collect(body, body.operand(value.node, 0), axis, convolution, seen);
            }
            // Neighbours along the last axis stay neighbours when a buffer is read again under another shape.
            Op::Reshape { .. } => {
                let operand = body.operand(value.node, 0);
                let axis = if last { body.ty(operand).rank().checked_sub(1) } else { None };
                self.collect(body, operand, axis, convolution, seen);
            }
            _ => {
                for operand in body.operands(value.node) {
                    // Operands broadcast from the right.
                    let rank = body.ty(operand).rank();
                    let own = axis.and_then(|axis| (axis + rank).checked_sub(ty.rank()));
                    if axis.is_none() || own.is_some() {
                        self.collect(body, operand, own, convolution, seen);
                    }
                }
            }
        }
    }
}
