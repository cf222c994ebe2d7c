//! The meaning of every op, against the formula written down plainly.

mod common;

use common::graphs::{random_graph, random_inputs};
use hyenac_ir::{
    Binding, BlockConfig, DType, Graph, IrError, Op, Real, Region, Rounding, Tensor, Type, Value, evaluate,
    evaluate_body, evaluate_op, infer,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;

fn random(shape: &[usize], seed: u64) -> Tensor<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let data = (0..shape.iter().product()).map(|_| rng.sample::<f64, _>(StandardNormal)).collect();
    Tensor::new(shape, data).expect("the shape fits")
}

/// Evaluates an op on real operands, or on pairs where the type says c64.
fn run(op: &Op, operands: &[&Tensor<f64>]) -> Tensor<f64> {
    let types: Vec<Type> = operands
        .iter()
        .map(|x| Type::new(if x.is_complex() { DType::C64 } else { DType::F32 }, x.shape.clone()))
        .collect();
    let types = infer(op, &types.iter().collect::<Vec<_>>()).expect("the operands fit");
    let mut results = evaluate_op(op, operands, &types, Rounding::Casts).expect("the operands fit");
    assert_eq!(results[0].shape, types[0].shape);
    results.remove(0)
}

fn close(found: &Tensor<f64>, expected: &Tensor<f64>) {
    let error = found.relative_l2(expected);
    assert!(error < 1e-12, "{error:e}: shapes {:?} and {:?}", found.shape, expected.shape);
}

/// A tensor of this shape whose element at an index is `f(index)`.
fn build(shape: &[usize], f: impl Fn(&[usize]) -> f64) -> Tensor<f64> {
    let mut data = Vec::new();
    let mut index = vec![0; shape.len()];
    for mut flat in 0..shape.iter().product() {
        for axis in (0..shape.len()).rev() {
            index[axis] = flat % shape[axis];
            flat /= shape[axis];
        }
        data.push(f(&index));
    }
    Tensor::new(shape, data).expect("the shape fits")
}

/// The element at an index, which may have more axes or reach into axes of extent 1.
fn at(x: &Tensor<f64>, index: &[usize]) -> f64 {
    let mut flat = 0;
    for (&extent, &i) in x.shape.iter().zip(&index[index.len() - x.shape.len()..]) {
        flat = flat * extent + if extent == 1 { 0 } else { i };
    }
    x.data[flat]
}

#[test]
fn elementwise_ops() {
    let x = random(&[3, 40000], 1);
    type Scalar = fn(f64) -> f64;
    let unary: [(Op, Scalar); 5] = [
        (Op::Neg {}, |x| -x),
        (Op::Abs {}, f64::abs),
        (Op::Exp {}, f64::exp),
        (Op::Sin {}, f64::sin),
        (Op::GeluTanh {}, |x| {
            x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }),
    ];
    for (op, f) in unary {
        close(&run(&op, &[&x]), &build(&x.shape, |i| f(at(&x, i))));
    }
}

#[test]
fn broadcasting() {
    let shapes: [(&[usize], &[usize], &[usize]); 9] = [
        (&[5, 7], &[5, 7], &[5, 7]),
        (&[2, 3, 4], &[4], &[2, 3, 4]),
        (&[2, 3, 4], &[3, 1], &[2, 3, 4]),
        (&[2, 1, 4], &[3, 1], &[2, 3, 4]),
        (&[], &[3, 2], &[3, 2]),
        (&[], &[], &[]),
        (&[1, 1], &[1], &[1, 1]),
        (&[6, 1, 5, 1], &[6, 7, 1, 3], &[6, 7, 5, 3]),
        (&[30000, 1], &[1, 3], &[30000, 3]),
    ];
    for (a_shape, b_shape, shape) in shapes {
        let (a, b) = (random(a_shape, 2), random(b_shape, 3));
        close(&run(&Op::Add {}, &[&a, &b]), &build(shape, |i| at(&a, i) + at(&b, i)));
        close(&run(&Op::Mul {}, &[&b, &a]), &build(shape, |i| at(&a, i) * at(&b, i)));
    }
}

