//! Assembly of translation units.

use hyenac_ir::{Graph, Op, Value};

use crate::family::Pointer;
use crate::scalar::element_type;

const PRELUDE: &str = include_str!("prelude.cuh");

/// A translation unit: the shared prelude, then these parts in order.
pub fn translation_unit(parts: &[&str]) -> String {
    let mut unit = String::from(PRELUDE);
    for part in parts {
        unit.push('\n');
        unit.push_str(part);
    }
    unit
}

/// The parameter list of a kernel that takes these pointers of a region: `p` operands, `o` outputs, `s` scratch.
pub fn parameter_list(body: &Graph, pointers: &[Pointer]) -> String {
    let operands = body.parameters();
    let parameters: Vec<String> = pointers
        .iter()
        .map(|pointer| match *pointer {
            Pointer::Operand(position) => {
                let dtype = body.node(operands[position]).types[0].dtype;
                format!("const {}* __restrict__ p{position}", element_type(dtype))
            }
            Pointer::Output(position) => {
                format!("{}* __restrict__ o{position}", element_type(body.ty(body.outputs()[position]).dtype))
            }
            Pointer::Scratch(position) => format!("float2* __restrict__ s{position}"),
        })
        .collect();
    parameters.join(", ")
}

/// Pointers of a kernel that reads every operand of a region and writes every output.
pub fn all_pointers(body: &Graph) -> Vec<Pointer> {
    let operands = (0..body.parameters().len()).map(Pointer::Operand);
    operands.chain((0..body.outputs().len()).map(Pointer::Output)).collect()
}

/// The operands of a region that are read for the sake of this value only.
pub fn exclusive_parameters(body: &Graph, value: Value) -> Vec<usize> {
    let reached = |from: &[Value], stop: Option<Value>| {
        let mut reached = vec![false; body.len()];
        let mut open = from.to_vec();
        while let Some(next) = open.pop() {
            if Some(next) != stop && !std::mem::replace(&mut reached[next.node.index()], true) {
                open.extend(body.operands(next.node));
            }
        }
        reached
    };
    let (within, elsewhere) = (reached(&[value], None), reached(body.outputs(), Some(value)));
    let parameters = body.parameters().into_iter().enumerate();
    let exclusive = parameters.filter(|(_, node)| within[node.index()] && !elsewhere[node.index()]);
    exclusive.map(|(position, _)| position).collect()
}

/// A readable kernel name: the family, then what the body computes, views and casts left out.
pub fn kernel_name(family: &str, body: &Graph) -> String {
    const LONGEST: usize = 60;
    let mut words: Vec<(&str, usize)> = Vec::new();
    for node in body.nodes() {
        let op = &body.node(node).op;
        let silent = matches!(
            op,
            Op::Parameter { .. }
                | Op::Scalar { .. }
                | Op::Reshape { .. }
                | Op::Transpose { .. }
                | Op::Slice { .. }
                | Op::Pad { .. }
        );
        if silent || matches!(op, Op::Cast { .. }) && body.len() > 2 {
            continue;
        }
        match words.last_mut() {
            Some((word, count)) if *word == op.mnemonic() => *count += 1,
            _ => words.push((op.mnemonic(), 1)),
        }
    }
    let mut name = family.to_owned();
    for (word, count) in words {
        let piece = if count > 1 { format!("_{word}{count}") } else { format!("_{word}") };
        if name.len() + piece.len() > LONGEST {
            name.push_str("_etc");
            break;
        }
        name.push_str(&piece);
    }
    name
}
