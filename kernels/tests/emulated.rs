//! Emitted kernels run on the host, thread by thread, and give what the interpreter gives.
//!
//! The source is the one that a device gets; only the functions that are inline PTX are replaced, by those of
//! `emulated/device.h`. Needs a C++20 compiler for x86-64 as `c++` (or as `CXX` says); without one these tests
//! say so and pass.

#[path = "emulated/harness.rs"]
mod harness;

use hyenac_ir::{DType, Op, Region, Rounding, Tensor, evaluate_body};

use DType::{F16, F32, Tf32};
use harness::{Body, check, numbers};

/// The arithmetic of f32.
const F32_BAR: f64 = 4e-7;
/// Sums of some hundred terms in the tensor core's accumulator, which truncates.
const TRUNCATED_BAR: f64 = 2e-6;
/// An occasional neighbour in f16, where sums in another order round the other way.
const F16_BAR: f64 = 1e-4;

fn in_proj(batch: usize, length: usize, width: usize, columns: usize, precision: DType) -> Region {
    let mut body = Body::default();
    let x = body.parameter(F32, &[batch, length, width]);
    let normed = body.norm(x);
    let y = body.affine(normed, columns, F32, precision);
    let y = body.turned(y);
    let taps = body.parameter(F32, &[columns, 1, 3]);
    let y = body.op(Op::ShortConv {}, &[y, taps]);
    let y = body.cast(y, F16);
    body.region(y)
}

fn out_proj(batch: usize, length: usize, width: usize, stored: DType, precision: DType) -> Region {
    let mut body = Body::default();
    let y = body.parameter(F16, &[batch, width, length]);
    let y = body.turned(y);
    let y = body.affine(y, width, stored, precision);
    let x = body.parameter(F32, &[batch, length, width]);
    let y = body.op(Op::Add {}, &[y, x]);
    body.region(y)
}

#[test]
fn norm_linear_transpose_and_short_convolution() {
    check("gemm", &in_proj(2, 72, 48, 72, F16), F16_BAR);
}

#[test]
fn odd_lengths_and_batches_within_a_tile() {
    check("gemm", &in_proj(3, 37, 40, 36, Tf32), F16_BAR);
}

#[test]
fn odd_lengths_are_stored_into_padded_rows() {
    check("gemm", &in_proj(2, 67, 48, 72, F16), F16_BAR);
    check("gemm", &in_proj(1, 36, 48, 72, F16), F16_BAR);
    // Too short a sequence to be padded.
    check("gemm", &in_proj(2, 11, 40, 36, F16), F16_BAR);
}

#[test]
fn odd_lengths_are_read_from_padded_rows() {
    check("gemm", &out_proj(2, 67, 40, F16, F16), F32_BAR);
    check("gemm", &out_proj(1, 36, 40, F32, F16), F32_BAR);
    check("gemm", &out_proj(3, 11, 40, F32, Tf32), F32_BAR);
}

#[test]
fn channel_major_operand_and_residual() {
    check("gemm", &out_proj(2, 72, 40, F16, F16), F32_BAR);
}

#[test]
fn channel_major_operand_of_odd_length_in_split_precision() {
    check("gemm", &out_proj(3, 37, 40, F32, F32), F32_BAR);
}

#[test]
fn norm_linear_and_gelu() {
    let mut body = Body::default();
    let x = body.parameter(F32, &[1, 67, 256]);
    let normed = body.norm(x);
    let y = body.affine(normed, 136, Tf32, Tf32);
    let y = body.op(Op::GeluTanh {}, &[y]);
    let y = body.cast(y, F16);
    check("gemm", &body.region(y), F16_BAR);
}

#[test]
fn long_inner_dimension_streams() {
    let mut body = Body::default();
    let x = body.parameter(F16, &[1, 67, 520]);
    let y = body.affine(x, 40, F16, F16);
    let residual = body.parameter(F32, &[1, 67, 40]);
    let y = body.op(Op::Add {}, &[y, residual]);
    check("gemm", &body.region(y), TRUNCATED_BAR);
}

#[test]
fn a_gate_and_a_pad_in_front() {
    let mut body = Body::default();
    let (y, u) = (body.parameter(F32, &[2, 24, 40]), body.parameter(F16, &[2, 72, 40]));
    let gate = body.op(Op::Slice { axis: 1, start: 24, length: 24 }, &[u]);
    let y = body.op(Op::Mul {}, &[y, gate]);
    let y = body.turned(y);
    let y = body.op(Op::Pad { axis: 1, before: 0, after: 5 }, &[y]);
    let y = body.affine(y, 24, F32, F16);
    check("gemm", &body.region(y), F32_BAR);
}

