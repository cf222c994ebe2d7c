//! What the skeleton can run: one product, anything scalar around it, at most one layer norm before it.

use std::cell::RefCell;

use hyenac_ir::{DType, Graph, Op, Region, Value};

use super::operand::Operand;
use crate::cost::{depends_on, heavy_nodes, operand_precision};
use crate::family::Refusal;
use crate::index::Index;
use crate::layer_norm::Norm;
use crate::scalar::{Emitter, Reader};
use crate::storage;

/// The longest row that is normalised on the way into shared memory: 32 elements a lane.
pub const LONGEST_NORM: usize = 1024;
/// The most rows before a tile that a short convolution behind the product may read.
pub const MOST_HALO: u64 = 7;

/// One `linear` of a region and what is around it.
pub struct Product {
    /// The product.
    pub value: Value,
    /// Its left operand, `[.., K]`.
    pub x: Value,
    /// Its right operand, `[N, K]`.
    pub weight: Value,
    /// The region's output.
    pub output: Value,
    /// Extents of the axes of x that number the rows.
    pub leading: Vec<usize>,
    /// Number of rows.
    pub rows: usize,
    /// Rows that a kernel walks over for each run of the innermost axis that numbers rows: its extent, or more where
    /// groups of rows are to fill the padded rows of f16 values. Those beyond the extent are computed from the last row
    /// or from padding, and stored into padding or not at all.
    pub pitch: usize,
    /// Inner dimension K.
    pub inner: usize,
    /// Columns N.
    pub columns: usize,
    /// What multiplies: f16, tf32 or f32.
    pub precision: DType,
    /// A layer norm over K in the left operand.
    pub norm: Option<Norm>,
}

/// A refusal of this family.
pub fn refuse<T>(op: &Op, why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { op: op.mnemonic().to_owned(), why: why.into(), larger: false })
}

impl Product {
    /// The product of a region, if the region has one and nothing that never fits beside it.
    pub fn of(region: &Region) -> Result<Product, Refusal> {
        let body = region.body();
        let heavy = heavy_nodes(body);
        let is_norm = |op: &Op| matches!(op, Op::LayerNorm { .. });
        let is_linear = |op: &Op| matches!(op, Op::Linear {});
        let ops: Vec<&Op> = heavy.iter().map(|&node| &body.node(node).op).collect();
        if let Some(op) = ops.iter().find(|op| !is_norm(op) && !is_linear(op)) {
            return refuse(op, "has no place beside a product");
        }
        let linears: Vec<_> = heavy.iter().copied().filter(|&node| is_linear(&body.node(node).op)).collect();
        let norms: Vec<_> = heavy.iter().copied().filter(|&node| is_norm(&body.node(node).op)).collect();
        if norms.len() > 1 {
            return refuse(ops[0], format!("one layer_norm a product, not {}", norms.len()));
        }
        let [linear] = linears[..] else {
            // A fragment without its product yet may become a prologue.
            let why = format!("one product a kernel, not {}", linears.len());
            return Err(Refusal { op: "linear".to_owned(), why, larger: linears.is_empty() });
        };
        let [output] = *body.outputs() else {
            let why = format!("gemm writes one output, not {}", body.outputs().len());
            return Err(Refusal { op: "region".to_owned(), why, larger: false });
        };
        let (x, weight) = (body.operand(linear, 0), body.operand(linear, 1));
        let (Some((&inner, leading)), Some(&columns)) = (body.ty(x).shape.split_last(), body.ty(weight).shape.first())
        else {
            return refuse(&Op::Linear {}, "x needs an axis");
        };
        let rows: usize = leading.iter().product();
        if rows > i32::MAX as usize {
            return refuse(&Op::Linear {}, format!("{rows} rows, the limit is {}", i32::MAX));
        }
        let norm = norms.first().and_then(|&node| Norm::of(body, node));
        if let Some(norm) = &norm {
            let op = body.op(norm.value);
            if !depends_on(body, x.node, norm.value.node) {
                return refuse(op, "must be part of the product's left operand");
            }
            if norm.length != inner || norm.rows() != rows {
                return refuse(op, format!("must normalise the {inner} elements that the product sums over"));
            }
            if norm.length > LONGEST_NORM {
                return refuse(op, format!("over {} elements, the limit is {LONGEST_NORM}", norm.length));
            }
        }
        Ok(Product {
            value: Value::of(linear),
            x,
            weight,
            output,
            leading: leading.to_vec(),
            rows,
            pitch: leading.last().copied().unwrap_or(1),
            inner,
            columns,
            precision: operand_precision(body.ty(x).dtype, body.ty(weight).dtype),
            norm,
        })
    }

    /// Bytes of an operand element in shared memory.
    pub fn element_bytes(&self) -> usize {
        if self.precision == DType::F16 { 2 } else { 4 }
    }

    /// The flat row, the variable `row` of emitted code.
    pub fn row(&self) -> Index {
        Index::variable("row", self.rows)
    }

