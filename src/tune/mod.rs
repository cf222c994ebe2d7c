//! Measuring the schedules of regions: what there is to measure, in which order, how, and what is said about it.

mod collect;
mod date;
mod measure;
mod queue;
mod report;

pub use collect::{Regions, Tuned};
pub use date::today;
pub use measure::Bench;
pub use queue::{queue, work_off};
pub use report::{Summary, entries, summary, tables};
