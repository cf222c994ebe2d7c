//! Family `layer_norm`: rows normalised by a warp or less each, with any scalar expression before and behind.
//!
//! Mean and variance are taken in two passes over the row in registers, in f32. Rows beyond
//! [`MOST_IN_REGISTERS`] take a block each and are read three times, from the caches but for the first.
//! Work: a few flops an element; bytes: every operand and the output once.

mod norm;
#[cfg(test)]
mod tests;

use hyenac_ir::{Graph, Op, Region, Value};
use serde::{Deserialize, Serialize};

pub use norm::Norm;

use crate::cost::{heavy_nodes, memory_us, scalar_work, traffic_bytes};
use crate::device::Device;
use crate::error::LowerError;
use crate::family::{Candidate, Family, Kernel, Lowered, Pointer, Refusal};
use crate::plan::KernelSource;
use crate::scalar::literal;
use crate::source::{all_pointers, kernel_name, parameter_list, translation_unit};
use crate::vector::{self, Group, element_before_store, position_in_output, store};

const NAME: &str = "layer_norm";
const THREADS: usize = 128;
/// The longest row that a warp keeps in registers: 32 elements a lane.
const MOST_IN_REGISTERS: usize = 1024;
const DEVICE_CODE: &str = include_str!("layer_norm.cuh");

/// The family. See the module's documentation.
pub struct LayerNorm;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Schedule {
    family: String,
    /// Rows of a warp's lane group at a time; 0 for a block a row.
    batch: usize,
}

impl Schedule {
    fn new(batch: usize) -> Schedule {
        Schedule { family: NAME.to_owned(), batch }
    }
}

/// A region that the family can run.
struct Recognised {
    norm: Norm,
    width: usize,
    before: Group,
    /// What is made of the norm, one element a lane as `y` wants it.
    after: Group,
    store: String,
}

impl Recognised {
    fn of(region: &Region) -> Result<Recognised, Refusal> {
        let body = region.body();
        let (norm, output) = only_norm(body)?;
        let width = norm.width();
        let before = norm.before(body, width)?;
        let lanes: Vec<_> = (0..width).map(|lane| Norm::lane(norm.length, width).plus(&constant(lane))).collect();
        let mut positions = Vec::new();
        for lane in &lanes {
            positions.push(position_in_output(body, norm.value, &norm.index(lane.clone()), output)?);
        }
        let mut next = positions.iter();
        let after = norm.after(body, output, width, |emitter, _| {
            element_before_store(emitter, body, output, next.next().map_or(&[][..], |position| position))
        })?;
        let flat: Vec<_> = lanes.iter().map(|lane| norm.row().times(norm.length as u64).plus(lane)).collect();
        let store = store(body.ty(output), &positions, &lanes, &flat, norm.length, None, 2);
        Ok(Recognised { norm, width, before, after, store })
    }

    /// Lanes that share a row.
    fn lanes(&self) -> usize {
        self.norm.length.div_ceil(self.width).next_power_of_two().min(32)
    }

    /// Groups of a row that a lane holds.
    fn groups(&self) -> usize {
        self.norm.length.div_ceil(self.lanes() * self.width)
    }

    fn schedules(&self) -> Vec<Schedule> {
        if self.norm.length > MOST_IN_REGISTERS {
            return vec![Schedule::new(0)];
        }
        let held = self.groups() * self.width;
        [1, 2, 4].into_iter().filter(|&batch| batch == 1 || batch * held <= 32).map(Schedule::new).collect()
    }

    fn blocks(&self, schedule: &Schedule) -> usize {
        match schedule.batch {
            0 => self.norm.rows(),
            batch => self.norm.rows().div_ceil(THREADS / self.lanes() * batch),
        }
    }

    fn time_us(&self, region: &Region, schedule: &Schedule, device: &Device) -> f64 {
        // Cold loads, two reductions, the store.
        const LATENCY_US: f64 = 1.2;
        let bytes = traffic_bytes(region) * if schedule.batch == 0 { 1.5 } else { 1.0 };
        let blocks = self.blocks(schedule) as f64;
        let busy = blocks.min(f64::from(device.multiprocessors));
        // What one multiprocessor draws limits small grids; more rows in flight hide more of the latency.
        let own = bytes / busy / device.l2_bandwidth_per_multiprocessor;
        let in_flight = 1.0 + 0.05 / schedule.batch.max(1) as f64;
        let work = scalar_work(region.body()).time_us(device);
        device.launch_us + LATENCY_US + (memory_us(bytes, device) * in_flight).max(own).max(work)
    }

