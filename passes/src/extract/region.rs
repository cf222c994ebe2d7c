//! From a fragment to the region that computes and stores it.

use std::collections::BTreeMap;

use hyenac_ir::{Binding, DType, Graph, IrError, Op, Region, Value};

use super::forest::{Class, Forest, Step};
use super::fragment::Fragment;

/// The printed form of a region: equal for equal regions, whatever the e-graph's numbers.
pub struct Printed {
    /// The term, its loads numbered by first use, followed by the types of the loads.
    pub term: String,
    /// The stored classes behind the loads, in that order.
    pub loads: Vec<Class>,
}

/// Prints the region that stores a fragment, in a format or as it is.
///
/// What is used more than once is written out at its first use, behind `#n=`, and is `#n` from then on.
pub fn print(forest: &Forest, fragment: &Fragment, root: Class, format: Option<DType>) -> Printed {
    let mut uses: BTreeMap<Class, usize> = BTreeMap::new();
    for (class, _) in &fragment.steps {
        if let Some(Step::Compute { operands, .. }) = fragment.step(forest, *class) {
            operands.iter().for_each(|operand| *uses.entry(*operand).or_default() += 1);
        }
    }
    let mut printer =
        Printer { forest, fragment, uses, labels: BTreeMap::new(), out: String::new(), loads: Vec::new() };
    printer.class(root);
    let Printer { mut out, loads, .. } = printer;
    let format = format.or_else(|| forest.value(root).map(|value| value.ty.dtype));
    if let Some(format) = format {
        out = format!("(mat {format} {out})");
    }
    for (number, load) in loads.iter().enumerate() {
        if let Some(value) = forest.value(*load) {
            out.push_str(&format!(" ${number}: {} {}", value.ty, value.binding.name()));
        }
    }
    Printed { term: out, loads }
}

struct Printer<'a> {
    forest: &'a Forest,
    fragment: &'a Fragment,
    uses: BTreeMap<Class, usize>,
    labels: BTreeMap<Class, usize>,
    out: String,
    loads: Vec<Class>,
}

impl Printer<'_> {
    fn class(&mut self, class: Class) {
        if let Some(label) = self.labels.get(&class) {
            self.out.push_str(&format!("#{label}"));
            return;
        }
        match self.fragment.step(self.forest, class) {
            Some(Step::Load(stored)) => {
                let known = self.loads.iter().position(|load| load == stored);
                let number = known.unwrap_or_else(|| {
                    self.loads.push(*stored);
                    self.loads.len() - 1
                });
                self.out.push_str(&format!("${number}"));
            }
            Some(Step::Compute { printed, operands, .. }) => {
                if self.uses.get(&class).is_some_and(|uses| *uses > 1) {
                    let label = self.labels.len() + 1;
                    self.labels.insert(class, label);
                    self.out.push_str(&format!("#{label}="));
                }
                self.out.push_str(&format!("({printed}"));
                for operand in operands {
                    self.out.push(' ');
                    self.class(*operand);
                }
                self.out.push(')');
            }
            None => self.out.push('?'),
        }
    }
}

/// The region that stores a fragment in a format, its parameters those of [`print`]; `bindings` gives the
/// binding time of each.
///
/// # Errors
/// When the fragment does not type-check.
pub fn build(
    forest: &Forest,
    fragment: &Fragment,
    root: Class,
    format: Option<DType>,
    loads: &[(Class, Binding)],
) -> Result<Region, IrError> {
    let mut builder = Builder {
        forest,
        fragment,
        body: Graph::new(),
        done: BTreeMap::new(),
        casts: BTreeMap::new(),
        parameters: BTreeMap::new(),
    };
    for (index, (class, binding)) in loads.iter().enumerate() {
        let ty = forest.value(*class).map(|value| value.ty.clone()).ok_or_else(|| missing(*class))?;
        let parameter = Op::Parameter { index, dtype: ty.dtype, shape: ty.shape, binding: *binding };
        let value = builder.body.add(parameter, &[])?;
        builder.parameters.insert(*class, value);
    }
    let value = builder.class(root)?;
    let value = match format {
        Some(format) => builder.cast(value, format)?,
        None => value,
    };
    builder.body.add_output(value);
    Ok(Region::new(builder.body))
}

fn missing(class: Class) -> IrError {
    IrError::Tensor { name: format!("class {class}"), why: "is not part of the region".to_owned() }
}

struct Builder<'a> {
    forest: &'a Forest,
    fragment: &'a Fragment,
    body: Graph,
    done: BTreeMap<Class, Value>,
    casts: BTreeMap<(Value, DType), Value>,
    parameters: BTreeMap<Class, Value>,
}

impl Builder<'_> {
    fn class(&mut self, class: Class) -> Result<Value, IrError> {
        if let Some(value) = self.done.get(&class) {
            return Ok(*value);
        }
        let forest = self.forest;
        let value = match self.fragment.step(forest, class) {
            Some(Step::Load(stored)) => *self.parameters.get(stored).ok_or_else(|| missing(*stored))?,
            Some(Step::Compute { op, precision, operands, .. }) => {
                let mut values = Vec::with_capacity(operands.len());
                for operand in operands {
                    let value = self.class(*operand)?;
                    // Widening is part of the op, so f32 operands need no cast.
                    values.push(match precision {
                        Some(precision) if *precision != DType::F32 => self.cast(value, *precision)?,
                        _ => value,
                    });
                }
                self.body.add(op.clone(), &values)?
            }
            None => return Err(missing(class)),
        };
        self.done.insert(class, value);
        Ok(value)
    }

    /// The value in a dtype; a cast is made once, and only where the dtype is another.
    fn cast(&mut self, value: Value, dtype: DType) -> Result<Value, IrError> {
        if self.body.ty(value).dtype == dtype {
            return Ok(value);
        }
        if let Some(cast) = self.casts.get(&(value, dtype)) {
            return Ok(*cast);
        }
        let cast = self.body.add(Op::Cast { dtype }, &[value])?;
        self.casts.insert((value, dtype), cast);
        Ok(cast)
    }
}
