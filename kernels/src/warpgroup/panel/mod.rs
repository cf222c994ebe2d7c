//! Family `panel`: one `linear` by warpgroup products, its left operand resident, its weight streamed in panels.
//!
//! As in `gemm`, the left operand is any scalar expression with at most one layer norm, and the epilogue any scalar
//! expression that moves elements one to one. The weight must be stored in panels of 64 rows (see the parent module).
//! Work: `2 rows N K` flops; bytes: operands and output once, and the weight once for every 64 rows from L2.

use std::fmt::Write;

use hyenac_ir::{DType, Region};
use serde::{Deserialize, Serialize};

use super::{K_STRIDE, PANEL, available, row_panels, shared_products};
use crate::cost::{memory_us, scalar_work, traffic_bytes};
use crate::device::Device;
use crate::error::LowerError;
use crate::family::{Candidate, Family, Kernel, Lowered, Refusal};
use crate::gemm::{Epilogue, MATRIX_CODE, Operand, Product, around};
use crate::plan::KernelSource;
use crate::source::{all_pointers, exclusive_parameters, kernel_name, parameter_list, translation_unit};
use crate::vector;

const NAME: &str = "panel";
const DEVICE_CODE: &str = include_str!("panel.cuh");
const THREADS: usize = 288;
const MOST_STAGES: usize = 4;
/// A panel's product and its way to the output, K = 256, measured on an H200.
const PANEL_US: f64 = 0.75;
/// The same where the output is stored an element at a time.
const NARROW_PANEL_US: f64 = 1.0;

/// The family. See the module's documentation.
pub struct Panel;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Schedule {
    family: String,
    /// Panels of a block.
    panels: usize,
    /// Panels in shared memory.
    stages: usize,
}

struct Parts {
    product: Product,
    weight: usize,
    left: Operand,
    epilogue: Epilogue,
}

impl Parts {
    fn of(region: &Region, device: &Device) -> Result<Parts, Refusal> {
        let refuse = |why: String| Err(Refusal { op: "linear".to_owned(), why, larger: false });
        if !available(device) {
            return refuse(format!("warpgroup products need sm_90a, not {}", device.arch));
        }
        let body = region.body();
        let mut product = Product::of(region)?;
        if product.precision != DType::F16 {
            return refuse("its operands are not f16".to_owned());
        }
        if !product.inner.is_multiple_of(16) || product.inner > 512 {
            return refuse(format!("K = {} is no multiple of 16 up to 512", product.inner));
        }
        let Some(weight) = row_panels(body, product.weight) else {
            return refuse("its weight is not stored in panels of 64 rows".to_owned());
        };
        let (mut left, epilogue) = around(body, &mut product)?;
        // Core matrices are no copy of any stored order of rows.
        left.direct = false;
        if epilogue.halo > 0 {
            return refuse("a short convolution behind the product reads rows of another tile".to_owned());
        }
        Ok(Parts { product, weight, left, epilogue })
    }

    fn all_panels(&self) -> usize {
        self.product.columns / PANEL
    }

    fn row_tiles(&self) -> usize {
        self.product.walked_rows().div_ceil(PANEL)
    }

    fn tile_pitch(&self) -> usize {
        if self.epilogue.along_rows { PANEL + 4 } else { PANEL + 8 }
    }

    fn layout(&self, schedule: &Schedule) -> Layout {
        let operand = self.product.inner / 8 * K_STRIDE;
        let stage_offset = operand.next_multiple_of(128);
        let panel_bytes = PANEL * self.product.inner * 2;
        let tile_offset = stage_offset + schedule.stages * panel_bytes;
        let tile_bytes = PANEL * self.tile_pitch() * 4;
        let barrier_offset = tile_offset + 2 * tile_bytes;
        Layout {
            stage_offset,
            panel_bytes,
            tile_offset,
            tile_bytes,
            barrier_offset,
            shared_bytes: barrier_offset + 16 * schedule.stages,
        }
    }

    /// Splits of the columns over blocks that leave no block idle for long.
    fn schedules(&self, device: &Device) -> Vec<Schedule> {
        let all = self.all_panels();
        let mut panels: Vec<usize> = (1..=all).map(|groups| all.div_ceil(groups)).collect();
        panels.dedup();
        panels
            .into_iter()
            .filter_map(|panels| {
                let stages = panels.min(MOST_STAGES);
                let mut schedule = Schedule { family: NAME.to_owned(), panels, stages };
                while self.layout(&schedule).shared_bytes > device.shared_bytes_per_block as usize {
                    schedule.stages -= 1;
                    if schedule.stages == 0 {
                        return None;
                    }
                }
                Some(schedule)
            })
            .collect()
    }
}

struct Layout {
    stage_offset: usize,
    panel_bytes: usize,
    tile_offset: usize,
    tile_bytes: usize,
    barrier_offset: usize,
    shared_bytes: usize,
}

