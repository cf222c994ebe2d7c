//! Whether a rule is sound: instances are drawn from its symbolic types and both sides are evaluated.
//!
//! An exact rule must hold twice: with casts as the identity, and with casts that round. A rule that states a
//! bound (`within`) must hold exactly with casts as the identity, and within the bound when they round.

mod sample;
mod sides;

use std::collections::BTreeMap;
use std::fmt;

use hyenac_ir::{DType, Graph, IrError, Rounding, Tensor, Type, evaluate_body, interpret};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::rule::Rule;
use sample::{Instance, draw};
use sides::build;

/// How far the sides of an exact rule may differ, relative to their largest entry.
pub const EXACT: f64 = 1e-9;
/// Draws for each wanted instance before giving up on finding more.
const DRAWS_PER_INSTANCE: usize = 1_000;
/// Instances that are enough for a rule of the size of the built-in ones.
pub const INSTANCES: usize = 32;

/// What testing a rule found.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Both sides agreed on every instance.
    Sound {
        /// Number of instances.
        instances: usize,
    },
    /// The sides differ.
    Unsound(Counterexample),
    /// No instance of the symbolic types was found on which the left-hand side means something.
    NeverApplicable,
}

/// The smallest instance found on which the sides differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Counterexample {
    /// What each variable was.
    pub variables: BTreeMap<String, String>,
    /// What is wrong.
    pub what: String,
    /// The largest difference of an entry; infinite when the right-hand side means nothing or has another shape.
    pub difference: f64,
    /// What it may be.
    pub allowed: f64,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Sound { instances } => write!(f, "sound on {instances} instances"),
            Verdict::NeverApplicable => {
                f.write_str("never applicable: no instance of its types makes the left-hand side type-check")
            }
            Verdict::Unsound(found) => {
                let variables: Vec<String> =
                    found.variables.iter().map(|(name, value)| format!("{name}: {value}")).collect();
                write!(f, "unsound: {} for {}", found.what, variables.join(", "))
            }
        }
    }
}

/// Tests a rule on this many instances, the same for the same seed.
pub fn test_rule(rule: &Rule, seed: u64, instances: usize) -> Verdict {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut found = 0;
    let mut worst: Option<(usize, Counterexample)> = None;
    for _ in 0..instances.saturating_mul(DRAWS_PER_INSTANCE) {
        if found == instances {
            break;
        }
        let Some(instance) = draw(rule, &mut rng) else { continue };
        let Ok(left) = build(&rule.left, &instance) else { continue };
        found += 1;
        if let Some(counterexample) = compare(rule, &instance, &left, &mut rng) {
            let size: usize = instance.tensors.values().map(Type::elements).sum();
            if worst.as_ref().is_none_or(|(smallest, _)| size < *smallest) {
                worst = Some((size, counterexample));
            }
        }
    }
    match worst {
        Some((_, counterexample)) => Verdict::Unsound(counterexample),
        None if found == 0 => Verdict::NeverApplicable,
        None => Verdict::Sound { instances: found },
    }
}

fn compare(rule: &Rule, instance: &Instance, left: &Graph, rng: &mut ChaCha8Rng) -> Option<Counterexample> {
    let wrong = |what: String, difference: f64, allowed: f64| {
        let tensors = instance.tensors.iter().map(|(name, ty)| (name.clone(), ty.to_string()));
        let literals = instance.literals.iter().map(|(name, literal)| (name.clone(), literal.to_string()));
        Some(Counterexample { variables: tensors.chain(literals).collect(), what, difference, allowed })
    };
    let right = match rule.right.compute(&instance.tensors) {
        Some(right) => build(&right, instance),
        None => return wrong("the right-hand side cannot be computed".to_owned(), f64::INFINITY, 0.0),
    };
    let right = match right {
        Ok(right) => right,
        Err(error) => return wrong(format!("the right-hand side fails, {error},"), f64::INFINITY, 0.0),
    };
    let shape = |graph: &Graph| graph.outputs().first().map(|output| graph.ty(*output).clone());
    match (shape(left), shape(&right)) {
        (Some(a), Some(b)) if a.shape == b.shape && a.dtype.is_real() == b.dtype.is_real() => {}
        (a, b) => {
            let show = |ty: Option<Type>| ty.map_or("nothing".to_owned(), |ty| ty.to_string());
            return wrong(format!("the sides are {} and {}", show(a), show(b)), f64::INFINITY, 0.0);
        }
    }
    let operands: Vec<Tensor<f64>> = instance.tensors.values().map(|ty| random(ty, rng)).collect();
    let run = |graph: &Graph, rounding| -> Result<Vec<f64>, IrError> {
        let operands: Vec<&Tensor<f64>> = operands.iter().collect();
        Ok(evaluate_body(graph, &operands, rounding)?.swap_remove(0).data)
    };
    let mut checks = vec![(Rounding::Exact, Rounding::Exact, None)];
    checks.push(match rule.within {
        Some(bound) => (Rounding::Exact, Rounding::Casts, Some(bound)),
        None => (Rounding::Casts, Rounding::Casts, None),
    });
    for (on_left, on_right, bound) in checks {
        let (a, b) = match (run(left, on_left), run(&right, on_right)) {
            (Ok(a), Ok(b)) => (a, b),
            (Err(error), _) | (_, Err(error)) => {
                return wrong(format!("evaluation fails, {error},"), f64::INFINITY, 0.0);
            }
        };
        let largest = a.iter().chain(&b).fold(0f64, |largest, x| largest.max(x.abs()));
        let allowed = bound.map_or(EXACT * largest, |bound| bound * largest.max(1.0));
        // Not f64::max, which would lose a NaN.
        let difference = a.iter().zip(&b).map(|(x, y)| (x - y).abs()).fold(0f64, |m, d| if d <= m { m } else { d });
        let agree = difference <= allowed;
        if !agree {
            let how = if on_right == Rounding::Casts { "with casts that round" } else { "in exact arithmetic" };
            let what = format!("the sides differ by {difference:.3e} {how}, allowed are {allowed:.3e},");
            return wrong(what, difference, allowed);
        }
    }
    None
}

/// A tensor of numbers from -1 to 1 that the dtype represents.
fn random(ty: &Type, rng: &mut ChaCha8Rng) -> Tensor<f64> {
    let numbers = if ty.dtype == DType::C64 { 2 * ty.elements() } else { ty.elements() };
    let round = match ty.dtype {
        DType::F16 => interpret::round_to_f16,
        DType::Tf32 => interpret::round_to_tf32,
        DType::F32 | DType::C64 => |x: f64| f64::from(x as f32),
    };
    let data = (0..numbers).map(|_| round(rng.random_range(-1.0..1.0))).collect();
    Tensor { shape: ty.shape.clone(), data }
}
