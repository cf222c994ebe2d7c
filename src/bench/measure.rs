//! The timing protocol.
//!
//! On a GPU, for each repetition the L2 is flushed, then an event, one graph launch, an event. On the CPU, the wall
//! clock around one call. Either way what was timed is what is handed back for the check, and on a GPU the output is
//! poisoned before, so that an element nobody writes is seen.

use std::time::Instant;

use hyenac::runtime::cuda::{Arguments, CudaExecutable, DeviceBuffer, Timer};
use hyenac::{Backend, Error, Executable, Present};

use super::report::Protocol;
use super::report::Statistics;

/// Repetitions before those that count.
const WARMUP: usize = 10;
/// The same on the CPU, where nothing but pages and caches has to warm up.
const CPU_WARMUP: usize = 1;

/// What is wanted of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Repetitions that count.
    pub repetitions: usize,
    /// Whether each launch is timed alone too, where there are launches.
    pub launches: bool,
}

/// What was measured.
pub struct Measurement {
    /// Times of single calls, microseconds.
    pub times: Vec<f64>,
    /// Mean over back-to-back calls, microseconds.
    pub hot_us: f64,
    /// Median of each launch alone, microseconds, where asked for.
    pub launches: Option<Vec<f64>>,
    /// The output of the last call that was timed.
    pub output: Vec<f32>,
}

/// The clock of a device.
pub struct Clock {
    timer: Option<Timer>,
    flushed_bytes: u64,
    empty_graph_us: Option<f64>,
}

impl Clock {
    /// The clock of the device that is present.
    pub fn new(present: &Present) -> Result<Clock, Error> {
        Ok(match &present.gpu {
            Some(gpu) => {
                Clock { timer: Some(Timer::new(gpu)?), flushed_bytes: 2 * gpu.info().l2_bytes, empty_graph_us: None }
            }
            None => Clock { timer: None, flushed_bytes: 0, empty_graph_us: None },
        })
    }

    /// How this clock takes times.
    pub fn protocol(&self, repetitions: usize) -> Protocol {
        let (clock, warmup) = match self.timer {
            Some(_) => ("cuda_events", WARMUP),
            None => ("wall_clock", CPU_WARMUP),
        };
        Protocol { clock: clock.to_owned(), repetitions, warmup, flushed_bytes: self.flushed_bytes }
    }

    /// What the protocol itself costs: the median time of a graph with one empty kernel; none on the CPU.
    pub fn empty_graph_us(&mut self, repetitions: usize) -> Result<Option<f64>, Error> {
        if let (Some(timer), None) = (&mut self.timer, self.empty_graph_us) {
            timer.empty_graph_us(WARMUP, true)?;
            self.empty_graph_us = Some(Statistics::of(&timer.empty_graph_us(repetitions, true)?).median);
        }
        Ok(self.empty_graph_us)
    }

    /// Times calls.
    pub fn measure(
        &mut self,
        executable: &mut Executable,
        hidden_states: &[f32],
        wanted: Wanted,
    ) -> Result<Measurement, Error> {
        match (executable.backend_mut(), &mut self.timer) {
            (Backend::Cuda(executable), Some(timer)) => on_gpu(timer, executable, hidden_states, wanted),
            _ => on_cpu(executable, hidden_states, wanted),
        }
    }
}

fn on_gpu(
    timer: &mut Timer,
    executable: &mut CudaExecutable,
    hidden_states: &[f32],
    wanted: Wanted,
) -> Result<Measurement, Error> {
    let device = executable.device().clone();
    let input = DeviceBuffer::from_f32(&device, hidden_states, "the input")?;
    let bytes = executable.outputs().first().map_or(0, |tensor| tensor.bytes);
    let output = DeviceBuffer::allocate(&device, bytes, "the output")?;
    let (inputs, outputs) = ([input.pointer()], [output.pointer()]);
    let arguments = Arguments { inputs: &inputs, outputs: &outputs };
    timer.time_replays(executable, arguments, WARMUP, true)?;
    let stream = timer.stream().clone();
    output.poison(&stream)?;
    let times = timer.time_replays(executable, arguments, wanted.repetitions, true)?;
    let values = output.read_f32(&stream)?;
    let hot_us = timer.hot_us(executable, arguments, wanted.repetitions)?;
    let launches = if wanted.launches {
        let times = timer.time_launches(executable, arguments, wanted.repetitions)?;
        Some(times.iter().map(|times| Statistics::of(times).median).collect())
    } else {
        None
    };
    Ok(Measurement { times, hot_us, launches, output: values })
}

fn on_cpu(executable: &mut Executable, hidden_states: &[f32], wanted: Wanted) -> Result<Measurement, Error> {
    for _ in 0..CPU_WARMUP {
        executable.run(hidden_states)?;
    }
    let mut times = Vec::with_capacity(wanted.repetitions);
    let mut output = Vec::new();
    let all = Instant::now();
    for _ in 0..wanted.repetitions.max(1) {
        let start = Instant::now();
        output = executable.run(hidden_states)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let hot_us = all.elapsed().as_secs_f64() * 1e6 / times.len() as f64;
    Ok(Measurement { times, hot_us, launches: None, output })
}
