use hyenac_ir::{DType, Op, Value};

use super::*;
use crate::testing::Body;

fn cast(body: &mut Body, value: Value, dtype: DType) -> Value {
    if body.ty(value).dtype == dtype { value } else { body.op(Op::Cast { dtype }, &[value]) }
}

fn norm(body: &mut Body, x: Value) -> Value {
    let width = *body.ty(x).shape.last().unwrap();
    let (weight, bias) = (body.parameter(DType::F32, &[width]), body.parameter(DType::F32, &[width]));
    body.op(Op::LayerNorm { eps: 1e-5 }, &[x, weight, bias])
}

/// `x` times a weight stored as `stored`, plus a bias, both operands cast to `precision`.
fn affine(body: &mut Body, x: Value, columns: usize, stored: DType, precision: DType) -> Value {
    let inner = *body.ty(x).shape.last().unwrap();
    let x = cast(body, x, precision);
    let weight = body.parameter(stored, &[columns, inner]);
    let weight = cast(body, weight, precision);
    let product = body.op(Op::Linear {}, &[x, weight]);
    let bias = body.parameter(DType::F32, &[columns]);
    body.op(Op::Add {}, &[product, bias])
}

fn turned(body: &mut Body, x: Value) -> Value {
    body.op(Op::Transpose { permutation: vec![0, 2, 1] }, &[x])
}

fn in_proj(batch: usize, length: usize, stored: DType, precision: DType) -> Region {
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[batch, length, 256]);
    let normed = norm(&mut body, x);
    let y = affine(&mut body, normed, 768, stored, precision);
    let y = turned(&mut body, y);
    let taps = body.parameter(DType::F32, &[768, 1, 3]);
    let y = body.op(Op::ShortConv {}, &[y, taps]);
    let bias = body.parameter(DType::F32, &[768]);
    let bias = body.op(Op::Reshape { shape: vec![768, 1] }, &[bias]);
    let y = body.op(Op::Add {}, &[y, bias]);
    let y = cast(&mut body, y, DType::F16);
    body.region(y)
}

fn out_proj(batch: usize, length: usize, stored: DType, precision: DType) -> Region {
    let mut body = Body::default();
    let y = body.parameter(DType::F16, &[batch, 256, length]);
    let y = turned(&mut body, y);
    let y = affine(&mut body, y, 256, stored, precision);
    let x = body.parameter(DType::F32, &[batch, length, 256]);
    let y = body.op(Op::Add {}, &[y, x]);
    body.region(y)
}

fn fc1(batch: usize, length: usize, stored: DType, precision: DType) -> Region {
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[batch, length, 256]);
    let normed = norm(&mut body, x);
    let y = affine(&mut body, normed, 1024, stored, precision);
    let y = body.op(Op::GeluTanh {}, &[y]);
    let y = cast(&mut body, y, DType::F16);
    body.region(y)
}

fn fc2(batch: usize, length: usize, stored: DType, precision: DType) -> Region {
    let mut body = Body::default();
    let x = body.parameter(DType::F16, &[batch, length, 1024]);
    let y = affine(&mut body, x, 256, stored, precision);
    let residual = body.parameter(DType::F32, &[batch, length, 256]);
    let y = body.op(Op::Add {}, &[y, residual]);
    body.region(y)
}

fn plain(rows: usize, inner: usize, columns: usize) -> Region {
    let mut body = Body::default();
    let (x, weight) = (body.parameter(DType::F32, &[rows, inner]), body.parameter(DType::F32, &[columns, inner]));
    let y = body.op(Op::Linear {}, &[x, weight]);
    body.region(y)
}

fn lower_best(region: &Region) -> Lowered {
    let device = Device::h200();
    let candidates = Gemm.candidates(region, &device).unwrap();
    Gemm.lower(region, &candidates[0].schedule, &device).unwrap()
}

fn best_us(region: &Region) -> f64 {
    Gemm.candidates(region, &Device::h200()).unwrap()[0].time_us
}

fn refusal(region: &Region) -> Refusal {
    Gemm.candidates(region, &Device::h200()).unwrap_err()
}

