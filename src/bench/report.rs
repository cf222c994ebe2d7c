//! What a benchmark yields: the JSON that `--json` writes, and the table.
//!
//! What is measured of other software for the same block has the same format, with what only hyenac knows left null.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::compare::PeerReport;
use super::suite::Case;
use crate::cli::{Align, short_micros, table};

/// Version of the JSON schema.
pub const SCHEMA: u32 = 1;

/// A whole benchmark; one file of hyenac's is one precision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Name and version of what was measured, where that is not hyenac.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub software: Option<String>,
    /// What it ran on.
    pub device: DeviceReport,
    /// What it was compiled for.
    pub target: String,
    /// Hash of the rules that were in force; none of other software.
    pub rules_hash: Option<String>,
    /// How times were taken.
    pub protocol: Protocol,
    /// `mixed` or `ieee`; of other software, the precisions that its modes name.
    pub precision: String,
    /// `benchmark` or `hyenadna`.
    pub variant: String,
    /// Distribution of weights and inputs, `benchmark` or `trained`.
    pub inputs: String,
    /// One entry for each shape and mode.
    pub cases: Vec<CaseReport>,
    /// Means of `median_us` over the cases.
    pub mean_us: Means,
    /// How the same cases went elsewhere, with `--compare`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub comparisons: Vec<PeerReport>,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Name of the GPU or of the CPU backend.
    pub name: String,
    /// Compute capability, for example `sm_90`; none on the CPU.
    pub sm: Option<String>,
    /// CUDA version of the driver; none on the CPU.
    pub driver: Option<String>,
    /// Version of NVRTC; none on the CPU.
    pub nvrtc: Option<String>,
}

/// How times were taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Protocol {
    /// `cuda_events` around one graph launch, or `wall_clock` around one call.
    pub clock: String,
    /// Repetitions that the median is taken over.
    pub repetitions: usize,
    /// Repetitions before those.
    pub warmup: usize,
    /// Bytes overwritten before each repetition, so that the L2 is cold; 0 on the CPU.
    pub flushed_bytes: u64,
}

/// One shape in one mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    /// Batch size.
    pub batch: usize,
    /// Sequence length.
    pub seq_len: usize,
    /// `live` or `frozen`; of other software, which way of using it.
    pub mode: String,
    /// Median time of one call.
    pub median_us: f64,
    /// Shortest time of one call.
    pub min_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// Mean over back-to-back calls, without flushing.
    pub hot_us: f64,
    /// The same measurement of a graph with one empty kernel; none on the CPU.
    pub empty_graph_us: Option<f64>,
    /// Lower bound by bytes and flops on the target; none of other software.
    pub floor_us: Option<f64>,
    /// Kernel launches of a call; none of other software.
    pub kernels: Option<usize>,
    /// Convolution that was chosen, `direct` or `fft`.
    pub conv: String,
    /// Largest absolute error of the timed output against float64; none with `--no-check`.
    pub max_abs_err: Option<f64>,
    /// Relative L2 error of the timed output.
    pub rel_l2_err: Option<f64>,
    /// Fraction of elements with |error| <= 2.4e-4 + 1e-5 |y|.
    pub match_ratio: Option<f64>,
    /// Times of single launches, with `-v`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub launches: Option<Vec<LaunchReport>>,
}

/// One launch of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchReport {
    /// Kernel family.
    pub family: String,
    /// What it computes, in one line.
    pub computes: String,
    /// What the price model expects.
    pub predicted_us: f64,
    /// What was measured, the launch alone.
    pub median_us: f64,
}

impl CaseReport {
    /// Its shape.
    pub fn case(&self) -> Case {
        Case { batch: self.batch, seq_len: self.seq_len }
    }
}

/// Means over the cases of each mode; none for a mode that did not run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Means {
    /// Live weights.
    #[serde(default)]
    pub live: Option<f64>,
    /// Frozen weights.
    #[serde(default)]
    pub frozen: Option<f64>,
    /// The modes of other software.
    #[serde(flatten)]
    pub others: BTreeMap<String, f64>,
}

