//! Family `chain`: two or more linears over the same rows with elementwise ops between, in f32.
//!
//! This is the filter network: positions come in, a filter tap for every channel goes out, and no
//! intermediate row leaves the multiprocessor. A block keeps the weights of all layers in shared memory
//! where they fit and walks over tiles of rows. Plain FMA, whatever the range of the values: the family `network`
//! is faster where that is known to be small.
//!
//! Work: `2 rows sum(inner * columns)` flops; bytes: weights once, the result once.

mod recognise;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use hyenac_ir::{DType, Region, Value};
use serde::{Deserialize, Serialize};

use crate::cost::{memory_us, scalar_work, traffic_bytes};
use crate::device::Device;
use crate::error::LowerError;
use crate::family::{Candidate, Family, Kernel, Lowered, Refusal};
use crate::index::Index;
use crate::plan::KernelSource;
use crate::scalar::{Emitter, Reader};
use crate::source::{all_pointers, kernel_name, parameter_list, translation_unit};
use crate::storage;
pub use recognise::{Chain, Layer};

const NAME: &str = "chain";
const THREADS: usize = 256;
const DEVICE_CODE: &str = include_str!("chain.cuh");
/// Columns of a layer that are multiplied at a time: four groups of 64, a thread's accumulators.
const MOST_COLUMNS: usize = 256;
/// Tiles of rows; a thread accumulates a quarter of them for each of its columns.
const ROW_TILES: [usize; 4] = [4, 8, 16, 32];

/// The family. See the module's documentation.
pub struct ChainFamily;

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Schedule {
    family: String,
    /// Rows of a tile.
    rows: usize,
    /// Whether the weights of all layers stay in shared memory.
    resident: bool,
}

/// A run of columns of one layer with its place in shared memory.
struct Piece {
    layer: usize,
    first: usize,
    columns: usize,
    /// In floats from the start of shared memory.
    offset: usize,
}

struct Layout {
    pieces: Vec<Piece>,
    /// The two activation tiles, then the result tile, in floats.
    activations: [usize; 2],
    result: usize,
    floats: usize,
}

fn padded_inner(inner: usize) -> usize {
    inner.next_multiple_of(4)
}

/// Row stride in floats: an odd multiple of 4, see `tile_product`.
fn stride(inner: usize) -> usize {
    let inner = padded_inner(inner);
    if (inner / 4).is_multiple_of(2) { inner + 4 } else { inner }
}

fn layout(chain: &Chain, rows: usize, resident: bool) -> Layout {
    let widest = chain.layers.iter().map(|layer| stride(layer.inner)).max().unwrap_or(4);
    let columns = chain.layers.last().map_or(0, |layer| layer.columns);
    let activations = [0, rows * widest];
    let result = 2 * rows * widest;
    // The stride of the result is odd, so that a warp reads down a column without bank conflicts.
    let weights = (result + rows * (columns | 1)).next_multiple_of(4);
    let mut pieces = Vec::new();
    let mut floats = weights;
    for (index, layer) in chain.layers.iter().enumerate() {
        for first in (0..layer.columns).step_by(MOST_COLUMNS) {
            let columns = (layer.columns - first).min(MOST_COLUMNS);
            // tile_product reads whole groups of 64 columns.
            let size = columns.next_multiple_of(64) * stride(layer.inner);
            let offset = if resident { floats } else { weights };
            floats = floats.max(offset + size);
            pieces.push(Piece { layer: index, first, columns, offset });
        }
    }
    Layout { pieces, activations, result, floats }
}

/// Blocks of this much shared memory that fit a multiprocessor together; each costs 1 KB beside its own.
fn resident_blocks(shared_bytes: usize, device: &Device) -> usize {
    const RESERVED: usize = 1024;
    ((device.shared_bytes_per_block as usize + RESERVED) / (shared_bytes + RESERVED)).clamp(1, 8)
}

/// The chain of a region, if its weights are f32 in memory and in its products.
fn in_f32(region: &Region) -> Result<Chain, Refusal> {
    let chain = Chain::of(region)?;
    if chain.layers.iter().any(|layer| layer.weight_dtype != DType::F32) {
        let why = "a chain reads its weights from memory as f32".to_owned();
        return Err(Refusal { op: "linear".to_owned(), why, larger: false });
    }
    Ok(chain)
}

