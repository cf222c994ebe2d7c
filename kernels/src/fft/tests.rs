use hyenac_ir::{DType, Op, Value};

use super::*;
use crate::testing::Body;

/// How the spectrum that the signal's is multiplied with comes about.
#[derive(Clone, Copy, PartialEq)]
enum Filter {
    Stored,
    Transformed,
}

fn size(length: usize) -> usize {
    let smooth = |n: usize| radix::Transform::new(n, 16).is_some();
    2 * (length..).find(|&n| smooth(n)).unwrap()
}

/// A filter's spectrum.
fn spectrum(channels: usize, length: usize) -> Region {
    let mut body = Body::default();
    let k = body.parameter(DType::F32, &[channels, length]);
    let output = body.op(Op::Rfft { size: size(length) }, &[k]);
    body.region(output)
}

/// The block's convolution: gate, transform, product, back, skip term, gate, narrow.
fn convolution(batch: usize, channels: usize, length: usize, filter: Filter) -> Region {
    let n = size(length);
    let shape = [batch, channels, length];
    let mut body = Body::default();
    let (v, x1, x0) =
        (body.parameter(DType::F16, &shape), body.parameter(DType::F16, &shape), body.parameter(DType::F16, &shape));
    let gated = body.op(Op::Mul {}, &[v, x1]);
    let u = body.op(Op::Rfft { size: n }, &[gated]);
    let s = match filter {
        Filter::Stored => body.parameter(DType::C64, &[channels, n / 2 + 1]),
        Filter::Transformed => {
            let k = body.parameter(DType::F32, &[channels, length]);
            body.op(Op::Rfft { size: n }, &[k])
        }
    };
    let product = body.op(Op::SpectrumMul {}, &[u, s]);
    let y = body.op(Op::Irfft { size: n, length }, &[product]);
    let output = epilogue(&mut body, gated, x0, y, channels);
    body.region(output)
}

fn epilogue(body: &mut Body, gated: Value, x0: Value, y: Value, channels: usize) -> Value {
    let bias = body.parameter(DType::F32, &[channels]);
    let bias = body.op(Op::Reshape { shape: vec![channels, 1] }, &[bias]);
    let skip = body.op(Op::Mul {}, &[gated, bias]);
    let sum = body.op(Op::Add {}, &[y, skip]);
    let product = body.op(Op::Mul {}, &[sum, x0]);
    body.op(Op::Cast { dtype: DType::F16 }, &[product])
}

/// The product of two stored spectra, transformed back, transposed.
fn back(batch: usize, channels: usize, length: usize) -> Region {
    let n = size(length);
    let mut body = Body::default();
    let u = body.parameter(DType::C64, &[batch, channels, n / 2 + 1]);
    let s = body.parameter(DType::C64, &[channels, n / 2 + 1]);
    let product = body.op(Op::SpectrumMul {}, &[u, s]);
    let y = body.op(Op::Irfft { size: n, length }, &[product]);
    let output = body.op(Op::Transpose { permutation: vec![0, 2, 1] }, &[y]);
    body.region(output)
}

fn candidates(region: &Region) -> Vec<Candidate> {
    Fft.candidates(region, &Device::h200()).unwrap()
}

fn best(region: &Region) -> Candidate {
    candidates(region).into_iter().min_by(|a, b| a.time_us.total_cmp(&b.time_us)).unwrap()
}

fn lower_best(region: &Region) -> Lowered {
    Fft.lower(region, &best(region).schedule, &Device::h200()).unwrap()
}

/// The emitted part of a translation unit, without the device halves and the butterflies.
fn emitted(lowered: &Lowered, kernel: usize) -> String {
    let source = &lowered.kernels[kernel].source.source;
    let constants = source.find("constexpr uint32 SPECTRUM").unwrap();
    let device_half = constants + source[constants..].find("// Complex transforms in place").unwrap();
    let entry = source.find("extern \"C\"").unwrap();
    format!("{}\n{}", &source[constants..device_half], &source[entry..])
}

