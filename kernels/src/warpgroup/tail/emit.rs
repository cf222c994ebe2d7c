//! The emitted structs of a tail: what happens to rows between its products.

use std::fmt::Write;

use hyenac_ir::{Graph, Value};

use super::recognise::Tail;
use crate::family::Refusal;
use crate::index::Index;
use crate::scalar::{Emitter, Reader, literal};
use crate::vector::{Group, Lanes, element_before_store, position_in_output, store};

/// Elements of a group along a row.
const WIDTH: usize = 4;

/// Gives lanes of values that the skeleton holds, each under the name of an array.
struct Held<'a> {
    values: &'a [(Value, &'a str)],
    lane: Index,
    width: usize,
}

impl Reader for Held<'_> {
    fn read(&self, value: Value, index: &[Index]) -> Option<String> {
        let (_, name) = self.values.iter().find(|(held, _)| *held == value)?;
        let column = index.last()?;
        let lane = (0..self.width).find(|&lane| *column == self.lane.plus(&Index::constant(lane as u64)))?;
        Some(if name.is_empty() { "0.0f".to_owned() } else { format!("{name}[{lane}]") })
    }
}

fn column_lane(extent: usize, width: usize) -> Index {
    Index::variable("column_group", extent / width).times(width as u64)
}

fn group(
    body: &Graph,
    root: Value,
    held: &[(Value, &str)],
    lane: Index,
    width: usize,
    element: impl Fn(&mut Emitter, Index) -> Result<String, Refusal>,
) -> Result<Group, Refusal> {
    let reader = Held { values: held, lane: lane.clone(), width };
    let provided = held.iter().map(|(value, _)| value.node).collect();
    let lanes = Lanes { body, lane, width, reader: &reader, roots: vec![root], provided, indent: 2 };
    lanes.emit(|emitter, lane| element(emitter, lanes.index(lane)))
}

impl Tail {
    fn row_index(&self, column: Index) -> Vec<Index> {
        let mut index = self.projection.flat_leading();
        index.push(column);
        index
    }

    /// The structs `residual`, `normal`, `hidden` and `epilogue` with these members.
    pub fn structs(&self, body: &Graph, members: &str) -> Result<String, Refusal> {
        let width = self.projection.columns;
        let lane = column_lane(width, WIDTH);
        let setup = "        const uint32 column_group = column / 4u;\n";
        let mut text = String::new();

        let residual =
            group(body, self.residual, &[(self.projection.value, "u")], lane.clone(), WIDTH, |emitter, k| {
                emitter.element(self.residual, &self.row_index(k))
            })?;
        let words = residual.words;
        let (of_columns, of_rows) = residual.fetch_by_row(2);
        let _ = write!(
            text,
            "struct residual {{\n    {members};\n    static constexpr int words = {words};\n    \
             __device__ __forceinline__ void fetch_columns(uint32 (&raw)[{0}], uint32 column) const {{\n{setup}{of_columns}    }}\n    \
             __device__ __forceinline__ void fetch(uint32 (&raw)[{0}], uint32 row, uint32 column) const {{\n{setup}{of_rows}    }}\n    \
             __device__ __forceinline__ void values(const uint32 (&raw)[{0}], uint32 row, uint32 column, const float (&u)[4], float (&value)[4]) const {{\n{setup}{1}    }}\n}};\n\n",
            words.max(1),
            residual.assign("value", 2)
        );

        let root = uncast(body, self.normal);
        let normal = self.norm.after(body, root, WIDTH, |emitter, k| emitter.element(root, &self.row_index(k)))?;
        let (of_columns, of_rows) = normal.fetch_by_row(2);
        let setup_norm = "        const uint32 k_group = k / 4u;\n";
        let _ = write!(
            text,
            "struct normal {{\n    {members};\n    static constexpr float eps = {};\n    static constexpr int words = {};\n    \
             __device__ __forceinline__ void fetch_columns(uint32 (&raw)[{2}], uint32 k) const {{\n{setup_norm}{of_columns}    }}\n    \
             __device__ __forceinline__ void after(uint32 (&raw)[{2}], uint32 row, uint32 k, const float (&x)[4], float mean, float scale, float (&value)[4]) const {{\n\
             {setup_norm}{of_rows}{3}    }}\n}};\n\n",
            literal(self.norm.eps),
            normal.words,
            normal.words.max(1),
            normal.assign("value", 2)
        );

        let root = uncast(body, self.hidden);
        let rank = body.ty(root).shape.len();
        let pair = column_lane(self.hidden_width, 2);
        let hidden = group(body, root, &[(self.up, "u")], pair, 2, |emitter, k| {
            // Nothing on the way depends on the row: any row gives the same code.
            let mut index = vec![Index::constant(0); rank - 1];
            index.push(k);
            emitter.element(root, &index)
        })?;
        let setup_pair = "        const uint32 column_group = column / 2u;\n";
        let _ = write!(
            text,
            "struct hidden {{\n    {members};\n    static constexpr int words = {0};\n    \
             __device__ __forceinline__ void fetch(uint32 (&raw)[{1}], uint32 column) const {{\n{setup_pair}{2}    }}\n    \
             __device__ __forceinline__ void values(const uint32 (&raw)[{1}], uint32 column, const float (&u)[2], float (&value)[2]) const {{\n{setup_pair}{3}    }}\n}};\n\n",
            hidden.words,
            hidden.words.max(1),
            hidden.fetch(2),
            hidden.assign("value", 2)
        );

        text.push_str(&self.epilogue(body, members, lane, setup)?);
        Ok(text)
    }

