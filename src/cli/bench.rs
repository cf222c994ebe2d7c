//! `hyenac bench`: times over a suite of shapes, and the errors of what was timed.

use std::path::{Path, PathBuf};

use clap::Args;
use hyenac::check::Comparison;
use hyenac::{BlockConfig, Mode};
use hyenac_kernels::Launch;

use super::Outcome;
use super::console::Console;
use super::failure::Failure;
use super::files::{write_bytes, write_json};
use super::options::{CompileFlags, InputsName, ModesName, VariantName};
use super::session::{Session, mode_name};
use super::summary::{convolution, device_field, field, floor_us, verdict};
use super::workload::Workload;
use crate::bench::{
    Case, CaseReport, Clock, DeviceReport, LaunchReport, Means, Peers, Report, SCHEMA, Statistics, Suite, Wanted, svg,
};

const EXAMPLES: &str = "\
Examples:
  hyenac bench                                the sixteen shapes of sol051, live and frozen
  hyenac bench --suite long --mode frozen --no-check
  hyenac bench --suite 1x256,1x4096 --json bench.json
  hyenac bench --suite 1x1024 -v              and the time of each launch, and what overlap saves
  hyenac bench --suite 1x1024 --fuse none     what fusion buys
  hyenac bench --compare peers.json --plot bench.svg
  hyenac bench --from bench.json --compare peers.json     nothing is measured again

bench/peers/torch_peers.py measures PyTorch, eager and compiled, and writes such a peers.json.";

/// Time a block over a suite of shapes, and check what was timed.
///
/// On a GPU: for each repetition the L2 is flushed, then one graph launch is timed between two
/// events; the median is reported. On the CPU the wall clock around one call is taken instead.
/// Outputs are poisoned before they are timed, and what was timed is compared with float64.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Bench {
    /// sol051 (16 shapes), long (8192 to a million tokens), or a list BxL,BxL
    #[arg(long, value_name = "SUITE", default_value = "sol051")]
    suite: Suite,
    /// How weights are bound
    #[arg(long, value_enum, default_value = "both")]
    mode: ModesName,
    /// Distribution of the weights
    #[arg(long, value_enum, default_value = "trained")]
    inputs: InputsName,
    /// Preset of the filter
    #[arg(long, value_enum, default_value = "benchmark")]
    variant: VariantName,
    /// Longest sequence of the filter [default: 32768]
    #[arg(long, value_name = "N", value_parser = super::options::positive)]
    l_max: Option<usize>,
    /// Repetitions that the median is taken over; at least 50 on a GPU
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    repetitions: u32,
    /// Leave out the comparison with float64, which is slow for long sequences
    #[arg(long)]
    no_check: bool,
    /// File to write the measurements to
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measurements to compare with: a file of --json, or of bench/peers; may be repeated
    #[arg(long, value_name = "FILE")]
    compare: Vec<PathBuf>,
    /// SVG file to draw the times, those compared with and the floors to
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Measure nothing: take the measurements from this file of --json
    #[arg(long, value_name = "FILE", conflicts_with_all = MEASURES)]
    from: Option<PathBuf>,
    /// Seed of weights and inputs
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    compile: CompileFlags,
}

/// Flags that say what to measure and how, which is settled where measurements come from a file.
const MEASURES: [&str; 16] = [
    "suite",
    "mode",
    "inputs",
    "variant",
    "l_max",
    "repetitions",
    "no_check",
    "seed",
    "device",
    "target",
    "precision",
    "fuse",
    "rules",
    "without",
    "trust_rules",
    "tuning",
];
/// The fewest repetitions on a GPU.
const FEWEST: usize = 50;
/// Repetitions of a launch timed alone, or of the empty graph.
const SINGLE_REPETITIONS: usize = 50;

/// Measurements, and what else the report says of them.
struct Measured {
    report: Report,
    device: String,
    /// The relative L2 error that results may have, where it was looked at.
    bar: Option<f64>,
    /// What ended the measurements early. What was measured before is worth its table and its files.
    failure: Option<Failure>,
}

