use hyenac_ir::{DType, Op, Region, Value};

use super::recognise::MAX_LENGTH;
use super::*;
use crate::testing::Body;

/// The block's convolution: gate, long convolution, skip term, gate, as the fused block asks for it.
pub(super) fn gated(batches: usize, channels: usize, length: usize, operands: DType, output: DType) -> Region {
    let mut body = Body::default();
    let u = body.parameter(DType::F16, &[batches, 3 * channels, length]);
    let filter = body.parameter(if operands == DType::F16 { DType::F16 } else { DType::F32 }, &[channels, length]);
    let bias = body.parameter(DType::F32, &[channels]);
    let part =
        |body: &mut Body, index: usize| body.op(Op::Slice { axis: 1, start: index * channels, length: channels }, &[u]);
    let (x0, x1, v) = (part(&mut body, 0), part(&mut body, 1), part(&mut body, 2));
    let g = body.op(Op::Mul {}, &[v, x1]);
    let signal = if operands == DType::F32 { g } else { body.op(Op::Cast { dtype: operands }, &[g]) };
    let long = body.op(Op::LongConv {}, &[signal, filter]);
    let skip = body.op(Op::Reshape { shape: vec![channels, 1] }, &[bias]);
    let skip = body.op(Op::Mul {}, &[g, skip]);
    let y = body.op(Op::Add {}, &[long, skip]);
    let y = body.op(Op::Mul {}, &[y, x0]);
    let y = if output == DType::F32 { y } else { body.op(Op::Cast { dtype: output }, &[y]) };
    body.region(y)
}

fn candidates(region: &Region) -> Vec<Candidate> {
    DirectConvolution.candidates(region, &Device::h200()).unwrap()
}

fn refusal(region: &Region) -> Refusal {
    DirectConvolution.candidates(region, &Device::h200()).unwrap_err()
}

/// The emitted part of the cheapest kernel, without the device halves that every kernel shares.
fn emitted(region: &Region) -> String {
    let lowered = DirectConvolution.lower(region, &candidates(region)[0].schedule, &Device::h200()).unwrap();
    let source = &lowered.kernels[0].source.source;
    source[source.find("struct Shape {").unwrap()..].to_owned()
}

fn snapshot(name: &str, text: &str) {
    insta::with_settings!({ snapshot_path => concat!(env!("CARGO_MANIFEST_DIR"), "/../snapshots/kernels"),
                            prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, text);
    });
}

/// A bare convolution in f32 and what follows it.
fn bare(batches: usize, channels: usize, length: usize, finish: impl Fn(&mut Body, Value) -> Value) -> Region {
    let mut body = Body::default();
    let signal = body.parameter(DType::F32, &[batches, channels, length]);
    let filter = body.parameter(DType::F32, &[channels, length]);
    let long = body.op(Op::LongConv {}, &[signal, filter]);
    let output = finish(&mut body, long);
    body.region(output)
}

#[test]
fn emitted_kernels_are_as_recorded() {
    snapshot("direct_convolution_f16_aligned", &emitted(&gated(2, 256, 256, DType::F16, DType::F16)));
    snapshot("direct_convolution_f16_odd_length", &emitted(&gated(1, 256, 131, DType::F16, DType::F16)));
    snapshot("direct_convolution_f32_aligned", &emitted(&gated(2, 256, 512, DType::F32, DType::F32)));
    let transposed = bare(3, 16, 40, |body, y| body.op(Op::Transpose { permutation: vec![0, 2, 1] }, &[y]));
    snapshot("direct_convolution_f32_transposed", &emitted(&transposed));
}

#[test]
fn a_filter_read_under_another_shape_is_still_read_in_vectors() {
    let mut body = Body::default();
    let signal = body.parameter(DType::F16, &[1, 16, 64]);
    let stored = body.parameter(DType::F32, &[64, 16]);
    let filter = body.op(Op::Reshape { shape: vec![16, 64] }, &[stored]);
    let filter = body.op(Op::Cast { dtype: DType::F16 }, &[filter]);
    let long = body.op(Op::LongConv {}, &[signal, filter]);
    let text = emitted(&body.region(long));
    assert!(text.contains("v0 = load_four(p1 + ((channel * 64u) + (strip * 8u)))"), "{text}");
    assert!(text.contains("v0 = load_eight(p0 + ((channel * 64u) + (strip * 8u)))"), "{text}");
}

#[test]
fn operand_formats_choose_the_variant() {
    for (dtype, variant) in [(DType::F16, "\"f16\""), (DType::Tf32, "\"f32\""), (DType::F32, "\"f32\"")] {
        let region = gated(2, 256, 512, dtype, DType::F16);
        assert!(candidates(&region)[0].schedule.contains(variant), "{dtype}");
    }
}

