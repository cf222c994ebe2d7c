//! Family `tail`: output projection, residual, layer norm and MLP of 64 rows in one kernel.
//!
//! Two warpgroups take turns over chunks of 64 of the hidden width: while one evaluates the activation, the other
//! multiplies. The hidden layer's elements go from accumulators to operand registers and never to memory. For few rows
//! a cluster of blocks shares the hidden width.
//!
//! Work: `2 rows width (width + 2 hidden)` flops; bytes: operands and output once, all weights once for every 64 rows from L2.

mod emit;
mod recognise;

use std::fmt::Write;

use hyenac_ir::Region;
use serde::{Deserialize, Serialize};

use super::{K_STRIDE, PANEL, available, register_products, shared_products};
use crate::cost::{memory_us, scalar_work, traffic_bytes};
use crate::device::Device;
use crate::error::LowerError;
use crate::family::{Candidate, Family, Kernel, Lowered, Refusal};
use crate::gemm::{MATRIX_CODE, Operand};
use crate::plan::KernelSource;
use crate::source::{all_pointers, kernel_name, parameter_list, translation_unit};
use crate::vector;
use recognise::Tail;

const NAME: &str = "tail";
const DEVICE_CODE: &str = include_str!("tail.cuh");
/// Two warpgroups that multiply and one for copies, which register reallocation counts whole.
const THREADS: usize = 384;
/// What a tile takes beside its chunks: first loads, projection, norm, sum and result. Measured alone on an H200 it is
/// 11 us; 5 us are left out because plans add up the packing of the three weights, which runs beside the head.
const FIXED_US: f64 = 6.0;
/// Blocks of a cluster, and how many such blocks of 200 KB are resident on 132 multiprocessors.
const SPLITS: [(usize, f64); 3] = [(1, 132.0), (2, 132.0), (4, 120.0)];

/// The family. See the module's documentation.
pub struct TailFamily;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Schedule {
    family: String,
    /// Blocks of a cluster that share the hidden width.
    split: usize,
    /// Pieces of weights in shared memory.
    stages: usize,
}

struct Layout {
    stage_offset: usize,
    stage_bytes: usize,
    tile_offset: usize,
    tile_pitch: usize,
    barrier_offset: usize,
    shared_bytes: usize,
}

fn layout(tail: &Tail, stages: usize) -> Layout {
    let width = tail.projection.columns;
    let stage_offset = (width / 8 * K_STRIDE).next_multiple_of(128);
    let stage_bytes = PANEL * width * 2;
    let tile_offset = stage_offset + stages * stage_bytes;
    // 8 modulo 32 floats: pairs of accumulators fall on different banks.
    let tile_pitch = width + 8;
    let barrier_offset = tile_offset + PANEL * tile_pitch * 4;
    let shared_bytes = barrier_offset + 16 * stages;
    Layout { stage_offset, stage_bytes, tile_offset, tile_pitch, barrier_offset, shared_bytes }
}

fn recognise(region: &Region, device: &Device) -> Result<Tail, Refusal> {
    if !available(device) {
        let why = format!("warpgroup products need sm_90a, not {}", device.arch);
        return Err(Refusal { op: "linear".to_owned(), why, larger: false });
    }
    Tail::of(region)
}

fn schedules(tail: &Tail, device: &Device) -> Vec<Schedule> {
    let chunks = tail.hidden_width / PANEL;
    // The projection's pieces must fit at once: they are released together.
    let pieces = tail.projection.inner / PANEL;
    let stages =
        (pieces..=6).rev().find(|&stages| layout(tail, stages).shared_bytes <= device.shared_bytes_per_block as usize);
    let Some(stages) = stages else { return Vec::new() };
    SPLITS
        .iter()
        .filter(|(split, _)| tail.hidden_width.is_multiple_of(PANEL) && chunks.is_multiple_of(*split))
        .map(|&(split, _)| Schedule { family: NAME.to_owned(), split, stages })
        .collect()
}