fn snapshot(name: &str, region: &Region) {
    let source = lower_best(region).kernels.remove(0).source.source;
    let emitted = &source[source.find("struct config").unwrap()..];
    insta::with_settings!({ snapshot_path => concat!(env!("CARGO_MANIFEST_DIR"), "/../snapshots/kernels"),
                            prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, emitted);
    });
}

#[test]
fn the_linears_of_the_block_are_one_kernel_each() {
    snapshot("gemm_in_proj_f16", &in_proj(1, 1024, DType::F16, DType::F16));
    snapshot("gemm_out_proj_f16", &out_proj(1, 1024, DType::F16, DType::F16));
    snapshot("gemm_fc1_f16", &fc1(2, 4096, DType::F32, DType::F16));
    snapshot("gemm_fc2_f16", &fc2(1, 256, DType::F16, DType::F16));
    snapshot("gemm_plain_f32", &plain(131, 5, 64));
}

#[test]
fn every_precision_and_every_offered_schedule_lowers() {
    for device in [Device::h200(), Device::a100(), Device::b200()] {
        for precision in [DType::F16, DType::Tf32, DType::F32] {
            for (batch, length) in [(1, 1), (1, 131), (3, 256)] {
                for region in [
                    in_proj(batch, length, DType::F32, precision),
                    out_proj(batch, length, DType::F32, precision),
                    fc1(batch, length, precision, precision),
                    fc2(batch, length, precision, precision),
                ] {
                    for candidate in Gemm.candidates(&region, &device).unwrap() {
                        let lowered = Gemm.lower(&region, &candidate.schedule, &device).unwrap();
                        assert!(lowered.kernels[0].shared_bytes <= device.shared_bytes_per_block);
                        assert!(lowered.kernels[0].source.name.len() < 64);
                        assert!(candidate.time_us > candidate.floor_us);
                    }
                }
            }
        }
    }
}

#[test]
fn stored_operands_are_copied_and_others_computed() {
    let left = |region: Region| Parts::of(&region).unwrap().left;
    let right = |region: Region| Parts::of(&region).unwrap().right;
    assert!(right(fc2(1, 64, DType::F16, DType::F16)).direct);
    assert!(!right(fc2(1, 64, DType::F32, DType::F16)).direct);
    assert!(left(fc2(1, 64, DType::F16, DType::F16)).direct);
    assert!(left(plain(64, 64, 64)).direct);
    // A tf32 operand made from f32 is rounded on the way.
    assert!(right(fc2(1, 64, DType::F32, DType::Tf32)).round);
}

#[test]
fn channel_major_operands_are_read_along_the_sequence() {
    let left = |length| Parts::of(&out_proj(2, length, DType::F16, DType::F16)).unwrap().left;
    assert!(!left(1024).along_inner);
    assert!(left(1024).direct && left(1024).width == 8);
    // Rows of f16 are padded, whatever their length; few rows would be mostly padding.
    assert!(left(131).direct && left(131).width == 8);
    assert!(!left(11).along_inner);
    assert_eq!(left(11).width, 1);
}

#[test]
fn a_short_convolution_overlaps_tiles_by_a_halo() {
    for (length, halo) in [(1024, 4), (1026, 4), (131, 4), (10, 2)] {
        let parts = Parts::of(&in_proj(2, length, DType::F16, DType::F16)).unwrap();
        assert!(parts.epilogue.along_rows);
        assert_eq!(parts.halo(), halo, "{length}");
        for (schedule, layout, _) in parts.offers(&in_proj(2, length, DType::F16, DType::F16), &Device::h200()) {
            // Tiles without their halos cover every row.
            assert!(layout.row_tiles * (schedule.rows - layout.halo) >= parts.product.walked_rows());
            assert!((layout.row_tiles - 1) * (schedule.rows - layout.halo) < parts.product.walked_rows());
        }
    }
    assert_eq!(Parts::of(&fc1(2, 64, DType::F16, DType::F16)).unwrap().halo(), 0);
}

