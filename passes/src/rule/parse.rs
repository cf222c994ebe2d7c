//! Reading rule files; `docs/rules.md` describes the syntax.

use std::collections::BTreeMap;

use hyenac_ir::DType;

use super::Rule;
use super::condition::Condition;
use super::error::RuleError;
use super::expression::{Expression, Function};
use super::lexer::{Cursor, Place, cut};
use super::symbolic::{AttributeKind, Element, Extent, TensorType, VariableType};
use crate::facts::op_of;
use crate::language::Head;

/// What may stand in a place of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Literal,
    Fragment,
    Stored,
}

impl Sort {
    fn name(self) -> &'static str {
        match self {
            Sort::Literal => "an attribute",
            Sort::Fragment => "a fragment (an op or a load)",
            Sort::Stored => "a stored value (a mat)",
        }
    }

    fn of(head: &Head) -> Sort {
        match head {
            Head::Mat | Head::Input(_) | Head::Weight(_) => Sort::Stored,
            Head::Load | Head::Op(_) => Sort::Fragment,
            _ => Sort::Literal,
        }
    }
}

const CONDITIONS: [&str; 6] = ["precision-allows", "depends-on-input", "weights-only", "widens", "narrows", "lossless"];

/// Reads every rule of a file.
pub(super) fn rules(file: &str, text: &str) -> Result<Vec<Rule>, RuleError> {
    let tokens = cut(text);
    let mut cursor = Cursor::new(file, &tokens);
    let mut rules: Vec<Rule> = Vec::new();
    while let Some(token) = cursor.peek() {
        let place = token.place;
        let rule = Reader { cursor: &mut cursor, types: BTreeMap::new(), sorts: BTreeMap::new(), right: false }
            .rule(file, place)?;
        if let Some(first) = rules.iter().find(|other| other.name == rule.name) {
            let message = format!("rule {} exists already, from line {}", rule.name, first.line);
            return Err(cursor.error_at(place, message));
        }
        rules.push(rule);
    }
    Ok(rules)
}

struct Reader<'c, 'a> {
    cursor: &'c mut Cursor<'a>,
    types: BTreeMap<String, VariableType>,
    sorts: BTreeMap<String, Sort>,
    right: bool,
}