impl Family for ChainFamily {
    fn name(&self) -> &'static str {
        NAME
    }

    fn candidates(&self, region: &Region, device: &Device) -> Result<Vec<Candidate>, Refusal> {
        let chain = in_f32(region)?;
        let products: usize = chain.layers.iter().map(|layer| layer.inner * layer.columns).sum();
        let mut work = scalar_work(region.body());
        work.flops += 2.0 * chain.rows as f64 * products as f64;
        let bytes = traffic_bytes(region);
        let floor_us = (bytes / device.memory_bandwidth).max(work.time_us(device));
        let mut candidates = Vec::new();
        for rows in ROW_TILES {
            for resident in [true, false] {
                let shared = 4 * layout(&chain, rows, resident).floats;
                if shared > device.shared_bytes_per_block as usize {
                    continue;
                }
                let tiles = chain.rows.div_ceil(rows) as f64;
                let resident_blocks = resident_blocks(shared, device) as f64;
                let blocks = tiles.min(f64::from(device.multiprocessors) * resident_blocks);
                // Tiles that the busiest multiprocessor works through, and the share of its FMA rate that a tile
                // reaches, which grows with the accumulators of a thread.
                let rounds = (tiles / blocks).ceil() * (blocks / f64::from(device.multiprocessors)).max(1.0);
                let efficiency = match rows {
                    4 => 0.25,
                    8 => 0.35,
                    16 => 0.45,
                    _ => 0.55,
                };
                let tile_us = work.time_us(device) * rows as f64 / chain.rows as f64
                    * f64::from(device.multiprocessors)
                    / efficiency;
                let staging = 4.0 * products as f64 / device.l2_bandwidth_per_multiprocessor;
                let stagings = if resident { 1.0 } else { rounds };
                let time_us =
                    device.launch_us + 1.0 + (rounds * tile_us + stagings * staging).max(memory_us(bytes, device));
                let schedule = Schedule { family: NAME.to_owned(), rows, resident };
                candidates.push(Candidate {
                    family: NAME,
                    schedule: serde_json::to_string(&schedule).unwrap_or_default(),
                    time_us,
                    floor_us,
                    launches: 1,
                    scratch_bytes: 0,
                });
                break; // Weights that fit are always kept.
            }
        }
        if candidates.is_empty() {
            return Err(Refusal {
                op: "linear".to_owned(),
                why: format!(
                    "a tile of rows and {MOST_COLUMNS} columns of weights exceed {} bytes of shared memory",
                    device.shared_bytes_per_block
                ),
                larger: false,
            });
        }
        Ok(candidates)
    }

    fn lower(&self, region: &Region, schedule: &str, device: &Device) -> Result<Lowered, LowerError> {
        let unsuitable =
            |why: String| LowerError::Schedule { family: NAME.to_owned(), schedule: schedule.to_owned(), why };
        let parsed: Schedule = serde_json::from_str(schedule).map_err(|error| unsuitable(error.to_string()))?;
        let chain = in_f32(region).map_err(|refusal| unsuitable(refusal.why))?;
        let layout = layout(&chain, parsed.rows, parsed.resident);
        let shared_bytes = 4 * layout.floats;
        if !ROW_TILES.contains(&parsed.rows) || shared_bytes > device.shared_bytes_per_block as usize {
            return Err(unsuitable("the tile does not fit this device".to_owned()));
        }
        let kernel = emit(region, &chain, &parsed, &layout).map_err(|refusal| unsuitable(refusal.why))?;
        let tiles = chain.rows.div_ceil(parsed.rows);
        let blocks = tiles.min(device.multiprocessors as usize * resident_blocks(shared_bytes, device));
        let body = region.body();
        Ok(Lowered {
            kernels: vec![Kernel {
                source: KernelSource {
                    name: kernel_name(NAME, body),
                    source: translation_unit(&[DEVICE_CODE, &kernel]),
                },
                grid: [blocks as u32, 1, 1],
                block: [THREADS as u32, 1, 1],
                shared_bytes: shared_bytes as u32,
                pointers: all_pointers(body),
                late: None,
                calls_next: true,
            }],
            scratch: Vec::new(),
        })
    }
}

