//! Family `map`: one thread a few adjacent elements. The generic kernel of every op that has a scalar form.

use std::fmt::Write;

use hyenac_ir::{Binding, DType, Graph, Op, Region};
use serde::{Deserialize, Serialize};

use crate::cost::{memory_us, scalar_work, traffic_bytes};
use crate::device::Device;
use crate::error::LowerError;
use crate::family::{Candidate, Family, Kernel, Lowered, Pointer, Refusal};
use crate::index::Index;
use crate::plan::KernelSource;
use crate::scalar::{Emitter, Memory, has_scalar_form};
use crate::source::{all_pointers, kernel_name, parameter_list, translation_unit};
use crate::storage;
use crate::vector::{self, Lanes, element_before_store};

/// The family's name.
pub const NAME: &str = "map";
const THREADS: u32 = 256;
/// A region's share of the launch of a bundle, microseconds.
const BUNDLED_US: f64 = 0.5;
/// Adjacent elements that a thread computes together, where rows allow it.
const WIDTH: usize = 4;
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
        // Regions that only read what the caller gives become one launch.
        let boundary_us =
            if body.node(output.node).binding == Binding::Weights { BUNDLED_US } else { device.launch_us };
        let floor_us = (bytes / device.memory_bandwidth).max(work.time_us(device));
        Ok(vec![Candidate {
            family: NAME,
            schedule: format!("{{\"family\":\"{NAME}\"}}"),
            time_us: boundary_us + memory_us(moved, device).max(arithmetic),
            floor_us,
            launches: 1,
            scratch_bytes: 0,
        }])
    }

    fn lower(&self, region: &Region, schedule: &str, _: &Device) -> Result<Lowered, LowerError> {
        let unsuitable =
            |why: String| LowerError::Schedule { family: NAME.to_owned(), schedule: schedule.to_owned(), why };
        let parsed: Schedule = serde_json::from_str(schedule).map_err(|error| unsuitable(error.to_string()))?;
        if parsed.family != NAME {
            return Err(unsuitable("belongs to another family".to_owned()));
        }
        let kernel = bundle(&[region]).map_err(|refusal| unsuitable(refusal.why))?;
        Ok(Lowered { kernels: vec![kernel], scratch: Vec::new() })
    }
}

/// One kernel for several regions of this family that depend on nothing of each other: each has blocks of its own.
/// Operands and outputs are counted through, region after region.
pub fn bundle(regions: &[&Region]) -> Result<Kernel, Refusal> {
    let (mut parts, mut calls) = (String::new(), String::new());
    let (mut parameters, mut pointers) = (Vec::new(), Vec::new());
    let (mut operands, mut outputs, mut first_block) = (0, 0, 0);
    for (number, region) in regions.iter().enumerate() {
        let body = region.body();
        let own = all_pointers(body);
        let list = parameter_list(body, &own);
        let (code, blocks) = part(number, body, &list)?;
        parts.push_str(&code);
        let mut arguments = Vec::new();
        for (declaration, pointer) in list.split(", ").zip(&own) {
            let (ty, _) = declaration.rsplit_once(' ').unwrap_or((declaration, ""));
            let (pointer, name) = match *pointer {
                Pointer::Operand(operand) => (Pointer::Operand(operands + operand), format!("p{}", operands + operand)),
                Pointer::Output(output) => (Pointer::Output(outputs + output), format!("o{}", outputs + output)),
                Pointer::Scratch(scratch) => (Pointer::Scratch(scratch), format!("s{scratch}")),
            };
            parameters.push(format!("{ty} {name}"));
            pointers.push(pointer);
            arguments.push(name);
        }
        operands += body.parameters().len();
        outputs += body.outputs().len();
        let condition = match (number, first_block) {
            (0, _) if regions.len() == 1 => String::new(),
            _ if number + 1 == regions.len() => "else ".to_owned(),
            (0, _) => format!("if (blockIdx.x < {blocks}u) "),
            _ => format!("else if (blockIdx.x < {}u) ", first_block + blocks),
        };
        let _ = writeln!(calls, "    {condition}part{number}({}, blockIdx.x - {first_block}u);", arguments.join(", "));
        first_block += blocks;
    }
    let name = match regions {
        [region] => kernel_name(NAME, region.body()),
        _ => format!("{NAME}_bundle_of_{}", regions.len()),
    };
    let entry = format!(
        "extern \"C\" __global__ void __launch_bounds__({THREADS}) {name}({}) {{\n    begin_next();\n{calls}}}\n",
        parameters.join(", ")
    );
    Ok(Kernel {
        source: KernelSource { source: translation_unit(&[vector::DEVICE_CODE, &parts, &entry]), name },
        grid: [first_block, 1, 1],
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        pointers,
        late: None,
        calls_next: true,
    })
}

