//! The kernel: what is read, one layer after the other, and where the result goes.

use std::fmt::Write;

use hyenac_ir::{DType, Graph};

use super::NAME;
use super::function::Function;
use super::layout::{FRAGMENT, Layout, OCTET, Placed, STEP_BYTES, Schedule};
use crate::chain::Chain;
use crate::family::Refusal;
use crate::index::Index;
use crate::scalar::{Emitter, Memory, element_type};
use crate::source::{all_pointers, kernel_name, parameter_list};
use crate::storage;

/// Turns of a copying loop that are under way at a time.
const UNROLLED: usize = 4;

/// Where the result goes: along which axis it is stored, how many elements at a time, and the position of a piece.
struct Store {
    along_positions: bool,
    width: usize,
    address: Index,
}

fn store(body: &Graph, chain: &Chain, schedule: &Schedule, columns: usize) -> Store {
    let output = body.ty(chain.output);
    let place =
        |row: &Index, n: &Index| storage::address(output.dtype, &output.shape, &chain.output_index(body, row, n));
    let (row, n) = (Index::variable("row", chain.rows), Index::variable("n", columns));
    let one = Index::constant(1);
    let along_positions = place(&row.plus(&one), &n).distance_from(&place(&row, &n)) == Some(1);
    let along_columns = place(&row, &n.plus(&one)).distance_from(&place(&row, &n)) == Some(1);
    let (extent, tile) = if along_positions { (chain.rows, schedule.positions) } else { (columns, schedule.columns) };
    // What belongs to positions beyond the last, or columns, goes into the padding of the output's rows.
    let whole_rows = chain.output_index(body, &row, &n).last() == Some(if along_positions { &row } else { &n });
    let extent = if whole_rows { storage::pitch(output.dtype, extent) } else { extent };
    let address = |width: usize| {
        let piece = Index::variable("piece", extent / width).times(width as u64);
        if along_positions { place(&piece, &n) } else { place(&row, &piece) }
    };
    let mut width = if along_positions || along_columns { 16 / output.dtype.bytes() } else { 1 };
    while width > 1
        && !(extent.is_multiple_of(width) && tile.is_multiple_of(width) && address(width).is_multiple_of(width as u64))
    {
        width /= 2;
    }
    Store { along_positions, width, address: address(width) }
}

