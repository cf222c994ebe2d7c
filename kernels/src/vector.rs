//! Adjacent elements of a value computed together, so that memory is read and written in wide words.
//!
//! A family walks over groups of `width` elements along one index, the *lane*. Parameters whose last axis is
//! the lane are loaded once for the whole group ([`Load`]); everything else is scalar code of the
//! [`Emitter`], lane by lane, with what lanes share computed once.

use std::cell::RefCell;
use std::fmt::Write;

use hyenac_ir::{DType, Graph, NodeIndex, Op, Type, Value};

use crate::family::Refusal;
use crate::index::Index;
use crate::scalar::{Emitter, Reader};
use crate::storage;

/// Functions that the emitted code calls.
pub const DEVICE_CODE: &str = include_str!("vector.cuh");

/// Adjacent elements of one parameter, loaded together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Position of the parameter among the operands of the region.
    pub parameter: usize,
    /// Its dtype.
    pub dtype: DType,
    /// Flat position of the element of lane 0.
    pub address: Index,
    /// First 32-bit word among the words that the group loads.
    pub word: usize,
    /// Bytes: 2, 4, 8 or 16.
    pub bytes: usize,
}

impl Load {
    /// Number of 32-bit words that the bytes take.
    pub fn words(&self) -> usize {
        self.bytes.div_ceil(4)
    }

    /// The element of a lane, from the loaded words `raw`.
    pub fn element(&self, lane: usize) -> String {
        match self.dtype {
            DType::F16 => {
                let word = self.word + lane / 2;
                if lane.is_multiple_of(2) {
                    format!("from_half((half_bits)raw[{word}])")
                } else {
                    format!("from_half((half_bits)(raw[{word}] >> 16))")
                }
            }
            _ => format!("__uint_as_float(raw[{}])", self.word + lane),
        }
    }
}

/// The code of one group.
#[derive(Clone, Debug)]
pub struct Group {
    /// Loads, in the order of their words.
    pub loads: Vec<Load>,
    /// Words of all loads.
    pub words: usize,
    /// Statements that need the loaded words as `raw`.
    pub code: String,
    /// One expression a lane, valid after the statements.
    pub elements: Vec<String>,
}

impl Group {
    /// Statements that load the words into `raw`.
    pub fn fetch(&self, indent: usize) -> String {
        let mut text = String::new();
        for load in &self.loads {
            let _ = writeln!(
                text,
                "{:pad$}load_words<{}, {}>(raw, p{} + {});",
                "",
                load.word,
                load.bytes,
                load.parameter,
                load.address,
                pad = 4 * indent
            );
        }
        text
    }

    /// Statements that load the words which are the same for all rows, and those that load the others: what a
    /// block of rows shares is loaded once.
    pub fn fetch_by_row(&self, indent: usize) -> (String, String) {
        let (mut of_columns, mut of_rows) = (self.clone(), self.clone());
        of_columns.loads.retain(|load| !load.address.mentions("row"));
        of_rows.loads.retain(|load| load.address.mentions("row"));
        (of_columns.fetch(indent), of_rows.fetch(indent))
    }

    /// Statements, then one assignment a lane into `name`.
    pub fn assign(&self, name: &str, indent: usize) -> String {
        let mut text = self.code.clone();
        for (lane, element) in self.elements.iter().enumerate() {
            let _ = writeln!(text, "{:pad$}{name}[{lane}] = {element};", "", pad = 4 * indent);
        }
        text
    }

    /// Whether the group is the bytes of a single load of this dtype, untouched.
    pub fn is_copy_of(&self, dtype: DType) -> bool {
        match &self.loads[..] {
            [load] if load.dtype == dtype && self.code.is_empty() => {
                self.elements.iter().enumerate().all(|(lane, element)| *element == load.element(lane))
            }
            _ => false,
        }
    }
}

/// How a group is emitted.
pub struct Lanes<'a> {
    /// Body of the region.
    pub body: &'a Graph,
    /// The index of lane 0; a multiple of the width, with an exact bound.
    pub lane: Index,
    /// Whether lanes of the last group may lie beyond the extent they run along, in the padding of f16 rows. What they
    /// hold there means nothing.
    pub ragged: bool,
    /// Elements of the group: 1, 2, 4 or 8.
    pub width: usize,
    /// Values that the family provides.
    pub reader: &'a dyn Reader,
    /// What is evaluated; loads below a condition are not hoisted out of it.
    pub roots: Vec<Value>,
    /// Nodes whose values the family provides, below which nothing is evaluated.
    pub provided: Vec<NodeIndex>,
    /// Indentation of the statements.
    pub indent: usize,
}

