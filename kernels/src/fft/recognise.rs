//! Which regions are Fourier transforms.

use hyenac_ir::{Graph, NodeIndex, Op, Value};

use super::code::Access;
use super::radix::{MAX_POINTS, Transform};
use crate::cost::{depends_on, heavy_nodes};
use crate::family::Refusal;
use crate::index::Index;

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
    /// What the scalar code reads and writes.
    pub reads: Reads,
}

/// Accesses of the scalar code of a region, by where it stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Reads {
    /// Before the signal's transform.
    pub signal: Vec<Access>,
    /// Before the filter's transform.
    pub filter: Vec<Access>,
    /// Between the transforms.
    pub spectrum: Vec<Access>,
    /// After the last transform.
    pub output: Vec<Access>,
    /// Whether neighbours along a row are neighbours in the output.
    pub output_coalesced: bool,
}

pub(super) fn refusal(op: &str, why: impl Into<String>, larger: bool) -> Refusal {
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
        let mut pattern = match (forward.as_slice(), inverse.as_slice()) {
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
        let mut reads = Reads::default();
        if let Some(signal) = &pattern.signal {
            reads.signal = pattern.input_code(signal, 0)?.accesses;
        }
        if let Some(filter) = &pattern.filter {
            reads.filter = pattern.input_code(filter, 0)?.accesses;
        }
        if pattern.inverse.is_some() {
            reads.spectrum = pattern.spectrum_code(0)?.accesses;
        }
        let (code, output_coalesced) = pattern.output_code(0)?;
        (reads.output, reads.output_coalesced) = (code.accesses, output_coalesced);
        pattern.reads = reads;
        Ok(pattern)
    }

    fn forward(body: &'a Graph, node: NodeIndex) -> Result<Pattern<'a>, Refusal> {
        let spectrum = Value::of(node);
        let rows = rows_of(body, spectrum);
        let lead = Index::variable("channel", rows).unflatten(leading(body, spectrum));
        let signal = Some(Forward::of(body, node, lead));
        let points = bins_of(body, spectrum) - 1;
        Ok(Pattern {
            body,
            points,
            signal,
            filter: None,
            inverse: None,
            batches: 1,
            channels: rows,
            reads: Reads::default(),
        })
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
        Ok(Pattern { body, points, signal, filter, inverse, batches, channels, reads: Reads::default() })
    }

    /// Rows that the region transforms.
    pub fn rows(&self) -> usize {
        self.batches * self.channels
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

pub(super) fn with(lead: &[Index], last: Index) -> Vec<Index> {
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