/// The `extern "C"` kernel.
pub fn kernel(body: &Graph, chain: &Chain, schedule: &Schedule, layout: &Layout) -> Result<String, Refusal> {
    let Layout { layers, tile_bytes, walkers, groups, row_tiles, .. } = layout;
    let (positions, rows) = (schedule.positions, chain.rows);
    let last = layers.len() - 1;
    let functions = Function::all(body, chain, layers)?;
    let mut code = String::new();
    for (position, function) in functions.iter().enumerate() {
        code.push_str(&function.declaration(body, position));
    }
    let _ = writeln!(
        code,
        "extern \"C\" __global__ void __launch_bounds__({}, {}) {}({}) {{\n    begin_next();\n    extern __shared__ uint4 shared_memory[];",
        32 * schedule.warps,
        layout.resident,
        kernel_name(NAME, body),
        parameter_list(body, &all_pointers(body))
    );
    let _ = writeln!(
        code,
        "    const uint32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;\n    \
         const uint32 group = blockIdx.x % {groups}u, walker = blockIdx.x / {groups}u;\n    \
         char* const shared = (char*)shared_memory;\n    \
         const uint32 tile0 = shared_address(shared), tile1 = tile0 + {tile_bytes}u;\n    \
         {}* const result = ({0}*)(shared + {}u);",
        element_type(body.ty(chain.output).dtype),
        2 * tile_bytes,
    );
    let group_columns = |position: usize| if position == last { schedule.columns } else { 0 };
    let once = layout.rounds() == 1;
    for (position, (placed, function)) in layers.iter().zip(&functions).enumerate() {
        column(&mut code, 1, position, placed, group_columns(position));
        load(&mut code, position, placed);
        if once {
            hold(&mut code, 1, position, placed, function);
        }
    }
    if once {
        let _ = writeln!(code, "    {{\n        const uint32 tile = walker;");
    } else {
        for (position, placed) in layers.iter().enumerate() {
            fragments(&mut code, 1, position, placed);
        }
        // Registers are for the weights: what belongs to columns is loaded again for every tile.
        let _ = writeln!(
            code,
            "    for (uint32 tile = walker; tile < {row_tiles}u; tile += {walkers}u) {{\n        \
             const uint32 thread = opaque(threadIdx.x), lane = thread % 32, warp = thread / 32;"
        );
    }
    let _ = writeln!(code, "        const uint32 first_row = tile * {positions}u;");
    operand(&mut code, body, chain, schedule, &layers[0])?;
    // Hidden weights become fragments while the sums of the layer before are under way, if that is no loop; the last
    // layer's are not waited for that early.
    let early =
        |position: usize| position > 0 && position < last && layers[position - 1].octets == layers[position - 1].part;
    for (position, placed) in layers.iter().enumerate() {
        let _ = writeln!(code, "        __syncthreads();");
        if !once {
            column(&mut code, 2, position, placed, group_columns(position));
            hold(&mut code, 2, position, placed, &functions[position]);
        } else if !early(position) {
            fragments(&mut code, 2, position, placed);
        }
        let (from, to) = (position % 2, (position + 1) % 2);
        let Placed { layer, octets, part, split, .. } = placed;
        let _ = writeln!(
            code,
            "#pragma unroll {}\n        for (uint32 part = 0; part < {octets}u; part += {part}u) {{\n            \
             const uint32 octet = warp / {}u * {octets}u + part;\n            \
             float x[{part}][{}][4];\n            \
             multiply_layer<{split}, {}, {part}>(x, weight{position}, tile{from} + octet * {STEP_BYTES}u, lane);",
            if position == last && once && *octets <= 4 { 2 } else { 1 },
            placed.column_warps,
            placed.tiles,
            positions / OCTET,
        );
        let next = layers.get(position + 1);
        if let Some(next) = next.filter(|_| once && early(position + 1)) {
            fragments(&mut code, 3, position + 1, next);
        }
        let _ = writeln!(
            code,
            "            apply<{rows}, {}>(x, held{position}, first_row + octet * {OCTET}u, column{position}, lane, {});",
            layer.columns,
            functions[position].object(body, position),
        );
        if let Some(next) = next {
            let _ = writeln!(
                code,
                "            store_layer<{}, {}>(x, tile{to} + octet * {STEP_BYTES}u, column{position}, lane);\n        }}",
                next.split,
                positions / OCTET
            );
        }
    }
    result(&mut code, body, chain, schedule, layout);
    code.push_str("    }\n}\n");
    Ok(code)
}

/// The warp's first column of a layer.
fn column(code: &mut String, indent: usize, position: usize, placed: &Placed, group_columns: usize) {
    let group = if group_columns > 0 { format!("group * {group_columns}u + ") } else { String::new() };
    let _ = writeln!(
        code,
        "{:pad$}const uint32 column{position} = {group}warp % {}u * {}u;",
        "",
        placed.column_warps,
        placed.tiles * FRAGMENT,
        pad = 4 * indent,
    );
}

/// Loads of a layer's weights.
fn load(code: &mut String, position: usize, placed: &Placed) {
    let Placed { layer, tiles, steps, .. } = placed;
    let _ = writeln!(
        code,
        "    uint32 weight{position}[{tiles}][{steps}][8];\n    \
         load_weights<{}, {}>(weight{position}, p{}, column{position}, lane);",
        layer.columns, layer.inner, layer.weight,
    );
}

/// Loads of what a layer's columns have.
fn hold(code: &mut String, indent: usize, position: usize, placed: &Placed, function: &Function) {
    let (Placed { layer, tiles, .. }, extent) = (placed, function.extent());
    let pad = 4 * indent;
    let _ = writeln!(code, "{:pad$}float held{position}[{tiles}][2][{extent}] = {{}};", "");
    if function.held.is_empty() {
        return;
    }
    let _ = writeln!(
        code,
        "#pragma unroll\n{:pad$}for (uint32 i = 0; i < {}u; ++i) {{\n{:pad$}    \
         uint32 n = column{position} + i * 8 + lane / 4;\n{:pad$}    \
         n = n < {}u ? n : {}u;",
        "",
        2 * tiles,
        "",
        "",
        layer.columns,
        layer.columns - 1
    );
    for (slot, (parameter, dtype, address)) in function.held.iter().enumerate() {
        let load = if *dtype == DType::F16 { "load_f16" } else { "load_f32" };
        let _ =
            writeln!(code, "{:pad$}    held{position}[i / 2][i % 2][{slot}] = {load}(p{parameter} + {address});", "");
    }
    let _ = writeln!(code, "{:pad$}}}", "");
}

