//! Family `direct_convolution`: one long convolution, computed directly, with scalar prologues and epilogue.
//!
//! A thread block keeps the filter and the signal of its channels in shared memory, so that every stored value is read
//! once; the signal is computed from the region's own expression (a gate, say) as it is staged. With f16 operands the
//! convolution is a product of Toeplitz tiles on the tensor cores (`f16.cuh`), otherwise plain FMA over a sliding
//! window (`f32.cuh`). `common.cuh` states the decomposition. Any length costs as much as the next multiple of a time
//! block.
//!
//! Work: about `B D L (L + P)` flops for time blocks of P positions; bytes: every operand and the result once.

mod emit;
mod geometry;
mod price;
mod recognise;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod vectors;

use hyenac_ir::Region;

use crate::device::Device;
use crate::error::LowerError;
use crate::family::{Candidate, Family, Kernel, Lowered, Refusal};
use crate::plan::KernelSource;
use crate::source::{all_pointers, kernel_name, translation_unit};
pub use emit::operation;
use geometry::{Geometry, Operands, Schedule};
pub use price::runs_along_time;
pub use recognise::Convolution;

const NAME: &str = "direct_convolution";
/// Staging, places and the epilogue, for any struct `Operation`.
pub const COMMON: &str = include_str!("common.cuh");
const TENSOR_CORES: &str = include_str!("f16.cuh");
const PLAIN: &str = include_str!("f32.cuh");

/// The family. See the module's documentation.
pub struct DirectConvolution;

impl Family for DirectConvolution {
    fn name(&self) -> &'static str {
        NAME
    }

    fn candidates(&self, region: &Region, device: &Device) -> Result<Vec<Candidate>, Refusal> {
        let convolution = Convolution::of(region)?;
        price::candidates(region, &convolution, device)
    }

    fn lower(&self, region: &Region, schedule: &str, device: &Device) -> Result<Lowered, LowerError> {
        let unsuitable =
            |why: String| LowerError::Schedule { family: NAME.to_owned(), schedule: schedule.to_owned(), why };
        let parsed: Schedule = serde_json::from_str(schedule).map_err(|error| unsuitable(error.to_string()))?;
        let convolution = Convolution::of(region).map_err(|refusal| unsuitable(refusal.why))?;
        let geometry = Geometry::new(&convolution, &parsed, device).map_err(unsuitable)?;
        let body = region.body();
        let name = kernel_name(&format!("direct_{}", parsed.operands.name()), body);
        let kernel = emit::kernel(region, &convolution, &parsed, &geometry, &name)
            .map_err(|refusal| unsuitable(format!("{}: {}", refusal.op, refusal.why)))?;
        let device_code = match parsed.operands {
            Operands::F16 => TENSOR_CORES,
            Operands::F32 => PLAIN,
        };
        Ok(Lowered {
            kernels: vec![Kernel {
                source: KernelSource { name, source: translation_unit(&[COMMON, device_code, &kernel]) },
                grid: [geometry.thread_blocks, 1, 1],
                block: [32 * parsed.warps as u32, 1, 1],
                shared_bytes: geometry.shared_bytes as u32,
                pointers: all_pointers(body),
                late: None,
                calls_next: true,
            }],
            scratch: Vec::new(),
        })
    }
}
