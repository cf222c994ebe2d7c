//! A GPU as a target: the cheapest offer of the kernel families.

use std::sync::Arc;

use hyenac_ir::Region;
use hyenac_kernels::{Device, Tuning};
use hyenac_passes::{Basis, Offer, Refusal, Target};

/// A GPU, described by its constants and by what was measured on it. Pricing needs no GPU.
#[derive(Clone, Debug)]
pub struct GpuTarget {
    /// The constants that kernel families price by.
    pub device: Device,
    /// Measured times, which are preferred to the families' models.
    pub tuning: Option<Arc<Tuning>>,
}

impl GpuTarget {
    /// The target of a device, without any measured times.
    pub fn new(device: Device) -> GpuTarget {
        GpuTarget { device, tuning: None }
    }
}

impl Target for GpuTarget {
    fn fingerprint(&self) -> String {
        let tuning = self.tuning.as_ref().map_or("none", |tuning| tuning.fingerprint());
        // `Debug` of a struct of names and numbers prints every field, and every double exactly.
        format!("{:?} sources {} tuning {tuning}", self.device, env!("HYENAC_SOURCE_HASH"))
    }

    fn price(&self, region: &Region) -> Result<Offer, Refusal> {
        match hyenac_kernels::price(region, &self.device, self.tuning.as_deref()) {
            Ok(hyenac_kernels::Price { candidate, measured }) => Ok(Offer {
                time_us: candidate.time_us,
                floor_us: candidate.floor_us,
                launches: candidate.launches,
                scratch_bytes: candidate.scratch_bytes,
                schedule: candidate.schedule,
                basis: if measured { Basis::Measured } else { Basis::Modelled },
            }),
            Err(refusal) => Err(Refusal { op: refusal.op, why: refusal.why, larger: refusal.larger }),
        }
    }
}
