//! What becomes of the product: the emitted struct `epilogue`.

use std::cell::Cell;
use std::fmt::Write;

use hyenac_ir::{Graph, Value};

use super::recognise::{MOST_HALO, Product, refuse};
use crate::family::Refusal;
use crate::index::Index;
use crate::scalar::Reader;
use crate::vector::{Group, Lanes, element_before_store, position_in_output, store};

/// The code of an epilogue.
pub struct Epilogue {
    /// Whether groups run along rows; otherwise along columns.
    pub along_rows: bool,
    /// Elements of a group.
    pub width: usize,
    /// Rows before its own that an element reads.
    pub halo: usize,
    /// What is loaded and computed.
    pub group: Group,
    store: String,
    /// Statements that define the variables of indices.
    setup: String,
    /// What leaves out rows that do not exist.
    skip: String,
}

impl Epilogue {
    /// The epilogue of a product.
    pub fn of(body: &Graph, product: &Product) -> Result<Epilogue, Refusal> {
        // Along rows where consecutive rows are adjacent in the output, as behind a transpose.
        let t = product.row_lane(1);
        let mut index = product.lane_leading(t.clone());
        index.push(Index::variable("column", product.columns));
        let position = position_in_output(body, product.value, &index, product.output)?;
        let along_rows = product.period() > 1 && position.last() == Some(&t);
        let extent = if along_rows { product.pitch } else { product.columns };
        let mut refusal = None;
        for width in [4, 2, 1].into_iter().filter(|width| extent.is_multiple_of(*width)) {
            match Epilogue::with_width(body, product, along_rows, width) {
                Ok(epilogue) => return Ok(epilogue),
                Err(error) => refusal = Some(error),
            }
        }
        match refusal {
            Some(refusal) => Err(refusal),
            None => refuse(body.op(product.value), "has no columns"),
        }
    }

    fn with_width(body: &Graph, product: &Product, along_rows: bool, width: usize) -> Result<Epilogue, Refusal> {
        let lane = if along_rows {
            product.row_lane(width)
        } else {
            Index::variable("column_group", product.columns / width).times(width as u64)
        };
        let reader = ProductReader { product, along_rows, lane: lane.clone(), width, back: Cell::new(0) };
        let ragged = product.ragged().filter(|_| along_rows);
        let lanes = Lanes {
            body,
            lane,
            ragged: ragged.is_some(),
            width,
            reader: &reader,
            roots: vec![product.output],
            provided: vec![product.value.node],
            indent: 2,
        };
        let all: Vec<Index> = (0..width).map(|lane| lanes.index(lane)).collect();
        let mut positions = Vec::new();
        let mut flat = Vec::new();
        for lane in &all {
            let index = reader.own(lane.clone());
            flat.push(product_position(product, &index));
            positions.push(position_in_output(body, product.value, &index, product.output)?);
        }
        let group = lanes
            .emit(|emitter, lane| element_before_store(emitter, body, product.output, &positions[lane]))
            .map_err(|refusal| explain(body, product.value, refusal))?;
        // Only groups of columns keep the order of the product in memory.
        let row = if along_rows { 1 } else { product.columns };
        let store = store(body.ty(product.output), &positions, &all, &flat, row, ragged, 2);
        // Groups of rows begin at multiples of their width.
        let halo = (reader.back.get() as usize).next_multiple_of(if along_rows { width } else { 1 });
        let (setup, skip) = if along_rows {
            (product.group_setup(), String::new())
        } else {
            let setup = format!("{}const uint32 column_group = column / width;", product.row_setup());
            (setup, product.skip_padding())
        };
        Ok(Epilogue { along_rows, width, halo, group, store, setup, skip })
    }

    /// The struct, with these members.
    pub fn emit(&self, members: &str, halo: usize) -> String {
        let width = self.width;
        let Epilogue { setup, skip, .. } = self;
        let raw = self.group.words.max(1);
        let before = if self.along_rows { halo } else { 0 };
        let mut text = String::new();
        let _ = write!(
            text,
            "struct epilogue {{\n    {members};\n    \
             static constexpr int width = {width}, words = {}, before = {before};\n    \
             static constexpr bool along_rows = {};\n    \
             __device__ __forceinline__ void fetch(uint32 (&raw)[{raw}], uint32 row, uint32 column) const {{\n        \
             {setup}\n{}    }}\n    \
             __device__ __forceinline__ void finish(const uint32 (&raw)[{raw}], uint32 row, uint32 column, \
             const float (&u)[before + width], const float* tile) const {{\n        \
             {skip}{setup}\n        float y[width];\n{}{}    }}\n}};\n\n",
            self.group.words,
            self.along_rows,
            self.group.fetch(2),
            self.group.assign("y", 2),
            self.store,
        );
        text
    }
}

/// The position in the row-major product.
fn product_position(product: &Product, index: &[Index]) -> Index {
    let mut shape = product.leading.clone();
    shape.push(product.columns);
    Index::flatten(&shape, index)
}

fn explain(body: &Graph, product: Value, refusal: Refusal) -> Refusal {
    if refusal.op == body.op(product).mnemonic() {
        let why = "is read at other rows or columns than the output's own".to_owned();
        return Refusal { op: refusal.op, why, larger: false };
    }
    refusal
}

/// Gives elements of the product from the tile in shared memory: `u` holds a group, for groups of rows with the
/// halo before it; `tile` points at lane 0.
struct ProductReader<'a> {
    product: &'a Product,
    along_rows: bool,
    lane: Index,
    width: usize,
    /// The most rows back that were read.
    back: Cell<u64>,
}

impl ProductReader<'_> {
    /// The index of the product for a lane.
    fn own(&self, lane: Index) -> Vec<Index> {
        if self.along_rows {
            let mut index = self.product.lane_leading(lane);
            index.push(Index::variable("column", self.product.columns));
            index
        } else {
            let mut index = self.product.flat_leading();
            index.push(lane);
            index
        }
    }

    /// Rows that an index lies before that of the same lane, for a group of columns.
    fn rows_back(&self, leading: &[Index]) -> Option<u64> {
        let own = self.product.flat_leading();
        if own == leading || Index::flatten(&self.product.leading, leading) == self.product.row() {
            return Some(0);
        }
        let (time, outer) = own.split_last()?;
        let (found, found_outer) = leading.split_last()?;
        (1..=MOST_HALO).find(|&back| found_outer == outer && *found == time.minus(back))
    }
}

impl Reader for ProductReader<'_> {
    fn read(&self, value: Value, index: &[Index]) -> Option<String> {
        if value != self.product.value {
            return None;
        }
        let lanes = |lane: usize| self.lane.plus(&Index::constant(lane as u64));
        let (column, leading) = index.split_last()?;
        if !self.along_rows {
            let lane = (0..self.width).find(|&lane| *column == lanes(lane))?;
            let back = self.rows_back(leading)?;
            self.back.set(self.back.get().max(back));
            return Some(match back {
                0 => format!("u[{lane}]"),
                back => format!("tile[{lane} - {back} * (int)config::tile_pitch]"),
            });
        }
        let own = self.own(self.lane.clone());
        let (own_column, own_leading) = own.split_last()?;
        let (time, outer) = leading.split_last()?;
        if column != own_column || outer != &own_leading[..own_leading.len() - 1] {
            return None;
        }
        if let Some(lane) = (0..self.width).find(|&lane| *time == lanes(lane)) {
            return Some(format!("u[before + {lane}]"));
        }
        let back = (1..=MOST_HALO).find(|&back| *time == self.lane.minus(back))?;
        self.back.set(self.back.get().max(back));
        Some(format!("u[before - {back}]"))
    }
}
