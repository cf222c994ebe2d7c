//! A GPU as a target: the cheapest offer of the kernel families.

use hyenac_ir::Region;
use hyenac_kernels::Device;
use hyenac_passes::{Basis, Offer, Refusal, Target};

/// A GPU, described by its constants. Pricing needs no GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuTarget {
    /// The constants that kernel families price by.
    pub device: Device,
}

impl GpuTarget {
    /// The target of a device.
    pub fn new(device: Device) -> GpuTarget {
        GpuTarget { device }
    }
}

impl Target for GpuTarget {
    fn fingerprint(&self) -> String {
        // `Debug` of a struct of names and numbers prints every field, and every double exactly.
        format!("{:?} sources {}", self.device, env!("HYENAC_SOURCE_HASH"))
    }

    fn price(&self, region: &Region) -> Result<Offer, Refusal> {
        match hyenac_kernels::price(region, &self.device) {
            Ok(candidate) => Ok(Offer {
                time_us: candidate.time_us,
                floor_us: candidate.floor_us,
                launches: candidate.launches,
                scratch_bytes: candidate.scratch_bytes,
                schedule: candidate.schedule,
                basis: Basis::Modelled,
            }),
            Err(refusal) => Err(Refusal { op: refusal.op, why: refusal.why, larger: refusal.larger }),
        }
    }
}
