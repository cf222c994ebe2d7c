//! A block in a file: weights, sizes read off their shapes, and what may come with them.

use std::collections::BTreeMap;
use std::path::Path;

use hyenac_ir::BlockConfig;
use hyenac_ir::block::INPUT_NAME;
use safetensors::Dtype;

use super::error::FileError;
use super::read::{TensorFile, nearest};
use crate::block::HyenaBlock;
use crate::error::Error;

/// What is not read off the shapes of the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The switches of the filter, and the values that neither a flag nor the file's metadata gives.
    pub preset: BlockConfig,
    /// Overrides the file's `layer_norm_eps`.
    pub layer_norm_eps: Option<f64>,
    /// Overrides the file's `exp_mod_shift`.
    pub shift: Option<f64>,
    /// Overrides the file's `l_max`.
    pub l_max: Option<usize>,
}

impl Settings {
    /// The preset's switches, and everything else as the file says.
    pub fn of(preset: BlockConfig) -> Settings {
        Settings { preset, layer_norm_eps: None, shift: None, l_max: None }
    }
}

/// An input of a block, `[batch, seq_len, d_model]`.
#[derive(Clone, Debug, PartialEq)]
pub struct HiddenStates {
    /// Number of sequences.
    pub batch: usize,
    /// Tokens of each.
    pub seq_len: usize,
    /// Elements, row-major.
    pub values: Vec<f32>,
}

/// A file with a block, still open for what may come with the weights.
#[derive(Debug)]
pub struct BlockFile {
    file: TensorFile,
    /// The block.
    pub block: HyenaBlock,
    /// What the user should know, one line each.
    pub warnings: Vec<String>,
}

impl BlockFile {
    /// Reads a block.
    ///
    /// # Errors
    /// When the file is none, a weight is missing, misnamed or of another type than the rest of the file
    /// implies, or a metadata value is bad.
    pub fn open(path: &Path, settings: &Settings) -> Result<BlockFile, Error> {
        let mut file = TensorFile::open(path)?;
        let config = config(&file, settings)?;
        let mut weights = BTreeMap::new();
        for (name, _) in config.weights() {
            weights.insert(name.to_owned(), file.read_f32(name)?);
        }
        let block = HyenaBlock::new(config, weights)?;
        let unknown = unknown(&file);
        let warnings = if unknown.is_empty() {
            Vec::new()
        } else {
            vec![format!("{} holds tensors that no block has, ignored: {}", path.display(), unknown.join(", "))]
        };
        Ok(BlockFile { file, block, warnings })
    }

    /// The input that came with the weights.
    ///
    /// # Errors
    /// When it has another dtype or shape than an input of this block.
    pub fn hidden_states(&mut self) -> Result<Option<HiddenStates>, Error> {
        if self.file.entries().contains_key(INPUT_NAME) {
            Ok(Some(hidden_states(&mut self.file, self.block.config().d_model)?))
        } else {
            Ok(None)
        }
    }

    /// The output that the file expects of a variant, `output.<variant>`, in float64.
    ///
    /// # Errors
    /// When it has another dtype than F64 or F32, or another shape than the output.
    pub fn expected_output(&mut self, variant: &str, batch: usize, seq_len: usize) -> Result<Option<Vec<f64>>, Error> {
        let name = format!("output.{variant}");
        let Some(entry) = self.file.entries().get(&name) else { return Ok(None) };
        let expected = [batch, seq_len, self.block.config().d_model];
        if entry.shape != expected {
            return Err(wrong_shape(&self.file, &name, format!("{expected:?}")).into());
        }
        Ok(Some(self.file.read_f64(&name)?))
    }
}

/// Reads the input `hidden_states` from a file of its own.
///
/// # Errors
/// When the file is none, or the tensor is missing or no input of a block with this many channels.
pub fn read_hidden_states(path: &Path, d_model: usize) -> Result<HiddenStates, Error> {
    let mut file = TensorFile::open(path)?;
    Ok(hidden_states(&mut file, d_model)?)
}

fn hidden_states(file: &mut TensorFile, d_model: usize) -> Result<HiddenStates, FileError> {
    let shape = file.entries().get(INPUT_NAME).map(|entry| entry.shape.clone());
    match shape.as_deref() {
        Some(&[batch, seq_len, d]) if d == d_model && batch > 0 && seq_len > 0 => {
            Ok(HiddenStates { batch, seq_len, values: file.read_f32(INPUT_NAME)? })
        }
        Some(_) => Err(wrong_shape(file, INPUT_NAME, format!("[batch, seq_len, {d_model}], none of them 0"))),
        None => Err(FileError::Missing {
            path: file.path().to_owned(),
            name: INPUT_NAME.to_owned(),
            expected: format!("F32 [batch, seq_len, {d_model}]"),
            similar: nearest(INPUT_NAME, file.entries().keys().map(String::as_str)),
        }),
    }
}

