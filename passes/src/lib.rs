//! Equality saturation over the HyenaBlock IR: rules, analyses, extraction of regions.

mod target;

pub use target::{Basis, Offer, Refusal, Target};
