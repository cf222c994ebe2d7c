//! Timing the kernels of one region alone, under the protocol of `hyenac bench`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use half::f16;
use hyenac::runtime::cuda::{
    Arguments, BindOptions, Cache, CudaDevice, CudaError, CudaExecutable, DeviceBuffer, Timer, upload_weights,
};
use hyenac::{Device, Error, Mode, Plan};
use hyenac_ir::{DType, Type};
use hyenac_kernels::{KernelSource, lower};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use rayon::prelude::*;

use super::collect::{Regions, Tuned};
use super::queue::{Job, Problem, Worker};
use crate::bench::Statistics;

/// Repetitions before those that count.
const WARMUP: usize = 10;
/// Elements of a pattern. A prime, so that rows of a tensor differ.
const PATTERN: usize = 262_139;
/// Standard deviation of the elements: sums of up to a thousand products stay near one, and every f16 is finite.
const DEVIATION: f32 = 0.25;

/// A GPU that regions are timed on.
pub struct Bench<'a> {
    regions: &'a Regions,
    device: &'a Device,
    gpu: &'a CudaDevice,
    repetitions: usize,
    cache: Cache,
    timer: Timer,
    empty_us: f64,
    patterns: BTreeMap<DType, Vec<u8>>,
    start: Instant,
    /// Told of each job before it is measured.
    report: Box<dyn FnMut(&Tuned) + 'a>,
}

impl<'a> Bench<'a> {
    /// Makes a GPU ready; the time that there is begins with this call.
    ///
    /// # Errors
    /// What the driver or NVRTC say.
    pub fn new(
        regions: &'a Regions,
        device: &'a Device,
        gpu: &'a CudaDevice,
        repetitions: usize,
        cache: Cache,
        report: impl FnMut(&Tuned) + 'a,
    ) -> Result<Bench<'a>, Error> {
        let start = Instant::now();
        let mut timer = Timer::new(gpu)?;
        timer.empty_graph_us(WARMUP, true)?;
        let empty_us = Statistics::of(&timer.empty_graph_us(repetitions, true)?).median;
        let (patterns, report) = (BTreeMap::new(), Box::new(report));
        Ok(Bench { regions, device, gpu, repetitions, cache, timer, empty_us, patterns, start, report })
    }

    fn plan(&self, job: Job) -> Result<(&'a Tuned, Plan), Error> {
        let missing = || Error::Usage { what: format!("{job:?}"), why: "is not one of the regions".to_owned() };
        let tuned = self.regions.list.get(job.region).ok_or_else(missing)?;
        let candidate = tuned.candidates.get(job.candidate).ok_or_else(missing)?;
        let graph = tuned.alone(&candidate.schedule).map_err(Error::Run)?;
        Ok((tuned, lower(&graph, self.device, Mode::Live)?))
    }

    /// Median time of a plan whose inputs have these types, microseconds, net of an empty graph.
    fn time(&mut self, plan: Plan, operands: &[&Type]) -> Result<f64, CudaError> {
        let weights = upload_weights(self.gpu, &plan, &BTreeMap::new())?;
        let options = BindOptions { cache: self.cache.clone(), ..BindOptions::new(Mode::Live) };
        let mut executable = CudaExecutable::bind(self.gpu, Arc::new(plan), weights, options)?;
        let stream = Arc::clone(self.timer.stream());
        let mut inputs = Vec::new();
        for (tensor, ty) in executable.inputs().iter().zip(operands) {
            let pattern = self.patterns.entry(ty.dtype).or_insert_with(|| pattern(ty.dtype));
            let mut buffer = DeviceBuffer::allocate(self.gpu, tensor.bytes, &tensor.name)?;
            buffer.fill_pattern(pattern, &stream)?;
            inputs.push(buffer);
        }
        let outputs = executable.outputs().iter();
        let outputs: Vec<DeviceBuffer> = outputs
            .map(|tensor| DeviceBuffer::allocate(self.gpu, tensor.bytes, &tensor.name))
            .collect::<Result<_, _>>()?;
        let inputs: Vec<_> = inputs.iter().map(DeviceBuffer::pointer).collect();
        let outputs: Vec<_> = outputs.iter().map(DeviceBuffer::pointer).collect();
        let arguments = Arguments { inputs: &inputs, outputs: &outputs };
        self.timer.time_replays(&mut executable, arguments, WARMUP, true)?;
        let times = self.timer.time_replays(&mut executable, arguments, self.repetitions, true)?;
        Ok((Statistics::of(&times).median - self.empty_us).max(0.0))
    }
}

impl Worker for Bench<'_> {
    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Compiles the kernels of the jobs on all processors, into the cache. What does not compile is said when its job
    /// comes.
    fn prepare(&mut self, jobs: &[Job]) {
        let kernels = jobs.iter().filter_map(|&job| Some(self.plan(job).ok()?.1.kernels)).flatten();
        let kernels: Vec<KernelSource> = kernels.collect();
        let (arch, cache) = (self.gpu.arch(), &self.cache);
        kernels.par_iter().for_each(|kernel| {
            let _ = cache.compiled_kernel(kernel, arch);
        });
    }

    fn measure(&mut self, job: Job) -> Result<f64, Problem> {
        let problem = |error: Error| Problem {
            why: error.to_string(),
            // A kernel that fails takes the context with it.
            ends: matches!(error, Error::Cuda(CudaError::Run(_))),
        };
        let (tuned, plan) = self.plan(job).map_err(problem)?;
        (self.report)(tuned);
        self.time(plan, &tuned.operands()).map_err(|error| problem(error.into()))
    }
}

/// Normal numbers as bytes of a dtype, always the same.
fn pattern(dtype: DType) -> Vec<u8> {
    let mut generator = ChaCha8Rng::seed_from_u64(0);
    // The deviation is a number, which is all that can be wrong with it.
    let normal = Normal::new(0.0, DEVIATION).ok();
    let mut next = || normal.map_or(DEVIATION, |normal| normal.sample(&mut generator));
    let mut bytes = Vec::with_capacity(PATTERN * dtype.bytes());
    for _ in 0..PATTERN {
        match dtype {
            DType::F16 => bytes.extend(f16::from_f32(next()).to_le_bytes()),
            DType::F32 => bytes.extend(next().to_le_bytes()),
            // The mantissa has ten bits of binary32's 23; the others are zero.
            DType::Tf32 => bytes.extend((next().to_bits() & !0x1fff).to_le_bytes()),
            DType::C64 => bytes.extend([next().to_le_bytes(), next().to_le_bytes()].concat()),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_valid_numbers_of_their_dtype() {
        for dtype in DType::ALL {
            let bytes = pattern(dtype);
            assert_eq!(bytes.len(), PATTERN * dtype.bytes());
            assert_eq!(bytes, pattern(dtype));
            let words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
            let values: Vec<f32> = match dtype {
                DType::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
                _ => words.clone().map(f32::from_bits).collect(),
            };
            assert!(values.iter().all(|value| value.abs() < 8.0), "{dtype}");
            let square = values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32;
            assert!((square.sqrt() / DEVIATION - 1.0).abs() < 0.05, "{dtype}: {square}");
            if dtype == DType::Tf32 {
                assert!(words.clone().all(|word| word & 0x1fff == 0));
            }
        }
    }
}
