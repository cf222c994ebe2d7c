//! Kernels loaded into a device's context.

use std::ffi::CString;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUfunction_attribute as FunctionAttribute};
use hyenac_kernels::Launch;

use super::device::{CudaDevice, Limits};
use super::error::{CudaError, During, Result};
use super::nvrtc::CompiledKernel;

/// Dynamic shared memory that a kernel may use without asking, bytes, less what it declares statically.
const SHARED_BYTES_WITHOUT_ASKING: u32 = 48 * 1024;

/// A kernel that can be launched on its device. Unloaded when dropped.
pub(super) struct LoadedKernel {
    device: CudaDevice,
    module: sys::CUmodule,
    function: sys::CUfunction,
    name: String,
    static_shared_bytes: u32,
    threads_per_block: u32,
}

// SAFETY: the two handles are names of objects that the driver guards itself: they may be used by any thread on which
// the context is current, which every caller makes sure of by `CudaDevice::bind`.
unsafe impl Send for LoadedKernel {}
// SAFETY: as above; no method changes the kernel through a shared reference except `allow_shared`, which the driver
// serialises.
unsafe impl Sync for LoadedKernel {}

impl LoadedKernel {
    /// Loads machine code and finds its function.
    pub(super) fn load(device: &CudaDevice, compiled: &CompiledKernel) -> Result<LoadedKernel> {
        device.bind()?;
        let load = |failure| CudaError::Load { kernel: compiled.name.clone(), failure };
        let name = CString::new(compiled.name.as_str())
            .map_err(|_| CudaError::InvalidPlan { what: "a kernel's name contains a null byte".to_owned() })?;
        // SAFETY: the image is an ELF file as NVRTC made it (the cache verifies its hash), which states its own size.
        let module = unsafe { result::module::load_data(compiled.cubin.as_ptr().cast()) };
        let module = module.during("cuModuleLoadData").map_err(load)?;
        let mut kernel = LoadedKernel {
            device: device.clone(),
            module,
            function: std::ptr::null_mut(),
            name: compiled.name.clone(),
            static_shared_bytes: 0,
            threads_per_block: 0,
        };
        // SAFETY: the module has just been loaded. From here on `kernel` unloads it, on failure too.
        let function = unsafe { result::module::get_function(module, name) };
        kernel.function = function.during("cuModuleGetFunction").map_err(load)?;
        kernel.static_shared_bytes = kernel.attribute(FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        kernel.threads_per_block = kernel.attribute(FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        Ok(kernel)
    }

    /// Its handle, valid as long as `self`.
    pub(super) fn function(&self) -> sys::CUfunction {
        self.function
    }

    fn attribute(&self, attribute: FunctionAttribute) -> Result<u32> {
        // SAFETY: the function belongs to the module that `self` keeps loaded.
        let value = unsafe { result::function::get_function_attribute(self.function, attribute) };
        let value = value.during("cuFuncGetAttribute").map_err(|failure| self.load_error(failure))?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    fn load_error(&self, failure: super::error::DriverFailure) -> CudaError {
        CudaError::Load { kernel: self.name.clone(), failure }
    }

    /// Checks a launch against the device and the kernel, and allows it the shared memory that it asks for.
    pub(super) fn prepare(&self, launch: &Launch) -> Result<()> {
        check_launch(&self.name, launch, &self.device.info().limits, self.threads_per_block, self.static_shared_bytes)?;
        self.check_parameters(launch.arguments.len())?;
        self.allow_shared(launch.shared_bytes)
    }

    /// Refuses a number of arguments other than the kernel's own: the driver reads as many pointers as the
    /// kernel has parameters, however many there are.
    fn check_parameters(&self, arguments: usize) -> Result<()> {
        self.device.bind()?;
        let pointer = size_of::<u64>();
        for index in 0..=arguments {
            let (mut offset, mut bytes) = (0, 0);
            // SAFETY: the function is loaded and both results are valid for a write; an index past the last
            // parameter is an error that the driver reports.
            let code = unsafe { sys::cuFuncGetParamInfo(self.function, index, &mut offset, &mut bytes) };
            let present = code == sys::CUresult::CUDA_SUCCESS;
            if !present && code != sys::CUresult::CUDA_ERROR_INVALID_VALUE {
                code.during("cuFuncGetParamInfo").map_err(|failure| self.load_error(failure))?;
            }
            if present != (index < arguments) || (present && bytes != pointer) {
                let what = format!("kernel {} does not have {arguments} pointers as its parameters", self.name);
                return Err(CudaError::InvalidPlan { what });
            }
        }
        Ok(())
    }

    /// Raises the kernel's limit of dynamic shared memory; never lowers it, since another launch may need it.
    fn allow_shared(&self, bytes: u32) -> Result<()> {
        if bytes.saturating_add(self.static_shared_bytes) <= SHARED_BYTES_WITHOUT_ASKING {
            return Ok(());
        }
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        if self.attribute(attribute)? >= bytes {
            return Ok(());
        }
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the function belongs to the module that `self` keeps loaded.
        unsafe { result::function::set_function_attribute(self.function, attribute, value) }
            .during("cuFuncSetAttribute")
            .map_err(|failure| self.load_error(failure))
    }
}

impl Drop for LoadedKernel {
    fn drop(&mut self) {
        let context = self.device.context();
        context.record_err(context.synchronize());
        // SAFETY: loaded by `load`, unloaded only here; no work of the context uses it any more, and graphs
        // that name it are dropped before it.
        context.record_err(unsafe { result::module::unload(self.module) });
    }
}

/// Refuses what the driver would refuse with less to say.
fn check_launch(kernel: &str, launch: &Launch, limits: &Limits, kernel_threads: u32, static_shared: u32) -> Result<()> {
    let check = |what: &'static str, needed: u64, limit: u64| {
        if needed <= limit {
            return Ok(());
        }
        Err(CudaError::LaunchLimit { kernel: kernel.to_owned(), what, needed, limit })
    };
    if launch.grid.contains(&0) || launch.block.contains(&0) {
        return Err(CudaError::InvalidPlan { what: format!("a launch of kernel {kernel} is empty") });
    }
    let axes = ["the grid's x extent", "the grid's y extent", "the grid's z extent"];
    for (axis, what) in axes.into_iter().enumerate() {
        check(what, launch.grid[axis].into(), limits.grid[axis].into())?;
    }
    let axes = ["the block's x extent", "the block's y extent", "the block's z extent"];
    for (axis, what) in axes.into_iter().enumerate() {
        check(what, launch.block[axis].into(), limits.block[axis].into())?;
    }
    let threads = launch.block.iter().map(|&extent| u64::from(extent)).fold(1, u64::saturating_mul);
    check("the number of threads of a block", threads, limits.threads_per_block.into())?;
    check("the number of threads of a block of this kernel", threads, kernel_threads.into())?;
    let shared = u64::from(launch.shared_bytes) + u64::from(static_shared);
    check("the shared memory of a block in bytes", shared, limits.shared_bytes_per_block.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        threads_per_block: 1024,
        block: [1024, 1024, 64],
        grid: [0x7fff_ffff, 65535, 65535],
        shared_bytes_per_block: 227 * 1024,
    };

    fn launch(grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> Launch {
        Launch {
            kernel: 0,
            grid,
            block,
            shared_bytes,
            arguments: Vec::new(),
            after: Vec::new(),
            early: Vec::new(),
            family: String::new(),
            schedule: String::new(),
            predicted_us: 0.0,
            floor_us: 0.0,
            computes: String::new(),
        }
    }

    #[test]
    fn launches_within_the_limits_pass() {
        for good in [launch([1, 1, 1], [1, 1, 1], 0), launch([1 << 20, 65535, 1], [256, 4, 1], 226 * 1024)] {
            assert_eq!(check_launch("k", &good, &LIMITS, 1024, 1024), Ok(()));
        }
    }

    #[test]
    fn each_limit_is_named() {
        let cases = [
            (launch([1, 65536, 1], [1, 1, 1], 0), "grid's y", 65536, 65535),
            (launch([1, 1, 1], [1, 1, 65], 0), "block's z", 65, 64),
            (launch([1, 1, 1], [1024, 2, 1], 0), "threads of a block", 2048, 1024),
            (launch([1, 1, 1], [512, 1, 1], 0), "of this kernel", 512, 384),
            (launch([1, 1, 1], [32, 1, 1], 227 * 1024), "shared memory", 227 * 1024 + 16, 227 * 1024),
        ];
        for (bad, part, expected_needed, expected_limit) in cases {
            match check_launch("k", &bad, &LIMITS, 384, 16) {
                Err(CudaError::LaunchLimit { what, needed, limit, .. }) => {
                    assert!(what.contains(part), "{what}");
                    assert_eq!((needed, limit), (expected_needed, expected_limit));
                }
                other => panic!("{part}: {other:?}"),
            }
        }
        let empty = check_launch("k", &launch([0, 1, 1], [1, 1, 1], 0), &LIMITS, 384, 0);
        assert!(matches!(empty, Err(CudaError::InvalidPlan { .. })));
    }
}
