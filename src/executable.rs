//! A compiled block with weights, ready to run on the device there is.

use std::fmt;

use hyenac_ir::block::INPUT_NAME;
use hyenac_kernels::Device;
use serde::{Deserialize, Serialize};

use crate::block::HyenaBlock;
use crate::compile::Compilation;
use crate::error::Error;
use crate::runtime::cpu::CpuExecutable;
use crate::runtime::cuda::{CudaDevice, CudaError, CudaExecutable, DeviceInfo, discovery};
use crate::target::Machine;

/// Where a block is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceChoice {
    /// A GPU where there is a usable one, else the CPU.
    #[default]
    Auto,
    /// A GPU.
    Cuda,
    /// The CPU.
    Cpu,
}

/// The device that a choice comes down to on this machine.
#[derive(Clone, Debug)]
pub struct Present {
    /// The GPU, or none for the CPU.
    pub gpu: Option<CudaDevice>,
    /// Why it is the CPU although a GPU would have been taken.
    pub note: Option<String>,
}

impl Present {
    /// Looks for the device of a choice.
    ///
    /// # Errors
    /// When a GPU is asked for and there is no usable one: what is missing, and what to do.
    pub fn find(choice: DeviceChoice) -> Result<Present, Error> {
        let on_cpu = |note| Present { gpu: None, note };
        match choice {
            DeviceChoice::Cpu => Ok(on_cpu(None)),
            DeviceChoice::Cuda => Ok(Present { gpu: Some(usable_gpu()?), note: None }),
            DeviceChoice::Auto => Ok(match usable_gpu() {
                Ok(gpu) => Present { gpu: Some(gpu), note: None },
                Err(reason) => on_cpu(Some(format!("running on the CPU: {reason}"))),
            }),
        }
    }

    /// What to compile for, so that it runs well here.
    pub fn machine(&self) -> Machine {
        match &self.gpu {
            Some(gpu) => Machine::Gpu(constants(gpu.info())),
            None => Machine::Cpu,
        }
    }
}

/// The first GPU, with a compiler for its kernels.
fn usable_gpu() -> Result<CudaDevice, CudaError> {
    /// Kernels use `cp.async` and `ldmatrix`, which came with compute capability 8.0.
    const LEAST: u32 = 8;
    let device = CudaDevice::open(0)?;
    if device.info().compute_capability.0 < LEAST {
        return Err(CudaError::WrongArchitecture { plan: Device::a100().arch, device: device.arch().to_owned() });
    }
    discovery::nvrtc()?;
    Ok(device)
}

/// The constants of the known device that comes nearest, with this device's own sizes.
fn constants(info: &DeviceInfo) -> Device {
    let nearest = match info.compute_capability.0 {
        ..=8 => Device::a100(),
        9 => Device::h200(),
        _ => Device::b200(),
    };
    let (multiprocessors, shared) = (info.multiprocessors, info.limits.shared_bytes_per_block);
    let same = (nearest.multiprocessors, nearest.shared_bytes_per_block) == (multiprocessors, shared);
    let measured = nearest.measured && same;
    Device { multiprocessors, shared_bytes_per_block: shared, measured, ..nearest }
}

/// What an executable runs on.
#[expect(clippy::large_enum_variant, reason = "there is one of them, and it never moves")]
pub enum Backend {
    /// The CPU.
    Cpu(CpuExecutable),
    /// One CUDA graph.
    Cuda(CudaExecutable),
}

/// A block that runs: its plan, its memory and its weights.
pub struct Executable {
    backend: Backend,
    note: Option<String>,
    shape: [usize; 3],
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = if self.is_cuda() { "cuda" } else { "cpu" };
        f.debug_struct("Executable").field("device", &device).field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl Executable {
    /// Binds a compilation to the weights of a block, on the device of a choice.
    ///
    /// # Errors
    /// When there is no such device, the block is another one than was compiled, or memory does not suffice.
    pub fn build(compilation: &Compilation, block: &HyenaBlock, choice: DeviceChoice) -> Result<Executable, Error> {
        Executable::build_on(compilation, block, &Present::find(choice)?)
    }

    /// As [`Executable::build`], on a device that was found before.
    ///
    /// # Errors
    /// As [`Executable::build`].
    pub fn build_on(compilation: &Compilation, block: &HyenaBlock, present: &Present) -> Result<Executable, Error> {
        if *block.config() != compilation.config {
            let why = format!("was compiled for {:?}, the weights are of {:?}", compilation.config, block.config());
            return Err(Error::Usage { what: "the block".to_owned(), why });
        }
        let options = &compilation.options;
        let backend = match (&present.gpu, &compilation.plan) {
            (Some(gpu), Some(plan)) => Backend::Cuda(CudaExecutable::new(gpu, plan, block.weights(), options.mode)?),
            (Some(_), None) => {
                let why = format!(
                    "{} was compiled for, which has no kernels for a GPU; compile for the GPU, or run on the CPU",
                    options.machine.name()
                );
                return Err(Error::Usage { what: "--target".to_owned(), why });
            }
            (None, _) => Backend::Cpu(CpuExecutable::bind(&compilation.optimized, block, options.mode)?),
        };
        let shape = [options.batch, options.seq_len, compilation.config.d_model];
        Ok(Executable { backend, note: present.note.clone(), shape })
    }

    /// Runs the block on an input `[batch, seq_len, d_model]` and returns its output of the same shape.
    ///
    /// # Errors
    /// When the input has another size, or the device fails.
    pub fn run(&mut self, hidden_states: &[f32]) -> Result<Vec<f32>, Error> {
        if hidden_states.len() != self.shape.iter().product::<usize>() {
            return Err(Error::Tensor {
                name: INPUT_NAME.to_owned(),
                expected: format!("F32 {:?}", self.shape),
                found: format!("{} elements", hidden_states.len()),
            });
        }
        match &mut self.backend {
            Backend::Cpu(executable) => executable.run(hidden_states.to_vec()),
            Backend::Cuda(executable) => {
                let mut outputs = executable.run(&[hidden_states])?;
                // The layout of a block's plan has one output.
                Ok(outputs.pop().unwrap_or_default())
            }
        }
    }

    /// Why it runs on the CPU although a GPU would have been taken, in one line.
    pub fn device_note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Whether it runs on a GPU.
    pub fn is_cuda(&self) -> bool {
        matches!(self.backend, Backend::Cuda(_))
    }

    /// What it runs on.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// What it runs on, to replay or time it directly.
    pub fn backend_mut(&mut self) -> &mut Backend {
        &mut self.backend
    }

    /// Shape of input and output.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }
}
