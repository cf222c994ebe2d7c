//! The CPU as a target.
//!
//! The backend evaluates a region op by op in f32, so that what a region saves is bookkeeping and the
//! lifetime of its intermediate values, not their traffic; prices say so. Narrower formats cost a pass and a
//! rounding and buy nothing, so they are refused, and `mixed` comes to mean f32 here.

use hyenac_ir::{DType, Graph, NodeIndex, Op, Region, Type};
use hyenac_passes::{Basis, Offer, Refusal, Target};

/// Arithmetic of a dense product, flop per microsecond.
const GEMM_RATE: f64 = 60e3;
/// Arithmetic of a convolution written out as a sum, flop per microsecond. The interpreter takes a detour of its own
/// for long ones, but that cannot keep the filter's spectrum, so the transform spelt out is what is wanted there.
const SUM_RATE: f64 = 4e3;
/// Arithmetic of a Fourier transform, flop per microsecond.
const FFT_RATE: f64 = 4e3;
/// Sines, exponentials and hyperbolic tangents per microsecond.
const SPECIAL_RATE: f64 = 200.0;
/// Bytes read or written per microsecond.
const BANDWIDTH: f64 = 8e3;
/// Dispatch of one region, microseconds.
const REGION_US: f64 = 2.0;
/// Dispatch of one op, microseconds.
const OP_US: f64 = 0.5;

/// A desktop processor with two cores; its constants are fixed, so that plans do not depend on the machine
/// that makes them.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTarget;

impl CpuTarget {
    /// The name that `--target` takes.
    pub const NAME: &'static str = "cpu";
}

impl Target for CpuTarget {
    fn fingerprint(&self) -> String {
        format!("cpu {GEMM_RATE} {SUM_RATE} {FFT_RATE} {SPECIAL_RATE} {BANDWIDTH} {REGION_US} {OP_US}")
    }

    fn price(&self, region: &Region) -> Result<Offer, Refusal> {
        let body = region.body();
        let mut time_us = REGION_US;
        let mut arithmetic_us = 0f64;
        let mut intermediate = 0u64;
        let mut boundary = 0f64;
        let mut heavy: Option<&'static str> = None;
        for node in body.nodes() {
            let op = &body.node(node).op;
            match op {
                Op::Parameter { .. } => boundary += bytes(&body.node(node).types),
                Op::Input { .. } | Op::Weight { .. } | Op::Region(_) => {
                    return Err(Refusal {
                        op: op.mnemonic().to_owned(),
                        why: "a region's body is made of elementary ops on its parameters".to_owned(),
                        larger: false,
                    });
                }
                _ => {}
            }
            if let Some(ty) = body.node(node).types.iter().find(|ty| !matches!(ty.dtype, DType::F32 | DType::C64)) {
                return Err(Refusal {
                    op: op.mnemonic().to_owned(),
                    why: format!("gives {ty}, but the processor computes in f32 alone"),
                    larger: false,
                });
            }
            if is_heavy(op) {
                if let Some(first) = heavy {
                    return Err(Refusal {
                        op: op.mnemonic().to_owned(),
                        why: format!("a region holds one product or transform at most, and {first} is one already"),
                        larger: false,
                    });
                }
                heavy = Some(op.mnemonic());
            }
            let arithmetic = arithmetic_us_of(body, node);
            arithmetic_us += arithmetic;
            time_us += OP_US + arithmetic.max(traffic(body, node) / BANDWIDTH);
            intermediate = intermediate.saturating_add(bytes(&body.node(node).types) as u64);
        }
        let outputs: f64 = body.outputs().iter().map(|&output| body.ty(output).bytes() as f64).sum();
        Ok(Offer {
            time_us,
            floor_us: arithmetic_us.max((boundary + outputs) / BANDWIDTH),
            launches: 1,
            scratch_bytes: intermediate.saturating_sub((boundary + outputs) as u64),
            schedule: CpuTarget::NAME.to_owned(),
            basis: Basis::Modelled,
        })
    }
}

/// Ops whose cost is not that of a pass over their operands: two of them in one region share nothing.
fn is_heavy(op: &Op) -> bool {
    matches!(op, Op::Linear {} | Op::LongConv {} | Op::Rfft { .. } | Op::Irfft { .. })
}

fn bytes(types: &[Type]) -> f64 {
    types.iter().map(|ty| ty.bytes() as f64).sum()
}

/// Bytes that an op reads and writes when it is evaluated by itself.
fn traffic(body: &Graph, node: NodeIndex) -> f64 {
    match body.node(node).op {
        // A parameter and a reshape move nothing.
        Op::Parameter { .. } | Op::Reshape { .. } | Op::Scalar { .. } => 0.0,
        _ => {
            let read: f64 = body.operands(node).iter().map(|&operand| body.ty(operand).bytes() as f64).sum();
            read + bytes(&body.node(node).types)
        }
    }
}

