//! The command line: one file a subcommand.

mod bench;
mod check;
mod console;
mod demo;
mod emit;
mod explain;
mod failure;
mod files;
mod options;
mod replays;
mod rules;
mod run;
mod session;
mod suite_check;
mod summary;
mod table;
mod tune;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use console::Console;

pub use table::{Align, WIDTH, short_micros, table};

/// How a command that ran to its end went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything asked for was done, and every check passed.
    Success,
    /// A check failed; the report says which.
    CheckFailed,
}

impl Outcome {
    /// The outcome of a check.
    pub fn of(passed: bool) -> Outcome {
        if passed { Outcome::Success } else { Outcome::CheckFailed }
    }

    fn exit_code(self) -> u8 {
        match self {
            Outcome::Success => 0,
            Outcome::CheckFailed => 1,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  hyenac                                      compile and run a seeded block, and check it
  hyenac run --weights block.safetensors --input x.safetensors --output y.safetensors
  hyenac check --weights block.safetensors    compare with the float64 interpreter
  hyenac explain --seq-len 32768              which rules fired, what was chosen and why

Exit codes: 0 success, 1 a check failed, 2 bad input or usage, 3 no usable device.";

/// Compiler and CUDA-graph runtime for the forward pass of a HyenaBlock.
///
/// Without a subcommand, runs `demo`.
#[derive(Parser)]
#[command(name = "hyenac", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    /// Print results and errors only
    #[arg(short, long, global = true, display_order = 900)]
    quiet: bool,
    /// Say more: details of the command, and log lines on stderr (-vv for debug)
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet", display_order = 901)]
    verbose: u8,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Compile, run and check a seeded block
    Demo(demo::Demo),
    /// Run a block on an input
    Run(run::Run),
    /// Run a block and compare it with the float64 interpreter
    Check(check::Check),
    /// Time a block over a suite of shapes, and check what was timed
    Bench(bench::Bench),
    /// Measure schedules on a GPU, for prices to rest on
    Tune(tune::Tune),
    /// Show what the compiler did: stages, rules, choices, plan, memory
    Explain(explain::Explain),
    /// Write kernel sources, plan and compiled kernels to a folder
    Emit(emit::Emit),
    /// List rewrite rules, or test them for soundness
    Rules(rules::Rules),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help that nobody reads to its end is not an error.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    failure::install_report_handler();
    log_to_stderr(cli.quiet, cli.verbose);
    let console = Console::new(cli.quiet, cli.verbose);
    let command = cli.command.unwrap_or_else(|| Command::Demo(demo::Demo::default_arguments()));
    let result = match command {
        Command::Demo(command) => command.run(&console),
        Command::Run(command) => command.run(&console),
        Command::Check(command) => command.run(&console),
        Command::Bench(command) => command.run(&console),
        Command::Tune(command) => command.run(&console),
        Command::Explain(command) => command.run(&console),
        Command::Emit(command) => command.run(&console),
        Command::Rules(command) => command.run(&console),
    };
    match result {
        Ok(outcome) => ExitCode::from(outcome.exit_code()),
        Err(failure) => failure.report(),
    }
}

/// Log lines of the library: warnings always, more with `-v`; `HYENAC_LOG` overrides with a filter of its own.
fn log_to_stderr(quiet: bool, verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let level = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "hyenac=info,hyenac_passes=info,hyenac_kernels=info,warn",
        (false, _) => "hyenac=debug,hyenac_passes=debug,hyenac_kernels=debug,warn",
    };
    let filter = EnvFilter::try_from_env("HYENAC_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .finish();
    // Fails only when a subscriber is installed already, which then serves as well.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        super::Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_shows_examples() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("Examples:"), "{} shows no examples", command.get_name());
            command.get_subcommands().for_each(check);
        }
        check(&super::Cli::command());
    }
}
