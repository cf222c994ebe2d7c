//! What passes must know of kernels, without knowing the kernels crate.

use hyenac_ir::Region;

/// Where a price comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// A roofline with the device's constants.
    Modelled,
    /// A time from the tuning database.
    Measured,
}

/// The best way a target knows to run a region.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Offer {
    /// Time inside a graph, microseconds, boundaries included.
    pub time_us: f64,
    /// Lower bound by bytes and flops, microseconds.
    pub floor_us: f64,
    /// Number of launches.
    pub launches: u32,
    /// Memory needed beside operands and outputs, bytes.
    pub scratch_bytes: u64,
    /// The schedule, in the target's words; the lowering takes it back.
    pub schedule: String,
    /// Where `time_us` comes from.
    pub basis: Basis,
}

/// Why a target cannot run a region.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Refusal {
    /// The op that does not fit.
    pub op: String,
    /// What does not fit, with the limit.
    pub why: String,
    /// Whether a region that contains this one as a fragment could be accepted.
    pub larger: bool,
}

/// A machine that regions can run on. Pure: the same region gets the same answer.
///
/// Law: what `price` accepts, the target's lowering lowers with that schedule.
pub trait Target: Sync {
    /// Device, kernel sources and tuning database; part of every cache key.
    fn fingerprint(&self) -> String;

    /// The best offer for a region, whose parameters are the stored values it loads.
    ///
    /// # Errors
    /// Why there is none.
    fn price(&self, region: &Region) -> Result<Offer, Refusal>;
}
