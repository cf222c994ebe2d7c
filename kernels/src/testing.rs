//! Regions for the tests of the families.

use hyenac_ir::{Binding, DType, Graph, Op, Region, Type, Value};

/// A region under construction.
#[derive(Default)]
pub struct Body {
    graph: Graph,
    parameters: usize,
}

impl Body {
    pub fn parameter(&mut self, dtype: DType, shape: &[usize]) -> Value {
        let op = Op::Parameter { index: self.parameters, dtype, shape: shape.to_vec(), binding: Binding::Input };
        self.parameters += 1;
        self.graph.add(op, &[]).unwrap()
    }

    pub fn op(&mut self, op: Op, operands: &[Value]) -> Value {
        self.graph.add(op, operands).unwrap()
    }

    pub fn scalar(&mut self, value: f64) -> Value {
        self.op(Op::Scalar { value }, &[])
    }

    pub fn ty(&self, value: Value) -> &Type {
        self.graph.ty(value)
    }

    pub fn region(mut self, output: Value) -> Region {
        self.graph.add_output(output);
        Region::new(self.graph)
    }
}

/// The whole filter network: positions to the filter, `transposed` as the published operator stores it.
pub fn filter_network(length: usize, order: usize, channels: usize, transposed: bool) -> Region {
    let mut body = Body::default();
    let z = body.op(Op::PositionalEmbedding { positions: length, rows: length, width: 5 }, &[]);
    let frequency = body.parameter(DType::F32, &[1, order]);
    let mut h = z;
    for inner in [5, order, order] {
        let (weight, bias) = (body.parameter(DType::F32, &[order, inner]), body.parameter(DType::F32, &[order]));
        h = body.op(Op::Linear {}, &[h, weight]);
        h = body.op(Op::Add {}, &[h, bias]);
        h = body.op(Op::Mul {}, &[h, frequency]);
        h = body.op(Op::Sin {}, &[h]);
    }
    let weight = body.parameter(DType::F32, &[channels, order]);
    h = body.op(Op::Linear {}, &[h, weight]);
    let deltas = body.parameter(DType::F32, &[1, channels]);
    let t = body.op(Op::Slice { axis: 1, start: 0, length: 1 }, &[z]);
    let t = body.op(Op::Neg {}, &[t]);
    let rate = body.op(Op::Abs {}, &[deltas]);
    let decay = body.op(Op::Mul {}, &[t, rate]);
    let decay = body.op(Op::Exp {}, &[decay]);
    let shift = body.scalar(0.05);
    let decay = body.op(Op::Add {}, &[decay, shift]);
    h = body.op(Op::Mul {}, &[h, decay]);
    let k = if transposed {
        body.op(Op::Transpose { permutation: vec![1, 0] }, &[h])
    } else {
        let bias = body.parameter(DType::F32, &[channels]);
        let sum = body.op(Op::Add {}, &[h, bias]);
        body.op(Op::Reshape { shape: vec![channels, length] }, &[sum])
    };
    let k = body.op(Op::Cast { dtype: DType::F16 }, &[k]);
    body.region(k)
}

/// A weight `[n, k]` that is stored in panels of 64 rows.
fn row_packed(body: &mut Body, n: usize, k: usize) -> Value {
    let stored = body.parameter(DType::F16, &[n / 64, k / 8, 64, 8]);
    let moved = body.op(Op::Transpose { permutation: vec![0, 2, 1, 3] }, &[stored]);
    body.op(Op::Reshape { shape: vec![n, k] }, &[moved])
}

/// out = gelu(norm(r) W1 + b1) W2 + b2 + r with r = y^T Wo + bo + x.
pub fn block_tail(batch: usize, length: usize, d: usize, hidden: usize) -> Region {
    let mut body = Body::default();
    let y = body.parameter(DType::F16, &[batch, d, length]);
    let y = body.op(Op::Transpose { permutation: vec![0, 2, 1] }, &[y]);
    let w = row_packed(&mut body, d, d);
    let r = body.op(Op::Linear {}, &[y, w]);
    let bias = body.parameter(DType::F32, &[d]);
    let r = body.op(Op::Add {}, &[r, bias]);
    let x = body.parameter(DType::F32, &[batch, length, d]);
    let r = body.op(Op::Add {}, &[r, x]);
    let (scale, shift) = (body.parameter(DType::F32, &[d]), body.parameter(DType::F32, &[d]));
    let n = body.op(Op::LayerNorm { eps: 1e-5 }, &[r, scale, shift]);
    let n = body.op(Op::Cast { dtype: DType::F16 }, &[n]);
    let w = row_packed(&mut body, hidden, d);
    let h = body.op(Op::Linear {}, &[n, w]);
    let bias = body.parameter(DType::F32, &[hidden]);
    let h = body.op(Op::Add {}, &[h, bias]);
    let h = body.op(Op::GeluTanh {}, &[h]);
    let h = body.op(Op::Cast { dtype: DType::F16 }, &[h]);
    let w = row_packed(&mut body, d, hidden);
    let out = body.op(Op::Linear {}, &[h, w]);
    let bias = body.parameter(DType::F32, &[d]);
    let out = body.op(Op::Add {}, &[out, bias]);
    let out = body.op(Op::Add {}, &[out, r]);
    body.region(out)
}

/// q = transpose(norm(x) W + b), rounded.
pub fn block_head(batch: usize, length: usize, d: usize, columns: usize) -> Region {
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[batch, length, d]);
    let (scale, shift) = (body.parameter(DType::F32, &[d]), body.parameter(DType::F32, &[d]));
    let n = body.op(Op::LayerNorm { eps: 1e-5 }, &[x, scale, shift]);
    let n = body.op(Op::Cast { dtype: DType::F16 }, &[n]);
    let w = row_packed(&mut body, columns, d);
    let q = body.op(Op::Linear {}, &[n, w]);
    let bias = body.parameter(DType::F32, &[columns]);
    let q = body.op(Op::Add {}, &[q, bias]);
    let q = body.op(Op::Transpose { permutation: vec![0, 2, 1] }, &[q]);
    let q = body.op(Op::Cast { dtype: DType::F16 }, &[q]);
    body.region(q)
}

/// What packs a weight `[n, k]` in panels of 64 rows.
pub fn packing(n: usize, k: usize) -> Region {
    let mut body = Body::default();
    let w = body.parameter(DType::F32, &[n, k]);
    let w = body.op(Op::Cast { dtype: DType::F16 }, &[w]);
    let w = body.op(Op::Reshape { shape: vec![n / 64, 64, k / 8, 8] }, &[w]);
    let w = body.op(Op::Transpose { permutation: vec![0, 2, 1, 3] }, &[w]);
    body.region(w)
}
