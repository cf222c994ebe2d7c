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
