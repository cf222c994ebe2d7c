//! Fused fragments: a choice of one step for every fragment class inside a region.

use std::collections::BTreeSet;

use hyenac_ir::{Binding, Op};

use super::forest::{Class, Forest, Origin, Step};

/// A fragment down to its loads.
///
/// Every class has one step, wherever it is used, so that what is used twice is computed once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fragment {
    /// The step of each class inside, by class.
    pub steps: Vec<(Class, usize)>,
    /// The stored classes that are loaded, ascending.
    pub leaves: Vec<Class>,
}

impl Fragment {
    /// The step of a class inside this fragment.
    pub fn step<'f>(&self, forest: &'f Forest, class: Class) -> Option<&'f Step> {
        let position = self.steps.binary_search_by_key(&class, |(inside, _)| *inside).ok()?;
        forest.steps(class).get(self.steps[position].1)
    }

    /// Both fragments in one region, if they agree on every class that both have.
    pub fn join(&self, other: &Fragment) -> Option<Fragment> {
        let mut steps = Vec::with_capacity(self.steps.len() + other.steps.len());
        let (mut a, mut b) = (self.steps.iter().peekable(), other.steps.iter().peekable());
        loop {
            match (a.peek(), b.peek()) {
                (Some(&&x), Some(&&y)) if x.0 == y.0 => {
                    if x.1 != y.1 {
                        return None;
                    }
                    steps.push(x);
                    a.next();
                    b.next();
                }
                (Some(&&x), y) if y.is_none_or(|y| x.0 < y.0) => {
                    steps.push(x);
                    a.next();
                }
                (_, Some(&&y)) => {
                    steps.push(y);
                    b.next();
                }
                (_, None) => break,
            }
        }
        let mut leaves = [self.leaves.as_slice(), other.leaves.as_slice()].concat();
        leaves.sort_unstable();
        leaves.dedup();
        Some(Fragment { steps, leaves })
    }

    /// This fragment with one more step on top of it.
    pub fn with(mut self, class: Class, step: usize) -> Option<Fragment> {
        match self.steps.binary_search_by_key(&class, |(inside, _)| *inside) {
            // The class computes itself: a cycle.
            Ok(_) => None,
            Err(position) => {
                self.steps.insert(position, (class, step));
                Some(self)
            }
        }
    }

    /// Whether a stored value is loaded that is also computed inside.
    pub fn loads_what_it_computes(&self, forest: &Forest) -> bool {
        self.leaves.iter().any(|leaf| {
            forest.origins(*leaf).iter().any(|origin| match origin {
                Origin::Mat(_, class) => matches!(self.step(forest, *class), Some(Step::Compute { .. })),
                Origin::Source(_) => false,
            })
        })
    }

    /// The arithmetic that makes this fragment what it is: the classes computed by an op other than a constant or
    /// a move of data and, where some of them depend on the input, only those; ascending.
    pub fn essence(&self, forest: &Forest) -> Vec<Class> {
        let moves = |class: &Class| {
            matches!(
                self.step(forest, *class),
                Some(Step::Compute {
                    op: Op::Cast { .. } | Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice { .. } | Op::Pad { .. },
                    ..
                })
            )
        };
        let depends = |class: &Class| forest.value(*class).is_some_and(|value| value.binding == Binding::Input);
        let computed = self.computed(forest);
        let arithmetic: Vec<Class> = computed.iter().copied().filter(|class| !moves(class)).collect();
        let live: Vec<Class> = arithmetic.iter().copied().filter(depends).collect();
        [live, arithmetic].into_iter().find(|classes| classes.len() > 1).unwrap_or(computed)
    }

    /// The classes that are computed by an op other than a constant, ascending.
    pub fn computed(&self, forest: &Forest) -> Vec<Class> {
        let is_computed = |class: &Class| matches!(self.step(forest, *class), Some(Step::Compute { op, .. }) if !matches!(op, Op::Scalar { .. }));
        self.steps.iter().map(|(class, _)| *class).filter(is_computed).collect()
    }

    /// The op picked for each class that different ops can compute.
    pub fn algorithm(&self, forest: &Forest) -> Vec<(Class, &'static str)> {
        let mnemonic = |step: &Step| match step {
            Step::Compute { op, .. } => Some(op.mnemonic()),
            Step::Load(_) => None,
        };
        let picked = |(class, step): &(Class, usize)| {
            let picked = mnemonic(forest.steps(*class).get(*step)?)?;
            let others = forest.steps(*class).iter().filter_map(mnemonic).any(|other| other != picked);
            others.then_some((*class, picked))
        };
        self.steps.iter().filter_map(picked).collect()
    }

    /// The mnemonics of the ops inside other than constants, operands first.
    pub fn mnemonics(&self, forest: &Forest, root: Class) -> Vec<&'static str> {
        let mut seen = BTreeSet::new();
        let mut mnemonics = Vec::new();
        self.visit(forest, root, &mut seen, &mut mnemonics);
        mnemonics
    }

    fn visit(&self, forest: &Forest, class: Class, seen: &mut BTreeSet<Class>, mnemonics: &mut Vec<&'static str>) {
        if !seen.insert(class) {
            return;
        }
        if let Some(Step::Compute { op, operands, .. }) = self.step(forest, class) {
            operands.iter().for_each(|operand| self.visit(forest, *operand, seen, mnemonics));
            if !matches!(op, Op::Scalar { .. }) {
                mnemonics.push(op.mnemonic());
            }
        }
    }
}
