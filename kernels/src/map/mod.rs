//! Family `map`: one thread an element. The generic kernel of every op that has a scalar form.

use hyenac_ir::{Op, Region};
use serde::{Deserialize, Serialize};

use crate::cost::{memory_us, scalar_work, traffic_bytes};
use crate::device::Device;
use crate::error::LowerError;
use crate::family::{Candidate, Family, Kernel, Lowered, Refusal};
use crate::index::Index;
use crate::plan::KernelSource;
use crate::scalar::{Emitter, Memory, has_scalar_form};
use crate::source::{all_pointers, kernel_name, parameter_list, translation_unit};

const NAME: &str = "map";
const THREADS: u32 = 256;
/// Blocks of a launch; elements beyond are reached by striding over the grid.
const MOST_BLOCKS: u64 = 1 << 20;

/// The family. See the module's documentation.
pub struct Map;

#[derive(Serialize, Deserialize)]
struct Schedule {
    family: String,
}

impl Family for Map {
    fn name(&self) -> &'static str {
        NAME
    }

    fn candidates(&self, region: &Region, device: &Device) -> Result<Vec<Candidate>, Refusal> {
        let body = region.body();
        if let Some(node) = body.nodes().find(|&node| !has_scalar_form(&body.node(node).op)) {
            return Err(Refusal {
                op: body.node(node).op.mnemonic().to_owned(),
                why: "has no scalar form".to_owned(),
                larger: false,
            });
        }
        let [output] = body.outputs() else {
            return Err(Refusal {
                op: "region".to_owned(),
                why: format!("map writes one output, not {}", body.outputs().len()),
                larger: false,
            });
        };
        let work = scalar_work(body);
        let bytes = traffic_bytes(region);
        // A transposed read moves a sector of 32 bytes for every element; caches recover about half of it.
        let transposed = body.nodes().any(|node| match &body.node(node).op {
            Op::Transpose { permutation } => permutation.last() != Some(&(permutation.len() - 1)),
            _ => false,
        });
        let elements = body.ty(*output).elements() as f64;
        let moved = if transposed { bytes + elements * 16.0 } else { bytes };
        let arithmetic = work.time_us(device) / 0.5;
        let floor_us = (bytes / device.memory_bandwidth).max(work.time_us(device));
        Ok(vec![Candidate {
            family: NAME,
            schedule: format!("{{\"family\":\"{NAME}\"}}"),
            time_us: device.launch_us + memory_us(moved, device).max(arithmetic),
            floor_us,
            launches: 1,
            scratch_bytes: 0,
        }])
    }

    fn lower(&self, region: &Region, schedule: &str, _: &Device) -> Result<Lowered, LowerError> {
        let body = region.body();
        let unsuitable =
            |why: String| LowerError::Schedule { family: NAME.to_owned(), schedule: schedule.to_owned(), why };
        let parsed: Schedule = serde_json::from_str(schedule).map_err(|error| unsuitable(error.to_string()))?;
        if parsed.family != NAME {
            return Err(unsuitable("belongs to another family".to_owned()));
        }
        let output = *body.outputs().first().ok_or_else(|| unsuitable("the region has no output".to_owned()))?;
        let shape = &body.ty(output).shape;
        let elements = body.ty(output).elements();

        let index = Index::variable("i", elements);
        let mut emitter = Emitter::new(body, &Memory, 2, "v");
        let element =
            emitter.stored_element(output, &index.unflatten(shape)).map_err(|refusal| unsuitable(refusal.why))?;
        emitter.line(&format!("o0[{index}] = {element};"));

        let blocks = (elements as u64).div_ceil(u64::from(THREADS)).min(MOST_BLOCKS) as u32;
        let pointers = all_pointers(body);
        let name = kernel_name(NAME, body);
        // 32-bit indices as long as the stride past the end cannot wrap around.
        let wide = elements as u64 + u64::from(blocks) * u64::from(THREADS) > u64::from(u32::MAX);
        let ty = if wide { "uint64" } else { "uint32" };
        let kernel = format!(
            "extern \"C\" __global__ void __launch_bounds__({THREADS}) {name}({parameters}) {{\n    \
             for ({ty} i = ({ty})blockIdx.x * {THREADS}u + threadIdx.x; i < {elements}; i += ({ty}){blocks}u * {THREADS}u) {{\n\
             {statements}    }}\n}}\n",
            parameters = parameter_list(body, &pointers),
            elements = if wide { format!("{elements}ull") } else { format!("{elements}u") },
            statements = emitter.finish(),
        );
        Ok(Lowered {
            kernels: vec![Kernel {
                source: KernelSource { source: translation_unit(&[&kernel]), name },
                grid: [blocks, 1, 1],
                block: [THREADS, 1, 1],
                shared_bytes: 0,
                pointers,
            }],
            scratch: Vec::new(),
        })
    }
}
