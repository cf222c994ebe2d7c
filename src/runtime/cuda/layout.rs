//! Reads a plan: which tensors it takes and gives, and where every pointer of every launch comes from.
//!
//! A plan may come from a file, so nothing about it is believed: what this module accepts can be launched without
//! an index out of range or a pointer outside its buffer.

use std::collections::BTreeMap;

use hyenac_kernels::{Argument, Buffer, Launch, Place, Plan};

use super::error::{CudaError, Result};

/// A tensor that comes from outside the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name of the tensor; `output.N` for outputs.
    pub name: String,
    /// Type and shape as text.
    pub ty: String,
    /// Size in bytes.
    pub bytes: u64,
}

impl Tensor {
    /// Refuses another number of bytes than the plan's.
    pub(super) fn check_size(&self, got: u64) -> Result<()> {
        if self.bytes == got {
            return Ok(());
        }
        Err(CudaError::TensorSize { name: self.name.clone(), expected: self.bytes, got })
    }
}

/// What a pointer points into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// An input of the call.
    Input(usize),
    /// An output of the call.
    Output(usize),
    /// A weight.
    Weight(usize),
    /// The arena of the list of launches it belongs to.
    Arena,
    /// Memory of what was computed from frozen weights.
    Frozen,
}

/// A pointer of a launch: a source and a byte offset within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) source: Source,
    pub(super) offset: u64,
}

/// The pointers of every launch of one list.
pub(super) type Origins = Vec<Vec<Origin>>;

/// A plan that has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) inputs: Vec<Tensor>,
    pub(super) outputs: Vec<Tensor>,
    pub(super) weights: Vec<Tensor>,
    pub(super) setup: Origins,
    pub(super) main: Origins,
}

impl Layout {
    /// Checks a plan and finds its tensors: inputs and weights in the order of the plan's buffers, outputs by number.
    pub(super) fn of(plan: &Plan) -> Result<Layout> {
        let mut tensors = Tensors::default();
        for buffer in &plan.buffers {
            tensors.add(buffer)?;
        }
        let outputs = tensors.outputs_in_order()?;
        let layout = |launches: &[Launch], list: List| -> Result<Origins> {
            launches
                .iter()
                .enumerate()
                .map(|(index, launch)| launch_origins(plan, &tensors, launch, index, list))
                .collect()
        };
        let setup = layout(&plan.setup, List::Setup)?;
        let main = layout(&plan.launches, List::Main)?;
        if main.is_empty() {
            return Err(invalid("it has no launches".to_owned()));
        }
        Ok(Layout { inputs: tensors.inputs, outputs, weights: tensors.weights, setup, main })
    }

    /// Whether each weight is read by some launch of either list.
    pub(super) fn weights_read(&self) -> Vec<bool> {
        let (setup, main) = (self.weights_read_by(&self.setup), self.weights_read_by(&self.main));
        setup.into_iter().zip(main).map(|(setup, main)| setup || main).collect()
    }

    /// Whether each weight is read by some launch of `origins`.
    pub(super) fn weights_read_by(&self, origins: &Origins) -> Vec<bool> {
        let mut read = vec![false; self.weights.len()];
        for origin in origins.iter().flatten() {
            if let Source::Weight(weight) = origin.source {
                read[weight] = true;
            }
        }
        read
    }
}

/// The two lists of launches of a plan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    Setup,
    Main,
}

#[derive(Default)]
struct Tensors {
    inputs: Vec<Tensor>,
    weights: Vec<Tensor>,
    outputs: BTreeMap<usize, Tensor>,
}

impl Tensors {
    fn add(&mut self, buffer: &Buffer) -> Result<()> {
        let tensor = |name: &str| Tensor { name: name.to_owned(), ty: buffer.ty.clone(), bytes: buffer.bytes };
        let add = |list: &mut Vec<Tensor>, name: &str| match list.iter().find(|tensor| tensor.name == name) {
            None => {
                list.push(tensor(name));
                Ok(())
            }
            Some(known) if known.bytes == buffer.bytes => Ok(()),
            Some(known) => Err(invalid(format!(
                "tensor {name} has {} bytes in one buffer and {} in another",
                known.bytes, buffer.bytes
            ))),
        };
        match &buffer.place {
            Place::Input(name) => add(&mut self.inputs, name),
            Place::Weight(name) => add(&mut self.weights, name),
            Place::Output(number) => match self.outputs.insert(*number, tensor(&format!("output.{number}"))) {
                None => Ok(()),
                Some(_) => Err(invalid(format!("output {number} has two buffers"))),
            },
            Place::Arena(_) | Place::Frozen(_) | Place::SetupArena(_) => Ok(()),
        }
    }

