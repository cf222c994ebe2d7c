//! One CUDA device: its context and what is known about it.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{CudaContext, DriverError, result};

use super::discovery;
use super::error::{CudaError, DriverFailure, During, Result};

/// A stream of a device. Work on one stream runs in order.
pub type Stream = cudarc::driver::CudaStream;

/// Limits that launches are checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Threads of a block.
    pub threads_per_block: u32,
    /// Threads of a block along each axis.
    pub block: [u32; 3],
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Shared memory of a block, bytes, static and dynamic together.
    pub shared_bytes_per_block: u32,
}

/// What is known about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number of the device, as the driver counts.
    pub ordinal: usize,
    /// Marketing name.
    pub name: String,
    /// Compute capability, for example `(9, 0)`.
    pub compute_capability: (u32, u32),
    /// What kernels are compiled for, for example `sm_90a`.
    pub arch: String,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Size of the L2 cache, bytes.
    pub l2_bytes: u64,
    /// Device memory, bytes.
    pub total_bytes: u64,
    /// Newest CUDA version of the driver, for example `(13, 0)`.
    pub driver_version: (u32, u32),
    /// Version of NVRTC; `None` when it cannot be found.
    pub nvrtc_version: Option<(i32, i32)>,
    /// Limits of launches.
    pub limits: Limits,
}

/// A device with its primary context, which other libraries of the process share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CudaDevice {
    context: Arc<CudaContext>,
    stream: Arc<Stream>,
    info: Arc<DeviceInfo>,
}

impl CudaDevice {
    /// Opens device number `ordinal`.
    ///
    /// # Errors
    /// [`CudaError::DriverMissing`], [`CudaError::DriverTooOld`], [`CudaError::NoDevice`], or what the driver says.
    pub fn open(ordinal: usize) -> Result<CudaDevice> {
        discovery::require_driver()?;
        let count = match CudaContext::device_count() {
            Ok(count) => usize::try_from(count).unwrap_or(0),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => 0,
            Err(error) => return Err(DriverFailure::new("cuInit", error).into()),
        };
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).during("cuDevicePrimaryCtxRetain")?;
        // SAFETY: no cudarc slice is made in this crate, so there are no events to miss; buffers and streams
        // are ordered by this module itself.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().during("cuStreamCreate")?;
        let info = Arc::new(describe(&context, ordinal)?);
        Ok(CudaDevice { context, stream, info })
    }

    /// For tests: device 0, or `None` after one line on standard error that says the test is skipped.
    ///
    /// # Panics
    /// When there is no device and `HYENAC_REQUIRE_GPU=1`.
    pub fn for_tests() -> Option<CudaDevice> {
        match CudaDevice::open(0) {
            Ok(device) => Some(device),
            Err(error) => {
                assert!(std::env::var_os("HYENAC_REQUIRE_GPU").is_none_or(|value| value != "1"), "{error}");
                // Written past the test harness, which would swallow the line of a passing test.
                let _ = std::io::Write::write_fmt(
                    &mut std::io::stderr(),
                    format_args!("SKIPPED, needs a CUDA device: {error}\n"),
                );
                None
            }
        }
    }

    /// What is known about it.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// What kernels are compiled for.
    pub fn arch(&self) -> &str {
        &self.info.arch
    }

    /// The stream that this module's own copies and conveniences run on.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// A new stream, which does not wait for the legacy default stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new_stream(&self) -> Result<Arc<Stream>> {
        Ok(self.context.new_stream().during("cuStreamCreate")?)
    }

    /// A stream that another library made.
    ///
    /// # Safety
    /// `raw` is a `CUstream` (or `cudaStream_t`) of this device's primary context, and lives as long as any clone of
    /// the result; a shared arena keeps the stream of its last launch.
    pub unsafe fn borrow_stream(&self, raw: *mut std::ffi::c_void) -> Arc<Stream> {
        // SAFETY: the caller's promise is the one that cudarc asks for; this module orders its work by the stream.
        unsafe { self.context.wrap_borrowed_stream(raw.cast()) }
    }

    /// Waits for all work of the context.
    ///
    /// # Errors
    /// [`CudaError::Run`] when work that was in flight failed.
    pub fn synchronize(&self) -> Result<()> {
        self.context.synchronize().during("cuCtxSynchronize").map_err(CudaError::Run)
    }

    /// Free device memory, bytes.
    ///
    /// # Errors
    /// What the driver says.
    pub fn free_bytes(&self) -> Result<u64> {
        let (free, _) = self.context.mem_get_info().during("cuMemGetInfo_v2")?;
        Ok(free as u64)
    }

    /// The context of cudarc.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Makes the context current on this thread, as every driver call needs.
    pub(super) fn bind(&self) -> Result<()> {
        Ok(self.context.bind_to_thread().during("cuCtxSetCurrent")?)
    }

    /// Refuses a stream of another context.
    pub(super) fn check_stream(&self, stream: &Stream) -> Result<()> {
        if stream.context().cu_ctx() == self.context.cu_ctx() {
            Ok(())
        } else {
            Err(CudaError::WrongContext { what: "the stream", device: self.info.ordinal })
        }
    }
}

