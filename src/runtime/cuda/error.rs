//! Errors of the CUDA runtime, typed by stage.

use std::path::PathBuf;

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

use super::read_back::GraphMismatch;

/// Result of a call into this module.
pub type Result<T, E = CudaError> = std::result::Result<T, E>;

/// A driver call that failed, in the driver's own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {name} ({code}): {description}")]
pub struct DriverFailure {
    /// The function of the driver.
    pub call: &'static str,
    /// The number it returned.
    pub code: u32,
    /// Name of the number, for example `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub name: String,
    /// The driver's description.
    pub description: String,
}

impl DriverFailure {
    pub(super) fn new(call: &'static str, error: DriverError) -> DriverFailure {
        let text = |text: std::result::Result<&std::ffi::CStr, DriverError>, fallback: &str| match text {
            Ok(text) => text.to_string_lossy().into_owned(),
            Err(_) => fallback.to_owned(),
        };
        DriverFailure {
            call,
            code: error.0 as u32,
            name: text(error.error_name(), "an unknown error"),
            description: text(error.error_string(), "the driver has no description"),
        }
    }
}

/// Names the driver call that a bare error number came from.
pub(super) trait During<T> {
    /// The same result, with `call` as the origin of a failure.
    fn during(self, call: &'static str) -> std::result::Result<T, DriverFailure>;
}

impl<T> During<T> for std::result::Result<T, DriverError> {
    fn during(self, call: &'static str) -> std::result::Result<T, DriverFailure> {
        self.map_err(|error| DriverFailure::new(call, error))
    }
}

impl During<()> for CUresult {
    fn during(self, call: &'static str) -> std::result::Result<(), DriverFailure> {
        self.result().during(call)
    }
}

/// A kernel that does not compile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel {kernel} does not compile for {arch}{}: {message}{}", at_line(*.line), indented(.source_line))]
pub struct CompileFailure {
    /// Name of the kernel.
    pub kernel: String,
    /// Architecture it was compiled for.
    pub arch: String,
    /// Line of the first error in the kernel's source, counted from 1.
    pub line: Option<u32>,
    /// The first error.
    pub message: String,
    /// Text of that line.
    pub source_line: String,
    /// The first lines of the compiler's log.
    pub log: String,
}

fn at_line(line: Option<u32>) -> String {
    line.map(|line| format!(" (line {line})")).unwrap_or_default()
}

fn indented(line: &str) -> String {
    if line.is_empty() { String::new() } else { format!("\n    {line}") }
}

/// Everything that can go wrong between a plan and its result on a CUDA device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CudaError {
    /// libcuda cannot be opened.
    #[error(
        "no NVIDIA driver: libcuda cannot be opened by the dynamic linker. \
         Install the NVIDIA driver, or run on the CPU (--device cpu)"
    )]
    DriverMissing,
    /// libcuda lacks a function that this runtime calls.
    #[error(
        "the NVIDIA driver is too old: its libcuda has no {missing}, which came with CUDA 12.8. \
         Update the driver to 570 or newer, or run on the CPU (--device cpu)"
    )]
    DriverTooOld {
        /// The first missing function.
        missing: &'static str,
    },
    /// The driver sees no device of this number.
    #[error(
        "no CUDA device {ordinal}: the driver sees {count}. Check nvidia-smi and CUDA_VISIBLE_DEVICES, or run on the CPU (--device cpu)"
    )]
    NoDevice {
        /// The number asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// No usable NVRTC.
    #[error("no NVRTC (libnvrtc, 12.0 or newer), the run-time compiler of CUDA. {}. Install CUDA or `pip install nvidia-cuda-nvrtc`, or set HYENAC_NVRTC to the library or its folder", searched(.tried))]
    NvrtcMissing {
        /// Every place tried, with what was wrong there.
        tried: Vec<(PathBuf, String)>,
    },
    /// An architecture that this runtime does not compile for.
    #[error("unknown GPU architecture `{arch}`; known are {}", .known.join(", "))]
    UnknownArch {
        /// The architecture asked for.
        arch: String,
        /// The architectures that are known.
        known: Vec<&'static str>,
    },
    /// A plan made for another architecture than that of the device.
    #[error(
        "the plan was made for {plan}, the device is {device}: compile again with a --target that {device} can run"
    )]
    WrongArchitecture {
        /// Architecture of the plan.
        plan: String,
        /// Architecture of the device.
        device: String,
    },
    /// NVRTC refuses a kernel.
    #[error(transparent)]
    Compile(Box<CompileFailure>),
    /// NVRTC failed for another reason than the kernel's source.
    #[error("{call} failed for kernel {kernel}: {description} ({code})")]
    Nvrtc {
        /// Name of the kernel.
        kernel: String,
        /// The function of NVRTC.
        call: &'static str,
        /// The number it returned.
        code: i32,
        /// NVRTC's name of the number.
        description: String,
    },
    /// A compiled kernel cannot be loaded.
    #[error("kernel {kernel} cannot be loaded: {failure}")]
    Load {
        /// Name of the kernel.
        kernel: String,
        /// The driver's answer.
        failure: DriverFailure,
    },
    /// A launch asks for more than the device or the kernel allows.
    #[error(
        "kernel {kernel}: {what} is {needed}, the limit on this device is {limit}; choose another schedule or target"
    )]
    LaunchLimit {
        /// Name of the kernel.
        kernel: String,
        /// What is too large.
        what: &'static str,
        /// What the launch asks for.
        needed: u64,
        /// What there is.
        limit: u64,
    },
    /// Device memory does not suffice.
    #[error(
        "out of device memory: {what} needs {needed} bytes, {free} are free; use a smaller batch or sequence, or free memory on the device"
    )]
    OutOfMemory {
        /// What the memory is for.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes that were free.
        free: u64,
    },
    /// The CUDA graph cannot be built.
    #[error("the CUDA graph cannot be built, at {what}: {failure}")]
    Capture {
        /// The node or step.
        what: String,
        /// The driver's answer.
        failure: DriverFailure,
    },
    /// A replay, or work around it, failed.
    #[error("running failed: {0}")]
    Run(DriverFailure),
    /// Another driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverFailure),
    /// A plan that contradicts itself. Plans of this version's lowering never do.
    #[error("invalid plan: {what}; compile it again")]
    InvalidPlan {
        /// The contradiction.
        what: String,
    },
    /// A weight that the plan reads was not given.
    #[error("weight `{name}` is missing")]
    MissingWeight {
        /// Name of the tensor.
        name: String,
    },
    /// Frozen weights cannot be replaced.
    #[error("the weights of this executable are frozen; bind again with the new weights, or bind them live")]
    FrozenWeights,
    /// A wrong number of inputs or outputs.
    #[error("expected {expected} {what}, got {got}")]
    TensorCount {
        /// `inputs` or `outputs`.
        what: &'static str,
        /// Number of the plan.
        expected: usize,
        /// Number given.
        got: usize,
    },
    /// A tensor of the wrong size.
    #[error("{name} has {got} bytes, the plan expects {expected}")]
    TensorSize {
        /// Name of the tensor.
        name: String,
        /// Bytes of the plan.
        expected: u64,
        /// Bytes given.
        got: u64,
    },
    /// A pointer that kernels cannot load vectors from.
    #[error(
        "the pointer of {name}, {address:#x}, is not aligned to {alignment} bytes; copy the tensor to an aligned buffer"
    )]
    Misaligned {
        /// Name of the tensor.
        name: String,
        /// The pointer.
        address: u64,
        /// What is needed.
        alignment: u64,
    },
    /// An output in the memory of an input.
    #[error(
        "{output} overlaps {input} in device memory; kernels read inputs after they have begun to write outputs, so give the output memory of its own"
    )]
    Overlap {
        /// Name of the output.
        output: String,
        /// Name of the other tensor.
        input: String,
    },
    /// A stream or buffer of another device.
    #[error("{what} belongs to another CUDA context than the executable (device {device})")]
    WrongContext {
        /// The stranger.
        what: &'static str,
        /// Device number of the executable.
        device: usize,
    },
    /// One executable is larger than the whole budget of its cache.
    #[error(
        "the executable for {key} needs {needed} bytes, the cache's budget is {budget}; raise the budget or use a smaller case"
    )]
    OverBudget {
        /// The case.
        key: String,
        /// Bytes needed.
        needed: u64,
        /// The budget.
        budget: u64,
    },
    /// The reserved address range of a shared arena is used up.
    #[error("the shared arena has {reserved} bytes of addresses, {needed} are needed; reserve more when it is made")]
    ArenaRange {
        /// Bytes reserved.
        reserved: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The instantiated graph is not the plan's.
    #[error("the CUDA graph differs from its plan: {0}")]
    GraphMismatch(#[from] GraphMismatch),
}

impl CudaError {
    /// Whether device memory was the reason, so that freeing some may help.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            CudaError::OutOfMemory { .. } => true,
            CudaError::Load { failure, .. }
            | CudaError::Capture { failure, .. }
            | CudaError::Run(failure)
            | CudaError::Driver(failure) => failure.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32,
            _ => false,
        }
    }
}