impl Lanes<'_> {
    /// The index of a lane.
    pub fn index(&self, lane: usize) -> Index {
        self.lane.plus(&Index::constant(lane as u64))
    }

    /// Emits a group; `element` emits one lane.
    ///
    /// # Errors
    /// What `element` returns.
    pub fn emit(
        &self,
        mut element: impl FnMut(&mut Emitter, usize) -> Result<String, Refusal>,
    ) -> Result<Group, Refusal> {
        let reader = LoadReader { lanes: self, unconditional: self.unconditional(), loads: RefCell::default() };
        let mut emitter = Emitter::new(self.body, &reader, self.indent, "v");
        let elements = (0..self.width).map(|lane| element(&mut emitter, lane)).collect::<Result<Vec<_>, _>>()?;
        let code = emitter.finish();
        let loads = reader.loads.into_inner();
        let words = loads.iter().map(Load::words).sum();
        Ok(Group { loads, words, code, elements })
    }

    /// Nodes that are evaluated whatever the index, so that loading them early stays within bounds.
    fn unconditional(&self) -> Vec<bool> {
        let mut reached = vec![false; self.body.len()];
        for root in &self.roots {
            reached[root.node.index()] = true;
        }
        for node in self.body.nodes().rev() {
            if !reached[node.index()] || self.provided.contains(&node) {
                continue;
            }
            let conditional = match self.body.node(node).op {
                Op::Pad { .. } | Op::ShortConv {} => Some(0),
                _ => None,
            };
            for (position, operand) in self.body.operands(node).iter().enumerate() {
                if Some(position) != conditional {
                    reached[operand.node.index()] = true;
                }
            }
        }
        reached
    }
}

struct LoadReader<'a> {
    lanes: &'a Lanes<'a>,
    unconditional: Vec<bool>,
    loads: RefCell<Vec<Load>>,
}

impl Reader for LoadReader<'_> {
    fn read(&self, value: Value, index: &[Index]) -> Option<String> {
        let lanes = self.lanes;
        if let Some(expression) = lanes.reader.read(value, index) {
            return Some(expression);
        }
        let Op::Parameter { index: parameter, dtype, shape, .. } = lanes.body.op(value) else { return None };
        let address = storage::address(*dtype, shape, index);
        if let Some(expression) = self.group_element(value, index, &address) {
            return Some(expression);
        }
        // The scalar form, where it stays within the parameter.
        let beyond = lanes.ragged && address.bound() > storage::elements(*dtype, shape) as u64;
        beyond.then(|| storage::read_within(*dtype, shape, *parameter, &address))
    }
}

impl LoadReader<'_> {
    /// An element of a parameter from a group that is loaded at once.
    fn group_element(&self, value: Value, index: &[Index], address: &Index) -> Option<String> {
        let lanes = self.lanes;
        let Op::Parameter { index: parameter, dtype, shape, .. } = lanes.body.op(value) else { return None };
        let bytes = lanes.width * dtype.bytes();
        let width = lanes.width as u64;
        let fits = matches!(bytes, 2 | 4 | 8 | 16) && *dtype != DType::C64;
        let stored = storage::elements(*dtype, shape);
        if !fits || !stored.is_multiple_of(lanes.width) {
            return None;
        }
        if !self.unconditional[value.node.index()] {
            return None;
        }
        let mut loads = self.loads.borrow_mut();
        for load in loads.iter().filter(|load| load.parameter == *parameter) {
            if let Some(lane) = address.distance_from(&load.address).filter(|&lane| lane < width) {
                return Some(load.element(lane as usize));
            }
        }
        // The first element of an aligned group begins a load; what depends on the group only, and no lane, does not.
        let last = index.last()?;
        let begins = *last == lanes.lane || width > 1 && address.as_constant().is_none();
        let within = !lanes.ragged || address.bound() + width - 1 <= stored as u64;
        if !begins || !within || !address.is_multiple_of(width) {
            return None;
        }
        let word = loads.iter().map(Load::words).sum();
        let load = Load { parameter: *parameter, dtype: *dtype, address: address.clone(), word, bytes };
        let expression = load.element(0);
        loads.push(load);
        Some(expression)
    }
}

