//! The HyenaBlock: configuration, weights and its reference graph.

mod reference;

use serde::{Deserialize, Serialize};

use crate::error::IrError;
use crate::graph::Graph;

/// Channels come in groups of this size.
pub const D_MODEL_STEP: usize = 8;
/// The most channels a block may have.
pub const MAX_D_MODEL: usize = 1024;
/// The fewest columns of the positional embedding: time, one cosine, one sine.
pub const MIN_EMB_DIM: usize = 3;
/// The fewest taps of the short convolution.
pub const MIN_SHORT_FILTER: usize = 2;
/// The most taps of the short convolution.
pub const MAX_SHORT_FILTER: usize = 8;
/// Name of the block's input tensor, `[batch, seq_len, d_model]`.
pub const INPUT_NAME: &str = "hidden_states";

/// How the `[L, D]` output of the filter network becomes the `[D, L]` filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FilterLayout {
    /// The row-major buffer is read again as `[D, L]`.
    Reshape,
    /// A true transpose: one filter for each channel.
    Transpose,
}

/// What the positions of the filter network are spread over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Positions {
    /// The sequence itself; beyond `l_max` the mixer's output is padded with zeros.
    Sequence,
    /// `l_max`, of which the first rows are taken; longer sequences have no meaning.
    Max,
}

/// Sizes and switches of a HyenaBlock of order 2.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockConfig {
    /// Channels D.
    pub d_model: usize,
    /// Inner width of the MLP.
    pub d_inner: usize,
    /// Columns of the positional embedding.
    pub emb_dim: usize,
    /// Width of the filter network.
    pub filter_order: usize,
    /// Taps of the short convolution.
    pub short_filter: usize,
    /// The longest sequence the mixer sees.
    pub l_max: usize,
    /// Added to the variance by both layer norms.
    pub layer_norm_eps: f64,
    /// Added to the filter's decay.
    pub shift: f64,
    /// How the filter network's output becomes the filter.
    pub filter_layout: FilterLayout,
    /// Whether `filter_bias` is added to the filter too, not only used as skip term.
    pub filter_bias_in_filter: bool,
    /// What positions span.
    pub positions: Positions,
}

impl BlockConfig {
    /// The benchmark's block: filter re-read row-major, bias in the filter, positions over the sequence.
    pub fn benchmark() -> BlockConfig {
        BlockConfig {
            d_model: 256,
            d_inner: 1024,
            emb_dim: 5,
            filter_order: 64,
            short_filter: 3,
            l_max: 32768,
            layer_norm_eps: 1e-5,
            shift: 0.05,
            filter_layout: FilterLayout::Reshape,
            filter_bias_in_filter: true,
            positions: Positions::Sequence,
        }
    }

    /// The operator as published: filter transposed, bias only as skip term, positions over `l_max`.
    pub fn hyenadna() -> BlockConfig {
        BlockConfig {
            filter_layout: FilterLayout::Transpose,
            filter_bias_in_filter: false,
            positions: Positions::Max,
            ..BlockConfig::benchmark()
        }
    }

    /// Checks every field against its limits.
    ///
    /// # Errors
    /// [`IrError::Config`] names the first field outside its limits, and the limits.
    pub fn validate(&self) -> Result<(), IrError> {
        let refuse = |field, value: String, why: String| Err(IrError::Config { field, value, why });
        if !self.d_model.is_multiple_of(D_MODEL_STEP) || !(D_MODEL_STEP..=MAX_D_MODEL).contains(&self.d_model) {
            let why = format!("must be a multiple of {D_MODEL_STEP} from {D_MODEL_STEP} to {MAX_D_MODEL}");
            return refuse("d_model", self.d_model.to_string(), why);
        }
        if self.emb_dim < MIN_EMB_DIM || self.emb_dim.is_multiple_of(2) {
            return refuse("emb_dim", self.emb_dim.to_string(), format!("must be odd and at least {MIN_EMB_DIM}"));
        }
        if !(MIN_SHORT_FILTER..=MAX_SHORT_FILTER).contains(&self.short_filter) {
            let why = format!("must be from {MIN_SHORT_FILTER} to {MAX_SHORT_FILTER} taps");
            return refuse("short_filter", self.short_filter.to_string(), why);
        }
        for (field, value) in [("d_inner", self.d_inner), ("filter_order", self.filter_order), ("l_max", self.l_max)] {
            if value == 0 {
                return refuse(field, value.to_string(), "must be at least 1".to_owned());
            }
        }
        if !(self.layer_norm_eps.is_finite() && self.layer_norm_eps >= 0.0) {
            let why = "must be finite and not negative".to_owned();
            return refuse("layer_norm_eps", self.layer_norm_eps.to_string(), why);
        }
        if !self.shift.is_finite() {
            return refuse("shift", self.shift.to_string(), "must be finite".to_owned());
        }
        Ok(())
    }

    /// Names and shapes of the weights, in their canonical order.
    pub fn weights(&self) -> Vec<(&'static str, Vec<usize>)> {
        let (d, i, e, f) = (self.d_model, self.d_inner, self.emb_dim, self.filter_order);
        let w = d.saturating_mul(3);
        vec![
            ("norm1_weight", vec![d]),
            ("norm1_bias", vec![d]),
            ("norm2_weight", vec![d]),
            ("norm2_bias", vec![d]),
            ("in_proj_weight", vec![w, d]),
            ("in_proj_bias", vec![w]),
            ("short_conv_weight", vec![w, 1, self.short_filter]),
            ("short_conv_bias", vec![w]),
            ("filter_linear1_weight", vec![f, e]),
            ("filter_linear1_bias", vec![f]),
            ("sin_freq", vec![1, f]),
            ("filter_linear2_weight", vec![f, f]),
            ("filter_linear2_bias", vec![f]),
            ("filter_linear3_weight", vec![f, f]),
            ("filter_linear3_bias", vec![f]),
            ("filter_linear_final_weight", vec![d, f]),
            ("filter_bias", vec![d]),
            ("exp_mod_deltas", vec![1, 1, d]),
            ("out_proj_weight", vec![d, d]),
            ("out_proj_bias", vec![d]),
            ("mlp_fc1_weight", vec![i, d]),
            ("mlp_fc1_bias", vec![i]),
            ("mlp_fc2_weight", vec![d, i]),
            ("mlp_fc2_bias", vec![d]),
        ]
    }

    /// The whole forward pass in elementary ops: input [`INPUT_NAME`] `[batch, seq_len, d_model]`, one output
    /// of the same shape.
    ///
    /// # Errors
    /// A configuration or a size outside the limits, or a sequence longer than `l_max` where positions span
    /// `l_max`.
    pub fn reference_graph(&self, batch: usize, seq_len: usize) -> Result<Graph, IrError> {
        self.validate()?;
        for (field, value) in [("batch", batch), ("seq_len", seq_len)] {
            if value == 0 {
                return Err(IrError::Config { field, value: value.to_string(), why: "must be at least 1".to_owned() });
            }
        }
        if seq_len > self.l_max && self.positions == Positions::Max {
            return Err(IrError::Config {
                field: "seq_len",
                value: seq_len.to_string(),
                why: format!(
                    "exceeds l_max = {}, over which the positions of this block are spread; raise l_max, shorten \
                     the sequence, or spread positions over the sequence (the benchmark preset), which pads",
                    self.l_max
                ),
            });
        }
        reference::build(self, batch, seq_len)
    }
}
