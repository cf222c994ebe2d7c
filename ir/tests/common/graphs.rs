//! Random valid graphs, with every op of the table in reach.

use std::collections::BTreeMap;

use hyenac_ir::{Binding, DType, Graph, Op, Region, Tensor, Type, Value};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;

/// A random graph of roughly `size` ops; the same seed gives the same graph.
pub fn random_graph(seed: u64, size: usize) -> Graph {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut maker = Maker { graph: Graph::new(), values: Vec::new(), parameters: None, sources: 0 };
    maker.source(&mut rng, Type::f32([2, 3, 6]));
    maker.grow(&mut rng, size);
    maker.finish(&mut rng)
}

/// Random tensors for all inputs and weights of a graph.
pub fn random_inputs(graph: &Graph, seed: u64) -> BTreeMap<String, Tensor<f64>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut tensors = BTreeMap::new();
    for node in graph.nodes() {
        if let Op::Input { name, shape, .. } | Op::Weight { name, shape, .. } = &graph.node(node).op {
            let count = shape.iter().product();
            // Halves of small integers are exact in every dtype.
            let data = (0..count).map(|_| (rng.sample::<f64, _>(StandardNormal) * 2.0).round() / 2.0).collect();
            tensors.insert(name.clone(), Tensor::new(shape.clone(), data).expect("the shape fits"));
        }
    }
    tensors
}

struct Maker {
    graph: Graph,
    values: Vec<Value>,
    /// In the body of a region, the types and bindings of its parameters so far.
    parameters: Option<Vec<(Type, Binding)>>,
    sources: usize,
}

impl Maker {
    fn source(&mut self, rng: &mut impl Rng, ty: Type) -> Value {
        let binding = if rng.random_bool(0.5) { Binding::Weights } else { Binding::Input };
        self.source_bound(rng, ty, binding)
    }

    fn source_bound(&mut self, rng: &mut impl Rng, ty: Type, binding: Binding) -> Value {
        let Type { dtype, shape } = ty.clone();
        let op = match &mut self.parameters {
            Some(parameters) => {
                parameters.push((ty, binding));
                Op::Parameter { index: parameters.len() - 1, dtype, shape, binding }
            }
            None => {
                let odd = ["", " ", "\"", "\\", "\n", "é", "\u{301}", "\u{7f}", "'", "%0 = {"];
                let name = format!("t{}{}", self.sources, odd[rng.random_range(0..odd.len())]);
                self.sources += 1;
                match binding {
                    Binding::Input => Op::Input { name, dtype, shape },
                    Binding::Weights => Op::Weight { name, dtype, shape },
                }
            }
        };
        self.push(op, &[]).expect("sources are valid")
    }

    fn push(&mut self, op: Op, operands: &[Value]) -> Option<Value> {
        let value = self.graph.add(op, operands).ok()?;
        self.values.push(value);
        Some(value)
    }

    fn pick(&self, rng: &mut impl Rng) -> Value {
        self.values[rng.random_range(0..self.values.len())]
    }

    /// A value of this kind, or a reshaped or fresh one.
    fn of_rank(&mut self, rng: &mut impl Rng, rank: usize) -> Value {
        let fitting: Vec<Value> = self
            .values
            .iter()
            .copied()
            .filter(|&v| self.graph.ty(v).rank() == rank && self.graph.ty(v).dtype.is_real())
            .collect();
        if fitting.is_empty() || rng.random_bool(0.1) {
            let shape: Vec<usize> = (0..rank).map(|_| rng.random_range(1..7)).collect();
            let dtype = [DType::F32, DType::F16, DType::Tf32][rng.random_range(0..3)];
            return self.source(rng, Type::new(dtype, shape));
        }
        fitting[rng.random_range(0..fitting.len())]
    }

