//! Family `toeplitz`: a long convolution as Toeplitz products by warpgroups, one channel a block, all its columns at once.
//!
//! The same regions as `direct_convolution` with f16 operands; the filter's tiles are made in registers, the signal is the
//! right operand in shared memory, and only columns that a diagonal reaches are multiplied.
//!
//! Work: `B D L (L + 64)` flops; bytes: every operand and the result once.

use std::fmt::Write;

use hyenac_ir::Region;
use serde::{Deserialize, Serialize};

use super::{available, prefix_products};
use crate::cost::{memory_us, scalar_work, traffic_bytes};
use crate::device::Device;
use crate::direct_convolution::{COMMON, Convolution, operation, runs_along_time};
use crate::error::LowerError;
use crate::family::{Candidate, Family, Kernel, Lowered, Refusal};
use crate::plan::KernelSource;
use crate::source::{all_pointers, kernel_name, parameter_list, translation_unit};

const NAME: &str = "toeplitz";
const DEVICE_CODE: &str = include_str!("toeplitz.cuh");
const THREADS: usize = 256;
/// Positions of a time block: rows of a product.
const POSITIONS: usize = 64;
/// Most columns: a warpgroup accumulates all of them in registers.
const MOST_COLUMNS: usize = 128;
/// Of one multiprocessor: columns of a block diagonal that its tensor cores multiply in a microsecond.
const COLUMN_RATE: f64 = 0.6 * 877.0;
/// What a block takes beside products and traffic, and a diagonal at least, microseconds.
const FIXED_US: f64 = 2.4;
const DIAGONAL_US: f64 = 0.06;

/// The family. See the module's documentation.
pub struct ToeplitzFamily;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Schedule {
    family: String,
    /// Columns by which later products are narrower.
    step: usize,
}

struct Shape {
    convolution: Convolution,
    blocks: usize,
    columns: usize,
}

fn recognise(region: &Region, device: &Device) -> Result<Shape, Refusal> {
    let refuse = |why: String| Err(Refusal { op: "long_conv".to_owned(), why, larger: false });
    if !available(device) {
        return refuse(format!("warpgroup products need sm_90a, not {}", device.arch));
    }
    let convolution = Convolution::of(region)?;
    if convolution.precision != hyenac_ir::DType::F16 {
        return refuse("its operands are not f16".to_owned());
    }
    if !runs_along_time(region, &convolution, device) {
        return refuse("moves elements that are no neighbours in time".to_owned());
    }
    let blocks = convolution.length.div_ceil(POSITIONS);
    let columns = blocks * convolution.batches;
    if columns > MOST_COLUMNS {
        return refuse(format!("has {columns} blocks of {POSITIONS} positions, the limit is {MOST_COLUMNS}"));
    }
    Ok(Shape { convolution, blocks, columns })
}

impl Shape {
    fn schedule(&self) -> Schedule {
        Schedule { family: NAME.to_owned(), step: self.columns.div_ceil(8).next_multiple_of(8) }
    }

    /// Columns that the products of each diagonal take.
    fn widths(&self, schedule: &Schedule) -> impl Iterator<Item = usize> {
        let (columns, batches, step) = (self.columns, self.convolution.batches, schedule.step);
        (0..self.blocks).map(move |diagonal| (columns - diagonal * batches).next_multiple_of(step))
    }

    fn shared_bytes(&self, schedule: &Schedule) -> usize {
        let signal = 8 * 16 * ((self.columns + schedule.step) | 1);
        let copy = (self.blocks * POSITIONS + 66 + 31) / 64 * 64 + 32;
        let results = self.columns.next_multiple_of(8) * (POSITIONS + 4) * 4;
        (signal + 2 * copy * 2).max(results)
    }

    fn time_us(&self, schedule: &Schedule, bytes: f64, device: &Device) -> f64 {
        let multiprocessors = f64::from(device.multiprocessors);
        let share = (self.convolution.channels as f64 / multiprocessors).ceil();
        let products: f64 = self.widths(schedule).map(|width| (width as f64 / COLUMN_RATE).max(DIAGONAL_US)).sum();
        // The signal's operands are read again for the epilogue.
        let traffic_us =
            (1.6 * bytes / multiprocessors / device.l2_bandwidth_per_multiprocessor).max(memory_us(bytes, device));
        device.launch_us + FIXED_US + share * products + traffic_us
    }
}

