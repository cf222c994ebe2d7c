//! Replays with changing pointers: bit-identical results, and no memory lost on the way.

use std::sync::Arc;

use hyenac::runtime::cuda::{CudaExecutable, DeviceBuffer};
use hyenac::{Backend, Error, Executable};

use super::console::Progress;

/// What many replays showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Replays {
    /// Number of replays.
    pub count: usize,
    /// Replays whose result differed from the first one of the same input.
    pub different: usize,
    /// Change of the device's free memory, bytes; none on the CPU.
    pub memory_change: Option<i64>,
}

impl Replays {
    /// Whether nothing differed and no memory is gone.
    pub fn passed(&self) -> bool {
        self.different == 0 && self.memory_change.unwrap_or(0) == 0
    }

    /// In one line.
    pub fn describe(&self) -> String {
        let memory = match self.memory_change {
            None => String::new(),
            Some(0) => ", free device memory unchanged".to_owned(),
            Some(change) => format!(", free device memory changed by {change} bytes"),
        };
        let results = match self.different {
            0 => "all bit-identical".to_owned(),
            different => format!("{different} DIFFERENT from the first"),
        };
        format!("{} replays with changing pointers, {results}{memory}", self.count)
    }
}

/// Replays `count` times, with two inputs that take turns and pointers that change at every call.
pub fn replay(
    executable: &mut Executable,
    hidden_states: &[f32],
    count: usize,
    progress: &mut Progress,
) -> Result<Replays, Error> {
    // The second input is the first one backwards: another result, from the same distribution.
    let backwards: Vec<f32> = hidden_states.iter().rev().copied().collect();
    if let Backend::Cuda(executable) = executable.backend_mut() {
        return on_gpu(executable, [hidden_states, &backwards], count, progress);
    }
    let inputs = [hidden_states, &backwards];
    let first = [executable.run(inputs[0])?, executable.run(inputs[1])?];
    let mut different = 0;
    for turn in 0..count {
        different += usize::from(!same_bits(&executable.run(inputs[turn % 2])?, &first[turn % 2]));
        progress.step();
    }
    Ok(Replays { count, different, memory_change: None })
}

fn on_gpu(
    executable: &mut CudaExecutable,
    [forwards, backwards]: [&[f32]; 2],
    count: usize,
    progress: &mut Progress,
) -> Result<Replays, Error> {
    let device = executable.device().clone();
    let stream = Arc::clone(device.stream());
    // Three inputs and two outputs: no pointer is that of the call before, and every pair occurs.
    let upload = |values| DeviceBuffer::from_f32(&device, values, "an input");
    let inputs = [upload(forwards)?, upload(backwards)?, upload(forwards)?];
    let bytes = executable.outputs().first().map_or(0, |tensor| tensor.bytes);
    let allocate = || DeviceBuffer::allocate(&device, bytes, "an output");
    let outputs = [allocate()?, allocate()?];
    let mut run = |input: usize, output: usize| -> Result<Vec<f32>, Error> {
        outputs[output].poison(&stream)?;
        executable.launch(&[inputs[input].pointer()], &[outputs[output].pointer()], &stream)?;
        Ok(outputs[output].read_f32(&stream)?)
    };
    let first = [run(0, 0)?, run(1, 1)?];
    let before = device.free_bytes()?;
    let mut different = 0;
    for turn in 0..count {
        let input = turn % 3;
        different += usize::from(!same_bits(&run(input, turn % 2)?, &first[input % 2]));
        progress.step();
    }
    let after = device.free_bytes()?;
    executable.verify_against_plan()?;
    Ok(Replays { count, different, memory_change: Some(after as i64 - before as i64) })
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}
