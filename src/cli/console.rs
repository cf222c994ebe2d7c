//! What reaches the terminal: results on stdout; notes, warnings and progress on stderr.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A plain progress line is written no more often than this.
const PLAIN_LINE_EVERY: Duration = Duration::from_secs(5);

/// Standard output and standard error of one command.
pub struct Console {
    quiet: bool,
    verbose: u8,
    bars: bool,
}

impl Console {
    /// `quiet` silences everything but results and errors.
    pub fn new(quiet: bool, verbose: u8) -> Console {
        Console { quiet, verbose, bars: io::stderr().is_terminal() }
    }

    /// Whether `-v` was given.
    pub fn verbose(&self) -> bool {
        self.verbose > 0
    }

    /// Writes a result. A closed pipe is an error of kind `BrokenPipe`, which ends the program quietly.
    pub fn print(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        if !text.ends_with('\n') {
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// Writes a remark to stderr. A closed stderr is nobody's loss.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr().lock(), "{text}");
        }
    }

    /// Writes a warning to stderr.
    pub fn warn(&self, text: &str) {
        self.note(&format!("warning: {text}"));
    }

    /// Starts a piece of work of `steps` steps: a bar on a terminal, now and then a line elsewhere.
    pub fn progress(&self, what: &str, steps: usize) -> Progress {
        let bar = (self.bars && !self.quiet).then(|| {
            let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            bar.set_style(style.progress_chars("=> "));
            bar.set_prefix(what.to_owned());
            bar
        });
        Progress { bar, plain: !self.quiet, what: what.to_owned(), steps, done: 0, last: Instant::now() }
    }
}

/// Progress of one piece of work. The bar vanishes when this is dropped.
pub struct Progress {
    bar: Option<ProgressBar>,
    plain: bool,
    what: String,
    steps: usize,
    done: usize,
    last: Instant,
}

impl Progress {
    /// Says what the current step is about.
    pub fn message(&self, message: impl Into<String>) {
        if let Some(bar) = &self.bar {
            bar.set_message(message.into());
        }
    }

    /// One step is done.
    pub fn step(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        } else if self.plain && self.done < self.steps && self.last.elapsed() >= PLAIN_LINE_EVERY {
            self.last = Instant::now();
            let _ = writeln!(io::stderr().lock(), "{}: {} of {}", self.what, self.done, self.steps);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