#[test]
fn parts_of_shared_memory_do_not_overlap() {
    for region in [
        in_proj(1, 131, DType::F32, DType::F16),
        out_proj(2, 128, DType::F32, DType::Tf32),
        fc2(1, 640, DType::F32, DType::F32),
        plain(77, 37, 200),
    ] {
        let parts = Parts::of(&region).unwrap();
        for (schedule, layout) in Schedule::all(&parts, Device::h200().shared_bytes_per_block as usize) {
            let pieces = layout.pieces(&parts, &schedule);
            for (position, piece) in pieces.iter().enumerate() {
                assert!(piece.start % 16 == 0 && piece.end <= layout.shared_bytes, "{schedule:?}");
                for other in &pieces[position + 1..] {
                    assert!(piece.end <= other.start || other.end <= piece.start, "{schedule:?}: {pieces:?}");
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_with_the_op() {
    // Two products side by side.
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[8, 16]);
    let (a, b) = (affine(&mut body, x, 16, DType::F32, DType::F32), affine(&mut body, x, 16, DType::F32, DType::F32));
    let sum = body.op(Op::Add {}, &[a, b]);
    let refused = refusal(&body.region(sum));
    assert!(refused.op == "linear" && !refused.larger, "{refused:?}");
    // A norm behind the product.
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[8, 16]);
    let y = affine(&mut body, x, 16, DType::F32, DType::F32);
    let y = norm(&mut body, y);
    let refused = refusal(&body.region(y));
    assert!(refused.op == "layer_norm" && !refused.larger, "{refused:?}");
    // A part of the product.
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[8, 16]);
    let y = affine(&mut body, x, 16, DType::F32, DType::F32);
    let y = body.op(Op::Slice { axis: 1, start: 4, length: 4 }, &[y]);
    assert_eq!(refusal(&body.region(y)).op, "slice");
    // The product and its transpose.
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[16, 16]);
    let y = affine(&mut body, x, 16, DType::F32, DType::F32);
    let t = body.op(Op::Transpose { permutation: vec![1, 0] }, &[y]);
    let sum = body.op(Op::Add {}, &[y, t]);
    assert!(!refusal(&body.region(sum)).larger);
    // A convolution along the columns.
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[1, 8, 16]);
    let y = affine(&mut body, x, 24, DType::F32, DType::F32);
    let taps = body.parameter(DType::F32, &[8, 1, 3]);
    let y = body.op(Op::ShortConv {}, &[y, taps]);
    assert_eq!(refusal(&body.region(y)).op, "linear");
}

#[test]
fn a_prologue_without_its_product_may_still_grow() {
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[8, 16]);
    let normed = norm(&mut body, x);
    let narrow = cast(&mut body, normed, DType::F16);
    assert!(refusal(&body.region(narrow)).larger);
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[8, 16]);
    let first = norm(&mut body, x);
    let second = norm(&mut body, first);
    assert!(!refusal(&body.region(second)).larger);
}

#[test]
fn prices_follow_size_precision_and_format() {
    assert!(best_us(&fc1(1, 256, DType::F16, DType::F16)) < best_us(&fc1(2, 4096, DType::F16, DType::F16)));
    assert!(best_us(&fc1(2, 4096, DType::F16, DType::F16)) < best_us(&fc1(2, 4096, DType::Tf32, DType::Tf32)));
    assert!(best_us(&fc1(2, 4096, DType::Tf32, DType::Tf32)) < best_us(&fc1(2, 4096, DType::F32, DType::F32)));
    assert!(best_us(&fc2(2, 4096, DType::F16, DType::F16)) <= best_us(&fc2(2, 4096, DType::F32, DType::F16)));
    // Few rows are spread over many multiprocessors, many rows take large tiles.
    let schedule = |region: &Region| -> Schedule {
        serde_json::from_str(&Gemm.candidates(region, &Device::h200()).unwrap()[0].schedule).unwrap()
    };
    assert!(lower_best(&fc2(1, 256, DType::F16, DType::F16)).kernels[0].grid[0] >= 64);
    assert!(schedule(&fc2(2, 4096, DType::F16, DType::F16)).rows >= 64);
}

#[test]
fn schedules_of_others_are_errors() {
    let region = plain(64, 64, 64);
    let device = Device::h200();
    for schedule in ["", "{}", "{\"family\":\"map\"}"] {
        assert!(matches!(Gemm.lower(&region, schedule, &device), Err(LowerError::Schedule { .. })));
    }
    let foreign = &Gemm.candidates(&fc2(2, 4096, DType::F16, DType::F16), &device).unwrap()[0].schedule;
    assert!(Gemm.lower(&region, foreign, &device).is_err());
}
