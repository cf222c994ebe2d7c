//! The one table of ops.
//!
//! The text format, the verifier's arity check and the encoding into the
//! e-graph derive from the table below. To add an op: a row here with its
//! documentation (and the same in `docs/ir.md`), a shape rule in `infer.rs`, an
//! arm in `interpret/`, and a scalar form or a kernel family in `kernels`.

use crate::attribute::{Attribute, AttributeValue};
use crate::error::IrError;
use crate::region::Region;
use crate::types::{Binding, DType};

/// One row of the op table.
pub struct Signature {
    /// The name in the text format and in rules.
    pub mnemonic: &'static str,
    /// Names of the operands, in order.
    pub operands: &'static [&'static str],
    /// Names of the attributes, in order.
    pub attributes: &'static [&'static str],
    build: fn(&[Attribute]) -> Result<Op, IrError>,
}

impl Signature {
    /// The row of this mnemonic.
    pub fn of(mnemonic: &str) -> Option<&'static Signature> {
        TABLE.iter().find(|row| row.mnemonic == mnemonic)
    }

    /// The op with these attribute values, in the order of [`Signature::attributes`].
    pub fn build(&self, attributes: &[Attribute]) -> Result<Op, IrError> {
        if attributes.len() != self.attributes.len() {
            return Err(IrError::AttributeCount {
                op: self.mnemonic,
                expected: self.attributes.len(),
                found: attributes.len(),
            });
        }
        (self.build)(attributes)
    }
}

macro_rules! ops {
    ($(
        $(#[$doc:meta])*
        $variant:ident = $mnemonic:literal ( $($operand:ident),* ) { $($attribute:ident : $ty:ty),* }
    )*) => {
        /// An operation of the IR. `docs/ir.md` is its normative specification.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op {
            $(
                $(#[$doc])*
                #[allow(missing_docs)]
                $variant { $($attribute: $ty),* },
            )*
            /// A fused kernel: its body, in elementary ops, is its definition.
            Region(Box<Region>),
        }

        impl Op {
            /// The name in the text format.
            pub fn mnemonic(&self) -> &'static str {
                match self {
                    $(Op::$variant { .. } => $mnemonic,)*
                    Op::Region(_) => "region",
                }
            }

            /// Attribute names and values, in the order of the table.
            pub fn attributes(&self) -> Vec<(&'static str, Attribute)> {
                match self {
                    $(Op::$variant { $($attribute),* } => {
                        vec![$((stringify!($attribute), AttributeValue::to_attribute($attribute))),*]
                    })*
                    Op::Region(_) => Vec::new(),
                }
            }

            /// Number of operands the op takes; a region takes as many as its body has parameters.
            pub fn arity(&self) -> usize {
                match self {
                    $(Op::$variant { .. } => {
                        const NAMES: &[&str] = &[$(stringify!($operand)),*];
                        NAMES.len()
                    })*
                    Op::Region(region) => region.body().parameters().len(),
                }
            }
        }

        /// Every elementary op.
        pub static TABLE: &[Signature] = &[
            $(Signature {
                mnemonic: $mnemonic,
                operands: &[$(stringify!($operand)),*],
                attributes: &[$(stringify!($attribute)),*],
                build: |values| {
                    let mut values = values.iter();
                    $(let $attribute = take::<$ty>($mnemonic, stringify!($attribute), values.next())?;)*
                    let _ = values.next();
                    Ok(Op::$variant { $($attribute),* })
                },
            }),*
        ];
    };
}

fn take<T: AttributeValue>(op: &'static str, attribute: &'static str, value: Option<&Attribute>) -> Result<T, IrError> {
    value.and_then(T::from_attribute).ok_or_else(|| IrError::Attribute {
        op,
        attribute,
        expected: T::EXPECTED,
        found: value.map(ToString::to_string).unwrap_or_default(),
    })
}

ops! {
    /// A tensor given with every call.
    Input = "input" () { name: String, dtype: DType, shape: Vec<usize> }
    /// A tensor of the block's weights.
    Weight = "weight" () { name: String, dtype: DType, shape: Vec<usize> }
    /// Operand `index` of the region whose body this is.
    Parameter = "parameter" () { index: usize, dtype: DType, shape: Vec<usize>, binding: Binding }
    /// A real constant of shape `[]`.
    Scalar = "scalar" () { value: f64 }
    /// `[rows, width]`: column 0 is `t_i = i / (positions - 1)` (0 for one position), then
    /// `cos(w_i f_j)` and `-sin(w_i f_j)` with `w_i = 2 pi i / positions` and `(width - 1) / 2` bands
    /// `f_j` evenly spaced from `1e-4` to `bands - 1`.
    PositionalEmbedding = "positional_embedding" () { positions: usize, rows: usize, width: usize }
    /// Rounds to a dtype (to nearest, ties to even), or widens exactly.
    Cast = "cast" (x) { dtype: DType }
    /// The same elements, row-major, under another shape.
    Reshape = "reshape" (x) { shape: Vec<usize> }
    /// Axis `a` of the result is axis `permutation[a]` of the operand.
    Transpose = "transpose" (x) { permutation: Vec<usize> }
    /// `length` entries of an axis, from `start`.
    Slice = "slice" (x) { axis: usize, start: usize, length: usize }
    /// Zeros before and after an axis.
    Pad = "pad" (x) { axis: usize, before: usize, after: usize }
    /// Elementwise sum, broadcast from the right (an extent of 1 stretches).
    Add = "add" (a, b) {}
    /// Elementwise product, broadcast from the right (an extent of 1 stretches).
    Mul = "mul" (a, b) {}
    /// Elementwise negation.
    Neg = "neg" (x) {}
    /// Elementwise absolute value.
    Abs = "abs" (x) {}
    /// Elementwise exponential.
    Exp = "exp" (x) {}
    /// Elementwise sine (radians).
    Sin = "sin" (x) {}
    /// Elementwise `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    GeluTanh = "gelu_tanh" (x) {}
    /// Normalises the last axis: `(x - mean) / sqrt(variance + eps) * weight + bias`, biased variance.
    LayerNorm = "layer_norm" (x, weight, bias) { eps: f64 }
    /// `y[.., n] = sum_k x[.., k] w[n, k]`; `x: [.., K]`, `w: [N, K]`, products of the operands exact, summed in f32.
    Linear = "linear" (x, weight) {}
    /// Causal depthwise convolution along the last axis: `y[b, c, t] = sum_j w[c, 0, j] x[b, c, t - (T - 1) + j]`,
    /// `x: [B, C, L]`, `w: [C, 1, T]`, zeros before the start.
    ShortConv = "short_conv" (x, weight) {}
    /// Causal convolution with a filter as long as the signal: `y[b, d, t] = sum_{s <= t} k[d, s] u[b, d, t - s]`,
    /// `u: [B, D, L]`, `k: [D, L]`.
    LongConv = "long_conv" (signal, filter) {}
    /// Discrete Fourier transform of size `size` (even) of the last axis padded with zeros; bins `0 ..= size / 2`.
    Rfft = "rfft" (x) { size: usize }
    /// Elementwise complex product, broadcast from the right.
    SpectrumMul = "spectrum_mul" (a, b) {}
    /// First `length` entries of the inverse (with `1 / size`) of [`Op::Rfft`].
    Irfft = "irfft" (x) { size: usize, length: usize }
}
