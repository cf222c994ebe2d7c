//! Every shape rule refuses operands that do not fit, and says why; every limit of a block is named.

use std::collections::BTreeSet;

use hyenac_ir::{Binding, BlockConfig, DType, FilterLayout, Graph, Op, Positions, Region, TABLE, Type, infer};

fn f32(shape: &[usize]) -> Type {
    Type::f32(shape)
}

fn c64(shape: &[usize]) -> Type {
    Type::new(DType::C64, shape)
}

/// An op, operands that do not fit it, and words of the message.
fn cases() -> Vec<(Op, Vec<Type>, &'static str)> {
    let name = || "t".to_owned();
    let mut body = Graph::new();
    let parameter = Op::Parameter { index: 0, dtype: DType::F32, shape: vec![3], binding: Binding::Input };
    let p = body.add(parameter, &[]).expect("valid");
    body.add_output(p);
    let region = || Op::Region(Box::new(Region::new(body.clone())));
    let unary = [Op::Neg {}, Op::Abs {}, Op::Exp {}, Op::Sin {}, Op::GeluTanh {}];
    let mut cases = vec![
        (Op::Input { name: name(), dtype: DType::C64, shape: vec![2] }, vec![], "inputs and weights are real"),
        (Op::Input { name: name(), dtype: DType::F32, shape: vec![2, 0] }, vec![], "is empty or larger"),
        (Op::Weight { name: name(), dtype: DType::C64, shape: vec![2] }, vec![], "inputs and weights are real"),
        (Op::Weight { name: name(), dtype: DType::F32, shape: vec![usize::MAX; 3] }, vec![], "is empty or larger"),
        (
            Op::Parameter { index: 0, dtype: DType::F16, shape: vec![1 << 48], binding: Binding::Input },
            vec![],
            "is empty or larger than 281474976710656 bytes",
        ),
        (Op::Scalar { value: f64::NAN }, vec![], "must be finite, found NaN"),
        (Op::Scalar { value: f64::INFINITY }, vec![], "must be finite, found inf"),
        (Op::PositionalEmbedding { positions: 4, rows: 4, width: 4 }, vec![], "width must be odd"),
        (Op::PositionalEmbedding { positions: 4, rows: 4, width: 1 }, vec![], "at least 3, found 1"),
        (Op::PositionalEmbedding { positions: 4, rows: 5, width: 3 }, vec![], "5 rows of only 4 positions"),
        (Op::PositionalEmbedding { positions: 4, rows: 0, width: 3 }, vec![], "is empty"),
        (Op::Cast { dtype: DType::F16 }, vec![c64(&[2])], "operand 0 must be real, found c64[2]"),
        (Op::Cast { dtype: DType::C64 }, vec![f32(&[2])], "a cast is to a real dtype"),
        (Op::Reshape { shape: vec![3] }, vec![f32(&[2])], "f32[3] has another number of elements"),
        (Op::Reshape { shape: vec![usize::MAX, 2] }, vec![f32(&[2])], "has another number of elements"),
        (Op::Transpose { permutation: vec![0] }, vec![f32(&[2, 3])], "[0] is not a permutation of 2 axes"),
        (Op::Transpose { permutation: vec![1, 1] }, vec![f32(&[2, 3])], "is not a permutation"),
        (Op::Slice { axis: 2, start: 0, length: 1 }, vec![f32(&[2, 3])], "no axis 2"),
        (Op::Slice { axis: 1, start: 2, length: 2 }, vec![f32(&[2, 3])], "of an axis of 3"),
        (Op::Slice { axis: 1, start: 2, length: 0 }, vec![f32(&[2, 3])], "of an axis of 3"),
        (Op::Slice { axis: 1, start: usize::MAX, length: 2 }, vec![f32(&[2, 3])], "of an axis of 3"),
        (Op::Pad { axis: 2, before: 0, after: 0 }, vec![f32(&[2, 3])], "no axis 2"),
        (Op::Pad { axis: 0, before: usize::MAX, after: 1 }, vec![f32(&[2, 3])], "overflows"),
        (Op::Add {}, vec![f32(&[2, 3]), f32(&[2])], "do not broadcast"),
        (Op::Add {}, vec![f32(&[2]), c64(&[2])], "operand 1 must be real"),
        (Op::Mul {}, vec![f32(&[2, 3]), f32(&[4, 3])], "do not broadcast"),
        (Op::Mul {}, vec![c64(&[2]), f32(&[2])], "operand 0 must be real"),
        (Op::LayerNorm { eps: 0.1 }, vec![f32(&[2, 3]), f32(&[3]), f32(&[2])], "weight and bias must be [3]"),
        (Op::LayerNorm { eps: 0.1 }, vec![f32(&[]), f32(&[3]), f32(&[3])], "x needs an axis"),
        (Op::LayerNorm { eps: -0.1 }, vec![f32(&[3]), f32(&[3]), f32(&[3])], "eps must be finite and not negative"),
        (Op::Linear {}, vec![f32(&[2, 3]), f32(&[3, 2])], "weight must be [N, 3]"),
        (Op::Linear {}, vec![f32(&[2, 3]), f32(&[3])], "weight must be [N, 3]"),
        (Op::Linear {}, vec![f32(&[]), f32(&[3, 2])], "x needs an axis"),
        (Op::ShortConv {}, vec![f32(&[2, 3, 4]), f32(&[3, 2, 4])], "expected x: [B, C, L] and weight: [C, 1, T]"),
        (Op::ShortConv {}, vec![f32(&[3, 4]), f32(&[3, 1, 4])], "expected x: [B, C, L]"),
        (Op::LongConv {}, vec![f32(&[2, 3, 4]), f32(&[3, 5])], "expected signal: [B, D, L] and filter: [D, L]"),
        (Op::LongConv {}, vec![f32(&[2, 3, 4]), f32(&[4, 3])], "expected signal"),
        (Op::Rfft { size: 7 }, vec![f32(&[4])], "size must be even and at least 4, found 7"),
        (Op::Rfft { size: 2 }, vec![f32(&[4])], "at least 4, found 2"),
        (Op::Rfft { size: 8 }, vec![f32(&[])], "x needs an axis"),
        (Op::Rfft { size: 8 }, vec![c64(&[4])], "operand 0 must be real"),
        (Op::SpectrumMul {}, vec![c64(&[4]), c64(&[5])], "do not broadcast"),
        (Op::SpectrumMul {}, vec![c64(&[4]), f32(&[4])], "operand 1 must be c64, found f32[4]"),
        (Op::Irfft { size: 8, length: 4 }, vec![c64(&[4])], "size 8 and length 4 do not fit 4 bins"),
        (Op::Irfft { size: 8, length: 9 }, vec![c64(&[5])], "size 8 and length 9 do not fit 5 bins"),
        (Op::Irfft { size: 8, length: 4 }, vec![f32(&[5])], "operand 0 must be c64"),
        (Op::Irfft { size: 0, length: 0 }, vec![c64(&[1])], "do not fit"),
        (region(), vec![f32(&[4])], "operand 0 must be f32[3], found f32[4]"),
        (region(), vec![Type::new(DType::F16, [3])], "operand 0 must be f32[3], found f16[3]"),
    ];
    cases.extend(unary.map(|op| (op, vec![c64(&[2])], "operand 0 must be real, found c64[2]")));
    cases
}

