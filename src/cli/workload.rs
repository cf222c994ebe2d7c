//! The block and the input that a command works on: read from files, or generated.

use std::path::Path;

use hyenac::BlockConfig;
use hyenac::HyenaBlock;
use hyenac::check::first_not_finite;
use hyenac::files::{BlockFile, HiddenStates, Settings, read_hidden_states};
use hyenac::inputs::{Distribution, Inputs, generate};
use hyenac::runtime::cpu::require_memory;

use super::console::Console;
use super::failure::Failure;
use super::options::{BATCH, BlockOptions, InputsName, SEQ_LEN, VariantName};

/// A block, an input for it, and what the file says the output should be.
pub struct Workload {
    /// The block.
    pub block: HyenaBlock,
    /// Number of sequences.
    pub batch: usize,
    /// Tokens of each.
    pub seq_len: usize,
    /// The input, `[batch, seq_len, d_model]`.
    pub hidden_states: Vec<f32>,
    /// `output.<variant>` of the weights file, where it has one.
    pub expected: Option<Vec<f64>>,
}

impl Workload {
    /// A seeded block and input.
    pub fn generated(inputs: InputsName, options: &BlockOptions) -> Result<Workload, Failure> {
        let (batch, seq_len) = options.shape();
        Workload::seeded(inputs, &options.config(), batch, seq_len, options.seed)
    }

    /// A block and an input of this configuration and shape.
    pub fn seeded(
        inputs: InputsName,
        config: &BlockConfig,
        batch: usize,
        seq_len: usize,
        seed: u64,
    ) -> Result<Workload, Failure> {
        let elements = batch.checked_mul(seq_len).and_then(|tokens| tokens.checked_mul(config.d_model));
        let bytes = elements.and_then(|elements| elements.checked_mul(size_of::<f32>())).unwrap_or(usize::MAX);
        require_memory("the input", bytes as u64)?;
        let Inputs { block, hidden_states } = generate(inputs.distribution(), config, batch, seq_len, seed)?;
        Ok(Workload { block, batch, seq_len, hidden_states, expected: None })
    }

    /// A block and an input from files. What the user should know is said on the way.
    pub fn read(
        weights: &Path,
        input: Option<&Path>,
        options: &BlockOptions,
        console: &Console,
    ) -> Result<Workload, Failure> {
        let settings = Settings {
            preset: options.variant.preset(),
            layer_norm_eps: options.eps,
            shift: options.shift,
            l_max: options.l_max,
        };
        let mut file = BlockFile::open(weights, &settings)?;
        for warning in &file.warnings {
            console.warn(warning);
        }
        let d_model = file.block.config().d_model;
        let own = input.is_none();
        let HiddenStates { batch, seq_len, values } = match input {
            Some(path) => read_hidden_states(path, d_model)?,
            None => file.hidden_states()?.ok_or_else(|| {
                let why = format!("{} holds no hidden_states; give a file that does with --input", weights.display());
                Failure::usage("input", why)
            })?,
        };
        for (flag, given, found) in [("--batch", options.batch, batch), ("--seq-len", options.seq_len, seq_len)] {
            if let Some(given) = given.filter(|&given| given != found) {
                let why = format!("is {given}, but hidden_states has the shape [{batch}, {seq_len}, {d_model}]");
                return Err(Failure::usage(flag, why));
            }
        }
        // Flags that override the file's settings change what the output should be.
        let overridden = options.eps.is_some() || options.shift.is_some() || options.l_max.is_some();
        let expected =
            if own && !overridden { file.expected_output(options.variant.name(), batch, seq_len)? } else { None };
        Ok(Workload { block: file.block, batch, seq_len, hidden_states: values, expected })
    }

    /// Every tensor with an element that is NaN or infinite, one line each.
    pub fn not_finite(&self) -> Vec<String> {
        let shape = [self.batch, self.seq_len, self.block.config().d_model];
        let input = first_not_finite(&shape, &self.hidden_states).map(|found| ("hidden_states".to_owned(), found));
        let found = self.block.not_finite().into_iter().chain(input);
        found.map(|(name, found)| format!("{name} holds {} at {:?}", found.value, found.index)).collect()
    }
}

impl BlockOptions {
    /// Batch size and sequence length of generated inputs.
    pub fn shape(&self) -> (usize, usize) {
        (self.batch.unwrap_or(BATCH), self.seq_len.unwrap_or(SEQ_LEN))
    }

    /// The preset with the values of the flags.
    pub fn config(&self) -> BlockConfig {
        let preset = self.variant.preset();
        BlockConfig {
            l_max: self.l_max.unwrap_or(preset.l_max),
            layer_norm_eps: self.eps.unwrap_or(preset.layer_norm_eps),
            shift: self.shift.unwrap_or(preset.shift),
            ..preset
        }
    }
}

impl VariantName {
    /// The preset of this name.
    pub fn preset(self) -> BlockConfig {
        match self {
            VariantName::Benchmark => BlockConfig::benchmark(),
            VariantName::Hyenadna => BlockConfig::hyenadna(),
        }
    }

    /// As in tensor names and reports.
    pub fn name(self) -> &'static str {
        match self {
            VariantName::Benchmark => "benchmark",
            VariantName::Hyenadna => "hyenadna",
        }
    }
}

impl InputsName {
    /// The distribution of this name.
    pub fn distribution(self) -> Distribution {
        match self {
            InputsName::Benchmark => Distribution::Benchmark,
            InputsName::Trained => Distribution::Trained,
        }
    }

    /// As in reports.
    pub fn name(self) -> &'static str {
        match self {
            InputsName::Benchmark => "benchmark",
            InputsName::Trained => "trained",
        }
    }

    /// As in sentences.
    pub fn adjective(self) -> &'static str {
        match self {
            InputsName::Benchmark => "the benchmark's",
            InputsName::Trained => "trained-like",
        }
    }
}
