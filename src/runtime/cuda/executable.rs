//! A plan bound to a device and to weights: what is replayed by every call.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyenac_kernels::{Launch, Mode, Plan};

use super::arena::{Arena, SharedArena};
use super::cache::Cache;
use super::device::{self, CudaDevice, Stream};
use super::error::{CudaError, DriverFailure, Result};
use super::graph::{KernelGraph, Kernels};
use super::layout::{Layout, Source, Tensor};
use super::memory::{DeviceBuffer, DevicePointer, check_free};
use super::module::LoadedKernel;
use super::nvrtc::{self, Resources};
use super::pointers::{Memory, Uses, check_overlap, check_tensors};
use super::pool::Pool;
use super::read_back::GraphReadBack;
use super::weights::{DeviceWeights, check_weight, needed_weights, upload_weights};

/// How a plan is bound.
#[derive(Clone)]
pub struct BindOptions {
    /// When weights are known; the plan must have been lowered for it.
    pub mode: Mode,
    /// An arena shared with other executables; `None` for one of its own.
    pub arena: Option<Arc<SharedArena>>,
    /// Where compiled kernels are kept.
    pub cache: Cache,
}

impl BindOptions {
    /// An arena of its own, and the cache that the environment names.
    pub fn new(mode: Mode) -> BindOptions {
        BindOptions { mode, arena: None, cache: Cache::from_environment() }
    }
}

/// A plan, its kernels, its memory and its instantiated graph.
///
/// It may move between threads, but only one thread at a time can use it. Sharing one does not compile:
///
/// ```compile_fail,E0277
/// fn is_sync<T: Sync>() {}
/// is_sync::<hyenac::runtime::cuda::CudaExecutable>();
/// ```
pub struct CudaExecutable {
    // Declared, and so dropped, before what its nodes refer to.
    graph: KernelGraph,
    device: CudaDevice,
    plan: Arc<Plan>,
    layout: Layout,
    mode: Mode,
    uses: Uses,
    resources: Vec<(String, Resources)>,
    arena: Arena,
    frozen: DeviceBuffer,
    /// In the order of the layout; only those that the main launches read.
    weights: Vec<Option<Arc<DeviceBuffer>>>,
    /// Inputs of [`CudaExecutable::run`], made by its first call.
    staging: Vec<DeviceBuffer>,
    /// One pool an output.
    outputs: Vec<Pool<DeviceBuffer>>,
}

impl CudaExecutable {
    /// Compiles the kernels, uploads the weights, computes what is frozen and builds the graph.
    ///
    /// # Errors
    /// Of every stage: the plan, the weights, NVRTC, the driver, memory.
    pub fn new(
        device: &CudaDevice,
        plan: &Plan,
        weights: &BTreeMap<String, Vec<f32>>,
        mode: Mode,
    ) -> Result<CudaExecutable> {
        let weights = upload_weights(device, plan, weights)?;
        CudaExecutable::bind(device, Arc::new(plan.clone()), weights, BindOptions::new(mode))
    }

