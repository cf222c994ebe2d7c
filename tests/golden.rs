//! The whole pipeline on the CPU against float64 outputs of an independent implementation.

use std::path::{Path, PathBuf};

use hyenac::check::{Comparison, IEEE_BAR};
use hyenac::files::{BlockFile, Settings};
use hyenac::target::Machine;
use hyenac::{BlockConfig, CompileOptions, DeviceChoice, Executable, Fuse, Mode, Precision, compile};

fn variants() -> [(&'static str, BlockConfig); 2] {
    [("benchmark", BlockConfig::benchmark()), ("hyenadna", BlockConfig::hyenadna())]
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    files.sort();
    assert_eq!(files.len(), 6, "golden files are missing: {files:?}");
    files
}

/// Compares every expected output with what `run` makes of the file; returns how many there were.
fn for_every_output(mut run: impl FnMut(&mut BlockFile, usize, usize, Vec<f32>) -> Vec<f32>) -> usize {
    let mut compared = 0;
    for path in files() {
        for (variant, preset) in variants() {
            let mut file = BlockFile::open(&path, &Settings::of(preset)).unwrap();
            assert!(file.warnings.is_empty(), "{:?}", file.warnings);
            let x = file.hidden_states().unwrap().unwrap();
            let (batch, seq_len) = (x.batch, x.seq_len);
            // Where the sequence exceeds l_max, only the benchmark variant has a meaning and an output.
            let Some(expected) = file.expected_output(variant, batch, seq_len).unwrap() else { continue };
            let y = run(&mut file, batch, seq_len, x.values);
            let comparison = Comparison::of(&y, &expected);
            assert!(comparison.within(IEEE_BAR), "{} {variant}: {comparison:?}", path.display());
            compared += 1;
        }
    }
    compared
}

#[test]
fn the_cpu_backend_gives_the_golden_outputs() {
    for (mode, fuse) in [(Mode::Live, Fuse::All), (Mode::Frozen, Fuse::All), (Mode::Frozen, Fuse::None)] {
        let compared = for_every_output(|file, batch, seq_len, x| {
            let options = CompileOptions { mode, fuse, machine: Machine::Cpu, ..CompileOptions::new(batch, seq_len) };
            let compilation = compile(file.block.config(), &options).unwrap();
            let mut executable = Executable::build(&compilation, &file.block, DeviceChoice::Cpu).unwrap();
            executable.run(&x).unwrap()
        });
        assert_eq!(compared, 11);
    }
}

#[test]
fn plans_for_a_gpu_in_f32_evaluate_to_the_golden_outputs() {
    for_every_output(|file, batch, seq_len, x| {
        let options = CompileOptions { precision: Precision::Ieee, ..CompileOptions::new(batch, seq_len) };
        let compilation = compile(file.block.config(), &options).unwrap();
        let mut executable = Executable::build(&compilation, &file.block, DeviceChoice::Cpu).unwrap();
        executable.run(&x).unwrap()
    });
}

#[test]
fn the_reference_is_the_golden_output_in_float64() {
    let compared = for_every_output(|file, batch, seq_len, x| {
        let reference = file.block.reference(&x, batch, seq_len).unwrap();
        reference.into_iter().map(|value| value as f32).collect()
    });
    assert_eq!(compared, 11);
}
