//! Family `gemm`: one `linear` on tensor cores, with scalar expressions before and behind it.
//!
//! The skeleton (`gemm.cuh`) is one; what it loads and stores is emitted from the region's own expression:
//!
//! * the left operand is any scalar expression at (row, k), run along k or along rows, whichever is contiguous in
//!   memory, with at most one layer norm over k, whose rows are normalised on the way into shared memory;
//! * the right operand is any scalar expression at (column, k);
//! * the epilogue is any scalar expression that moves elements one to one, and short convolutions along rows:
//!   row tiles then overlap, and the sequence's start is guarded by the expression itself.
//!
//! Precision follows the operands: f16 or tf32 where they are cast to it, otherwise f32 by three products
//! of tf32 parts. Work: `2 rows N K` flops (three times that for f32); bytes: every operand and the output once.

mod epilogue;
mod layout;
mod operand;
mod price;
mod recognise;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use hyenac_ir::{Graph, Region};

use crate::device::Device;
use crate::error::LowerError;
use crate::family::{Candidate, Family, Kernel, Lowered, Refusal};
use crate::plan::KernelSource;
use crate::source::{all_pointers, kernel_name, parameter_list, translation_unit};
use crate::vector;
pub use epilogue::Epilogue;
use layout::{Layout, Schedule};
pub use operand::Operand;
use price::Price;
pub use recognise::Product;

const NAME: &str = "gemm";
/// Tensor-core fragments and copies in the background.
pub const MATRIX_CODE: &str = include_str!("matrix.cuh");
const DEVICE_CODE: [&str; 2] = [MATRIX_CODE, include_str!("gemm.cuh")];
/// Schedules of each tile that are offered, the best by the price model: enough for measurements to choose from.
const CANDIDATES_PER_TILE: usize = 2;

/// The family. See the module's documentation.
pub struct Gemm;

/// The left operand and the epilogue of a product, which walks over padded runs of rows where that serves them.
pub fn around(body: &Graph, product: &mut Product) -> Result<(Operand, Epilogue), Refusal> {
    let (left, epilogue) = (Operand::left(body, product)?, Epilogue::of(body, product)?);
    if product.pad_rows(body, epilogue.along_rows)? {
        return Ok((Operand::left(body, product)?, Epilogue::of(body, product)?));
    }
    Ok((left, epilogue))
}

/// A region taken apart.
struct Parts {
    product: Product,
    left: Operand,
    right: Operand,
    epilogue: Epilogue,
    output_bytes: usize,
}

impl Parts {
    fn of(region: &Region) -> Result<Parts, Refusal> {
        let body = region.body();
        let mut product = Product::of(region)?;
        let (left, epilogue) = around(body, &mut product)?;
        let right = Operand::right(body, &product)?;
        let output_bytes = body.ty(product.output).dtype.bytes();
        Ok(Parts { product, left, right, epilogue, output_bytes })
    }

    /// Rows that a tile repeats: groups of rows of the left operand begin at multiples of their width.
    fn halo(&self) -> usize {
        let group = if self.left.along_inner { 1 } else { self.left.width };
        self.epilogue.halo.next_multiple_of(group)
    }

    /// The schedules on offer with their prices, best first.
    fn offers(&self, region: &Region, device: &Device) -> Vec<(Schedule, Layout, f64)> {
        let price = Price::new(region, self, device);
        let mut offers: Vec<_> = Schedule::all(self, device.shared_bytes_per_block as usize)
            .into_iter()
            .map(|(schedule, layout)| {
                let time_us = price.time_us(self, &schedule, &layout);
                (schedule, layout, time_us)
            })
            .collect();
        offers.sort_by(|a, b| a.2.total_cmp(&b.2));
        let mut taken: BTreeMap<[usize; 2], usize> = BTreeMap::new();
        offers.retain(|(schedule, ..)| {
            let count = taken.entry([schedule.rows, schedule.columns]).or_default();
            *count += 1;
            *count <= CANDIDATES_PER_TILE
        });
        offers
    }

    fn kernel(&self, region: &Region, schedule: &Schedule, layout: &Layout, device: &Device) -> Kernel {
        let body = region.body();
        let pointers = all_pointers(body);
        let parameters = parameter_list(body, &pointers);
        let members = parameters.replace(" __restrict__", "").replace(", ", "; ");
        let arguments = parameters.split(", ").filter_map(|p| p.rsplit(' ').next()).collect::<Vec<_>>().join(", ");
        let name = kernel_name(NAME, body);
        let threads = schedule.threads();
        let together = schedule.blocks_per_multiprocessor(layout, self, device.shared_bytes_per_block as usize);
        let kernel = format!(
            "extern \"C\" __global__ void __launch_bounds__({threads}, {together}) {name}({parameters}) {{\n    \
             multiply<config>(left{{{arguments}}}, right{{{arguments}}}, epilogue{{{arguments}}});\n}}\n"
        );
        let [matrix, skeleton] = DEVICE_CODE;
        let source = translation_unit(&[
            vector::DEVICE_CODE,
            matrix,
            skeleton,
            &layout.emit(self, schedule),
            &self.left.emit("left", &members),
            &self.right.emit("right", &members),
            &self.epilogue.emit(&members, layout.halo),
            &kernel,
        ]);
        Kernel {
            source: KernelSource { name, source },
            grid: [layout.blocks() as u32, 1, 1],
            block: [threads as u32, 1, 1],
            shared_bytes: layout.shared_bytes as u32,
            pointers,
            late: Some(Vec::new()),
            calls_next: true,
        }
    }
}

impl Family for Gemm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn candidates(&self, region: &Region, device: &Device) -> Result<Vec<Candidate>, Refusal> {
        let parts = Parts::of(region)?;
        let floor_us = Price::new(region, &parts, device).floor_us();
        let candidates: Vec<Candidate> = parts
            .offers(region, device)
            .into_iter()
            .map(|(schedule, _, time_us)| Candidate {
                family: NAME,
                schedule: serde_json::to_string(&schedule).unwrap_or_default(),
                time_us,
                floor_us,
                launches: 1,
                scratch_bytes: 0,
            })
            .collect();
        if candidates.is_empty() {
            return Err(Refusal {
                op: "linear".to_owned(),
                why: format!("no tile fits {} bytes of shared memory", device.shared_bytes_per_block),
                larger: false,
            });
        }
        Ok(candidates)
    }

    fn lower(&self, region: &Region, schedule: &str, device: &Device) -> Result<Lowered, LowerError> {
        let unsuitable =
            |why: String| LowerError::Schedule { family: NAME.to_owned(), schedule: schedule.to_owned(), why };
        let parsed: Schedule = serde_json::from_str(schedule).map_err(|error| unsuitable(error.to_string()))?;
        let parts = Parts::of(region).map_err(|refusal| unsuitable(refusal.why))?;
        let (schedule, layout, _) = parts
            .offers(region, device)
            .into_iter()
            .find(|(offered, ..)| *offered == parsed)
            .ok_or_else(|| unsuitable("is not offered for this region".to_owned()))?;
        Ok(Lowered { kernels: vec![parts.kernel(region, &schedule, &layout, device)], scratch: Vec::new() })
    }
}