impl Means {
    /// The means of these cases.
    pub fn of(cases: &[CaseReport]) -> Means {
        let mean = |mode: &str| {
            let times: Vec<f64> = cases.iter().filter(|case| case.mode == mode).map(|case| case.median_us).collect();
            (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
        };
        Means { live: mean("live"), frozen: mean("frozen"), others: BTreeMap::new() }
    }
}

/// Statistics of a sample of times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// The middle, or the mean of the two in the middle.
    pub median: f64,
    /// The shortest.
    pub min: f64,
    /// The smallest time that at least 95 percent of the sample do not exceed.
    pub p95: f64,
}

impl Statistics {
    /// Statistics of a sample; all zero when it is empty.
    pub fn of(sample: &[f64]) -> Statistics {
        let mut sorted = sample.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
        let count = sorted.len();
        Statistics {
            median: (at(count.saturating_sub(1) / 2) + at(count / 2)) / 2.0,
            min: at(0),
            p95: at((count * 95).div_ceil(100).saturating_sub(1)),
        }
    }
}

impl Report {
    /// The modes that there are, in the order of their first cases.
    pub fn modes(&self) -> Vec<&str> {
        distinct(self.cases.iter().map(|case| case.mode.as_str()))
    }

    /// The shapes that there are, in order.
    pub fn shapes(&self) -> Vec<Case> {
        distinct(self.cases.iter().map(CaseReport::case))
    }

    /// A shape in a mode.
    pub fn find(&self, case: Case, mode: &str) -> Option<&CaseReport> {
        self.cases.iter().find(|found| found.case() == case && found.mode == mode)
    }

    /// The table of all cases, and the means.
    pub fn table(&self) -> String {
        let header = [
            ("B x L", Align::Left),
            ("mode", Align::Left),
            ("median", Align::Right),
            ("min", Align::Right),
            ("p95", Align::Right),
            ("hot", Align::Right),
            ("floor", Align::Right),
            ("kernels", Align::Right),
            ("conv", Align::Left),
            ("rel L2", Align::Right),
            ("match", Align::Right),
        ];
        let rows = self.cases.iter().map(|case| {
            vec![
                format!("{}x{}", case.batch, case.seq_len),
                case.mode.clone(),
                short_micros(case.median_us),
                short_micros(case.min_us),
                short_micros(case.p95_us),
                short_micros(case.hot_us),
                case.floor_us.map_or("-".to_owned(), short_micros),
                case.kernels.map_or("-".to_owned(), |kernels| kernels.to_string()),
                case.conv.clone(),
                case.rel_l2_err.map_or("-".to_owned(), |error| format!("{error:.1e}")),
                case.match_ratio.map_or("-".to_owned(), |ratio| format!("{:.2}%", ratio * 100.0)),
            ]
        });
        let mut text = table(&header, rows);
        let own = [("live", self.mean_us.live), ("frozen", self.mean_us.frozen)];
        let own = own.into_iter().filter_map(|(mode, mean)| Some((mode, mean?)));
        let others = self.mean_us.others.iter().map(|(mode, &mean)| (mode.as_str(), mean));
        for (mode, mean) in own.chain(others) {
            text += &format!("mean {mode}: {mean:.1} us\n");
        }
        text
    }

    /// The table of single launches, where they were timed.
    pub fn launches_table(&self) -> Option<String> {
        let mut text = String::new();
        for case in &self.cases {
            let Some(launches) = &case.launches else { continue };
            text += &format!("\n{}x{} {}\n", case.batch, case.seq_len, case.mode);
            let header = [
                ("family", Align::Left),
                ("predicted us", Align::Right),
                ("measured us", Align::Right),
                ("computes", Align::Left),
            ];
            text += &table(
                &header,
                launches.iter().map(|launch| {
                    vec![
                        launch.family.clone(),
                        format!("{:.1}", launch.predicted_us),
                        format!("{:.1}", launch.median_us),
                        launch.computes.clone(),
                    ]
                }),
            );
            text += &overlap(case, launches);
        }
        (!text.is_empty()).then_some(text)
    }
}

