//! Times replays, for the benchmark.
//!
//! Each repetition overwrites a buffer of twice the L2, then records an event, launches one graph and records an
//! event. Nothing waits in between: while the device overwrites, the host has time to submit what follows, so that
//! the interval between the events holds no host time.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaEvent, sys};
use hyenac_kernels::{KernelSource, Launch};

use super::cache::Cache;
use super::device::{CudaDevice, Stream};
use super::error::{CudaError, During, Result};
use super::executable::CudaExecutable;
use super::graph::KernelGraph;
use super::memory::{DeviceBuffer, DevicePointer};
use super::module::LoadedKernel;

/// Replays that are submitted before the host waits, when host time is measured: few enough for the queue.
const HOST_BATCH: usize = 64;

/// Inputs and outputs of a replay.
#[derive(Clone, Copy)]
pub struct Arguments<'a> {
    /// Inputs, in the order of the executable.
    pub inputs: &'a [DevicePointer<'a>],
    /// Outputs, in the order of the executable.
    pub outputs: &'a [DevicePointer<'a>],
}

/// A stream, events and a buffer to flush the L2 with.
pub struct Timer {
    device: CudaDevice,
    stream: Arc<Stream>,
    flush: DeviceBuffer,
    events: Vec<(CudaEvent, CudaEvent)>,
}

impl Timer {
    /// A timer with a stream of its own.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], or what the driver says.
    pub fn new(device: &CudaDevice) -> Result<Timer> {
        let flush = DeviceBuffer::allocate(device, 2 * device.info().l2_bytes, "the buffer that flushes the L2")?;
        Ok(Timer { device: device.clone(), stream: device.new_stream()?, flush, events: Vec::new() })
    }

    /// The stream that replays are timed on.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Time of each replay, microseconds, with the L2 flushed before each or left as the replay before left it.
    ///
    /// # Errors
    /// As [`CudaExecutable::launch`].
    pub fn time_replays(
        &mut self,
        executable: &mut CudaExecutable,
        arguments: Arguments<'_>,
        repetitions: usize,
        flush: bool,
    ) -> Result<Vec<f64>> {
        self.measure(repetitions, flush, |stream| executable.launch(arguments.inputs, arguments.outputs, stream))
    }

    /// Mean time of back-to-back replays, microseconds.
    ///
    /// # Errors
    /// As [`CudaExecutable::launch`].
    pub fn hot_us(
        &mut self,
        executable: &mut CudaExecutable,
        arguments: Arguments<'_>,
        repetitions: usize,
    ) -> Result<f64> {
        let times = self.measure(1, true, |stream| {
            (0..repetitions).try_for_each(|_| executable.launch(arguments.inputs, arguments.outputs, stream))
        })?;
        Ok(times.iter().sum::<f64>() / repetitions.max(1) as f64)
    }

    /// Times of a graph of one kernel that does nothing: what the protocol itself costs, microseconds.
    ///
    /// # Errors
    /// When the kernel cannot be compiled, or [`CudaError::Run`].
    pub fn empty_graph_us(&mut self, repetitions: usize, flush: bool) -> Result<Vec<f64>> {
        let source =
            KernelSource { name: "empty".to_owned(), source: "extern \"C\" __global__ void empty() {}\n".to_owned() };
        let compiled = Cache::from_environment().compiled_kernel(&source, self.device.arch())?;
        let kernels = Arc::from([LoadedKernel::load(&self.device, &compiled)?]);
        let launch = Launch {
            kernel: 0,
            grid: [1, 1, 1],
            block: [32, 1, 1],
            shared_bytes: 0,
            arguments: Vec::new(),
            after: Vec::new(),
            early: Vec::new(),
            family: String::new(),
            schedule: String::new(),
            predicted_us: 0.0,
            floor_us: 0.0,
            computes: String::new(),
        };
        let mut graph = KernelGraph::build(&self.device, &kernels, &[launch], vec![Vec::new()])?;
        self.measure(repetitions, flush, |stream| graph.launch(stream))
    }

    /// Times of every launch of the plan alone, each in a graph of its own, with the L2 flushed, microseconds.
    ///
    /// Each time includes what an empty graph costs. The plan runs once before, so that every launch finds the
    /// values it reads.
    ///
    /// # Errors
    /// As [`CudaExecutable::launch`].
    pub fn time_launches(
        &mut self,
        executable: &mut CudaExecutable,
        arguments: Arguments<'_>,
        repetitions: usize,
    ) -> Result<Vec<Vec<f64>>> {
        executable.launch(arguments.inputs, arguments.outputs, &self.stream)?;
        let kernels = Arc::clone(executable.kernels());
        let mut times = Vec::with_capacity(executable.node_count());
        while let Some(mut graph) = executable.single_launch(times.len(), &kernels)? {
            times.push(self.measure(repetitions, true, |stream| graph.launch(stream))?);
        }
        Ok(times)
    }

    /// Host time of one launch, microseconds, when calls take turns through `arguments`: with one, pointers never
    /// change; with two, they change at every call.
    ///
    /// # Errors
    /// As [`CudaExecutable::launch`].
    pub fn host_us(
        &mut self,
        executable: &mut CudaExecutable,
        arguments: &[Arguments<'_>],
        repetitions: usize,
    ) -> Result<f64> {
        let mut turns = arguments.iter().cycle();
        let (mut launched, mut seconds) = (0, 0.0);
        while launched < repetitions && !arguments.is_empty() {
            let batch = HOST_BATCH.min(repetitions - launched);
            self.wait()?;
            let start = Instant::now();
            for arguments in turns.by_ref().take(batch) {
                executable.launch(arguments.inputs, arguments.outputs, &self.stream)?;
            }
            seconds += start.elapsed().as_secs_f64();
            launched += batch;
        }
        self.wait()?;
        Ok(seconds * 1e6 / launched.max(1) as f64)
    }

    /// Times `replay` between two events, again and again, and waits only after the last.
    fn measure(
        &mut self,
        repetitions: usize,
        flush: bool,
        mut replay: impl FnMut(&Arc<Stream>) -> Result<()>,
    ) -> Result<Vec<f64>> {
        while self.events.len() < repetitions {
            let event = || self.device.context().new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT));
            self.events.push((event().during("cuEventCreate")?, event().during("cuEventCreate")?));
        }
        for (index, (start, end)) in self.events.iter().take(repetitions).enumerate() {
            // Without flushing, the first overwriting still gives the host its lead.
            if flush || index == 0 {
                self.flush.fill(index as u8, &self.stream)?;
            }
            start.record(&self.stream).during("cuEventRecord").map_err(CudaError::Run)?;
            replay(&self.stream)?;
            end.record(&self.stream).during("cuEventRecord").map_err(CudaError::Run)?;
        }
        self.wait()?;
        let elapsed = |(start, end): &(CudaEvent, CudaEvent)| {
            let milliseconds = start.elapsed_ms(end).during("cuEventElapsedTime_v2").map_err(CudaError::Run)?;
            Ok(f64::from(milliseconds) * 1e3)
        };
        self.events.iter().take(repetitions).map(elapsed).collect()
    }

    fn wait(&self) -> Result<()> {
        self.stream.synchronize().during("cuStreamSynchronize").map_err(CudaError::Run)
    }
}