/// A tile of sums in shared memory.
struct Tile {
    layer: Value,
    array: String,
    stride: usize,
}

impl Reader for Tile {
    fn read(&self, value: Value, index: &[Index]) -> Option<String> {
        let Tile { layer, array, stride } = self;
        (value == *layer).then(|| format!("{array}[({} - first_row) * {stride}u + {}]", index[0], index[1]))
    }
}

fn emit(region: &Region, chain: &Chain, schedule: &Schedule, layout: &Layout) -> Result<String, Refusal> {
    let body = region.body();
    let (tile, rows) = (schedule.rows, chain.rows);
    let mut code = String::new();
    let row = Index::variable("row", rows);

    let _ = writeln!(
        code,
        "extern \"C\" __global__ void __launch_bounds__({THREADS}, 2) {}({}) {{",
        kernel_name(NAME, body),
        parameter_list(body, &all_pointers(body))
    );
    let _ = writeln!(
        code,
        "    begin_next();\n    extern __shared__ float4 shared_memory[];\n    float* shared = (float*)shared_memory;"
    );
    let _ = writeln!(code, "    float* result = shared + {};", layout.result);
    let _ = writeln!(code, "    const uint32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;");
    if schedule.resident {
        for piece in &layout.pieces {
            stage(&mut code, 1, chain, piece);
        }
    }
    let tiles = rows.div_ceil(tile);
    let _ = writeln!(code, "    for (uint32 tile = blockIdx.x; tile < {tiles}u; tile += gridDim.x) {{");
    let _ = writeln!(code, "        const uint32 first_row = tile * {tile}u;");

    let first = chain.layers[0];
    let (padded, first_stride) = (padded_inner(first.inner), stride(first.inner));
    let _ = writeln!(code, "        float* input0 = shared + {};", layout.activations[0]);
    let _ = writeln!(
        code,
        "        for (uint32 e = threadIdx.x; e < {}u; e += {THREADS}u) {{\n            \
         const uint32 r = e / {padded}u, k = e % {padded}u, row = first_row + r;\n            float value = 0.0f;\n            \
         if (row < {rows}u && k < {}u) {{",
        tile * padded,
        first.inner
    );
    let mut emitter = Emitter::new(body, &crate::scalar::Memory, 4, "v");
    let value = emitter.element(first.input, &[row.clone(), Index::variable("k", first.inner)])?;
    emitter.line(&format!("value = {value};"));
    code.push_str(&emitter.finish());
    let _ = writeln!(code, "            }}\n            input0[r * {first_stride}u + k] = value;\n        }}");

    for (position, piece) in layout.pieces.iter().enumerate() {
        let layer = chain.layers[piece.layer];
        if schedule.resident {
            let pending = layout.pieces.len() - 1 - position;
            let _ = writeln!(code, "        wait_copies<{pending}>();\n        __syncthreads();");
        } else {
            let _ = writeln!(code, "        __syncthreads();");
            stage(&mut code, 2, chain, piece);
            let _ = writeln!(code, "        wait_copies<0>();\n        __syncthreads();");
        }
        emit_piece(&mut code, chain, piece, layer, layout, tile);
        let ends = layout.pieces.get(position + 1).is_none_or(|following| following.layer != piece.layer);
        if let Some(next) = chain.layers.get(piece.layer + 1).filter(|_| ends) {
            emit_activation(&mut code, region, chain, layer, *next, layout.activations[(piece.layer + 1) % 2], tile)?;
        }
    }

    let last = chain.layers[chain.layers.len() - 1];
    let result_stride = last.columns | 1;
    let column = Index::variable("n", last.columns);
    let target = chain.output_index(body, &row, &column);
    // Consecutive threads follow the output's innermost axis.
    let down_rows = target.last() == Some(&row);
    let (r, n) = if down_rows {
        (format!("e % {tile}u"), format!("e / {tile}u"))
    } else {
        (format!("e / {}u", last.columns), format!("e % {}u", last.columns))
    };
    let _ = writeln!(
        code,
        "        __syncthreads();\n        for (uint32 e = threadIdx.x; e < {}u; e += {THREADS}u) {{\n            \
         const uint32 row = first_row + {r}, n = {n};\n            if (row < {rows}u) {{",
        tile * last.columns
    );
    let reader = Tile { layer: Value::of(last.node), array: "result".to_owned(), stride: result_stride };
    let mut emitter = Emitter::new(body, &reader, 4, "v");
    let element = emitter.stored_element(chain.output, &target)?;
    let output = body.ty(chain.output);
    let address = storage::address(output.dtype, &output.shape, &target);
    emitter.line(&format!("o0[{address}] = {element};"));
    code.push_str(&emitter.finish());
    let _ = writeln!(code, "            }}\n        }}\n        __syncthreads();\n    }}\n}}");
    Ok(code)
}