impl Family for ToeplitzFamily {
    fn name(&self) -> &'static str {
        NAME
    }

    fn candidates(&self, region: &Region, device: &Device) -> Result<Vec<Candidate>, Refusal> {
        let shape = recognise(region, device)?;
        let schedule = shape.schedule();
        if shape.shared_bytes(&schedule) > device.shared_bytes_per_block as usize {
            let why = format!("does not fit {} bytes of shared memory", device.shared_bytes_per_block);
            return Err(Refusal { op: "long_conv".to_owned(), why, larger: false });
        }
        let bytes = traffic_bytes(region);
        let flops: f64 = shape.widths(&schedule).map(|width| 2.0 * (POSITIONS * POSITIONS * width) as f64).sum();
        let work_us = flops * shape.convolution.channels as f64 / device.f16_rate / 2.0;
        let floor_us =
            (bytes / device.memory_bandwidth).max(work_us).max(scalar_work(region.body()).time_us(device) * 0.5);
        Ok(vec![Candidate {
            family: NAME,
            schedule: serde_json::to_string(&schedule).unwrap_or_default(),
            time_us: shape.time_us(&schedule, bytes, device).max(floor_us),
            floor_us,
            launches: 1,
            scratch_bytes: 0,
        }])
    }

    fn lower(&self, region: &Region, schedule: &str, device: &Device) -> Result<Lowered, LowerError> {
        let unsuitable =
            |why: String| LowerError::Schedule { family: NAME.to_owned(), schedule: schedule.to_owned(), why };
        let parsed: Schedule = serde_json::from_str(schedule).map_err(|error| unsuitable(error.to_string()))?;
        let shape = recognise(region, device).map_err(|refusal| unsuitable(refusal.why))?;
        if parsed != shape.schedule() {
            return Err(unsuitable("is not offered for this region".to_owned()));
        }
        let kernel = kernel(region, &shape, &parsed)
            .map_err(|refusal| unsuitable(format!("{}: {}", refusal.op, refusal.why)))?;
        Ok(Lowered { kernels: vec![kernel], scratch: Vec::new() })
    }
}

fn kernel(region: &Region, shape: &Shape, schedule: &Schedule) -> Result<Kernel, Refusal> {
    let body = region.body();
    let Convolution { batches, channels, length, .. } = shape.convolution;
    let width = shape.convolution.width;
    let step = schedule.step;
    let widest = shape.columns.next_multiple_of(step);
    let widths: Vec<usize> = (1..=widest / step).map(|count| count * step).collect();
    let mut config = format!(
        "struct Shape {{\n    \
         static constexpr uint32 CHANNELS = {channels}, BATCHES = {batches}, LENGTH = {length};\n    \
         static constexpr uint32 WIDTH = {width}, POSITIONS = {POSITIONS}, GROUP = {}, WARPS = {};\n    \
         static constexpr uint32 BLOCK_CHANNELS = 1, BLOCK_BATCHES = {batches}, SPLITS = 1, STEP = {step};\n    \
         template <int N>\n    \
         static __device__ __forceinline__ void product(float (&sum)[{}], const uint32 (&a)[4], uint64 b) {{\n",
        shape.columns.div_ceil(THREADS / 32),
        THREADS / 32,
        widest / 2,
    );
    for n in &widths {
        let _ = writeln!(config, "        if constexpr (N == {n}) product_prefix_{n}(sum, a, b, 1);");
    }
    config.push_str("    }\n};\n\n");
    let pointers = all_pointers(body);
    let parameters = parameter_list(body, &pointers);
    let arguments: Vec<&str> = parameters.split(", ").filter_map(|one| one.split(' ').next_back()).collect();
    let name = kernel_name(NAME, body);
    let entry = format!(
        "extern \"C\" __global__ void __launch_bounds__({THREADS}, 2) {name}({parameters}) {{\n    \
         toeplitz<Shape>(Operation{{{}}});\n}}\n",
        arguments.join(", ")
    );
    let source = translation_unit(&[
        super::DEVICE_CODE,
        &prefix_products(&widths),
        COMMON,
        DEVICE_CODE,
        &config,
        &operation(region, &shape.convolution, width, true)?,
        &entry,
    ]);
    Ok(Kernel {
        source: KernelSource { name, source },
        grid: [channels as u32, 1, 1],
        block: [THREADS as u32, 1, 1],
        shared_bytes: shape.shared_bytes(schedule) as u32,
        pointers,
        late: None,
        calls_next: true,
    })
}
