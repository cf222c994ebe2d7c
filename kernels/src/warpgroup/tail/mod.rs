//! Family `tail`: output projection, residual, layer norm and MLP of a tile of tokens in one kernel.
//!
//! Weights are the left operands, tokens the columns. A cluster of blocks shares the channels of the projection and the
//! hidden width; two warpgroups of a block take turns between products and activation.
//!
//! Work: `2 rows width (width + 2 hidden)` flops; bytes: operands and output once, all weights once for every tile of
//! tokens from L2.

mod emit;
mod recognise;

use std::fmt::Write;

use hyenac_ir::Region;
use serde::{Deserialize, Serialize};

use super::{PANEL, available, turned_products};
use crate::cost::{memory_us, scalar_work, traffic_bytes};
use crate::device::Device;
use crate::error::LowerError;
use crate::family::{Candidate, Family, Kernel, Lowered, Refusal};
use crate::gemm::{MATRIX_CODE, Operand};
use crate::plan::KernelSource;
use crate::source::{all_pointers, exclusive_parameters, kernel_name, parameter_list, translation_unit};
use crate::vector;
use recognise::Tail;

const NAME: &str = "tail";
const DEVICE_CODE: &str = include_str!("tail.cuh");
/// Two warpgroups that multiply and one for copies, which register reallocation counts whole.
const THREADS: usize = 384;
/// Blocks of a cluster, and how many such blocks of 200 KB are resident on 132 multiprocessors.
const SPLITS: [(usize, f64); 3] = [(1, 132.0), (2, 132.0), (4, 120.0)];
/// Tokens of a tile.
const TOKENS: [usize; 8] = [16, 24, 32, 48, 64, 80, 96, 128];
/// Most blocks of a launch that begins before the one it depends on has ended.
const MOST_EARLY_BLOCKS: usize = 96;
/// Bytes of a piece of a weight: 64 rows, 128 of K.
const PIECE_BYTES: usize = PANEL * K_PIECE * 2;
const K_PIECE: usize = 128;
/// Pieces in shared memory: at least those of the hidden layer and the first half of the last product's.
const STAGES: std::ops::RangeInclusive<usize> = 6..=12;

/// What a tile takes, fitted to 16 to 128 tokens in clusters of 2 and 4 at widths 256 and 1024 on an H200: a constant,
/// for each token and channel, for each byte of its block's weights, and for each flop of its block's products.
const FIXED_US: f64 = 2.7;
const ELEMENT_US: f64 = 0.11 / 256.0;
const WEIGHT_US: f64 = 1.0 / 0.155e6;
const PRODUCT_US: f64 = 1.0 / 8.4e6;

/// The family. See the module's documentation.
pub struct TailFamily;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Schedule {
    family: String,
    /// Blocks of a cluster.
    split: usize,
    /// Tokens of a tile.
    tokens: usize,
    /// Pieces of weights in shared memory.
    stages: usize,
}

struct Layout {
    stage_offset: usize,
    norm_offset: usize,
    barrier_offset: usize,
    shared_bytes: usize,
}

fn layout(tail: &Tail, tokens: usize, stages: usize) -> Layout {
    let (operand, layer) = (tail.projection.columns * tokens * 2, 2 * K_PIECE * tokens * 2);
    let stage_offset = (operand + layer).next_multiple_of(128);
    let norm_offset = stage_offset + stages * PIECE_BYTES;
    let barrier_offset = norm_offset + tokens * 8;
    Layout { stage_offset, norm_offset, barrier_offset, shared_bytes: barrier_offset + 16 * stages + 32 }
}

fn recognise(region: &Region, device: &Device) -> Result<Tail, Refusal> {
    if !available(device) {
        let why = format!("warpgroup products need sm_90a, not {}", device.arch);
        return Err(Refusal { op: "linear".to_owned(), why, larger: false });
    }
    Tail::of(region)
}