fn describe(context: &Arc<CudaContext>, ordinal: usize) -> Result<DeviceInfo> {
    let attribute = |attribute: Attribute| -> Result<u32> {
        let value = context.attribute(attribute).during("cuDeviceGetAttribute")?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    let compute_capability = (
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    let mut version = 0;
    // SAFETY: `version` is valid for a write.
    unsafe { sys::cuDriverGetVersion(&mut version) }.during("cuDriverGetVersion")?;
    let version = u32::try_from(version).unwrap_or(0);
    let (_, total) = result::mem_get_info().during("cuMemGetInfo_v2")?;
    Ok(DeviceInfo {
        ordinal,
        name: context.name().during("cuDeviceGetName")?,
        compute_capability,
        arch: architecture(compute_capability),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        total_bytes: total as u64,
        driver_version: (version / 1000, version % 1000 / 10),
        nvrtc_version: discovery::nvrtc().ok().map(|library| library.version()),
        limits: Limits {
            threads_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            block: [
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
            ],
            grid: [
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
            ],
            shared_bytes_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        },
    })
}

/// What kernels are compiled for on a device of this compute capability. Only 9.0 is asked for with its own
/// instructions (`a`), because only its kernels use them.
fn architecture((major, minor): (u32, u32)) -> String {
    match (major, minor) {
        (9, 0) => "sm_90a".to_owned(),
        _ => format!("sm_{major}{minor}"),
    }
}

/// Whether kernels written for one architecture may be compiled for another.
///
/// Kernels for `sm_80` run on everything newer; those for an architecture with an `a` may use instructions that
/// no other has.
pub(super) fn runs_on(plan: &str, device: &str) -> bool {
    let number = |arch: &str| arch.strip_prefix("sm_").and_then(|rest| rest.parse::<u32>().ok());
    match (number(plan), number(device.trim_end_matches('a'))) {
        (Some(plan), Some(device)) => plan <= device,
        _ => plan == device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_of_known_devices_can_be_compiled_for() {
        let expected =
            [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100"), ((12, 0), "sm_120")];
        for (capability, arch) in expected {
            assert_eq!(architecture(capability), arch);
            super::super::nvrtc::check_architecture(arch).unwrap();
        }
    }

    #[test]
    fn plans_run_on_their_own_and_on_newer_devices() {
        for (plan, device) in [("sm_90a", "sm_90a"), ("sm_80", "sm_90a"), ("sm_80", "sm_80"), ("sm_80", "sm_120")] {
            assert!(runs_on(plan, device), "{plan} on {device}");
        }
        for (plan, device) in [("sm_90a", "sm_100"), ("sm_100", "sm_90a"), ("sm_90a", "sm_90"), ("nonsense", "sm_80")] {
            assert!(!runs_on(plan, device), "{plan} on {device}");
        }
    }

    #[test]
    fn a_device_that_does_not_exist_is_refused() {
        match CudaDevice::open(4096) {
            Err(CudaError::DriverMissing | CudaError::DriverTooOld { .. } | CudaError::NoDevice { .. }) => {}
            Err(CudaError::Driver(failure)) => assert_eq!(failure.call, "cuInit"),
            other => panic!("{other:?}"),
        }
    }
}
