//! Family `fft`: real Fourier transforms in f32, alone or as a convolution.
//!
//! Regions: a transform of a scalar form, kept as a spectrum; a scalar form of spectra, transformed back, with an
//! epilogue; and both with the product between them, where the filter's spectrum is read from memory or its
//! transform happens beside the signal's. A real transform of size `n` is a complex one of `n / 2` points, which
//! must have no prime factor above 7. Where transforms fit into shared memory the region is one kernel
//! (`block.rs`), otherwise two to four (`passes.rs`).

mod block;
mod butterfly;
mod code;
mod emit;
mod passes;
mod price;
mod radix;
mod recognise;
#[cfg(test)]
mod simulate;
#[cfg(test)]
mod tests;

use hyenac_ir::Region;
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::error::LowerError;
use crate::family::{Candidate, Family, Lowered, Refusal};
use price::{Price, Traffic};
use radix::Transform;
use recognise::Pattern;

const NAME: &str = "fft";
/// Largest radices worth considering: 16 needs fewer stages, 8 fewer registers.
const RADICES: [usize; 2] = [16, 8];
/// Candidates of each form that are offered; the cheapest by the model.
const OFFERED: usize = 6;
/// Threads of a block at each largest radix, so that no stage spills.
const MOST_THREADS: [(usize, usize); 2] = [(9, 512), (0, 1024)];
/// Smaller transforms never go through device memory twice.
const LEAST_PASSES_POINTS: usize = 4096;

/// The family. See the module's documentation.
pub struct Fft;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Schedule {
    family: String,
    #[serde(flatten)]
    form: Form,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "form", rename_all = "snake_case")]
enum Form {
    /// One kernel; a block holds whole transforms.
    Block { radix: usize, threads: usize, channels: usize, batches: usize },
    /// Columns, rows, columns through device memory.
    Passes { radix: usize, threads: usize, columns: usize, pairs: usize },
}

/// A form with everything derived from it.
enum Layout {
    Block(block::Form),
    Passes(passes::Form),
}

impl Layout {
    fn of(form: &Form, points: usize) -> Option<Layout> {
        match *form {
            Form::Block { radix, threads, channels, batches } => {
                let transform = Transform::new(points, radix)?;
                Some(Layout::Block(block::Form { transform, channels, batches, threads }))
            }
            Form::Passes { radix, threads, columns, pairs } => {
                let (tall, wide) = radix::split(points)?;
                let (column, row) = (Transform::new(tall, radix)?, Transform::new(wide, radix)?);
                Some(Layout::Passes(passes::Form { column, row, columns, pairs, threads }))
            }
        }
    }

    fn lower(&self, pattern: &Pattern) -> Result<Lowered, Refusal> {
        match self {
            Layout::Block(form) => form.lower(pattern),
            Layout::Passes(form) => form.lower(pattern),
        }
    }
}

fn most_threads(radix: usize) -> usize {
    MOST_THREADS.iter().find(|(from, _)| radix >= *from).map_or(512, |&(_, threads)| threads)
}

/// Every layout of one kernel that fits, with its price.
fn block_forms(pattern: &Pattern, traffic: &Traffic, device: &Device) -> Vec<(Price, Form)> {
    let mut forms = Vec::new();
    let mut known: Option<Transform> = None;
    for radix in RADICES {
        let Some(transform) = Transform::new(pattern.points, radix) else { continue };
        if known.as_ref() == Some(&transform) {
            continue;
        }
        known = Some(transform.clone());
        let butterflies = pattern.points.div_ceil(transform.largest_radix());
        let mut form = block::Form { transform, channels: 1, batches: 1, threads: 32 };
        for channels in [1, 2, 4, 8, 16].into_iter().filter(|&channels| channels <= pattern.channels) {
            for batches in [1, 2, 4, 8, 16].into_iter().filter(|&batches| batches <= pattern.batches) {
                (form.channels, form.batches) = (channels, batches);
                let wanted = (form.slots(pattern) * butterflies).next_multiple_of(32);
                // Several transforms in a block are there to keep its threads busy, no more.
                if !form.fits(pattern, device) || form.signals() > 1 && wanted > 2 * most_threads(radix) {
                    continue;
                }
                let full = wanted.min(most_threads(radix));
                for threads in [full, (full / 2).next_multiple_of(32)] {
                    form.threads = threads;
                    let price = price::block(pattern, &form, traffic, device);
                    forms.push((price, Form::Block { radix, threads, channels, batches }));
                    if threads <= 64 {
                        break;
                    }
                }
            }
        }
    }
    forms
}