/// The places of [`CudaError::NvrtcMissing`] as a sentence.
fn searched(tried: &[(PathBuf, String)]) -> String {
    if tried.is_empty() {
        return "No place to search was found".to_owned();
    }
    let mut text = String::from("Searched");
    for (position, (path, reason)) in tried.iter().enumerate() {
        let separator = if position == 0 { ' ' } else { ';' };
        text.push(separator);
        if position > 0 {
            text.push(' ');
        }
        text.push_str(&format!("{} ({reason})", path.display()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_the_thing_the_limit_and_the_way_out() {
        let memory = CudaError::OutOfMemory { what: "the arena".to_owned(), needed: 4096, free: 100 }.to_string();
        for part in ["the arena", "4096", "100", "smaller batch"] {
            assert!(memory.contains(part), "{memory}");
        }
        let nvrtc = CudaError::NvrtcMissing { tried: vec![("/opt/cuda/lib64".into(), "no libnvrtc".to_owned())] };
        let nvrtc = nvrtc.to_string();
        for part in ["/opt/cuda/lib64", "HYENAC_NVRTC", "Install"] {
            assert!(nvrtc.contains(part), "{nvrtc}");
        }
        let compile = CudaError::Compile(Box::new(CompileFailure {
            kernel: "gate".to_owned(),
            arch: "sm_80".to_owned(),
            line: Some(3),
            message: "identifier \"foo\" is undefined".to_owned(),
            source_line: "a[0] = foo;".to_owned(),
            log: String::new(),
        }));
        assert_eq!(
            compile.to_string(),
            "kernel gate does not compile for sm_80 (line 3): identifier \"foo\" is undefined\n    a[0] = foo;"
        );
        let failure = DriverFailure {
            call: "cuGraphLaunch",
            code: 700,
            name: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned(),
            description: "an illegal memory access was encountered".to_owned(),
        };
        assert_eq!(
            CudaError::Run(failure.clone()).to_string(),
            "running failed: cuGraphLaunch failed with CUDA_ERROR_ILLEGAL_ADDRESS (700): \
             an illegal memory access was encountered"
        );
        let full = DriverFailure { code: 2, ..failure };
        assert!(CudaError::Capture { what: "instantiation".to_owned(), failure: full }.is_out_of_memory());
        assert!(CudaError::DriverMissing.to_string().contains("--device cpu"));
        assert!(CudaError::NoDevice { ordinal: 3, count: 1 }.to_string().contains("no CUDA device 3"));
    }
}
