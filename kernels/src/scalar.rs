//! Emission of one element of a value as scalar code.
//!
//! Every op that computes an element from a bounded number of operand elements has a *scalar form*:
//! elementwise ops, data movement, the short convolution, the positional embedding. Kernel families use
//! the [`Emitter`] for their prologues and epilogues, and say through a [`Reader`] which values they
//! hold themselves (accumulators, row statistics, tiles), so that any expression fuses with any family.

use std::collections::BTreeMap;
use std::fmt::Write;

use hyenac_ir::{DType, Graph, Op, Value};

use crate::family::Refusal;
use crate::index::Index;
use crate::storage;

/// Values that a kernel family provides instead of the scalar form.
pub trait Reader {
    /// A C++ expression (`float`, or `float2` for c64) for an element, or `None` for the scalar form.
    fn read(&self, value: Value, index: &[Index]) -> Option<String>;
}

/// Provides nothing: every parameter is read from memory.
pub struct Memory;

impl Reader for Memory {
    fn read(&self, _: Value, _: &[Index]) -> Option<String> {
        None
    }
}

/// Emits statements that compute elements of values of one region body.
pub struct Emitter<'a> {
    body: &'a Graph,
    reader: &'a dyn Reader,
    /// Innermost scope last; a name is visible in its scope and those opened within.
    scopes: Vec<BTreeMap<(Value, Vec<Index>), String>>,
    code: String,
    indent: usize,
    names: usize,
    prefix: String,
}

