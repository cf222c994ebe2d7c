//! Buffers in device memory and pointers into them.

use std::marker::PhantomData;

use cudarc::driver::{result, sys};

use super::device::{CudaDevice, Stream};
use super::error::{CudaError, DriverFailure, During, Result};

/// Alignment that kernels need of every pointer from outside, bytes: the width of their widest load.
pub const POINTER_ALIGNMENT: u64 = 16;

/// Bytes of device memory, freed when dropped unless they are borrowed.
#[derive(Debug)]
pub struct DeviceBuffer {
    device: CudaDevice,
    address: u64,
    bytes: u64,
    owned: bool,
}

/// The address of device memory that stays allocated for `'a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePointer<'a> {
    address: u64,
    bytes: u64,
    memory: PhantomData<&'a DeviceBuffer>,
}

impl<'a> DevicePointer<'a> {
    /// Memory that another library allocated.
    ///
    /// # Safety
    /// `bytes` bytes at `address` are allocated on the executable's device, for `'a` and until every launch that was
    /// given this pointer has finished, and nothing else writes them meanwhile.
    pub unsafe fn from_raw(address: u64, bytes: u64) -> DevicePointer<'a> {
        DevicePointer { address, bytes, memory: PhantomData }
    }

    /// The address.
    pub fn address(self) -> u64 {
        self.address
    }

    /// How many bytes lie there.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// Refuses a pointer that does not fit a tensor of this name and size.
    pub(super) fn check(self, name: &str, bytes: u64) -> Result<()> {
        if self.bytes != bytes {
            return Err(CudaError::TensorSize { name: name.to_owned(), expected: bytes, got: self.bytes });
        }
        if !self.address.is_multiple_of(POINTER_ALIGNMENT) || self.address == 0 {
            let (name, address) = (name.to_owned(), self.address);
            return Err(CudaError::Misaligned { name, address, alignment: POINTER_ALIGNMENT });
        }
        Ok(())
    }

    /// Whether two pointers share a byte.
    pub(super) fn overlaps(self, other: DevicePointer<'_>) -> bool {
        self.address < other.address.saturating_add(other.bytes)
            && other.address < self.address.saturating_add(self.bytes)
    }
}

/// Refuses an amount of memory that is not free.
pub(super) fn check_free(device: &CudaDevice, needed: u64, what: &str) -> Result<()> {
    let free = device.free_bytes()?;
    if needed > free { Err(CudaError::OutOfMemory { what: what.to_owned(), needed, free }) } else { Ok(()) }
}

impl DeviceBuffer {
    /// Allocates memory; `what` names its use in the error. The contents are undefined.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] with the bytes needed and free.
    pub fn allocate(device: &CudaDevice, bytes: u64, what: &str) -> Result<DeviceBuffer> {
        device.bind()?;
        let out_of_memory = |free| CudaError::OutOfMemory { what: what.to_owned(), needed: bytes, free };
        let free = device.free_bytes()?;
        // The driver refuses zero bytes; an empty buffer still has an address of its own.
        let size = usize::try_from(bytes.max(POINTER_ALIGNMENT)).map_err(|_| out_of_memory(free))?;
        if bytes > free {
            return Err(out_of_memory(free));
        }
        // SAFETY: the context is current; the memory is freed once, by `drop`.
        match unsafe { result::malloc_sync(size) } {
            Ok(address) => Ok(DeviceBuffer { device: device.clone(), address, bytes, owned: true }),
            // Free memory can be in pieces, or another process can have been faster.
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(out_of_memory(free)),
            Err(error) => Err(DriverFailure::new("cuMemAlloc_v2", error).into()),
        }
    }

    /// Allocates memory and fills it with these numbers.
    ///
    /// # Errors
    /// As [`DeviceBuffer::allocate`].
    pub fn from_f32(device: &CudaDevice, values: &[f32], what: &str) -> Result<DeviceBuffer> {
        let mut buffer = DeviceBuffer::allocate(device, size_of_val(values) as u64, what)?;
        buffer.write_f32(values, device.stream())?;
        Ok(buffer)
    }

    /// A buffer in memory that another library allocated and will free.
    ///
    /// # Safety
    /// `bytes` bytes at `address` are allocated on `device` as long as the result lives and until every launch that
    /// was given it has finished, and other work on them is ordered with this module's by streams or synchronisation.
    pub unsafe fn borrowed(device: &CudaDevice, address: u64, bytes: u64) -> DeviceBuffer {
        DeviceBuffer { device: device.clone(), address, bytes, owned: false }
    }

    /// Its address.
    pub fn pointer(&self) -> DevicePointer<'_> {
        DevicePointer { address: self.address, bytes: self.bytes, memory: PhantomData }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The device it is on.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Copies numbers from the host, in the order of `stream`, and waits.
    ///
    /// # Errors
    /// [`CudaError::TensorSize`] when they do not fill the buffer, or [`CudaError::Run`].
    pub fn write_f32(&mut self, values: &[f32], stream: &Stream) -> Result<()> {
        self.check_size(size_of_val(values) as u64)?;
        self.device.check_stream(stream)?;
        self.device.bind()?;
        // SAFETY: the buffer has exactly that many bytes, and `values` is borrowed until the copy has
        // finished, because both outcomes wait for it.
        let copied = unsafe { result::memcpy_htod_async(self.address, values, stream.cu_stream()) };
        let finished = stream.synchronize();
        copied.during("cuMemcpyHtoDAsync_v2").map_err(CudaError::Run)?;
        finished.during("cuStreamSynchronize").map_err(CudaError::Run)
    }

