//! The machines that a block is compiled for, as the extraction sees them.

mod cpu;
mod gpu;

use hyenac_kernels::Device;
use hyenac_passes::Target;
use serde::{Deserialize, Serialize};

use crate::compile::TuningChoice;
use crate::error::Error;

pub use cpu::CpuTarget;
pub use gpu::GpuTarget;

/// What a block is compiled for. It need not be the machine that compiles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Machine {
    /// The CPU backend.
    Cpu,
    /// CUDA kernels for a GPU with these constants.
    Gpu(Device),
}

impl Machine {
    /// The names that [`Machine::named`] knows.
    pub fn names() -> Vec<&'static str> {
        Device::NAMES.into_iter().chain([CpuTarget::NAME]).collect()
    }

    /// The machine of this name.
    ///
    /// # Errors
    /// [`Error::UnknownTarget`] lists the names there are.
    pub fn named(name: &str) -> Result<Machine, Error> {
        if name == CpuTarget::NAME {
            return Ok(Machine::Cpu);
        }
        let unknown = || Error::UnknownTarget { name: name.to_owned(), known: Machine::names().join(", ") };
        Device::named(name).map(Machine::Gpu).ok_or_else(unknown)
    }

    /// The name that `--target` takes.
    pub fn name(&self) -> &str {
        match self {
            Machine::Cpu => CpuTarget::NAME,
            Machine::Gpu(device) => &device.name,
        }
    }

    /// The target that prices regions, by these measured times where it has kernels to measure.
    ///
    /// # Errors
    /// When the times are in a file that is no tuning database, or one of another device.
    pub fn target(&self, tuning: &TuningChoice) -> Result<Box<dyn Target>, Error> {
        Ok(match self {
            Machine::Cpu => Box::new(CpuTarget),
            Machine::Gpu(device) => {
                Box::new(GpuTarget { tuning: tuning.load(device)?, ..GpuTarget::new(device.clone()) })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::TuningFile;

    #[test]
    fn every_name_is_known_and_other_names_are_not() {
        for name in Machine::names() {
            assert_eq!(Machine::named(name).unwrap().name(), name);
        }
        let Err(error @ Error::UnknownTarget { .. }) = Machine::named("v100") else { panic!("v100 is known") };
        assert_eq!(error.exit_code(), 2);
        let help = miette::Diagnostic::help(&error).unwrap().to_string();
        assert!(help.contains("h200") && help.contains("cpu"), "{help}");
    }

    #[test]
    fn measured_times_are_part_of_the_fingerprint() {
        let machine = Machine::named("h200").unwrap();
        let print = |tuning: &TuningChoice| machine.target(tuning).unwrap().fingerprint();
        assert_ne!(print(&TuningChoice::Shipped), print(&TuningChoice::None));
        let text = r#"{"schema": 1, "target": "h200", "device": "x", "driver": null, "nvrtc": null, "date": null,
                       "entries": []}"#;
        let file = TuningFile { name: "t.json".to_owned(), text: text.to_owned() };
        let file = TuningChoice::File(file);
        assert_ne!(print(&file), print(&TuningChoice::None));
        assert_ne!(print(&file), print(&TuningChoice::Shipped));
        let Err(error) = Machine::named("a100").unwrap().target(&file) else { panic!("times of another device") };
        assert_eq!(error.to_string(), "t.json: was measured for target `h200`, but the target is `a100`");
        assert_eq!(error.exit_code(), 2);
        assert!(Machine::Cpu.target(&file).is_ok());
    }

    #[test]
    fn fingerprints_tell_machines_apart() {
        let print = |name| Machine::named(name).unwrap().target(&TuningChoice::Shipped).unwrap().fingerprint();
        let prints: std::collections::BTreeSet<String> = Machine::names().into_iter().map(print).collect();
        assert_eq!(prints.len(), Machine::names().len());
    }
}