#[test]
fn extents_that_fit_no_tile() {
    let mut body = Body::default();
    let x = body.parameter(F32, &[35, 37]);
    let y = body.affine(x, 29, F32, F32);
    let y = body.op(Op::Reshape { shape: vec![29, 35] }, &[y]);
    check("gemm", &body.region(y), F32_BAR);
}

#[test]
fn a_weight_that_is_stored_in_panels() {
    let mut body = Body::default();
    let x = body.parameter(F16, &[70, 64]);
    let panels = body.parameter(F16, &[2, 8, 64, 8]);
    let weight = body.op(Op::Transpose { permutation: vec![0, 2, 1, 3] }, &[panels]);
    let weight = body.op(Op::Reshape { shape: vec![128, 64] }, &[weight]);
    let y = body.op(Op::Linear {}, &[x, weight]);
    check("gemm", &body.region(y), F32_BAR);
}

/// Gate, long convolution, skip term, gate. The filter is stored as it is read, or transformed.
fn convolution([batch, channels, length]: [usize; 3], operands: DType, output: DType, fft: bool) -> Region {
    let mut body = Body::default();
    let u = body.parameter(F16, &[batch, 3 * channels, length]);
    let filter = body.parameter(operands, &[channels, length]);
    let bias = body.parameter(F32, &[channels]);
    let [x0, x1, v] =
        [0, 1, 2].map(|part| body.op(Op::Slice { axis: 1, start: part * channels, length: channels }, &[u]));
    let g = body.op(Op::Mul {}, &[v, x1]);
    let long = if fft {
        let size = 2 * length.next_power_of_two();
        let (signal, filter) = (body.op(Op::Rfft { size }, &[g]), body.op(Op::Rfft { size }, &[filter]));
        let product = body.op(Op::SpectrumMul {}, &[signal, filter]);
        body.op(Op::Irfft { size, length }, &[product])
    } else {
        let signal = body.cast(g, operands);
        body.op(Op::LongConv {}, &[signal, filter])
    };
    let skip = body.op(Op::Reshape { shape: vec![channels, 1] }, &[bias]);
    let skip = body.op(Op::Mul {}, &[g, skip]);
    let y = body.op(Op::Add {}, &[long, skip]);
    let y = body.op(Op::Mul {}, &[y, x0]);
    let y = body.cast(y, output);
    body.region(y)
}

#[test]
fn direct_convolutions_of_any_length() {
    for (sizes, operands, output) in [
        ([2, 3, 131], F16, F16),
        ([1, 2, 72], F16, F16),
        ([3, 2, 37], F16, F32),
        ([1, 2, 5], F16, F16),
        ([2, 2, 67], F32, F16),
        ([1, 2, 67], F32, F32),
    ] {
        check("direct_convolution", &convolution(sizes, operands, output, false), F16_BAR);
    }
}

#[test]
fn convolutions_by_warpgroups() {
    for (sizes, output, bar) in [
        ([1, 2, 64], F32, TRUNCATED_BAR),
        ([3, 2, 131], F16, F16_BAR),
        ([3, 1, 131], F32, TRUNCATED_BAR),
        ([2, 2, 200], F32, TRUNCATED_BAR),
        ([1, 2, 1024], F32, TRUNCATED_BAR),
        ([5, 1, 960], F16, F16_BAR),
    ] {
        check("toeplitz", &convolution(sizes, F16, output, false), bar);
    }
}

#[test]
fn transformed_convolutions_of_any_length() {
    for (sizes, stored, output) in [([2, 3, 67], F16, F16), ([1, 2, 37], F32, F16), ([1, 2, 37], F16, F32)] {
        check("fft", &convolution(sizes, stored, output, true), F16_BAR);
    }
}

#[test]
fn elementwise_ops_over_padded_rows() {
    for (shape, dtype) in [([2, 3, 67], F16), ([2, 3, 64], F16), ([1, 4, 5], F16), ([2, 3, 67], F32)] {
        let mut body = Body::default();
        let (x, y) = (body.parameter(F16, &shape), body.parameter(F32, &shape));
        let taps = body.parameter(F32, &[shape[1], 1, 3]);
        let sum = body.op(Op::Add {}, &[x, y]);
        let y = body.op(Op::ShortConv {}, &[sum, taps]);
        let y = body.cast(y, dtype);
        check("map", &body.region(y), F16_BAR);
    }
    // Read again under another shape.
    let mut body = Body::default();
    let x = body.parameter(F16, &[35, 6]);
    let y = body.op(Op::Reshape { shape: vec![6, 35] }, &[x]);
    let y = body.op(Op::Neg {}, &[y]);
    check("map", &body.region(y), F16_BAR);
}

