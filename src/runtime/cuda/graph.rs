//! One CUDA graph of kernel launches: built once from the plan's dependencies, replayed with changing pointers.
//!
//! The graph is built node by node instead of captured from a stream: its edges are exactly the plan's, and every
//! node's handle is known, so that a pointer can be changed in the instantiated graph.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{result, sys};
use hyenac_kernels::Launch;

use super::device::{CudaDevice, Stream};
use super::error::{CudaError, DriverFailure, During, Result};
use super::module::LoadedKernel;

/// The kernels of one plan, shared by its graphs.
pub(super) type Kernels = Arc<[LoadedKernel]>;

/// An edge to a node that begins when all blocks of the other have called `begin_next` or ended.
const PROGRAMMATIC: sys::CUgraphEdgeData = sys::CUgraphEdgeData_st {
    from_port: sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
    to_port: 0,
    type_: sys::CUgraphDependencyType_enum::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
    reserved: [0; 5],
};

/// A kernel node and its current parameters.
struct Node {
    handle: sys::CUgraphNode,
    /// Index into the graph's kernels.
    kernel: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    pointers: Box<[u64]>,
    /// Whether `pointers` has changed since the driver was told.
    changed: bool,
}

/// An instantiated graph, and everything that it uses apart from the memory behind its pointers.
pub(super) struct KernelGraph {
    device: CudaDevice,
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
    nodes: Vec<Node>,
    /// Room for the addresses of one node's pointers; only its capacity outlives a call.
    parameters: Vec<*mut c_void>,
    // Declared after the graph's handles: `drop` destroys those first, then the fields go.
    kernels: Kernels,
}

// SAFETY: graphs may be used by any thread, one at a time, with the context current; methods that change a graph take
// `&mut self` and bind the context. `parameters` holds no live pointers between calls.
unsafe impl Send for KernelGraph {}

impl KernelGraph {
    /// Builds and instantiates a graph of these launches, with these pointers, one list of them a launch.
    ///
    /// `launches` and `pointers` come from a checked plan: kernels and dependencies are in range.
    pub(super) fn build(
        device: &CudaDevice,
        kernels: &Kernels,
        launches: &[Launch],
        pointers: Vec<Vec<u64>>,
    ) -> Result<KernelGraph> {
        device.bind()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: `graph` is valid for a write.
        unsafe { sys::cuGraphCreate(&mut graph, 0) }.during("cuGraphCreate").map_err(capture("creation"))?;
        // From here on `drop` destroys what has been made, on failure too.
        let mut built = KernelGraph {
            device: device.clone(),
            graph,
            executable: std::ptr::null_mut(),
            nodes: Vec::with_capacity(launches.len()),
            parameters: Vec::new(),
            kernels: Arc::clone(kernels),
        };
        for (index, (launch, pointers)) in launches.iter().zip(pointers).enumerate() {
            built.add(index, launch, pointers)?;
        }
        // SAFETY: the graph is live, and its nodes name functions that `kernels` keeps loaded.
        let executable = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        built.executable = executable.during("cuGraphInstantiateWithFlags").map_err(capture("instantiation"))?;
        // SAFETY: both handles are live.
        unsafe { result::graph::upload(built.executable, device.stream().cu_stream()) }
            .during("cuGraphUpload")
            .map_err(capture("upload"))?;
        device.stream().synchronize().during("cuStreamSynchronize").map_err(capture("upload"))?;
        Ok(built)
    }

    fn add(&mut self, index: usize, launch: &Launch, pointers: Vec<u64>) -> Result<()> {
        let what = || format!("launch {index}");
        let broken =
            || CudaError::InvalidPlan { what: format!("launch {index} names a kernel or launch that is not there") };
        self.kernels.get(launch.kernel).ok_or_else(broken)?.prepare(launch)?;
        let handles = |early: bool| -> Option<Vec<sys::CUgraphNode>> {
            let wanted = launch.after.iter().filter(|after| launch.early.contains(after) == early);
            wanted.map(|&after| self.nodes.get(after).map(|node| node.handle)).collect()
        };
        let dependencies = handles(false).ok_or_else(broken)?;
        let early = handles(true).ok_or_else(broken)?;
        let mut node = Node {
            handle: std::ptr::null_mut(),
            kernel: launch.kernel,
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            pointers: pointers.into_boxed_slice(),
            changed: false,
        };
        let parameters = node_parameters(
            &self.kernels[node.kernel],
            &mut node.pointers,
            &mut self.parameters,
            node.grid,
            node.block,
            node.shared_bytes,
        );
        // SAFETY: the graph is live; the dependencies are nodes of it; the function is loaded and has, as `prepare`
        // checked, as many pointer parameters as `parameters` lists; the driver copies their values.
        let code = unsafe {
            sys::cuGraphAddKernelNode_v2(
                &mut node.handle,
                self.graph,
                dependencies.as_ptr(),
                dependencies.len(),
                &parameters,
            )
        };
        code.during("cuGraphAddKernelNode_v2").map_err(|failure| CudaError::Capture { what: what(), failure })?;
        if !early.is_empty() {
            let to = vec![node.handle; early.len()];
            let data = vec![PROGRAMMATIC; early.len()];
            // SAFETY: the graph is live, all handles are nodes of it, and the three arrays are of the length given.
            let code = unsafe {
                sys::cuGraphAddDependencies_v2(self.graph, early.as_ptr(), to.as_ptr(), data.as_ptr(), early.len())
            };
            code.during("cuGraphAddDependencies_v2").map_err(|failure| CudaError::Capture { what: what(), failure })?;
        }
        self.nodes.push(node);
        Ok(())
    }

