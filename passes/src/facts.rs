//! The e-graph's analysis: sort, type and binding time of every class.

use std::collections::BTreeMap;

use egg::{DidMerge, EGraph, Id};
use hyenac_ir::{Attribute, Binding, DType, IrError, Op, Signature, Type, infer};

use crate::language::{Head, Term, WITH_PRECISION};

/// The e-graph of a block.
pub type BlockGraph = EGraph<Term, BlockAnalysis>;

/// Type and binding time of a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Dtype and shape.
    pub ty: Type,
    /// Input if any member of the class depends on the input.
    pub binding: Binding,
}

/// What is known of a class.
#[derive(Clone, Debug, PartialEq)]
pub enum Facts {
    /// An attribute.
    Literal(Head),
    /// A value in flight. Where members differ in dtype it is the widest of them.
    Fragment(Value),
    /// A value in memory; its dtype is its format.
    Stored(Value),
    /// A term without meaning, which some rule built.
    Broken,
}

impl Facts {
    /// The value, of either sort.
    pub fn value(&self) -> Option<&Value> {
        match self {
            Facts::Fragment(value) | Facts::Stored(value) => Some(value),
            Facts::Literal(_) | Facts::Broken => None,
        }
    }

    /// The literal.
    pub fn literal(&self) -> Option<&Head> {
        match self {
            Facts::Literal(head) => Some(head),
            _ => None,
        }
    }

    fn describe(&self) -> String {
        match self {
            Facts::Literal(head) => format!("the literal {head}"),
            Facts::Fragment(value) => format!("a fragment {}", value.ty),
            Facts::Stored(value) => format!("a stored {}", value.ty),
            Facts::Broken => "a term without meaning".to_owned(),
        }
    }
}

/// A term without meaning, or a union of unequal values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The rule that was being applied.
    pub rule: String,
    /// What went wrong.
    pub what: String,
}

/// The analysis itself: the types of the sources, and what rules did wrong.
#[derive(Clone, Debug, Default)]
pub struct BlockAnalysis {
    /// Inputs and weights.
    pub sources: BTreeMap<Head, Value>,
    /// The rule being applied, to blame.
    pub current_rule: String,
    /// What went wrong, in order.
    pub faults: Vec<Fault>,
}

impl BlockAnalysis {
    /// Records a fault of the current rule.
    pub fn blame(&mut self, what: String) {
        self.faults.push(Fault { rule: self.current_rule.clone(), what });
    }
}

/// The op of a head with these literal children, and the precision of its operands if it carries one.
///
/// # Errors
/// When the literals do not fit the op table.
pub fn op_of(mnemonic: &str, literals: &[Attribute]) -> Result<(Op, Option<DType>), IrError> {
    let row = Signature::of(mnemonic)
        .ok_or_else(|| IrError::Tensor { name: mnemonic.to_owned(), why: "is not an op".to_owned() })?;
    if !WITH_PRECISION.contains(&row.mnemonic) {
        return Ok((row.build(literals)?, None));
    }
    let precision = match literals.first() {
        Some(Attribute::Word(word)) => DType::from_name(word).filter(|dtype| dtype.is_real()),
        _ => None,
    };
    let precision = precision.ok_or_else(|| IrError::Attribute {
        op: row.mnemonic,
        attribute: "precision",
        expected: "one of f32, f16, tf32",
        found: literals.first().map(ToString::to_string).unwrap_or_default(),
    })?;
    Ok((row.build(literals.get(1..).unwrap_or_default())?, Some(precision)))
}

