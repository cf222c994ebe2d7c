//! Timing a block over a suite of shapes, and comparing the times with those of others.

mod compare;
mod measure;
mod plot;
mod read;
mod report;
mod suite;

pub use compare::Peers;
pub use measure::{Clock, Wanted};
pub use plot::svg;
pub use report::{CaseReport, DeviceReport, LaunchReport, Means, Report, SCHEMA, Statistics};
pub use suite::{Case, Suite};
