//! `hyenac tune`: measures the schedules of the regions of compiled blocks.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hyenac::{BlockConfig, Cache, Device, Error, Machine, TuningFile};
use hyenac_kernels::{TUNING_SCHEMA, Tuning, TuningDatabase};

use super::Outcome;
use super::bench::device_report;
use super::console::Console;
use super::failure::Failure;
use super::files::write_bytes;
use super::options::{CompileFlags, DeviceName, ModesName, VariantName};
use super::session::{Session, mode_name};
use super::summary::field;
use crate::bench::Suite;
use crate::tune::{self, Bench, Regions, Summary, entries, summary, tables, today, work_off};

const EXAMPLES: &str = "\
Examples:
  hyenac tune --out tuning.json               the regions of the sixteen shapes of sol051
  hyenac tune --suite 1x1024 --mode frozen --all
  hyenac tune --out tuning.json --missing --budget 500    what the file lacks, for 500 seconds
  hyenac tune --precision ieee --tuning none > ieee.json
  hyenac bench --tuning tuning.json           with the schedules that were fastest

Times change what is chosen: run it again with --tuning FILE --out FILE --missing until nothing is left.";

/// Measure schedules of the regions of compiled blocks, and write a database that prices prefer to the models.
///
/// Each schedule is timed alone, as bench does it: the L2 is flushed, then one graph launch is timed
/// between two events, and what an empty graph takes is subtracted. Needs a GPU.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Tune {
    /// sol051 (16 shapes), long (8192 to a million tokens), or a list BxL,BxL
    #[arg(long, value_name = "SUITE", default_value = "sol051")]
    suite: Suite,
    /// How weights are bound
    #[arg(long, value_enum, default_value = "both")]
    mode: ModesName,
    /// Preset of the filter
    #[arg(long, value_enum, default_value = "benchmark")]
    variant: VariantName,
    /// Longest sequence of the filter [default: 32768]
    #[arg(long, value_name = "N", value_parser = super::options::positive)]
    l_max: Option<usize>,
    /// Seconds that measuring may take; the schedules that the models like least are left out
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    budget: u64,
    /// Measure every schedule of a region, not just the six that the models like best, and the
    /// best of each family
    #[arg(long)]
    all: bool,
    /// Leave out what the file of --out has a time for already
    #[arg(long, requires = "out")]
    missing: bool,
    /// Database to write; times of one that exists are kept or replaced [default: to standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Repetitions that the median is taken over
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    repetitions: u32,
    #[command(flatten)]
    compile: CompileFlags,
}

/// Candidates of a region that are measured unless all are.
const MOST: usize = 6;

impl Tune {
    /// Runs the command.
    pub fn run(self, console: &Console) -> Result<Outcome, Failure> {
        // What is wrong with a file is said before minutes are spent.
        let older = self.older()?;
        let session = self.session()?;
        let (Machine::Gpu(device), Some(gpu)) = (&session.options().machine, &session.present().gpu) else {
            return Err(Failure::usage("--target", "is the CPU, which has no schedules to measure"));
        };
        let known = match &older {
            Some((name, database)) => {
                let wrong = |source| Error::Tuning { name: name.clone(), source };
                let tuning = Tuning::new(database, device).map_err(wrong)?;
                self.missing.then_some(tuning)
            }
            None => None,
        };
        let regions = self.collect(&session, device, console)?;
        let mut outcomes = regions.outcomes(known.as_ref(), device);
        let jobs = tune::queue(&outcomes).len();

        // Kernels are compiled ahead of their turn, which needs a place to keep them.
        let temporary = tempfile::tempdir().map_err(|error| Failure::usage("a temporary folder", error.to_string()))?;
        let cache = match Cache::from_environment() {
            cache if cache.folder().is_some() => cache,
            _ => Cache::at(temporary.path()),
        };
        let mut progress = console.progress("tune", jobs);
        let report = |tuned: &tune::Tuned| {
            progress.message(tuned.region.describe());
            progress.step();
        };
        let mut bench = Bench::new(&regions, device, gpu, self.repetitions as usize, cache, report)?;
        work_off(&mut outcomes, Duration::from_secs(self.budget), &mut bench);
        drop(bench);
        drop(progress);

        let text = self.header(&session, &regions, &summary(&outcomes, device)) + &tables(&regions, &outcomes, device);
        let described = device_report(&session);
        let newer = TuningDatabase {
            schema: TUNING_SCHEMA,
            target: device.name.clone(),
            device: described.name,
            driver: described.driver,
            nvrtc: described.nvrtc,
            date: Some(today()),
            entries: entries(&regions, &outcomes, device),
        };
        self.write(older, newer, &text, console)?;
        Ok(Outcome::Success)
    }