#[test]
fn moving_elements() {
    for (shape, permutation) in [
        (vec![2, 70, 130], vec![0, 2, 1]),
        (vec![5, 1, 7], vec![2, 0, 1]),
        (vec![3, 4, 5, 6], vec![3, 1, 2, 0]),
        (vec![3, 4, 5, 6], vec![0, 1, 2, 3]),
        (vec![3, 4, 5, 6], vec![2, 3, 0, 1]),
        (vec![33, 2, 17], vec![1, 0, 2]),
        (vec![1, 1], vec![1, 0]),
        (vec![], vec![]),
    ] {
        let x = random(&shape, 4);
        let result: Vec<usize> = permutation.iter().map(|&axis| shape[axis]).collect();
        let expected = build(&result, |i| {
            let mut index = vec![0; i.len()];
            for (position, &axis) in permutation.iter().enumerate() {
                index[axis] = i[position];
            }
            at(&x, &index)
        });
        close(&run(&Op::Transpose { permutation }, &[&x]), &expected);
    }
    let x = random(&[3, 50, 20], 5);
    close(
        &run(&Op::Slice { axis: 1, start: 7, length: 30 }, &[&x]),
        &build(&[3, 30, 20], |i| at(&x, &[i[0], i[1] + 7, i[2]])),
    );
    close(
        &run(&Op::Slice { axis: 2, start: 19, length: 1 }, &[&x]),
        &build(&[3, 50, 1], |i| at(&x, &[i[0], i[1], 19])),
    );
    close(
        &run(&Op::Pad { axis: 1, before: 2, after: 3 }, &[&x]),
        &build(&[3, 55, 20], |i| if (2..52).contains(&i[1]) { at(&x, &[i[0], i[1] - 2, i[2]]) } else { 0.0 }),
    );
    assert_eq!(run(&Op::Reshape { shape: vec![60, 50] }, &[&x]).data, x.data);
}

#[test]
fn sums_over_an_axis() {
    for (rows, inner, outer) in [(1, 1, 1), (7, 5, 3), (130, 64, 96)] {
        let (x, w) = (random(&[2, rows, inner], 6), random(&[outer, inner], 7));
        let product = |i: &[usize]| (0..inner).map(|k| at(&x, &[i[0], i[1], k]) * at(&w, &[i[2], k])).sum();
        close(&run(&Op::Linear {}, &[&x, &w]), &build(&[2, rows, outer], product));
    }
    let (x, w, b) = (random(&[37, 24], 8), random(&[24], 9), random(&[24], 10));
    let expected = build(&[37, 24], |i| {
        let row: Vec<f64> = (0..24).map(|k| at(&x, &[i[0], k])).collect();
        let mean = row.iter().sum::<f64>() / 24.0;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 24.0;
        (row[i[1]] - mean) / (variance + 0.1).sqrt() * w.data[i[1]] + b.data[i[1]]
    });
    close(&run(&Op::LayerNorm { eps: 0.1 }, &[&x, &w, &b]), &expected);
}

#[test]
fn convolutions() {
    for (length, taps) in [(1, 8), (2, 3), (50, 2), (50, 1)] {
        let (x, w) = (random(&[2, 5, length], 11), random(&[5, 1, taps], 12));
        let expected = build(&[2, 5, length], |i| {
            (0..taps)
                .filter(|j| i[2] + j + 1 >= taps)
                .map(|j| at(&w, &[i[1], 0, j]) * at(&x, &[i[0], i[1], i[2] + j + 1 - taps]))
                .sum()
        });
        close(&run(&Op::ShortConv {}, &[&x, &w]), &expected);
    }
    for length in [1, 2, 64, 65, 131, 256, 337] {
        let (u, k) = (random(&[2, 3, length], 13), random(&[3, length], 14));
        let expected =
            build(&[2, 3, length], |i| (0..=i[2]).map(|s| at(&k, &[i[1], s]) * at(&u, &[i[0], i[1], i[2] - s])).sum());
        close(&run(&Op::LongConv {}, &[&u, &k]), &expected);
    }
}