fn facts_of(egraph: &BlockGraph, term: &Term) -> Result<Facts, String> {
    let facts = |id: &Id| &egraph[*id].data;
    let (literals, terms) = term.split();
    if literals.iter().chain(terms).any(|id| *facts(id) == Facts::Broken) {
        return Ok(Facts::Broken);
    }
    let fragment = |id: &Id| match facts(id) {
        Facts::Fragment(value) => Ok(value.clone()),
        other => Err(format!("{term} takes fragments, found {}", other.describe())),
    };
    match &term.head {
        Head::DType(_) | Head::Integer(_) | Head::Float(_) | Head::List(_) => Ok(Facts::Literal(term.head.clone())),
        Head::Input(_) | Head::Weight(_) => match egraph.analysis.sources.get(&term.head) {
            Some(value) => Ok(Facts::Stored(value.clone())),
            None => Err(format!("there is no {}", term.head)),
        },
        Head::Load => match terms.first().map(facts) {
            Some(Facts::Stored(value)) => Ok(Facts::Fragment(value.clone())),
            Some(other) => Err(format!("load takes a stored value, found {}", other.describe())),
            None => Err("load takes one child".to_owned()),
        },
        Head::Mat => match (literals.first().map(facts), terms.first()) {
            (Some(Facts::Literal(Head::DType(format))), Some(x)) => {
                let x = fragment(x)?;
                if format.is_real() != x.ty.dtype.is_real() {
                    return Err(format!("a fragment {} cannot be stored as {format}", x.ty));
                }
                Ok(Facts::Stored(Value { ty: Type::new(*format, x.ty.shape), binding: x.binding }))
            }
            _ => Err("mat takes a format and a fragment".to_owned()),
        },
        Head::Op(mnemonic) => {
            let attributes: Option<Vec<Attribute>> =
                literals.iter().map(|id| facts(id).literal().and_then(Head::attribute)).collect();
            let attributes = attributes.ok_or_else(|| format!("the attributes of {mnemonic} must be literals"))?;
            let operands = terms.iter().map(fragment).collect::<Result<Vec<Value>, String>>()?;
            let types: Vec<&Type> = operands.iter().map(|value| &value.ty).collect();
            let (op, _) = op_of(mnemonic, &attributes).map_err(|error| error.to_string())?;
            let ty = infer(&op, &types).map_err(|error| error.to_string())?.swap_remove(0);
            let binding = operands.iter().map(|value| value.binding).max().unwrap_or(Binding::Weights);
            Ok(Facts::Fragment(Value { ty, binding }))
        }
    }
}

/// Whether every value of `narrow` is one of `wide`.
pub fn lossless(wide: DType, narrow: DType) -> bool {
    match (wide, narrow) {
        (DType::F32, narrow) => narrow.is_real(),
        (DType::Tf32, narrow) => matches!(narrow, DType::Tf32 | DType::F16),
        (wide, narrow) => wide == narrow,
    }
}

fn join(a: &mut Value, b: &Value, stored: bool) -> Result<(), String> {
    let formats = if stored { a.ty.dtype == b.ty.dtype } else { a.ty.dtype.is_real() == b.ty.dtype.is_real() };
    if a.ty.shape != b.ty.shape || !formats {
        return Err(format!("unites {} with {}", a.ty, b.ty));
    }
    if lossless(b.ty.dtype, a.ty.dtype) {
        a.ty.dtype = b.ty.dtype;
    }
    a.binding = a.binding.max(b.binding);
    Ok(())
}

impl egg::Analysis<Term> for BlockAnalysis {
    type Data = Facts;

    fn make(egraph: &mut BlockGraph, term: &Term, _id: Id) -> Facts {
        facts_of(egraph, term).unwrap_or_else(|what| {
            egraph.analysis.blame(format!("builds a term without meaning: {what}"));
            Facts::Broken
        })
    }

    fn merge(&mut self, a: &mut Facts, b: Facts) -> DidMerge {
        let before = a.clone();
        let joined = match (&mut *a, &b) {
            (Facts::Fragment(a), Facts::Fragment(b)) => join(a, b, false),
            (Facts::Stored(a), Facts::Stored(b)) => join(a, b, true),
            (a, b) if *a == *b => Ok(()),
            (a, b) => Err(format!("unites {} with {}", a.describe(), b.describe())),
        };
        match joined {
            Ok(()) => DidMerge(*a != before, *a != b),
            Err(what) => {
                self.blame(what);
                DidMerge(false, true)
            }
        }
    }
}