fn snapshot(name: &str, lowered: &Lowered, kernel: usize) {
    insta::with_settings!({ snapshot_path => concat!(env!("CARGO_MANIFEST_DIR"), "/../snapshots/kernels"),
                            prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, emitted(lowered, kernel));
    });
}

#[test]
fn one_kernel_where_transforms_fit_into_a_block() {
    snapshot("fft_block_spectrum", &lower_best(&spectrum(256, 541)), 0);
    snapshot("fft_block_back_transposed", &lower_best(&back(2, 256, 131)), 0);
    snapshot("fft_block_convolution_stored", &lower_best(&convolution(2, 256, 8192, Filter::Stored)), 0);
    snapshot("fft_block_convolution_transformed", &lower_best(&convolution(1, 256, 4096, Filter::Transformed)), 0);
}

#[test]
fn several_kernels_where_transforms_do_not_fit() {
    let forward = lower_best(&spectrum(256, 32768));
    assert_eq!(forward.kernels.len(), 2);
    snapshot("fft_passes_spectrum_columns", &forward, 0);
    snapshot("fft_passes_spectrum_rows", &forward, 1);
    let backward = lower_best(&back(1, 256, 32768));
    assert_eq!(backward.kernels.len(), 2);
    snapshot("fft_passes_back_rows", &backward, 0);
    snapshot("fft_passes_back_columns", &backward, 1);
    let whole = lower_best(&convolution(1, 256, 1_000_000, Filter::Transformed));
    assert_eq!(whole.kernels.len(), 4);
    snapshot("fft_passes_convolution_rows", &whole, 2);
    assert_eq!(whole.scratch, [256 * 8_000_000, 256 * 8_000_000]);
    assert_eq!(lower_best(&convolution(1, 256, 1_000_000, Filter::Stored)).kernels.len(), 3);
}

#[test]
fn every_candidate_lowers_within_the_limits_of_its_device() {
    for name in Device::NAMES {
        let device = Device::named(name).unwrap();
        for length in [1, 2, 3, 131, 4096, 16384, 160_000, 1 << 20] {
            for region in [
                spectrum(256, length),
                back(3, 8, length),
                convolution(5, 24, length, Filter::Stored),
                convolution(5, 24, length, Filter::Transformed),
            ] {
                for candidate in Fft.candidates(&region, &device).unwrap() {
                    let lowered = Fft.lower(&region, &candidate.schedule, &device).unwrap();
                    assert_eq!(lowered.kernels.len(), candidate.launches as usize);
                    assert_eq!(lowered.scratch.iter().sum::<u64>(), candidate.scratch_bytes);
                    assert!(candidate.floor_us <= candidate.time_us, "{candidate:?}");
                    for kernel in lowered.kernels {
                        assert!(kernel.shared_bytes <= device.shared_bytes_per_block);
                        assert!(kernel.block[0] <= 1024 && kernel.block[0] % 32 == 0 && kernel.grid[0] > 0);
                        assert!(kernel.source.name.len() < 64, "{}", kernel.source.name);
                    }
                }
            }
        }
    }
}

#[test]
fn kernels_of_a_chain_read_only_what_they_use() {
    let lowered = lower_best(&convolution(1, 256, 1_000_000, Filter::Transformed));
    use crate::family::Pointer::{Operand, Output, Scratch};
    let pointers: Vec<&[crate::family::Pointer]> = lowered.kernels.iter().map(|k| k.pointers.as_slice()).collect();
    assert_eq!(pointers[0], [Operand(0), Operand(1), Scratch(0)]);
    assert_eq!(pointers[1], [Operand(3), Scratch(1)]);
    assert_eq!(pointers[2], [Scratch(0), Scratch(1)]);
    assert_eq!(pointers[3], [Operand(0), Operand(1), Operand(2), Operand(4), Output(0), Scratch(0)]);
}