/// The operand of the next layer, in place of the sums of this one.
fn emit_activation(
    code: &mut String,
    region: &Region,
    chain: &Chain,
    layer: Layer,
    next: Layer,
    offset: usize,
    tile: usize,
) -> Result<(), Refusal> {
    let padded = padded_inner(layer.columns);
    let stride = stride(next.inner);
    let _ = writeln!(
        code,
        "        __syncthreads();\n        for (uint32 e = threadIdx.x; e < {}u; e += {THREADS}u) {{\n            \
         const uint32 r = e / {padded}u, n = e % {padded}u, row = first_row + r;\n            float value = 0.0f;\n            \
         if (row < {}u && n < {}u) {{",
        tile * padded,
        chain.rows,
        layer.columns
    );
    let array = format!("(shared + {offset})");
    let reader = Tile { layer: Value::of(layer.node), array: array.clone(), stride };
    let index = [Index::variable("row", chain.rows), Index::variable("n", layer.columns)];
    let mut emitter = Emitter::new(region.body(), &reader, 4, "v");
    let value = emitter.element(next.input, &index)?;
    emitter.line(&format!("value = {value};"));
    code.push_str(&emitter.finish());
    let _ = writeln!(code, "            }}\n            {array}[r * {stride}u + n] = value;\n        }}");
    Ok(())
}

fn stage(code: &mut String, indent: usize, chain: &Chain, piece: &Piece) {
    let layer = chain.layers[piece.layer];
    let _ = writeln!(
        code,
        "{:width$}stage_weights<{}, {}, {}, {THREADS}>(shared + {}, p{} + {}, {});\n{:width$}commit_copies();",
        "",
        layer.inner,
        padded_inner(layer.inner),
        stride(layer.inner),
        piece.offset,
        layer.weight,
        piece.first * layer.inner,
        piece.columns,
        "",
        width = 4 * indent,
    );
}

fn emit_piece(code: &mut String, chain: &Chain, piece: &Piece, layer: Layer, layout: &Layout, tile: usize) {
    let (thread_rows, groups) = (tile / 4, piece.columns.div_ceil(64));
    let _ = writeln!(code, "        {{\n            float sum[{thread_rows}][{groups}];");
    let _ = writeln!(
        code,
        "            tile_product<{thread_rows}, {groups}, {}, {}>(shared + {}, shared + {}, sum);",
        padded_inner(layer.inner),
        stride(layer.inner),
        layout.activations[piece.layer % 2],
        piece.offset,
    );
    let _ = writeln!(
        code,
        "#pragma unroll\n            for (int i = 0; i < {thread_rows}; i++) {{\n#pragma unroll\n                \
         for (int j = 0; j < {groups}; j++) {{",
    );
    // Sums leave the registers as they are: what becomes of them is a loop over the tile, whose code is small.
    let (target, stride) = match chain.layers.get(piece.layer + 1) {
        None => ("result".to_owned(), layer.columns | 1),
        Some(next) => (format!("(shared + {})", layout.activations[(piece.layer + 1) % 2]), stride(next.inner)),
    };
    let _ = writeln!(
        code,
        "                    const uint32 r = (lane >> 3) + 4 * i, n = {}u + warp * 8 + (lane & 7) + 64 * j;\n                    \
         if (n < {}u) {target}[r * {stride}u + n] = sum[i][j];",
        piece.first, layer.columns
    );
    let _ = writeln!(code, "                }}\n            }}\n        }}");
}
