//! The saturated e-graph, reduced to what extraction needs.

use std::collections::BTreeMap;

use egg::Id;
use hyenac_ir::{Attribute, DType, IrError, Op};

use crate::facts::{BlockGraph, Facts, Value, op_of};
use crate::language::Head;

/// Number of a class.
pub type Class = usize;

/// One way to have a fragment.
#[derive(Clone, Debug)]
pub enum Step {
    /// Load a stored value.
    Load(Class),
    /// Compute an op on fragments.
    Compute {
        /// The op.
        op: Op,
        /// What its operands are rounded to, for the ops that carry it.
        precision: Option<DType>,
        /// Its head and attributes as printed.
        printed: String,
        /// Its operands.
        operands: Vec<Class>,
    },
}

impl Step {
    /// Whether the step changes the order of elements.
    pub fn moves(&self) -> bool {
        matches!(self, Step::Compute { op: Op::Transpose { .. }, .. })
    }
}

/// One way to have a stored value.
#[derive(Clone, Debug)]
pub enum Origin {
    /// It is an input or a weight.
    Source(Head),
    /// A fragment is stored in a format.
    Mat(DType, Class),
}

/// Every class of the e-graph by number; literals are empty.
pub struct Forest {
    numbers: BTreeMap<Id, Class>,
    values: Vec<Option<Value>>,
    steps: Vec<Vec<Step>>,
    origins: Vec<Vec<Origin>>,
    egraph: BlockGraph,
}

impl Forest {
    /// Reads a rebuilt e-graph.
    ///
    /// # Errors
    /// When a node has no meaning, which the e-graph's analysis would have reported first.
    pub fn new(egraph: BlockGraph) -> Result<Forest, IrError> {
        let mut ids: Vec<Id> = egraph.classes().map(|class| class.id).collect();
        ids.sort_unstable();
        let numbers: BTreeMap<Id, Class> = ids.iter().enumerate().map(|(number, id)| (*id, number)).collect();
        let count = ids.len();
        let (mut values, mut steps, mut origins) =
            (vec![None; count], vec![Vec::new(); count], vec![Vec::new(); count]);
        for (number, id) in ids.iter().enumerate() {
            let class = &egraph[*id];
            values[number] = class.data.value().cloned();
            for term in class.iter() {
                let (literals, terms) = term.split();
                let children = || terms.iter().map(|child| numbers[&egraph.find(*child)]).collect::<Vec<_>>();
                let attributes: Vec<Attribute> = literals
                    .iter()
                    .filter_map(|child| egraph[*child].data.literal().and_then(Head::attribute))
                    .collect();
                match &term.head {
                    Head::Input(_) | Head::Weight(_) => origins[number].push(Origin::Source(term.head.clone())),
                    Head::Mat => {
                        let format = literals.first().and_then(|child| egraph[*child].data.literal());
                        if let (Some(Head::DType(format)), [child]) = (format, &children()[..]) {
                            origins[number].push(Origin::Mat(*format, *child));
                        }
                    }
                    Head::Load => steps[number].extend(children().first().map(|child| Step::Load(*child))),
                    Head::Op(mnemonic) if class.data != Facts::Broken => {
                        let (op, precision) = op_of(mnemonic, &attributes)?;
                        let mut printed = (*mnemonic).to_owned();
                        for child in literals {
                            if let Some(literal) = egraph[*child].data.literal() {
                                printed.push_str(&format!(" {literal}"));
                            }
                        }
                        steps[number].push(Step::Compute { op, precision, printed, operands: children() });
                    }
                    _ => {}
                }
            }
        }
        Ok(Forest { numbers, values, steps, origins, egraph })
    }

    /// The number of the class of an id of the e-graph.
    pub fn class(&self, id: Id) -> Class {
        self.numbers[&self.egraph.find(id)]
    }

    /// Type and binding time of a class that is no literal.
    pub fn value(&self, class: Class) -> Option<&Value> {
        self.values[class].as_ref()
    }

    /// The ways to have a fragment.
    pub fn steps(&self, class: Class) -> &[Step] {
        &self.steps[class]
    }

    /// The ways to have a stored value.
    pub fn origins(&self, class: Class) -> &[Origin] {
        &self.origins[class]
    }

    /// The source a stored class is, if it is one.
    pub fn source(&self, class: Class) -> Option<&Head> {
        self.origins[class].iter().find_map(|origin| match origin {
            Origin::Source(head) => Some(head),
            Origin::Mat(..) => None,
        })
    }
}
