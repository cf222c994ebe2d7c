//! Reads a graph back from the driver and compares it with its plan.

use std::collections::BTreeMap;

use cudarc::driver::sys;
use hyenac_kernels::{KernelSource, Launch};

use super::error::{During, Result};
use super::graph::KernelGraph;

/// A node as the driver reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReadBack {
    /// The driver's number of the node's kind; 0 is a kernel.
    pub kind: u32,
    /// Name of the kernel; empty for other kinds.
    pub kernel: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_bytes: u32,
}

/// A graph as the driver reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphReadBack {
    /// Nodes, in the order of the plan's launches; those that no launch made come last.
    pub nodes: Vec<NodeReadBack>,
    /// Edges as pairs of indices into `nodes`, ascending.
    pub edges: Vec<(usize, usize)>,
}

/// The first difference between a graph and its plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphMismatch {
    /// Another number of nodes.
    #[error("it has {graph} nodes, the plan {plan} launches")]
    NodeCount {
        /// Nodes of the graph.
        graph: usize,
        /// Launches of the plan.
        plan: usize,
    },
    /// A node that is no kernel.
    #[error("node {node} is of kind {kind}, not a kernel")]
    Kind {
        /// The node.
        node: usize,
        /// The driver's number of its kind.
        kind: u32,
    },
    /// A node of another kernel.
    #[error("node {node} runs {graph}, the plan says {plan}")]
    Kernel {
        /// The node.
        node: usize,
        /// Kernel of the node.
        graph: String,
        /// Kernel of the launch.
        plan: String,
    },
    /// A node with other dimensions.
    #[error("node {node}: {what} is {graph:?}, the plan says {plan:?}")]
    Dimensions {
        /// The node.
        node: usize,
        /// Grid, block or shared memory.
        what: &'static str,
        /// Of the node.
        graph: Vec<u32>,
        /// Of the launch.
        plan: Vec<u32>,
    },
    /// An edge that only one of the two has.
    #[error("the edge from node {from} to node {to} is only in the {}", if *.in_graph { "graph" } else { "plan" })]
    Edge {
        /// Where it begins.
        from: usize,
        /// Where it ends.
        to: usize,
        /// Whether it is the graph that has it.
        in_graph: bool,
    },
    /// The reading itself failed, in the independent read-back.
    #[error("{call} returned {code} when the graph was read back")]
    Unreadable {
        /// The driver's function.
        call: &'static str,
        /// What it returned.
        code: i32,
    },
}