fn arithmetic_us_of(body: &Graph, node: NodeIndex) -> f64 {
    let operand = |position: usize| body.ty(body.operand(node, position));
    let results: f64 = body.node(node).types.iter().map(|ty| ty.elements() as f64).sum();
    let last = |ty: &Type| ty.shape.last().copied().unwrap_or(1) as f64;
    match &body.node(node).op {
        Op::Linear {} => 2.0 * results * last(operand(0)) / GEMM_RATE,
        Op::ShortConv {} => 2.0 * results * last(operand(1)) / SUM_RATE,
        Op::LongConv {} => results * (last(operand(0)) + 1.0) / SUM_RATE,
        Op::Rfft { size } => transform_flops(operand(0).elements() as f64 / last(operand(0)), *size) / FFT_RATE,
        Op::Irfft { size, length } => transform_flops(results / *length as f64, *size) / FFT_RATE,
        Op::SpectrumMul {} => 6.0 * results / SUM_RATE,
        Op::Exp {} | Op::Sin {} | Op::GeluTanh {} | Op::PositionalEmbedding { .. } => results / SPECIAL_RATE,
        Op::LayerNorm { .. } => 8.0 * results / SUM_RATE,
        _ => results / SUM_RATE,
    }
}

/// Operations of `transforms` real transforms.
fn transform_flops(transforms: f64, size: usize) -> f64 {
    2.5 * transforms * size as f64 * (size.max(2) as f64).log2()
}

#[cfg(test)]
mod tests {
    use hyenac_ir::{Binding, Value};

    use super::*;

    fn parameter(body: &mut Graph, index: usize, shape: &[usize]) -> Value {
        let op = Op::Parameter { index, dtype: DType::F32, shape: shape.to_vec(), binding: Binding::Input };
        body.add(op, &[]).unwrap()
    }

    /// The time of one long convolution at this length, in the form that `build` gives it.
    fn convolution(length: usize, fft: bool) -> f64 {
        let region = |build: &dyn Fn(&mut Graph) -> Value| {
            let mut body = Graph::new();
            let result = build(&mut body);
            body.add_output(result);
            CpuTarget.price(&Region::new(body)).unwrap().time_us
        };
        let (signal, filter, spectrum) = ([1, 64, length], [64, length], [1, 64, length + 1]);
        if !fft {
            return region(&|body| {
                let (u, k) = (parameter(body, 0, &signal), parameter(body, 1, &filter));
                body.add(Op::LongConv {}, &[u, k]).unwrap()
            });
        }
        let size = 2 * length;
        let forward = |shape: &[usize]| {
            region(&|body| {
                let x = parameter(body, 0, shape);
                body.add(Op::Rfft { size }, &[x]).unwrap()
            })
        };
        let complex = |body: &mut Graph, index: usize| {
            let op = Op::Parameter { index, dtype: DType::C64, shape: spectrum.to_vec(), binding: Binding::Input };
            body.add(op, &[]).unwrap()
        };
        forward(&signal)
            + forward(&filter)
            + region(&|body| {
                let (a, b) = (complex(body, 0), complex(body, 1));
                let product = body.add(Op::SpectrumMul {}, &[a, b]).unwrap();
                body.add(Op::Irfft { size, length }, &[product]).unwrap()
            })
    }

    #[test]
    fn long_sequences_are_convolved_by_fft_and_short_ones_directly() {
        assert!(convolution(16, false) < convolution(16, true));
        assert!(convolution(4096, true) < convolution(4096, false));
    }

    #[test]
    fn a_region_holds_one_product_at_most() {
        let mut body = Graph::new();
        let (x, w) = (parameter(&mut body, 0, &[1, 4, 8]), parameter(&mut body, 1, &[8, 8]));
        let once = body.add(Op::Linear {}, &[x, w]).unwrap();
        let active = body.add(Op::GeluTanh {}, &[once]).unwrap();
        let mut two = body.clone();
        body.add_output(active);
        assert!(CpuTarget.price(&Region::new(body)).is_ok());
        let twice = two.add(Op::Linear {}, &[active, w]).unwrap();
        two.add_output(twice);
        let refusal = CpuTarget.price(&Region::new(two)).unwrap_err();
        assert_eq!((refusal.op.as_str(), refusal.larger), ("linear", false));
    }

    #[test]
    fn narrower_formats_are_refused() {
        let mut body = Graph::new();
        let x = parameter(&mut body, 0, &[4, 8]);
        let narrow = body.add(Op::Cast { dtype: DType::F16 }, &[x]).unwrap();
        let y = body.add(Op::Neg {}, &[narrow]).unwrap();
        body.add_output(y);
        let refusal = CpuTarget.price(&Region::new(body)).unwrap_err();
        assert!(refusal.op == "cast" && refusal.why.contains("f16[4, 8]"), "{refusal:?}");
    }
}
