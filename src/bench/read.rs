//! Reading what `--json` wrote, here or elsewhere.

use std::path::Path;

use hyenac::Error;
use hyenac::files::FileError;
use serde::Deserialize;

use super::compare::unusable;
use super::report::{Report, SCHEMA};

/// What every version of the format has.
#[derive(Deserialize)]
struct Versioned {
    schema: u32,
}

impl Report {
    /// Reads a file of measurements, and checks what tables and plots rely on.
    ///
    /// # Errors
    /// When it cannot be read, has another format or version, or holds times that cannot be.
    pub fn read(path: &Path) -> Result<Report, Error> {
        let io = |source| FileError::Io { action: "read", path: path.to_owned(), source };
        let bytes = std::fs::read(path).map_err(io)?;
        let other = |error: serde_json::Error| {
            unusable(path, format!("is no JSON of `hyenac bench --json` or of its peers: {error}"))
        };
        // The version first: what a later one lacks or adds is not what is wrong with it.
        let Versioned { schema } = serde_json::from_slice(&bytes).map_err(other)?;
        if schema != SCHEMA {
            return Err(unusable(path, format!("has version {schema} of the format, this hyenac reads {SCHEMA}")));
        }
        let report: Report = serde_json::from_slice(&bytes).map_err(other)?;
        report.check().map_err(|why| unusable(path, why))?;
        Ok(report)
    }

    fn check(&self) -> Result<(), String> {
        if self.cases.is_empty() {
            return Err("holds no case".to_owned());
        }
        for (position, case) in self.cases.iter().enumerate() {
            let name = format!("`{}` of {}", case.mode, case.case());
            if !possible(case.median_us) {
                return Err(format!("{name} has a median of {} us, which no call takes", case.median_us));
            }
            let same = |other: &&super::CaseReport| other.case() == case.case() && other.mode == case.mode;
            if self.cases.iter().take(position).any(|other| same(&other)) {
                return Err(format!("holds {name} twice"));
            }
        }
        let times = self.comparisons.iter().flat_map(|peer| &peer.cases);
        match times.into_iter().find(|case| !possible(case.peer_us) || !possible(case.ours_us)) {
            Some(case) => Err(format!("compares {}x{} with a time that no call takes", case.batch, case.seq_len)),
            None => Ok(()),
        }
    }
}

/// Whether a call may take so many microseconds: at least one step of the finest clock, at most a lifetime.
pub fn possible(time: f64) -> bool {
    (1e-4..=1e16).contains(&time)
}