#[test]
fn every_shape_rule_refuses_with_a_reason() {
    let mut covered = BTreeSet::new();
    for (op, operands, words) in cases() {
        let error = match infer(&op, &operands.iter().collect::<Vec<_>>()) {
            Ok(types) => panic!("{op:?} accepts {operands:?} as {types:?}"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(words), "{op:?}: {error}");
        assert!(error.starts_with(op.mnemonic()), "{error}");
        for operand in &operands {
            assert!(error.contains(&operand.to_string()), "{error} does not show {operand}");
        }
        covered.insert(op.mnemonic());
    }
    let all: BTreeSet<&str> = TABLE.iter().map(|row| row.mnemonic).chain(["region"]).collect();
    assert_eq!(covered, all);
}

#[test]
fn every_op_checks_its_arity() {
    for (op, operands, _) in cases() {
        let more: Vec<Type> = operands.iter().cloned().chain([f32(&[1])]).collect();
        let error = infer(&op, &more.iter().collect::<Vec<_>>()).expect_err("one operand too many").to_string();
        let expected = format!("{} takes {} operands, found {}", op.mnemonic(), op.arity(), more.len());
        assert_eq!(error, expected);
    }
}

#[test]
fn limits_of_a_block_are_named() {
    let good = BlockConfig::benchmark();
    let cases = [
        (BlockConfig { d_model: 12, ..good }, "d_model = 12: must be a multiple of 8 from 8 to 1024"),
        (BlockConfig { d_model: 0, ..good }, "d_model = 0"),
        (BlockConfig { d_model: 1032, ..good }, "d_model = 1032"),
        (BlockConfig { d_model: usize::MAX, ..good }, "d_model ="),
        (BlockConfig { emb_dim: 4, ..good }, "emb_dim = 4: must be odd and at least 3"),
        (BlockConfig { emb_dim: 1, ..good }, "emb_dim = 1"),
        (BlockConfig { short_filter: 1, ..good }, "short_filter = 1: must be from 2 to 8 taps"),
        (BlockConfig { short_filter: 9, ..good }, "short_filter = 9"),
        (BlockConfig { filter_order: 0, ..good }, "filter_order = 0: must be at least 1"),
        (BlockConfig { d_inner: 0, ..good }, "d_inner = 0"),
        (BlockConfig { l_max: 0, ..good }, "l_max = 0"),
        (BlockConfig { layer_norm_eps: f64::NAN, ..good }, "layer_norm_eps = NaN: must be finite and not negative"),
        (BlockConfig { layer_norm_eps: -1.0, ..good }, "layer_norm_eps = -1"),
        (BlockConfig { shift: f64::INFINITY, ..good }, "shift = inf: must be finite"),
    ];
    for (config, words) in cases {
        let _ = config.weights();
        let error = config.validate().expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(config.reference_graph(1, 8).expect_err(words).to_string(), error);
    }
    let error = |config: BlockConfig, batch, seq_len| {
        config.reference_graph(batch, seq_len).expect_err("outside the limits").to_string()
    };
    assert!(error(good, 0, 8).contains("batch = 0: must be at least 1"));
    assert!(error(good, 1, 0).contains("seq_len = 0: must be at least 1"));
    let too_long = error(BlockConfig { l_max: 100, ..BlockConfig::hyenadna() }, 1, 101);
    assert!(too_long.contains("seq_len = 101: exceeds l_max = 100") && too_long.contains("raise l_max"), "{too_long}");
}

#[test]
fn sizes_that_overflow_are_errors() {
    let good = BlockConfig::benchmark();
    for (batch, seq_len) in [(usize::MAX, 1), (1, usize::MAX), (usize::MAX, usize::MAX), (1 << 40, 1 << 20)] {
        let error = good.reference_graph(batch, seq_len).expect_err("too large").to_string();
        assert!(error.contains("is empty or larger than"), "{error}");
    }
    for config in [
        BlockConfig { d_inner: usize::MAX, ..good },
        BlockConfig { filter_order: usize::MAX, ..good },
        BlockConfig { emb_dim: usize::MAX, ..good },
    ] {
        config.reference_graph(1, 8).expect_err("too large");
    }
    let far = BlockConfig { l_max: usize::MAX, ..BlockConfig::hyenadna() };
    far.reference_graph(1, 8).expect("a large l_max is no size").verify().expect("valid");
}

#[test]
fn every_combination_of_switches_builds_and_verifies() {
    for filter_layout in [FilterLayout::Reshape, FilterLayout::Transpose] {
        for filter_bias_in_filter in [false, true] {
            for positions in [Positions::Sequence, Positions::Max] {
                for (d_model, short_filter, emb_dim, filter_order, d_inner) in
                    [(8, 2, 3, 1, 1), (1024, 8, 33, 64, 5), (24, 5, 7, 3, 40)]
                {
                    let config = BlockConfig {
                        d_model,
                        d_inner,
                        emb_dim,
                        filter_order,
                        short_filter,
                        l_max: 50,
                        filter_layout,
                        filter_bias_in_filter,
                        positions,
                        ..BlockConfig::benchmark()
                    };
                    for (batch, seq_len) in [(1, 1), (3, 50), (2, 51)] {
                        match config.reference_graph(batch, seq_len) {
                            Ok(graph) => {
                                graph.verify().expect("valid");
                                assert_eq!(graph.outputs().len(), 1);
                                assert_eq!(*graph.ty(graph.outputs()[0]), f32(&[batch, seq_len, d_model]));
                            }
                            Err(error) => assert!(seq_len == 51 && positions == Positions::Max, "{error}"),
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_configuration_survives_json() {
    for config in [BlockConfig::benchmark(), BlockConfig::hyenadna()] {
        let json = serde_json::to_string(&config).expect("plain data");
        assert_eq!(serde_json::from_str::<BlockConfig>(&json).expect("its own text"), config);
    }
}
