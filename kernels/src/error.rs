//! Errors of lowering.

/// Why a graph of regions has no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LowerError {
    /// No family accepts a region.
    #[error("no kernel family accepts {region}: {why}")]
    Refused {
        /// The region's body in one line.
        region: String,
        /// The refusals.
        why: String,
    },
    /// A schedule that its family did not offer.
    #[error("schedule `{schedule}` is not one of family {family}: {why}")]
    Schedule {
        /// Name of the family.
        family: String,
        /// The schedule's text.
        schedule: String,
        /// What is wrong with it.
        why: String,
    },
    /// A grid or a buffer exceeds what a device can address.
    #[error("{what} needs {needed}, the limit is {limit}")]
    Limit {
        /// What is too large.
        what: String,
        /// What it needs.
        needed: u64,
        /// What there is.
        limit: u64,
    },
    /// A broken graph.
    #[error(transparent)]
    Ir(#[from] hyenac_ir::IrError),
}