    /// The extent of the innermost axis that numbers rows.
    pub fn period(&self) -> usize {
        self.leading.last().copied().unwrap_or(1)
    }

    /// The leading indices of a row, from the flat row.
    pub fn flat_leading(&self) -> Vec<Index> {
        self.row().unflatten(&self.leading)
    }

    /// The leading indices of a row that is lane `lane` of a group of rows, from the variables `outer` and
    /// `t_group` of emitted code.
    pub fn lane_leading(&self, lane: Index) -> Vec<Index> {
        let Some((&period, outer)) = self.leading.split_last() else { return Vec::new() };
        let mut index = Index::variable("outer", self.rows / period).unflatten(outer);
        index.push(lane);
        index
    }

    /// The index along the innermost axis of rows for lane 0 of a group of rows.
    pub fn row_lane(&self, width: usize) -> Index {
        Index::variable("t_group", self.pitch / width).times(width as u64)
    }

    /// Walks over padded runs of rows where that lets f16 values be read or written along them in wide words; whether
    /// it does.
    ///
    /// # Errors
    /// When the left operand cannot be emitted.
    pub fn pad_rows(&mut self, body: &Graph, stored_along_rows: bool) -> Result<bool, Refusal> {
        let period = self.period();
        let pitch = storage::pitch(DType::F16, period);
        let walked = (self.rows / period).saturating_mul(pitch);
        // Little may be computed in vain.
        if pitch == period || 4 * (pitch - period) > period || walked > i32::MAX as usize {
            return Ok(false);
        }
        self.pitch = pitch;
        let left = Operand::left(body, self)?;
        let loaded = !left.along_inner && left.group.loads.iter().any(|load| load.dtype == DType::F16);
        let stored = stored_along_rows && body.ty(self.output).dtype == DType::F16;
        if !loaded && !stored {
            self.pitch = period;
        }
        Ok(loaded || stored)
    }

    /// Rows that a kernel walks over.
    pub fn walked_rows(&self) -> usize {
        self.rows / self.period() * self.pitch
    }

    /// The extent of the innermost axis that numbers rows, where a kernel walks beyond it.
    pub fn ragged(&self) -> Option<usize> {
        (self.pitch != self.period()).then_some(self.period())
    }

    /// The statement that defines the variables of a group of rows from the walked row `row`.
    pub fn group_setup(&self) -> String {
        format!("const uint32 outer = row / {0}u, t_group = row % {0}u / width;", self.pitch)
    }

    /// The statement that turns the walked row `row` into a flat one, that of the last row of its run beyond the run;
    /// followed by a space, or nothing.
    pub fn row_setup(&self) -> String {
        let Some(period) = self.ragged() else { return String::new() };
        let (pitch, last) = (self.pitch, period - 1);
        format!("row = row / {pitch}u * {period}u + (row % {pitch}u < {period}u ? row % {pitch}u : {last}u); ")
    }

    /// The statement that leaves a function for a walked row that does not exist, followed by a space, or nothing.
    pub fn skip_padding(&self) -> String {
        let skip = |period| format!("if (row % {}u >= {period}u) return; ", self.pitch);
        self.ragged().map_or(String::new(), skip)
    }
}

/// Bytes of one element of all parameters whose last axis is a given index.
pub struct Affinity {
    /// Along the first index.
    pub first: usize,
    /// Along the second index.
    pub second: usize,
    /// The largest element among them, or of all parameters if there are none, bytes.
    pub widest: usize,
}

/// Which of two indices the memory of an element's parameters runs along.
pub fn affinity(
    body: &Graph,
    first: &Index,
    second: &Index,
    provided: &dyn Reader,
    evaluate: impl FnOnce(&mut Emitter) -> Result<(), Refusal>,
) -> Result<Affinity, Refusal> {
    let probe = Probe { body, provided, last: RefCell::default() };
    let mut emitter = Emitter::new(body, &probe, 0, "v");
    evaluate(&mut emitter)?;
    let mut affinity = Affinity { first: 0, second: 0, widest: 0 };
    let reads = probe.last.into_inner();
    for &(ref last, bytes) in &reads {
        if last == first {
            affinity.first += bytes;
        } else if last == second {
            affinity.second += bytes;
        } else {
            continue;
        }
        affinity.widest = affinity.widest.max(bytes);
    }
    if affinity.widest == 0 {
        affinity.widest = reads.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0);
    }
    Ok(affinity)
}

struct Probe<'a> {
    body: &'a Graph,
    provided: &'a dyn Reader,
    last: RefCell<Vec<(Index, usize)>>,
}

impl Reader for Probe<'_> {
    fn read(&self, value: Value, index: &[Index]) -> Option<String> {
        if let Some(expression) = self.provided.read(value, index) {
            return Some(expression);
        }
        if let (Op::Parameter { dtype, .. }, Some(last)) = (self.body.op(value), index.last()) {
            self.last.borrow_mut().push((last.clone(), dtype.bytes()));
        }
        None
    }
}
