//! The emitted structs of a tail: what happens to rows between its products.

use std::fmt::Write;

use hyenac_ir::{DType, Graph, Op, Value};

use super::recognise::Tail;
use crate::family::Refusal;
use crate::index::Index;
use crate::scalar::{Emitter, Reader, literal};
use crate::vector::{Group, Lanes, element_before_store, position_in_output, store};

/// Elements of a group: accumulators of a channel belong to different rows.
const WIDTH: usize = 1;
/// Adjacent channels that are loaded and stored together.
const QUAD: usize = 4;

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
    let lanes = Lanes { body, lane, ragged: false, width, reader: &reader, roots: vec![root], provided, indent: 2 };
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
        let setup = "        const uint32 column_group = column;\n";
        // Functions of a row get the one that is walked over.
        let row = statement(&self.projection.row_setup());
        let mut text = String::new();

        let residual =
            group(body, self.residual, &[(self.projection.value, "u")], lane.clone(), WIDTH, |emitter, k| {
                emitter.element(self.residual, &self.row_index(k))
            })?;
        let quad = group(
            body,
            self.residual,
            &[(self.projection.value, "u")],
            column_lane(width, QUAD),
            QUAD,
            |emitter, k| emitter.element(self.residual, &self.row_index(k)),
        )?;
        text.push_str(&residual_struct(&residual, &quad, members, &row));

        let root = uncast(body, self.normal);
        let normal = self.norm.after(body, root, WIDTH, |emitter, k| emitter.element(root, &self.row_index(k)))?;
        let (of_columns, of_rows) = normal.fetch_by_row(2);
        let setup_norm = "        const uint32 k_group = k;\n";
        let _ = write!(
            text,
            "struct normal {{\n    {members};\n    static constexpr float eps = {};\n    static constexpr int words = {};\n    \
             __device__ __forceinline__ void fetch_columns(uint32 (&raw)[{2}], uint32 k) const {{\n{setup_norm}{of_columns}    }}\n    \
             __device__ __forceinline__ void after(uint32 (&raw)[{2}], uint32 row, uint32 k, const float (&x)[1], float mean, float scale, float (&value)[1]) const {{\n\
             {row}{setup_norm}{of_rows}{3}    }}\n}};\n\n",
            literal(self.norm.eps),
            normal.words,
            normal.words.max(1),
            normal.assign("value", 2)
        );

        let root = uncast(body, self.hidden);
        let rank = body.ty(root).shape.len();
        let lane_of_layer = column_lane(self.hidden_width, WIDTH);
        let hidden = group(body, root, &[(self.up, "u")], lane_of_layer, WIDTH, |emitter, k| {
            // Nothing on the way depends on the row: any row gives the same code.
            let mut index = vec![Index::constant(0); rank - 1];
            index.push(k);
            match body.op(root) {
                Op::GeluTanh {} => {
                    let x = emitter.element(body.operand(root.node, 0), &index)?;
                    Ok(format!("gelu_tanh_f16({x})"))
                }
                _ => emitter.element(root, &index),
            }
        })?;
        let _ = write!(
            text,
            "struct hidden {{\n    {members};\n    static constexpr int words = {0};\n    \
             __device__ __forceinline__ void fetch(uint32 (&raw)[{1}], uint32 column) const {{\n{setup}{2}    }}\n    \
             __device__ __forceinline__ void values(const uint32 (&raw)[{1}], uint32 column, const float (&u)[1], float (&value)[1]) const {{\n{setup}{3}    }}\n}};\n\n",
            hidden.words,
            hidden.words.max(1),
            hidden.fetch(2),
            hidden.assign("value", 2)
        );

        text.push_str(&self.epilogue(body, members)?);
        Ok(text)
    }

    fn epilogue(&self, body: &Graph, members: &str) -> Result<String, Refusal> {
        let lane = column_lane(self.projection.columns, QUAD);
        let setup = "        const uint32 column_group = column / 4u;\n";
        // The tile holds the sum of the residual and the last product.
        let held = [(self.down, "u"), (self.residual, "")];
        let columns: Vec<Index> = (0..QUAD).map(|i| lane.plus(&Index::constant(i as u64))).collect();
        let (mut positions, mut flat) = (Vec::new(), Vec::new());
        for column in &columns {
            let index = self.row_index(column.clone());
            positions.push(position_in_output(body, self.down, &index, self.output)?);
            flat.push(Index::flatten(&body.ty(self.down).shape, &index));
        }
        let group = {
            let reader = Held { values: &held, lane: lane.clone(), width: QUAD };
            let provided = held.iter().map(|(value, _)| value.node).collect();
            let roots = vec![self.output];
            let lanes = Lanes { body, lane, ragged: false, width: QUAD, reader: &reader, roots, provided, indent: 2 };
            lanes.emit(|emitter, lane| element_before_store(emitter, body, self.output, &positions[lane]))?
        };
        let store = store(body.ty(self.output), &positions, &columns, &flat, self.projection.columns, None, 2);
        let (of_columns, of_rows) = group.fetch_by_row(2);
        let (row, skip) = (statement(&self.projection.row_setup()), statement(&self.projection.skip_padding()));
        let mut text = String::new();
        let _ = write!(
            text,
            "struct epilogue {{\n    {members};\n    static constexpr int words = {0};\n    \
             __device__ __forceinline__ void fetch_columns(uint32 (&raw)[{1}], uint32 column) const {{\n{setup}{of_columns}    }}\n    \
             __device__ __forceinline__ void fetch(uint32 (&raw)[{1}], uint32 row, uint32 column) const {{\n{row}{setup}{of_rows}    }}\n    \
             __device__ __forceinline__ void finish(const uint32 (&raw)[{1}], uint32 row, uint32 column, const float (&u)[4]) const {{\n{skip}{row}{setup}        float y[4];\n{2}{store}    }}\n}};\n\n",
            group.words,
            group.words.max(1),
            group.assign("y", 2)
        );
        Ok(text)
    }
}