/// How the launches of a case alone compare with the case: below zero is what running at the same time saves, above
/// zero what the gaps between them cost. The empty graph's time is in every measurement and is taken off each.
fn overlap(case: &CaseReport, launches: &[LaunchReport]) -> String {
    let protocol = case.empty_graph_us.unwrap_or(0.0);
    let alone: f64 = launches.iter().map(|launch| launch.median_us - protocol).sum();
    let whole = case.median_us - protocol;
    format!(
        "{} launches, {alone:.1} us one by one, {whole:.1} us in the graph ({:+.1}), both net of {protocol:.1} us for an \
         empty graph\n",
        launches.len(),
        whole - alone
    )
}

/// The values without those that came before.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    values.for_each(|value| {
        if !found.contains(&value) {
            found.push(value);
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_the_definition() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(Statistics::of(&hundred), Statistics { median: 50.5, min: 1.0, p95: 95.0 });
        assert_eq!(Statistics::of(&[3.0, 1.0, 2.0]), Statistics { median: 2.0, min: 1.0, p95: 3.0 });
        assert_eq!(Statistics::of(&[7.0]), Statistics { median: 7.0, min: 7.0, p95: 7.0 });
        assert_eq!(Statistics::of(&[]), Statistics { median: 0.0, min: 0.0, p95: 0.0 });
    }

    fn case(mode: &str, median_us: f64) -> CaseReport {
        CaseReport {
            batch: 32,
            seq_len: 1_000_000,
            mode: mode.to_owned(),
            median_us,
            min_us: 99_999_999.9,
            p95_us: 99_999_999.9,
            hot_us: 99_999.9,
            empty_graph_us: Some(3.0),
            floor_us: Some(999_999.9),
            kernels: Some(12),
            conv: "direct".to_owned(),
            max_abs_err: Some(1e-4),
            rel_l2_err: Some(4.5e-4),
            match_ratio: Some(0.9999),
            launches: None,
        }
    }

    #[test]
    fn means_are_per_mode() {
        let cases = [case("live", 10.0), case("live", 30.0), case("frozen", 7.0)];
        assert_eq!(Means::of(&cases), Means { live: Some(20.0), frozen: Some(7.0), others: BTreeMap::new() });
        assert_eq!(Means::of(&cases[..2]).frozen, None);
    }

    #[test]
    fn launches_are_summed_net_of_the_empty_graph() {
        let launch = |median_us| LaunchReport {
            family: "map".to_owned(),
            computes: "add".to_owned(),
            predicted_us: 1.0,
            median_us,
        };
        let text = overlap(&case("live", 12.0), &[launch(8.0), launch(10.5)]);
        assert_eq!(
            text,
            "2 launches, 12.5 us one by one, 9.0 us in the graph (-3.5), both net of 3.0 us for an empty graph\n"
        );
    }

    #[test]
    fn the_widest_case_fits_the_table() {
        let cases = vec![case("live", 99_999_999.9), case("frozen", 999_999.9)];
        let report = Report {
            schema: SCHEMA,
            software: None,
            device: DeviceReport { name: "cpu".to_owned(), sm: None, driver: None, nvrtc: None },
            target: "cpu".to_owned(),
            rules_hash: Some(String::new()),
            protocol: Protocol { clock: "wall_clock".to_owned(), repetitions: 50, warmup: 5, flushed_bytes: 0 },
            precision: "mixed".to_owned(),
            variant: "benchmark".to_owned(),
            inputs: "trained".to_owned(),
            mean_us: Means::of(&cases),
            cases,
            comparisons: Vec::new(),
        };
        let text = report.table();
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert_eq!(text.lines().count(), 5, "a row wraps:\n{text}");
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
        assert!(!json.contains("\"launches\""), "only -v adds launches");
    }
}
