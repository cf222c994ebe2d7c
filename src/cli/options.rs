//! Options that several subcommands share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The default sequence length.
pub const SEQ_LEN: usize = 1024;
/// The default batch size.
pub const BATCH: usize = 1;

/// Which block, on which shape.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Block")]
pub struct BlockOptions {
    /// Batch size [default: that of the input, or 1]
    #[arg(long, value_name = "B", value_parser = positive)]
    pub batch: Option<usize>,
    /// Sequence length [default: that of the input, or 1024]
    #[arg(long, value_name = "L", value_parser = positive)]
    pub seq_len: Option<usize>,
    /// Preset of the filter
    #[arg(long, value_enum, default_value = "benchmark")]
    pub variant: VariantName,
    /// Longest sequence of the filter [default: from the weights file, or 32768]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub l_max: Option<usize>,
    /// Epsilon of both layer norms [default: from the weights file, or 1e-5]
    #[arg(long, value_name = "E", value_parser = non_negative)]
    pub eps: Option<f64>,
    /// Shift of the filter's decay [default: from the weights file, or 0.05]
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = finite)]
    pub shift: Option<f64>,
    /// Seed of generated weights and inputs
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// How it is compiled, and for what.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Compilation")]
pub struct CompileFlags {
    /// Where it runs; auto takes the CPU where there is no GPU, and says so
    #[arg(long, value_enum, default_value = "auto")]
    pub device: DeviceName,
    /// Machine that is compiled for: h200, a100, b200 or cpu [default: the one that runs it]
    #[arg(long, value_name = "NAME", value_parser = target)]
    pub target: Option<String>,
    /// Operand and storage formats that rewrites may choose
    #[arg(long, value_enum, default_value = "mixed")]
    pub precision: PrecisionName,
    /// Whether ops are fused, or each op is its own kernel
    #[arg(long, value_enum, default_value = "all")]
    pub fuse: FuseName,
    /// File of rules to use beside the built-in ones; may be repeated
    #[arg(long, value_name = "FILE")]
    pub rules: Vec<PathBuf>,
    /// Leave out the rules whose name matches, e.g. 'fft-*'; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub without: Vec<String>,
    /// Use the rules of --rules without testing them for soundness first
    #[arg(long)]
    pub trust_rules: bool,
    /// Measured times to choose schedules by: a file of `hyenac tune`, or none [default: those that
    /// hyenac has for the target]
    #[arg(long, value_name = "FILE|none")]
    pub tuning: Option<PathBuf>,
}

/// Presets of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VariantName {
    /// Row-major re-read as [D, L], bias in the filter, positions over L
    Benchmark,
    /// True transpose, bias only in the skip term, positions over l_max
    Hyenadna,
}

/// Values of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceName {
    /// A GPU where there is one, else the CPU
    Auto,
    /// A GPU, or exit code 3
    Cuda,
    /// The CPU
    Cpu,
}

/// Values of `--precision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionName {
    /// f16 operands and storage with f32 accumulation; the filter network stays in f32
    Mixed,
    /// f32 everywhere
    Ieee,
}

/// Values of `--fuse`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FuseName {
    /// Whatever the rules and the prices give
    All,
    /// One kernel an op
    None,
}

/// Distributions of generated weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputsName {
    /// 0.02 N(0, 1): the Hyena branch stays below the benchmark's tolerance
    Benchmark,
    /// Magnitudes of a trained block: every weight moves the output
    Trained,
}

/// How weights are bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
    /// Weights are inputs of every call
    Live,
    /// What depends on weights alone is computed once
    Frozen,
}

/// Values of `--mode` where several bindings are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModesName {
    /// Weights are inputs of every call
    Live,
    /// What depends on weights alone is computed once
    Frozen,
    /// One after the other
    Both,
}

/// Parses a count of at least 1.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(value) => Ok(value),
        Err(error) => Err(error.to_string()),
    }
}

fn finite(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number such as 0.05".to_owned())?;
    if value.is_finite() { Ok(value) } else { Err("must be finite".to_owned()) }
}

fn non_negative(text: &str) -> Result<f64, String> {
    let value = finite(text)?;
    if value >= 0.0 { Ok(value) } else { Err("must not be negative".to_owned()) }
}

fn target(text: &str) -> Result<String, String> {
    let known = hyenac::Machine::names();
    if known.contains(&text) { Ok(text.to_owned()) } else { Err(format!("known targets: {}", known.join(", "))) }
}