#[test]
fn regions_that_may_still_grow_say_so() {
    let device = Device::h200();
    // Only a prologue so far.
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[4, 8]);
    let y = body.op(Op::Mul {}, &[x, x]);
    assert!(Fft.candidates(&body.region(y), &device).unwrap_err().larger);
    // The product of two transforms, not yet transformed back.
    let mut body = Body::default();
    let (u, k) = (body.parameter(DType::F32, &[2, 4, 8]), body.parameter(DType::F32, &[4, 8]));
    let (u, k) = (body.op(Op::Rfft { size: 16 }, &[u]), body.op(Op::Rfft { size: 16 }, &[k]));
    let product = body.op(Op::SpectrumMul {}, &[u, k]);
    assert!(Fft.candidates(&body.region(product), &device).unwrap_err().larger);
}

#[test]
fn what_never_fits_is_refused_with_a_reason() {
    let refuse = |region: &Region, part: &str| {
        let refusal = Fft.candidates(region, &Device::h200()).unwrap_err();
        assert!(!refusal.larger && refusal.why.contains(part), "{refusal:?}");
    };
    // 11 is no radix.
    let mut body = Body::default();
    let x = body.parameter(DType::F32, &[4, 8]);
    let y = body.op(Op::Rfft { size: 22 }, &[x]);
    refuse(&body.region(y), "prime factor above 7");
    // A product over channels.
    let mut body = Body::default();
    let (x, w) = (body.parameter(DType::F32, &[4, 8]), body.parameter(DType::F32, &[8, 8]));
    let x = body.op(Op::Linear {}, &[x, w]);
    let y = body.op(Op::Rfft { size: 16 }, &[x]);
    refuse(&body.region(y), "does not fuse");
    // The neighbouring entry of what is transformed back.
    let mut body = Body::default();
    let (s, w) = (body.parameter(DType::C64, &[1, 4, 9]), body.parameter(DType::F32, &[4, 1, 3]));
    let y = body.op(Op::Irfft { size: 16, length: 8 }, &[s]);
    let y = body.op(Op::ShortConv {}, &[y, w]);
    refuse(&body.region(y), "other elements");
    // One signal for several filters.
    let mut body = Body::default();
    let (u, s) = (body.parameter(DType::F32, &[4, 8]), body.parameter(DType::C64, &[2, 4, 9]));
    let u = body.op(Op::Rfft { size: 16 }, &[u]);
    let y = body.op(Op::SpectrumMul {}, &[u, s]);
    refuse(&body.region(y), "repeats");
}

#[test]
fn a_convolution_costs_less_with_a_stored_spectrum_and_grows_with_its_length() {
    let mut last = 0.0;
    for length in [256, 1024, 4096, 16384, 65536, 1 << 20] {
        let stored = best(&convolution(1, 256, length, Filter::Stored)).time_us;
        let live = best(&convolution(1, 256, length, Filter::Transformed)).time_us;
        // Spectra are twice as many bytes as filters, which short transforms notice.
        assert!((length < 1024 || stored < live) && last < stored, "{length}: {stored} {live}");
        last = stored;
    }
}

#[test]
fn short_convolutions_are_left_to_matrices_and_long_ones_are_not() {
    // Multiply-adds of the causal convolution on tensor cores, at 180 Tflop/s.
    let direct = |length: f64| 2.0 + 256.0 * length * (length + 64.0) / 180e6;
    assert!(best(&convolution(1, 256, 256, Filter::Transformed)).time_us > direct(256.0));
    assert!(best(&convolution(1, 256, 32768, Filter::Transformed)).time_us < direct(32768.0));
}

#[test]
fn only_offered_schedules_are_lowered() {
    let region = spectrum(4, 16);
    for schedule in [
        "{\"family\":\"map\"}",
        "{\"family\":\"fft\",\"form\":\"block\",\"radix\":5,\"threads\":32,\"channels\":1,\"batches\":1}",
    ] {
        let error = Fft.lower(&region, schedule, &Device::h200()).unwrap_err();
        assert!(matches!(error, LowerError::Schedule { .. }), "{error}");
    }
}
