//! How long a schedule takes.

use hyenac_ir::{DType, Region};

use super::Parts;
use super::layout::{Layout, Schedule};
use crate::cost::{Work, memory_us, scalar_work, traffic_bytes};
use crate::device::Device;

/// From the start of a block until its first step is in place: cold loads of a few dependent rounds.
const START_US: f64 = 1.0;
/// The passes of a layer norm over the rows of a tile, for every four rows of a warp.
const NORM_BATCH_US: f64 = 0.25;
/// A load from L2 under load.
const LOAD_US: f64 = 0.7;
/// A barrier and the latency of a chain of fragments and products.
const STEP_US: f64 = 0.08;
/// The way of a tile through shared memory to the output.
const END_US: f64 = 0.5;
/// How much longer that is one element at a time, as behind a transpose of f32 to an odd length: on an H200 the head of
/// a block at 8 x 997 took 70 us that way.
const NARROW: f64 = 16.0;
/// Bytes per microsecond that shared memory of one multiprocessor reaches.
const SHARED_RATE: f64 = 0.16e6;

/// What does not depend on the schedule.
pub struct Price<'a> {
    device: &'a Device,
    bytes: f64,
    work: Work,
    precision: DType,
    floor_us: f64,
}

impl<'a> Price<'a> {
    /// Of a region.
    pub fn new(region: &Region, parts: &Parts, device: &'a Device) -> Price<'a> {
        let product = &parts.product;
        let bytes = traffic_bytes(region);
        let work = scalar_work(region.body());
        let flops = 2.0 * product.rows as f64 * product.inner as f64 * product.columns as f64;
        let matrix_us = match product.precision {
            DType::F16 => flops / device.f16_rate,
            DType::Tf32 => flops / device.tf32_rate,
            _ => 3.0 * flops / device.tf32_rate,
        };
        // Tensor cores and the other units work side by side.
        let floor_us = (bytes / device.memory_bandwidth).max(matrix_us).max(work.time_us(device));
        Price { device, bytes, work, precision: product.precision, floor_us }
    }

    /// Lower bound by bytes and flops, microseconds.
    pub fn floor_us(&self) -> f64 {
        self.floor_us
    }

    /// Time of a schedule inside a graph, microseconds.
    pub fn time_us(&self, parts: &Parts, schedule: &Schedule, layout: &Layout) -> f64 {
        let Parts { product, left, right, epilogue, .. } = parts;
        let device = self.device;
        let multiprocessors = f64::from(device.multiprocessors);
        let element = product.element_bytes() as f64;
        let depth = (layout.steps * schedule.step) as f64;
        let (rows, columns) = (schedule.rows as f64, schedule.columns as f64);
        let tiles = (product.columns as f64 / columns / layout.column_groups as f64).ceil();
        let a_passes = if schedule.resident { 1.0 } else { tiles };

        // One block's demands on its multiprocessor.
        let outputs = (rows - layout.halo as f64) * columns * tiles;
        let share = outputs / (product.rows as f64 * product.columns as f64);
        let epilogue_bytes =
            outputs * (4.0 * epilogue.group.words as f64 / epilogue.width as f64 + parts.output_bytes as f64);
        let loaded = rows * depth * left.source_bytes * a_passes + columns * tiles * depth * right.source_bytes;
        let load_us = (loaded + epilogue_bytes) / device.l2_bandwidth_per_multiprocessor;
        let (rate, passes) = match self.precision {
            DType::F16 => (device.f16_rate, 1.0),
            DType::Tf32 => (device.tf32_rate, 1.0),
            _ => (device.tf32_rate, 3.0),
        };
        let matrix_us = 2.0 * rows * columns * tiles * depth * passes / (rate / multiprocessors);
        // Fragments, staging (twice more where words land first) and the product tile.
        let warps = (schedule.warps[0] * schedule.warps[1]) as f64;
        let warp_edge = rows / schedule.warps[0] as f64 + columns / schedule.warps[1] as f64;
        let staged = |direct: bool, landed: bool, source: f64| match (direct, landed) {
            (true, _) => element,
            (false, true) => element + 2.0 * source,
            (false, false) => element,
        };
        let shared_bytes = warps * warp_edge * depth * element * tiles
            + rows * depth * a_passes * staged(left.direct, !schedule.resident, left.source_bytes)
            + columns * tiles * depth * staged(right.direct, true, right.source_bytes)
            + 8.0 * rows * columns * tiles;
        let shared_us = shared_bytes / SHARED_RATE;
        let converted = if left.direct { 0.0 } else { rows * depth * a_passes }
            + if right.direct { 0.0 } else { columns * tiles * depth };
        let scalar_us = (self.work.time_us(device) * share * 1.5 + 4.0 * converted / device.f32_rate) * multiprocessors;

        let demands = [load_us, matrix_us, shared_us, scalar_us];
        let most = demands.iter().fold(0.0f64, |most, &demand| most.max(demand));
        let all: f64 = demands.iter().sum();
        let resident = schedule.blocks_per_multiprocessor(layout, parts, device.shared_bytes_per_block as usize);
        let blocks = layout.blocks() as f64;
        let own = (blocks / multiprocessors).ceil();
        let together = (resident as f64).min(own);
        // What cannot overlap shrinks with the blocks and warps that share a multiprocessor.
        let exposed = 0.5 / (together * warps / 4.0).max(1.0);
        let busy_us = own * (most + exposed * (all - most));

        // What happens to the left tile before the first step.
        let groups = rows * depth / left.width as f64 / (32.0 * warps);
        let batch = (32.0 / left.group.words.max(1) as f64).clamp(4.0, 32.0);
        let stage_us = if left.is_normalised() {
            0.4 + NORM_BATCH_US * (rows / warps / 4.0).max(1.0)
        } else if schedule.resident && !left.direct {
            LOAD_US * (groups / batch).ceil()
        } else {
            0.0
        };
        let pipeline = (schedule.stages - 1) as f64;
        // Loads that cannot run in the background are waited for in every step.
        let narrow = [left.is_narrow() && !schedule.resident, right.is_narrow()];
        let waits = narrow.into_iter().filter(|&narrow| narrow).count() as f64;
        let step_us = (LOAD_US / pipeline).max(STEP_US) + LOAD_US * waits;
        let narrow = if epilogue.width == 1 { NARROW } else { 1.0 };
        let end_us = END_US * narrow * if layout.halo > 0 { 2.0 } else { 1.0 };
        let chain_us = START_US + stage_us + tiles * (layout.steps as f64 * step_us + end_us) + 0.3 * most;
        let rounds = (own / resident as f64).ceil();
        let latency_us = rounds * chain_us;
        let inside = latency_us.max(busy_us + START_US + 0.5 * stage_us + END_US).max(memory_us(self.bytes, device));
        // Ties go to fewer bytes of shared memory.
        device.launch_us + inside + 1e-9 * layout.shared_bytes as f64
    }
}