/// Every layout of several kernels that fits, with its price.
fn passes_forms(pattern: &Pattern, traffic: &Traffic, device: &Device) -> Vec<(Price, Form)> {
    let mut forms = Vec::new();
    let Some((tall, wide)) = radix::split(pattern.points).filter(|_| pattern.points >= LEAST_PASSES_POINTS) else {
        return forms;
    };
    for radix in RADICES {
        let (Some(column), Some(row)) = (Transform::new(tall, radix), Transform::new(wide, radix)) else { continue };
        let mut form = passes::Form { column, row, columns: 8, pairs: 1, threads: 256 };
        for columns in [4, 8, 16] {
            for pairs in [1, 2, 4] {
                for threads in [256, 512] {
                    (form.columns, form.pairs, form.threads) = (columns, pairs, threads);
                    if form.fits(pattern, device) {
                        let price = price::passes(pattern, &form, traffic, device);
                        forms.push((price, Form::Passes { radix, threads, columns, pairs }));
                    }
                }
            }
        }
    }
    forms
}

impl Family for Fft {
    fn name(&self) -> &'static str {
        NAME
    }

    fn candidates(&self, region: &Region, device: &Device) -> Result<Vec<Candidate>, Refusal> {
        let pattern = Pattern::recognise(region.body())?;
        let traffic = Traffic::of(&pattern, device);
        let mut candidates = Vec::new();
        for mut forms in [block_forms(&pattern, &traffic, device), passes_forms(&pattern, &traffic, device)] {
            // Stable, so that equal prices keep their order.
            forms.sort_by(|(a, _), (b, _)| a.time_us.total_cmp(&b.time_us));
            for (price, form) in forms.into_iter().take(OFFERED) {
                let (launches, scratch_bytes) = match form {
                    Form::Block { .. } => (1, 0),
                    Form::Passes { .. } => (passes::launches(&pattern), passes::scratch(&pattern).iter().sum()),
                };
                let schedule = Schedule { family: NAME.to_owned(), form };
                let Ok(schedule) = serde_json::to_string(&schedule) else { continue };
                candidates.push(Candidate {
                    family: NAME,
                    schedule,
                    time_us: price.time_us,
                    floor_us: price.floor_us,
                    launches,
                    scratch_bytes,
                });
            }
        }
        if candidates.is_empty() {
            return Err(Refusal {
                op: "rfft".to_owned(),
                why: format!(
                    "size {} over {} rows fits neither a block of {} bytes nor a split into columns and rows",
                    2 * pattern.points,
                    pattern.rows(),
                    device.shared_bytes_per_block
                ),
                larger: false,
            });
        }
        Ok(candidates)
    }

    fn lower(&self, region: &Region, schedule: &str, device: &Device) -> Result<Lowered, LowerError> {
        let unsuitable =
            |why: String| LowerError::Schedule { family: NAME.to_owned(), schedule: schedule.to_owned(), why };
        let parsed: Schedule = serde_json::from_str(schedule).map_err(|error| unsuitable(error.to_string()))?;
        if parsed.family != NAME {
            return Err(unsuitable("belongs to another family".to_owned()));
        }
        let candidates = self.candidates(region, device).map_err(|refusal| unsuitable(refusal.why))?;
        if !candidates.iter().any(|candidate| candidate.schedule == schedule) {
            return Err(unsuitable("is not offered for this region".to_owned()));
        }
        let pattern = Pattern::recognise(region.body()).map_err(|refusal| unsuitable(refusal.why))?;
        let layout = Layout::of(&parsed.form, pattern.points)
            .ok_or_else(|| unsuitable("its radices do not make up the transform".to_owned()))?;
        layout.lower(&pattern).map_err(|refusal| unsuitable(refusal.why))
    }
}
