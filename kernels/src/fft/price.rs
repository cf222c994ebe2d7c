//! The price model: instructions, shared memory, device memory and latency of each kernel.
//!
//! Work: `5 N log2 N` flops a complex transform in textbooks; what a kernel issues is rather 17 instructions a
//! point and stage for addresses and roots of unity, and 2.7 a point and bit for butterflies.

use hyenac_ir::DType;

use super::code::Access;
use super::recognise::Pattern;
use super::{block, passes};
use crate::cost::scalar_work;
use crate::device::Device;

/// Instructions of one pair of bins and its mirror, per point: roots, real bins, product, back again.
const PAIR_INSTRUCTIONS: f64 = 60.0;
/// Instructions per point for the roots of unity between columns and rows.
const ROTATION_INSTRUCTIONS: f64 = 12.0;
/// Registers that a thread of a radix-16 stage holds, and one of a radix-8 stage.
const REGISTERS: [(usize, usize); 2] = [(9, 96), (0, 64)];
/// Bytes that a multiprocessor's shared memory moves in a microsecond, at the rate exchanges reach.
const SHARED_RATE: f64 = 0.15e6;
/// A stage of one butterfly, per point of it, microseconds.
const BUTTERFLY_LATENCY: f64 = 0.025;
/// First loads and last stores of a block, microseconds.
const MEMORY_LATENCY: f64 = 2.0;
/// What L2 keeps between two kernels, bytes.
const CACHED: f64 = 40e6;

/// Time and lower bound of a layout, microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Price {
    pub time_us: f64,
    pub floor_us: f64,
}

/// What the region's operands and output cost to move, whatever the layout.
pub(super) struct Traffic {
    /// Bytes read by the prologues, by the product of spectra and by the epilogue; the first two of the signal.
    signal: f64,
    filter: f64,
    spectrum: f64,
    output: f64,
    /// Every operand and output once.
    least: f64,
    /// Time of the scalar code alone on all units.
    scalar_us: f64,
    /// Flops of the transforms.
    flops: f64,
}

impl Traffic {
    /// Counts the region's traffic.
    pub fn of(pattern: &Pattern, device: &Device) -> Traffic {
        let body = pattern.body;
        let parameters = body.parameters();
        let bytes_of = |accesses: &[Access]| -> f64 {
            let mut seen = vec![false; parameters.len()];
            let mut total = 0.0;
            for access in accesses {
                let node = body.node(parameters[access.parameter]);
                if !std::mem::replace(&mut seen[access.parameter], true) {
                    // A lone element moves a sector of 32 bytes, of which caches recover about half.
                    let waste = if access.coalesced { 1.0 } else { 16.0 / node.types[0].dtype.bytes() as f64 };
                    total += node.types[0].bytes() as f64 * waste;
                }
            }
            total
        };
        let reads = &pattern.reads;
        let output = body.ty(body.outputs()[0]);
        let waste = if reads.output_coalesced { 1.0 } else { 16.0 / output.dtype.bytes() as f64 };
        let operands: usize = parameters.iter().map(|&node| body.node(node).types[0].bytes()).sum();
        let n = pattern.points as f64;
        let transforms = (pattern.signal.as_ref().map_or(0, |_| pattern.rows())
            + pattern.filter.as_ref().map_or(0, |_| pattern.channels)
            + pattern.inverse.as_ref().map_or(0, |_| pattern.rows())) as f64;
        Traffic {
            signal: bytes_of(&reads.signal),
            filter: bytes_of(&reads.filter),
            spectrum: bytes_of(&reads.spectrum),
            output: bytes_of(&reads.output) + output.bytes() as f64 * waste,
            least: (operands + output.bytes()) as f64,
            scalar_us: scalar_work(body).time_us(device) / 0.5,
            flops: transforms * 5.0 * n * n.log2().max(1.0),
        }
    }

    fn floor_us(&self, device: &Device) -> f64 {
        (self.least / device.memory_bandwidth).max(self.flops / device.f32_rate)
    }
}

/// One kernel as the model sees it.
struct Work {
    blocks: f64,
    threads: f64,
    shared_bytes: f64,
    registers: f64,
    /// Instructions of all lanes of all blocks.
    instructions: f64,
    /// Bytes through shared memory, all blocks.
    exchanged: f64,
    /// Bytes of device memory.
    bytes: f64,
    /// Of which L2 may hold from the kernel before.
    cached: f64,
    /// Time of one block alone.
    latency_us: f64,
}

impl Work {
    fn time_us(&self, device: &Device) -> f64 {
        let units = f64::from(device.multiprocessors);
        let most = f64::from(device.shared_bytes_per_block) + 1024.0;
        let resident = (most / (self.shared_bytes + 1024.0))
            .min(2048.0 / self.threads)
            .min(65536.0 / (self.threads * self.registers))
            .floor()
            .max(1.0);
        let share = (self.blocks / units).ceil();
        // One FMA is two flops and one instruction.
        let issue = self.instructions / self.blocks / (0.5 * device.f32_rate / units);
        let exchange = self.exchanged / self.blocks / SHARED_RATE;
        let busy = share * (issue.max(exchange) + 0.25 * issue.min(exchange));
        let waiting = (share / resident).ceil() * self.latency_us;
        let computing = busy.max(waiting) + 0.25 * busy.min(waiting);
        let cached = if self.cached < CACHED { self.cached } else { 0.0 };
        let l2_rate = 0.7 * device.l2_bandwidth_per_multiprocessor * units;
        let moving = (self.bytes - cached) / (0.85 * device.memory_bandwidth) + cached / l2_rate;
        device.launch_us + computing.max(moving) + 0.25 * computing.min(moving)
    }
}

