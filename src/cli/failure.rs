//! Why a command did not run to its end, and what the user is told.

use std::io::{self, Write};
use std::process::ExitCode;

use miette::{GraphicalTheme, MietteHandlerOpts};

/// Why a command stopped.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The library says what is wrong.
    #[error(transparent)]
    Hyenac(#[from] hyenac::Error),
    /// Standard output was closed or is full.
    #[error("cannot write to standard output: {0}")]
    Stdout(#[from] io::Error),
}

impl Failure {
    /// A contradiction between flags, or between a flag and the data.
    pub fn usage(what: impl Into<String>, why: impl Into<String>) -> Failure {
        Failure::Hyenac(hyenac::Error::Usage { what: what.into(), why: why.into() })
    }

    /// Prints the error and gives the exit code.
    pub fn report(self) -> ExitCode {
        match self {
            Failure::Hyenac(error) => {
                let code = error.exit_code();
                let _ = writeln!(io::stderr().lock(), "{:?}", miette::Report::new(error));
                ExitCode::from(code)
            }
            // The reader has seen enough, as in `hyenac explain | head`.
            Failure::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            failure @ Failure::Stdout(_) => {
                let _ = writeln!(io::stderr().lock(), "error: {failure}");
                ExitCode::from(2)
            }
        }
    }
}

/// Errors keep each message on one line where stderr is no terminal, so that logs can be searched.
pub fn install_report_handler() {
    use std::io::IsTerminal;
    let terminal = io::stderr().is_terminal();
    // Fails only when a handler is installed already, which then serves as well.
    let _ = miette::set_hook(Box::new(move |_| {
        let options = MietteHandlerOpts::new().terminal_links(false).wrap_lines(terminal);
        Box::new(if terminal {
            options.build()
        } else {
            options.color(false).unicode(false).graphical_theme(GraphicalTheme::none()).build()
        })
    }));
}