impl Bench {
    /// Runs the command.
    pub fn run(self, console: &Console) -> Result<Outcome, Failure> {
        let peers = Peers::read(&self.compare)?;
        let mut measured = match &self.from {
            Some(path) => stored(path)?,
            None => self.measure(&peers, console)?,
        };
        let report = &mut measured.report;
        if !peers.is_empty() {
            peers.differences(report).iter().for_each(|difference| console.warn(difference));
            report.comparisons = peers.compare(report)?;
        }
        // NaN is no error that passes.
        let within = |error: f64| measured.bar.is_none_or(|bar| error <= bar);
        let passed = measured.report.cases.iter().all(|case| case.rel_l2_err.is_none_or(within));
        print(&measured, passed, console)?;
        if let Some(path) = &self.json {
            write_json(path, &measured.report)?;
        }
        if let Some(path) = self.plot.as_ref().filter(|_| !measured.report.cases.is_empty()) {
            let picture = svg(&measured.report).map_err(|error| Failure::usage("--plot", error.to_string()))?;
            write_bytes(path, picture.as_bytes())?;
        }
        measured.failure.map_or(Ok(Outcome::of(passed)), Err)
    }

    /// Times every case, as far as that goes.
    fn measure(&self, peers: &Peers, console: &Console) -> Result<Measured, Failure> {
        peers.require(&self.suite.cases)?;
        let session = Session::open(&self.compile, false)?;
        let repetitions = self.repetitions as usize;
        if session.present().gpu.is_some() && repetitions < FEWEST {
            return Err(Failure::usage("--repetitions", format!("is {repetitions}, a GPU needs at least {FEWEST}")));
        }
        let mut clock = Clock::new(session.present()).map_err(Failure::from)?;
        let modes = self.mode.modes();
        let mut progress = console.progress("bench", self.suite.cases.len() * modes.len());
        let wanted = Wanted { repetitions, launches: console.verbose() };
        let mut cases = Vec::new();
        let mut failure = None;
        'cases: for &case in &self.suite.cases {
            progress.message(format!("{case}: input and reference"));
            let prepared = match self.prepare(case) {
                Ok(prepared) => prepared,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            };
            for &mode in &modes {
                progress.message(format!("{case}: {}", mode_name(mode)));
                match time(&session, &mut clock, &prepared.0, prepared.1.as_deref(), mode, wanted) {
                    Ok(report) => cases.push(report),
                    Err(error) => {
                        failure = Some(error);
                        break 'cases;
                    }
                }
                progress.step();
            }
        }
        drop(progress);
        let report = Report {
            schema: SCHEMA,
            software: None,
            device: device_report(&session),
            target: session.options().machine.name().to_owned(),
            rules_hash: Some(session.rules_hash()?),
            protocol: clock.protocol(repetitions),
            precision: session.precision().to_owned(),
            variant: self.variant.name().to_owned(),
            inputs: self.inputs.name().to_owned(),
            mean_us: Means::of(&cases),
            cases,
            comparisons: Vec::new(),
        };
        Ok(Measured { report, device: device_field(&session), bar: (!self.no_check).then(|| session.bar()), failure })
    }

    /// A case's block and input, and its output in float64 unless that is not wanted.
    fn prepare(&self, case: Case) -> Result<(Workload, Option<Vec<f64>>), Failure> {
        let workload = Workload::seeded(self.inputs, &self.config(), case.batch, case.seq_len, self.seed)?;
        let reference = if self.no_check {
            None
        } else {
            Some(workload.block.reference(&workload.hidden_states, case.batch, case.seq_len)?)
        };
        Ok((workload, reference))
    }

    fn config(&self) -> BlockConfig {
        let preset = self.variant.preset();
        BlockConfig { l_max: self.l_max.unwrap_or(preset.l_max), ..preset }
    }
}

/// The measurements of a file.
fn stored(path: &Path) -> Result<Measured, Failure> {
    let report = Report::read(path)?;
    let DeviceReport { name, sm, driver, nvrtc } = &report.device;
    let mut device = name.clone();
    for (what, value) in [("", sm), ("driver for CUDA ", driver), ("NVRTC ", nvrtc)] {
        if let Some(value) = value {
            device += &format!(", {what}{value}");
        }
    }
    let device = field("device", &device) + &field("from", &path.display().to_string());
    let checked = report.cases.iter().any(|case| case.rel_l2_err.is_some());
    let bar = match report.precision.as_str() {
        "mixed" => Some(hyenac::check::MIXED_BAR),
        "ieee" => Some(hyenac::check::IEEE_BAR),
        _ => None,
    };
    Ok(Measured { device, bar: bar.filter(|_| checked), report, failure: None })
}