/// The function `part` of one region, and its number of blocks.
fn part(number: usize, body: &Graph, parameters: &str) -> Result<(String, u32), Refusal> {
    let &[output] = body.outputs() else {
        let why = format!("map writes one output, not {}", body.outputs().len());
        return Err(Refusal { op: "region".to_owned(), why, larger: false });
    };
    let ty = body.ty(output);
    // Adjacent elements of a row together, so that memory is read and written in wide words.
    let extent = ty.shape.last().copied().unwrap_or(1);
    let pitch = storage::pitch(ty.dtype, extent);
    let width = if pitch.is_multiple_of(WIDTH) && ty.dtype != DType::C64 && ty.rank() > 0 { WIDTH } else { 1 };
    let ragged = !extent.is_multiple_of(width);
    // The groups of a row, of which the last may lie half in its padding.
    let row = extent.div_ceil(width);
    let groups = ty.elements() / extent * row;
    let blocks = (groups as u64).div_ceil(u64::from(THREADS)).min(MOST_BLOCKS) as u32;
    let item = Index::variable("i", groups);
    let statements = if width == 1 {
        let mut emitter = Emitter::new(body, &Memory, 2, "v");
        let element = emitter.stored_element(output, &item.unflatten(&ty.shape))?;
        emitter.line(&format!("o0[{item}] = {element};"));
        emitter.finish()
    } else {
        let mut shape = ty.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = row;
        }
        let index = item.unflatten(&shape);
        let lane = index.last().map_or_else(|| item.clone(), |last| last.times(width as u64));
        let lanes = Lanes {
            body,
            lane: lane.clone(),
            ragged,
            width,
            reader: &Memory,
            roots: vec![output],
            provided: Vec::new(),
            indent: 2,
        };
        // Without padding between them, groups follow one another.
        let address = if row * width == pitch {
            item.times(width as u64)
        } else {
            let mut first = index.clone();
            if let Some(last) = first.last_mut() {
                *last = lane.clone();
            }
            storage::address(ty.dtype, &ty.shape, &first)
        };
        let group = lanes.emit(|emitter, number| {
            let mut index = index.clone();
            if let Some(last) = index.last_mut() {
                *last = lanes.index(number);
            }
            element_before_store(emitter, body, output, &index)
        })?;
        let mut text = String::new();
        if group.words > 0 {
            let _ = writeln!(text, "        uint32 raw[{}];", group.words);
        }
        let _ = write!(
            text,
            "{}        float y[{width}];\n{}        store_group(o0 + {}, y);\n",
            group.fetch(2),
            group.assign("y", 2),
            address
        );
        text
    };
    // 32-bit indices as long as the stride past the end cannot wrap around.
    let wide = storage::elements(ty.dtype, &ty.shape) as u64 + width as u64 * u64::from(blocks) * u64::from(THREADS)
        > u64::from(u32::MAX);
    let (index, suffix) = if wide { ("uint64", "ull") } else { ("uint32", "u") };
    let code = format!(
        "__device__ __forceinline__ void part{number}({parameters}, uint32 block) {{\n    \
         for ({index} i = ({index})block * {THREADS}u + threadIdx.x; i < {groups}{suffix}; i += ({index}){blocks}u * {THREADS}u) {{\n\
         {statements}    }}\n}}\n"
    );
    Ok((code, blocks))
}