    /// The kernels its nodes run.
    pub(super) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Number of nodes.
    pub(super) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The current pointers of a node.
    pub(super) fn pointers(&self, node: usize) -> &[u64] {
        self.nodes.get(node).map_or(&[], |node| &node.pointers)
    }

    /// Notes a new value of one pointer, for the next launch.
    pub(super) fn set_pointer(&mut self, node: usize, argument: usize, address: u64) {
        if let Some(node) = self.nodes.get_mut(node)
            && let Some(pointer) = node.pointers.get_mut(argument)
            && *pointer != address
        {
            *pointer = address;
            node.changed = true;
        }
    }

    /// Replays the graph on a stream. Tells the driver about changed pointers first, and only about those; replays
    /// that are in flight keep the pointers they were launched with.
    pub(super) fn launch(&mut self, stream: &Stream) -> Result<()> {
        self.device.bind()?;
        for node in self.nodes.iter_mut().filter(|node| node.changed) {
            let kernel = &self.kernels[node.kernel];
            let parameters = node_parameters(
                kernel,
                &mut node.pointers,
                &mut self.parameters,
                node.grid,
                node.block,
                node.shared_bytes,
            );
            // SAFETY: the executable was instantiated from the graph that owns this node; function and number of
            // parameters are those it was added with; the driver copies the values.
            unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.executable, node.handle, &parameters) }
                .during("cuGraphExecKernelNodeSetParams_v2")
                .map_err(CudaError::Run)?;
            node.changed = false;
        }
        // SAFETY: both handles are live, and the kernels are loaded.
        unsafe { result::graph::launch(self.executable, stream.cu_stream()) }
            .during("cuGraphLaunch")
            .map_err(CudaError::Run)
    }

    /// The driver's handle of the template, its nodes in the order of the plan, and the context made current.
    pub(super) fn handles(&self) -> Result<(sys::CUgraph, Vec<sys::CUgraphNode>)> {
        self.device.bind()?;
        Ok((self.graph, self.nodes.iter().map(|node| node.handle).collect()))
    }
}

impl Drop for KernelGraph {
    fn drop(&mut self) {
        let context = self.device.context();
        // A replay may be in flight, and the kernels are unloaded next.
        context.record_err(context.synchronize());
        if !self.executable.is_null() {
            // SAFETY: instantiated by `build`, destroyed only here.
            context.record_err(unsafe { result::graph::exec_destroy(self.executable) });
        }
        // SAFETY: created by `build`, destroyed only here, after what was instantiated from it.
        context.record_err(unsafe { result::graph::destroy(self.graph) });
    }
}

/// The driver's view of a node. Valid until `pointers` or `room` is touched again.
fn node_parameters(
    kernel: &LoadedKernel,
    pointers: &mut [u64],
    room: &mut Vec<*mut c_void>,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
) -> sys::CUDA_KERNEL_NODE_PARAMS {
    room.clear();
    room.extend(pointers.iter_mut().map(|pointer| std::ptr::from_mut(pointer).cast::<c_void>()));
    sys::CUDA_KERNEL_NODE_PARAMS {
        func: kernel.function(),
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: shared_bytes,
        kernelParams: room.as_mut_ptr(),
        extra: std::ptr::null_mut(),
        // Ignored when `func` is given.
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    }
}

fn capture(what: &'static str) -> impl Fn(DriverFailure) -> CudaError {
    move |failure| CudaError::Capture { what: what.to_owned(), failure }
}