#[test]
fn spectra() {
    for (length, size) in [(1, 2), (5, 10), (7, 20), (12, 12)] {
        let x = random(&[3, length], 15);
        let bins = size / 2 + 1;
        let spectrum = run(&Op::Rfft { size }, &[&x]);
        let expected = build(&[3, bins, 2], |i| {
            (0..length)
                .map(|t| {
                    let angle = -2.0 * std::f64::consts::PI * (t * i[1]) as f64 / size as f64;
                    at(&x, &[i[0], t]) * if i[2] == 0 { angle.cos() } else { angle.sin() }
                })
                .sum()
        });
        assert_eq!((&spectrum.shape[..], spectrum.is_complex()), (&[3, bins][..], true));
        let as_real = Tensor { shape: vec![3, bins, 2], data: spectrum.data.clone() };
        close(&as_real, &expected);
        close(&run(&Op::Irfft { size, length }, &[&spectrum]), &x);
        // The imaginary parts of both ends are not part of the meaning.
        let mut odd = spectrum.clone();
        odd.data[1] += 3.0;
        odd.data[2 * bins - 1] -= 5.0;
        close(&run(&Op::Irfft { size, length }, &[&odd]), &x);
    }
    // Transform, product with a spectrum a channel, inverse: the long convolution.
    let (u, k) = (random(&[2, 3, 21], 16), random(&[3, 21], 17));
    let size = 42;
    let (us, ks) = (run(&Op::Rfft { size }, &[&u]), run(&Op::Rfft { size }, &[&k]));
    let product = run(&Op::SpectrumMul {}, &[&us, &ks]);
    close(&run(&Op::Irfft { size, length: 21 }, &[&product]), &run(&Op::LongConv {}, &[&u, &k]));
    let mirrored = run(&Op::SpectrumMul {}, &[&ks, &us]);
    close(&mirrored, &product);
    // Moving whole complex elements.
    let moved = run(&Op::Transpose { permutation: vec![2, 0, 1] }, &[&us]);
    let cut = run(&Op::Slice { axis: 0, start: 4, length: 1 }, &[&moved]);
    let cut = run(&Op::Pad { axis: 2, before: 1, after: 0 }, &[&cut]);
    let element = |b: usize, d: usize| &us.data[2 * ((b * 3 + d) * 22 + 4)..][..2];
    assert_eq!(cut.shape, [1, 2, 4]);
    assert_eq!(cut.data[..2], [0.0, 0.0]);
    assert_eq!(&cut.data[2..4], element(0, 0));
    assert_eq!(&cut.data[14..16], element(1, 2));
}

#[test]
fn casts_round_or_not() {
    let x = Tensor::new([4], vec![1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 70000.0, -1e-9]).expect("the shape fits");
    let cast = |dtype, rounding| {
        let ty = Type::new(dtype, [4]);
        evaluate_op(&Op::Cast { dtype }, &[&x], &[ty], rounding).expect("valid").remove(0).data
    };
    assert_eq!(cast(DType::F16, Rounding::Exact), x.data);
    assert_eq!(cast(DType::F32, Rounding::Casts), x.data);
    assert_eq!(cast(DType::F16, Rounding::Casts), [1.0, 1.0 + 2.0 / 1024.0, f64::INFINITY, -0.0]);
    let tf32 = cast(DType::Tf32, Rounding::Casts);
    assert_eq!(tf32[..3], [1.0, 1.0 + 2.0 / 1024.0, 70016.0]);
    assert!((tf32[3] + 1e-9).abs() < 1e-12 && tf32[3] != -1e-9);
}