    /// As [`CudaExecutable::new`], with weights that are on the device already and whose copies have finished.
    ///
    /// # Errors
    /// As [`CudaExecutable::new`].
    pub fn bind(
        device: &CudaDevice,
        plan: Arc<Plan>,
        weights: DeviceWeights,
        options: BindOptions,
    ) -> Result<CudaExecutable> {
        let BindOptions { mode, arena, cache } = options;
        if !device::runs_on(&plan.device.arch, device.arch()) {
            let (plan, device) = (plan.device.arch.clone(), device.arch().to_owned());
            return Err(CudaError::WrongArchitecture { plan, device });
        }
        if mode == Mode::Live && !plan.setup.is_empty() {
            let what = "it was lowered for frozen weights, and live ones are asked for".to_owned();
            return Err(CudaError::InvalidPlan { what });
        }
        let layout = Layout::of(&plan)?;
        let mut weights = needed_weights(device, &layout, weights)?;
        let own_arena = if arena.is_none() { plan.arena_bytes } else { 0 };
        let temporary = plan.setup_arena_bytes.max(own_arena);
        check_free(device, plan.frozen_bytes.saturating_add(temporary), "binding the plan")?;

        let compiled = nvrtc::compile_all(&plan.kernels, device.arch(), &cache)?;
        let resources = compiled.iter().map(|kernel| (kernel.name.clone(), kernel.resources)).collect();
        let kernels: Vec<LoadedKernel> =
            compiled.iter().map(|kernel| LoadedKernel::load(device, kernel)).collect::<Result<_>>()?;
        let kernels: Kernels = kernels.into();

        let frozen = DeviceBuffer::allocate(device, plan.frozen_bytes, "what frozen weights keep")?;
        if !plan.setup.is_empty() {
            run_setup(device, &plan, &layout, &kernels, &weights, &frozen)?;
        }
        // What only the setup has read is not needed any more.
        for (weight, read) in weights.iter_mut().zip(layout.weights_read_by(&layout.main)) {
            if !read {
                *weight = None;
            }
        }
        let arena = Arena::new(device, plan.arena_bytes, arena)?;
        let memory = Memory { arena: arena.base(), frozen: frozen.pointer().address(), weights: &weights };
        let graph = KernelGraph::build(device, &kernels, &plan.launches, memory.pointers(&layout.main))?;
        let executable = CudaExecutable {
            graph,
            device: device.clone(),
            uses: Uses::of(&layout.main),
            outputs: layout.outputs.iter().map(|_| Pool::default()).collect(),
            plan,
            layout,
            mode,
            resources,
            arena,
            frozen,
            weights,
            staging: Vec::new(),
        };
        if cfg!(debug_assertions) {
            executable.verify_against_plan()?;
        }
        Ok(executable)
    }

