//! Instances of a rule's symbolic types.

use std::collections::BTreeMap;

use hyenac_ir::{Binding, DType, Type};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::facts::{Facts, Value};
use crate::language::Head;
use crate::options::Precision;
use crate::rule::{AttributeKind, Condition, Element, Extent, Extents, Rule, TensorType, VariableType};

/// What the variables of a rule stand for.
pub struct Instance {
    /// Types of the tensors.
    pub tensors: BTreeMap<String, Type>,
    /// The attributes.
    pub literals: BTreeMap<String, Head>,
}

/// A small instance that meets the rule's conditions, if this draw gives one.
pub fn draw(rule: &Rule, rng: &mut ChaCha8Rng) -> Option<Instance> {
    let mut extents = Extents::default();
    let mut instance = Instance { tensors: BTreeMap::new(), literals: BTreeMap::new() };
    for (name, ty) in &rule.types {
        match ty {
            VariableType::Tensor(symbolic) => {
                instance.tensors.insert(name.clone(), tensor(symbolic, &mut extents, rng));
            }
            VariableType::Attribute(kind) => {
                instance.literals.insert(name.clone(), attribute(*kind, rng));
            }
        }
    }
    let weights_only = |name: &str| {
        rule.conditions.iter().any(|condition| matches!(condition, Condition::WeightsOnly(x) if x == name))
    };
    let mut facts: BTreeMap<String, Facts> = BTreeMap::new();
    for (name, ty) in &instance.tensors {
        let binding = if weights_only(name) { Binding::Weights } else { Binding::Input };
        facts.insert(name.clone(), Facts::Fragment(Value { ty: ty.clone(), binding }));
    }
    for (name, literal) in &instance.literals {
        facts.insert(name.clone(), Facts::Literal(literal.clone()));
    }
    rule.conditions.iter().all(|condition| condition.holds(Precision::Mixed, &facts)).then_some(instance)
}

fn tensor(symbolic: &TensorType, extents: &mut Extents, rng: &mut ChaCha8Rng) -> Type {
    let dtype = match symbolic.element {
        Element::Exactly(dtype) => dtype,
        Element::Any if rng.random_bool(0.25) => DType::C64,
        Element::Real | Element::Any => DType::F32,
    };
    let mut shape = Vec::new();
    if let Some(name) = &symbolic.leading {
        let drawn = (0..rng.random_range(1..=2)).map(|_| rng.random_range(1..=3)).collect();
        shape.extend_from_slice(extents.leading.entry(name.clone()).or_insert(drawn));
    }
    for extent in &symbolic.extents {
        shape.push(match extent {
            Extent::Exactly(exact) => *exact,
            Extent::Named(name) => *extents.named.entry(name.clone()).or_insert(rng.random_range(1..=6)),
            Extent::Multiple(factor, name) => {
                factor * *extents.named.entry(name.clone()).or_insert(rng.random_range(1..=2))
            }
        });
    }
    Type::new(dtype, shape)
}

fn attribute(kind: AttributeKind, rng: &mut ChaCha8Rng) -> Head {
    match kind {
        AttributeKind::Precision => {
            let all = [DType::F32, DType::F16, DType::Tf32];
            Head::DType(all[rng.random_range(0..all.len())])
        }
        AttributeKind::Format => Head::DType(DType::ALL[rng.random_range(0..DType::ALL.len())]),
        AttributeKind::Axis => Head::Integer(rng.random_range(0..=2)),
        AttributeKind::Count => Head::Integer(rng.random_range(0..=3)),
        AttributeKind::Length => Head::Integer(rng.random_range(1..=4)),
        AttributeKind::Size => Head::Integer(2 * rng.random_range(1..=8)),
        AttributeKind::Permutation => {
            let mut axes: Vec<usize> = (0..rng.random_range(1..=3)).collect();
            for axis in (1..axes.len()).rev() {
                axes.swap(axis, rng.random_range(0..=axis));
            }
            Head::List(axes.into())
        }
        AttributeKind::Shape => {
            let shape: Vec<usize> = (0..rng.random_range(1..=3)).map(|_| rng.random_range(1..=6)).collect();
            Head::List(shape.into())
        }
        AttributeKind::Number => Head::Float(rng.random_range(0.0f64..1.0).to_bits()),
    }
}