#[test]
fn rows_are_normalised_whatever_their_length() {
    for shape in [&[2, 19, 256][..], &[3, 5, 13], &[1, 3, 2000]] {
        let mut body = Body::default();
        let x = body.parameter(F32, shape);
        let y = body.norm(x);
        let turned = body.turned(y);
        check("layer_norm", &body.region(turned), F32_BAR);
    }
    for transposed in [false, true] {
        let mut body = Body::default();
        let x = body.parameter(F16, &[2, 19, 36]);
        let y = body.norm(x);
        let y = if transposed { body.turned(y) } else { y };
        let y = body.cast(y, F16);
        check("layer_norm", &body.region(y), F16_BAR);
    }
}

/// The filter network at the magnitudes of a trained one: each sine makes an error several times larger.
fn filter(length: usize, [inner, order, channels]: [usize; 3], last: DType, transposed: bool, output: DType) -> Region {
    let mut body = Body::default();
    let z = body.op(Op::PositionalEmbedding { positions: length, rows: length, width: inner }, &[]);
    let frequency = body.parameter(F32, &[1, order]);
    let two = body.op(Op::Scalar { value: 2.0 }, &[]);
    let frequency = body.op(Op::Add {}, &[frequency, two]);
    let mut h = z;
    for _ in 0..3 {
        h = body.affine(h, order, F32, F32);
        h = body.op(Op::Mul {}, &[h, frequency]);
        h = body.op(Op::Sin {}, &[h]);
    }
    let weight = body.parameter(F32, &[channels, order]);
    let (h, weight) = (body.cast(h, last), body.cast(weight, last));
    let h = body.op(Op::Linear {}, &[h, weight]);
    let deltas = body.parameter(F32, &[1, channels]);
    let t = body.op(Op::Slice { axis: 1, start: 0, length: 1 }, &[z]);
    let rate = body.op(Op::Abs {}, &[deltas]);
    let decay = body.op(Op::Mul {}, &[t, rate]);
    let decay = body.op(Op::Neg {}, &[decay]);
    let decay = body.op(Op::Exp {}, &[decay]);
    let k = body.op(Op::Mul {}, &[h, decay]);
    let k = if transposed {
        body.op(Op::Transpose { permutation: vec![1, 0] }, &[k])
    } else {
        let bias = body.parameter(F32, &[channels]);
        let k = body.op(Op::Add {}, &[k, bias]);
        body.op(Op::Reshape { shape: vec![channels, length] }, &[k])
    };
    let k = body.cast(k, output);
    body.region(k)
}

/// Neighbours in f16 of activations that are as inexact as f32 makes them.
const FILTER_F16_BAR: f64 = 3e-4;

/// The interpreter's own error in f32.
fn error_of_f32(region: &Region) -> f64 {
    let body = region.body();
    let mut seed = 1;
    let exact: Vec<Tensor<f64>> = body
        .parameters()
        .into_iter()
        .map(|parameter| {
            let ty = &body.node(parameter).types[0];
            Tensor::new(ty.shape.clone(), numbers(ty.elements(), ty.dtype, &mut seed)).unwrap()
        })
        .collect();
    let rounded: Vec<Tensor<f32>> = exact.iter().map(Tensor::convert).collect();
    let exact = &evaluate_body(body, &exact.iter().collect::<Vec<_>>(), Rounding::Casts).unwrap()[0];
    let rounded = &evaluate_body(body, &rounded.iter().collect::<Vec<_>>(), Rounding::Casts).unwrap()[0];
    rounded.relative_l2(exact)
}

#[test]
fn the_filter_network_is_as_exact_as_f32() {
    for (length, transposed) in [(131, false), (136, true), (997, true)] {
        let region = filter(length, [5, 64, 256], F32, transposed, F32);
        check("network", &region, 1.1 * error_of_f32(&region));
    }
}

#[test]
fn the_filter_network_with_a_last_layer_in_f16() {
    for (length, transposed) in [(131, true), (131, false), (136, false)] {
        check("network", &filter(length, [5, 64, 256], F16, transposed, F16), FILTER_F16_BAR);
    }
}

#[test]
fn a_network_of_other_extents() {
    check("network", &filter(77, [7, 32, 40], F32, true, F16), F16_BAR);
    check("network", &filter(600, [3, 16, 24], F16, false, F32), FILTER_F16_BAR);
}

#[test]
fn a_network_whose_sines_have_large_arguments() {
    let mut body = Body::default();
    let z = body.op(Op::PositionalEmbedding { positions: 40, rows: 40, width: 5 }, &[]);
    let h = body.affine(z, 16, F32, F32);
    let far = body.op(Op::Scalar { value: 5e4 }, &[]);
    let h = body.op(Op::Mul {}, &[h, far]);
    let h = body.op(Op::Sin {}, &[h]);
    let k = body.affine(h, 64, F32, F32);
    let region = body.region(k);
    check("network", &region, 2.0 * error_of_f32(&region));
}
