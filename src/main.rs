//! The `hyenac` command.

mod bench;
mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