    fn outputs_in_order(&self) -> Result<Vec<Tensor>> {
        let mut outputs = Vec::new();
        for (position, (number, tensor)) in self.outputs.iter().enumerate() {
            if *number != position {
                return Err(invalid(format!("output {position} has no buffer")));
            }
            outputs.push(tensor.clone());
        }
        Ok(outputs)
    }

    /// Where a place is, and how many bytes of the plan's regions it may use.
    fn source(&self, plan: &Plan, buffer: &Buffer, list: List) -> Result<Origin> {
        let position = |tensors: &[Tensor], name: &str| tensors.iter().position(|tensor| tensor.name == name);
        let missing = || invalid(format!("buffer {} has no tensor", buffer.name));
        let within = |source: Source, offset: u64, size: u64, region: &str| {
            if offset.checked_add(buffer.bytes).is_none_or(|end| end > size) {
                return Err(invalid(format!(
                    "buffer {} lies at {offset} with {} bytes, beyond the {size} bytes of {region}",
                    buffer.name, buffer.bytes
                )));
            }
            Ok(Origin { source, offset })
        };
        let outside = |source: Source| Ok(Origin { source, offset: 0 });
        match &buffer.place {
            Place::Input(name) => outside(Source::Input(position(&self.inputs, name).ok_or_else(missing)?)),
            Place::Weight(name) => outside(Source::Weight(position(&self.weights, name).ok_or_else(missing)?)),
            Place::Output(number) => outside(Source::Output(*number)),
            Place::Frozen(offset) => within(Source::Frozen, *offset, plan.frozen_bytes, "the frozen memory"),
            Place::Arena(offset) if list == List::Main => within(Source::Arena, *offset, plan.arena_bytes, "the arena"),
            Place::SetupArena(offset) if list == List::Setup => {
                within(Source::Arena, *offset, plan.setup_arena_bytes, "the setup arena")
            }
            Place::Arena(_) | Place::SetupArena(_) => {
                Err(invalid(format!("buffer {} is used by a launch of the list whose arena it is not in", buffer.name)))
            }
        }
    }
}

fn launch_origins(plan: &Plan, tensors: &Tensors, launch: &Launch, index: usize, list: List) -> Result<Vec<Origin>> {
    let name = match list {
        List::Setup => format!("setup launch {index}"),
        List::Main => format!("launch {index}"),
    };
    if launch.kernel >= plan.kernels.len() {
        return Err(invalid(format!("{name} is of kernel {}, there are {}", launch.kernel, plan.kernels.len())));
    }
    if !launch.after.is_sorted_by(|a, b| a < b) || launch.after.last().is_some_and(|&after| after >= index) {
        return Err(invalid(format!("{name} waits for {:?}, not an ascending list of earlier launches", launch.after)));
    }
    let mut origins = Vec::with_capacity(launch.arguments.len());
    for Argument { buffer, offset, writes } in &launch.arguments {
        let Some(buffer) = plan.buffers.get(*buffer) else {
            return Err(invalid(format!("{name} uses buffer {buffer}, there are {}", plan.buffers.len())));
        };
        if *offset > buffer.bytes {
            return Err(invalid(format!(
                "{name} begins {offset} bytes into {}, which has {}",
                buffer.name, buffer.bytes
            )));
        }
        let mut origin = tensors.source(plan, buffer, list)?;
        let allowed = match origin.source {
            Source::Arena => true,
            Source::Weight(_) => !writes,
            Source::Input(_) => list == List::Main && !writes,
            Source::Output(_) => list == List::Main,
            Source::Frozen => list == List::Setup || !writes,
        };
        if !allowed {
            let verb = if *writes { "writes" } else { "reads" };
            return Err(invalid(format!("{name} {verb} {}, which lies in memory it may not use so", buffer.name)));
        }
        origin.offset += offset;
        origins.push(origin);
    }
    Ok(origins)
}

fn invalid(what: String) -> CudaError {
    CudaError::InvalidPlan { what }
}

#[cfg(test)]
pub(super) mod tests {
    use hyenac_kernels::{Device, KernelSource};

    use super::*;

    pub(in super::super) fn buffer(name: &str, bytes: u64, place: Place) -> Buffer {
        Buffer { name: name.to_owned(), ty: "bytes".to_owned(), bytes, place }
    }

    pub(in super::super) fn launch(kernel: usize, arguments: &[(usize, u64, bool)], after: &[usize]) -> Launch {
        Launch {
            kernel,
            grid: [2, 1, 1],
            block: [32, 1, 1],
            shared_bytes: 0,
            arguments: arguments.iter().map(|&(buffer, offset, writes)| Argument { buffer, offset, writes }).collect(),
            after: after.to_vec(),
            early: Vec::new(),
            family: String::new(),
            schedule: String::new(),
            predicted_us: 0.0,
            floor_us: 0.0,
            computes: String::new(),
        }
    }

