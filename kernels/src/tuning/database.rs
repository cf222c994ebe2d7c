//! The file format of tuning databases.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::HASH_LENGTH;
use crate::device::Device;

/// Version of the format.
pub const TUNING_SCHEMA: u32 = 1;
/// The longest time that a file may give a region, microseconds: a quarter of an hour.
const LONGEST_US: f64 = 1e9;

/// Why a text is no tuning database, or not one for this compilation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TuningError {
    /// Not the JSON that `hyenac tune` writes.
    #[error("is no tuning database: {why}")]
    Format {
        /// What the parser found, and where.
        why: String,
    },
    /// Another version of the format.
    #[error("has version {found} of the format, this hyenac reads {TUNING_SCHEMA}")]
    Version {
        /// The version of the file.
        found: u32,
    },
    /// An entry that cannot be.
    #[error("entry {number} (family `{family}`): {why}")]
    Entry {
        /// Its position, from 1.
        number: usize,
        /// Its family.
        family: String,
        /// What is wrong with it, with the limit.
        why: String,
    },
    /// Times of one device say nothing about another.
    #[error("was measured for target `{found}`, but the target is `{expected}`")]
    Target {
        /// The target of the file.
        found: String,
        /// The target that is compiled or measured for.
        expected: String,
    },
}

/// What one schedule of one region took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuningEntry {
    /// [`super::region_key`] of the region.
    pub region: String,
    /// The region's body in one line, for people.
    pub computes: String,
    /// Types of its operands, for people.
    pub operands: Vec<String>,
    /// Types of its outputs, for people.
    pub outputs: Vec<String>,
    /// Name of the kernel family.
    pub family: String,
    /// The family's schedule.
    pub schedule: String,
    /// [`super::source_hash`] of the kernels that were measured: an entry of other kernels is ignored.
    pub source: String,
    /// Median time, microseconds, net of what an empty graph takes.
    pub time_us: f64,
}

/// Measured times of schedules on one device. Pure data, in a deterministic order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuningDatabase {
    /// [`TUNING_SCHEMA`].
    pub schema: u32,
    /// Name of the target, as `--target` takes it.
    pub target: String,
    /// Marketing name of the GPU.
    pub device: String,
    /// CUDA version of the driver, of the newest measurement.
    pub driver: Option<String>,
    /// Version of NVRTC, of the newest measurement.
    pub nvrtc: Option<String>,
    /// Day of the newest measurement, `YYYY-MM-DD`.
    pub date: Option<String>,
    /// The times.
    pub entries: Vec<TuningEntry>,
}

/// What every version of the format has.
#[derive(Deserialize)]
struct Versioned {
    schema: u32,
}

impl TuningDatabase {
    /// A database from its JSON, validated.
    ///
    /// # Errors
    /// When it is no JSON of this format, has another version, or holds an entry that cannot be.
    pub fn parse(text: &str) -> Result<TuningDatabase, TuningError> {
        let other = |error: serde_json::Error| TuningError::Format { why: error.to_string() };
        // The version first: what a later one lacks or adds is not what is wrong with it.
        let Versioned { schema } = serde_json::from_str(text).map_err(other)?;
        if schema != TUNING_SCHEMA {
            return Err(TuningError::Version { found: schema });
        }
        let database: TuningDatabase = serde_json::from_str(text).map_err(other)?;
        database.check()?;
        Ok(database)
    }

    fn check(&self) -> Result<(), TuningError> {
        if !Device::NAMES.contains(&self.target.as_str()) {
            let known = Device::NAMES.join(", ");
            return Err(TuningError::Format { why: format!("unknown target `{}`, known are {known}", self.target) });
        }
        let mut seen = BTreeMap::new();
        for (position, entry) in self.entries.iter().enumerate() {
            let number = position + 1;
            let wrong = |why: String| Err(TuningError::Entry { number, family: entry.family.clone(), why });
            for (what, hash) in [("region", &entry.region), ("source", &entry.source)] {
                if hash.len() != HASH_LENGTH || !hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
                    return wrong(format!("{what} `{hash}` is not {HASH_LENGTH} hexadecimal digits"));
                }
            }
            // NaN is no time either.
            if !(0.0..=LONGEST_US).contains(&entry.time_us) {
                return wrong(format!("time_us is {}, not between 0 and {LONGEST_US:e}", entry.time_us));
            }
            if let Some(first) = seen.insert(entry.place(), number) {
                return wrong(format!("has the region and the schedule of entry {first}"));
            }
        }
        Ok(())
    }

    /// Refuses a database of another target.
    ///
    /// # Errors
    /// [`TuningError::Target`].
    pub fn require_target(&self, expected: &str) -> Result<(), TuningError> {
        if self.target == expected {
            return Ok(());
        }
        Err(TuningError::Target { found: self.target.clone(), expected: expected.to_owned() })
    }

    /// Both databases: entries and descriptions of `newer` replace those of `self`.
    ///
    /// # Errors
    /// [`TuningError::Target`] when they are of different targets.
    pub fn merge(self, newer: TuningDatabase) -> Result<TuningDatabase, TuningError> {
        newer.require_target(&self.target)?;
        let mut entries: BTreeMap<(String, String, String, String), TuningEntry> = BTreeMap::new();
        let TuningDatabase { entries: new, .. } = newer;
        for entry in self.entries.into_iter().chain(new) {
            let (region, family, schedule) = entry.place();
            let key = (entry.computes.clone(), region.to_owned(), family.to_owned(), schedule.to_owned());
            entries.insert(key, entry);
        }
        Ok(TuningDatabase { entries: entries.into_values().collect(), ..newer })
    }

    /// As JSON, one entry a line, so that a change of one time is a change of one line.
    ///
    /// # Errors
    /// When a number has no JSON form.
    pub fn to_json(&self) -> Result<String, TuningError> {
        let other = |error: serde_json::Error| TuningError::Format { why: error.to_string() };
        let TuningDatabase { schema, target, device, driver, nvrtc, date, entries } = self;
        let mut text = format!("{{\n  \"schema\": {schema},\n");
        let words = [("target", Some(target)), ("device", Some(device)), ("driver", driver.as_ref())];
        for (name, value) in words.into_iter().chain([("nvrtc", nvrtc.as_ref()), ("date", date.as_ref())]) {
            text += &format!("  \"{name}\": {},\n", serde_json::to_string(&value).map_err(other)?);
        }
        let lines = entries.iter().map(|entry| Ok(format!("\n    {}", serde_json::to_string(entry).map_err(other)?)));
        let lines = lines.collect::<Result<Vec<String>, TuningError>>()?;
        let end = if lines.is_empty() { "" } else { "\n  " };
        text += &format!("  \"entries\": [{}{end}]\n}}\n", lines.join(","));
        Ok(text)
    }
}

impl TuningEntry {
    /// What an entry is about: there is one of each.
    fn place(&self) -> (&str, &str, &str) {
        (&self.region, &self.family, &self.schedule)
    }
}