fn registers(radix: usize) -> f64 {
    REGISTERS.iter().find(|(from, _)| radix >= *from).map_or(96.0, |&(_, registers)| registers as f64)
}

/// Instructions and bytes exchanged for each point of a transform, and the latency of its stages with so many
/// points for each thread.
fn stages(transform: &super::radix::Transform, points_per_thread: f64) -> (f64, f64, f64) {
    let mut total = (0.0, 0.0, 0.0);
    for stage in &transform.stages {
        let radix = stage.radix as f64;
        total.0 += 17.0 + 2.7 * radix.log2();
        total.1 += 16.0;
        total.2 += (points_per_thread / radix).ceil() * radix * BUTTERFLY_LATENCY;
    }
    total
}

/// Price of one kernel for everything.
pub(super) fn block(pattern: &Pattern, form: &block::Form, traffic: &Traffic, device: &Device) -> Price {
    let n = pattern.points as f64;
    let (threads, slots, signals) = (form.threads as f64, form.slots(pattern) as f64, form.signals() as f64);
    let blocks = form.blocks(pattern) as f64;
    let (issued, exchanged, forward) = stages(&form.transform, slots * n / threads);
    let (_, _, backward) = stages(&form.transform, signals * n / threads);
    let forwards = if pattern.signal.is_some() { slots } else { 0.0 };
    let backwards = if pattern.inverse.is_some() { signals } else { 0.0 };
    let pairs = (signals * n / threads / 2.0).ceil() * 0.1;
    let latency_us = MEMORY_LATENCY
        + pairs
        + if forwards > 0.0 { forward } else { 0.0 }
        + if backwards > 0.0 { backward } else { 0.0 };
    let refiltered = pattern.batches.div_ceil(form.batches) as f64;
    let work = Work {
        blocks,
        threads,
        shared_bytes: form.shared_bytes(pattern) as f64,
        registers: registers(form.transform.largest_radix()),
        instructions: blocks * n * (issued * (forwards + backwards) + PAIR_INSTRUCTIONS * signals),
        exchanged: blocks * n * (exchanged * (forwards + backwards) + 32.0 * signals),
        bytes: traffic.signal + traffic.filter * refiltered + traffic.spectrum + traffic.output,
        cached: 0.0,
        latency_us,
    };
    Price { time_us: work.time_us(device) + traffic.scalar_us, floor_us: traffic.floor_us(device) }
}

/// Price of the chain of kernels over columns, rows and columns.
pub(super) fn passes(pattern: &Pattern, form: &passes::Form, traffic: &Traffic, device: &Device) -> Price {
    let n = pattern.points as f64;
    let threads = form.threads as f64;
    let whole = |lines: f64| lines * n * DType::C64.bytes() as f64;
    let (rows, channels) = (pattern.rows() as f64, pattern.channels as f64);
    let lines = rows + if pattern.filter.is_some() { channels } else { 0.0 };
    let column = |lines: f64, outside: f64, cached: f64| {
        let per_thread = form.columns as f64 * form.column.points as f64 / threads;
        let (issued, exchanged, latency) = stages(&form.column, per_thread);
        Work {
            blocks: lines * form.column_tiles() as f64,
            threads,
            shared_bytes: form.column_bytes() as f64,
            registers: registers(form.column.largest_radix()),
            instructions: lines * n * (issued + ROTATION_INSTRUCTIONS),
            exchanged: lines * n * exchanged,
            // A run of pairs of f16 entries fills a sector of 32 bytes from 8 columns on.
            bytes: outside * (8.0 / form.columns as f64).max(1.0) + whole(lines),
            cached,
            latency_us: MEMORY_LATENCY + latency,
        }
        .time_us(device)
    };
    let mut time_us = traffic.scalar_us;
    let (mut transforms, mut moved) = (0.0, 0.0);
    if pattern.signal.is_some() {
        time_us += column(rows, traffic.signal, 0.0);
        (transforms, moved) = (transforms + lines, moved + whole(lines));
    }
    if pattern.filter.is_some() {
        time_us += column(channels, traffic.filter, 0.0);
    }
    if pattern.inverse.is_some() {
        time_us += column(rows, traffic.output, whole(rows));
        (transforms, moved) = (transforms + rows, moved + whole(rows));
    }
    let read = moved - if pattern.inverse.is_some() { whole(rows) } else { 0.0 };
    let slots = form.row_bytes(pattern) / (form.row.row(form.pairs) * DType::C64.bytes());
    let (issued, exchanged, latency) = stages(&form.row, slots as f64 * form.row.points as f64 / threads);
    let spectra = traffic.spectrum + if pattern.inverse.is_none() { traffic.output } else { 0.0 };
    // Neighbouring bins lie in neighbouring rows: a block moves runs of `pairs` complex numbers.
    let waste = (4.0 / form.pairs as f64).max(1.0);
    time_us += Work {
        blocks: rows * form.row_tiles() as f64,
        threads,
        shared_bytes: form.row_bytes(pattern) as f64,
        registers: registers(form.row.largest_radix()),
        instructions: n * (issued * transforms + PAIR_INSTRUCTIONS * rows),
        exchanged: n * (exchanged * transforms + 32.0 * rows),
        bytes: moved + spectra * waste,
        cached: read,
        latency_us: MEMORY_LATENCY + 2.0 * latency,
    }
    .time_us(device);
    Price { time_us, floor_us: traffic.floor_us(device) }
}
