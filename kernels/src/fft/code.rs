//! The scalar code before, between and after the transforms.

use std::cell::RefCell;

use hyenac_ir::{DType, Graph, Op, Value};

use super::recognise::{Forward, Pattern, refusal, with};
use crate::family::Refusal;
use crate::index::Index;
use crate::scalar::{Emitter, Reader};
use crate::storage;
use crate::vector::before_store;

/// Variables of generated code: neighbouring entries of a row, the first even.
const ENTRIES: [&str; 2] = ["t0", "t1"];
/// Variables of generated code: a bin and its mirror.
const BINS: [&str; 2] = ["bin", "mirror"];

/// How a parameter or the output is reached from neighbouring lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    /// Index of the parameter.
    pub parameter: usize,
    /// Whether neighbouring elements of a row are neighbours in memory, or the same element.
    pub coalesced: bool,
}

/// Statements and what they compute.
pub(super) struct Code {
    /// Statements.
    pub statements: String,
    /// An expression for each element asked for.
    pub elements: Vec<String>,
    /// Parameters that were read.
    pub accesses: Vec<Access>,
}

/// Values that the kernel holds, at known indices.
struct Held<'a> {
    body: &'a Graph,
    entries: Vec<(Value, Vec<Index>, String)>,
    /// Names of the variables that run along a row.
    along: [&'static str; 2],
    /// Extent of `along` where its variables are neighbours, the first of them even; or the same one at the end of an odd
    /// extent, where the second means nothing.
    paired: Option<usize>,
    accesses: RefCell<Vec<Access>>,
    /// Positions of parameters from which both neighbours are loaded at once.
    pairs: RefCell<Vec<(usize, Index)>>,
}

impl Held<'_> {
    /// An element of a pair of neighbours that one wide load brings.
    fn half_of_pair(&self, parameter: usize, dtype: DType, shape: &[usize], index: &[Index]) -> Option<String> {
        let extent = self.paired?;
        let (&row, (last, outer)) = (shape.last()?, index.split_last()?);
        let half = self.along.iter().position(|name| *last == Index::variable(*name, extent))?;
        // A row that is shorter is read under a condition, every pair must be aligned, and the last one of an odd
        // extent ends in padding.
        if row < extent || !(extent % 2 == 0 && row % 2 == 0 || extent > 1 && dtype == DType::F16) {
            return None;
        }
        let address = storage::address(dtype, shape, &with(outer, Index::variable(self.along[0], extent)));
        let mut pairs = self.pairs.borrow_mut();
        let pair = pairs.iter().position(|known| *known == (parameter, address.clone())).unwrap_or_else(|| {
            pairs.push((parameter, address));
            pairs.len() - 1
        });
        Some(format!("pair{pair}.{}", ["x", "y"][half]))
    }
}

impl Reader for Held<'_> {
    fn read(&self, value: Value, index: &[Index]) -> Option<String> {
        if let Op::Parameter { index: parameter, dtype, shape, .. } = self.body.op(value) {
            let runs = |position: &Index| {
                let text = position.to_string();
                self.along.iter().any(|name| text.contains(name))
            };
            let coalesced = index.last().is_none_or(runs) || !index.iter().any(runs);
            self.accesses.borrow_mut().push(Access { parameter: *parameter, coalesced });
            return dtype.is_real().then(|| self.half_of_pair(*parameter, *dtype, shape, index)).flatten();
        }
        self.entries.iter().find(|(held, at, _)| *held == value && at == index).map(|(_, _, text)| text.clone())
    }
}

