//! A HyenaBlock: a configuration with weights that fit it.

use std::collections::BTreeMap;

use hyenac_ir::BlockConfig;

use crate::check::{NotFinite, first_not_finite};
use crate::error::Error;

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
