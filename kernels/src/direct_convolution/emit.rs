//! The emitted part of a translation unit: shape, schedule, the region's expressions, the kernel.

use std::fmt::Write;

use hyenac_ir::{DType, Graph, Op, Region, Value};

use super::geometry::{Geometry, Operands, Schedule};
use super::recognise::Convolution;
use super::vectors::{FromVectors, WIDTH, vectors};
use crate::family::Refusal;
use crate::index::Index;
use crate::scalar::{Emitter, Memory, Reader};
use crate::source::{all_pointers, parameter_list};
use crate::storage;

/// Registers that let two blocks of eight warps, or as many smaller ones, share a multiprocessor.
const RESIDENT_WARPS: usize = 16;

/// The emitted part.
pub fn kernel(
    region: &Region,
    convolution: &Convolution,
    schedule: &Schedule,
    geometry: &Geometry,
    name: &str,
) -> Result<String, Refusal> {
    let body = region.body();
    let Convolution { batches, channels, length, .. } = *convolution;
    let operands = schedule.operands.name();
    let mut code = String::new();
    let _ = writeln!(
        code,
        "struct Shape {{\n    \
         static constexpr uint32 CHANNELS = {channels}, BATCHES = {batches}, LENGTH = {length};\n    \
         static constexpr uint32 WIDTH = {width}, POSITIONS = {positions}, GROUP = {group}, WARPS = {warps};\n    \
         static constexpr uint32 BLOCK_CHANNELS = {block_channels}, BLOCK_BATCHES = {block_batches}, SPLITS = {splits};\n\
         }};\n",
        width = geometry.width,
        positions = schedule.positions,
        group = schedule.group,
        warps = schedule.warps,
        block_channels = schedule.channels,
        block_batches = schedule.batches,
        splits = schedule.splits,
    );

    code.push_str(&operation(region, convolution, geometry.width, schedule.operands == Operands::F16)?);
    let parameters = parameter_list(body, &all_pointers(body));
    let arguments: Vec<&str> = parameters.split(", ").filter_map(|one| one.split(' ').next_back()).collect();
    let _ = writeln!(
        code,
        "extern \"C\" __global__ void __launch_bounds__({threads}, {resident}) {name}({parameters}) {{\n    \
         direct_convolution_{operands}<Shape>(Operation{{{arguments}}});\n}}",
        threads = 32 * schedule.warps,
        resident = RESIDENT_WARPS / schedule.warps,
        arguments = arguments.join(", "),
    );
    Ok(code)
}

/// The struct `Operation`: the region's expressions for `width` adjacent elements of the signal and of the filter, which
/// the kernel rounds to f16 itself where they are `rounded`, and for what becomes of the convolution's result.
pub fn operation(region: &Region, convolution: &Convolution, width: usize, rounded: bool) -> Result<String, Refusal> {
    let body = region.body();
    let mut code = String::new();
    let pointers = all_pointers(body);
    let parameters = parameter_list(body, &pointers);
    let _ = writeln!(code, "struct Operation {{\n    {};\n", parameters.replace(", ", ";\n    "));
    let places = Places::new(convolution, width);
    let _ = writeln!(
        code,
        "    __device__ __forceinline__ void signal(uint32 batch, uint32 channel, uint32 strip, float (&value)[{width}]) \
         const {{"
    );
    code.push_str(&operand(body, convolution.signal, rounded, places.ragged, &places.signal())?);
    let _ = writeln!(
        code,
        "    }}\n    __device__ __forceinline__ void filter(uint32 channel, uint32 strip, float (&value)[{width}]) const {{"
    );
    code.push_str(&operand(body, convolution.filter, rounded, places.ragged, &places.filter())?);
    let _ = writeln!(
        code,
        "    }}\n    __device__ __forceinline__ void finish(uint32 batch, uint32 channel, uint32 strip, \
         const float (&y)[{width}], bool inside) const {{"
    );
    for (position, &output) in body.outputs().iter().enumerate() {
        code.push_str(&finish(body, convolution, position, output, &places)?);
    }
    code.push_str("    }\n};\n\n");

    Ok(code)
}

/// The positions along time that one call of an emitted function handles.
struct Places {
    /// Whether the last ones may lie beyond the sequence.
    ragged: bool,
    batch: Index,
    channel: Index,
    times: Vec<Index>,
}

impl Places {
    fn new(convolution: &Convolution, width: usize) -> Places {
        let start = Index::variable("strip", convolution.length.div_ceil(width)).times(width as u64);
        Places {
            ragged: !convolution.length.is_multiple_of(width),
            batch: Index::variable("batch", convolution.batches),
            channel: Index::variable("channel", convolution.channels),
            times: (0..width).map(|j| start.plus(&Index::constant(j as u64))).collect(),
        }
    }

