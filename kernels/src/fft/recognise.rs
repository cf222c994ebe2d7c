//! Which regions are Fourier transforms, and the scalar code before, between and after the transforms.

use std::cell::RefCell;

use hyenac_ir::{Graph, NodeIndex, Op, Value};

use super::radix::{MAX_POINTS, Transform};
use crate::cost::{depends_on, heavy_nodes};
use crate::family::Refusal;
use crate::index::Index;
use crate::scalar::{Emitter, Reader};

/// A real-to-complex transform of the region.
#[derive(Clone, Debug)]
pub(super) struct Forward {
    /// The spectrum.
    pub spectrum: Value,
    /// What is transformed; a scalar form of parameters.
    pub input: Value,
    /// Entries of the last axis of `input`.
    pub length: usize,
    /// Coordinates of a row of `input`, in `batch` and `channel`.
    pub lead: Vec<Index>,
}

/// A complex-to-real transform of the region.
#[derive(Clone, Debug)]
pub(super) struct Inverse {
    /// The signal.
    pub signal: Value,
    /// What is transformed; a scalar form of parameters and of forward transforms.
    pub spectrum: Value,
    /// Entries of the last axis of `signal`.
    pub length: usize,
    /// Coordinates of a row of `signal`, in `batch` and `channel`.
    pub lead: Vec<Index>,
}

/// A region of transforms. Row `batch * channels + channel` is transformed with filter `channel`.
#[derive(Clone, Debug)]
pub(super) struct Pattern<'a> {
    /// The region's body.
    pub body: &'a Graph,
    /// Half the size of the real transforms: points of the complex ones.
    pub points: usize,
    /// Transform of every row, if rows are transformed forwards here.
    pub signal: Option<Forward>,
    /// Transform of one row for each channel, used by every batch.
    pub filter: Option<Forward>,
    /// The transform back, if there is one; otherwise the region's output is a spectrum.
    pub inverse: Option<Inverse>,
    /// Rows of one channel.
    pub batches: usize,
    /// Rows of one batch.
    pub channels: usize,
}

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
    accesses: RefCell<Vec<Access>>,
}

impl Reader for Held<'_> {
    fn read(&self, value: Value, index: &[Index]) -> Option<String> {
        if let Op::Parameter { index: parameter, .. } = self.body.op(value) {
            let runs = |position: &Index| {
                let text = position.to_string();
                self.along.iter().any(|name| text.contains(name))
            };
            let coalesced = index.last().is_none_or(runs) || !index.iter().any(runs);
            self.accesses.borrow_mut().push(Access { parameter: *parameter, coalesced });
            return None;
        }
        self.entries.iter().find(|(held, at, _)| *held == value && at == index).map(|(_, _, text)| text.clone())
    }
}

fn refusal(op: &str, why: impl Into<String>, larger: bool) -> Refusal {
    Refusal { op: op.to_owned(), why: why.into(), larger }
}

