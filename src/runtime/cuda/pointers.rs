//! From the origins of a plan to addresses: at bind, and where they change with a call.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::{CudaError, Result};
use super::graph::KernelGraph;
use super::layout::{Layout, Origin, Origins, Source, Tensor};
use super::memory::{DeviceBuffer, DevicePointer};

/// The bases that origins are resolved against. Inputs and outputs come with each call and are 0 until then.
pub(super) struct Memory<'a> {
    pub(super) arena: u64,
    pub(super) frozen: u64,
    pub(super) weights: &'a [Option<Arc<DeviceBuffer>>],
}

impl Memory<'_> {
    /// The pointers of every launch.
    pub(super) fn pointers(&self, origins: &Origins) -> Vec<Vec<u64>> {
        let address = |origin: &Origin| match origin.source {
            Source::Input(_) | Source::Output(_) => 0,
            Source::Arena => self.arena + origin.offset,
            Source::Frozen => self.frozen + origin.offset,
            Source::Weight(index) => {
                let weight = self.weights.get(index).and_then(|weight| weight.as_ref());
                weight.map_or(0, |weight| weight.pointer().address() + origin.offset)
            }
        };
        origins.iter().map(|launch| launch.iter().map(address).collect()).collect()
    }
}

/// Where each pointer from outside is used: node, argument, offset.
pub(super) struct Uses(BTreeMap<Source, Vec<(usize, usize, u64)>>);

impl Uses {
    /// The uses of inputs, outputs and weights.
    pub(super) fn of(origins: &Origins) -> Uses {
        let mut uses: BTreeMap<Source, Vec<(usize, usize, u64)>> = BTreeMap::new();
        for (node, arguments) in origins.iter().enumerate() {
            for (argument, origin) in arguments.iter().enumerate() {
                if !matches!(origin.source, Source::Arena | Source::Frozen) {
                    uses.entry(origin.source).or_default().push((node, argument, origin.offset));
                }
            }
        }
        Uses(uses)
    }

    /// Notes a new address in every node of `graph` that uses this source, and in no other.
    pub(super) fn point(&self, graph: &mut KernelGraph, source: Source, address: u64) {
        for &(node, argument, offset) in self.0.get(&source).into_iter().flatten() {
            graph.set_pointer(node, argument, address + offset);
        }
    }
}

/// Refuses a wrong number of tensors, and those that do not fit the plan.
pub(super) fn check_tensors(what: &'static str, tensors: &[Tensor], pointers: &[DevicePointer<'_>]) -> Result<()> {
    if tensors.len() != pointers.len() {
        return Err(CudaError::TensorCount { what, expected: tensors.len(), got: pointers.len() });
    }
    tensors.iter().zip(pointers).try_for_each(|(tensor, pointer)| pointer.check(&tensor.name, tensor.bytes))
}

/// Outputs may overlap neither inputs nor one another.
pub(super) fn check_overlap(
    layout: &Layout,
    inputs: &[DevicePointer<'_>],
    outputs: &[DevicePointer<'_>],
) -> Result<()> {
    for (index, (output, pointer)) in layout.outputs.iter().zip(outputs).enumerate() {
        let inputs = layout.inputs.iter().zip(inputs);
        let earlier = layout.outputs.iter().zip(outputs).take(index);
        if let Some((other, _)) = inputs.chain(earlier).find(|(_, other)| pointer.overlaps(**other)) {
            return Err(CudaError::Overlap { output: output.name.clone(), input: other.name.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::layout::tests::plan;
    use super::*;

    fn pointer(address: u64, bytes: u64) -> DevicePointer<'static> {
        // SAFETY: never given to a launch.
        unsafe { DevicePointer::from_raw(address, bytes) }
    }

    #[test]
    fn tensors_of_a_call_are_checked() {
        let layout = Layout::of(&plan()).unwrap();
        assert_eq!(check_tensors("inputs", &layout.inputs, &[pointer(256, 128)]), Ok(()));
        let error = check_tensors("inputs", &layout.inputs, &[]).unwrap_err();
        assert_eq!(error.to_string(), "expected 1 inputs, got 0");
        let error = check_tensors("outputs", &layout.outputs, &[pointer(256, 4)]).unwrap_err();
        assert_eq!(error.to_string(), "output.0 has 4 bytes, the plan expects 128");
        let overlap = |input, output| check_overlap(&layout, &[pointer(input, 128)], &[pointer(output, 128)]);
        assert_eq!(overlap(256, 384), Ok(()));
        let error = overlap(256, 320).unwrap_err();
        assert!(error.to_string().starts_with("output.0 overlaps x"), "{error}");
    }

    #[test]
    fn only_nodes_that_use_a_tensor_are_touched_by_it() {
        let layout = Layout::of(&plan()).unwrap();
        let uses = Uses::of(&layout.main).0;
        assert_eq!(uses.get(&Source::Input(0)), Some(&vec![(0, 0, 0)]));
        assert_eq!(uses.get(&Source::Weight(1)), Some(&vec![(1, 1, 0)]));
        assert_eq!(uses.get(&Source::Output(0)), Some(&vec![(1, 2, 0)]));
        assert_eq!(uses.len(), 3);
    }

    #[test]
    fn pointers_are_bases_plus_offsets() {
        let layout = Layout::of(&plan()).unwrap();
        let memory = Memory { arena: 1 << 20, frozen: 1 << 30, weights: &[None, None] };
        assert_eq!(memory.pointers(&layout.main)[0], [0, (1 << 30) + 272, (1 << 20) + 512]);
    }
}
