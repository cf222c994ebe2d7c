//! `hyenac demo`: the whole way once, on a seeded block.

use clap::Args;
use hyenac::check::Comparison;

use super::Outcome;
use super::console::Console;
use super::failure::Failure;
use super::options::{BlockOptions, CompileFlags, InputsName, ModeName};
use super::session::Session;
use super::summary::{block_field, compile_field, device_field, error_field, field, plan_field, verdict};
use super::table::micros;
use super::workload::Workload;
use crate::bench::{Clock, Statistics, Wanted};

const EXAMPLES: &str = "\
Examples:
  hyenac demo                                 1 x 1024, on the GPU if there is one
  hyenac demo --batch 4 --seq-len 2048
  hyenac demo --device cpu --variant hyenadna --precision ieee";

/// Compile a seeded block, run it, and compare the result with the float64 interpreter.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Demo {
    /// Distribution of the weights
    #[arg(long, value_enum, default_value = "trained")]
    inputs: InputsName,
    /// How weights are bound
    #[arg(long, value_enum, default_value = "frozen")]
    mode: ModeName,
    #[command(flatten)]
    block: BlockOptions,
    #[command(flatten)]
    compile: CompileFlags,
}

/// Calls that are timed.
const CALLS: usize = 5;

impl Demo {
    /// What plain `hyenac` does.
    pub fn default_arguments() -> Demo {
        /// A command line without arguments.
        #[derive(clap::Parser)]
        struct Bare {
            #[command(flatten)]
            demo: Demo,
        }
        <Bare as clap::Parser>::parse_from(["hyenac"]).demo
    }

    /// Runs the command.
    pub fn run(self, console: &Console) -> Result<Outcome, Failure> {
        let session = Session::open(&self.compile, false)?;
        let mut progress = console.progress("demo", 5);
        progress.message("generating weights and input");
        let workload = Workload::generated(self.inputs, &self.block)?;
        let Workload { block, batch, seq_len, hidden_states, .. } = &workload;
        progress.step();
        progress.message("compiling");
        let (compilation, seconds) = session.compile(block.config(), *batch, *seq_len, self.mode.mode())?;
        progress.step();
        progress.message("binding weights");
        let mut executable = session.bind(&compilation, block)?;
        progress.step();
        progress.message("running");
        let mut clock = Clock::new(session.present())?;
        let measured = clock.measure(&mut executable, hidden_states, Wanted { repetitions: CALLS, launches: false })?;
        progress.step();
        progress.message("evaluating the reference in float64");
        let reference = block.reference(hidden_states, *batch, *seq_len)?;
        progress.step();
        drop(progress);

        let comparison = Comparison::of(&measured.output, &reference);
        let passed = comparison.within(session.bar());
        let origin = format!("{} weights, seed {}", self.inputs.adjective(), self.block.seed);
        let text = [
            block_field(block, self.block.variant, *batch, *seq_len, &origin),
            device_field(&session),
            compile_field(&session, &compilation, seconds),
            plan_field(&compilation),
            field("time", &format!("{} a call, median of {CALLS}", micros(Statistics::of(&measured.times).median))),
            error_field(&comparison, "float64", session.bar()),
            verdict(passed).to_owned(),
        ];
        console.print(&text.concat())?;
        Ok(Outcome::of(passed))
    }
}
