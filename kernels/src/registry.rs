//! The families, and the choice among them for one region.

use hyenac_ir::Region;

use crate::device::Device;
use crate::error::LowerError;
use crate::family::{Candidate, Family, Lowered, Refusal};
use crate::tuning::Tuning;

/// Every kernel family. Order breaks ties between equal prices.
pub fn families() -> &'static [&'static dyn Family] {
    &[
        &crate::map::Map,
        &crate::network::Network,
        &crate::chain::ChainFamily,
        &crate::layer_norm::LayerNorm,
        &crate::gemm::Gemm,
        &crate::warpgroup::panel::Panel,
        &crate::warpgroup::tail::TailFamily,
        &crate::direct_convolution::DirectConvolution,
        &crate::warpgroup::toeplitz::ToeplitzFamily,
        &crate::fft::Fft,
    ]
}

/// The cheapest way to run a region, and where its time comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// The candidate, its time the measured one where there is one.
    pub candidate: Candidate,
    /// Whether its schedule was chosen by times that were measured; otherwise by the model.
    pub measured: bool,
}

/// The cheapest candidate for a region over all families by their models, with another schedule where that was measured
/// to be faster.
///
/// Its time stays the models' whatever the schedule was chosen by: regions compete with one another in extraction, and
/// one that was measured would lose to those that were not wherever models are too hopeful.
///
/// # Errors
/// When no family accepts it: the refusal of the family that came closest, and whether any of them could
/// accept a larger region.
pub fn price(region: &Region, device: &Device, tuning: Option<&Tuning>) -> Result<Price, Refusal> {
    let times = tuning.and_then(|tuning| tuning.region(region, device));
    let mut best: Option<(Candidate, Option<f64>)> = None;
    let mut fastest: Option<(Candidate, f64)> = None;
    let mut refusals = Vec::new();
    for family in families() {
        match family.candidates(region, device) {
            Ok(candidates) => {
                for candidate in candidates {
                    // What was measured is net of an empty graph, and with it of the boundary.
                    let net_us = times.and_then(|times| times.net_us(region, *family, &candidate, device));
                    let measured_us = net_us.map(|net_us| net_us + device.launch_us);
                    if let Some(measured_us) = measured_us
                        && fastest.as_ref().is_none_or(|(_, fastest_us)| measured_us < *fastest_us)
                    {
                        fastest = Some((candidate.clone(), measured_us));
                    }
                    if best.as_ref().is_none_or(|(best, _)| candidate.time_us < best.time_us) {
                        best = Some((candidate, measured_us));
                    }
                }
            }
            Err(refusal) => refusals.push((family.name(), refusal)),
        }
    }
    let best = best.map(|(best, measured_us)| match fastest {
        Some((fastest, fastest_us)) if fastest_us <= measured_us.unwrap_or(best.time_us) => {
            Price { candidate: Candidate { time_us: best.time_us, ..fastest }, measured: true }
        }
        _ => Price { candidate: best, measured: false },
    });
    best.ok_or_else(|| {
        let larger = refusals.iter().any(|(_, refusal)| refusal.larger);
        let why: Vec<String> =
            refusals.iter().map(|(name, refusal)| format!("{name}: {} {}", refusal.op, refusal.why)).collect();
        Refusal { op: region.describe(), why: why.join("; "), larger }
    })
}

/// The kernels of a scheduled region; an unscheduled one is priced first. Times are the models', whatever the schedule
/// was chosen by.
///
/// # Errors
/// When no family accepts the region or the schedule is not one of its family's.
pub fn lower_region(region: &Region, device: &Device) -> Result<(Candidate, Lowered), LowerError> {
    let refused = |refusal: Refusal| LowerError::Refused { region: region.describe(), why: refusal.why };
    let unsuitable = |family: &str, why: &str| LowerError::Schedule {
        family: family.to_owned(),
        schedule: region.schedule.clone(),
        why: why.to_owned(),
    };
    let candidate = if region.schedule.is_empty() {
        price(region, device, None).map_err(refused)?.candidate
    } else {
        let schedule: serde_json::Value =
            serde_json::from_str(&region.schedule).map_err(|error| unsuitable("unknown", &error.to_string()))?;
        let name = schedule.get("family").and_then(serde_json::Value::as_str).unwrap_or_default();
        let family = families()
            .iter()
            .find(|family| family.name() == name)
            .ok_or_else(|| unsuitable(name, "there is no such family"))?;
        family
            .candidates(region, device)
            .map_err(refused)?
            .into_iter()
            .find(|candidate| candidate.schedule == region.schedule)
            .ok_or_else(|| unsuitable(name, "the family does not offer it for this region"))?
    };
    let family = families()
        .iter()
        .find(|family| family.name() == candidate.family)
        .ok_or_else(|| unsuitable(candidate.family, "there is no such family"))?;
    let lowered = family.lower(region, &candidate.schedule, device)?;
    Ok((candidate, lowered))
}