impl Family for TailFamily {
    fn name(&self) -> &'static str {
        NAME
    }

    fn candidates(&self, region: &Region, device: &Device) -> Result<Vec<Candidate>, Refusal> {
        let tail = recognise(region, device)?;
        Operand::left(region.body(), &tail.projection)?;
        tail.structs(region.body(), "")?;
        let (rows, width, hidden) =
            (tail.projection.rows as f64, tail.projection.columns as f64, tail.hidden_width as f64);
        let flops = 2.0 * rows * width * (width + 2.0 * hidden);
        let bytes = traffic_bytes(region);
        let work = scalar_work(region.body());
        let floor_us = (bytes / device.memory_bandwidth).max(flops / device.f16_rate).max(work.time_us(device));
        let candidates: Vec<Candidate> = schedules(&tail, device)
            .into_iter()
            .map(|schedule| {
                let at_once = SPLITS.iter().find(|(split, _)| *split == schedule.split).map_or(120.0, |(_, n)| *n);
                let blocks = (rows / PANEL as f64).ceil() * schedule.split as f64;
                let rounds = (blocks / at_once).ceil();
                // A chunk: its products on one multiprocessor, or its weights from L2 when all ask for them.
                let scale = width / 256.0;
                let chunk_us = if blocks > 64.0 { 0.92 } else { 0.60 } * scale;
                let chunks = hidden / PANEL as f64 / schedule.split as f64;
                let fixed_us = FIXED_US + if schedule.split > 1 { 0.8 } else { 0.0 };
                let time_us =
                    device.launch_us + (rounds * (fixed_us + chunks * chunk_us)).max(memory_us(bytes, device));
                Candidate {
                    family: NAME,
                    schedule: serde_json::to_string(&schedule).unwrap_or_default(),
                    time_us,
                    floor_us,
                    launches: 1,
                    scratch_bytes: 0,
                }
            })
            .collect();
        if candidates.is_empty() {
            let why = format!("does not fit {} bytes of shared memory", device.shared_bytes_per_block);
            return Err(Refusal { op: "linear".to_owned(), why, larger: false });
        }
        Ok(candidates)
    }

    fn lower(&self, region: &Region, schedule: &str, device: &Device) -> Result<Lowered, LowerError> {
        let unsuitable =
            |why: String| LowerError::Schedule { family: NAME.to_owned(), schedule: schedule.to_owned(), why };
        let parsed: Schedule = serde_json::from_str(schedule).map_err(|error| unsuitable(error.to_string()))?;
        let tail = recognise(region, device).map_err(|refusal| unsuitable(refusal.why))?;
        if !schedules(&tail, device).contains(&parsed) {
            return Err(unsuitable("is not offered for this region".to_owned()));
        }
        let kernel = kernel(region, &tail, &parsed).map_err(|refusal| unsuitable(refusal.why))?;
        Ok(Lowered { kernels: vec![kernel], scratch: Vec::new() })
    }
}

fn kernel(region: &Region, tail: &Tail, schedule: &Schedule) -> Result<Kernel, Refusal> {
    let body = region.body();
    let layout = layout(tail, schedule.stages);
    let width = tail.projection.columns;
    let mut config = String::from("struct config {\n");
    for (name, value) in [
        ("rows", tail.projection.rows),
        ("inner", tail.projection.inner),
        ("width", width),
        ("chunks", tail.hidden_width / PANEL / schedule.split),
        ("split", schedule.split),
        ("stages", schedule.stages),
        ("k_stride", K_STRIDE),
        ("stage_offset", layout.stage_offset),
        ("stage_bytes", layout.stage_bytes),
        ("tile_offset", layout.tile_offset),
        ("tile_pitch", layout.tile_pitch),
        ("barrier_offset", layout.barrier_offset),
    ] {
        let _ = writeln!(config, "    static constexpr int {name} = {value};");
    }
    let _ = write!(
        config,
        "    static __device__ __forceinline__ void project(float (&sum)[{}], uint64 a, uint64 b, int accumulate) {{ product_shared_{}(sum, a, b, accumulate); }}\n    \
         static __device__ __forceinline__ void accumulate(float (&sum)[{}], const uint32 (&a)[4], uint64 b, int accumulate) {{ product_registers_{width}(sum, a, b, accumulate); }}\n}};\n\n",
        width / 4,
        width / 2,
        width / 2,
    );
    let pointers = all_pointers(body);
    let parameters = parameter_list(body, &pointers);
    let members = parameters.replace(" __restrict__", "").replace(", ", "; ");
    let arguments = parameters.split(", ").filter_map(|p| p.rsplit(' ').next()).collect::<Vec<_>>().join(", ");
    let name = kernel_name(NAME, body);
    let cluster = match schedule.split {
        1 => String::new(),
        split => format!("__cluster_dims__({split}, 1, 1) "),
    };
    let [projection, up, down] = tail.weights;
    let entry = format!(
        "extern \"C\" __global__ void {cluster}__launch_bounds__({THREADS}, 1) {name}({parameters}) {{\n    \
         run_tail<config>(left{{{arguments}}}, p{projection}, residual{{{arguments}}}, normal{{{arguments}}}, p{up}, hidden{{{arguments}}}, p{down}, epilogue{{{arguments}}});\n}}\n"
    );
    let mut left = Operand::left(body, &tail.projection)?;
    left.direct = false;
    let mut shared = vec![PANEL, width / 2];
    shared.dedup();
    let source = translation_unit(&[
        vector::DEVICE_CODE,
        MATRIX_CODE,
        super::DEVICE_CODE,
        &shared_products(&shared),
        &register_products(&[width]),
        DEVICE_CODE,
        &config,
        &left.emit("left", &members),
        &tail.structs(body, &members)?,
        &entry,
    ]);
    Ok(Kernel {
        source: KernelSource { name, source },
        grid: [(tail.projection.rows.div_ceil(PANEL) * schedule.split) as u32, 1, 1],
        block: [THREADS as u32, 1, 1],
        shared_bytes: layout.shared_bytes as u32,
        pointers,
    })
}
