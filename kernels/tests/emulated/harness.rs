//! Bodies of regions, and what runs their kernels on the host.

use std::path::Path;
use std::process::Command;

use hyenac_ir::{Binding, DType, Graph, Op, Region, Rounding, Tensor, Type, Value, evaluate_body, interpret};
use hyenac_kernels::{Device, Kernel, families};

use DType::{F16, F32, Tf32};

/// Functions of inline PTX, which `device.h` has its own of.
const REPLACED: [&str; 18] = [
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
    "multiply_accumulate",
    "multiply_f16",
    "multiply_tf32",
    "nearest_tf32",
    "products_begin",
    "products_commit",
    "products_wait",
    "publish_to_tensor_cores",
];

/// Functions that use what only other families of warpgroup products bring along, and those of each width.
const LEFT_OUT: [&str; 3] = ["stage_operand", "stage_normalised", "product_prefix_"];

#[derive(Default)]
pub struct Body {
    graph: Graph,
    parameters: usize,
}

impl Body {
    pub fn parameter(&mut self, dtype: DType, shape: &[usize]) -> Value {
        let op = Op::Parameter { index: self.parameters, dtype, shape: shape.to_vec(), binding: Binding::Input };
        self.parameters += 1;
        self.op(op, &[])
    }

    pub fn op(&mut self, op: Op, operands: &[Value]) -> Value {
        self.graph.add(op, operands).unwrap()
    }

    pub fn cast(&mut self, x: Value, dtype: DType) -> Value {
        if self.graph.ty(x).dtype == dtype { x } else { self.op(Op::Cast { dtype }, &[x]) }
    }

    pub fn norm(&mut self, x: Value) -> Value {
        let width = *self.graph.ty(x).shape.last().unwrap();
        let (weight, bias) = (self.parameter(F32, &[width]), self.parameter(F32, &[width]));
        self.op(Op::LayerNorm { eps: 1e-5 }, &[x, weight, bias])
    }

    pub fn affine(&mut self, x: Value, columns: usize, stored: DType, precision: DType) -> Value {
        let inner = *self.graph.ty(x).shape.last().unwrap();
        let x = self.cast(x, precision);
        let weight = self.parameter(stored, &[columns, inner]);
        let weight = self.cast(weight, precision);
        let product = self.op(Op::Linear {}, &[x, weight]);
        let bias = self.parameter(F32, &[columns]);
        self.op(Op::Add {}, &[product, bias])
    }

    pub fn turned(&mut self, x: Value) -> Value {
        self.op(Op::Transpose { permutation: vec![0, 2, 1] }, &[x])
    }

    pub fn region(mut self, output: Value) -> Region {
        self.graph.add_output(output);
        Region::new(self.graph)
    }
}

/// Numbers from -1 to 1 that `dtype` holds exactly.
pub fn numbers(count: usize, dtype: DType, seed: &mut u64) -> Vec<f64> {
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

/// Elements of a row, and of a row in memory: those of f16 begin at multiples of 16 bytes.
fn row(ty: &Type) -> (usize, usize) {
    let extent = ty.shape.last().copied().unwrap_or(1);
    (extent, if ty.dtype == F16 { extent.next_multiple_of(8) } else { extent })
}

fn bytes_in_memory(ty: &Type) -> usize {
    let (extent, pitch) = row(ty);
    ty.bytes() / extent * pitch
}

/// The bytes in memory. What lies between rows is NaN, so that no result may depend on it.
fn to_bytes(data: &[f64], ty: &Type) -> Vec<u8> {
    let (extent, pitch) = row(ty);
    match ty.dtype {
        F16 => data
            .chunks(extent)
            .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(f64::NAN, pitch - extent)))
            .flat_map(|x| half::f16::from_f64(x).to_bits().to_le_bytes())
            .collect(),
        _ => data.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
    }
}

fn from_bytes(bytes: &[u8], ty: &Type) -> Vec<f64> {
    let (extent, pitch) = row(ty);
    match ty.dtype {
        F16 => bytes
            .chunks_exact(2 * pitch)
            .flat_map(|row| row[..2 * extent].chunks_exact(2))
            .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f64())
            .collect(),
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
        let left_out = |name: &str| LEFT_OUT.iter().any(|prefix| name.starts_with(prefix));
        if name.is_some_and(|name| REPLACED.contains(&name) || left_out(name)) {
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
        .replace("extern __shared__ float2 shared[];", "float2* shared = (float2*)shared_base;")
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
pub fn check(family: &str, region: &Region, bar: f64) {
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
        std::fs::write(&files[position], to_bytes(&data, ty)).unwrap();
        operands.push(Tensor::<f64>::new(ty.shape.clone(), data).unwrap());
        types.push(ty.dtype);
    }
    types.push(output.dtype);
    files.push(folder.path().join("result"));
    let exact = &evaluate_body(body, &operands.iter().collect::<Vec<_>>(), Rounding::Casts).unwrap()[0];

    let (first, last) = (&candidates[0].schedule, &candidates[candidates.len() - 1].schedule);
    for schedule in if first == last { vec![first] } else { vec![first, last] } {
        let kernel = family.lower(region, schedule, &device).unwrap().kernels.remove(0);
        let Some(program) = build(&kernel, &types, bytes_in_memory(output), folder.path()) else { return };
        let run = Command::new(program).args(&files).output().unwrap();
        assert!(run.status.success(), "{schedule}: {} {}", run.status, String::from_utf8_lossy(&run.stderr));
        let result = from_bytes(&std::fs::read(&files[files.len() - 1]).unwrap(), output);
        let result = Tensor::<f64>::new(output.shape.clone(), result).unwrap();
        let error = result.relative_l2(exact);
        // `contains` is false for NaN.
        assert!((0.0..bar).contains(&error), "{schedule}: relative error {error:e}, the bar is {bar:e}");
    }
}
