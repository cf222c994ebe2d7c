use hyenac_ir::DType;

use super::*;
use crate::testing::Body;

fn norm_body(shape: &[usize]) -> (Body, Value, Value) {
    let mut body = Body::default();
    let width = *shape.last().unwrap();
    let x = body.parameter(DType::F32, shape);
    let (weight, bias) = (body.parameter(DType::F32, &[width]), body.parameter(DType::F32, &[width]));
    let norm = body.op(Op::LayerNorm { eps: 1e-5 }, &[x, weight, bias]);
    (body, x, norm)
}

fn lower_all(region: &Region) -> Vec<Lowered> {
    let device = Device::h200();
    let candidates = LayerNorm.candidates(region, &device).unwrap();
    candidates.iter().map(|candidate| LayerNorm.lower(region, &candidate.schedule, &device).unwrap()).collect()
}

fn emitted(lowered: &Lowered) -> String {
    let source = &lowered.kernels[0].source.source;
    source[source.find("struct rows_of_region").unwrap()..].to_owned()
}

fn snapshot(name: &str, text: &str) {
    insta::with_settings!({ snapshot_path => concat!(env!("CARGO_MANIFEST_DIR"), "/../snapshots/kernels"),
                            prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, text);
    });
}

#[test]
fn a_plain_norm_loads_and_stores_sixteen_bytes_a_lane() {
    let (body, _, norm) = norm_body(&[2, 131, 256]);
    let text = emitted(&lower_all(&body.region(norm))[2]);
    assert!(text.contains("load_words<0, 16>(raw, p0 + ((row * 256u) + (k_group * 4u)));"), "{text}");
    assert!(text.contains("store_group(o0 + ((row * 256u) + (k_group * 4u)), y);"), "{text}");
    snapshot("layer_norm_plain", &text);
}

#[test]
fn residual_before_and_f16_behind_fuse() {
    let (mut body, x, _) = norm_body(&[1, 64, 40]);
    let other = body.parameter(DType::F16, &[1, 64, 40]);
    let (weight, bias) = (body.parameter(DType::F32, &[40]), body.parameter(DType::F32, &[40]));
    let sum = body.op(Op::Add {}, &[x, other]);
    let norm = body.op(Op::LayerNorm { eps: 1e-5 }, &[sum, weight, bias]);
    let narrow = body.op(Op::Cast { dtype: DType::F16 }, &[norm]);
    // The norm that `norm_body` made is dead and would be a second one: build the region without it.
    let refusal = LayerNorm.candidates(&body.region(narrow), &Device::h200()).unwrap_err();
    assert!(refusal.why.contains("not 2"), "{refusal:?}");

    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[1, 64, 40]);
    let other = body.parameter(DType::F16, &[1, 64, 40]);
    let (weight, bias) = (body.parameter(DType::F32, &[40]), body.parameter(DType::F32, &[40]));
    let sum = body.op(Op::Add {}, &[x, other]);
    let norm = body.op(Op::LayerNorm { eps: 1e-5 }, &[sum, weight, bias]);
    let narrow = body.op(Op::Cast { dtype: DType::F16 }, &[norm]);
    snapshot("layer_norm_residual_f16", &emitted(&lower_all(&body.region(narrow))[0]));
}

#[test]
fn a_transpose_behind_is_stored_element_by_element() {
    let (mut body, _, norm) = norm_body(&[2, 64, 40]);
    let turned = body.op(Op::Transpose { permutation: vec![0, 2, 1] }, &[norm]);
    let text = emitted(&lower_all(&body.region(turned))[0]);
    assert!(text.contains("store_one(o0 + "), "{text}");
}

#[test]
fn long_and_odd_rows_are_accepted() {
    let (body, _, norm) = norm_body(&[3, 5000]);
    let lowered = lower_all(&body.region(norm));
    assert_eq!(lowered.len(), 1);
    assert_eq!(lowered[0].kernels[0].grid, [3, 1, 1]);
    let (body, _, norm) = norm_body(&[7, 13]);
    let lowered = lower_all(&body.region(norm));
    // 13 elements take 16 lanes: 8 rows a block.
    assert_eq!(lowered[0].kernels[0].grid, [1, 1, 1]);
}

#[test]
fn another_heavy_op_is_refused_for_good_and_none_may_still_grow() {
    let (mut body, _, norm) = norm_body(&[8, 16]);
    let weight = body.parameter(DType::F32, &[4, 16]);
    let product = body.op(Op::Linear {}, &[norm, weight]);
    assert!(!LayerNorm.candidates(&body.region(product), &Device::h200()).unwrap_err().larger);
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[8, 16]);
    let sum = body.op(Op::Add {}, &[x, x]);
    assert!(LayerNorm.candidates(&body.region(sum), &Device::h200()).unwrap_err().larger);
}

#[test]
fn elements_of_other_rows_are_refused() {
    let (mut body, _, norm) = norm_body(&[16, 16]);
    let turned = body.op(Op::Transpose { permutation: vec![1, 0] }, &[norm]);
    let sum = body.op(Op::Add {}, &[norm, turned]);
    assert!(LayerNorm.candidates(&body.region(sum), &Device::h200()).is_err());
}

#[test]
fn more_rows_cost_more() {
    let price = |rows: usize| {
        let (body, _, norm) = norm_body(&[rows, 256]);
        let candidates = LayerNorm.candidates(&body.region(norm), &Device::h200()).unwrap();
        candidates.iter().map(|candidate| candidate.time_us).fold(f64::INFINITY, f64::min)
    };
    assert!(price(128) < price(8192));
    assert!(price(8192) < price(1 << 20));
    assert!(price(128) < 4.0);
}