impl GraphReadBack {
    /// Compares with launches of a plan.
    ///
    /// # Errors
    /// The first difference.
    pub fn verify_against(&self, launches: &[Launch], kernels: &[KernelSource]) -> Result<(), GraphMismatch> {
        if self.nodes.len() != launches.len() {
            return Err(GraphMismatch::NodeCount { graph: self.nodes.len(), plan: launches.len() });
        }
        for (node, (read, launch)) in self.nodes.iter().zip(launches).enumerate() {
            if read.kind != sys::CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_KERNEL as u32 {
                return Err(GraphMismatch::Kind { node, kind: read.kind });
            }
            let plan = kernels.get(launch.kernel).map_or("", |kernel| kernel.name.as_str());
            if read.kernel != plan {
                return Err(GraphMismatch::Kernel { node, graph: read.kernel.clone(), plan: plan.to_owned() });
            }
            let dimensions: [(&'static str, &[u32], &[u32]); 3] = [
                ("the grid", &read.grid, &launch.grid),
                ("the block", &read.block, &launch.block),
                ("the dynamic shared memory", &[read.shared_bytes], &[launch.shared_bytes]),
            ];
            for (what, graph, plan) in dimensions {
                if graph != plan {
                    return Err(GraphMismatch::Dimensions { node, what, graph: graph.to_vec(), plan: plan.to_vec() });
                }
            }
        }
        let mut planned: Vec<(usize, usize)> = launches
            .iter()
            .enumerate()
            .flat_map(|(to, launch)| launch.after.iter().map(move |&from| (from, to)))
            .collect();
        planned.sort_unstable();
        let only_in = |these: &[(usize, usize)], those: &[(usize, usize)]| {
            these.iter().copied().find(|edge| those.binary_search(edge).is_err())
        };
        if let Some((from, to)) = only_in(&self.edges, &planned) {
            return Err(GraphMismatch::Edge { from, to, in_graph: true });
        }
        if let Some((from, to)) = only_in(&planned, &self.edges) {
            return Err(GraphMismatch::Edge { from, to, in_graph: false });
        }
        Ok(())
    }

    /// Orders nodes and edges, which the driver reports in an order of its own, by the plan's launches.
    pub(super) fn ordered<Handle: Copy + Ord>(
        launches: &[Handle],
        mut nodes: BTreeMap<Handle, NodeReadBack>,
        edges: &[(Handle, Handle)],
    ) -> GraphReadBack {
        let strangers: Vec<Handle> = nodes.keys().copied().filter(|handle| !launches.contains(handle)).collect();
        let order: Vec<Handle> =
            launches.iter().copied().filter(|handle| nodes.contains_key(handle)).chain(strangers).collect();
        let position: BTreeMap<Handle, usize> =
            order.iter().enumerate().map(|(index, &handle)| (handle, index)).collect();
        // An edge to a node that was not reported cannot be placed; the driver reports none.
        let mut edges: Vec<(usize, usize)> =
            edges.iter().filter_map(|(from, to)| Some((*position.get(from)?, *position.get(to)?))).collect();
        edges.sort_unstable();
        GraphReadBack { nodes: order.iter().filter_map(|handle| nodes.remove(handle)).collect(), edges }
    }
}

impl KernelGraph {
    /// Reads nodes, kinds, edges and launch dimensions back from the driver.
    pub(super) fn read_back(&self) -> Result<GraphReadBack> {
        let (graph, launches) = self.handles()?;
        let mut count = 0;
        // SAFETY: the graph is live; without an array the driver only counts.
        unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count) }.during("cuGraphGetNodes")?;
        let mut handles = vec![std::ptr::null_mut(); count];
        // SAFETY: the array has room for `count` nodes, as the driver is told.
        unsafe { sys::cuGraphGetNodes(graph, handles.as_mut_ptr(), &mut count) }.during("cuGraphGetNodes")?;
        handles.truncate(count);
        let mut nodes = BTreeMap::new();
        for handle in handles {
            nodes.insert(handle, read_node(handle)?);
        }
        let edges = read_edges(graph)?;
        Ok(GraphReadBack::ordered(&launches, nodes, &edges))
    }
}

fn read_node(handle: sys::CUgraphNode) -> Result<NodeReadBack> {
    let mut kind = std::mem::MaybeUninit::<u32>::uninit();
    // SAFETY: the node is live. The kind is received as an integer of the enumeration's size (it is `repr(u32)`), so
    // that a kind of a newer driver is no undefined behaviour; on success it has been written.
    let kind = unsafe {
        sys::cuGraphNodeGetType(handle, kind.as_mut_ptr().cast()).during("cuGraphNodeGetType")?;
        kind.assume_init()
    };
    let mut read = NodeReadBack { kind, kernel: String::new(), grid: [0; 3], block: [0; 3], shared_bytes: 0 };
    if kind != sys::CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_KERNEL as u32 {
        return Ok(read);
    }
    let mut parameters = std::mem::MaybeUninit::<sys::CUDA_KERNEL_NODE_PARAMS>::zeroed();
    // SAFETY: the node is a live kernel node; the structure consists of integers and pointers, for which zero is
    // valid, and is filled on success.
    let parameters = unsafe {
        sys::cuGraphKernelNodeGetParams_v2(handle, parameters.as_mut_ptr()).during("cuGraphKernelNodeGetParams_v2")?;
        parameters.assume_init()
    };
    read.grid = [parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ];
    read.block = [parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ];
    read.shared_bytes = parameters.sharedMemBytes;
    let mut name = std::ptr::null();
    if parameters.func.is_null() {
        // SAFETY: a kernel node names a function or, as here, a kernel, which the graph's owner keeps loaded.
        unsafe { sys::cuKernelGetName(&mut name, parameters.kern) }.during("cuKernelGetName")?;
    } else {
        // SAFETY: the function is loaded as long as the graph's owner lives.
        unsafe { sys::cuFuncGetName(&mut name, parameters.func) }.during("cuFuncGetName")?;
    }
    if !name.is_null() {
        // SAFETY: the driver's names end in a null byte and live as long as the function.
        read.kernel = unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned();
    }
    Ok(read)
}

