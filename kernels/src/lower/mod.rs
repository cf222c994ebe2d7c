//! From a graph of regions to a plan.

mod overlap;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use hyenac_ir::{Binding, Graph, NodeIndex, Op, Region, Value};

use crate::arena::{Tenant, place};
use crate::device::Device;
use crate::error::LowerError;
use crate::family::{Candidate, Kernel, Pointer};
use crate::plan::{Argument, Buffer, KernelSource, Launch, Place, Plan};
use crate::registry::lower_region;
use crate::storage;
use overlap::{Overlap, open_with_one};

/// The most launches of one plan, far above any block's.
pub const MAX_LAUNCHES: usize = 4096;

/// When values that depend on weights only are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// With every call: the weights are inputs too.
    Live,
    /// Once, when the weights are bound.
    Frozen,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    Setup,
    Main,
}

/// What the launches of a region have in common.
struct About<'a> {
    candidate: &'a Candidate,
    computes: String,
}

struct Builder<'a> {
    device: &'a Device,
    kernels: Vec<KernelSource>,
    buffers: Vec<Buffer>,
    setup: Vec<Launch>,
    main: Vec<Launch>,
    /// Per launch of `main`.
    overlap: Vec<Overlap>,
    /// Per buffer: the list and index of the launch that writes it last.
    writer: Vec<Option<(List, usize)>>,
}

/// Lowers a graph whose nodes are inputs, weights and regions.
///
/// # Errors
/// When a region has no kernel, or the graph has other nodes.
pub fn lower(graph: &Graph, device: &Device, mode: Mode) -> Result<Plan, LowerError> {
    let mut builder = Builder {
        device,
        kernels: Vec::new(),
        buffers: Vec::new(),
        setup: Vec::new(),
        main: Vec::new(),
        overlap: Vec::new(),
        writer: Vec::new(),
    };
    let bundled = bundled_maps(graph, device, mode)?;
    let mut bundle = Vec::new();
    let mut buffer_of: BTreeMap<Value, usize> = BTreeMap::new();
    // What is given comes first, then the bundle that reads nothing else, then the rest in the graph's order.
    let mut order: Vec<NodeIndex> = graph.nodes().collect();
    order.sort_by_key(|node| match &graph.node(*node).op {
        Op::Region(_) if !bundled.contains(node) => 2,
        Op::Region(_) => 1,
        _ => 0,
    });
    for node in order {
        let operands: Vec<usize> = graph.operands(node).iter().map(|operand| buffer_of[operand]).collect();
        match &graph.node(node).op {
            Op::Input { name, .. } => {
                let buffer = builder.buffer(name, graph, Value::of(node), Place::Input(name.clone()));
                buffer_of.insert(Value::of(node), buffer);
            }
            Op::Weight { name, .. } => {
                let buffer = builder.buffer(name, graph, Value::of(node), Place::Weight(name.clone()));
                buffer_of.insert(Value::of(node), buffer);
            }
            Op::Region(region) => {
                let frozen = mode == Mode::Frozen && graph.node(node).binding == Binding::Weights;
                let list = if frozen { List::Setup } else { List::Main };
                let mut outputs = Vec::new();
                for output in 0..graph.node(node).types.len() {
                    let value = Value { node, output: output as u32 };
                    let place = match graph.outputs().iter().position(|&out| out == value) {
                        Some(position) => Place::Output(position),
                        None => Place::Arena(0),
                    };
                    let name = format!("v{}", builder.buffers.len());
                    let buffer = builder.buffer(&name, graph, value, place);
                    buffer_of.insert(value, buffer);
                    outputs.push(buffer);
                }
                if bundled.contains(&node) {
                    bundle.push((region.as_ref(), operands, outputs));
                    if bundle.len() == bundled.len() {
                        builder.bundle(&bundle)?;
                    }
                } else {
                    builder.region(region, &operands, &outputs, list)?;
                }
            }
            op => {
                return Err(LowerError::Ir(hyenac_ir::IrError::Invalid {
                    node: node.index(),
                    op: op.mnemonic(),
                    why: "only inputs, weights and regions can be lowered".to_owned(),
                }));
            }
        }
    }
    for &output in graph.outputs() {
        if !matches!(graph.op(output), Op::Region(_)) {
            return Err(LowerError::Ir(hyenac_ir::IrError::Invalid {
                node: output.node.index(),
                op: graph.op(output).mnemonic(),
                why: "an output must be computed by a region".to_owned(),
            }));
        }
    }
    Ok(builder.finish())
}