impl Reader<'_, '_> {
    fn rule(mut self, file: &str, start: Place) -> Result<Rule, RuleError> {
        self.cursor.expect("rule")?;
        let place = self.cursor.place();
        let name = self.cursor.take("the rule's name")?.text.clone();
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
            return Err(self.cursor.error_at(place, format!("`{name}` is no name: letters, digits, - and _ are")));
        }
        let mut conditions = Vec::new();
        let mut within = None;
        loop {
            if self.cursor.accept("where") {
                self.declarations()?;
            } else if self.cursor.accept("when") {
                while let Some(condition) = self.condition()? {
                    conditions.push(condition);
                }
            } else if self.cursor.accept("within") {
                let place = self.cursor.place();
                let text = &self.cursor.take("a bound")?.text;
                let bound = text.parse().ok().filter(|bound: &f64| *bound > 0.0 && bound.is_finite());
                let message = format!("the bound must be a positive number, found `{text}`");
                within = Some(bound.ok_or_else(|| self.cursor.error_at(place, message))?);
            } else {
                break;
            }
        }
        let place = self.cursor.place();
        let left = self.expression(None)?;
        let Expression::Apply(head, _) = &left else {
            return Err(self.cursor.error_at(place, "the left-hand side must be an op, a load or a mat"));
        };
        let sort = Sort::of(head);
        if let Some(name) = self.types.keys().find(|name| !self.sorts.contains_key(*name)) {
            return Err(self.cursor.error_at(place, format!("{name} is declared but not on the left-hand side")));
        }
        self.cursor.expect("=>")?;
        self.right = true;
        let place = self.cursor.place();
        let right = self.expression(Some(sort))?;
        if unites_round_trip(&left, &right) || unites_round_trip(&right, &left) {
            let message = "the rule unites a value with its own round trip through memory, which makes every \
                           fusion rule inert; drop the round trip at the consumer instead";
            return Err(self.cursor.error_at(place, message));
        }
        if self.cursor.peek().is_some_and(|token| token.text != "rule") {
            return Err(self.cursor.error("expected `rule` or the end of the file after the right-hand side"));
        }
        let equation = self.cursor.comment_above(start.line);
        Ok(Rule {
            name,
            file: file.to_owned(),
            line: start.line,
            equation,
            types: self.types,
            conditions,
            within,
            left,
            right,
        })
    }

    fn declarations(&mut self) -> Result<(), RuleError> {
        while let Some(token) = self.cursor.peek().filter(|token| token.text.starts_with('?')) {
            let name = token.text.clone();
            if name.len() < 2 || !name[1..].chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                return Err(self.cursor.error(format!("`{name}` is no variable: ? and letters, digits or _ are")));
            }
            if self.types.contains_key(&name) {
                return Err(self.cursor.error(format!("{name} is declared twice")));
            }
            self.cursor.take("a variable")?;
            self.cursor.expect(":")?;
            let ty = self.variable_type()?;
            self.types.insert(name, ty);
        }
        Ok(())
    }

    fn variable_type(&mut self) -> Result<VariableType, RuleError> {
        let place = self.cursor.place();
        let word = self.cursor.take("a type")?.text.clone();
        if !self.cursor.accept("[") {
            let kind = AttributeKind::ALL.iter().find(|(name, _)| *name == word).map(|(_, kind)| *kind);
            let names: Vec<&str> = AttributeKind::ALL.iter().map(|(name, _)| *name).collect();
            let message =
                format!("`{word}` is no type: a tensor type such as f32[.., K], or one of {}", names.join(", "));
            return kind.map(VariableType::Attribute).ok_or_else(|| self.cursor.error_at(place, message));
        }
        let element = Element::of(&word).ok_or_else(|| {
            let message = format!("`{word}` is no element type: one of f32, f16, tf32, c64, real, any");
            self.cursor.error_at(place, message)
        })?;
        let mut tensor = TensorType { element, leading: None, extents: Vec::new() };
        while !self.cursor.accept("]") {
            let place = self.cursor.place();
            let text = &self.cursor.take("an extent")?.text;
            if let Some(name) = text.strip_prefix("..") {
                if tensor.leading.is_some() || !tensor.extents.is_empty() {
                    return Err(self.cursor.error_at(place, "`..` must be the first extent"));
                }
                tensor.leading = Some(name.to_owned());
            } else if let Ok(exact) = text.parse() {
                tensor.extents.push(Extent::Exactly(exact));
            } else if text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                tensor.extents.push(Extent::Named(text.clone()));
            } else if let Some(multiple) = multiple(text) {
                tensor.extents.push(multiple);
            } else {
                let message = format!("`{text}` is no extent: a number, a name, a multiple such as 64*P, or ..");
                return Err(self.cursor.error_at(place, message));
            }
            if !self.cursor.at("]") {
                self.cursor.expect(",")?;
            }
        }
        Ok(VariableType::Tensor(tensor))
    }

    /// The next condition, or nothing if what follows is the left-hand side.
    fn condition(&mut self) -> Result<Option<Condition>, RuleError> {
        let Some(name) = self.cursor.peek_second().filter(|_| self.cursor.at("(")) else { return Ok(None) };
        if !CONDITIONS.contains(&name.text.as_str()) {
            return Ok(None);
        }
        self.cursor.expect("(")?;
        self.cursor.take("a condition")?;
        let condition = match name.text.as_str() {
            "precision-allows" => {
                let place = self.cursor.place();
                let word = &self.cursor.take("a dtype")?.text;
                let message = format!("`{word}` is no dtype");
                let dtype = DType::from_name(word).ok_or_else(|| self.cursor.error_at(place, message))?;
                Condition::PrecisionAllows(dtype)
            }
            "depends-on-input" => Condition::DependsOnInput(self.declared(true)?),
            "weights-only" => Condition::WeightsOnly(self.declared(true)?),
            "widens" => Condition::Widens(self.declared(true)?),
            "narrows" => Condition::Narrows(self.declared(true)?),
            _ => Condition::Lossless(self.declared(false)?, self.declared(true)?),
        };
        self.cursor.expect(")")?;
        Ok(Some(condition))
    }

    fn declared(&mut self, tensor: bool) -> Result<String, RuleError> {
        let place = self.cursor.place();
        let name = self.cursor.take("a variable")?.text.clone();
        match self.types.get(&name) {
            Some(VariableType::Tensor(_)) if tensor => Ok(name),
            Some(VariableType::Attribute(_)) if !tensor => Ok(name),
            Some(ty) => Err(self.cursor.error_at(place, format!("{name}: {ty} does not fit this condition"))),
            None => Err(self.undeclared(place, &name)),
        }
    }

    fn undeclared(&self, place: Place, name: &str) -> RuleError {
        self.cursor.error_at(place, format!("{name} has no type; declare it above: where {name}: f32[..]"))
    }

    fn expression(&mut self, sort: Option<Sort>) -> Result<Expression, RuleError> {
        let place = self.cursor.place();
        let token = self.cursor.take("an expression")?;
        if token.text.starts_with('?') {
            return self.variable(place, &token.text, sort);
        }
        if token.text != "(" {
            let mut text = token.text.clone();
            if text == "[" {
                while !text.ends_with(']') {
                    text.push_str(&self.cursor.take("`]`")?.text);
                }
            }
            let literal = Head::of_leaf(&text).filter(|head| Sort::of(head) == Sort::Literal);
            return match (literal, sort) {
                (Some(head), None | Some(Sort::Literal)) => Ok(Expression::Literal(head)),
                (_, sort) => {
                    let expected = sort.map_or("an op, a load or a mat", Sort::name);
                    Err(self.cursor.error_at(place, format!("expected {expected}, found `{text}`")))
                }
            };
        }
        let place = self.cursor.place();
        let name = self.cursor.take("an op")?.text.clone();
        if let Some((_, function)) = Function::ALL.iter().find(|(other, _)| *other == name) {
            return self.computed(place, *function, sort);
        }
        let head = Head::of_application(&name).ok_or_else(|| {
            let message = format!("`{name}` is neither an op of the IR, load, mat, nor a condition");
            self.cursor.error_at(place, message)
        })?;
        if let Some(expected) = sort.filter(|sort| *sort != Sort::of(&head)) {
            return Err(self.cursor.error_at(place, format!("expected {}, found `({name} ..`", expected.name())));
        }
        let (literals, terms) = head.arity();
        let term_sort = if head == Head::Load { Sort::Stored } else { Sort::Fragment };
        let mut children = Vec::new();
        for position in 0..literals + terms {
            if self.cursor.at(")") {
                let message = format!("{name} takes {literals} attributes, then {terms} operands");
                return Err(self.cursor.error(message));
            }
            children.push(self.expression(Some(if position < literals { Sort::Literal } else { term_sort }))?);
        }
        if !self.cursor.accept(")") {
            let message = format!("{name} takes {literals} attributes, then {terms} operands, and no more");
            return Err(self.cursor.error(message));
        }
        self.normalise(place, &head, &mut children)?;
        Ok(Expression::Apply(head, children))
    }

    /// Where every attribute is a literal, checks them against the op table and writes them as it does.
    fn normalise(&self, place: Place, head: &Head, children: &mut [Expression]) -> Result<(), RuleError> {
        let Head::Op(mnemonic) = head else { return Ok(()) };
        let (literals, _) = head.arity();
        let written: Option<Vec<_>> = children[..literals]
            .iter()
            .map(|child| match child {
                Expression::Literal(head) => head.attribute(),
                _ => None,
            })
            .collect();
        let Some(written) = written else { return Ok(()) };
        let (op, precision) =
            op_of(mnemonic, &written).map_err(|error| self.cursor.error_at(place, error.to_string()))?;
        let skipped = usize::from(precision.is_some());
        for (child, (_, attribute)) in children[skipped..].iter_mut().zip(op.attributes()) {
            if let Some(head) = Head::of_attribute(&attribute) {
                *child = Expression::Literal(head);
            }
        }
        Ok(())
    }

    fn computed(&mut self, place: Place, function: Function, sort: Option<Sort>) -> Result<Expression, RuleError> {
        if !self.right || sort != Some(Sort::Literal) {
            let message = "a computed attribute may only stand in the place of an attribute, on the right";
            return Err(self.cursor.error_at(place, message));
        }
        let name = self.declared(true)?;
        self.cursor.expect(")")?;
        Ok(Expression::Computed(function, name))
    }

    fn variable(&mut self, place: Place, name: &str, sort: Option<Sort>) -> Result<Expression, RuleError> {
        let Some(sort) = sort else {
            return Err(self.cursor.error_at(place, "the left-hand side must be an op, a load or a mat"));
        };
        let ty = self.types.get(name).ok_or_else(|| self.undeclared(place, name))?;
        if matches!(ty, VariableType::Attribute(_)) != (sort == Sort::Literal) {
            return Err(self.cursor.error_at(place, format!("{name}: {ty} stands where {} must", sort.name())));
        }
        match self.sorts.get(name) {
            Some(known) if *known != sort => {
                let message = format!("{name} stands for {} and for {}", known.name(), sort.name());
                Err(self.cursor.error_at(place, message))
            }
            None if self.right => Err(self.cursor.error_at(place, format!("{name} is not on the left-hand side"))),
            _ => {
                self.sorts.insert(name.to_owned(), sort);
                Ok(Expression::Variable(name.to_owned()))
            }
        }
    }
}

/// A multiple of a named extent.
fn multiple(text: &str) -> Option<Extent> {
    let (factor, name) = text.split_once('*')?;
    let factor = factor.parse().ok().filter(|&factor: &usize| factor > 0)?;
    let named = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    named.then(|| Extent::Multiple(factor, name.to_owned()))
}

/// Whether `trip` is `value` stored and loaded again.
fn unites_round_trip(trip: &Expression, value: &Expression) -> bool {
    let Expression::Apply(Head::Load, stored) = trip else { return false };
    let [Expression::Apply(Head::Mat, children)] = &stored[..] else { return false };
    children.last() == Some(value)
}
