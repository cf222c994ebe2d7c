//! Families for Hopper's warpgroup products: 64 rows at a time, operands in shared memory, weights brought by
//! the bulk copy engine while the tensor cores work.
//!
//! Bulk copies move contiguous bytes, so that weights must lie in memory as shared memory wants them: in 8 x 8 core
//! matrices. The rules `pack-weight-rows` and `pack-weight-columns` offer those layouts as stored values; a region
//! then reads its weight through the views that undo them, which is how it is recognised here.

pub mod panel;
pub mod tail;
#[cfg(test)]
mod tests;
pub mod toeplitz;

use std::fmt::Write;

use hyenac_ir::{DType, Graph, Op, Value};

use crate::device::Device;

/// Barriers, bulk copies, operand staging.
pub const DEVICE_CODE: &str = include_str!("warpgroup.cuh");

/// Columns of a panel, and rows of a tile.
pub const PANEL: usize = 64;

/// Bytes between core matrices along K of a tile of 64 rows that ordinary stores fill: 16 more than their size, so
/// that a row's groups fall on different banks.
pub const K_STRIDE: usize = 64 * 16 + 16;

/// Whether a device has these instructions.
pub fn available(device: &Device) -> bool {
    device.arch == "sm_90a"
}

/// The operand that holds this weight `[N, K]` in panels of 64 rows: f16 `[N / 64, K / 8, 64, 8]`.
pub fn row_panels(body: &Graph, weight: Value) -> Option<usize> {
    packed(body, weight, &[0, 2, 1, 3], |n, k| vec![n / PANEL, k / 8, PANEL, 8])
}

fn packed(body: &Graph, weight: Value, moved: &[usize], stored: impl Fn(usize, usize) -> Vec<usize>) -> Option<usize> {
    let &[n, k] = &body.ty(weight).shape[..] else { return None };
    let Op::Reshape { .. } = body.op(weight) else { return None };
    let transposed = body.operand(weight.node, 0);
    let Op::Transpose { permutation } = body.op(transposed) else { return None };
    let source = body.operand(transposed.node, 0);
    match body.op(source) {
        Op::Parameter { index, dtype: DType::F16, shape, .. } if permutation == moved && *shape == stored(n, k) => {
            Some(*index)
        }
        _ => None,
    }
}

/// Where the left operand of a product comes from, and how the right one lies in shared memory.
#[derive(Clone, Copy, PartialEq)]
enum Operands {
    /// `product_shared_N`: `sum[64, N] += a[64, 16] b[N, 16]^T`, both in shared memory.
    Shared,
    /// `product_turned_N`: the same with `b[16, N]`, N contiguous.
    Turned,
    /// `product_prefix_N`: `a` in registers, and a sum that may have further columns.
    Prefix,
}

/// The instruction wrappers `product_shared_N`: `sum[64, N] += a[64, 16] b[N, 16]^T`, both in shared memory.
pub fn shared_products(columns: &[usize]) -> String {
    columns.iter().map(|&n| wrapper(n, Operands::Shared)).collect()
}

/// The instruction wrappers `product_turned_N`: the same with `b[16, N]` in shared memory, N contiguous.
pub fn turned_products(columns: &[usize]) -> String {
    columns.iter().map(|&n| wrapper(n, Operands::Turned)).collect()
}

/// The instruction wrappers `product_prefix_N`: `a` in registers, and a sum that may have further columns.
pub fn prefix_products(columns: &[usize]) -> String {
    columns.iter().map(|&n| wrapper(n, Operands::Prefix)).collect()
}

fn wrapper(n: usize, operands: Operands) -> String {
    let registers = n / 2;
    let list = |format: &dyn Fn(usize) -> String| (0..registers).map(format).collect::<Vec<_>>().join(", ");
    let (kind, transposes) = match operands {
        Operands::Shared => ("shared", "0, 0"),
        Operands::Turned => ("turned", "0, 1"),
        Operands::Prefix => ("prefix", "0"),
    };
    let (template, extent, parameter, inputs, count) = if operands == Operands::Prefix {
        let inputs = "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])";
        ("template <int ALL>\n", "ALL".to_owned(), "const uint32 (&a)[4]", inputs, 4)
    } else {
        ("", registers.to_string(), "uint64 a", "\"l\"(a)", 1)
    };
    let left: Vec<String> = (0..count).map(|operand| format!("%{}", registers + operand)).collect();
    let left = if count == 1 { left.join("") } else { format!("{{{}}}", left.join(", ")) };
    let (right, accumulate) = (registers + count, registers + count + 1);
    let mut text = String::new();
    let _ = write!(
        text,
        "{template}__device__ __forceinline__ void product_{kind}_{n}(float (&sum)[{extent}], {parameter}, uint64 b, int accumulate) {{\n    \
         asm volatile(\"{{ .reg .pred p; setp.ne.b32 p, %{accumulate}, 0; \"\n                 \
         \"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {{{}}}, {left}, %{right}, p, 1, 1, {transposes}; }}\"\n                 \
         : {} : {inputs}, \"l\"(b), \"r\"(accumulate));\n}}\n",
        list(&|i| format!("%{i}")),
        list(&|i| format!("\"+f\"(sum[{i}])")),
    );
    text
}
