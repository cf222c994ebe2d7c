//! Which reads of an expression are eight neighbours in memory.

use std::cell::RefCell;

use hyenac_ir::{DType, Graph, Op, Value};

use crate::family::Refusal;
use crate::index::Index;
use crate::scalar::{Emitter, Reader};
use crate::storage;

/// Elements that aligned code handles at a time.
pub const WIDTH: usize = 8;

/// Eight consecutive elements of a parameter, read at once.
pub struct Vector {
    parameter: usize,
    dtype: DType,
    first: Index,
}

/// The vectors that the elements at `indices`, eight of them along time, read.
///
/// A vector is known to lie within its parameter because its first and its last element are read anyway, or, where the
/// last elements may lie beyond the sequence, because it ends in the padding of a row. Bodies that pad, and so read under
/// a condition, get none; a short convolution reads only what lies before a strip under one.
pub fn vectors(
    body: &Graph,
    value: Value,
    indices: &[Vec<Index>],
    ragged: bool,
    provided: &dyn Reader,
) -> Result<Vec<Vector>, Refusal> {
    let conditional = body.nodes().any(|node| matches!(body.node(node).op, Op::Pad { .. }));
    if conditional || indices.len() != WIDTH {
        return Ok(Vec::new());
    }
    let (first, last) =
        (reads(body, value, &indices[0], provided)?, reads(body, value, &indices[WIDTH - 1], provided)?);
    let mut vectors: Vec<Vector> = Vec::new();
    let parameters = body.parameters();
    for (parameter, dtype, flat) in first {
        let known = vectors.iter().any(|vector| vector.parameter == parameter && vector.first == flat);
        let stored = storage::elements(dtype, &body.node(parameters[parameter]).types[0].shape) as u64;
        let neighbours = last.iter().any(|(other, _, end)| {
            *other == parameter
                && end.distance_from(&flat) == Some(WIDTH as u64 - 1)
                && (!ragged || end.bound() <= stored)
        });
        if !known && neighbours && dtype != DType::C64 && flat.is_multiple_of(WIDTH as u64) {
            vectors.push(Vector { parameter, dtype, first: flat });
        }
    }
    Ok(vectors)
}

impl Vector {
    /// The statement that reads it into variables numbered `number`.
    pub fn load(&self, number: usize) -> String {
        let (parameter, first) = (self.parameter, &self.first);
        match self.dtype {
            DType::F16 => format!("const uint4 v{number} = load_eight(p{parameter} + {first});"),
            _ => format!(
                "const float4 v{number} = load_four(p{parameter} + {first}), v{number}_high = \
                 load_four(p{parameter} + {first} + 4);"
            ),
        }
    }

    fn element(&self, number: usize, position: u64) -> String {
        const WORDS: [&str; 4] = ["x", "y", "z", "w"];
        match self.dtype {
            DType::F16 => {
                let half = if position.is_multiple_of(2) { "low_half" } else { "high_half" };
                format!("{half}(v{number}.{})", WORDS[(position / 2 % 4) as usize])
            }
            _ => {
                let high = if position < 4 { "" } else { "_high" };
                format!("v{number}{high}.{}", WORDS[(position % 4) as usize])
            }
        }
    }
}

/// Reads parameters from vectors where one holds the element, and what `provided` knows from there.
pub struct FromVectors<'a> {
    pub body: &'a Graph,
    pub vectors: &'a [Vector],
    /// Whether elements may lie beyond the sequence.
    pub ragged: bool,
    pub provided: &'a dyn Reader,
}

impl Reader for FromVectors<'_> {
    fn read(&self, value: Value, index: &[Index]) -> Option<String> {
        if let Some(expression) = self.provided.read(value, index) {
            return Some(expression);
        }
        let Op::Parameter { index: parameter, dtype, shape, .. } = self.body.op(value) else { return None };
        let address = storage::address(*dtype, shape, index);
        let mut vectors = self.vectors.iter().enumerate().filter(|(_, vector)| vector.parameter == *parameter);
        let element = vectors.find_map(|(number, vector)| {
            let position = address.distance_from(&vector.first).filter(|&position| position < WIDTH as u64)?;
            Some(vector.element(number, position))
        });
        let beyond = self.ragged && address.bound() > storage::elements(*dtype, shape) as u64;
        element.or_else(|| beyond.then(|| storage::read_within(*dtype, shape, *parameter, &address)))
    }
}

type Read = (usize, DType, Index);

/// The parameter reads of one element.
fn reads(body: &Graph, value: Value, index: &[Index], provided: &dyn Reader) -> Result<Vec<Read>, Refusal> {
    struct Recorder<'a> {
        body: &'a Graph,
        provided: &'a dyn Reader,
        reads: RefCell<Vec<Read>>,
    }
    impl Reader for Recorder<'_> {
        fn read(&self, value: Value, index: &[Index]) -> Option<String> {
            if let Some(expression) = self.provided.read(value, index) {
                return Some(expression);
            }
            let Op::Parameter { index: parameter, dtype, shape, .. } = self.body.op(value) else { return None };
            let read = (*parameter, *dtype, storage::address(*dtype, shape, index));
            let mut reads = self.reads.borrow_mut();
            if !reads.contains(&read) {
                reads.push(read);
            }
            Some("recorded".to_owned())
        }
    }
    let recorder = Recorder { body, provided, reads: RefCell::new(Vec::new()) };
    Emitter::new(body, &recorder, 0, "x").element(value, index)?;
    Ok(recorder.reads.into_inner())
}