/// Regions of the family `map` that only read live weights, where there are several: one launch does them all, so that
/// packing weights costs one boundary.
fn bundled_maps(graph: &Graph, device: &Device, mode: Mode) -> Result<Vec<NodeIndex>, LowerError> {
    let mut maps = Vec::new();
    for node in graph.nodes() {
        let Op::Region(region) = &graph.node(node).op else { continue };
        let given = |operand: &Value| matches!(graph.op(*operand), Op::Input { .. } | Op::Weight { .. });
        let of_main = mode == Mode::Live && graph.node(node).binding == Binding::Weights;
        if of_main && graph.operands(node).iter().all(given) && maps.len() < MOST_BUNDLED {
            let (candidate, _) = lower_region(region, device)?;
            if candidate.family == crate::map::NAME {
                maps.push(node);
            }
        }
    }
    Ok(if maps.len() > 1 { maps } else { Vec::new() })
}

impl Builder<'_> {
    fn buffer(&mut self, name: &str, graph: &Graph, value: Value, place: Place) -> usize {
        let ty = graph.ty(value);
        self.push_buffer(Buffer { name: name.to_owned(), ty: ty.to_string(), bytes: storage::bytes(ty) as u64, place })
    }

    fn push_buffer(&mut self, buffer: Buffer) -> usize {
        self.buffers.push(buffer);
        self.writer.push(None);
        self.buffers.len() - 1
    }

    fn launches(&mut self, list: List) -> &mut Vec<Launch> {
        match list {
            List::Setup => &mut self.setup,
            List::Main => &mut self.main,
        }
    }

    fn region(
        &mut self,
        region: &hyenac_ir::Region,
        operands: &[usize],
        outputs: &[usize],
        list: List,
    ) -> Result<(), LowerError> {
        let (candidate, lowered) = lower_region(region, self.device)?;
        let scratch: Vec<usize> = lowered
            .scratch
            .iter()
            .map(|&bytes| {
                let name = format!("v{}_scratch", self.buffers.len());
                self.push_buffer(Buffer { name, ty: "bytes".to_owned(), bytes, place: Place::Arena(0) })
            })
            .collect();
        let about = About { candidate: &candidate, computes: region.describe() };
        for (position, kernel) in lowered.kernels.into_iter().enumerate() {
            self.kernel(kernel, position, &about, [operands, outputs, &scratch], list)?;
        }
        Ok(())
    }

    /// Several maps as one launch of the main list.
    fn bundle(&mut self, maps: &[(&Region, Vec<usize>, Vec<usize>)]) -> Result<(), LowerError> {
        let regions: Vec<&Region> = maps.iter().map(|(region, ..)| *region).collect();
        let describe = || regions.iter().map(|region| region.describe()).collect::<Vec<_>>().join("; ");
        let mut together: Option<Candidate> = None;
        for region in &regions {
            let (candidate, _) = lower_region(region, self.device)?;
            let sum = together.get_or_insert(Candidate { time_us: 0.0, floor_us: 0.0, ..candidate.clone() });
            sum.time_us += candidate.time_us;
            sum.floor_us += candidate.floor_us;
        }
        let Some(candidate) = together else { return Ok(()) };
        let kernel = crate::map::bundle(&regions)
            .map_err(|refusal| LowerError::Refused { region: describe(), why: refusal.why })?;
        let operands: Vec<usize> = maps.iter().flat_map(|(_, operands, _)| operands.clone()).collect();
        let outputs: Vec<usize> = maps.iter().flat_map(|(.., outputs)| outputs.clone()).collect();
        let about = About { candidate: &candidate, computes: describe() };
        self.kernel(kernel, 0, &about, [&operands, &outputs, &[]], List::Main)
    }

    fn calls_next(&self, list: List, launch: usize) -> bool {
        list == List::Main && self.overlap.get(launch).is_some_and(|overlap| overlap.calls_next)
    }

    /// Appends a launch: the `position`-th kernel of what `about` describes, on these operands, outputs and scratch.
    fn kernel(
        &mut self,
        kernel: Kernel,
        position: usize,
        about: &About<'_>,
        [operands, outputs, scratch]: [&[usize]; 3],
        list: List,
    ) -> Result<(), LowerError> {
        let index = self.kernels.iter().position(|known| *known == kernel.source).unwrap_or_else(|| {
            self.kernels.push(kernel.source);
            self.kernels.len() - 1
        });
        let arguments: Vec<Argument> = kernel
            .pointers
            .iter()
            .map(|pointer| match *pointer {
                Pointer::Operand(operand) => Argument { buffer: operands[operand], offset: 0, writes: false },
                Pointer::Output(output) => Argument { buffer: outputs[output], offset: 0, writes: true },
                Pointer::Scratch(which) => Argument { buffer: scratch[which], offset: 0, writes: true },
            })
            .collect();
        let this = self.launches(list).len();
        if this >= MAX_LAUNCHES {
            return Err(LowerError::Limit {
                what: "the number of launches".to_owned(),
                needed: this as u64 + 1,
                limit: MAX_LAUNCHES as u64,
            });
        }
        let mut after: Vec<usize> = arguments
            .iter()
            .filter_map(|argument| self.writer[argument.buffer])
            .filter_map(|(writer_list, writer)| (writer_list == list).then_some(writer))
            .collect();
        if position > 0 {
            after.push(this - 1);
        }
        after.sort_unstable();
        after.dedup();
        let late = kernel.late.filter(|_| self.device.overlaps_launches());
        // A launch may begin early if all that it reads of another is read late.
        let read_late = |(argument, pointer): (&Argument, &Pointer)| match (&late, pointer) {
            (Some(late), Pointer::Operand(operand)) => late.contains(operand),
            (Some(_), _) => argument.writes,
            (None, _) => false,
        };
        let early = after.iter().copied().filter(|&writer| {
            let written = |argument: &Argument| self.writer[argument.buffer] == Some((list, writer));
            late.is_some()
                && self.calls_next(list, writer)
                && arguments.iter().zip(&kernel.pointers).all(|pair| !written(pair.0) || read_late(pair))
        });
        let early = early.collect();
        for argument in arguments.iter().filter(|argument| argument.writes) {
            self.writer[argument.buffer] = Some((list, this));
        }
        let first = position == 0;
        self.launches(list).push(Launch {
            kernel: index,
            grid: kernel.grid,
            block: kernel.block,
            shared_bytes: kernel.shared_bytes,
            arguments,
            after,
            early,
            family: about.candidate.family.to_owned(),
            schedule: about.candidate.schedule.clone(),
            predicted_us: if first { about.candidate.time_us } else { 0.0 },
            floor_us: if first { about.candidate.floor_us } else { 0.0 },
            computes: about.computes.clone(),
        });
        if list == List::Main {
            self.overlap.push(Overlap { waits: late.is_some(), calls_next: kernel.calls_next });
        }
        Ok(())
    }

    fn finish(mut self) -> Plan {
        open_with_one(&mut self.main, &self.overlap);
        let users = |launches: &[Launch], buffer: usize| -> Vec<usize> {
            let uses = |launch: &Launch| launch.arguments.iter().any(|argument| argument.buffer == buffer);
            (0..launches.len()).filter(|&launch| uses(&launches[launch])).collect()
        };
        let (mut call, mut setup, mut frozen_bytes) = (Vec::new(), Vec::new(), 0);
        for buffer in 0..self.buffers.len() {
            if self.buffers[buffer].place != Place::Arena(0) {
                continue;
            }
            let in_setup = users(&self.setup, buffer);
            let in_main = users(&self.main, buffer);
            let bytes = self.buffers[buffer].bytes;
            match (in_setup.is_empty(), in_main.is_empty()) {
                (true, _) => call.push((buffer, Tenant { bytes, launches: in_main })),
                (false, true) => setup.push((buffer, Tenant { bytes, launches: in_setup })),
                (false, false) => {
                    self.buffers[buffer].place = Place::Frozen(frozen_bytes);
                    frozen_bytes += bytes.next_multiple_of(crate::plan::ALIGNMENT);
                }
            }
        }
        let tenants = |list: &[(usize, Tenant)]| list.iter().map(|(_, tenant)| tenant.clone()).collect::<Vec<_>>();
        let call_placement = place(&self.main, &tenants(&call));
        for ((buffer, _), offset) in call.iter().zip(&call_placement.offsets) {
            self.buffers[*buffer].place = Place::Arena(*offset);
        }
        let setup_placement = place(&self.setup, &tenants(&setup));
        for ((buffer, _), offset) in setup.iter().zip(&setup_placement.offsets) {
            self.buffers[*buffer].place = Place::SetupArena(*offset);
        }
        Plan {
            device: self.device.clone(),
            kernels: self.kernels,
            buffers: self.buffers,
            setup: self.setup,
            launches: self.main,
            arena_bytes: call_placement.bytes,
            frozen_bytes,
            setup_arena_bytes: setup_placement.bytes,
            largest_live_bytes: call_placement.largest_live_bytes,
        }
    }
}

/// Maps of one launch.
const MOST_BUNDLED: usize = 16;
