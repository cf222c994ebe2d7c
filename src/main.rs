//! The `hyenac` command.

mod bench;
mod cli;
mod tune;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