    /// Copies the numbers to the host, after the work that `stream` holds.
    ///
    /// # Errors
    /// [`CudaError::TensorSize`] when the buffer holds no whole number of them, or [`CudaError::Run`].
    pub fn read_f32(&self, stream: &Stream) -> Result<Vec<f32>> {
        let mut values = vec![0f32; (self.bytes / 4) as usize];
        self.check_size(size_of_val(values.as_slice()) as u64)?;
        self.device.check_stream(stream)?;
        self.device.bind()?;
        // SAFETY: `values` has exactly the buffer's size and lives until the copy has finished, because both
        // outcomes wait for it; every bit pattern is an f32.
        let copied = unsafe { result::memcpy_dtoh_async(&mut values, self.address, stream.cu_stream()) };
        let finished = stream.synchronize();
        copied.during("cuMemcpyDtoHAsync_v2").map_err(CudaError::Run)?;
        finished.during("cuStreamSynchronize").map_err(CudaError::Run)?;
        Ok(values)
    }

    /// Fills with a pattern of bytes, again and again from the beginning, in the order of `stream`, and waits. So a
    /// large tensor of any dtype gets valid values without as large a one on the host.
    ///
    /// # Errors
    /// [`CudaError::TensorSize`] when the pattern is empty and the buffer is not, or [`CudaError::Run`].
    pub fn fill_pattern(&mut self, pattern: &[u8], stream: &Stream) -> Result<()> {
        if pattern.is_empty() {
            return self.check_size(0);
        }
        self.device.check_stream(stream)?;
        self.device.bind()?;
        let mut offset = 0;
        let mut copied = Ok(());
        while offset < self.bytes && copied.is_ok() {
            let count = (pattern.len() as u64).min(self.bytes - offset);
            // SAFETY: `offset + count` is at most the buffer's size, `count` at most the pattern's, and `pattern` is
            // borrowed until the copies have finished, because every outcome waits for them below.
            copied = unsafe {
                result::memcpy_htod_async(self.address + offset, &pattern[..count as usize], stream.cu_stream())
            };
            offset += count;
        }
        let finished = stream.synchronize();
        copied.during("cuMemcpyHtoDAsync_v2").map_err(CudaError::Run)?;
        finished.during("cuStreamSynchronize").map_err(CudaError::Run)
    }

    /// Sets every byte, in the order of `stream`, without waiting.
    ///
    /// # Errors
    /// [`CudaError::Run`].
    pub fn fill(&self, byte: u8, stream: &Stream) -> Result<()> {
        self.device.check_stream(stream)?;
        self.device.bind()?;
        // SAFETY: the buffer has that many bytes, and stays allocated until the work has finished, because
        // `drop` waits for the device.
        unsafe { result::memset_d8_async(self.address, byte, self.bytes as usize, stream.cu_stream()) }
            .during("cuMemsetD8Async")
            .map_err(CudaError::Run)
    }

    /// Fills with bytes that are NaN as f32 and f16, so that an element nobody writes is seen.
    ///
    /// # Errors
    /// [`CudaError::Run`].
    pub fn poison(&self, stream: &Stream) -> Result<()> {
        self.fill(0xff, stream)
    }

    fn check_size(&self, bytes: u64) -> Result<()> {
        if bytes == self.bytes {
            return Ok(());
        }
        Err(CudaError::TensorSize { name: "the host tensor".to_owned(), expected: self.bytes, got: bytes })
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let context = self.device.context();
        // Work in flight may still use the memory: wait for it. cudarc hands a failure to the next call.
        context.record_err(context.synchronize());
        // SAFETY: allocated by `allocate`, freed only here, and no work uses it any more.
        context.record_err(unsafe { result::free_sync(self.address) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(address: u64, bytes: u64) -> DevicePointer<'static> {
        // SAFETY: never given to a launch.
        unsafe { DevicePointer::from_raw(address, bytes) }
    }

    #[test]
    fn pointers_are_checked_for_size_and_alignment() {
        assert_eq!(pointer(256, 64).check("x", 64), Ok(()));
        assert!(matches!(pointer(256, 60).check("x", 64), Err(CudaError::TensorSize { got: 60, .. })));
        let error = pointer(264, 64).check("x", 64).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the pointer of x, 0x108, is not aligned to 16 bytes; copy the tensor to an aligned buffer"
        );
        assert!(pointer(0, 64).check("x", 64).is_err());
    }

    #[test]
    fn overlap_is_about_bytes() {
        assert!(pointer(256, 64).overlaps(pointer(256, 64)));
        assert!(pointer(256, 64).overlaps(pointer(304, 64)));
        assert!(!pointer(256, 64).overlaps(pointer(320, 64)));
        assert!(!pointer(256, 0).overlaps(pointer(256, 64)));
    }
}