#[test]
fn what_is_offered_is_lowered_on_every_device() {
    let sizes = [(1, 1), (2, 128), (1, 131), (32, 256), (4, 541), (1, 2048), (2, 2053), (2, 4096), (1, MAX_LENGTH)];
    for device in [Device::h200(), Device::a100(), Device::b200()] {
        for (batches, length) in sizes.into_iter().chain([(3000, 8), (5, 16000)]) {
            for dtype in [DType::F16, DType::F32] {
                let region = gated(batches, 24, length, dtype, DType::F16);
                for candidate in DirectConvolution.candidates(&region, &device).unwrap() {
                    let lowered = DirectConvolution.lower(&region, &candidate.schedule, &device).unwrap();
                    let kernel = &lowered.kernels[0];
                    assert!(kernel.shared_bytes < device.shared_bytes_per_block);
                    assert!(candidate.time_us >= candidate.floor_us && candidate.floor_us >= 0.0);
                    assert!(kernel.source.name.len() < 64);
                }
            }
        }
    }
}

#[test]
fn cheapest_first_and_dearer_when_there_is_more_to_do() {
    for dtype in [DType::F16, DType::F32] {
        let price = |batches, length| {
            let offers = candidates(&gated(batches, 256, length, dtype, DType::F16));
            assert!(offers.is_sorted_by(|a, b| a.time_us <= b.time_us));
            offers[0].time_us
        };
        for length in [128, 512, 2048, 8192] {
            assert!(price(1, length) <= price(4, length), "{length}: {} {}", price(1, length), price(4, length));
            assert!(price(1, length) < price(1, 2 * length));
        }
        // Odd lengths cost about as much as their neighbours.
        assert!(price(2, 2053) < 1.5 * price(2, 2112));
        // Work grows with the square of the length.
        assert!(price(1, 16384) > 3.0 * price(1, 8192));
    }
}

#[test]
fn a_transposed_result_costs_more() {
    let price = |region: &Region| candidates(region)[0].time_us;
    let plain = bare(32, 256, 128, |_, y| y);
    let transposed = bare(32, 256, 128, |body, y| body.op(Op::Transpose { permutation: vec![0, 2, 1] }, &[y]));
    assert!(price(&transposed) > 1.05 * price(&plain), "{} {}", price(&transposed), price(&plain));
}

#[test]
fn sequences_beyond_the_limit_are_refused_with_the_alternative() {
    let refusal = refusal(&gated(1, 8, MAX_LENGTH + 1, DType::F16, DType::F16));
    assert_eq!((refusal.op.as_str(), refusal.larger), ("long_conv", false));
    assert!(refusal.why.contains("16384") && refusal.why.contains("rfft"), "{}", refusal.why);
}

#[test]
fn a_region_without_a_convolution_may_become_its_prologue() {
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[2, 8, 16]);
    let y = body.op(Op::Mul {}, &[x, x]);
    assert!(refusal(&body.region(y)).larger);
}

#[test]
fn other_heavy_ops_are_refused_for_good() {
    let linear = bare(2, 8, 16, |body, y| {
        let weight = body.parameter(DType::F32, &[4, 16]);
        body.op(Op::Linear {}, &[y, weight])
    });
    let twice = bare(2, 8, 16, |body, y| {
        let filter = body.parameter(DType::F32, &[8, 16]);
        body.op(Op::LongConv {}, &[y, filter])
    });
    for (region, op) in [(linear, "linear"), (twice, "long_conv")] {
        let refusal = refusal(&region);
        assert_eq!((refusal.op.as_str(), refusal.larger), (op, false));
    }
}

#[test]
fn results_that_are_moved_about_are_refused() {
    let sliced = bare(2, 8, 16, |body, y| body.op(Op::Slice { axis: 2, start: 0, length: 8 }, &[y]));
    let folded = bare(2, 8, 16, |body, y| body.op(Op::Reshape { shape: vec![16, 16] }, &[y]));
    let stretched = bare(1, 8, 16, |body, y| {
        let other = body.parameter(DType::F32, &[2, 8, 16]);
        body.op(Op::Add {}, &[y, other])
    });
    let crossed = bare(2, 8, 8, |body, y| {
        let transposed = body.op(Op::Transpose { permutation: vec![0, 2, 1] }, &[y]);
        body.op(Op::Add {}, &[y, transposed])
    });
    for (region, op) in [(sliced, "slice"), (folded, "reshape"), (stretched, "add"), (crossed, "add")] {
        let refusal = refusal(&region);
        assert_eq!((refusal.op.as_str(), refusal.larger), (op, false));
    }
}

#[test]
fn schedules_that_are_not_offered_are_errors() {
    let region = gated(2, 8, 64, DType::F16, DType::F16);
    let good = candidates(&region)[0].schedule.clone();
    let positions = good.find("\"positions\":").unwrap();
    let bad = format!("{}{}", &good[..positions], good[positions..].replacen(char::is_numeric, "9", 1));
    for schedule in ["{\"family\":\"map\"}", "nonsense", &bad] {
        let error = DirectConvolution.lower(&region, schedule, &Device::h200()).unwrap_err();
        assert!(matches!(error, LowerError::Schedule { .. }), "{error}");
    }
}
