//! Emitted kernels run on the host, thread by thread, and give what the interpreter gives.
//!
//! The source is the one that a device gets; only the functions that are inline PTX are replaced, by those of
//! `emulated/device.h`. Needs a C++20 compiler for x86-64 as `c++` (or as `CXX` says); without one these tests
//! say so and pass.

use std::path::Path;
use std::process::Command;

use hyenac_ir::{Binding, DType, Graph, Op, Region, Rounding, Tensor, Value, evaluate_body, interpret};
use hyenac_kernels::{Device, Kernel, families};

use DType::{F16, F32, Tf32};

/// Functions of inline PTX, which `device.h` has its own of.
const REPLACED: [&str; 13] = [
    "to_half",
    "from_half",
    "to_half2",
    "copy_async",
    "commit_copies",
    "wait_for_copies",
    "store_shared_word",
    "load_shared_words",
    "load_matrices",
    "load_matrices_transposed",
    "multiply_f16",
    "multiply_tf32",
    "nearest_tf32",
];

#[derive(Default)]
struct Body {
    graph: Graph,
    parameters: usize,
}

impl Body {
    fn parameter(&mut self, dtype: DType, shape: &[usize]) -> Value {
        let op = Op::Parameter { index: self.parameters, dtype, shape: shape.to_vec(), binding: Binding::Input };
        self.parameters += 1;
        self.op(op, &[])
    }

    fn op(&mut self, op: Op, operands: &[Value]) -> Value {
        self.graph.add(op, operands).unwrap()
    }

    fn cast(&mut self, x: Value, dtype: DType) -> Value {
        if self.graph.ty(x).dtype == dtype { x } else { self.op(Op::Cast { dtype }, &[x]) }
    }

    fn norm(&mut self, x: Value) -> Value {
        let width = *self.graph.ty(x).shape.last().unwrap();
        let (weight, bias) = (self.parameter(F32, &[width]), self.parameter(F32, &[width]));
        self.op(Op::LayerNorm { eps: 1e-5 }, &[x, weight, bias])
    }

    fn affine(&mut self, x: Value, columns: usize, stored: DType, precision: DType) -> Value {
        let inner = *self.graph.ty(x).shape.last().unwrap();
        let x = self.cast(x, precision);
        let weight = self.parameter(stored, &[columns, inner]);
        let weight = self.cast(weight, precision);
        let product = self.op(Op::Linear {}, &[x, weight]);
        let bias = self.parameter(F32, &[columns]);
        self.op(Op::Add {}, &[product, bias])
    }

    fn turned(&mut self, x: Value) -> Value {
        self.op(Op::Transpose { permutation: vec![0, 2, 1] }, &[x])
    }

    fn region(mut self, output: Value) -> Region {
        self.graph.add_output(output);
        Region::new(self.graph)
    }
}

/// Numbers from -1 to 1 that `dtype` holds exactly.
fn numbers(count: usize, dtype: DType, seed: &mut u64) -> Vec<f64> {
    let mut next = || {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*seed >> 33) as f64 / (1u64 << 30) as f64 - 1.0
    };
    (0..count)
        .map(|_| match dtype {
            F16 => interpret::round_to_f16(next()),
            Tf32 => interpret::round_to_tf32(next()),
            _ => f64::from(next() as f32),
        })
        .collect()
}

fn to_bytes(data: &[f64], dtype: DType) -> Vec<u8> {
    match dtype {
        F16 => data.iter().flat_map(|&x| half::f16::from_f64(x).to_bits().to_le_bytes()).collect(),
        _ => data.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
    }
}

fn from_bytes(bytes: &[u8], dtype: DType) -> Vec<f64> {
    match dtype {
        F16 => bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f64()).collect(),
        _ => bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect(),
    }
}

/// The source without the functions that `device.h` replaces.
fn for_the_host(source: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let name = line.strip_prefix("__device__ __forceinline__ ").and_then(|rest| {
            let (before, _) = rest.split_once('(')?;
            before.split_whitespace().last()
        });
        if name.is_some_and(|name| REPLACED.contains(&name)) {
            if kept.last().is_some_and(|last| last.starts_with("template")) {
                kept.pop();
            }
            // A definition ends on its own line or with a brace at the margin.
            if !line.trim_end().ends_with('}') {
                lines.by_ref().find(|line| line.starts_with('}'));
            }
        } else if !line.starts_with("typedef") {
            kept.push(line);
        }
    }
    kept.join("\n")
        .replace("extern __shared__ uint4 shared_memory[];", "uint4* shared_memory = (uint4*)shared_base;")
        .replace("extern \"C\" __global__", "static")
}

