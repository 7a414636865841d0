//! Memory, and copies of it.

use std::ffi::{c_uchar, c_uint, c_void};

use cudarc::driver::sys::{self, CUcontext, CUdeviceptr, CUresult, CUstream};

use super::{context_of, in_context, own_stream, put};
use crate::machine::memory::BlockOwner;
use crate::machine::work::StreamWork;
use crate::machine::{DriverResult, EmulatedMachine};

/// Memory that a context takes for itself.
const CONTEXT_BYTES: u64 = 64 << 20;

fn free_bytes(machine: &EmulatedMachine, device: usize) -> u64 {
    let allocated = CONTEXT_BYTES + machine.blocks.bytes_of(device);
    (machine.settings.memory_mib << 20).saturating_sub(allocated)
}

/// The device that has these bytes.
fn owner(machine: &EmulatedMachine, start: CUdeviceptr, bytes: usize) -> DriverResult<usize> {
    match machine.blocks.owner_of(start, bytes) {
        Some(BlockOwner::Device(device)) => Ok(device),
        Some(BlockOwner::Host) | None => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// Checks memory that a device may read and write: its own, or that of a peer whose access it has
/// enabled.
fn within_reach(
    machine: &EmulatedMachine,
    device: usize,
    start: CUdeviceptr,
    bytes: usize,
) -> DriverResult<()> {
    let owner = owner(machine, start, bytes)?;
    if owner == device || machine.devices[device].peers.contains(&owner) {
        return Ok(());
    }
    Err(CUresult::CUDA_ERROR_INVALID_VALUE)
}

fn is_pinned(machine: &EmulatedMachine, start: u64, bytes: usize) -> bool {
    machine.blocks.owner_of(start, bytes) == Some(BlockOwner::Host)
}

calls! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
        in_context(|machine, device| {
            // SAFETY: the caller's pointers.
            unsafe {
                put(free, free_bytes(machine, device) as usize)?;
                put(total, (machine.settings.memory_mib << 20) as usize)
            }
        })
    }

    fn cuMemAlloc_v2(to: *mut CUdeviceptr, bytes: usize) -> CUresult {
        in_context(|machine, device| {
            if bytes == 0 {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            if bytes as u64 > free_bytes(machine, device) {
                return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            }
            // SAFETY: the caller's pointer.
            unsafe { put(to, machine.blocks.take(bytes, BlockOwner::Device(device))) }
        })
    }

    fn cuMemFree_v2(start: CUdeviceptr) -> CUresult {
        in_context(|machine, _| match machine.blocks.owner(start) {
            Some(BlockOwner::Device(_)) => {
                machine.blocks.free(start);
                Ok(())
            }
            Some(BlockOwner::Host) | None => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        })
    }

    fn cuMemHostAlloc(to: *mut *mut c_void, bytes: usize, flags: c_uint) -> CUresult {
        in_context(|machine, _| {
            if bytes == 0 || flags & !sys::CU_MEMHOSTALLOC_PORTABLE != 0 {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: the caller's pointer.
            unsafe { put(to, machine.blocks.take(bytes, BlockOwner::Host) as *mut c_void) }
        })
    }

    fn cuMemFreeHost(start: *mut c_void) -> CUresult {
        in_context(|machine, _| match machine.blocks.owner(start as u64) {
            Some(BlockOwner::Host) => {
                machine.blocks.free(start as u64);
                Ok(())
            }
            Some(BlockOwner::Device(_)) | None => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        })
    }

    fn cuMemsetD8Async(to: CUdeviceptr, byte: c_uchar, bytes: usize, stream: CUstream) -> CUresult {
        in_context(|machine, device| {
            own_stream(machine, device, stream as u64)?;
            within_reach(machine, device, to, bytes)?;
            machine.enqueue(stream as u64, StreamWork::Fill { to, byte, bytes })
        })
    }

    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
        in_context(|machine, device| {
            own_stream(machine, device, stream as u64)?;
            within_reach(machine, device, from, bytes)?;
            within_reach(machine, device, to, bytes)?;
            machine.enqueue(stream as u64, StreamWork::Copy { from, to, bytes })
        })
    }

    fn cuMemcpyPeerAsync(
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        bytes: usize,
        stream: CUstream,
    ) -> CUresult {
        in_context(|machine, device| {
            own_stream(machine, device, stream as u64)?;
            let places = [(to, to_context), (from, from_context)];
            for (start, context) in places {
                if owner(machine, start, bytes)? != context_of(machine, context)? {
                    return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
                }
            }
            machine.enqueue(stream as u64, StreamWork::Copy { from, to, bytes })
        })
    }

    // Into memory that the driver did not allocate, a copy is over when the call returns.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
        in_context(|machine, device| {
            let to = to as u64;
            let stream = stream as u64;
            own_stream(machine, device, stream)?;
            within_reach(machine, device, from, bytes)?;
            if is_pinned(machine, to, bytes) {
                return machine.enqueue(stream, StreamWork::Copy { from, to, bytes });
            }
            machine.wait_for_stream(stream)?;
            // SAFETY: the caller has memory for so many bytes, and the device has them.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
            Ok(())
        })
    }

    // From memory that the driver did not allocate, the bytes are copied when the call returns.
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) -> CUresult {
        in_context(|machine, device| {
            own_stream(machine, device, stream as u64)?;
            within_reach(machine, device, to, bytes)?;
            if is_pinned(machine, from as u64, bytes) {
                return machine.enqueue(stream as u64, StreamWork::Copy { from: from as u64, to, bytes });
            }
            // SAFETY: the caller has so many bytes.
            let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) }.to_vec();
            machine.enqueue(stream as u64, StreamWork::Write { from, to })
        })
    }
}
