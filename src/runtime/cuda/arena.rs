//! The memory that launches of one plan hand values through: an executable's own, or shared by several.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;

use super::device::{CudaDevice, Stream};
use super::error::{CudaError, During, Result};
use super::memory::{DeviceBuffer, check_free};

/// An arena that several executables use one after the other. It grows without moving, because its addresses are
/// reserved first and memory is mapped behind them when needed; every member's arena begins at its start.
///
/// Launches of its members are serialised, on whichever streams they are made.
pub struct SharedArena {
    device: CudaDevice,
    base: u64,
    reserved: u64,
    granularity: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Mapped pieces, adjacent from the start: size and handle.
    pieces: Vec<(u64, sys::CUmemGenericAllocationHandle)>,
    /// Where the last launch of a member went.
    last: Option<Arc<Stream>>,
}

impl State {
    fn mapped(&self) -> u64 {
        self.pieces.iter().map(|(bytes, _)| bytes).sum()
    }
}

impl SharedArena {
    /// Reserves addresses, and no memory yet, for arenas of up to `bytes` bytes.
    ///
    /// # Errors
    /// What the driver says.
    pub fn reserve(device: &CudaDevice, bytes: u64) -> Result<Arc<SharedArena>> {
        device.bind()?;
        let mut granularity = 0;
        // SAFETY: both pointers are valid for the call.
        unsafe {
            sys::cuMemGetAllocationGranularity(
                &mut granularity,
                &properties(device),
                sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
            )
        }
        .during("cuMemGetAllocationGranularity")?;
        let granularity = (granularity as u64).max(1);
        let reserved = bytes.max(1).checked_next_multiple_of(granularity).unwrap_or(u64::MAX - granularity);
        let mut base = 0;
        // SAFETY: `base` is valid for a write; the range is given back once, by `drop`.
        unsafe { sys::cuMemAddressReserve(&mut base, reserved as usize, 0, 0, 0) }.during("cuMemAddressReserve")?;
        Ok(Arc::new(SharedArena { device: device.clone(), base, reserved, granularity, state: Mutex::default() }))
    }

    /// Bytes of memory it holds now.
    pub fn mapped_bytes(&self) -> u64 {
        self.lock().mapped()
    }

    /// Whether it is on this device.
    pub(super) fn is_on(&self, device: &CudaDevice) -> bool {
        self.device.context().cu_ctx() == device.context().cu_ctx()
    }

    /// Makes sure that `bytes` bytes are mapped from the start. Members in flight are not disturbed.
    fn grow(&self, bytes: u64) -> Result<()> {
        if bytes > self.reserved {
            return Err(CudaError::ArenaRange { reserved: self.reserved, needed: bytes });
        }
        let mut state = self.lock();
        let mapped = state.mapped();
        if bytes <= mapped {
            return Ok(());
        }
        // At most `reserved`, which is a multiple of the granularity too.
        let more = (bytes - mapped).next_multiple_of(self.granularity);
        self.device.bind()?;
        check_free(&self.device, more, "the shared arena")?;
        let mut handle = 0;
        // SAFETY: `handle` is valid for a write and the properties describe pinned memory of this device.
        let created = unsafe { sys::cuMemCreate(&mut handle, more as usize, &properties(&self.device), 0) };
        if created == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let free = self.device.free_bytes()?;
            return Err(CudaError::OutOfMemory { what: "the shared arena".to_owned(), needed: more, free });
        }
        created.during("cuMemCreate")?;
        let address = self.base + mapped;
        // SAFETY: the piece lies in the reserved range behind all mapped pieces, so nothing is mapped there,
        // and it has the size of the allocation.
        let outcome = unsafe { sys::cuMemMap(address, more as usize, 0, handle, 0) }.during("cuMemMap");
        if let Err(failure) = outcome {
            // SAFETY: the handle was created above and is mapped nowhere.
            let _ = unsafe { sys::cuMemRelease(handle) };
            return Err(failure.into());
        }
        let access = sys::CUmemAccessDesc {
            location: location(&self.device),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range has just been mapped, and one descriptor is given.
        let outcome = unsafe { sys::cuMemSetAccess(address, more as usize, &access, 1) }.during("cuMemSetAccess");
        if let Err(failure) = outcome {
            // SAFETY: undoes the two steps above; no pointer to the range has been given out.
            unsafe {
                let _ = sys::cuMemUnmap(address, more as usize);
                let _ = sys::cuMemRelease(handle);
            }
            return Err(failure.into());
        }
        state.pieces.push((more, handle));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharedArena {
    fn drop(&mut self) {
        let context = self.device.context();
        // No member is left, but its last launch may be in flight.
        context.record_err(context.synchronize());
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut address = self.base;
        for (bytes, handle) in state.pieces.drain(..) {
            // SAFETY: each piece was mapped at this address with this size, and is unmapped once.
            context.record_err(unsafe { sys::cuMemUnmap(address, bytes as usize) }.result());
            // SAFETY: the handle was created by `grow` and is released once.
            context.record_err(unsafe { sys::cuMemRelease(handle) }.result());
            address += bytes;
        }
        // SAFETY: the range was reserved with this size and nothing is mapped in it any more.
        context.record_err(unsafe { sys::cuMemAddressFree(self.base, self.reserved as usize) }.result());
    }
}

fn location(device: &CudaDevice) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.context().cu_device() }
}

fn properties(device: &CudaDevice) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// The arena of one executable.
pub(super) enum Arena {
    /// Memory of its own.
    Own(DeviceBuffer),
    /// The beginning of memory that others use too.
    Shared(Arc<SharedArena>),
}

impl Arena {
    /// An arena of `bytes` bytes, at the start of `shared` if that is given.
    pub(super) fn new(device: &CudaDevice, bytes: u64, shared: Option<Arc<SharedArena>>) -> Result<Arena> {
        match shared {
            Some(shared) if !shared.is_on(device) => {
                Err(CudaError::WrongContext { what: "the shared arena", device: device.info().ordinal })
            }
            Some(shared) => {
                shared.grow(bytes)?;
                Ok(Arena::Shared(shared))
            }
            None => Ok(Arena::Own(DeviceBuffer::allocate(device, bytes, "the arena")?)),
        }
    }

    /// Where it begins.
    pub(super) fn base(&self) -> u64 {
        match self {
            Arena::Own(buffer) => buffer.pointer().address(),
            Arena::Shared(shared) => shared.base,
        }
    }

    /// Bytes that nobody else uses.
    pub(super) fn own_bytes(&self) -> u64 {
        match self {
            Arena::Own(buffer) => buffer.bytes(),
            Arena::Shared(_) => 0,
        }
    }

    /// Calls `launch` so that its work on `stream` comes after that of every other member of a shared arena.
    ///
    /// An arena of one executable needs nothing: the driver serialises launches of one graph.
    pub(super) fn serialised(&self, stream: &Arc<Stream>, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        let Arena::Shared(shared) = self else { return launch() };
        // Held across the launch, so that two threads cannot both find the arena idle.
        let mut state = shared.lock();
        if let Some(last) = state.last.as_ref().filter(|last| last.cu_stream() != stream.cu_stream()) {
            stream.join(last).during("cuStreamWaitEvent").map_err(CudaError::Run)?;
        }
        if state.last.as_ref().is_none_or(|last| last.cu_stream() != stream.cu_stream()) {
            state.last = Some(Arc::clone(stream));
        }
        launch()
    }
}
