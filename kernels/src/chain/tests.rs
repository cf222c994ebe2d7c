use hyenac_ir::Op;

use super::*;
use crate::testing::{Body, filter_network};

fn lower_best(region: &Region) -> Lowered {
    let device = Device::h200();
    let candidates = ChainFamily.candidates(region, &device).unwrap();
    let best = candidates.iter().min_by(|a, b| a.time_us.total_cmp(&b.time_us)).unwrap();
    ChainFamily.lower(region, &best.schedule, &device).unwrap()
}

fn snapshot(name: &str, text: &str) {
    insta::with_settings!({ snapshot_path => concat!(env!("CARGO_MANIFEST_DIR"), "/../snapshots/kernels"),
                            prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, text);
    });
}

/// The emitted part of a translation unit, without the device halves that every kernel shares.
fn emitted(lowered: &Lowered) -> String {
    let source = &lowered.kernels[0].source.source;
    source[source.find("extern \"C\"").unwrap()..].to_owned()
}

#[test]
fn the_filter_network_is_one_kernel_in_both_layouts() {
    snapshot("chain_filter_reshape", &emitted(&lower_best(&filter_network(131, 64, 256, false))));
    snapshot("chain_filter_transpose", &emitted(&lower_best(&filter_network(131, 64, 256, true))));
}

#[test]
fn more_rows_take_larger_tiles() {
    let grid = |length| lower_best(&filter_network(length, 64, 256, true)).kernels[0].grid[0];
    // Few rows are spread over many multiprocessors, many rows never exceed what is resident.
    assert!(grid(256) >= 32, "{}", grid(256));
    assert!(grid(1 << 20) <= 2 * 132, "{}", grid(1 << 20));
}

#[test]
fn weights_that_exceed_shared_memory_are_staged_piece_by_piece() {
    let lowered = lower_best(&filter_network(64, 200, 1024, true));
    assert!(lowered.kernels[0].shared_bytes <= Device::h200().shared_bytes_per_block);
}

#[test]
fn two_linears_side_by_side_are_refused() {
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[8, 16]);
    let (w, v) = (body.parameter(DType::F32, &[16, 16]), body.parameter(DType::F32, &[16, 16]));
    let a = body.op(Op::Linear {}, &[x, w]);
    let b = body.op(Op::Linear {}, &[x, v]);
    let sum = body.op(Op::Add {}, &[a, b]);
    let refusal = ChainFamily.candidates(&body.region(sum), &Device::h200()).unwrap_err();
    assert!(!refusal.larger, "{refusal:?}");
}

#[test]
fn a_reshape_between_layers_is_refused() {
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[8, 16]);
    let (w, v) = (body.parameter(DType::F32, &[16, 16]), body.parameter(DType::F32, &[16, 8]));
    let a = body.op(Op::Linear {}, &[x, w]);
    let folded = body.op(Op::Reshape { shape: vec![16, 8] }, &[a]);
    let b = body.op(Op::Linear {}, &[folded, v]);
    let refusal = ChainFamily.candidates(&body.region(b), &Device::h200()).unwrap_err();
    assert_eq!(refusal.op, "reshape");
}

#[test]
fn a_schedule_of_another_family_is_an_error() {
    let region = filter_network(16, 8, 16, true);
    let error = ChainFamily.lower(&region, "{\"family\":\"map\"}", &Device::h200()).unwrap_err();
    assert!(matches!(error, LowerError::Schedule { .. }), "{error}");
}