fn fragments(code: &mut String, indent: usize, position: usize, placed: &Placed) {
    let (split, stored) = (placed.split, placed.layer.stored == DType::F16);
    let _ = writeln!(code, "{:pad$}make_fragments<{split}, {stored}>(weight{position});", "", pad = 4 * indent);
}

/// The head of a loop in which threads share this many elements `e`; the number of turns is a constant.
fn loop_over(elements: usize, schedule: &Schedule) -> String {
    let threads = 32 * schedule.warps;
    let check = if elements.is_multiple_of(threads) {
        String::new()
    } else {
        format!("if (e >= {elements}u) break;\n            ")
    };
    format!(
        "#pragma unroll {UNROLLED}\n        for (uint32 turn = 0; turn < {}u; ++turn) {{\n            \
         const uint32 e = threadIdx.x + turn * {threads}u;\n            {check}",
        elements.div_ceil(threads),
    )
    .trim_end_matches(' ')
    .to_owned()
}

/// The first layer's operand, one element a thread at a time.
fn operand(code: &mut String, body: &Graph, chain: &Chain, schedule: &Schedule, first: &Placed) -> Result<(), Refusal> {
    let (positions, inner) = (schedule.positions, first.layer.inner);
    let _ = writeln!(
        code,
        "{}            \
         const uint32 position = e % {positions}u, k = e / {positions}u;\n            \
         uint32 row = first_row + position;\n            \
         row = row < {}u ? row : {}u;\n            \
         float value = 0.0f;\n            \
         if (k < {inner}u) {{",
        loop_over(positions * first.steps * FRAGMENT, schedule),
        chain.rows,
        chain.rows - 1,
    );
    let mut emitter = Emitter::new(body, &Memory, 4, "v");
    let index = [Index::variable("row", chain.rows), Index::variable("k", inner)];
    let value = emitter.element(first.layer.input, &index)?;
    emitter.line(&format!("value = {value};"));
    code.push_str(&emitter.finish());
    let _ = writeln!(
        code,
        "            }}\n            store_operand<{}>(shared, k, position, value);\n        }}",
        positions / OCTET
    );
    Ok(())
}

/// From the last layer's registers through shared memory to the output.
fn result(code: &mut String, body: &Graph, chain: &Chain, schedule: &Schedule, layout: &Layout) {
    let last = layout.layers.len() - 1;
    let columns = layout.layers[last].layer.columns;
    let bytes = body.ty(chain.output).dtype.bytes();
    let store = store(body, chain, schedule, columns);
    let (inner, outer) = if store.along_positions {
        (schedule.positions, schedule.columns)
    } else {
        (schedule.columns, schedule.positions)
    };
    let pitch = inner + 16 / bytes;
    let (width, pieces) = (store.width, inner / store.width);
    let _ = writeln!(
        code,
        "            stage_result<{}, {pitch}>(x, result, octet * {OCTET}u, column{last} - group * {}u, lane);\n        \
         }}\n        __syncthreads();\n        wait_for_inputs();",
        store.along_positions, schedule.columns,
    );
    let (row, n) = if store.along_positions {
        (
            format!("const uint32 piece = tile * {pieces}u + inner, n = group * {}u + outer;", schedule.columns),
            format!("piece < {}u && n < {columns}u", chain.rows.div_ceil(width)),
        )
    } else {
        (
            format!("const uint32 row = first_row + outer, piece = group * {pieces}u + inner;"),
            format!("row < {}u && piece < {}u", chain.rows, columns.div_ceil(width)),
        )
    };
    let word = match width * bytes {
        16 => "uint4",
        8 => "uint2",
        4 => "uint32",
        _ => "half_bits",
    };
    let _ = writeln!(
        code,
        "{}            \
         const uint32 inner = e % {pieces}u, outer = e / {pieces}u;\n            {row}\n            \
         if ({n}) *({word}*)(o0 + {}) = *(const {word}*)(result + outer * {pitch}u + inner * {width}u);\n        }}",
        loop_over(pieces * outer, schedule),
        store.address,
    );
}
