//! The same read-back a second time, through cust_raw's types and functions of libcuda looked up by name.
//!
//! It shares no declaration of the driver with the code that built the graph, so that a wrong one there cannot
//! confirm itself. The types are those of CUDA 11.4, whose functions libcuda still has.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};

use cust_raw::{CUDA_KERNEL_NODE_PARAMS, CUfunction, CUgraph, CUgraphNode};

use super::error::Result;
use super::graph::KernelGraph;
use super::read_back::{GraphMismatch, GraphReadBack, NodeReadBack};

/// Code of [`GraphMismatch::Unreadable`] for a function that libcuda does not have.
const NOT_FOUND: c_int = -1;

// Result codes and kinds are declared as integers: the driver may return values that cust_raw's enumerations of
// CUDA 11.4 do not list.
struct Functions {
    nodes: unsafe extern "C" fn(CUgraph, *mut CUgraphNode, *mut usize) -> c_int,
    /// Of CUDA 12.3, with eight bytes about each edge: its predecessor refuses graphs whose launches overlap.
    edges: unsafe extern "C" fn(CUgraph, *mut CUgraphNode, *mut CUgraphNode, *mut [u8; 8], *mut usize) -> c_int,
    kind: unsafe extern "C" fn(CUgraphNode, *mut u32) -> c_int,
    parameters: unsafe extern "C" fn(CUgraphNode, *mut CUDA_KERNEL_NODE_PARAMS) -> c_int,
    name: unsafe extern "C" fn(*mut *const c_char, CUfunction) -> c_int,
}

impl Functions {
    fn load() -> Result<Functions, GraphMismatch> {
        // SAFETY: a graph exists, so libcuda is open and cudarc returns it.
        let library = unsafe { cudarc::driver::sys::culib() };
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the field that receives the pointer has the signature of CUDA 11.4 (12.3 for the edges and the name), with
                // enumerations as integers of their size; libcuda is never closed.
                *unsafe { library.get($name) }
                    .map_err(|_| GraphMismatch::Unreadable { call: $name, code: NOT_FOUND })?
            };
        }
        Ok(Functions {
            nodes: function!("cuGraphGetNodes"),
            edges: function!("cuGraphGetEdges_v2"),
            kind: function!("cuGraphNodeGetType"),
            parameters: function!("cuGraphKernelNodeGetParams"),
            name: function!("cuFuncGetName"),
        })
    }
}

fn check(call: &'static str, code: c_int) -> Result<(), GraphMismatch> {
    if code == 0 { Ok(()) } else { Err(GraphMismatch::Unreadable { call, code }) }
}

impl KernelGraph {
    /// Reads the graph back through cust_raw.
    pub(super) fn read_back_through_cust(&self) -> Result<GraphReadBack> {
        let (graph, launches) = self.handles()?;
        let launches: Vec<CUgraphNode> = launches.into_iter().map(|node| node.cast()).collect();
        Ok(read(&Functions::load()?, graph.cast(), &launches)?)
    }
}

fn read(driver: &Functions, graph: CUgraph, launches: &[CUgraphNode]) -> Result<GraphReadBack, GraphMismatch> {
    let none = std::ptr::null_mut();
    let mut count = 0;
    // SAFETY: the graph is live; without an array the driver only counts.
    check("cuGraphGetNodes", unsafe { (driver.nodes)(graph, none, &mut count) })?;
    let mut handles: Vec<CUgraphNode> = vec![std::ptr::null_mut(); count];
    // SAFETY: the array has room for `count` nodes, as the driver is told.
    check("cuGraphGetNodes", unsafe { (driver.nodes)(graph, handles.as_mut_ptr(), &mut count) })?;
    handles.truncate(count);
    let mut nodes = BTreeMap::new();
    for handle in handles {
        nodes.insert(handle, read_node(driver, handle)?);
    }
    let mut count = 0;
    // SAFETY: as above.
    check("cuGraphGetEdges_v2", unsafe { (driver.edges)(graph, none, none, std::ptr::null_mut(), &mut count) })?;
    let mut from: Vec<CUgraphNode> = vec![std::ptr::null_mut(); count];
    let mut to = from.clone();
    let mut data = vec![[0; 8]; count];
    // SAFETY: both arrays have room for `count` nodes, as the driver is told.
    check("cuGraphGetEdges_v2", unsafe {
        (driver.edges)(graph, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut count)
    })?;
    let edges: Vec<(CUgraphNode, CUgraphNode)> = from.into_iter().zip(to).take(count).collect();
    Ok(GraphReadBack::ordered(launches, nodes, &edges))
}

fn read_node(driver: &Functions, handle: CUgraphNode) -> Result<NodeReadBack, GraphMismatch> {
    let mut read = NodeReadBack { kind: 0, kernel: String::new(), grid: [0; 3], block: [0; 3], shared_bytes: 0 };
    // SAFETY: the node is live and the kind is valid for a write of an integer.
    check("cuGraphNodeGetType", unsafe { (driver.kind)(handle, &mut read.kind) })?;
    if read.kind != cust_raw::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL as u32 {
        return Ok(read);
    }
    let mut parameters = std::mem::MaybeUninit::<CUDA_KERNEL_NODE_PARAMS>::zeroed();
    // SAFETY: the node is a live kernel node; the structure consists of integers and pointers, for which zero is
    // valid, and is filled on success.
    let parameters = unsafe {
        check("cuGraphKernelNodeGetParams", (driver.parameters)(handle, parameters.as_mut_ptr()))?;
        parameters.assume_init()
    };
    read.grid = [parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ];
    read.block = [parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ];
    read.shared_bytes = parameters.sharedMemBytes;
    let mut name = std::ptr::null();
    // SAFETY: the function is loaded as long as the graph's owner lives.
    check("cuFuncGetName", unsafe { (driver.name)(&mut name, parameters.func) })?;
    if !name.is_null() {
        // SAFETY: the driver's names end in a null byte and live as long as the function.
        read.kernel = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    }
    Ok(read)
}
