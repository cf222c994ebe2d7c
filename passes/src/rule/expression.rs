//! The two sides of a rule.

use std::collections::BTreeMap;
use std::fmt;

use egg::{ENodeOrVar, PatternAst, Var};
use hyenac_ir::Type;

use crate::fft_size::fft_size;
use crate::language::{Head, Term};

/// A function that computes an attribute from the type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `(fft-size ?x)`: the transform size for a convolution of two sequences as long as the last axis.
    FftSize,
    /// `(last-extent ?x)`: the extent of the last axis.
    LastExtent,
    /// `(extents ?x)`: the shape.
    Extents,
    /// `(split-rows ?w)`: the shape `[N / 64, 64, K / 8, 8]` of a matrix `[N, K]`.
    SplitRows,
    /// `(split-columns ?w)`: the shape `[N, K / 8, 8]` of a matrix `[N, K]`.
    SplitColumns,
}

impl Function {
    /// Every function with its name in rule files.
    pub const ALL: [(&'static str, Function); 5] = [
        ("fft-size", Function::FftSize),
        ("last-extent", Function::LastExtent),
        ("extents", Function::Extents),
        ("split-rows", Function::SplitRows),
        ("split-columns", Function::SplitColumns),
    ];

    /// The attribute, or nothing for a value that has none.
    pub fn apply(self, ty: &Type) -> Option<Head> {
        let matrix = || match ty.shape[..] {
            [rows, columns] => Some((rows, columns)),
            _ => None,
        };
        let whole = |extent: usize, part: usize| extent.is_multiple_of(part).then_some(extent / part);
        Some(match self {
            Function::FftSize => Head::Integer(fft_size(*ty.shape.last()?)),
            Function::LastExtent => Head::Integer(*ty.shape.last()?),
            Function::Extents => Head::List(ty.shape.as_slice().into()),
            Function::SplitRows => {
                let (rows, columns) = matrix()?;
                Head::List([whole(rows, 64)?, 64, whole(columns, 8)?, 8].into())
            }
            Function::SplitColumns => {
                let (rows, columns) = matrix()?;
                Head::List([rows, whole(columns, 8)?, 8].into())
            }
        })
    }
}

/// A side of a rule, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// A variable, with its question mark.
    Variable(String),
    /// A literal.
    Literal(Head),
    /// An op, `mat` or `load` with its children.
    Apply(Head, Vec<Expression>),
    /// An attribute computed from the type of a variable; right-hand sides only.
    Computed(Function, String),
}

impl Expression {
    /// The side as a pattern to search for; computed attributes have no pattern.
    pub fn pattern(&self) -> Option<PatternAst<Term>> {
        let mut ast = PatternAst::default();
        self.add_to(&mut ast)?;
        Some(ast)
    }

    fn add_to(&self, ast: &mut PatternAst<Term>) -> Option<egg::Id> {
        let node = match self {
            Expression::Variable(name) => ENodeOrVar::Var(name.parse::<Var>().ok()?),
            Expression::Literal(head) => ENodeOrVar::ENode(Term::leaf(head.clone())),
            Expression::Apply(head, children) => {
                let children = children.iter().map(|child| child.add_to(ast)).collect::<Option<Vec<_>>>()?;
                ENodeOrVar::ENode(Term { head: head.clone(), children })
            }
            Expression::Computed(..) => return None,
        };
        Some(ast.add(node))
    }

    /// The variables, each once, in order of first use.
    pub fn variables(&self) -> Vec<&str> {
        let mut found = Vec::new();
        self.visit(&mut |name| {
            if !found.contains(&name) {
                found.push(name);
            }
        });
        found
    }

    fn visit<'a>(&'a self, see: &mut impl FnMut(&'a str)) {
        match self {
            Expression::Variable(name) | Expression::Computed(_, name) => see(name),
            Expression::Literal(_) => {}
            Expression::Apply(_, children) => children.iter().for_each(|child| child.visit(see)),
        }
    }

    /// The types of variables put in for computed attributes.
    pub fn compute(&self, types: &BTreeMap<String, Type>) -> Option<Expression> {
        Some(match self {
            Expression::Computed(function, name) => Expression::Literal(function.apply(types.get(name)?)?),
            Expression::Apply(head, children) => Expression::Apply(
                head.clone(),
                children.iter().map(|child| child.compute(types)).collect::<Option<Vec<_>>>()?,
            ),
            other => other.clone(),
        })
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expression::Variable(name) => f.write_str(name),
            Expression::Literal(head) => head.fmt(f),
            Expression::Apply(head, children) => {
                write!(f, "({head}")?;
                for child in children {
                    write!(f, " {child}")?;
                }
                f.write_str(")")
            }
            Expression::Computed(function, name) => {
                let function = Function::ALL.iter().find(|(_, other)| other == function).map_or("", |(name, _)| name);
                write!(f, "({function} {name})")
            }
        }
    }
}
