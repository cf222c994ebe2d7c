//! A layer norm inside a larger expression: what comes before it, and what is made of it.

use hyenac_ir::{Graph, NodeIndex, Op, Value};

use crate::family::Refusal;
use crate::index::Index;
use crate::scalar::{Emitter, Memory, Reader};
use crate::vector::{Group, Lanes};

/// A `layer_norm` of a body, seen as rows of `length` elements.
#[derive(Clone, Debug)]
pub struct Norm {
    /// The normalised value.
    pub value: Value,
    /// What is normalised.
    pub x: Value,
    weight: Value,
    bias: Value,
    /// Added to the variance.
    pub eps: f64,
    /// Extents of the axes that number the rows.
    leading: Vec<usize>,
    /// Elements of a row.
    pub length: usize,
    /// The flat number of the row in emitted code.
    row: Index,
}

impl Norm {
    /// The layer norm of this node, if it is one.
    pub fn of(body: &Graph, node: NodeIndex) -> Option<Norm> {
        let Op::LayerNorm { eps } = body.node(node).op else { return None };
        let [x, weight, bias] = body.operands(node)[..] else { return None };
        let (&length, leading) = body.node(node).types[0].shape.split_last()?;
        let row = Index::variable("row", leading.iter().product());
        Some(Norm { value: Value::of(node), x, weight, bias, eps, leading: leading.to_vec(), length, row })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.leading.iter().product()
    }

    /// Flat number of the row, the variable `row` of emitted code.
    pub fn row(&self) -> &Index {
        &self.row
    }

    /// The index of an element, in the shape of the norm.
    pub fn index(&self, column: Index) -> Vec<Index> {
        let mut index = self.row.unflatten(&self.leading);
        index.push(column);
        index
    }

    /// The index of lane 0 of a group of this width: the emitted code's `k`, a multiple of the width.
    pub fn lane(length: usize, width: usize) -> Index {
        Index::variable("k_group", length / width).times(width as u64)
    }

    /// A group of what is normalised.
    ///
    /// # Errors
    /// When it has no scalar form.
    pub fn before(&self, body: &Graph, width: usize) -> Result<Group, Refusal> {
        let lanes = Lanes {
            body,
            lane: Norm::lane(self.length, width),
            ragged: false,
            width,
            reader: &Memory,
            roots: vec![self.x],
            provided: Vec::new(),
            indent: 2,
        };
        lanes.emit(|emitter, lane| emitter.element(self.x, &self.index(lanes.index(lane))))
    }

    /// A group of an expression over the normalised value; its code takes `x`, `mean` and `scale` of the row.
    /// `element` emits one lane from its column.
    ///
    /// # Errors
    /// When the expression has no scalar form, or takes other elements of the norm than its own.
    pub fn after(
        &self,
        body: &Graph,
        root: Value,
        width: usize,
        mut element: impl FnMut(&mut Emitter, Index) -> Result<String, Refusal>,
    ) -> Result<Group, Refusal> {
        let lane = Norm::lane(self.length, width);
        let reader = NormReader { norm: self, lane: lane.clone(), width };
        let lanes = Lanes {
            body,
            lane,
            ragged: false,
            width,
            reader: &reader,
            roots: vec![root, self.weight, self.bias],
            provided: vec![self.value.node],
            indent: 2,
        };
        lanes.emit(|emitter, lane| {
            let column = lanes.index(lane);
            let weight = emitter.element(self.weight, std::slice::from_ref(&column))?;
            let bias = emitter.element(self.bias, std::slice::from_ref(&column))?;
            emitter.line(&format!("const float n{lane} = fmaf((x[{lane}] - mean) * scale, {weight}, {bias});"));
            element(emitter, column)
        })
    }

    /// The widest group that divides the rows: 16 bytes of f32.
    pub fn width(&self) -> usize {
        [4, 2].into_iter().find(|&width| self.length.is_multiple_of(width)).unwrap_or(1)
    }
}

struct NormReader<'a> {
    norm: &'a Norm,
    lane: Index,
    width: usize,
}

impl Reader for NormReader<'_> {
    fn read(&self, value: Value, index: &[Index]) -> Option<String> {
        if value != self.norm.value {
            return None;
        }
        let (column, leading) = index.split_last()?;
        let lane = (0..self.width).find(|&lane| *column == self.lane.plus(&Index::constant(lane as u64)))?;
        (Index::flatten(&self.norm.leading, leading) == self.norm.row).then(|| format!("n{lane}"))
    }
}
