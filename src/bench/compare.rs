//! Times beside those of others, from files of the same format.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use hyenac::Error;
use serde::{Deserialize, Serialize};

use super::report::Report;
use super::suite::Case;
use crate::cli::{Align, short_micros, table};

/// Peers beside each other in one table, so that it keeps to its width.
const PEERS_A_TABLE: usize = 4;

/// One mode of a report, compared with one peer over all its cases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// The mode that is compared, `live` or `frozen`.
    pub mode: String,
    /// What it is compared with, for example `compile-tf32`.
    pub peer: String,
    /// Name and version of the peer's software.
    pub software: String,
    /// Device that the peer was measured on.
    pub device: String,
    /// Every case of the mode, in its order.
    pub cases: Vec<ComparedCase>,
    /// Geometric mean of the ratios.
    pub geometric_mean: f64,
    /// Smallest ratio.
    pub minimum: f64,
}

/// One shape, here and there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedCase {
    /// Batch size.
    pub batch: usize,
    /// Sequence length.
    pub seq_len: usize,
    /// Median time of the report.
    pub ours_us: f64,
    /// Median time of the peer.
    pub peer_us: f64,
    /// How many times as long the peer takes: above 1, it is slower.
    pub ratio: f64,
}

/// Files to compare with.
#[derive(Debug, Default)]
pub struct Peers {
    files: Vec<(PathBuf, Report)>,
}

impl Peers {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// As [`Report::read`].
    pub fn read(paths: &[PathBuf]) -> Result<Peers, Error> {
        let file = |path: &PathBuf| Ok((path.clone(), Report::read(path)?));
        Ok(Peers { files: paths.iter().map(file).collect::<Result<_, Error>>()? })
    }

    /// Whether there is nothing to compare with.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Checks that every peer has these shapes, before any time is spent on them.
    ///
    /// # Errors
    /// Naming the file, the peer and the shapes that it lacks.
    pub fn require(&self, shapes: &[Case]) -> Result<(), Error> {
        for (path, theirs) in &self.files {
            for mode in theirs.modes() {
                let missing = shapes.iter().filter(|&&case| theirs.find(case, mode).is_none());
                let missing: Vec<String> = missing.map(Case::to_string).collect();
                if !missing.is_empty() {
                    let why = format!("has no `{mode}` of {}, which is to be compared", missing.join(", "));
                    return Err(unusable(path, why));
                }
            }
        }
        Ok(())
    }

    /// What makes times of these files and of `ours` hard to compare, one line each.
    pub fn differences(&self, ours: &Report) -> Vec<String> {
        let mut found = Vec::new();
        for (path, theirs) in &self.files {
            let mut differ = |what: &str, theirs: String, ours: String| {
                if theirs != ours {
                    found.push(format!("{}: {what} {theirs}, here {ours}", path.display()));
                }
            };
            let flushed = |report: &Report| format!("{} bytes", report.protocol.flushed_bytes);
            differ("was measured on", theirs.device.name.clone(), ours.device.name.clone());
            differ("is of the preset", theirs.variant.clone(), ours.variant.clone());
            differ("was timed by", theirs.protocol.clock.clone(), ours.protocol.clock.clone());
            differ("flushed", flushed(theirs), flushed(ours));
        }
        found
    }

    /// Every mode of `ours` compared with every peer.
    ///
    /// # Errors
    /// As [`Peers::require`].
    pub fn compare(&self, ours: &Report) -> Result<Vec<PeerReport>, Error> {
        self.require(&ours.shapes())?;
        let mut compared = Vec::new();
        for mode in ours.modes() {
            let mut names: Vec<String> = Vec::new();
            for (_, theirs) in &self.files {
                for peer in theirs.modes() {
                    let name = unused(&names, &theirs.name_of(peer));
                    compared.push(PeerReport::of(ours, mode, theirs, peer, &name));
                    names.push(name);
                }
            }
        }
        Ok(compared)
    }
}