/// The emulator of a kernel, compiled; `None` without a compiler.
fn build(kernel: &Kernel, types: &[DType], output_bytes: usize, folder: &Path) -> Option<std::path::PathBuf> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    if !cfg!(all(target_os = "linux", target_arch = "x86_64"))
        || Command::new(&compiler).arg("--version").output().is_err()
    {
        eprintln!("not emulated: {compiler} for x86-64 Linux is needed");
        return None;
    }
    let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/emulated");
    let pointers: Vec<String> = types
        .iter()
        .enumerate()
        .map(|(position, dtype)| format!("({}*)p[{position}]", if *dtype == F16 { "half_bits" } else { "float" }))
        .collect();
    let text = format!(
        "#define KERNEL_SHARED_BYTES {}u\n#define KERNEL_THREADS {}u\n#define KERNEL_BLOCKS {}u\n#define KERNEL_OUTPUT_BYTES {output_bytes}u\n\
         #include \"device.h\"\n{}\n#include \"driver.h\"\n\
         static void launch(char** p) {{ {}({}); }}\n",
        kernel.shared_bytes.max(16),
        kernel.block[0],
        kernel.grid[0],
        for_the_host(&kernel.source.source),
        kernel.source.name,
        pointers.join(", "),
    );
    let (source, program) = (folder.join("kernel.cpp"), folder.join("kernel"));
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new(&compiler)
        .args(["-std=c++20", "-O1", "-w", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error", "-I", headers])
        .args([source.as_os_str(), "-o".as_ref(), program.as_os_str()])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(program)
}

/// Runs a region under the best and the last schedule of a family and compares with the interpreter in f64.
fn check(family: &str, region: &Region, bar: f64) {
    let device = Device::h200();
    let family = families().iter().find(|found| found.name() == family).unwrap();
    let candidates = family.candidates(region, &device).unwrap();
    let body = region.body();
    let output = body.ty(body.outputs()[0]);
    let folder = tempfile::tempdir().unwrap();

    let mut seed = 1;
    let mut types: Vec<DType> = Vec::new();
    let mut files = Vec::new();
    let mut operands = Vec::new();
    for (position, parameter) in body.parameters().into_iter().enumerate() {
        let ty = &body.node(parameter).types[0];
        let data = numbers(ty.elements(), ty.dtype, &mut seed);
        files.push(folder.path().join(format!("operand{position}")));
        std::fs::write(&files[position], to_bytes(&data, ty.dtype)).unwrap();
        operands.push(Tensor::<f64>::new(ty.shape.clone(), data).unwrap());
        types.push(ty.dtype);
    }
    types.push(output.dtype);
    files.push(folder.path().join("result"));
    let exact = &evaluate_body(body, &operands.iter().collect::<Vec<_>>(), Rounding::Casts).unwrap()[0];

    let (first, last) = (&candidates[0].schedule, &candidates[candidates.len() - 1].schedule);
    for schedule in if first == last { vec![first] } else { vec![first, last] } {
        let kernel = family.lower(region, schedule, &device).unwrap().kernels.remove(0);
        let Some(program) = build(&kernel, &types, output.bytes(), folder.path()) else { return };
        let run = Command::new(program).args(&files).output().unwrap();
        assert!(run.status.success(), "{schedule}: {} {}", run.status, String::from_utf8_lossy(&run.stderr));
        let result = from_bytes(&std::fs::read(&files[files.len() - 1]).unwrap(), output.dtype);
        let result = Tensor::<f64>::new(output.shape.clone(), result).unwrap();
        let error = result.relative_l2(exact);
        // `contains` is false for NaN.
        assert!((0.0..bar).contains(&error), "{schedule}: relative error {error:e}, the bar is {bar:e}");
    }
}

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

#[test]
fn rows_are_normalised_whatever_their_length() {
    for shape in [&[2, 19, 256][..], &[3, 5, 13], &[1, 3, 2000]] {
        let mut body = Body::default();
        let x = body.parameter(F32, shape);
        let y = body.norm(x);
        let y = body.turned(y);
        check("layer_norm", &body.region(y), F32_BAR);
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
    for (length, transposed) in [(131, true), (136, false)] {
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
