//! Timing a block over a suite of shapes.

mod measure;
mod report;
mod suite;

pub use measure::{Clock, Wanted};
pub use report::{CaseReport, DeviceReport, LaunchReport, Means, Report, SCHEMA, Statistics};
pub use suite::{Case, Suite};
