//! From a graph of regions to a plan.

use std::collections::BTreeMap;

use hyenac_ir::{Binding, Graph, NodeIndex, Op, Region, Value};

use crate::arena::{Tenant, place};
use crate::device::Device;
use crate::error::LowerError;
use crate::family::{Candidate, Kernel, Pointer};
use crate::plan::{Argument, Buffer, KernelSource, Launch, Place, Plan};
use crate::registry::lower_region;
use crate::storage;

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

/// What a launch does so that launches may overlap.
#[derive(Clone, Copy)]
struct Overlap {
    /// Its blocks wait for the launches before it.
    waits: bool,
    /// Its blocks let the next launches begin.
    calls_next: bool,
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
    // What the caller gives and gets has no padding between rows.
    let given = graph.nodes().filter(|&node| matches!(graph.node(node).op, Op::Input { .. } | Op::Weight { .. }));
    for value in given.map(Value::of).chain(graph.outputs().iter().copied()) {
        if storage::bytes(graph.ty(value)) != graph.ty(value).bytes() {
            return Err(LowerError::Ir(hyenac_ir::IrError::Invalid {
                node: value.node.index(),
                op: graph.op(value).mnemonic(),
                why: format!("{} is no input, weight or output: rows of f16 are padded in memory", graph.ty(value)),
            }));
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

/// The longest launch that others are made to wait for, so that a graph begins with one node, microseconds.
const LONGEST_OPENER_US: f64 = 5.0;

/// Makes the root that most launches wait for the only one, and the first launch; among several the shortest.
///
/// A graph that forks at its root takes about 2 us longer than one whose first node forks (measured on an H200), more
/// than a short kernel in front of the others costs.
fn open_with_one(launches: &mut Vec<Launch>, overlap: &[Overlap]) {
    let roots: Vec<usize> = (0..launches.len()).filter(|&launch| launches[launch].after.is_empty()).collect();
    let dependents = |root: usize| launches.iter().filter(|launch| launch.after.contains(&root)).count();
    let by_use = |&a: &usize, &b: &usize| {
        let shorter = || launches[a].predicted_us.total_cmp(&launches[b].predicted_us);
        dependents(b).cmp(&dependents(a)).then_with(shorter)
    };
    let Some(opener) = roots
        .iter()
        .copied()
        .min_by(by_use)
        .filter(|&opener| roots.len() > 1 && launches[opener].predicted_us <= LONGEST_OPENER_US)
    else {
        return;
    };
    let first = launches.remove(opener);
    launches.insert(0, first);
    let calls_next = overlap.get(opener).is_some_and(|opener| opener.calls_next);
    let others = overlap.iter().enumerate().filter(|(launch, _)| *launch != opener);
    for (launch, (_, overlap)) in launches[1..].iter_mut().zip(others) {
        for after in launch.after.iter_mut().chain(&mut launch.early) {
            *after = match (*after).cmp(&opener) {
                std::cmp::Ordering::Equal => 0,
                std::cmp::Ordering::Less => *after + 1,
                std::cmp::Ordering::Greater => *after,
            };
        }
        launch.after.sort_unstable();
        launch.early.sort_unstable();
        if launch.after.is_empty() {
            launch.after.push(0);
            // It reads nothing of the opener: it has only to end after it.
            if overlap.waits && calls_next {
                launch.early.push(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hyenac_ir::{Binding, DType, Region};

    use super::*;
    use crate::testing::{Body, block_head, block_tail, packing};

    fn elementwise(op: Op, shapes: &[&[usize]], binding: Binding) -> Region {
        let mut body = Graph::new();
        let operands: Vec<Value> = shapes
            .iter()
            .enumerate()
            .map(|(index, shape)| {
                let op = Op::Parameter { index, dtype: DType::F32, shape: shape.to_vec(), binding };
                body.add(op, &[]).unwrap()
            })
            .collect();
        let output = body.add(op, &operands).unwrap();
        body.add_output(output);
        Region::new(body)
    }

    /// y = (x + |w|) + sin(x + |w|)
    fn graph() -> Graph {
        let mut graph = Graph::new();
        let x = graph.add(Op::Input { name: "x".into(), dtype: DType::F32, shape: vec![4, 8] }, &[]).unwrap();
        let w = graph.add(Op::Weight { name: "w".into(), dtype: DType::F32, shape: vec![8] }, &[]).unwrap();
        let rate = graph.add_region(elementwise(Op::Abs {}, &[&[8]], Binding::Weights), &[w]).unwrap();
        let sum =
            graph.add_region(elementwise(Op::Add {}, &[&[4, 8], &[8]], Binding::Input), &[x, Value::of(rate)]).unwrap();
        let sine = graph.add_region(elementwise(Op::Sin {}, &[&[4, 8]], Binding::Input), &[Value::of(sum)]).unwrap();
        let y = graph
            .add_region(
                elementwise(Op::Add {}, &[&[4, 8], &[4, 8]], Binding::Input),
                &[Value::of(sum), Value::of(sine)],
            )
            .unwrap();
        graph.add_output(Value::of(y));
        graph
    }

    #[test]
    fn live_weights_are_computed_with_every_call() {
        let plan = lower(&graph(), &Device::h200(), Mode::Live).unwrap();
        assert_eq!((plan.setup.len(), plan.launches.len()), (0, 4));
        let after: Vec<&[usize]> = plan.launches.iter().map(|launch| &launch.after[..]).collect();
        assert_eq!(after, [&[][..], &[0], &[1], &[1, 2]]);
    }

    #[test]
    fn frozen_weights_move_what_depends_on_them_alone_to_the_setup() {
        let plan = lower(&graph(), &Device::h200(), Mode::Frozen).unwrap();
        assert_eq!((plan.setup.len(), plan.launches.len()), (1, 3));
        let written = plan.setup[0].arguments.iter().find(|argument| argument.writes).unwrap().buffer;
        assert_eq!(plan.buffers[written].place, Place::Frozen(0));
        assert!(plan.launches[0].after.is_empty());
    }

    #[test]
    fn the_result_goes_to_the_callers_memory_and_the_rest_to_the_arena() {
        let plan = lower(&graph(), &Device::h200(), Mode::Live).unwrap();
        let places: Vec<&Place> =
            plan.launches.iter().map(|l| &plan.buffers[l.arguments.last().unwrap().buffer].place).collect();
        assert_eq!(*places[3], Place::Output(0));
        assert!(places[..3].iter().all(|place| matches!(place, Place::Arena(_))));
        assert_eq!(plan.arena_bytes, plan.largest_live_bytes);
    }

    #[test]
    fn a_graph_begins_with_one_launch() {
        let mut graph = Graph::new();
        let x = graph.add(Op::Input { name: "x".into(), dtype: DType::F32, shape: vec![4096, 512] }, &[]).unwrap();
        let w = graph.add(Op::Weight { name: "w".into(), dtype: DType::F32, shape: vec![512] }, &[]).unwrap();
        let large = graph.add_region(elementwise(Op::Sin {}, &[&[4096, 512]], Binding::Input), &[x]).unwrap();
        let small = graph.add_region(elementwise(Op::Abs {}, &[&[512]], Binding::Weights), &[w]).unwrap();
        let y = graph
            .add_region(
                elementwise(Op::Add {}, &[&[4096, 512], &[512]], Binding::Input),
                &[Value::of(large), Value::of(small)],
            )
            .unwrap();
        graph.add_output(Value::of(y));
        let plan = lower(&graph, &Device::h200(), Mode::Live).unwrap();
        assert_eq!(plan.launches[0].computes, "abs");
        let after: Vec<&[usize]> = plan.launches.iter().map(|launch| &launch.after[..]).collect();
        assert_eq!(after, [&[][..], &[0], &[0, 1]]);
    }

    #[test]
    fn maps_of_live_weights_are_one_launch() {
        let mut graph = Graph::new();
        let x = graph.add(Op::Input { name: "x".into(), dtype: DType::F32, shape: vec![8] }, &[]).unwrap();
        let mut sum = x;
        for name in ["v", "w"] {
            let w = graph.add(Op::Weight { name: name.into(), dtype: DType::F32, shape: vec![8] }, &[]).unwrap();
            let w = graph.add_region(elementwise(Op::Abs {}, &[&[8]], Binding::Weights), &[w]).unwrap();
            let add = elementwise(Op::Add {}, &[&[8], &[8]], Binding::Input);
            sum = Value::of(graph.add_region(add, &[sum, Value::of(w)]).unwrap());
        }
        graph.add_output(sum);
        let live = lower(&graph, &Device::h200(), Mode::Live).unwrap();
        assert_eq!(live.launches[0].computes, "abs; abs");
        assert_eq!(live.launches[0].arguments.len(), 4);
        let after: Vec<&[usize]> = live.launches.iter().map(|launch| &launch.after[..]).collect();
        assert_eq!(after, [&[][..], &[0], &[0, 1]]);
        assert_eq!(lower(&graph, &Device::h200(), Mode::Frozen).unwrap().setup.len(), 2);
    }

    #[test]
    fn equal_kernels_are_emitted_once() {
        let mut graph = Graph::new();
        let x = graph.add(Op::Input { name: "x".into(), dtype: DType::F32, shape: vec![8] }, &[]).unwrap();
        let first = graph.add_region(elementwise(Op::Sin {}, &[&[8]], Binding::Input), &[x]).unwrap();
        let second = graph.add_region(elementwise(Op::Sin {}, &[&[8]], Binding::Input), &[Value::of(first)]).unwrap();
        graph.add_output(Value::of(second));
        let plan = lower(&graph, &Device::h200(), Mode::Live).unwrap();
        assert_eq!((plan.kernels.len(), plan.launches.len()), (1, 2));
    }

    #[test]
    fn elementary_ops_outside_regions_are_refused() {
        let mut graph = Graph::new();
        let x = graph.add(Op::Input { name: "x".into(), dtype: DType::F32, shape: vec![8] }, &[]).unwrap();
        let y = graph.add(Op::Sin {}, &[x]).unwrap();
        graph.add_output(y);
        assert!(matches!(lower(&graph, &Device::h200(), Mode::Live), Err(LowerError::Ir(_))));
    }

    fn given(graph: &mut Graph, weight: bool, shape: &[usize]) -> Value {
        let (name, shape) = (format!("given{}", graph.nodes().count()), shape.to_vec());
        let op = match weight {
            true => Op::Weight { name, dtype: DType::F32, shape },
            false => Op::Input { name, dtype: DType::F32, shape },
        };
        graph.add(op, &[]).unwrap()
    }

    /// A norm and the projection behind it, something made of its rows, and the tail: weights are packed with every call.
    fn head_and_tail(length: usize) -> Graph {
        const WIDTH: usize = 256;
        const HIDDEN: usize = 1024;
        let mut graph = Graph::new();
        let x = given(&mut graph, false, &[1, length, WIDTH]);
        let packed = |graph: &mut Graph, n: usize, k: usize| {
            let weight = given(graph, true, &[n, k]);
            Value::of(graph.add_region(packing(n, k), &[weight]).unwrap())
        };
        let rows = |graph: &mut Graph, length: usize| given(graph, true, &[length]);
        let operands = [
            x,
            rows(&mut graph, WIDTH),
            rows(&mut graph, WIDTH),
            packed(&mut graph, 3 * WIDTH, WIDTH),
            rows(&mut graph, 3 * WIDTH),
        ];
        let q = graph.add_region(block_head(1, length, WIDTH, 3 * WIDTH), &operands).unwrap();
        let mut body = Body::default();
        let y = body.parameter(DType::F16, &[1, 3 * WIDTH, length]);
        let y = body.op(Op::Slice { axis: 1, start: 0, length: WIDTH }, &[y]);
        let y = body.op(Op::Neg {}, &[y]);
        let y = body.op(Op::Cast { dtype: DType::F16 }, &[y]);
        let y = graph.add_region(body.region(y), &[Value::of(q)]).unwrap();
        let operands = [
            Value::of(y),
            packed(&mut graph, WIDTH, WIDTH),
            rows(&mut graph, WIDTH),
            x,
            rows(&mut graph, WIDTH),
            rows(&mut graph, WIDTH),
            packed(&mut graph, HIDDEN, WIDTH),
            rows(&mut graph, HIDDEN),
            packed(&mut graph, WIDTH, HIDDEN),
            rows(&mut graph, WIDTH),
        ];
        let out = graph.add_region(block_tail(1, length, WIDTH, HIDDEN), &operands).unwrap();
        graph.add_output(Value::of(out));
        graph
    }

    #[test]
    fn launches_begin_early_where_they_read_late() {
        let plan = lower(&head_and_tail(256), &Device::h200(), Mode::Live).unwrap();
        let about = |launch: &Launch| (launch.family.clone(), launch.after.clone(), launch.early.clone());
        let launches: Vec<_> = plan.launches.iter().map(about).collect();
        let of = |family: &str, after: &[usize], early: &[usize]| (family.to_owned(), after.to_vec(), early.to_vec());
        let expected = [
            // All four packings.
            of("map", &[], &[]),
            // Its packed weight comes late.
            of("panel", &[0], &[0]),
            // Never waits.
            of("map", &[1], &[]),
            // Its packed weights come before it waits, its rows after that.
            of("tail", &[0, 2], &[2]),
        ];
        assert_eq!(launches, expected);
    }

    #[test]
    fn launches_do_not_begin_early_where_that_gains_nothing() {
        // The clusters of a large tail would be placed into gaps.
        let plan = lower(&head_and_tail(4096), &Device::h200(), Mode::Live).unwrap();
        let tail = plan.launches.last().unwrap();
        assert_eq!((&tail.family[..], &tail.after[..], &tail.early[..]), ("tail", &[0, 2][..], &[][..]));
        // Weights that are packed beforehand are nothing to wait for.
        let plan = lower(&head_and_tail(256), &Device::h200(), Mode::Frozen).unwrap();
        assert!(plan.setup.iter().all(|launch| launch.early.is_empty()));
        let early: Vec<&[usize]> = plan.launches.iter().map(|launch| &launch.early[..]).collect();
        assert_eq!(early, [&[][..], &[], &[1]]);
    }

    #[test]
    fn what_is_put_behind_the_opener_only_to_come_later_begins_early() {
        let mut graph = Graph::new();
        let (x, v) = (given(&mut graph, false, &[64, 64]), given(&mut graph, true, &[64, 64]));
        let mut body = Body::default();
        let (a, b) = (body.parameter(DType::F32, &[64, 64]), body.parameter(DType::F32, &[64, 64]));
        let product = body.op(Op::Linear {}, &[a, b]);
        let product = graph.add_region(body.region(product), &[x, v]).unwrap();
        let w = given(&mut graph, true, &[64]);
        let rate = graph.add_region(elementwise(Op::Abs {}, &[&[64]], Binding::Weights), &[w]).unwrap();
        let sum = elementwise(Op::Add {}, &[&[64, 64], &[64]], Binding::Input);
        let sum = graph.add_region(sum, &[Value::of(product), Value::of(rate)]).unwrap();
        graph.add_output(Value::of(sum));
        // Launches of the other device do not overlap.
        for (device, early) in [(Device::h200(), &[0][..]), (Device::a100(), &[])] {
            let plan = lower(&graph, &device, Mode::Live).unwrap();
            let product = &plan.launches[1];
            assert_eq!((&product.family[..], &product.after[..], &product.early[..]), ("gemm", &[0][..], early));
        }
    }

    #[test]
    fn every_kernel_that_waits_or_calls_says_so() {
        for length in [256, 4096] {
            let plan = lower(&head_and_tail(length), &Device::h200(), Mode::Live).unwrap();
            for launch in &plan.launches {
                assert!(launch.early.iter().all(|early| launch.after.contains(early)));
                let source = |launch: &Launch| &plan.kernels[launch.kernel].source;
                assert!(launch.early.is_empty() || source(launch).contains(" wait_for_inputs();"));
                assert!(launch.early.iter().all(|&early| source(&plan.launches[early]).contains(" begin_next();")));
            }
        }
    }
}