fn read_edges(graph: sys::CUgraph) -> Result<Vec<(sys::CUgraphNode, sys::CUgraphNode)>> {
    let none = std::ptr::null_mut();
    let mut count = 0;
    // SAFETY: the graph is live; without arrays the driver only counts.
    unsafe { sys::cuGraphGetEdges_v2(graph, none, none, std::ptr::null_mut(), &mut count) }
        .during("cuGraphGetEdges_v2")?;
    let mut from = vec![std::ptr::null_mut(); count];
    let mut to = vec![std::ptr::null_mut(); count];
    // Plain dependencies carry no data, but the driver refuses to list edges that do unless there is room for it.
    let mut data = vec![sys::CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] }; count];
    // SAFETY: the three arrays have room for `count` edges, as the driver is told.
    unsafe { sys::cuGraphGetEdges_v2(graph, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut count) }
        .during("cuGraphGetEdges_v2")?;
    Ok(from.into_iter().zip(to).take(count).collect())
}

#[cfg(test)]
mod tests {
    use super::super::layout::tests::{launch, plan};
    use super::*;

    fn faithful() -> (GraphReadBack, Vec<Launch>, Vec<KernelSource>) {
        let mut plan = plan();
        plan.launches.push(launch(0, &[], &[0, 1]));
        let nodes = plan
            .launches
            .iter()
            .map(|launch| NodeReadBack {
                kind: 0,
                kernel: plan.kernels[launch.kernel].name.clone(),
                grid: launch.grid,
                block: launch.block,
                shared_bytes: launch.shared_bytes,
            })
            .collect();
        (GraphReadBack { nodes, edges: vec![(0, 1), (0, 2), (1, 2)] }, plan.launches, plan.kernels)
    }

    #[test]
    fn the_first_difference_is_named() {
        let (graph, launches, kernels) = faithful();
        assert_eq!(graph.verify_against(&launches, &kernels), Ok(()));
        let check = |change: &dyn Fn(&mut GraphReadBack), expected: &str| {
            let mut graph = graph.clone();
            change(&mut graph);
            let mismatch = graph.verify_against(&launches, &kernels).unwrap_err();
            assert_eq!(mismatch.to_string(), expected);
        };
        check(&|graph| drop(graph.nodes.pop()), "it has 2 nodes, the plan 3 launches");
        check(&|graph| graph.nodes[1].kind = 1, "node 1 is of kind 1, not a kernel");
        check(&|graph| graph.nodes[1].kernel = "other".to_owned(), "node 1 runs other, the plan says second");
        check(&|graph| graph.nodes[0].grid[1] = 7, "node 0: the grid is [2, 7, 1], the plan says [2, 1, 1]");
        check(&|graph| graph.nodes[0].shared_bytes = 4, "node 0: the dynamic shared memory is [4], the plan says [0]");
        check(
            &|graph| graph.edges.retain(|edge| *edge != (0, 2)),
            "the edge from node 0 to node 2 is only in the plan",
        );
        check(&|graph| graph.edges.insert(0, (0, 0)), "the edge from node 0 to node 0 is only in the graph");
    }

    #[test]
    fn nodes_come_in_the_order_of_the_launches_and_strangers_last() {
        let node = |name: &str| NodeReadBack {
            kind: 0,
            kernel: name.to_owned(),
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
        };
        let nodes = BTreeMap::from([(10, node("stranger")), (20, node("b")), (30, node("a"))]);
        let graph = GraphReadBack::ordered(&[30, 20], nodes, &[(20, 10), (30, 20)]);
        let names: Vec<&str> = graph.nodes.iter().map(|node| node.kernel.as_str()).collect();
        assert_eq!(names, ["a", "b", "stranger"]);
        assert_eq!(graph.edges, [(0, 1), (1, 2)]);
    }
}
