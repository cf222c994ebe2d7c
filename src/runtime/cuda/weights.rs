//! Weights in device memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyenac_kernels::Plan;

use super::device::CudaDevice;
use super::error::{CudaError, Result};
use super::layout::{Layout, Tensor};
use super::memory::{DeviceBuffer, check_free};

/// Weights in device memory, by the names of the plan. Executables that are bound to the same ones share them.
pub type DeviceWeights = BTreeMap<String, Arc<DeviceBuffer>>;

/// Uploads those host tensors that a plan reads.
///
/// # Errors
/// [`CudaError::MissingWeight`], [`CudaError::TensorSize`] or [`CudaError::OutOfMemory`].
pub fn upload_weights(device: &CudaDevice, plan: &Plan, weights: &BTreeMap<String, Vec<f32>>) -> Result<DeviceWeights> {
    let layout = Layout::of(plan)?;
    let mut needed = Vec::new();
    for (tensor, read) in layout.weights.iter().zip(layout.weights_read()) {
        if read {
            let values = weights.get(&tensor.name).ok_or_else(|| missing(tensor))?;
            tensor.check_size(size_of_val(values.as_slice()) as u64)?;
            needed.push((tensor, values));
        }
    }
    check_free(device, needed.iter().map(|(tensor, _)| tensor.bytes).sum(), "the weights")?;
    let upload = |(tensor, values): (&Tensor, &Vec<f32>)| -> Result<(String, Arc<DeviceBuffer>)> {
        let buffer = DeviceBuffer::from_f32(device, values, &tensor.name)?;
        Ok((tensor.name.clone(), Arc::new(buffer)))
    };
    needed.into_iter().map(upload).collect()
}

/// The weights that some launch reads, in the order of the layout.
pub(super) fn needed_weights(
    device: &CudaDevice,
    layout: &Layout,
    given: DeviceWeights,
) -> Result<Vec<Option<Arc<DeviceBuffer>>>> {
    let needed = |(tensor, read): (&Tensor, bool)| {
        if !read {
            return Ok(None);
        }
        let weight = given.get(&tensor.name).ok_or_else(|| missing(tensor))?;
        check_weight(device, tensor, weight)?;
        Ok(Some(Arc::clone(weight)))
    };
    layout.weights.iter().zip(layout.weights_read()).map(needed).collect()
}

/// Refuses a weight of another size or device.
pub(super) fn check_weight(device: &CudaDevice, tensor: &Tensor, weight: &DeviceBuffer) -> Result<()> {
    if weight.device().context().cu_ctx() != device.context().cu_ctx() {
        return Err(CudaError::WrongContext { what: "a weight", device: device.info().ordinal });
    }
    weight.pointer().check(&tensor.name, tensor.bytes)
}

fn missing(tensor: &Tensor) -> CudaError {
    CudaError::MissingWeight { name: tensor.name.clone() }
}