fn schedules(tail: &Tail, device: &Device) -> Vec<Schedule> {
    let tiles = tail.projection.columns / PANEL;
    let mut schedules = Vec::new();
    for (split, _) in SPLITS {
        // A warpgroup owns one tile of channels or none, and a round is 128 of the hidden width.
        if split > tiles || tiles > 2 * split || !tail.hidden_width.is_multiple_of(split * K_PIECE) {
            continue;
        }
        for tokens in TOKENS {
            let fits =
                |stages: &usize| layout(tail, tokens, *stages).shared_bytes <= device.shared_bytes_per_block as usize;
            if let Some(stages) = STAGES.rev().find(fits) {
                schedules.push(Schedule { family: NAME.to_owned(), split, tokens, stages });
            }
        }
    }
    schedules
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
                let time_us = device.launch_us + time_us(&tail, &schedule).max(memory_us(bytes, device));
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

/// Net time of all tiles, microseconds.
fn time_us(tail: &Tail, schedule: &Schedule) -> f64 {
    let (tokens, split) = (schedule.tokens as f64, schedule.split as f64);
    let at_once = SPLITS.iter().find(|(split, _)| *split == schedule.split).map_or(120.0, |(_, blocks)| blocks / split);
    let clusters = (tail.projection.walked_rows() as f64 / tokens).ceil();
    let rounds = (clusters / at_once.floor()).ceil();
    let width = tail.projection.columns as f64;
    let weights = width * (width + 2.0 * tail.hidden_width as f64) / split;
    let tile_us =
        FIXED_US + tokens * width * ELEMENT_US + 2.0 * weights * WEIGHT_US + 2.0 * weights * tokens * PRODUCT_US;
    rounds * tile_us
}

fn kernel(region: &Region, tail: &Tail, schedule: &Schedule) -> Result<Kernel, Refusal> {
    let body = region.body();
    let layout = layout(tail, schedule.tokens, schedule.stages);
    let mut left = Operand::left(body, &tail.projection)?;
    let plain = left.plain && !left.along_inner;
    left.direct = false;
    let mut config = String::from("struct config {\n");
    for (name, value) in [
        ("rows", tail.projection.walked_rows()),
        ("width", tail.projection.columns),
        ("tokens", schedule.tokens),
        ("split", schedule.split),
        ("rounds", tail.hidden_width / K_PIECE / schedule.split),
        ("stages", schedule.stages),
        ("stage_offset", layout.stage_offset),
        ("norm_offset", layout.norm_offset),
        ("barrier_offset", layout.barrier_offset),
    ] {
        let _ = writeln!(config, "    static constexpr int {name} = {value};");
    }
    let (tokens, accumulators) = (schedule.tokens, schedule.tokens / 2);
    let _ = write!(
        config,
        "    static constexpr bool plain = {plain};\n    \
         static __device__ __forceinline__ void product(float (&sum)[{accumulators}], uint64 a, uint64 b, int accumulate) {{ product_turned_{tokens}(sum, a, b, accumulate); }}\n}};\n\n",
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
    let source = translation_unit(&[
        vector::DEVICE_CODE,
        MATRIX_CODE,
        super::DEVICE_CODE,
        &turned_products(&[tokens]),
        DEVICE_CODE,
        &config,
        &left.emit("left", &members),
        &tail.structs(body, &members)?,
        &entry,
    ]);
    let blocks = tail.projection.walked_rows().div_ceil(tokens) * schedule.split;
    // Clusters that are placed while other blocks still run leave gaps: where most multiprocessors are needed, some of
    // them would have to wait for a second round.
    let begins_early = blocks <= MOST_EARLY_BLOCKS;
    Ok(Kernel {
        source: KernelSource { name, source },
        grid: [blocks as u32, 1, 1],
        block: [THREADS as u32, 1, 1],
        shared_bytes: layout.shared_bytes as u32,
        pointers,
        late: begins_early.then(|| exclusive_parameters(body, tail.projection.x)),
        calls_next: true,
    })
}
