//! A side of a rule as a graph: markers dropped, stored formats and operand precisions spelt out as casts.

use std::collections::BTreeMap;

use hyenac_ir::{Attribute, Binding, DType, Graph, IrError, Op, Value};

use super::sample::Instance;
use crate::facts::op_of;
use crate::language::Head;
use crate::rule::Expression;

/// The graph of a side, whose parameters are the instance's tensors in the order of their names.
///
/// # Errors
/// When the side does not type-check on this instance.
pub fn build(side: &Expression, instance: &Instance) -> Result<Graph, IrError> {
    let mut body = Graph::new();
    let mut tensors = BTreeMap::new();
    for (index, (name, ty)) in instance.tensors.iter().enumerate() {
        let parameter = Op::Parameter { index, dtype: ty.dtype, shape: ty.shape.clone(), binding: Binding::Input };
        tensors.insert(name.as_str(), body.add(parameter, &[])?);
    }
    let value = add(side, instance, &tensors, &mut body)?;
    body.add_output(value);
    Ok(body)
}

fn add(
    expression: &Expression,
    instance: &Instance,
    tensors: &BTreeMap<&str, Value>,
    body: &mut Graph,
) -> Result<Value, IrError> {
    let misplaced = || IrError::Tensor { name: expression.to_string(), why: "is not a value".to_owned() };
    let (head, children) = match expression {
        Expression::Variable(name) => return tensors.get(name.as_str()).copied().ok_or_else(misplaced),
        Expression::Literal(_) | Expression::Computed(..) => return Err(misplaced()),
        Expression::Apply(head, children) => (head, children),
    };
    let (literals, terms) = children.split_at(head.arity().0.min(children.len()));
    let literals: Option<Vec<Attribute>> = literals.iter().map(|child| literal(child, instance)?.attribute()).collect();
    let literals = literals.ok_or_else(misplaced)?;
    let mut operands = terms.iter().map(|child| add(child, instance, tensors, body)).collect::<Result<Vec<_>, _>>()?;
    match (head, operands.first().copied()) {
        (Head::Load, Some(value)) => Ok(value),
        (Head::Mat, Some(value)) => match literals.first() {
            Some(Attribute::Word(word)) => {
                let format = DType::from_name(word).ok_or_else(misplaced)?;
                if format.is_real() != body.ty(value).dtype.is_real() {
                    return Err(misplaced());
                }
                cast(value, format, body)
            }
            _ => Err(misplaced()),
        },
        (Head::Op(mnemonic), _) => {
            let (op, precision) = op_of(mnemonic, &literals)?;
            if let Some(precision) = precision.filter(|precision| *precision != DType::F32) {
                for operand in &mut operands {
                    *operand = cast(*operand, precision, body)?;
                }
            }
            body.add(op, &operands)
        }
        _ => Err(misplaced()),
    }
}

fn literal<'a>(expression: &'a Expression, instance: &'a Instance) -> Option<&'a Head> {
    match expression {
        Expression::Literal(head) => Some(head),
        Expression::Variable(name) => instance.literals.get(name),
        Expression::Apply(..) | Expression::Computed(..) => None,
    }
}

fn cast(value: Value, dtype: DType, body: &mut Graph) -> Result<Value, IrError> {
    if body.ty(value).dtype == dtype { Ok(value) } else { body.add(Op::Cast { dtype }, &[value]) }
}