    fn grow(&mut self, rng: &mut impl Rng, size: usize) {
        for _ in 0..size {
            let x = self.pick(rng);
            let ty = self.graph.ty(x).clone();
            let last = ty.shape.last().copied().unwrap_or(1);
            let small = |rng: &mut _| RngExt::random_range(rng, 1..7usize);
            // A refused attempt just adds nothing.
            match rng.random_range(0..22) {
                0 => drop(self.push(Op::Cast { dtype: DType::ALL[rng.random_range(0..3)] }, &[x])),
                1 => {
                    let mut shape = ty.shape.clone();
                    match rng.random_range(0..3) {
                        0 => shape.push(1),
                        1 => shape = vec![ty.elements()],
                        _ => shape.reverse(),
                    }
                    self.push(Op::Reshape { shape }, &[x]);
                }
                2 => {
                    let mut permutation: Vec<usize> = (0..ty.rank()).collect();
                    for axis in (1..ty.rank()).rev() {
                        permutation.swap(axis, rng.random_range(0..axis + 1));
                    }
                    self.push(Op::Transpose { permutation }, &[x]);
                }
                3 if ty.rank() > 0 => {
                    let axis = rng.random_range(0..ty.rank());
                    let start = rng.random_range(0..ty.shape[axis]);
                    let length = rng.random_range(1..ty.shape[axis] - start + 1);
                    self.push(Op::Slice { axis, start, length }, &[x]);
                }
                4 if ty.rank() > 0 && ty.elements() < 1000 => {
                    let axis = rng.random_range(0..ty.rank());
                    self.push(Op::Pad { axis, before: rng.random_range(0..3), after: rng.random_range(0..3) }, &[x]);
                }
                5 | 6 => {
                    let y = self.pick(rng);
                    self.push(if rng.random_bool(0.5) { Op::Add {} } else { Op::Mul {} }, &[x, y]);
                }
                7 => drop(self.push(Op::Neg {}, &[x])),
                8 => drop(self.push(Op::Abs {}, &[x])),
                9 => drop(self.push(Op::Exp {}, &[x])),
                10 => drop(self.push(Op::Sin {}, &[x])),
                11 => drop(self.push(Op::GeluTanh {}, &[x])),
                12 if ty.rank() > 0 && ty.dtype.is_real() => {
                    let weight = self.source(rng, Type::f32([last]));
                    let bias = self.source(rng, Type::f32([last]));
                    let eps = [1e-5, 0.0, 1e-12, 0.1][rng.random_range(0..4)];
                    self.push(Op::LayerNorm { eps }, &[x, weight, bias]);
                }
                13 if ty.rank() > 0 && ty.dtype.is_real() => {
                    let outer = small(rng);
                    let weight = self.source(rng, Type::f32([outer, last]));
                    self.push(Op::Linear {}, &[x, weight]);
                }
                14 => {
                    let x = self.of_rank(rng, 3);
                    let channels = self.graph.ty(x).shape[1];
                    let taps = small(rng);
                    let weight = self.source(rng, Type::f32([channels, 1, taps]));
                    self.push(Op::ShortConv {}, &[x, weight]);
                }
                15 => {
                    let x = self.of_rank(rng, 3);
                    let shape = self.graph.ty(x).shape[1..].to_vec();
                    let filter = self.source(rng, Type::f32(shape));
                    self.push(Op::LongConv {}, &[x, filter]);
                }
                16 if ty.rank() > 0 => drop(self.push(Op::Rfft { size: 2 * (last + small(rng)) }, &[x])),
                17 => drop(self.push(Op::SpectrumMul {}, &[x, x])),
                18 if ty.dtype == DType::C64 => {
                    let size = 2 * (last - 1);
                    let length = rng.random_range(1..size.max(1) + 1);
                    self.push(Op::Irfft { size, length }, &[x]);
                }
                19 => {
                    let rows = small(rng);
                    let positions = rows + rng.random_range(0..9);
                    self.push(Op::PositionalEmbedding { positions, rows, width: 2 * small(rng) + 1 }, &[]);
                }
                20 => {
                    let values = [0.05, -0.0, 1e-300, 1.0 / 3.0, -12345678.9, f64::MAX, f64::MIN_POSITIVE, 5e-324];
                    self.push(Op::Scalar { value: values[rng.random_range(0..values.len())] }, &[]);
                }
                21 if self.parameters.is_none() => self.region(rng),
                _ => {}
            }
        }
    }

    fn region(&mut self, rng: &mut impl Rng) {
        let mut inner = Maker { graph: Graph::new(), values: Vec::new(), parameters: Some(Vec::new()), sources: 0 };
        let operand = self.pick(rng);
        let known = (self.graph.ty(operand).clone(), self.graph.binding(operand));
        inner.source_bound(rng, known.0, known.1);
        inner.grow(rng, 6);
        let parameters = inner.parameters.clone().unwrap_or_default();
        let mut region = Region::new(inner.finish(rng));
        if rng.random_bool(0.5) {
            region.schedule = "tile=64x64 \"stages\"=3".to_owned();
        }
        let mut operands = vec![operand];
        for (ty, binding) in parameters.into_iter().skip(1) {
            operands.push(self.source_bound(rng, ty, binding));
        }
        let node = self.graph.add_region(region, &operands).expect("operands have the parameters' types");
        for output in 0..self.graph.node(node).types.len() {
            self.values.push(Value { node, output: output as u32 });
        }
    }

    /// Every value that nothing uses becomes an output, and one more besides.
    fn finish(mut self, rng: &mut impl Rng) -> Graph {
        let extra = self.pick(rng);
        for value in self.values.clone() {
            if self.graph.users(value.node).iter().all(|(_, how)| how.output != value.output) {
                self.graph.add_output(value);
            }
        }
        self.graph.add_output(extra);
        self.graph
    }
}