fn print(measured: &Measured, passed: bool, console: &Console) -> Result<(), Failure> {
    let Measured { report, device, bar, .. } = measured;
    let how = match report.protocol.clock.as_str() {
        "wall_clock" => "wall clock around one call; hot is their mean",
        _ => "one graph launch between two events, the L2 flushed before; hot is back to back",
    };
    let mut text = device.clone();
    let software = report.software.as_ref().map_or(String::new(), |software| format!("{software}, "));
    text += &field(
        "bench",
        &format!(
            "{software}{} preset, {} inputs, {} precision, for {}",
            report.variant, report.inputs, report.precision, report.target
        ),
    );
    text += &field("times", &format!("microseconds, median of {}: {how}", report.protocol.repetitions));
    if let Some(empty) = report.cases.iter().find_map(|case| case.empty_graph_us) {
        text += &field("", &format!("a graph with one empty kernel takes {empty:.1} in the same measurement"));
    }
    text += &format!("\n{}", report.table());
    if let Some(launches) = report.launches_table().filter(|_| console.verbose()) {
        text += &launches;
    }
    if let Some(comparisons) = report.comparison_tables() {
        text += &format!("{comparisons}\n");
    }
    if let Some(bar) = bar {
        text += &format!("{}: relative L2 error against float64 at most {bar:.0e}", verdict(passed));
    }
    Ok(console.print(&text)?)
}

fn time(
    session: &Session,
    clock: &mut Clock,
    workload: &Workload,
    reference: Option<&[f64]>,
    mode: Mode,
    wanted: Wanted,
) -> Result<CaseReport, Failure> {
    let Workload { block, batch, seq_len, hidden_states, .. } = workload;
    let (compilation, _) = session.compile(block.config(), *batch, *seq_len, mode)?;
    let mut executable = session.bind(&compilation, block)?;
    let empty_graph_us = clock.empty_graph_us(SINGLE_REPETITIONS)?;
    let measured = clock.measure(&mut executable, hidden_states, wanted)?;
    let statistics = Statistics::of(&measured.times);
    let comparison = reference.map(|reference| Comparison::of(&measured.output, reference));
    let launches = measured.launches.zip(compilation.plan.as_ref()).map(|(times, plan)| {
        let one = |(launch, median_us): (&Launch, f64)| LaunchReport {
            family: launch.family.clone(),
            computes: launch.computes.clone(),
            predicted_us: launch.predicted_us,
            median_us,
        };
        plan.launches.iter().zip(times).map(one).collect()
    });
    Ok(CaseReport {
        batch: *batch,
        seq_len: *seq_len,
        mode: mode_name(mode).to_owned(),
        median_us: statistics.median,
        min_us: statistics.min,
        p95_us: statistics.p95,
        hot_us: measured.hot_us,
        empty_graph_us,
        floor_us: Some(floor_us(&compilation)),
        kernels: Some(super::summary::launches(&compilation)),
        conv: convolution(&compilation),
        max_abs_err: comparison.as_ref().map(|comparison| comparison.max_abs_err),
        rel_l2_err: comparison.as_ref().map(|comparison| comparison.rel_l2_err),
        match_ratio: comparison.as_ref().map(|comparison| comparison.match_ratio),
        launches,
    })
}

/// The device as files describe it.
pub fn device_report(session: &Session) -> DeviceReport {
    match &session.present().gpu {
        None => DeviceReport { name: session.device(), sm: None, driver: None, nvrtc: None },
        Some(gpu) => {
            let info = gpu.info();
            let (major, minor) = info.compute_capability;
            DeviceReport {
                name: info.name.clone(),
                sm: Some(format!("sm_{major}{minor}")),
                driver: Some(format!("{}.{}", info.driver_version.0, info.driver_version.1)),
                nvrtc: info.nvrtc_version.map(|(major, minor)| format!("{major}.{minor}")),
            }
        }
    }
}