    /// Setup turns `w` into frozen bytes, then two launches go from `x` through the arena to the output.
    pub(in super::super) fn plan() -> Plan {
        let kernel = |name: &str| KernelSource { name: name.to_owned(), source: String::new() };
        Plan {
            device: Device::a100(),
            kernels: vec![kernel("prepare"), kernel("first"), kernel("second")],
            buffers: vec![
                buffer("w", 64, Place::Weight("w".to_owned())),
                buffer("kept", 64, Place::Frozen(256)),
                buffer("x", 128, Place::Input("x".to_owned())),
                buffer("between", 128, Place::Arena(512)),
                buffer("y", 128, Place::Output(0)),
                buffer("bias", 64, Place::Weight("bias".to_owned())),
            ],
            setup: vec![launch(0, &[(0, 0, false), (1, 0, true)], &[])],
            launches: vec![
                launch(1, &[(2, 0, false), (1, 16, false), (3, 0, true)], &[]),
                launch(2, &[(3, 64, false), (5, 0, false), (4, 0, true)], &[0]),
            ],
            arena_bytes: 640,
            frozen_bytes: 320,
            setup_arena_bytes: 0,
            largest_live_bytes: 128,
        }
    }

    #[test]
    fn pointers_come_from_their_tensors_and_regions() {
        let layout = Layout::of(&plan()).unwrap();
        let names = |tensors: &[Tensor]| tensors.iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&layout.inputs), ["x"]);
        assert_eq!(names(&layout.outputs), ["output.0"]);
        assert_eq!(names(&layout.weights), ["w", "bias"]);
        let origin = |source, offset| Origin { source, offset };
        assert_eq!(layout.setup, [vec![origin(Source::Weight(0), 0), origin(Source::Frozen, 256)]]);
        assert_eq!(
            layout.main,
            [
                vec![origin(Source::Input(0), 0), origin(Source::Frozen, 272), origin(Source::Arena, 512)],
                vec![origin(Source::Arena, 576), origin(Source::Weight(1), 0), origin(Source::Output(0), 0)],
            ]
        );
        assert_eq!(layout.weights_read_by(&layout.main), [false, true]);
        assert_eq!(layout.weights_read_by(&layout.setup), [true, false]);
    }

    #[test]
    fn contradictions_are_refused_by_name() {
        let mut cases: Vec<(Plan, &str)> = Vec::new();
        let mut add = |change: &dyn Fn(&mut Plan), part: &'static str| {
            let mut plan = plan();
            change(&mut plan);
            cases.push((plan, part));
        };
        add(&|plan| plan.launches[1].kernel = 3, "kernel 3");
        add(&|plan| plan.launches[1].after = vec![1], "launch 1 waits for [1]");
        add(&|plan| plan.launches[1].after = vec![0, 0], "ascending");
        add(&|plan| plan.launches[0].arguments[0].buffer = 6, "buffer 6");
        add(&|plan| plan.launches[0].arguments[0].offset = 129, "129 bytes into x");
        add(&|plan| plan.arena_bytes = 639, "the arena");
        add(&|plan| plan.frozen_bytes = 0, "the frozen memory");
        add(&|plan| plan.buffers[3].place = Place::Arena(u64::MAX), "the arena");
        add(&|plan| plan.buffers[4].place = Place::Output(1), "output 0 has no buffer");
        add(&|plan| plan.launches[0].arguments[0].writes = true, "writes x");
        add(&|plan| plan.launches[0].arguments[1].writes = true, "writes kept");
        add(&|plan| plan.setup[0].arguments[0].buffer = 2, "setup launch 0 reads x");
        add(&|plan| plan.buffers.push(buffer("again", 4, Place::Input("x".to_owned()))), "tensor x has 128 bytes");
        add(&|plan| plan.buffers.push(buffer("again", 4, Place::Output(0))), "output 0 has two buffers");
        add(&|plan| plan.launches.clear(), "no launches");
        add(&|plan| plan.buffers[3].place = Place::SetupArena(0), "buffer between is used by a launch of the list");
        add(&|plan| plan.setup[0].arguments[1].buffer = 3, "buffer between is used by a launch of the list");
        add(&|plan| plan.buffers[1].place = Place::SetupArena(0), "the setup arena");
        for (plan, part) in cases {
            match Layout::of(&plan) {
                Err(CudaError::InvalidPlan { what }) => assert!(what.contains(part), "{part}: {what}"),
                other => panic!("{part}: {other:?}"),
            }
        }
    }
}