impl<'a> Emitter<'a> {
    /// An emitter whose statements are indented by `indent` levels and whose variables start with `prefix`.
    pub fn new(body: &'a Graph, reader: &'a dyn Reader, indent: usize, prefix: &str) -> Emitter<'a> {
        Emitter {
            body,
            reader,
            scopes: vec![BTreeMap::new()],
            code: String::new(),
            indent,
            names: 0,
            prefix: prefix.to_owned(),
        }
    }

    /// The statements emitted so far.
    pub fn finish(self) -> String {
        self.code
    }

    /// Appends a statement of the family's own.
    pub fn line(&mut self, text: &str) {
        let _ = writeln!(self.code, "{:width$}{text}", "", width = 4 * self.indent);
    }

    /// Emits what is needed for one element and returns an expression for it (`float`, or `float2` for c64).
    ///
    /// # Errors
    /// When an op has no scalar form and the reader does not provide it.
    pub fn element(&mut self, value: Value, index: &[Index]) -> Result<String, Refusal> {
        if let Some(expression) = self.reader.read(value, index) {
            return Ok(expression);
        }
        let key = (value, index.to_vec());
        if let Some(name) = self.scopes.iter().rev().find_map(|scope| scope.get(&key)) {
            return Ok(name.clone());
        }
        let expression = self.scalar_form(value, index)?;
        // Names and literals need no variable of their own, nor does another view of an element.
        let view = matches!(self.body.op(value), Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice { .. });
        let atomic = view || expression.chars().all(|c| c.is_ascii_alphanumeric() || "._".contains(c));
        let name = if atomic { expression } else { self.bind(self.body.ty(value).dtype, &expression) };
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(key, name.clone());
        }
        Ok(name)
    }

    /// Emits one element ready to be stored as the value's dtype: a final cast is left to the store.
    ///
    /// # Errors
    /// As [`Emitter::element`].
    pub fn stored_element(&mut self, value: Value, index: &[Index]) -> Result<String, Refusal> {
        let dtype = self.body.ty(value).dtype;
        let source = match self.body.op(value) {
            Op::Cast { .. } if self.reader.read(value, index).is_none() => self.body.operand(value.node, 0),
            _ => value,
        };
        let expression = self.element(source, index)?;
        Ok(match dtype {
            DType::F16 => format!("to_half({expression})"),
            DType::Tf32 => format!("round_tf32({expression})"),
            DType::F32 | DType::C64 => expression,
        })
    }

    fn fresh(&mut self) -> String {
        self.names += 1;
        format!("{}{}", self.prefix, self.names - 1)
    }

    fn bind(&mut self, dtype: DType, expression: &str) -> String {
        let name = self.fresh();
        let ty = if dtype == DType::C64 { "float2" } else { "float" };
        self.line(&format!("{ty} {name} = {expression};"));
        name
    }

    /// `name` stays zero unless `condition` holds, in which case it becomes `element`.
    fn guarded(&mut self, condition: &str, value: Value, index: &[Index]) -> Result<String, Refusal> {
        let complex = self.body.ty(value).dtype == DType::C64;
        let name = self.fresh();
        let (ty, zero) = if complex { ("float2", "make_float2(0.0f, 0.0f)") } else { ("float", "0.0f") };
        self.line(&format!("{ty} {name} = {zero};"));
        self.line(&format!("if ({condition}) {{"));
        self.indent += 1;
        self.scopes.push(BTreeMap::new());
        let expression = self.element(value, index);
        if let Ok(expression) = &expression {
            self.line(&format!("{name} = {expression};"));
        }
        self.scopes.pop();
        self.indent -= 1;
        self.line("}");
        expression.map(|_| name)
    }

    fn scalar_form(&mut self, value: Value, index: &[Index]) -> Result<String, Refusal> {
        let operands = self.body.operands(value.node);
        let op = self.body.op(value).clone();
        let unary = |this: &mut Self, function: &str| {
            let x = this.element(operands[0], index)?;
            Ok(format!("{function}({x})"))
        };
        match op {
            Op::Parameter { index: position, dtype, shape, .. } => {
                let address = storage::address(dtype, &shape, index);
                Ok(format!("{}(p{position} + {address})", storage::load_function(dtype)))
            }
            Op::Scalar { value } => Ok(literal(value)),
            Op::PositionalEmbedding { positions, width, .. } => {
                Ok(format!("positional_embedding<{positions}u, {}u>({}, {})", (width - 1) / 2, index[0], index[1]))
            }
            Op::Cast { dtype } => match (dtype, self.body.ty(operands[0]).dtype) {
                (to, from) if to == from => self.element(operands[0], index),
                (DType::F16, _) => {
                    let x = self.element(operands[0], index)?;
                    Ok(format!("from_half(to_half({x}))"))
                }
                (DType::Tf32, _) => unary(self, "round_tf32"),
                _ => self.element(operands[0], index),
            },
            Op::Reshape { shape } => {
                let flat = Index::flatten(&shape, index);
                let source = flat.unflatten(&self.body.ty(operands[0]).shape);
                self.element(operands[0], &source)
            }
            Op::Transpose { permutation } => {
                let mut source = vec![Index::constant(0); permutation.len()];
                for (position, &axis) in permutation.iter().enumerate() {
                    source[axis] = index[position].clone();
                }
                self.element(operands[0], &source)
            }
            Op::Slice { axis, start, .. } => {
                let mut source = index.to_vec();
                source[axis] = Index::constant(start as u64).plus(&index[axis]);
                self.element(operands[0], &source)
            }
            Op::Pad { axis, before, .. } => {
                let extent = self.body.ty(operands[0]).shape[axis];
                let position = &index[axis];
                let mut conditions = Vec::new();
                if before > 0 {
                    conditions.push(format!("{position} >= {before}u"));
                }
                if position.bound() > (before + extent) as u64 {
                    conditions.push(format!("{position} < {}u", before + extent));
                }
                let mut source = index.to_vec();
                source[axis] = position.minus(before as u64);
                if conditions.is_empty() {
                    self.element(operands[0], &source)
                } else {
                    self.guarded(&conditions.join(" && "), operands[0], &source)
                }
            }
            Op::Add {} | Op::Mul {} => {
                let a = self.broadcast(operands[0], index)?;
                let b = self.broadcast(operands[1], index)?;
                Ok(format!("{a} {} {b}", if op == (Op::Add {}) { "+" } else { "*" }))
            }
            Op::SpectrumMul {} => {
                let a = self.broadcast(operands[0], index)?;
                let b = self.broadcast(operands[1], index)?;
                Ok(format!("complex_product({a}, {b})"))
            }
            Op::Neg {} => {
                let x = self.element(operands[0], index)?;
                Ok(format!("-{x}"))
            }
            Op::Abs {} => unary(self, "fabsf"),
            Op::Exp {} => unary(self, "expf"),
            Op::Sin {} => unary(self, "sine"),
            Op::GeluTanh {} => unary(self, "gelu_tanh"),
            Op::ShortConv {} => {
                let taps = self.body.ty(operands[1]).shape[2];
                let (channel, time) = (&index[1], &index[2]);
                // The latest tap comes first: what it shares with earlier ones is then computed outside their guards.
                let mut products = Vec::new();
                for back in 0..taps as u64 {
                    let tap = Index::constant(taps as u64 - 1 - back);
                    let weight = self.element(operands[1], &[channel.clone(), Index::constant(0), tap])?;
                    let source = [index[0].clone(), channel.clone(), time.minus(back)];
                    let x = if time.minimum() >= back {
                        self.element(operands[0], &source)?
                    } else {
                        self.guarded(&format!("{time} >= {back}u"), operands[0], &source)?
                    };
                    products.push((weight, x));
                }
                let mut sum = String::new();
                for (weight, x) in products.into_iter().rev() {
                    sum =
                        if sum.is_empty() { format!("{weight} * {x}") } else { format!("fmaf({weight}, {x}, {sum})") };
                }
                Ok(sum)
            }
            Op::LayerNorm { .. }
            | Op::Linear {}
            | Op::LongConv {}
            | Op::Rfft { .. }
            | Op::Irfft { .. }
            | Op::Input { .. }
            | Op::Weight { .. }
            | Op::Region(_) => {
                Err(Refusal { op: op.mnemonic().to_owned(), why: "has no scalar form".to_owned(), larger: false })
            }
        }
    }

    /// An element of an operand that broadcasts to the index space of its consumer.
    fn broadcast(&mut self, value: Value, index: &[Index]) -> Result<String, Refusal> {
        let shape = self.body.ty(value).shape.clone();
        let skipped = index.len() - shape.len();
        let own: Vec<Index> = shape
            .iter()
            .zip(&index[skipped..])
            .map(|(&extent, position)| if extent == 1 { Index::constant(0) } else { position.clone() })
            .collect();
        self.element(value, &own)
    }
}

/// A real constant as a C++ `float` literal.
pub fn literal(value: f64) -> String {
    let value = value as f32;
    if value.is_nan() {
        "__int_as_float(0x7fffffff)".to_owned()
    } else if value.is_infinite() {
        format!("__int_as_float({})", if value > 0.0 { "0x7f800000" } else { "0xff800000" })
    } else {
        format!("{value:?}f")
    }
}

/// C++ type of an element in memory.
pub fn element_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::Tf32 => "float",
        DType::F16 => "half_bits",
        DType::C64 => "float2",
    }
}

/// Whether an op has a scalar form.
pub fn has_scalar_form(op: &Op) -> bool {
    !matches!(
        op,
        Op::LayerNorm { .. }
            | Op::Linear {}
            | Op::LongConv {}
            | Op::Rfft { .. }
            | Op::Irfft { .. }
            | Op::Input { .. }
            | Op::Weight { .. }
            | Op::Region(_)
    )
}