/// The struct `residual`. Where every load that depends on the row has a counterpart of four adjacent channels, whole
/// sectors are loaded (`quads`) and `place` puts a channel's words where the code for one channel expects them.
fn residual_struct(residual: &Group, quad: &Group, members: &str, row: &str) -> String {
    let setup = "        const uint32 column_group = column;\n";
    let of_row =
        |group: &Group| group.loads.iter().filter(|load| load.address.mentions("row")).cloned().collect::<Vec<_>>();
    let (single, wide) = (of_row(residual), of_row(quad));
    let quads = !single.is_empty()
        && single.len() == wide.len()
        && single.iter().zip(&wide).all(|(one, four)| {
            one.parameter == four.parameter && one.dtype == DType::F32 && (one.bytes, four.bytes) == (4, 16)
        });
    let row_words = if quads { single.len() } else { 0 };
    let (mut fetch, mut place) = (String::new(), String::new());
    for (position, (one, four)) in single.iter().zip(&wide).enumerate().take(row_words) {
        let _ =
            writeln!(fetch, "        load_words<{}, 16>(raw, p{} + {});", 4 * position, four.parameter, four.address);
        let _ = writeln!(place, "        raw[{}] = own[{position}];", one.word);
    }
    let words = residual.words;
    let (of_columns, of_rows) = residual.fetch_by_row(2);
    let mut text = format!(
        "struct residual {{\n    {members};\n    static constexpr int words = {words}, row_words = {row_words};\n    \
         static constexpr bool quads = {quads};\n    \
         __device__ __forceinline__ void fetch_columns(uint32 (&raw)[{0}], uint32 column) const {{\n{setup}{of_columns}    }}\n    \
         __device__ __forceinline__ void fetch(uint32 (&raw)[{0}], uint32 row, uint32 column) const {{\n{row}{setup}{of_rows}    }}\n    \
         __device__ __forceinline__ void values(const uint32 (&raw)[{0}], uint32 row, uint32 column, const float (&u)[1], float (&value)[1]) const {{\n{row}{setup}{1}    }}\n",
        words.max(1),
        residual.assign("value", 2)
    );
    if quads {
        let _ = write!(
            text,
            "    __device__ __forceinline__ void fetch_quad(uint32 (&raw)[{0}], uint32 row, uint32 column) const {{\n{row}        \
             const uint32 column_group = column / 4u;\n{fetch}    }}\n    \
             __device__ __forceinline__ void place(uint32 (&raw)[{words}], const uint32 (&own)[{row_words}]) const {{\n{place}    }}\n",
            4 * row_words
        );
    }
    text + "};\n\n"
}

/// A line of a function's body, or nothing.
fn statement(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("        {}\n", text.trim_end()) }
}

/// The value below a final cast, which stores into operand tiles repeat.
fn uncast(body: &Graph, value: Value) -> Value {
    match body.op(value) {
        Op::Cast { .. } => body.operand(value.node, 0),
        _ => value,
    }
}