impl Family for Panel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn candidates(&self, region: &Region, device: &Device) -> Result<Vec<Candidate>, Refusal> {
        let parts = Parts::of(region, device)?;
        let product = &parts.product;
        let bytes = traffic_bytes(region);
        let work = scalar_work(region.body());
        let flops = 2.0 * product.rows as f64 * product.inner as f64 * product.columns as f64;
        let floor_us = (bytes / device.memory_bandwidth).max(flops / device.f16_rate).max(work.time_us(device));
        let candidates = parts.schedules(device).into_iter().map(|schedule| {
            let groups = parts.all_panels().div_ceil(schedule.panels);
            let blocks = (parts.row_tiles() * groups) as f64;
            let multiprocessors = f64::from(device.multiprocessors);
            let together = (device.shared_bytes_per_block as usize / parts.layout(&schedule).shared_bytes).clamp(1, 2);
            // Bytes of one block, through its multiprocessor's share of L2 by the copy engine.
            let panel_us = (PANEL * product.inner * 2) as f64 / (1.15 * device.l2_bandwidth_per_multiprocessor);
            let tile_us =
                (if parts.epilogue.width > 1 { PANEL_US } else { NARROW_PANEL_US }) * product.inner as f64 / 256.0;
            let start_us = 1.1 + if parts.left.is_normalised() { 0.6 } else { 0.0 };
            let block_us = start_us + schedule.panels as f64 * panel_us.max(tile_us) + 0.5;
            let rounds = (blocks / (multiprocessors * together as f64)).ceil();
            let crowd = (blocks / multiprocessors / rounds).clamp(1.0, together as f64);
            Candidate {
                family: NAME,
                schedule: serde_json::to_string(&schedule).unwrap_or_default(),
                time_us: device.launch_us + (rounds * block_us * (0.4 + 0.6 * crowd)).max(memory_us(bytes, device)),
                floor_us,
                launches: 1,
                scratch_bytes: 0,
            }
        });
        let candidates: Vec<Candidate> = candidates.collect();
        if candidates.is_empty() {
            let why = format!("a panel does not fit {} bytes of shared memory", device.shared_bytes_per_block);
            return Err(Refusal { op: "linear".to_owned(), why, larger: false });
        }
        Ok(candidates)
    }

    fn lower(&self, region: &Region, schedule: &str, device: &Device) -> Result<Lowered, LowerError> {
        let unsuitable =
            |why: String| LowerError::Schedule { family: NAME.to_owned(), schedule: schedule.to_owned(), why };
        let parsed: Schedule = serde_json::from_str(schedule).map_err(|error| unsuitable(error.to_string()))?;
        let parts = Parts::of(region, device).map_err(|refusal| unsuitable(refusal.why))?;
        if !parts.schedules(device).contains(&parsed) {
            return Err(unsuitable("is not offered for this region".to_owned()));
        }
        Ok(Lowered { kernels: vec![kernel(region, &parts, &parsed)], scratch: Vec::new() })
    }
}

fn kernel(region: &Region, parts: &Parts, schedule: &Schedule) -> Kernel {
    let body = region.body();
    let layout = parts.layout(schedule);
    let groups = parts.all_panels().div_ceil(schedule.panels);
    let mut config = String::from("struct config {\n");
    for (name, value) in [
        ("rows", parts.product.walked_rows()),
        ("inner", parts.product.inner),
        ("all_panels", parts.all_panels()),
        ("panels", schedule.panels),
        ("column_groups", groups),
        ("stages", schedule.stages),
        ("k_stride", K_STRIDE),
        ("panel_bytes", layout.panel_bytes),
        ("stage_offset", layout.stage_offset),
        ("tile_offset", layout.tile_offset),
        ("tile_bytes", layout.tile_bytes),
        ("tile_pitch", parts.tile_pitch()),
        ("barrier_offset", layout.barrier_offset),
    ] {
        let _ = writeln!(config, "    static constexpr uint32 {name} = {value};");
    }
    config.push_str("};\n\n");
    let pointers = all_pointers(body);
    let parameters = parameter_list(body, &pointers);
    let members = parameters.replace(" __restrict__", "").replace(", ", "; ");
    let arguments = parameters.split(", ").filter_map(|p| p.rsplit(' ').next()).collect::<Vec<_>>().join(", ");
    let name = kernel_name(NAME, body);
    let entry = format!(
        "extern \"C\" __global__ void __launch_bounds__({THREADS}, 1) {name}({parameters}) {{\n    \
         multiply_panels<config>(left{{{arguments}}}, p{}, epilogue{{{arguments}}});\n}}\n",
        parts.weight
    );
    let source = translation_unit(&[
        vector::DEVICE_CODE,
        MATRIX_CODE,
        super::DEVICE_CODE,
        &shared_products(&[PANEL]),
        DEVICE_CODE,
        &config,
        &parts.left.emit("left", &members),
        &parts.epilogue.emit(&members, 0),
        &entry,
    ]);
    Kernel {
        source: KernelSource { name, source },
        grid: [(parts.row_tiles() * groups) as u32, 1, 1],
        block: [THREADS as u32, 1, 1],
        shared_bytes: layout.shared_bytes as u32,
        pointers,
        late: Some(exclusive_parameters(body, parts.product.weight)),
        calls_next: true,
    }
}
