//! What every command that compiles shares: the device, the machine compiled for, the user's rules.

use std::time::Instant;

use hyenac::{
    BlockConfig, Cache, Compilation, CompileOptions, DeviceChoice, Executable, Fuse, HyenaBlock, Machine, Mode,
    Precision, Present, RuleFile, TuningChoice, TuningFile, compile_cached, rules,
};

use super::failure::Failure;
use super::options::{CompileFlags, DeviceName, FuseName, ModeName, ModesName, PrecisionName};
use super::rules::require_sound;

/// A device, and how to compile for it.
pub struct Session {
    present: Present,
    options: CompileOptions,
    cache: Cache,
}

impl Session {
    /// Finds the device and reads the rules. Where `only_compiles`, the device need not be the one that the target is
    /// for, and the target of a machine without a GPU is an H200.
    ///
    /// # Errors
    /// When there is no such device, or a rule file is bad.
    pub fn open(flags: &CompileFlags, only_compiles: bool) -> Result<Session, Failure> {
        let present = Present::find(match flags.device {
            DeviceName::Auto => DeviceChoice::Auto,
            DeviceName::Cuda => DeviceChoice::Cuda,
            DeviceName::Cpu => DeviceChoice::Cpu,
        })?;
        let elsewhere = only_compiles && present.gpu.is_none() && flags.device == DeviceName::Auto;
        let machine = match &flags.target {
            Some(name) => Machine::named(name)?,
            None if elsewhere => Machine::Gpu(hyenac::Device::h200()),
            None => present.machine(),
        };
        let options = CompileOptions {
            precision: match flags.precision {
                PrecisionName::Mixed => Precision::Mixed,
                PrecisionName::Ieee => Precision::Ieee,
            },
            fuse: match flags.fuse {
                FuseName::All => Fuse::All,
                FuseName::None => Fuse::None,
            },
            rules: user_rules(flags)?,
            without: flags.without.clone(),
            tuning: tuning(flags)?,
            machine,
            ..CompileOptions::new(1, 1)
        };
        Ok(Session { present, options, cache: Cache::from_environment() })
    }

    /// The same session with or without fusion.
    pub fn with_fuse(&self, fuse: Fuse) -> Session {
        Session {
            present: self.present.clone(),
            options: CompileOptions { fuse, ..self.options.clone() },
            cache: self.cache.clone(),
        }
    }

    /// The same session for another architecture.
    pub fn with_machine(self, machine: Machine) -> Session {
        Session { options: CompileOptions { machine, ..self.options }, ..self }
    }

    /// The device it runs on.
    pub fn present(&self) -> &Present {
        &self.present
    }

    /// Precision, fusion, target and rules.
    pub fn options(&self) -> &CompileOptions {
        &self.options
    }

    /// Compiles a block for one size, and says how many seconds that took.
    pub fn compile(
        &self,
        config: &BlockConfig,
        batch: usize,
        seq_len: usize,
        mode: Mode,
    ) -> Result<(Compilation, f64), Failure> {
        let start = Instant::now();
        let options = CompileOptions { batch, seq_len, mode, ..self.options.clone() };
        let compilation = compile_cached(config, &options, &self.cache)?;
        Ok((compilation, start.elapsed().as_secs_f64()))
    }

    /// Binds a compilation to weights on the device.
    pub fn bind(&self, compilation: &Compilation, block: &HyenaBlock) -> Result<Executable, Failure> {
        Ok(Executable::build_on(compilation, block, &self.present)?)
    }

    /// The device in one line.
    pub fn device(&self) -> String {
        let Some(gpu) = &self.present.gpu else {
            return format!("CPU, {} threads", rayon::current_num_threads());
        };
        let info = gpu.info();
        let nvrtc = info.nvrtc_version.map_or(String::new(), |(major, minor)| format!(", NVRTC {major}.{minor}"));
        let (major, minor) = info.driver_version;
        format!("{}, {}, driver for CUDA {major}.{minor}{nvrtc}", info.name, info.arch)
    }

    /// Hash of the rules in force.
    pub fn rules_hash(&self) -> Result<String, Failure> {
        Ok(Cache::key(&[rules(&self.options)?.text().as_bytes()]))
    }

    /// The relative L2 error that a result may have.
    pub fn bar(&self) -> f64 {
        match self.options.precision {
            Precision::Mixed => hyenac::check::MIXED_BAR,
            Precision::Ieee => hyenac::check::IEEE_BAR,
        }
    }

    /// `mixed` or `ieee`.
    pub fn precision(&self) -> &'static str {
        match self.options.precision {
            Precision::Mixed => "mixed",
            Precision::Ieee => "ieee",
        }
    }
}

/// The rule files of `--rules`, tested for soundness unless they are trusted.
fn user_rules(flags: &CompileFlags) -> Result<Vec<RuleFile>, Failure> {
    let files = flags.rules.iter().map(|path| RuleFile::read(path)).collect::<Result<Vec<RuleFile>, _>>()?;
    if !flags.trust_rules {
        files.iter().try_for_each(require_sound)?;
    }
    Ok(files)
}

/// The measured times of `--tuning`.
fn tuning(flags: &CompileFlags) -> Result<TuningChoice, Failure> {
    Ok(match &flags.tuning {
        None => TuningChoice::Shipped,
        Some(path) if path.as_os_str() == "none" => TuningChoice::None,
        Some(path) => TuningChoice::File(TuningFile::read(path)?),
    })
}

impl ModeName {
    /// The binding of this name.
    pub fn mode(self) -> Mode {
        match self {
            ModeName::Live => Mode::Live,
            ModeName::Frozen => Mode::Frozen,
        }
    }
}

impl ModesName {
    /// The bindings of this name, in order.
    pub fn modes(self) -> Vec<Mode> {
        match self {
            ModesName::Live => vec![Mode::Live],
            ModesName::Frozen => vec![Mode::Frozen],
            ModesName::Both => vec![Mode::Live, Mode::Frozen],
        }
    }
}

/// As in reports.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Live => "live",
        Mode::Frozen => "frozen",
    }
}