    /// The statements of the emitted struct and the kernel.
    fn kernel(&self, body: &Graph, pointers: &[Pointer], name: &str, schedule: &Schedule) -> String {
        let parameters = parameter_list(body, pointers);
        let members = parameters.replace(" __restrict__", "").replace(", ", "; ");
        let arguments = parameters.split(", ").filter_map(|p| p.rsplit(' ').next()).collect::<Vec<_>>().join(", ");
        let (width, rows, length) = (self.width, self.norm.rows(), self.norm.length);
        let call = match schedule.batch {
            0 => format!("normalise_row_from_memory<{THREADS}>"),
            batch => format!("normalise_rows_in_registers<{}, {batch}, {THREADS}>", self.lanes()),
        };
        format!(
            "struct rows_of_region {{\n    {members};\n    \
             static constexpr int width = {width}, words = {words};\n    \
             static constexpr uint32 rows = {rows}u, length = {length}u;\n    \
             static constexpr float eps = {eps};\n    \
             __device__ __forceinline__ void fetch(uint32 (&raw)[words], uint32 row, uint32 k) const {{\n        \
             const uint32 k_group = k / width;\n{fetch}    }}\n    \
             __device__ __forceinline__ void before(const uint32 (&raw)[words], uint32 row, uint32 k, float (&x)[width]) const {{\n        \
             const uint32 k_group = k / width;\n{before}    }}\n    \
             __device__ __forceinline__ void finish(uint32 row, uint32 k, const float (&x)[width], float mean, float scale) const {{\n        \
             const uint32 k_group = k / width;\n        \
             uint32 raw[{after_words}];\n        \
             float y[width];\n{after_fetch}{after}{store}    }}\n}};\n\n\
             extern \"C\" __global__ void __launch_bounds__({THREADS}) {name}({parameters}) {{\n    \
             {call}(rows_of_region{{{arguments}}});\n}}\n",
            words = self.before.words.max(1),
            eps = literal(self.norm.eps),
            fetch = self.before.fetch(2),
            before = self.before.assign("x", 2),
            after_words = self.after.words.max(1),
            after_fetch = self.after.fetch(2),
            after = self.after.assign("y", 2),
            store = self.store,
        )
    }
}

fn constant(lane: usize) -> crate::index::Index {
    crate::index::Index::constant(lane as u64)
}

/// The one layer norm of a body that has no other op without a scalar form, and the one output.
fn only_norm(body: &Graph) -> Result<(Norm, Value), Refusal> {
    let refuse = |op: &str, why: String, larger| Err(Refusal { op: op.to_owned(), why, larger });
    let heavy = heavy_nodes(body);
    let Some(&node) = heavy.first() else {
        return refuse(NAME, "there is no layer_norm in the region".to_owned(), true);
    };
    if let Some(&other) = heavy.iter().find(|&&node| !matches!(body.node(node).op, Op::LayerNorm { .. })) {
        return refuse(body.node(other).op.mnemonic(), "has no place beside a layer_norm".to_owned(), false);
    }
    let (Some(norm), 1) = (Norm::of(body, node), heavy.len()) else {
        return refuse(NAME, format!("one layer_norm a kernel, not {}", heavy.len()), false);
    };
    let [output] = *body.outputs() else {
        return refuse("region", format!("layer_norm writes one output, not {}", body.outputs().len()), false);
    };
    if norm.rows() > i32::MAX as usize {
        return refuse(NAME, format!("{} rows, the limit of a grid is {}", norm.rows(), i32::MAX), false);
    }
    Ok((norm, output))
}

impl Family for LayerNorm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn candidates(&self, region: &Region, device: &Device) -> Result<Vec<Candidate>, Refusal> {
        let recognised = Recognised::of(region)?;
        let floor_us =
            (traffic_bytes(region) / device.memory_bandwidth).max(scalar_work(region.body()).time_us(device));
        let candidate = |schedule: Schedule| Candidate {
            family: NAME,
            time_us: recognised.time_us(region, &schedule, device),
            schedule: serde_json::to_string(&schedule).unwrap_or_default(),
            floor_us,
            launches: 1,
            scratch_bytes: 0,
        };
        Ok(recognised.schedules().into_iter().map(candidate).collect())
    }

    fn lower(&self, region: &Region, schedule: &str, _: &Device) -> Result<Lowered, LowerError> {
        let unsuitable =
            |why: String| LowerError::Schedule { family: NAME.to_owned(), schedule: schedule.to_owned(), why };
        let parsed: Schedule = serde_json::from_str(schedule).map_err(|error| unsuitable(error.to_string()))?;
        let recognised = Recognised::of(region).map_err(|refusal| unsuitable(refusal.why))?;
        if !recognised.schedules().contains(&parsed) {
            return Err(unsuitable("is not offered for this region".to_owned()));
        }
        let body = region.body();
        let pointers = all_pointers(body);
        // The family's name is that of its op already.
        let name = kernel_name("norm", body);
        let kernel = recognised.kernel(body, &pointers, &name, &parsed);
        Ok(Lowered {
            kernels: vec![Kernel {
                source: KernelSource { source: translation_unit(&[vector::DEVICE_CODE, DEVICE_CODE, &kernel]), name },
                grid: [recognised.blocks(&parsed) as u32, 1, 1],
                block: [THREADS as u32, 1, 1],
                shared_bytes: 0,
                pointers,
                late: None,
                calls_next: false,
            }],
            scratch: Vec::new(),
        })
    }
}
