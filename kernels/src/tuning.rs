//! Measured times of schedules, which prices prefer to what the models say.
//!
//! An entry is found by the region's text and the schedule, and believed only while that schedule still lowers to the
//! kernels that were measured. So a database never has to be thrown away: what a change of the emitters outdates falls
//! back to the models by itself.

mod database;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::{Arc, LazyLock, OnceLock};

use hyenac_ir::{Graph, Op, Region};
use sha2::{Digest, Sha256};

use crate::device::Device;
use crate::family::{Candidate, Family, Lowered};

pub use database::{TUNING_SCHEMA, TuningDatabase, TuningEntry, TuningError};

/// Hexadecimal digits of a key: 128 bits, far more than the regions there will ever be need.
const HASH_LENGTH: usize = 32;

/// The database that is part of hyenac.
const H200: &str = include_str!("tuning/h200.json");

/// The key of a region: a hash of its body's canonical text, the same in every run and on every machine.
///
/// Neither the schedule nor binding times are part of it, because kernels do not depend on them: frozen and live
/// weights share their measurements.
pub fn region_key(region: &Region) -> String {
    hash([canonical(region.body()).as_bytes()])
}

/// A hash of the kernels of a lowered region and of how they are launched.
pub fn source_hash(lowered: &Lowered) -> String {
    let launches: Vec<String> = lowered
        .kernels
        .iter()
        .map(|kernel| {
            let how = (kernel.grid, kernel.block, kernel.shared_bytes, &kernel.pointers);
            format!("{} {how:?}\n{}", kernel.source.name, kernel.source.source)
        })
        .collect();
    let scratch = format!("{:?}", lowered.scratch);
    hash(launches.iter().map(String::as_bytes).chain([scratch.as_bytes()]))
}

/// The body as text: a line a node, without binding times.
fn canonical(body: &Graph) -> String {
    let mut text = String::new();
    for node in body.nodes() {
        let op = &body.node(node).op;
        text.push_str(op.mnemonic());
        if let Op::Parameter { index, .. } = op {
            // Its other attributes are its type, which follows, and its binding time.
            let _ = write!(text, " {index}");
        } else {
            for (name, attribute) in op.attributes() {
                let _ = write!(text, " {name}={attribute}");
            }
        }
        for operand in body.operands(node) {
            let _ = write!(text, " {operand}");
        }
        for ty in &body.node(node).types {
            let _ = write!(text, " : {ty}");
        }
        text.push('\n');
    }
    for output in body.outputs() {
        let _ = writeln!(text, "return {output}");
    }
    text
}

fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        // Lengths keep apart what concatenation would unite.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let mut text = String::with_capacity(HASH_LENGTH);
    for byte in hash.finalize().iter().take(HASH_LENGTH / 2) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A database made ready for pricing on one device.
#[derive(Debug)]
pub struct Tuning {
    device: Device,
    fingerprint: String,
    regions: HashMap<String, RegionTimes>,
}

/// What is known about one region.
#[derive(Debug, Default)]
pub struct RegionTimes {
    /// By family and schedule.
    schedules: BTreeMap<(String, String), Known>,
}

#[derive(Debug)]
struct Known {
    time_us: f64,
    source: String,
    /// Whether the schedule still gives these sources: lowering is asked once.
    current: OnceLock<bool>,
}

impl Tuning {
    /// Prepares a database for a device.
    ///
    /// # Errors
    /// [`TuningError::Target`] when it is another device's.
    pub fn new(database: &TuningDatabase, device: &Device) -> Result<Tuning, TuningError> {
        database.require_target(&device.name)?;
        let mut regions: HashMap<String, RegionTimes> = HashMap::new();
        for entry in &database.entries {
            let known = Known { time_us: entry.time_us, source: entry.source.clone(), current: OnceLock::new() };
            let place = (entry.family.clone(), entry.schedule.clone());
            regions.entry(entry.region.clone()).or_default().schedules.insert(place, known);
        }
        let fingerprint = hash([database.to_json()?.as_bytes()]);
        Ok(Tuning { device: device.clone(), fingerprint, regions })
    }

    /// The database that hyenac ships for a device; none where its constants are not those of a known device, whose
    /// times would be another's.
    pub fn shipped(device: &Device) -> Option<Arc<Tuning>> {
        // A test parses it; what cannot be parsed holds no times.
        static SHIPPED: LazyLock<Option<Arc<Tuning>>> = LazyLock::new(|| {
            let database = TuningDatabase::parse(H200).ok()?;
            Tuning::new(&database, &Device::h200()).ok().map(Arc::new)
        });
        SHIPPED.as_ref().filter(|tuning| tuning.device == *device).cloned()
    }

    /// A hash of everything in it, part of every cache key.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// What is known about a region on this device.
    pub fn region(&self, region: &Region, device: &Device) -> Option<&RegionTimes> {
        if self.regions.is_empty() || self.device != *device {
            return None;
        }
        self.regions.get(&region_key(region))
    }
}

impl RegionTimes {
    /// The measured time of a candidate, net of an empty graph, microseconds; none when it was not measured, or when
    /// its kernels have changed since.
    pub fn net_us(&self, region: &Region, family: &dyn Family, candidate: &Candidate, device: &Device) -> Option<f64> {
        let place = (candidate.family.to_owned(), candidate.schedule.clone());
        let known = self.schedules.get(&place)?;
        let current = known.current.get_or_init(|| {
            let lowered = family.lower(region, &candidate.schedule, device);
            lowered.is_ok_and(|lowered| source_hash(&lowered) == known.source)
        });
        current.then_some(known.time_us)
    }
}