impl PeerReport {
    /// Compares the shapes that both have.
    fn of(ours: &Report, mode: &str, theirs: &Report, peer: &str, name: &str) -> PeerReport {
        let cases: Vec<ComparedCase> = ours
            .cases
            .iter()
            .filter(|case| case.mode == mode)
            .filter_map(|case| {
                let peer_us = theirs.find(case.case(), peer)?.median_us;
                Some(ComparedCase {
                    batch: case.batch,
                    seq_len: case.seq_len,
                    ours_us: case.median_us,
                    peer_us,
                    ratio: peer_us / case.median_us,
                })
            })
            .collect();
        let count = cases.len().max(1) as f64;
        PeerReport {
            mode: mode.to_owned(),
            peer: name.to_owned(),
            software: theirs.software.clone().unwrap_or_else(|| "hyenac".to_owned()),
            device: theirs.device.name.clone(),
            geometric_mean: (cases.iter().map(|case| case.ratio.ln()).sum::<f64>() / count).exp(),
            minimum: cases.iter().map(|case| case.ratio).fold(f64::INFINITY, f64::min),
            cases,
        }
    }

    fn find(&self, case: Case) -> Option<&ComparedCase> {
        self.cases.iter().find(|found| (found.batch, found.seq_len) == (case.batch, case.seq_len))
    }

    /// The peer's time of a shape.
    pub fn peer_us(&self, case: Case) -> Option<f64> {
        self.find(case).map(|found| found.peer_us)
    }

    fn mean(&self, time: impl Fn(&ComparedCase) -> f64) -> f64 {
        self.cases.iter().map(time).sum::<f64>() / self.cases.len().max(1) as f64
    }
}

impl Report {
    /// What one of its modes is called beside others.
    fn name_of(&self, mode: &str) -> String {
        match self.software {
            Some(_) => mode.to_owned(),
            None => format!("{} {mode}", self.precision),
        }
    }

    /// The tables of all comparisons; none where there are none.
    pub fn comparison_tables(&self) -> Option<String> {
        let mut text = String::new();
        for mode in self.modes() {
            let compared: Vec<&PeerReport> = self.comparisons.iter().filter(|peer| peer.mode == mode).collect();
            for peers in compared.chunks(PEERS_A_TABLE) {
                text += &comparison_table(mode, peers);
            }
        }
        (!text.is_empty()).then_some(text)
    }
}

fn comparison_table(mode: &str, peers: &[&PeerReport]) -> String {
    let mut software: Vec<String> = peers.iter().map(|peer| format!("{}, {}", peer.software, peer.device)).collect();
    software.dedup();
    let mut text = format!("\n{mode} beside {}; in brackets, how many times as long\n", software.join(" and "));
    let mut header = vec![("B x L", Align::Left), (mode, Align::Right)];
    header.extend(peers.iter().map(|peer| (peer.peer.as_str(), Align::Right)));
    let Some(first) = peers.first() else { return text };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for case in &first.cases {
        let shape = Case { batch: case.batch, seq_len: case.seq_len };
        let mut row = vec![shape.to_string(), short_micros(case.ours_us)];
        row.extend(peers.iter().map(|peer| match peer.find(shape) {
            Some(found) => format!("{} ({:.2}x)", short_micros(found.peer_us), found.ratio),
            None => "-".to_owned(),
        }));
        rows.push(row);
    }
    let summary = |name: &str, ours: String, theirs: &dyn Fn(&PeerReport) -> String| {
        let mut row = vec![name.to_owned(), ours];
        row.extend(peers.iter().map(|peer| theirs(peer)));
        row
    };
    rows.push(summary("mean", short_micros(first.mean(|case| case.ours_us)), &|peer| {
        short_micros(peer.mean(|case| case.peer_us))
    }));
    rows.push(summary("geometric mean", String::new(), &|peer| format!("({:.2}x)", peer.geometric_mean)));
    rows.push(summary("minimum", String::new(), &|peer| format!("({:.2}x)", peer.minimum)));
    let _ = write!(text, "{}", table(&header, rows));
    text
}

/// A name that no other peer has.
fn unused(taken: &[String], name: &str) -> String {
    let numbered = (2..).map(|number| format!("{name} ({number})"));
    std::iter::once(name.to_owned()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or_default()
}

/// A file that cannot be used as measurements.
pub fn unusable(path: &Path, why: impl Into<String>) -> Error {
    Error::Usage { what: path.display().to_string(), why: why.into() }
}