#[test]
fn positional_embedding() {
    let op = Op::PositionalEmbedding { positions: 10, rows: 4, width: 7 };
    let expected = build(&[4, 7], |i| {
        let w = 2.0 * std::f64::consts::PI * i[0] as f64 / 10.0;
        let f = |band: usize| 1e-4 + (2.0 - 1e-4) * band as f64 / 2.0;
        match i[1] {
            0 => i[0] as f64 / 9.0,
            column @ 1..4 => (w * f(column - 1)).cos(),
            column => -(w * f(column - 4)).sin(),
        }
    });
    close(&run(&op, &[]), &expected);
    assert_eq!(run(&Op::PositionalEmbedding { positions: 1, rows: 1, width: 3 }, &[]).data, [0.0, 1.0, 0.0]);
}

/// `sin(a + b)` as a region, and `a + b` beside it.
fn region() -> Region {
    let mut body = Graph::new();
    let parameter = |index| Op::Parameter { index, dtype: DType::F32, shape: vec![3], binding: Binding::Input };
    // Parameters need not stand in the order of their indices.
    let b = body.add(parameter(1), &[]).expect("valid");
    let a = body.add(parameter(0), &[]).expect("valid");
    let sum = body.add(Op::Add {}, &[a, b]).expect("valid");
    let sine = body.add(Op::Sin {}, &[sum]).expect("valid");
    let difference = body.add(Op::Neg {}, &[b]).expect("valid");
    let difference = body.add(Op::Add {}, &[a, difference]).expect("valid");
    body.add_output(sine);
    body.add_output(difference);
    Region::new(body)
}

#[test]
fn regions_mean_their_body() {
    let (a, b) = (random(&[3], 20), random(&[3], 21));
    let results = evaluate_body(region().body(), &[&a, &b], Rounding::Exact).expect("valid");
    close(&results[0], &build(&[3], |i| (at(&a, i) + at(&b, i)).sin()));
    close(&results[1], &build(&[3], |i| at(&a, i) - at(&b, i)));
    let mut graph = Graph::new();
    let x = graph.add(Op::Input { name: "x".into(), dtype: DType::F32, shape: vec![3] }, &[]).expect("valid");
    let w = graph.add(Op::Weight { name: "w".into(), dtype: DType::F32, shape: vec![3] }, &[]).expect("valid");
    let node = graph.add_region(region(), &[x, w]).expect("valid");
    for output in [1, 0, 1] {
        graph.add_output(Value { node, output });
    }
    graph.add_output(x);
    let tensors = [("x".to_owned(), a.clone()), ("w".to_owned(), b)].into();
    let found = evaluate(&graph, &tensors, Rounding::Exact).expect("valid");
    assert_eq!(found, [results[1].clone(), results[0].clone(), results[1].clone(), a]);
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let config = BlockConfig { d_model: 8, d_inner: 8, filter_order: 4, ..BlockConfig::benchmark() };
    let graph = config.reference_graph(1, 5).expect("valid");
    let good = common::random_tensors(&config, 1, 5, 0);
    evaluate(&graph, &good, Rounding::Casts).expect("all are there");
    for name in good.keys() {
        let mut tensors = good.clone();
        let removed = tensors.remove(name).expect("it was there");
        let error = evaluate(&graph, &tensors, Rounding::Casts).expect_err("one is missing");
        assert!(matches!(&error, IrError::Tensor { name: found, why } if found == name && why.contains("missing")));
        tensors.insert(name.clone(), Tensor { shape: [&[2], &removed.shape[..]].concat(), data: removed.data.clone() });
        let error = evaluate(&graph, &tensors, Rounding::Casts).expect_err("one has another shape");
        assert!(error.to_string().contains("has shape"), "{error}");
        tensors.insert(name.clone(), Tensor { shape: removed.shape.clone(), data: removed.data[1..].to_vec() });
        let error = evaluate(&graph, &tensors, Rounding::Casts).expect_err("one is too short");
        assert!(error.to_string().contains(name), "{error}");
    }
    let x = random(&[3], 0);
    let error = evaluate_body(region().body(), &[&x], Rounding::Casts).expect_err("one operand is missing");
    assert!(error.to_string().contains("operand 1"), "{error}");
}