fn wrong_shape(file: &TensorFile, name: &str, expected: String) -> FileError {
    let found = file.entries().get(name).map(|entry| entry.shape.clone()).unwrap_or_default();
    FileError::Shape { path: file.path().to_owned(), name: name.to_owned(), expected, found }
}

/// Names in the file that mean nothing here.
fn unknown(file: &TensorFile) -> Vec<String> {
    let weights = BlockConfig::benchmark().weights();
    let known = |name: &str| {
        name == INPUT_NAME
            || name.starts_with("output.")
            || name.starts_with("filter.")
            || weights.iter().any(|(weight, _)| *weight == name)
    };
    file.entries().keys().filter(|name| !known(name)).cloned().collect()
}

/// The configuration of a file, every weight's presence, dtype and shape checked against it.
fn config(file: &TensorFile, settings: &Settings) -> Result<BlockConfig, Error> {
    for (name, _) in settings.preset.weights() {
        let Some(entry) = file.entries().get(name) else {
            let unknown = unknown(file);
            return Err(Error::File(FileError::Missing {
                path: file.path().to_owned(),
                name: name.to_owned(),
                expected: format!("F32 {}", extents(name)),
                similar: nearest(name, unknown.iter().map(String::as_str)),
            }));
        };
        if entry.dtype != Dtype::F32 {
            return Err(Error::File(FileError::Dtype {
                path: file.path().to_owned(),
                name: name.to_owned(),
                expected: "F32",
                found: format!("{:?} {:?}", entry.dtype, entry.shape),
            }));
        }
    }
    let size = |name: &str, rank: usize, axis: usize| {
        let shape = file.entries().get(name).map(|entry| entry.shape.as_slice()).unwrap_or_default();
        match shape.get(axis) {
            Some(&extent) if shape.len() == rank => Ok(extent),
            _ => Err(wrong_shape(file, name, extents(name).to_owned())),
        }
    };
    let preset = settings.preset;
    let eps = |value: &f64| value.is_finite() && *value >= 0.0;
    let config = BlockConfig {
        d_model: size("norm1_weight", 1, 0)?,
        d_inner: size("mlp_fc1_weight", 2, 0)?,
        emb_dim: size("filter_linear1_weight", 2, 1)?,
        filter_order: size("filter_linear1_weight", 2, 0)?,
        short_filter: size("short_conv_weight", 3, 2)?,
        layer_norm_eps: match settings.layer_norm_eps {
            Some(value) => value,
            None => number(file, "layer_norm_eps", "must be a number, finite and not negative", eps)?
                .unwrap_or(preset.layer_norm_eps),
        },
        shift: match settings.shift {
            Some(value) => value,
            None => number(file, "exp_mod_shift", "must be a finite number", |value: &f64| value.is_finite())?
                .unwrap_or(preset.shift),
        },
        l_max: match settings.l_max {
            Some(value) => value,
            None => number(file, "l_max", "must be a whole number, at least 1", |value: &usize| *value > 0)?
                .unwrap_or(preset.l_max),
        },
        ..preset
    };
    number(file, "order", "only blocks of order 2 are supported", |order: &usize| *order == 2)?;
    config.validate().map_err(Error::Config)?;
    for (name, shape) in config.weights() {
        if file.entries().get(name).is_none_or(|entry| entry.shape != shape) {
            return Err(wrong_shape(file, name, format!("{shape:?}, which is {}", extents(name))).into());
        }
    }
    Ok(config)
}

/// A number of the metadata, if its key is there.
fn number<T: std::str::FromStr>(
    file: &TensorFile,
    key: &'static str,
    must: &str,
    valid: impl Fn(&T) -> bool,
) -> Result<Option<T>, FileError> {
    let Some(text) = file.metadata().get(key) else { return Ok(None) };
    match text.trim().parse().ok().filter(valid) {
        Some(value) => Ok(Some(value)),
        None => {
            Err(FileError::Metadata { path: file.path().to_owned(), key, value: text.clone(), why: must.to_owned() })
        }
    }
}

/// The shape of a weight in terms of the configuration.
fn extents(name: &str) -> &'static str {
    match name {
        "in_proj_weight" => "[3 d_model, d_model]",
        "short_conv_weight" => "[3 d_model, 1, taps]",
        "in_proj_bias" | "short_conv_bias" => "[3 d_model]",
        "filter_linear1_weight" => "[filter_order, emb_dim]",
        "filter_linear2_weight" | "filter_linear3_weight" => "[filter_order, filter_order]",
        "filter_linear1_bias" | "filter_linear2_bias" | "filter_linear3_bias" => "[filter_order]",
        "sin_freq" => "[1, filter_order]",
        "filter_linear_final_weight" => "[d_model, filter_order]",
        "exp_mod_deltas" => "[1, 1, d_model]",
        "out_proj_weight" => "[d_model, d_model]",
        "mlp_fc1_weight" => "[d_inner, d_model]",
        "mlp_fc1_bias" => "[d_inner]",
        "mlp_fc2_weight" => "[d_model, d_inner]",
        _ => "[d_model]",
    }
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