    /// The database that is added to, and its name.
    fn older(&self) -> Result<Option<(String, TuningDatabase)>, Failure> {
        match self.out.as_ref().filter(|path| path.exists()) {
            Some(path) => {
                let file = TuningFile::read(path)?;
                let database = file.parse()?;
                Ok(Some((file.name, database)))
            }
            None => Ok(None),
        }
    }

    /// A session on a GPU, compiling for that GPU.
    fn session(&self) -> Result<Session, Failure> {
        let device = match self.compile.device {
            DeviceName::Cpu => {
                return Err(Failure::usage("--device cpu", "schedules are those of kernels, which only a GPU can run"));
            }
            DeviceName::Auto | DeviceName::Cuda => DeviceName::Cuda,
        };
        let session = Session::open(&CompileFlags { device, ..self.compile.clone() }, false)?;
        let (wanted, there) = (&session.options().machine, session.present().machine());
        if *wanted != there {
            let why = format!("is {}, but times are those of the device present, {}", wanted.name(), there.name());
            return Err(Failure::usage("--target", why));
        }
        Ok(session)
    }

    /// Compiles every case, and collects its regions.
    fn collect(&self, session: &Session, device: &Device, console: &Console) -> Result<Regions, Failure> {
        let preset = self.variant.preset();
        let config = BlockConfig { l_max: self.l_max.unwrap_or(preset.l_max), ..preset };
        let modes = self.mode.modes();
        let mut progress = console.progress("compile", self.suite.cases.len() * modes.len());
        let mut regions = Regions::default();
        for case in &self.suite.cases {
            for &mode in &modes {
                let name = format!("{case} {}", mode_name(mode));
                progress.message(name.clone());
                let (compilation, _) = session.compile(&config, case.batch, case.seq_len, mode)?;
                regions.add(&compilation.optimized, device, &name).map_err(Error::Run)?;
                progress.step();
            }
        }
        if !self.all {
            regions.limit(MOST);
        }
        Ok(regions)
    }

    fn header(&self, session: &Session, regions: &Regions, summary: &Summary) -> String {
        let Summary { timed, known, failed, left, judged, misjudged, lost_us } = summary;
        let mut text = field("device", &session.device());
        let (precision, variant) = (session.precision(), self.variant.name());
        text += &field("tune", &format!("{} regions, {precision} precision, {variant} preset", regions.list.len()));
        let how = "one graph launch between two events, the L2 flushed before, net of an empty graph, and with the \
                   boundary between kernels that predictions contain";
        text += &field("times", &format!("microseconds, median of {}: {how}", self.repetitions));
        let counts = format!(
            "{} schedules, {known} known before, {failed} failed, {left} not measured within {} s",
            timed - known,
            self.budget
        );
        text += &field("measured", &counts);
        let verdict = if *judged == 0 {
            "no region has times to judge it by".to_owned()
        } else {
            let right = judged - misjudged;
            format!("the fastest, to 2 percent, in {right} of {judged} regions; loses {lost_us:.1} us in the others")
        };
        text + &field("model", &verdict)
    }

    /// Writes the database to its file and the report to stdout; without a file the database takes stdout.
    fn write(
        &self,
        older: Option<(String, TuningDatabase)>,
        newer: TuningDatabase,
        text: &str,
        console: &Console,
    ) -> Result<(), Failure> {
        let (name, database) = match older {
            Some((name, older)) => {
                if older.device != newer.device {
                    console.warn(&format!(
                        "{name} was measured on {}; what was not measured again now keeps those times",
                        older.device
                    ));
                }
                (name, older.merge(newer))
            }
            // Merged too, for the order.
            None => ("the database".to_owned(), TuningDatabase { entries: Vec::new(), ..newer.clone() }.merge(newer)),
        };
        let json = database.and_then(|database| database.to_json());
        let json = json.map_err(|source| Error::Tuning { name, source })?;
        match &self.out {
            Some(path) => {
                write_bytes(path, json.as_bytes())?;
                console.print(text)?;
            }
            None => {
                console.note(text);
                console.print(&json)?;
            }
        }
        Ok(())
    }
}