    fn epilogue(&self, body: &Graph, members: &str, lane: Index, setup: &str) -> Result<String, Refusal> {
        // The tile holds the sum of the residual and the last product.
        let held = [(self.down, "u"), (self.residual, "")];
        let columns: Vec<Index> = (0..WIDTH).map(|i| lane.plus(&Index::constant(i as u64))).collect();
        let (mut positions, mut flat) = (Vec::new(), Vec::new());
        for column in &columns {
            let index = self.row_index(column.clone());
            positions.push(position_in_output(body, self.down, &index, self.output)?);
            flat.push(Index::flatten(&body.ty(self.down).shape, &index));
        }
        let group = {
            let reader = Held { values: &held, lane: lane.clone(), width: WIDTH };
            let provided = held.iter().map(|(value, _)| value.node).collect();
            let roots = vec![self.output];
            let lanes = Lanes { body, lane, width: WIDTH, reader: &reader, roots, provided, indent: 2 };
            lanes.emit(|emitter, lane| element_before_store(emitter, body, self.output, &positions[lane]))?
        };
        let store = store(&body.ty(self.output).shape, &positions, &columns, &flat, self.projection.columns, 2);
        let mut text = String::new();
        let _ = write!(
            text,
            "struct epilogue {{\n    {members};\n    static constexpr int width = 4, words = {0};\n    static constexpr bool along_rows = false;\n    \
             __device__ __forceinline__ void fetch(uint32 (&raw)[{1}], uint32 row, uint32 column) const {{\n{setup}{2}    }}\n    \
             __device__ __forceinline__ void finish(const uint32 (&raw)[{1}], uint32 row, uint32 column, const float (&u)[4], const float*) const {{\n{setup}        float y[4];\n{3}{store}    }}\n}};\n\n",
            group.words,
            group.words.max(1),
            group.fetch(2),
            group.assign("y", 2)
        );
        Ok(text)
    }
}

/// The value below a final cast, which stores into operand tiles repeat.
fn uncast(body: &Graph, value: Value) -> Value {
    match body.op(value) {
        hyenac_ir::Op::Cast { .. } => body.operand(value.node, 0),
        _ => value,
    }
}
