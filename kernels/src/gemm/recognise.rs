//! What the skeleton can run: one product, anything scalar around it, at most one layer norm before it.

use std::cell::RefCell;

use hyenac_ir::{DType, Graph, Op, Region, Value};

use crate::cost::{depends_on, heavy_nodes, operand_precision};
use crate::family::Refusal;
use crate::index::Index;
use crate::layer_norm::Norm;
use crate::scalar::{Emitter, Reader};

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
        Index::variable("t_group", self.period() / width).times(width as u64)
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
