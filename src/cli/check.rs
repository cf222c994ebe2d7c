//! `hyenac check`: run, then compare with the float64 interpreter.

use std::path::PathBuf;

use clap::Args;
use hyenac::check::Comparison;
use hyenac::{Backend, Mode};

use super::Outcome;
use super::console::Console;
use super::failure::Failure;
use super::options::{BlockOptions, CompileFlags, InputsName, ModesName};
use super::replays::{Replays, replay};
use super::run::write_output;
use super::session::{Session, mode_name};
use super::suite_check::{SuiteBlock, check_suite};
use super::summary::{block_field, compile_field, device_field, field, plan_field, verdict};
use super::table::{Align, table};
use super::workload::Workload;
use crate::bench::Suite;

const EXAMPLES: &str = "\
Examples:
  hyenac check --weights block.safetensors    live and frozen, against float64
  hyenac check --seq-len 4096 --precision ieee
  hyenac check --suite                        every shape, preset, distribution, fused and not
  hyenac check --suite 1x64,2x100 --device cpu
  hyenac check --suite 1x131 --replays 10000  and replays with changing pointers";

/// Run a block and compare the result with the float64 interpreter.
///
/// Without --weights, a seeded block is checked. Where the weights file holds output.<variant>, the
/// result is compared with that too. The bar is a relative L2 error of 1e-3 (mixed) or 5e-5 (ieee);
/// exit code 1 says that a comparison failed or that a tensor holds NaN or infinity.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Check {
    /// Safetensors file with the block's weights [default: a seeded block]
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Safetensors file with hidden_states [default: those in the weights file]
    #[arg(long, value_name = "FILE", requires = "weights")]
    input: Option<PathBuf>,
    /// Safetensors file to write the output to
    #[arg(long, value_name = "FILE", conflicts_with = "suite")]
    output: Option<PathBuf>,
    /// Check both presets, both distributions, both modes, fused and unfused, over sol051, long or BxL,BxL
    #[arg(long, value_name = "SUITE", num_args = 0..=1, default_missing_value = "sol051",
          conflicts_with_all = ["weights", "batch", "seq_len", "variant", "fuse", "mode", "inputs"])]
    suite: Option<Suite>,
    /// Replay N times with changing pointers; every result must equal the first, bit for bit, and
    /// the device's free memory must not change
    #[arg(long, value_name = "N", default_value_t = 0)]
    replays: usize,
    /// Distribution of a seeded block's weights
    #[arg(long, value_enum, default_value = "trained", conflicts_with = "weights")]
    inputs: InputsName,
    /// How weights are bound
    #[arg(long, value_enum, default_value = "both")]
    mode: ModesName,
    #[command(flatten)]
    block: BlockOptions,
    #[command(flatten)]
    compile: CompileFlags,
}

impl Check {
    /// Runs the command.
    pub fn run(self, console: &Console) -> Result<Outcome, Failure> {
        if let Some(suite) = &self.suite {
            let session = Session::open(&self.compile, false)?;
            let block = SuiteBlock {
                l_max: self.block.l_max,
                eps: self.block.eps,
                shift: self.block.shift,
                seed: self.block.seed,
            };
            return check_suite(&session, suite, &block, self.replays, console);
        }
        let (workload, origin) = match &self.weights {
            Some(path) => {
                let workload = Workload::read(path, self.input.as_deref(), &self.block, console)?;
                (workload, format!("from {}", path.display()))
            }
            None => {
                let origin = format!("{} weights, seed {}", self.inputs.adjective(), self.block.seed);
                (Workload::generated(self.inputs, &self.block)?, origin)
            }
        };
        self.check(&workload, &origin, console)
    }

    fn check(&self, workload: &Workload, origin: &str, console: &Console) -> Result<Outcome, Failure> {
        let Workload { block, batch, seq_len, hidden_states, expected } = workload;
        let session = Session::open(&self.compile, false)?;
        let modes = self.mode.modes();
        let mut progress = console.progress("check", modes.len() * (1 + self.replays) + 1);
        let mut text = block_field(block, self.block.variant, *batch, *seq_len, origin) + &device_field(&session);

        progress.message("evaluating the reference in float64");
        let reference = block.reference(hidden_states, *batch, *seq_len)?;
        progress.step();
        let mut comparisons = Vec::new();
        let mut replays = Vec::new();
        for mode in modes {
            progress.message(format!("{} weights", mode_name(mode)));
            let (compilation, seconds) = session.compile(block.config(), *batch, *seq_len, mode)?;
            let mut executable = session.bind(&compilation, block)?;
            let output = executable.run(hidden_states)?;
            progress.step();
            text += &compile_field(&session, &compilation, seconds);
            text += &plan_field(&compilation);
            if let Backend::Cuda(executable) = executable.backend() {
                executable.verify_against_plan().map_err(hyenac::Error::from)?;
                text += &field("graph", &format!("{} nodes, as the plan says", executable.node_count()));
            }
            comparisons.push((mode, "float64".to_owned(), Comparison::of(&output, &reference)));
            if let Some(expected) = expected {
                let name = format!("output.{}", self.block.variant.name());
                comparisons.push((mode, name, Comparison::of(&output, expected)));
            }
            if self.replays > 0 {
                let result = replay(&mut executable, hidden_states, self.replays, &mut progress)?;
                text += &field("replays", &result.describe());
                replays.push(result);
            }
            if let Some(path) = &self.output {
                write_output(path, &[*batch, *seq_len, block.config().d_model], &output)?;
            }
        }
        drop(progress);

        let findings = workload.not_finite();
        for finding in &findings {
            text += &field("input", &format!("{finding} FAILED"));
        }
        let bar = session.bar();
        text += &format!("\n{}", comparisons_table(&comparisons, bar));
        let passed = findings.is_empty()
            && comparisons.iter().all(|(_, _, comparison)| comparison.within(bar))
            && replays.iter().all(Replays::passed);
        text += verdict(passed);
        console.print(&text)?;
        Ok(Outcome::of(passed))
    }
}

fn comparisons_table(comparisons: &[(Mode, String, Comparison)], bar: f64) -> String {
    let header = [
        ("against", Align::Left),
        ("weights", Align::Left),
        ("rel L2", Align::Right),
        ("bar", Align::Right),
        ("max abs", Align::Right),
        ("within 2.4e-4 + 1e-5 |y|", Align::Right),
        ("", Align::Left),
    ];
    let rows = comparisons.iter().map(|(mode, against, comparison)| {
        vec![
            against.clone(),
            mode_name(*mode).to_owned(),
            format!("{:.1e}", comparison.rel_l2_err),
            format!("{bar:.0e}"),
            format!("{:.1e}", comparison.max_abs_err),
            format!("{:.2}%", comparison.match_ratio * 100.0),
            verdict(comparison.within(bar)).to_owned(),
        ]
    });
    table(&header, rows)
}
