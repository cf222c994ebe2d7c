//! The elementwise code behind a layer, as a function of one sum.

use std::cell::RefCell;

use hyenac_ir::{DType, Graph, Op, Value};

use super::layout::Placed;
use crate::chain::Chain;
use crate::family::Refusal;
use crate::index::Index;
use crate::scalar::{Emitter, Reader, element_type};
use crate::storage;
use crate::vector::element_before_store;

/// Gives the sums of a layer, and what depends on the column only: a lane holds that for its columns.
struct Sums {
    layer: Value,
    element: [Index; 2],
    held: RefCell<Vec<(usize, DType, Index)>>,
    body: Graph,
}

impl Reader for Sums {
    fn read(&self, value: Value, index: &[Index]) -> Option<String> {
        if value == self.layer {
            return (index == self.element).then(|| "sum".to_owned());
        }
        let Op::Parameter { index: parameter, dtype: dtype @ (DType::F16 | DType::F32 | DType::Tf32), shape, .. } =
            self.body.op(value)
        else {
            return None;
        };
        let address = storage::address(*dtype, shape, index);
        if address.mentions("row") {
            return None;
        }
        let wanted = (*parameter, *dtype, address);
        let mut held = self.held.borrow_mut();
        let position = held.iter().position(|known| *known == wanted).unwrap_or_else(|| {
            held.push(wanted);
            held.len() - 1
        });
        Some(format!("held[{position}]"))
    }
}

/// What becomes of a layer's sums: a function, and what a lane holds for it.
pub struct Function {
    code: String,
    /// Parameter, dtype and address of each value that a lane holds for a column `n`.
    pub held: Vec<(usize, DType, Index)>,
}

impl Function {
    /// What lies behind each layer: the operand of the next, or the element that is stored.
    pub fn all(body: &Graph, chain: &Chain, layers: &[Placed]) -> Result<Vec<Function>, Refusal> {
        let mut all = Vec::new();
        for position in 0..layers.len() {
            all.push(match layers.get(position + 1) {
                Some(next) => function(body, chain, position, |emitter, row, n| {
                    let input = next.layer.input;
                    // Operands in f16 are rounded when they are stored.
                    let source = match body.op(input) {
                        Op::Cast { dtype: DType::F16 } if !next.split => body.operand(input.node, 0),
                        _ => input,
                    };
                    emitter.element(source, &[row.clone(), n.clone()])
                })?,
                None => function(body, chain, position, |emitter, row, n| {
                    element_before_store(emitter, body, chain.output, &chain.output_index(body, row, n))
                })?,
            });
        }
        Ok(all)
    }

    /// Values held, at least one.
    pub fn extent(&self) -> usize {
        self.held.len().max(1)
    }

    /// Operands that it reads from memory itself, by name and type.
    fn operands(&self, body: &Graph) -> Vec<(String, &'static str)> {
        let all = body.parameters().into_iter().enumerate();
        all.map(|(position, node)| (format!("p{position}"), element_type(body.node(node).types[0].dtype)))
            .filter(|(name, _)| self.code.contains(&format!("({name} +")))
            .collect()
    }

    /// A class, since the compiler takes no lambdas without a flag.
    pub fn declaration(&self, body: &Graph, position: usize) -> String {
        let members: String =
            self.operands(body).iter().map(|(name, ty)| format!("    const {ty}* __restrict__ {name};\n")).collect();
        format!(
            "struct function{position} {{\n{members}    template <class Sine>\n    \
             __device__ __forceinline__ float operator()(const Sine& sine, float sum, const float (&held)[{}], uint32 row, \
             uint32 n) const {{\n{}    }}\n}};\n",
            self.extent(),
            self.code
        )
    }

    /// An object of the class.
    pub fn object(&self, body: &Graph, position: usize) -> String {
        let operands: Vec<String> = self.operands(body).into_iter().map(|(name, _)| name).collect();
        format!("function{position}{{{}}}", operands.join(", "))
    }
}

fn function(
    body: &Graph,
    chain: &Chain,
    position: usize,
    element: impl FnOnce(&mut Emitter, &Index, &Index) -> Result<String, Refusal>,
) -> Result<Function, Refusal> {
    let layer = &chain.layers[position];
    let (row, n) = (Index::variable("row", chain.rows), Index::variable("n", layer.columns));
    let reader = Sums {
        layer: Value::of(layer.node),
        element: [row.clone(), n.clone()],
        held: RefCell::default(),
        body: body.clone(),
    };
    let mut emitter = Emitter::new(body, &reader, 2, "v");
    let result = element(&mut emitter, &row, &n)?;
    emitter.line(&format!("return {result};"));
    let code = emitter.finish();
    Ok(Function { code, held: reader.held.into_inner() })
}