/// Where an element of `from` goes in `output`: the index of `output` whose computation reads `from` at `index`,
/// along a path that moves data one to one.
///
/// # Errors
/// Names the op on the path that is no such map.
pub fn position_in_output(body: &Graph, from: Value, index: &[Index], output: Value) -> Result<Vec<Index>, Refusal> {
    let mut towards = vec![false; body.len()];
    towards[output.node.index()] = true;
    for node in body.nodes().rev().filter(|node| node.index() <= output.node.index()) {
        if towards[node.index()] {
            for operand in body.operands(node) {
                towards[operand.node.index()] = true;
            }
        }
    }
    let refuse = |op: &Op, why: &str| Refusal { op: op.mnemonic().to_owned(), why: why.to_owned(), larger: false };
    let (mut value, mut index) = (from, index.to_vec());
    while value != output {
        let users = body.users(value.node);
        let Some((user, how)) = users.into_iter().find(|(user, _)| towards[user.index()]) else {
            return Err(refuse(body.op(value), "does not reach the region's output"));
        };
        let next = Value::of(user);
        let (shape, result) = (&body.ty(value).shape, &body.ty(next).shape);
        let op = body.op(next);
        index = match op {
            Op::Reshape { .. } => Index::flatten(shape, &index).unflatten(result),
            Op::Transpose { permutation } => permutation.iter().map(|&axis| index[axis].clone()).collect(),
            Op::Slice { .. } | Op::Pad { .. } if shape == result => index,
            Op::Slice { .. } | Op::Pad { .. } => {
                return Err(refuse(op, "between a product or a norm and the output changes the extents"));
            }
            Op::Cast { .. } | Op::Neg {} | Op::Abs {} | Op::Exp {} | Op::Sin {} | Op::GeluTanh {} => index,
            Op::Add {} | Op::Mul {} => {
                let added = result.len() - shape.len();
                if result[..added].iter().any(|&extent| extent != 1) || result[added..] != shape[..] {
                    return Err(refuse(op, "would need an element in several places of the output"));
                }
                let mut widened = vec![Index::constant(0); added];
                widened.extend(index);
                widened
            }
            Op::ShortConv {} if how.operand == 0 => index,
            _ => return Err(refuse(op, "has no place behind a product or a norm")),
        };
        value = next;
    }
    Ok(index)
}

/// The value to evaluate so that a store as the dtype of `value` gives `value`, and whether it needs rounding to
/// tf32 first: stores round to f16 themselves, so that a final cast is left to them.
pub fn before_store(body: &Graph, value: Value) -> (Value, bool) {
    let dtype = body.ty(value).dtype;
    match body.op(value) {
        Op::Cast { .. } => (body.operand(value.node, 0), dtype == DType::Tf32),
        _ => (value, false),
    }
}

/// Emits one lane of a group that is stored as the dtype of `value`.
///
/// # Errors
/// As [`Emitter::element`].
pub fn element_before_store(
    emitter: &mut Emitter,
    body: &Graph,
    value: Value,
    index: &[Index],
) -> Result<String, Refusal> {
    let (source, round) = before_store(body, value);
    let element = emitter.element(source, index)?;
    Ok(if round { format!("round_tf32({element})") } else { element })
}

/// Statements that store the group `y` at these positions of output 0, one a lane: at once where the positions are
/// adjacent and aligned. `flat` are the positions in the value that the family walks over, which has the
/// extent `row` along the lane. Where lanes may lie beyond an extent (`ragged`), those are stored into the padding of
/// the output's row or not at all.
pub fn store(
    output: &Type,
    positions: &[Vec<Index>],
    lanes: &[Index],
    flat: &[Index],
    row: usize,
    ragged: Option<usize>,
    indent: usize,
) -> String {
    let target: Vec<Index> =
        positions.iter().map(|position| storage::address(output.dtype, &output.shape, position)).collect();
    let width = positions.len();
    let outer = |position: &[Index]| position.split_last().map(|(_, outer)| outer.to_vec());
    let pitch = output.shape.last().map_or(1, |&extent| storage::pitch(output.dtype, extent));
    let within = ragged.is_none() || lanes.last().is_none_or(|last| last.bound() <= pitch as u64);
    let along_last_axis = pitch.is_multiple_of(width)
        && within
        && positions
            .iter()
            .zip(lanes)
            .all(|(position, lane)| position.last() == Some(lane) && outer(position) == outer(&positions[0]));
    let same_order = ragged.is_none() && row.is_multiple_of(width) && target == flat;
    let pad = 4 * indent;
    if along_last_axis || same_order {
        return format!("{:pad$}store_group(o0 + {}, y);\n", "", target[0]);
    }
    let mut text = String::new();
    for (number, (position, lane)) in target.iter().zip(lanes).enumerate() {
        let guard = ragged.map_or(String::new(), |extent| format!("if ({lane} < {extent}u) "));
        let _ = writeln!(text, "{:pad$}{guard}store_one(o0 + {position}, y[{number}]);", "");
    }
    text
}
