use hyenac_ir::{DType, Op};

use super::*;
use crate::testing::{Body, filter_network};

fn best(region: &Region, device: &Device) -> Candidate {
    let candidates = Network.candidates(region, device).unwrap();
    candidates.into_iter().min_by(|a, b| a.time_us.total_cmp(&b.time_us)).unwrap()
}

fn snapshot(name: &str, region: &Region) {
    let device = Device::h200();
    let candidate = best(region, &device);
    let lowered = Network.lower(region, &candidate.schedule, &device).unwrap();
    let source = &lowered.kernels[0].source.source;
    let text = format!("{}\n{}", candidate.schedule, &source[source.find("struct function0").unwrap()..]);
    insta::with_settings!({ snapshot_path => concat!(env!("CARGO_MANIFEST_DIR"), "/../snapshots/kernels"),
                            prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, text);
    });
}

#[test]
fn the_filter_network_is_one_kernel_in_both_layouts() {
    snapshot("network_filter_reshape", &filter_network(131, 64, 256, false));
    snapshot("network_filter_transpose", &filter_network(4096, 64, 256, true));
}

#[test]
fn it_is_chosen_before_plain_multiply_add() {
    for device in [Device::h200(), Device::a100(), Device::b200()] {
        for length in [128, 131, 1024, 4096, 1 << 20] {
            let region = filter_network(length, 64, 256, false);
            assert_eq!(crate::registry::price(&region, &device, None).unwrap().candidate.family, NAME, "{length}");
        }
    }
}

#[test]
fn few_rows_are_spread_and_many_are_walked() {
    let grid = |length| {
        let region = filter_network(length, 64, 256, true);
        let device = Device::h200();
        Network.lower(&region, &best(&region, &device).schedule, &device).unwrap().kernels[0].grid[0]
    };
    assert!(grid(256) >= 64, "{}", grid(256));
    assert!(grid(4096) >= 120, "{}", grid(4096));
    assert!(grid(1 << 20) <= 4 * 132, "{}", grid(1 << 20));
}

/// Two layers with this op between them.
fn between(op: Op) -> Region {
    let mut body = Body::default();
    let x = body.op(Op::PositionalEmbedding { positions: 32, rows: 32, width: 5 }, &[]);
    let (w, v) = (body.parameter(DType::F32, &[16, 5]), body.parameter(DType::F32, &[64, 16]));
    let a = body.op(Op::Linear {}, &[x, w]);
    let a = body.op(op, &[a]);
    let b = body.op(Op::Linear {}, &[a, v]);
    body.region(b)
}

#[test]
fn activations_of_unknown_range_are_refused() {
    assert!(Network.candidates(&between(Op::Sin {}), &Device::h200()).is_ok());
    let refusal = Network.candidates(&between(Op::GeluTanh {}), &Device::h200()).unwrap_err();
    assert!(refusal.why.contains("sines"), "{refusal:?}");
}

#[test]
fn weights_that_exceed_the_registers_are_refused() {
    let region = filter_network(64, 512, 256, true);
    let refusal = Network.candidates(&region, &Device::h200()).unwrap_err();
    assert!(refusal.why.contains("registers"), "{refusal:?}");
}

#[test]
fn a_schedule_of_another_family_is_an_error() {
    let region = filter_network(16, 16, 64, true);
    let error = Network.lower(&region, "{\"family\":\"map\"}", &Device::h200()).unwrap_err();
    assert!(matches!(error, LowerError::Schedule { .. }), "{error}");
}
