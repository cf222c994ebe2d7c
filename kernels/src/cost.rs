//! Counting of bytes and work, shared by the price models of the families.

use hyenac_ir::{DType, Graph, NodeIndex, Op, Region};

use crate::device::Device;
use crate::scalar::has_scalar_form;

/// Arithmetic of a region by the unit that does it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Operations on the f32 units.
    pub flops: f64,
    /// Sines, exponentials and the like.
    pub special: f64,
    /// Tensor-core operations with f16 operands.
    pub f16_matrix: f64,
    /// Tensor-core operations with tf32 operands.
    pub tf32_matrix: f64,
}

impl Work {
    /// Time at the device's peak rates if the units work one after the other, microseconds.
    pub fn time_us(&self, device: &Device) -> f64 {
        self.flops / device.f32_rate
            + self.special / device.special_rate
            + self.f16_matrix / device.f16_rate
            + self.tf32_matrix / device.tf32_rate
    }
}

/// Bytes of every operand and every output, each once.
pub fn traffic_bytes(region: &Region) -> f64 {
    let body = region.body();
    let operands: usize = body.parameters().into_iter().map(|node| body.node(node).types[0].bytes()).sum();
    let outputs: usize = body.outputs().iter().map(|&output| body.ty(output).bytes()).sum();
    (operands + outputs) as f64
}

/// Work of the scalar forms of a body, each value computed once per element and again for every tap of a
/// short convolution above it.
pub fn scalar_work(body: &Graph) -> Work {
    let mut repeats = vec![1.0f64; body.len()];
    let mut work = Work::default();
    for node in body.nodes().rev() {
        let weight = repeats[node.index()];
        let operands = body.operands(node);
        let op = &body.node(node).op;
        let elements = body.node(node).types[0].elements() as f64 * weight;
        let (flops, special) = match op {
            Op::Add {} | Op::Mul {} | Op::Neg {} | Op::Abs {} | Op::Cast { .. } => (1.0, 0.0),
            Op::SpectrumMul {} => (6.0, 0.0),
            Op::Exp {} => (2.0, 1.0),
            Op::Sin {} => (20.0, 0.0),
            Op::GeluTanh {} => (6.0, 2.0),
            Op::PositionalEmbedding { .. } => (60.0, 0.0),
            Op::ShortConv {} => (2.0 * body.ty(operands[1]).shape[2] as f64, 0.0),
            // Index arithmetic that views may cost.
            Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice { .. } | Op::Pad { .. } => (1.0, 0.0),
            _ => (0.0, 0.0),
        };
        work.flops += flops * elements;
        work.special += special * elements;
        for (position, operand) in operands.iter().enumerate() {
            let taps = match op {
                Op::ShortConv {} if position == 0 => body.ty(operands[1]).shape[2] as f64,
                _ => 1.0,
            };
            let repeat = &mut repeats[operand.node.index()];
            *repeat = repeat.max(weight * taps);
        }
    }
    work
}

/// The nodes of a body that have no scalar form, in topological order; parameters are not among them.
pub fn heavy_nodes(body: &Graph) -> Vec<NodeIndex> {
    body.nodes().filter(|&node| !has_scalar_form(&body.node(node).op)).collect()
}

/// Whether `node` is computed from `source`.
pub fn depends_on(body: &Graph, node: NodeIndex, source: NodeIndex) -> bool {
    let mut reached = vec![false; body.len()];
    reached[source.index()] = true;
    for later in body.nodes().filter(|later| later.index() > source.index() && later.index() <= node.index()) {
        reached[later.index()] = body.operands(later).iter().any(|operand| reached[operand.node.index()]);
    }
    reached[node.index()]
}

/// Time of a memory-bound pass over these bytes, at the bandwidth that kernels of this kind reach.
pub fn memory_us(bytes: f64, device: &Device) -> f64 {
    // Plain coalesced kernels reach about 85 percent of a large copy's bandwidth.
    bytes / (0.85 * device.memory_bandwidth)
}

/// The multiply-add precision a pair of operand dtypes allows: f16 when both are, tf32 when both are at
/// most tf32, otherwise f32.
pub fn operand_precision(a: DType, b: DType) -> DType {
    match (a, b) {
        (DType::F16, DType::F16) => DType::F16,
        (DType::F16 | DType::Tf32, DType::F16 | DType::Tf32) => DType::Tf32,
        _ => DType::F32,
    }
}