#[test]
fn operands_that_do_not_fit_are_refused_not_indexed() {
    let (x, w) = (random(&[2, 3], 0), random(&[5, 4], 1));
    let ty = Type::f32([2, 5]);
    evaluate_op(&Op::Linear {}, &[&x, &w], std::slice::from_ref(&ty), Rounding::Exact).expect_err("3 is not 4");
    evaluate_op(&Op::Linear {}, &[&x], std::slice::from_ref(&ty), Rounding::Exact).expect_err("one operand");
    let w = random(&[5, 3], 1);
    evaluate_op(&Op::Linear {}, &[&x, &w], &[Type::f32([2, 6])], Rounding::Exact).expect_err("another result");
    evaluate_op(&Op::Linear {}, &[&x, &w], &[], Rounding::Exact).expect_err("no result");
    let torn = Tensor { shape: vec![5, 3], data: vec![0.0; 7] };
    evaluate_op(&Op::Linear {}, &[&x, &torn], std::slice::from_ref(&ty), Rounding::Exact).expect_err("too short");
    let empty: Tensor<f64> = Tensor { shape: vec![5, 0], data: vec![] };
    evaluate_op(&Op::Neg {}, &[&empty], &[Type::f32([5, 0])], Rounding::Exact).expect_err("empty");
}

#[test]
fn random_graphs_evaluate_to_their_types() {
    for seed in 0..150 {
        let graph = random_graph(seed, 40);
        let tensors = random_inputs(&graph, seed);
        let results = evaluate(&graph, &tensors, Rounding::Casts).expect("every tensor is there");
        assert_eq!(results.len(), graph.outputs().len());
        for (result, &output) in results.iter().zip(graph.outputs()) {
            let ty = graph.ty(output);
            assert_eq!(result.shape, ty.shape);
            assert_eq!(result.is_complex(), ty.dtype == DType::C64, "seed {seed}");
        }
        // Reusing memory of operands must not change anything: keep every value alive and compare.
        let mut all = graph.clone();
        for node in graph.nodes() {
            all.add_output(Value::of(node));
        }
        let kept = evaluate(&all, &tensors, Rounding::Casts).expect("every tensor is there");
        for (result, kept) in results.iter().zip(&kept) {
            let same = result.data.iter().zip(&kept.data).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()));
            assert!(same, "seed {seed}\n{graph}");
        }
    }
}

#[test]
fn f32_follows_f64() {
    let config = BlockConfig { d_model: 32, d_inner: 64, filter_order: 16, short_filter: 4, ..BlockConfig::hyenadna() };
    let graph = config.reference_graph(2, 150).expect("valid");
    let tensors = common::random_tensors(&config, 2, 150, 3);
    let exact = evaluate(&graph, &tensors, Rounding::Exact).expect("valid");
    let single = evaluate(&graph, &common::narrow(&tensors), Rounding::Exact).expect("valid");
    let error = single[0].relative_l2(&exact[0]);
    assert!(error > 1e-9 && error < 5e-5, "{error:e}");
    assert!(single[0].data.iter().all(|x| x.to_double().is_finite()));
}

#[test]
fn every_weight_matters() {
    let config = BlockConfig { d_model: 16, d_inner: 32, filter_order: 8, ..BlockConfig::benchmark() };
    let graph = config.reference_graph(1, 40).expect("valid");
    let tensors = common::random_tensors(&config, 1, 40, 5);
    let exact = evaluate(&graph, &tensors, Rounding::Exact).expect("valid");
    for (name, shape) in config.weights() {
        let mut without = tensors.clone();
        without.insert(name.to_owned(), Tensor::zeros(&Type::f32(shape)).expect("small"));
        let changed = evaluate(&graph, &without, Rounding::Exact).expect("valid");
        let change = changed[0].relative_l2(&exact[0]);
        assert!(change > 1e-3, "losing {name} moves the output by {change:e} only");
    }
}
