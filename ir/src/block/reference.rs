//! The reference graph of the block, in elementary ops.

use super::{BlockConfig, FilterLayout, INPUT_NAME, Positions};
use crate::error::IrError;
use crate::graph::{Graph, Value};
use crate::op::Op;
use crate::types::DType;

/// Builds the graph of a validated configuration.
pub(super) fn build(config: &BlockConfig, batch: usize, seq_len: usize) -> Result<Graph, IrError> {
    let mut builder = Builder { config, graph: Graph::new() };
    let d = config.d_model;
    let mixed_len = seq_len.min(config.l_max);
    let x = builder
        .graph
        .add(Op::Input { name: INPUT_NAME.to_owned(), dtype: DType::F32, shape: vec![batch, seq_len, d] }, &[])?;

    // The mixer.
    let normed = builder.norm(x, "norm1_weight", "norm1_bias")?;
    let projected = builder.linear(normed, "in_proj_weight", "in_proj_bias")?;
    let channels = builder.op(Op::Transpose { permutation: vec![0, 2, 1] }, &[projected])?;
    let taps = builder.weight("short_conv_weight")?;
    let convolved = builder.op(Op::ShortConv {}, &[channels, taps])?;
    let bias = builder.weight("short_conv_bias")?;
    let bias = builder.op(Op::Reshape { shape: vec![3 * d, 1] }, &[bias])?;
    let mut u = builder.op(Op::Add {}, &[convolved, bias])?;
    if mixed_len < seq_len {
        u = builder.op(Op::Slice { axis: 2, start: 0, length: mixed_len }, &[u])?;
    }
    let part =
        |builder: &mut Builder, index: usize| builder.op(Op::Slice { axis: 1, start: index * d, length: d }, &[u]);
    let (x0, x1, v) = (part(&mut builder, 0)?, part(&mut builder, 1)?, part(&mut builder, 2)?);
    let gated = builder.op(Op::Mul {}, &[v, x1])?;
    let filter_bias = builder.weight("filter_bias")?;
    let filter = builder.filter(filter_bias, mixed_len)?;
    let long = builder.op(Op::LongConv {}, &[gated, filter])?;
    let skip_weight = builder.op(Op::Reshape { shape: vec![d, 1] }, &[filter_bias])?;
    let skip = builder.op(Op::Mul {}, &[gated, skip_weight])?;
    let y = builder.op(Op::Add {}, &[long, skip])?;
    let y = builder.op(Op::Mul {}, &[y, x0])?;
    let mut y = builder.op(Op::Transpose { permutation: vec![0, 2, 1] }, &[y])?;
    if mixed_len < seq_len {
        y = builder.op(Op::Pad { axis: 1, before: 0, after: seq_len - mixed_len }, &[y])?;
    }
    let y = builder.linear(y, "out_proj_weight", "out_proj_bias")?;
    let residual = builder.op(Op::Add {}, &[y, x])?;

    // The MLP.
    let normed = builder.norm(residual, "norm2_weight", "norm2_bias")?;
    let inner = builder.linear(normed, "mlp_fc1_weight", "mlp_fc1_bias")?;
    let inner = builder.op(Op::GeluTanh {}, &[inner])?;
    let outer = builder.linear(inner, "mlp_fc2_weight", "mlp_fc2_bias")?;
    let result = builder.op(Op::Add {}, &[outer, residual])?;
    builder.graph.add_output(result);
    Ok(builder.graph)
}

struct Builder<'a> {
    config: &'a BlockConfig,
    graph: Graph,
}

impl Builder<'_> {
    fn op(&mut self, op: Op, operands: &[Value]) -> Result<Value, IrError> {
        self.graph.add(op, operands)
    }

    /// Adds a weight of the configuration; each is asked for once.
    fn weight(&mut self, name: &'static str) -> Result<Value, IrError> {
        let shape = self.config.weights().into_iter().find(|(known, _)| *known == name).map(|(_, shape)| shape);
        let Some(shape) = shape else {
            return Err(IrError::Tensor { name: name.to_owned(), why: "is no weight of the block".to_owned() });
        };
        self.op(Op::Weight { name: name.to_owned(), dtype: DType::F32, shape }, &[])
    }

    fn norm(&mut self, x: Value, weight: &'static str, bias: &'static str) -> Result<Value, IrError> {
        let (weight, bias) = (self.weight(weight)?, self.weight(bias)?);
        self.op(Op::LayerNorm { eps: self.config.layer_norm_eps }, &[x, weight, bias])
    }

    fn linear(&mut self, x: Value, weight: &'static str, bias: &'static str) -> Result<Value, IrError> {
        let weight = self.weight(weight)?;
        let product = self.op(Op::Linear {}, &[x, weight])?;
        let bias = self.weight(bias)?;
        self.op(Op::Add {}, &[product, bias])
    }

    /// The implicit filter `[D, length]`.
    fn filter(&mut self, filter_bias: Value, length: usize) -> Result<Value, IrError> {
        let d = self.config.d_model;
        let positions = match self.config.positions {
            Positions::Sequence => length,
            Positions::Max => self.config.l_max,
        };
        let width = self.config.emb_dim;
        let embedding = self.op(Op::PositionalEmbedding { positions, rows: length, width }, &[])?;
        let frequency = self.weight("sin_freq")?;
        let mut hidden = embedding;
        for (weight, bias) in [
            ("filter_linear1_weight", "filter_linear1_bias"),
            ("filter_linear2_weight", "filter_linear2_bias"),
            ("filter_linear3_weight", "filter_linear3_bias"),
        ] {
            let pre = self.linear(hidden, weight, bias)?;
            let scaled = self.op(Op::Mul {}, &[pre, frequency])?;
            hidden = self.op(Op::Sin {}, &[scaled])?;
        }
        let last = self.weight("filter_linear_final_weight")?;
        let raw = self.op(Op::Linear {}, &[hidden, last])?;

        // The decay exp(-t |delta|) + shift.
        let time = self.op(Op::Slice { axis: 1, start: 0, length: 1 }, &[embedding])?;
        let time = self.op(Op::Neg {}, &[time])?;
        let deltas = self.weight("exp_mod_deltas")?;
        let deltas = self.op(Op::Reshape { shape: vec![1, d] }, &[deltas])?;
        let deltas = self.op(Op::Abs {}, &[deltas])?;
        let exponent = self.op(Op::Mul {}, &[time, deltas])?;
        let decay = self.op(Op::Exp {}, &[exponent])?;
        let shift = self.op(Op::Scalar { value: self.config.shift }, &[])?;
        let decay = self.op(Op::Add {}, &[decay, shift])?;
        let mut filter = self.op(Op::Mul {}, &[raw, decay])?;
        if self.config.filter_bias_in_filter {
            filter = self.op(Op::Add {}, &[filter, filter_bias])?;
        }
        match self.config.filter_layout {
            FilterLayout::Reshape => self.op(Op::Reshape { shape: vec![d, length] }, &[filter]),
            FilterLayout::Transpose => self.op(Op::Transpose { permutation: vec![1, 0] }, &[filter]),
        }
    }
}