impl Pattern<'_> {
    fn emit(
        &self,
        entries: Vec<(Value, Vec<Index>, String)>,
        (along, extent): ([&'static str; 2], usize),
        indent: usize,
        element: impl FnMut(&mut Emitter, usize) -> Result<String, Refusal>,
    ) -> Result<Code, Refusal> {
        // Entries of a row come in pairs, bins do not. A wide load stands before every condition: only padding reads
        // a parameter under a condition at the very index that runs along the row.
        let padded = self.body.nodes().any(|node| matches!(self.body.node(node).op, Op::Pad { .. }));
        let paired = (along == ENTRIES && !padded).then_some(extent);
        let (accesses, pairs) = (RefCell::default(), RefCell::default());
        let held = Held { body: self.body, entries, along, paired, accesses, pairs };
        let mut emitter = Emitter::new(self.body, &held, indent, "e");
        let mut element = element;
        let elements = (0..2).map(|which| element(&mut emitter, which)).collect::<Result<Vec<_>, _>>()?;
        let emitted = emitter.finish();
        let mut statements = String::new();
        for (number, (parameter, address)) in held.pairs.into_inner().into_iter().enumerate() {
            let pad = 4 * indent;
            let line = format!("const float2 pair{number} = load_pair(p{parameter} + {address});");
            statements.push_str(&format!("{:pad$}{line}\n", ""));
        }
        Ok(Code { statements: statements + &emitted, elements, accesses: held.accesses.into_inner() })
    }

    /// Entries `t0` and `t1` of a row to be transformed.
    pub fn input_code(&self, forward: &Forward, indent: usize) -> Result<Code, Refusal> {
        let at = |name| with(&forward.lead, Index::variable(name, forward.length));
        self.emit(Vec::new(), (ENTRIES, forward.length), indent, |emitter, which| {
            emitter.element(forward.input, &at(ENTRIES[which]))
        })
    }

    fn held_spectra(&self) -> Vec<(Value, Vec<Index>, String)> {
        let mut entries = Vec::new();
        for (name, forward) in [("signal", &self.signal), ("filter", &self.filter)] {
            for bin in BINS {
                if let Some(forward) = forward {
                    let index = with(&forward.lead, self.bin(bin));
                    entries.push((forward.spectrum, index, format!("{name}.{bin}")));
                }
            }
        }
        entries
    }

    fn bin(&self, name: &str) -> Index {
        Index::variable(name, self.points + 1)
    }

    /// Bins `bin` and `mirror` of what is transformed back, from `signal.bin`, `filter.mirror` and so on.
    pub fn spectrum_code(&self, indent: usize) -> Result<Code, Refusal> {
        let Some(inverse) = &self.inverse else {
            return Err(refusal("irfft", "is missing", false));
        };
        self.emit(self.held_spectra(), (BINS, self.points + 1), indent, |emitter, which| {
            emitter.element(inverse.spectrum, &with(&inverse.lead, self.bin(BINS[which])))
        })
    }

    /// The output at entries `t0` and `t1` of a row, from `y0` and `y1`; or at bins `bin` and `mirror`,
    /// from `signal.bin` and `signal.mirror`. Each element is an assignment to `o0`, or one element assigns both. The
    /// flag says whether neighbours along a row are neighbours in the output.
    pub fn output_code(&self, indent: usize) -> Result<(Code, bool), Refusal> {
        let output = self.body.outputs()[0];
        let (source, lead, names, extent, entries) = match (&self.inverse, &self.signal) {
            (Some(inverse), _) => {
                let at = |name: &str| with(&inverse.lead, Index::variable(name, inverse.length));
                let entries = ENTRIES.into_iter().zip(["y0", "y1"]);
                let entries = entries.map(|(name, held)| (inverse.signal, at(name), held.to_owned())).collect();
                (inverse.signal, &inverse.lead, ENTRIES, inverse.length, entries)
            }
            (None, Some(signal)) => (signal.spectrum, &signal.lead, BINS, self.points + 1, self.held_spectra()),
            (None, None) => return Err(refusal("region", "has no transform", false)),
        };
        let ty = self.body.ty(output);
        let mut places = Vec::new();
        for name in names {
            let index = with(lead, Index::variable(name, extent));
            places.push(follow(self.body, source, &index, output)?);
        }
        let [first, second] = [Index::variable(names[0], extent), Index::variable(names[1], extent)];
        let coalesced = places[0].last().is_none_or(|last| extent == 1 || last.to_string().contains(names[0]));
        let together = names == ENTRIES
            && match ty.dtype {
                DType::F32 => extent % 2 == 0 && ty.shape.last().is_some_and(|row| row % 2 == 0),
                // The last pair of an odd extent ends in padding.
                DType::F16 => extent > 1,
                _ => false,
            }
            && places[0].split_last().map(|(last, outer)| (last == &first, outer))
                == places[1].split_last().map(|(last, outer)| (last == &second, outer))
            && places[0].last() == Some(&first);
        let (unrounded, _) = before_store(self.body, output);
        let mut code = self.emit(entries, (names, extent), indent, |emitter, which| {
            if together {
                emitter.element(unrounded, &places[which])
            } else {
                emitter.stored_element(output, &places[which])
            }
        })?;
        let address = |place: &[Index]| storage::address(ty.dtype, &ty.shape, place);
        code.elements = if together {
            vec![format!("store_pair(o0 + {}, {}, {});", address(&places[0]), code.elements[0], code.elements[1])]
        } else {
            let stores = code.elements.iter().zip(&places);
            stores.map(|(element, place)| format!("o0[{}] = {element};", address(place))).collect()
        };
        Ok((code, coalesced))
    }
}

/// Where in `output` the element of `source` at `index` ends up, through elementwise ops and views that keep
/// every element.
fn follow(body: &Graph, source: Value, index: &[Index], output: Value) -> Result<Vec<Index>, Refusal> {
    let mut reached: Vec<Option<Vec<Index>>> = vec![None; body.len()];
    reached[source.node.index()] = Some(index.to_vec());
    for node in body.nodes().filter(|node| node.index() > source.node.index()) {
        let op = &body.node(node).op;
        let shape = &body.node(node).types[0].shape;
        let stray = |why: &str| refusal(op.mnemonic(), why, false);
        let mut place: Option<Vec<Index>> = None;
        for operand in body.operands(node) {
            let Some(from) = &reached[operand.node.index()] else { continue };
            let own = &body.ty(operand).shape;
            let here = match op {
                Op::Reshape { shape } => Index::flatten(own, from).unflatten(shape),
                Op::Transpose { permutation } => permutation.iter().map(|&axis| from[axis].clone()).collect(),
                Op::Add {} | Op::Mul {} | Op::SpectrumMul {} => {
                    let added = shape.len() - own.len();
                    if shape[added..] != own[..] || shape[..added].iter().any(|&extent| extent != 1) {
                        return Err(stray("repeats the transform's result"));
                    }
                    let mut index = vec![Index::constant(0); added];
                    index.extend(from.iter().cloned());
                    index
                }
                Op::Cast { .. } | Op::Neg {} | Op::Abs {} | Op::Exp {} | Op::Sin {} | Op::GeluTanh {} => from.clone(),
                _ => return Err(stray("needs other elements than its own of the transform's result")),
            };
            match &place {
                Some(place) if *place != here => return Err(stray("needs two elements of the transform's result")),
                _ => place = Some(here),
            }
        }
        reached[node.index()] = place;
    }
    reached[output.node.index()]
        .take()
        .ok_or_else(|| refusal("region", "the output does not depend on the transform", false))
}
