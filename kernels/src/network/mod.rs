//! Family `network`: a chain of linears over the same rows whose activations are sines, on tensor cores.
//!
//! This is the filter network: positions come in, a filter tap for every channel goes out. Its sines amplify
//! rounding, so operands are split into two f16 parts and three products are taken, which is as exact as f32;
//! a layer whose operands are cast to f16 takes one. Every load of weights is issued before anything is
//! computed; weights stay in registers as fragments, and activations, elementwise code applied,
//! go from warp to warp through shared memory. For few rows the last layer's columns are spread over blocks, each of
//! which computes the layers before it again.
//!
//! Work: `2 rows sum(inner * columns)` flops, three times that for f32; bytes: weights once, the result once.

mod emit;
mod function;
mod layout;
#[cfg(test)]
mod tests;

use hyenac_ir::{DType, Region};

use crate::chain::Chain;
use crate::cost::{memory_us, scalar_work, traffic_bytes};
use crate::device::Device;
use crate::error::LowerError;
use crate::family::{Candidate, Family, Kernel, Lowered, Refusal};
use crate::gemm::MATRIX_CODE;
use crate::plan::KernelSource;
use crate::source::{all_pointers, kernel_name, translation_unit};
use layout::{FRAGMENT, Layout, Schedule, check_operands};

const NAME: &str = "network";
const DEVICE_CODE: &str = include_str!("network.cuh");
/// Operations on the f32 units per activation: bias, frequency, sine, and its splitting.
const ACTIVATION_FLOPS: f64 = 40.0;
/// What a layer takes beside its work: the way through shared memory and a barrier, microseconds.
const LAYER_US: f64 = 0.05;

/// The family. See the module's documentation.
pub struct Network;

fn schedules(region: &Region, device: &Device) -> Result<(Chain, Vec<(Schedule, Layout)>), Refusal> {
    let (body, chain) = (region.body(), Chain::of(region)?);
    check_operands(body, &chain)?;
    let output_bytes = body.ty(chain.output).dtype.bytes();
    let all = Schedule::all(&chain, output_bytes, device);
    if all.is_empty() {
        let why = "a warp's share of the weights exceeds its registers, or a tile shared memory".to_owned();
        return Err(Refusal { op: "linear".to_owned(), why, larger: false });
    }
    Ok((chain, all))
}

/// Modelled time in a graph.
fn price(chain: &Chain, schedule: &Schedule, layout: &Layout, bytes: f64, device: &Device) -> f64 {
    let mut block_us = 0.0;
    let mut weights = 0.0;
    for (position, placed) in layout.layers.iter().enumerate() {
        let last = position + 1 == layout.layers.len();
        let columns = if last { schedule.columns } else { placed.layer.columns } as f64;
        let products = if placed.split { 3.0 } else { 1.0 };
        let flops = 2.0 * schedule.positions as f64 * columns * (FRAGMENT * placed.steps) as f64;
        block_us += products * flops / device.f16_rate
            + ACTIVATION_FLOPS * schedule.positions as f64 * columns / device.f32_rate;
        weights += 4.0 * columns * placed.layer.inner as f64;
    }
    let multiprocessors = f64::from(device.multiprocessors);
    // Tiles that the busiest multiprocessor works through, side by side or one after the other.
    let side_by_side = (layout.walkers as f64 * layout.groups as f64 / multiprocessors).ceil();
    // Few warps leave the units waiting for each other.
    let warps = side_by_side * schedule.warps as f64;
    let tile_us = block_us * multiprocessors * (warps + 2.0) / warps;
    let rounds = layout.rounds() as f64;
    let weights_us = side_by_side * weights / device.l2_bandwidth_per_multiprocessor;
    let work_us = rounds * (chain.layers.len() as f64 * LAYER_US + side_by_side * tile_us);
    // About half of the weights arrive while earlier layers are computed.
    device.launch_us + (0.5 * weights_us + work_us).max(memory_us(bytes, device))
}

impl Family for Network {
    fn name(&self) -> &'static str {
        NAME
    }

    fn candidates(&self, region: &Region, device: &Device) -> Result<Vec<Candidate>, Refusal> {
        let (chain, all) = schedules(region, device)?;
        let mut work = scalar_work(region.body());
        for layer in &chain.layers {
            let products = if layer.precision == DType::F16 { 1.0 } else { 3.0 };
            work.f16_matrix += products * 2.0 * (chain.rows * layer.inner * layer.columns) as f64;
        }
        let bytes = traffic_bytes(region);
        let floor_us = (bytes / device.memory_bandwidth).max(work.time_us(device));
        Ok(all
            .into_iter()
            .map(|(schedule, layout)| Candidate {
                family: NAME,
                schedule: serde_json::to_string(&schedule).unwrap_or_default(),
                time_us: price(&chain, &schedule, &layout, bytes, device).max(floor_us),
                floor_us,
                launches: 1,
                scratch_bytes: 0,
            })
            .collect())
    }

    fn lower(&self, region: &Region, schedule: &str, device: &Device) -> Result<Lowered, LowerError> {
        let unsuitable =
            |why: String| LowerError::Schedule { family: NAME.to_owned(), schedule: schedule.to_owned(), why };
        let parsed: Schedule = serde_json::from_str(schedule).map_err(|error| unsuitable(error.to_string()))?;
        let (chain, all) = schedules(region, device).map_err(|refusal| unsuitable(refusal.why))?;
        let (_, layout) = all
            .into_iter()
            .find(|(offered, _)| *offered == parsed)
            .ok_or_else(|| unsuitable("the family does not offer it for this region".to_owned()))?;
        let body = region.body();
        let kernel = emit::kernel(body, &chain, &parsed, &layout).map_err(|refusal| unsuitable(refusal.why))?;
        Ok(Lowered {
            kernels: vec![Kernel {
                source: KernelSource {
                    name: kernel_name(NAME, body),
                    source: translation_unit(&[MATRIX_CODE, DEVICE_CODE, &kernel]),
                },
                grid: [(layout.walkers * layout.groups) as u32, 1, 1],
                block: [32 * parsed.warps as u32, 1, 1],
                shared_bytes: layout.shared_bytes as u32,
                pointers: all_pointers(body),
                late: Some(Vec::new()),
                calls_next: true,
            }],
            scratch: Vec::new(),
        })
    }
}