    fn signal(&self) -> Vec<Vec<Index>> {
        self.times.iter().map(|time| vec![self.batch.clone(), self.channel.clone(), time.clone()]).collect()
    }

    fn filter(&self) -> Vec<Vec<Index>> {
        self.times.iter().map(|time| vec![self.channel.clone(), time.clone()]).collect()
    }
}

/// The value without its last cast, which the kernel's own rounding repeats.
fn before_cast(body: &Graph, value: Value) -> Value {
    match body.op(value) {
        Op::Cast { .. } => body.operand(value.node, 0),
        _ => value,
    }
}

/// Statements that compute `value[..]`, an operand of the convolution.
fn operand(body: &Graph, value: Value, rounded: bool, ragged: bool, indices: &[Vec<Index>]) -> Result<String, Refusal> {
    let source = if rounded { before_cast(body, value) } else { value };
    let vectors = vectors(body, source, indices, ragged, &Memory)?;
    let reader = FromVectors { body, vectors: &vectors, ragged, provided: &Memory };
    let mut emitter = Emitter::new(body, &reader, 2, "x");
    for (number, vector) in vectors.iter().enumerate() {
        emitter.line(&vector.load(number));
    }
    for (position, index) in indices.iter().enumerate() {
        let element = emitter.element(source, index)?;
        emitter.line(&format!("value[{position}] = {element};"));
    }
    Ok(emitter.finish())
}

/// The convolution's own result, which the kernel hands over.
struct Sums<'a> {
    convolution: &'a Convolution,
    indices: &'a [Vec<Index>],
}

impl Reader for Sums<'_> {
    fn read(&self, value: Value, index: &[Index]) -> Option<String> {
        if value.node != self.convolution.node {
            return None;
        }
        self.indices.iter().position(|known| known == index).map(|position| format!("y[{position}]"))
    }
}

/// Statements that compute and store one output of the region.
fn finish(
    body: &Graph,
    convolution: &Convolution,
    number: usize,
    output: Value,
    places: &Places,
) -> Result<String, Refusal> {
    let conv_indices = places.signal();
    let axes = &convolution.axes[number];
    let indices: Vec<Vec<Index>> =
        conv_indices.iter().map(|index| axes.iter().map(|&axis| index[axis].clone()).collect()).collect();
    let ty = body.ty(output);
    let source = before_cast(body, output);
    let result = Sums { convolution, indices: &conv_indices };
    let ragged = places.ragged;
    let vectors = vectors(body, source, &indices, ragged, &result)?;
    let reader = FromVectors { body, vectors: &vectors, ragged, provided: &result };

    // A scope of its own: outputs do not share variables.
    let mut emitter = Emitter::new(body, &reader, 3, "x");
    for (position, vector) in vectors.iter().enumerate() {
        emitter.line(&vector.load(position));
    }
    let mut elements = Vec::new();
    for index in &indices {
        let element = emitter.element(source, index)?;
        elements.push(if ty.dtype == DType::Tf32 { format!("round_tf32({element})") } else { element });
    }
    let flat: Vec<Index> = indices.iter().map(|index| storage::address(ty.dtype, &ty.shape, index)).collect();
    // What lies beyond the sequence goes into the padding of a row, or nowhere.
    let contiguous = elements.len() == WIDTH
        && (!ragged || flat[WIDTH - 1].bound() <= storage::elements(ty.dtype, &ty.shape) as u64)
        && flat[0].is_multiple_of(WIDTH as u64)
        && flat[WIDTH - 1].distance_from(&flat[0]) == Some(WIDTH as u64 - 1);
    emitter.line("if (inside) {");
    let e = &elements;
    match (contiguous, ty.dtype) {
        (true, DType::F16) => emitter.line(&format!(
            "    store_eight(o{number} + {}, to_half2({}, {}), to_half2({}, {}), to_half2({}, {}), to_half2({}, {}));",
            flat[0], e[0], e[1], e[2], e[3], e[4], e[5], e[6], e[7]
        )),
        (true, _) => {
            emitter.line(&format!("    store_four(o{number} + {}, {}, {}, {}, {});", flat[0], e[0], e[1], e[2], e[3]));
            emitter.line(&format!("    store_four(o{number} + {}, {}, {}, {}, {});", flat[4], e[4], e[5], e[6], e[7]));
        }
        (false, dtype) => {
            for ((flat, element), time) in flat.iter().zip(e).zip(&places.times) {
                let element = if dtype == DType::F16 { format!("to_half({element})") } else { element.clone() };
                let guard = if ragged { format!("if ({time} < {}u) ", convolution.length) } else { String::new() };
                emitter.line(&format!("    {guard}o{number}[{flat}] = {element};"));
            }
        }
    }
    emitter.line("}");
    Ok(format!("        {{\n{}        }}\n", emitter.finish()))
}