    /// Replays the graph on `stream`, without waiting: it allocates nothing, compiles nothing, synchronises nothing.
    ///
    /// Inputs and outputs are in the order of [`CudaExecutable::inputs`] and [`CudaExecutable::outputs`]. Their memory
    /// must stay as it is until the stream has come past the replay; dropping a [`DeviceBuffer`] waits for that.
    ///
    /// # Errors
    /// When a pointer does not fit the plan, or [`CudaError::Run`].
    pub fn launch(
        &mut self,
        inputs: &[DevicePointer<'_>],
        outputs: &[DevicePointer<'_>],
        stream: &Arc<Stream>,
    ) -> Result<()> {
        self.device.check_stream(stream)?;
        check_tensors("inputs", &self.layout.inputs, inputs)?;
        check_tensors("outputs", &self.layout.outputs, outputs)?;
        check_overlap(&self.layout, inputs, outputs)?;
        for (index, pointer) in inputs.iter().enumerate() {
            self.uses.point(&mut self.graph, Source::Input(index), pointer.address());
        }
        for (index, pointer) in outputs.iter().enumerate() {
            self.uses.point(&mut self.graph, Source::Output(index), pointer.address());
        }
        let graph = &mut self.graph;
        self.arena.serialised(stream, || graph.launch(stream))
    }

    /// Replays the graph into buffers of a pool. A buffer is used again only when nobody holds it any more, so hold
    /// it until the last work that reads it has been submitted to the same stream or has finished.
    ///
    /// # Errors
    /// As [`CudaExecutable::launch`], and [`CudaError::OutOfMemory`] when all buffers are held and no other fits.
    pub fn run_device(&mut self, inputs: &[DevicePointer<'_>], stream: &Arc<Stream>) -> Result<Vec<Arc<DeviceBuffer>>> {
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for (pool, tensor) in self.outputs.iter_mut().zip(&self.layout.outputs) {
            outputs.push(pool.take(|| DeviceBuffer::allocate(&self.device, tensor.bytes, &tensor.name))?);
        }
        let pointers: Vec<DevicePointer<'_>> = outputs.iter().map(|output| output.pointer()).collect();
        self.launch(inputs, &pointers, stream)?;
        Ok(outputs)
    }

    /// Copies inputs to the device, replays the graph, and copies the outputs back.
    ///
    /// # Errors
    /// As [`CudaExecutable::run_device`].
    pub fn run(&mut self, inputs: &[&[f32]]) -> Result<Vec<Vec<f32>>> {
        let expected = self.layout.inputs.len();
        if inputs.len() != expected {
            return Err(CudaError::TensorCount { what: "inputs", expected, got: inputs.len() });
        }
        for (values, tensor) in inputs.iter().zip(&self.layout.inputs) {
            tensor.check_size(size_of_val(*values) as u64)?;
        }
        let stream = Arc::clone(self.device.stream());
        let mut staging = std::mem::take(&mut self.staging);
        if staging.is_empty() {
            let allocate = |tensor: &Tensor| DeviceBuffer::allocate(&self.device, tensor.bytes, &tensor.name);
            staging = self.layout.inputs.iter().map(allocate).collect::<Result<_>>()?;
        }
        for (buffer, values) in staging.iter_mut().zip(inputs) {
            buffer.write_f32(values, &stream)?;
        }
        let pointers: Vec<DevicePointer<'_>> = staging.iter().map(|buffer| buffer.pointer()).collect();
        let outputs = self.run_device(&pointers, &stream);
        drop(pointers);
        self.staging = staging;
        outputs?.iter().map(|output| output.read_f32(&stream)).collect()
    }

    /// Replaces live weights, from the next replay on, without building the graph again. Names that the plan does
    /// not read are ignored; weights that are not named stay.
    ///
    /// # Errors
    /// [`CudaError::FrozenWeights`], or when a tensor does not fit.
    pub fn set_weights(&mut self, weights: &DeviceWeights) -> Result<()> {
        if self.mode == Mode::Frozen {
            return Err(CudaError::FrozenWeights);
        }
        // All are checked before the first is replaced.
        for (tensor, held) in self.layout.weights.iter().zip(&self.weights) {
            if let (Some(new), Some(_)) = (weights.get(&tensor.name), held) {
                check_weight(&self.device, tensor, new)?;
            }
        }
        for (index, (tensor, held)) in self.layout.weights.iter().zip(&mut self.weights).enumerate() {
            if let (Some(new), Some(held)) = (weights.get(&tensor.name), held) {
                self.uses.point(&mut self.graph, Source::Weight(index), new.pointer().address());
                *held = Arc::clone(new);
            }
        }
        Ok(())
    }

    /// Inputs of a call, in order.
    pub fn inputs(&self) -> &[Tensor] {
        &self.layout.inputs
    }

    /// Outputs of a call, in order.
    pub fn outputs(&self) -> &[Tensor] {
        &self.layout.outputs
    }

    /// The plan it was bound from.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// When its weights are known.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The device it runs on.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Number of nodes of the graph.
    pub fn node_count(&self) -> usize {
        self.graph.node_count()
    }

    /// Name and resources of each kernel of the plan, in its order.
    pub fn resources(&self) -> &[(String, Resources)] {
        &self.resources
    }

    /// Bytes of the arena that it uses, its own or the beginning of a shared one.
    pub fn arena_bytes(&self) -> u64 {
        self.plan.arena_bytes
    }

    /// Bytes of device memory that it holds: arena (unless shared), frozen memory, weights (even if others hold them
    /// too), staging and pooled outputs.
    pub fn device_bytes(&self) -> u64 {
        let weights = self.weights.iter().flatten().map(|weight| weight.bytes());
        let staging = self.staging.iter().map(DeviceBuffer::bytes);
        let outputs = self.outputs.iter().flat_map(|pool| pool.iter().map(DeviceBuffer::bytes));
        self.arena.own_bytes() + self.frozen.bytes() + weights.chain(staging).chain(outputs).sum::<u64>()
    }

    /// Reads the graph back from the driver.
    ///
    /// # Errors
    /// What the driver says.
    pub fn read_back(&self) -> Result<GraphReadBack> {
        self.graph.read_back()
    }

    /// Reads the graph back through cust_raw's types.
    ///
    /// # Errors
    /// What the driver says.
    #[cfg(feature = "cust")]
    pub fn read_back_through_cust(&self) -> Result<GraphReadBack> {
        self.graph.read_back_through_cust()
    }

    /// Compares the graph, as the driver reports it, with the plan. With the feature `cust` it is read twice, the
    /// second time through cust_raw.
    ///
    /// # Errors
    /// [`CudaError::GraphMismatch`] with the first difference.
    pub fn verify_against_plan(&self) -> Result<()> {
        self.read_back()?.verify_against(&self.plan.launches, &self.plan.kernels)?;
        #[cfg(feature = "cust")]
        self.read_back_through_cust()?.verify_against(&self.plan.launches, &self.plan.kernels)?;
        Ok(())
    }

    /// A graph of one launch alone, with the pointers that it had in the last replay.
    pub(super) fn single_launch(&self, index: usize, kernels: &Kernels) -> Result<Option<KernelGraph>> {
        let Some(launch) = self.plan.launches.get(index) else { return Ok(None) };
        let alone = Launch { after: Vec::new(), early: Vec::new(), ..launch.clone() };
        let pointers = vec![self.graph.pointers(index).to_vec()];
        Ok(Some(KernelGraph::build(&self.device, kernels, &[alone], pointers)?))
    }

    /// The kernels of the plan.
    pub(super) fn kernels(&self) -> &Kernels {
        self.graph.kernels()
    }
}

/// Device memory that an executable of this plan holds, before any call: what a budget must have room for.
///
/// # Errors
/// [`CudaError::InvalidPlan`].
pub fn bytes_needed(plan: &Plan, shared_arena: bool) -> Result<u64> {
    let layout = Layout::of(plan)?;
    let read = layout.weights_read_by(&layout.main);
    let weights = layout.weights.iter().zip(read).filter(|(_, read)| *read).map(|(tensor, _)| tensor.bytes);
    let arena = if shared_arena { 0 } else { plan.arena_bytes };
    Ok(weights.chain([arena, plan.frozen_bytes]).fold(0, u64::saturating_add))
}

/// Runs the setup launches once and waits for them; their arena is freed on return.
fn run_setup(
    device: &CudaDevice,
    plan: &Plan,
    layout: &Layout,
    kernels: &Kernels,
    weights: &[Option<Arc<DeviceBuffer>>],
    frozen: &DeviceBuffer,
) -> Result<()> {
    let arena = DeviceBuffer::allocate(device, plan.setup_arena_bytes, "the setup arena")?;
    let memory = Memory { arena: arena.pointer().address(), frozen: frozen.pointer().address(), weights };
    let mut graph = KernelGraph::build(device, kernels, &plan.setup, memory.pointers(&layout.setup))?;
    graph.launch(device.stream())?;
    device.stream().synchronize().map_err(|error| CudaError::Run(DriverFailure::new("cuStreamSynchronize", error)))
}

#[cfg(test)]
mod tests {
    use super::super::layout::tests::plan;
    use super::*;

    #[test]
    fn executables_move_between_threads() {
        fn is_send<T: Send>() {}
        is_send::<CudaExecutable>();
    }

    #[test]
    fn a_budget_counts_what_stays_after_bind() {
        // Arena, frozen memory and `bias`; `w` is read by the setup alone.
        assert_eq!(bytes_needed(&plan(), false), Ok(640 + 320 + 64));
        assert_eq!(bytes_needed(&plan(), true), Ok(320 + 64));
    }
}
