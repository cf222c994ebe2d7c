//! A HyenaBlock: a configuration with weights that fit it.

use std::collections::BTreeMap;

use hyenac_ir::block::INPUT_NAME;
use hyenac_ir::{BlockConfig, Real, Rounding, Tensor, evaluate};

use crate::check::{NotFinite, first_not_finite};
use crate::error::Error;
use crate::runtime::cpu::{peak_bytes, require_memory};

/// A configuration and its weights. Every weight is there and has the number of elements of its shape.
#[derive(Clone, Debug, PartialEq)]
pub struct HyenaBlock {
    config: BlockConfig,
    weights: BTreeMap<String, Vec<f32>>,
}

impl HyenaBlock {
    /// A block of these weights, row-major in the shapes of [`BlockConfig::weights`].
    ///
    /// # Errors
    /// When the configuration is outside its limits, or a weight is missing, unknown or of another size.
    pub fn new(config: BlockConfig, weights: BTreeMap<String, Vec<f32>>) -> Result<HyenaBlock, Error> {
        config.validate().map_err(Error::Config)?;
        let shapes: BTreeMap<&str, Vec<usize>> = config.weights().into_iter().collect();
        for (&name, shape) in &shapes {
            let elements = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
            let found = weights.get(name).map(Vec::len);
            if found.is_none() || found != elements {
                return Err(Error::Tensor {
                    name: name.to_owned(),
                    expected: format!("F32 {shape:?}"),
                    found: found.map_or("nothing".to_owned(), |elements| format!("{elements} elements")),
                });
            }
        }
        match weights.keys().find(|name| !shapes.contains_key(name.as_str())) {
            Some(name) => Err(Error::Tensor {
                name: name.clone(),
                expected: "one of the weights of a block".to_owned(),
                found: "an unknown name".to_owned(),
            }),
            None => Ok(HyenaBlock { config, weights }),
        }
    }

    /// Sizes and switches.
    pub fn config(&self) -> &BlockConfig {
        &self.config
    }

    /// The weights by name.
    pub fn weights(&self) -> &BTreeMap<String, Vec<f32>> {
        &self.weights
    }

    /// Weights and an input by name, as the interpreter takes them.
    ///
    /// # Errors
    /// When the input has another size.
    pub fn tensors<T: Real>(
        &self,
        hidden_states: &[f32],
        batch: usize,
        seq_len: usize,
    ) -> Result<BTreeMap<String, Tensor<T>>, Error> {
        let convert = |values: &[f32]| values.iter().map(|&value| T::from_double(f64::from(value))).collect();
        let shape = vec![batch, seq_len, self.config.d_model];
        let elements = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
        if elements != Some(hidden_states.len()) {
            return Err(Error::Tensor {
                name: INPUT_NAME.to_owned(),
                expected: format!("F32 {shape:?}"),
                found: format!("{} elements", hidden_states.len()),
            });
        }
        let mut tensors = BTreeMap::from([(INPUT_NAME.to_owned(), Tensor { shape, data: convert(hidden_states) })]);
        for (name, shape) in self.config.weights() {
            let values = self.weights.get(name).map(Vec::as_slice).unwrap_or_default();
            tensors.insert(name.to_owned(), Tensor { shape, data: convert(values) });
        }
        Ok(tensors)
    }

    /// The output in float64, by the interpreter on the reference graph: what every result is compared with.
    ///
    /// # Errors
    /// When the input has another size, the block has no meaning at this length, or memory does not suffice.
    pub fn reference(&self, hidden_states: &[f32], batch: usize, seq_len: usize) -> Result<Vec<f64>, Error> {
        let graph = self.config.reference_graph(batch, seq_len).map_err(Error::Config)?;
        require_memory("the float64 reference", peak_bytes(&graph).saturating_mul(2))?;
        let tensors = self.tensors(hidden_states, batch, seq_len)?;
        let mut outputs = evaluate::<f64>(&graph, &tensors, Rounding::Exact).map_err(Error::Run)?;
        Ok(outputs.pop().map(|output| output.data).unwrap_or_default())
    }

    /// Every weight with an element that is NaN or infinite, and its first such element.
    pub fn not_finite(&self) -> Vec<(String, NotFinite)> {
        let shapes = self.config.weights();
        shapes
            .into_iter()
            .filter_map(|(name, shape)| {
                let found = first_not_finite(&shape, self.weights.get(name)?)?;
                Some((name.to_owned(), found))
            })
            .collect()
    }
}
