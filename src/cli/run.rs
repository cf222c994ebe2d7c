//! `hyenac run`: weights and hidden states in, output out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use hyenac::files::{TensorRef, write_tensors};

use super::Outcome;
use super::console::Console;
use super::failure::Failure;
use super::options::{BlockOptions, CompileFlags, ModeName};
use super::session::Session;
use super::summary::{block_field, compile_field, device_field, field, plan_field};
use super::table::micros;
use super::workload::Workload;

const EXAMPLES: &str = "\
Examples:
  hyenac run --weights block.safetensors --input x.safetensors --output y.safetensors
  hyenac run --weights block.safetensors      the file holds hidden_states too; print statistics
  hyenac run --weights block.safetensors --device cpu --variant hyenadna";

/// Run a block on an input.
///
/// The weights file holds the tensors of one HyenaBlock by name; metadata keys layer_norm_eps,
/// exp_mod_shift and l_max are read when present. The input is the F32 tensor hidden_states
/// [B, L, D] of --input or of the weights file. The output file holds output, F32 [B, L, D]; it is
/// written under a temporary name and renamed.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Run {
    /// Safetensors file with the block's weights
    #[arg(long, value_name = "FILE")]
    weights: PathBuf,
    /// Safetensors file with hidden_states [default: those in the weights file]
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Safetensors file to write [default: print statistics only]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How weights are bound
    #[arg(long, value_enum, default_value = "frozen")]
    mode: ModeName,
    #[command(flatten)]
    block: BlockOptions,
    #[command(flatten)]
    compile: CompileFlags,
}

impl Run {
    /// Runs the command.
    pub fn run(self, console: &Console) -> Result<Outcome, Failure> {
        let workload = Workload::read(&self.weights, self.input.as_deref(), &self.block, console)?;
        for finding in workload.not_finite() {
            console.warn(&finding);
        }
        let session = Session::open(&self.compile, false)?;
        let Workload { block, batch, seq_len, hidden_states, .. } = &workload;
        let (compilation, seconds) = session.compile(block.config(), *batch, *seq_len, self.mode.mode())?;
        let mut executable = session.bind(&compilation, block)?;
        let start = Instant::now();
        let output = executable.run(hidden_states)?;
        let elapsed = start.elapsed().as_secs_f64() * 1e6;
        let shape = [*batch, *seq_len, block.config().d_model];
        if let Some(path) = &self.output {
            write_output(path, &shape, &output)?;
        }
        let text = [
            block_field(block, self.block.variant, *batch, *seq_len, &format!("from {}", self.weights.display())),
            device_field(&session),
            compile_field(&session, &compilation, seconds),
            plan_field(&compilation),
            field("time", &format!("{}, copies to and from the device included", micros(elapsed))),
            field("output", &describe(&shape, &output, self.output.as_deref())),
        ];
        console.print(&text.concat())?;
        Ok(Outcome::Success)
    }
}

/// Writes the tensor `output`, whole or not at all.
pub fn write_output(path: &Path, shape: &[usize], values: &[f32]) -> Result<(), Failure> {
    let tensors = BTreeMap::from([("output".to_owned(), TensorRef { shape, values })]);
    Ok(write_tensors(path, &tensors, &BTreeMap::new()).map_err(hyenac::Error::from)?)
}

/// Shape and statistics of an output.
fn describe(shape: &[usize], values: &[f32], path: Option<&Path>) -> String {
    let count = values.len().max(1) as f64;
    let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / count;
    let variance = values.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / count;
    let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let not_finite = values.iter().filter(|value| !value.is_finite()).count();
    let mut text = format!("F32 {shape:?}, mean {mean:.4}, deviation {:.4}, largest {largest:.4}", variance.sqrt());
    if not_finite > 0 {
        text += &format!(", {not_finite} elements NaN or infinite");
    }
    if let Some(path) = path {
        text += &format!(", written to {}", path.display());
    }
    text
}