impl<'a> Pattern<'a> {
    /// Recognises a region.
    ///
    /// # Errors
    /// What does not fit, and whether it could as a part of a larger region.
    pub fn recognise(body: &'a Graph) -> Result<Pattern<'a>, Refusal> {
        let [_] = body.outputs() else {
            let why = format!("transforms write one output, not {}", body.outputs().len());
            return Err(refusal("region", why, false));
        };
        let heavy = heavy_nodes(body);
        if heavy.is_empty() {
            return Err(refusal("region", "has no transform yet", true));
        }
        let (mut forward, mut inverse) = (Vec::new(), Vec::new());
        for &node in &heavy {
            match body.node(node).op {
                Op::Rfft { .. } => forward.push(node),
                Op::Irfft { .. } => inverse.push(node),
                ref op => return Err(refusal(op.mnemonic(), "does not fuse with a transform", false)),
            }
        }
        let pattern = match (forward.as_slice(), inverse.as_slice()) {
            (&[node], []) => Pattern::forward(body, node)?,
            (_, []) => return Err(refusal("rfft", "several transforms need one back to the signal", true)),
            (forward, &[node]) => Pattern::inverse(body, forward, node)?,
            _ => return Err(refusal("irfft", "one kernel transforms back once", false)),
        };
        if pattern.points > MAX_POINTS || Transform::new(pattern.points, 16).is_none() {
            let why = format!(
                "half of size {} must be at most {MAX_POINTS} and have no prime factor above 7",
                2 * pattern.points
            );
            return Err(refusal("rfft", why, false));
        }
        // Scalar code must come out for every place where it will stand.
        for forward in pattern.signal.iter().chain(&pattern.filter) {
            pattern.input_code(forward, 0)?;
        }
        if pattern.inverse.is_some() {
            pattern.spectrum_code(0)?;
        }
        pattern.output_code(0)?;
        Ok(pattern)
    }

    fn forward(body: &'a Graph, node: NodeIndex) -> Result<Pattern<'a>, Refusal> {
        let spectrum = Value::of(node);
        let rows = rows_of(body, spectrum);
        let lead = Index::variable("channel", rows).unflatten(leading(body, spectrum));
        let signal = Some(Forward::of(body, node, lead));
        let points = bins_of(body, spectrum) - 1;
        Ok(Pattern { body, points, signal, filter: None, inverse: None, batches: 1, channels: rows })
    }

    fn inverse(body: &'a Graph, forward: &[NodeIndex], node: NodeIndex) -> Result<Pattern<'a>, Refusal> {
        let Op::Irfft { length, .. } = body.node(node).op else {
            return Err(refusal("irfft", "is missing", false));
        };
        let spectrum = body.operand(node, 0);
        if let Some(&stray) = forward.iter().find(|&&rfft| !depends_on(body, node, rfft)) {
            return Err(refusal(body.node(stray).op.mnemonic(), "is not transformed back", false));
        }
        let rows = rows_of(body, spectrum);
        let shape = leading(body, spectrum);
        // A forward transform serves as the filter if its rows are the last axes of the signal's.
        let fits = |&rfft: &NodeIndex| {
            let own = leading(body, Value::of(rfft));
            if own.len() > shape.len() {
                return false;
            }
            let first = own.iter().position(|&extent| extent != 1).unwrap_or(own.len());
            shape.ends_with(&own[first..])
        };
        if let Some(&odd) = forward.iter().find(|rfft| !fits(rfft)) {
            let why = format!("rows {:?} do not run over the last axes of {shape:?}", leading(body, Value::of(odd)));
            return Err(refusal("rfft", why, false));
        }
        let whole = |rfft: &&NodeIndex| rows_of(body, Value::of(**rfft)) == rows;
        let signal = forward.iter().find(whole).copied();
        let others: Vec<NodeIndex> = forward.iter().copied().filter(|&rfft| Some(rfft) != signal).collect();
        let filter = match others.as_slice() {
            [] => None,
            &[filter] if signal.is_some() => Some(filter),
            _ => return Err(refusal("rfft", "one kernel transforms one signal and one filter", false)),
        };
        let channels = filter.map_or(rows, |filter| rows_of(body, Value::of(filter)));
        let batches = rows / channels;
        let mut split = shape.len();
        let mut product = 1;
        while split > 0 && product < channels {
            split -= 1;
            product *= shape[split];
        }
        let mut lead = Index::variable("batch", batches).unflatten(&shape[..split]);
        lead.extend(Index::variable("channel", channels).unflatten(&shape[split..]));
        let of = |rfft: NodeIndex| {
            let own = leading(body, Value::of(rfft));
            Forward::of(body, rfft, broadcast(own, shape.len(), &lead))
        };
        let (signal, filter) = (signal.map(of), filter.map(of));
        if let (Some(signal), Some(filter)) = (&signal, &filter)
            && signal.length != filter.length
        {
            let why = format!("signal and filter have {} and {} entries", signal.length, filter.length);
            return Err(refusal("rfft", why, false));
        }
        let points = bins_of(body, spectrum) - 1;
        let inverse = Some(Inverse { signal: Value::of(node), spectrum, length, lead });
        Ok(Pattern { body, points, signal, filter, inverse, batches, channels })
    }

    /// Rows that the region transforms.
    pub fn rows(&self) -> usize {
        self.batches * self.channels
    }

    fn emit(
        &self,
        entries: Vec<(Value, Vec<Index>, String)>,
        along: [&'static str; 2],
        indent: usize,
        wanted: &[(Value, Vec<Index>)],
        stored: bool,
    ) -> Result<Code, Refusal> {
        let held = Held { body: self.body, entries, along, accesses: RefCell::new(Vec::new()) };
        let mut emitter = Emitter::new(self.body, &held, indent, "e");
        let mut elements = Vec::new();
        for (value, index) in wanted {
            elements.push(if stored {
                emitter.stored_element(*value, index)?
            } else {
                emitter.element(*value, index)?
            });
        }
        let statements = emitter.finish();
        Ok(Code { statements, elements, accesses: held.accesses.into_inner() })
    }

    /// Entries `t0` and `t1` of a row to be transformed.
    pub fn input_code(&self, forward: &Forward, indent: usize) -> Result<Code, Refusal> {
        let at = |name| (forward.input, with(&forward.lead, Index::variable(name, forward.length)));
        self.emit(Vec::new(), ["t0", "t1"], indent, &[at("t0"), at("t1")], false)
    }

    fn held_spectra(&self) -> Vec<(Value, Vec<Index>, String)> {
        let mut entries = Vec::new();
        for (name, forward) in [("signal", &self.signal), ("filter", &self.filter)] {
            for bin in ["bin", "mirror"] {
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
        let at = |name| (inverse.spectrum, with(&inverse.lead, self.bin(name)));
        self.emit(self.held_spectra(), ["bin", "mirror"], indent, &[at("bin"), at("mirror")], false)
    }

    /// The output at entries `t0` and `t1` of a row, from `y0` and `y1`; or at bins `bin` and `mirror`,
    /// from `signal.bin` and `signal.mirror`. Each element is an assignment to `o0`. The flag says whether
    /// neighbours along a row are neighbours in the output.
    pub fn output_code(&self, indent: usize) -> Result<(Code, bool), Refusal> {
        let output = self.body.outputs()[0];
        let (source, lead, names, extent, entries) = match (&self.inverse, &self.signal) {
            (Some(inverse), _) => {
                let at = |name| with(&inverse.lead, Index::variable(name, inverse.length));
                let entries =
                    vec![(inverse.signal, at("t0"), "y0".to_owned()), (inverse.signal, at("t1"), "y1".to_owned())];
                (inverse.signal, &inverse.lead, ["t0", "t1"], inverse.length, entries)
            }
            (None, Some(signal)) => {
                (signal.spectrum, &signal.lead, ["bin", "mirror"], self.points + 1, self.held_spectra())
            }
            (None, None) => return Err(refusal("region", "has no transform", false)),
        };
        let mut wanted = Vec::new();
        for name in names {
            let index = with(lead, Index::variable(name, extent));
            wanted.push((output, follow(self.body, source, &index, output)?));
        }
        let coalesced = wanted[0].1.last().is_none_or(|last| extent == 1 || last.to_string().contains(names[0]));
        let mut code = self.emit(entries, names, indent, &wanted, true)?;
        let shape = &self.body.ty(output).shape;
        for (element, (_, index)) in code.elements.iter_mut().zip(&wanted) {
            *element = format!("o0[{}] = {element};", Index::flatten(shape, index));
        }
        Ok((code, coalesced))
    }
}

impl Forward {
    fn of(body: &Graph, node: NodeIndex, lead: Vec<Index>) -> Forward {
        let input = body.operand(node, 0);
        let length = body.ty(input).shape.last().copied().unwrap_or(1);
        Forward { spectrum: Value::of(node), input, length, lead }
    }
}

fn leading(body: &Graph, value: Value) -> &[usize] {
    let shape = &body.ty(value).shape;
    &shape[..shape.len().saturating_sub(1)]
}

fn rows_of(body: &Graph, value: Value) -> usize {
    leading(body, value).iter().product()
}

fn bins_of(body: &Graph, spectrum: Value) -> usize {
    body.ty(spectrum).shape.last().copied().unwrap_or(1)
}

fn with(lead: &[Index], last: Index) -> Vec<Index> {
    let mut index = lead.to_vec();
    index.push(last);
    index
}

/// Coordinates within axes `own` that broadcast to `rank` axes at `lead`.
fn broadcast(own: &[usize], rank: usize, lead: &[Index]) -> Vec<Index> {
    let skipped = rank.saturating_sub(own.len());
    own.iter()
        .zip(&lead[skipped..])
        .map(|(&extent, at)| if extent == 1 { Index::constant(0) } else { at.clone() })
        .collect()
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
