//! Rules as rewrites of the e-graph.

use std::collections::BTreeMap;

use egg::{Applier, Id, Pattern, PatternAst, Rewrite, Subst, Symbol, Var};

use super::{Expression, Extents, Rule, VariableType};
use crate::facts::{BlockAnalysis, BlockGraph, Facts};
use crate::language::Term;
use crate::options::Precision;

impl Rule {
    /// The rewrite of this rule under a policy; none if no e-graph can match it.
    pub fn rewrite(&self, precision: Precision) -> Option<Rewrite<Term, BlockAnalysis>> {
        let searcher = Pattern::new(self.left.pattern()?);
        let variables = self
            .types
            .keys()
            .map(|name| Some((name.clone(), name.parse::<Var>().ok()?)))
            .collect::<Option<Vec<_>>>()?;
        Rewrite::new(self.name.as_str(), searcher, Instantiate { rule: self.clone(), variables, precision }).ok()
    }

    /// Whether what the variables stand for has the declared types and meets the conditions.
    fn admits(&self, precision: Precision, facts: &BTreeMap<String, Facts>) -> bool {
        let mut extents = Extents::default();
        let types_fit = self.types.iter().all(|(name, ty)| match (ty, facts.get(name)) {
            (VariableType::Tensor(symbolic), Some(Facts::Fragment(value) | Facts::Stored(value))) => {
                extents.admits(symbolic, &value.ty)
            }
            (VariableType::Attribute(kind), Some(Facts::Literal(literal))) => kind.admits(literal),
            _ => false,
        });
        types_fit && self.conditions.iter().all(|condition| condition.holds(precision, facts))
    }
}

struct Instantiate {
    rule: Rule,
    variables: Vec<(String, Var)>,
    precision: Precision,
}

impl Instantiate {
    fn add(
        egraph: &mut BlockGraph,
        expression: &Expression,
        ids: &BTreeMap<&str, Id>,
        facts: &BTreeMap<String, Facts>,
    ) -> Option<Id> {
        match expression {
            Expression::Variable(name) => ids.get(name.as_str()).copied(),
            Expression::Literal(head) => Some(egraph.add(Term::leaf(head.clone()))),
            Expression::Computed(function, name) => {
                let literal = function.apply(&facts.get(name)?.value()?.ty)?;
                Some(egraph.add(Term::leaf(literal)))
            }
            Expression::Apply(head, children) => {
                let children = children
                    .iter()
                    .map(|child| Instantiate::add(egraph, child, ids, facts))
                    .collect::<Option<Vec<_>>>()?;
                Some(egraph.add(Term { head: head.clone(), children }))
            }
        }
    }
}

impl Applier<Term, BlockAnalysis> for Instantiate {
    fn apply_one(
        &self,
        egraph: &mut BlockGraph,
        class: Id,
        subst: &Subst,
        _: Option<&PatternAst<Term>>,
        _: Symbol,
    ) -> Vec<Id> {
        let ids: BTreeMap<&str, Id> =
            self.variables.iter().filter_map(|(name, var)| Some((name.as_str(), *subst.get(*var)?))).collect();
        let facts: BTreeMap<String, Facts> =
            ids.iter().map(|(name, id)| ((*name).to_owned(), egraph[*id].data.clone())).collect();
        if !self.rule.admits(self.precision, &facts) {
            return Vec::new();
        }
        egraph.analysis.current_rule.clone_from(&self.rule.name);
        let Some(id) = Instantiate::add(egraph, &self.rule.right, &ids, &facts) else { return Vec::new() };
        // A broken result is recorded as a fault; uniting it would only spread it.
        let (old, new) = (egraph[class].data.clone(), egraph[id].data.clone());
        let shape = |facts: &Facts| facts.value().map(|value| value.ty.shape.clone());
        if new == Facts::Broken {
            return Vec::new();
        }
        if shape(&old) != shape(&new) {
            let ty = |facts: &Facts| facts.value().map_or("no value".to_owned(), |value| value.ty.to_string());
            egraph.analysis.blame(format!("unites {} with {}", ty(&old), ty(&new)));
            return Vec::new();
        }
        if egraph.union(class, id) { vec![id] } else { Vec::new() }
    }

    fn vars(&self) -> Vec<Var> {
        self.variables.iter().map(|(_, var)| *var).collect()
    }
}
