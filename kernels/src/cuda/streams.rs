//! A real device's copies beside its work: streams, fences in them, and memory of the host.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys;

use super::device::{DeviceAddress, Stream};
use super::devices::check;
use super::error::DeviceFault;

/// Events that wait to be used again. A stage has a few for each pass under way; those beyond are
/// made anew, which costs microseconds.
const EVENTS_KEPT_MAX: usize = 4096;

/// The streams of a device, by [`Stream`].
pub(super) struct CudaStreams([sys::CUstream; Stream::ALL.len()]);

impl CudaStreams {
    pub(super) const fn none() -> Self {
        Self([ptr::null_mut(); Stream::ALL.len()])
    }

    /// Creates the streams in the current context.
    pub(super) fn create(&mut self) -> Result<(), DeviceFault> {
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        for stream in &mut self.0 {
            // SAFETY: the driver writes a handle, which `destroy` releases.
            check("cuStreamCreate", unsafe { sys::cuStreamCreate(stream, flags) })?;
        }
        Ok(())
    }

    pub(super) const fn get(&self, stream: Stream) -> sys::CUstream {
        self.0[stream as usize]
    }

    /// Waits for all that was enqueued in any of them, in the current context.
    pub(super) fn wait(&self) -> Result<(), DeviceFault> {
        for stream in self.0.into_iter().filter(|stream| !stream.is_null()) {
            // SAFETY: a stream of the current context.
            check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream) })?;
        }
        Ok(())
    }

    /// Destroys the streams, once.
    pub(super) fn destroy(&mut self) {
        for stream in &mut self.0 {
            if !stream.is_null() {
                // SAFETY: made by the driver, and null from now on.
                let _destroyed = unsafe { sys::cuStreamDestroy_v2(*stream) };
                *stream = ptr::null_mut();
            }
        }
    }
}

/// A device's primary context, which stays as long as something holds it.
pub struct PrimaryContext {
    handle: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: the driver's handles may be used from any thread, and are only read.
unsafe impl Send for PrimaryContext {}
// SAFETY: as above.
unsafe impl Sync for PrimaryContext {}

impl PrimaryContext {
    pub(super) fn retain(handle: sys::CUdevice) -> Result<Arc<Self>, DeviceFault> {
        let mut context = ptr::null_mut();
        // SAFETY: the driver writes a handle, which `drop` releases.
        let retained = unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, handle) };
        check("cuDevicePrimaryCtxRetain", retained)?;
        Ok(Arc::new(Self { handle, context }))
    }

    pub(super) fn make_current(&self) -> Result<(), DeviceFault> {
        // SAFETY: the context lives as long as this.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // SAFETY: retained by `retain`.
        let _released = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.handle) };
    }
}

/// The events of a device. They may outlive it: a neighbour may still have to wait for one.
pub(super) struct EventPool {
    context: Arc<PrimaryContext>,
    /// Held for a push or a pop.
    free: Mutex<Vec<PooledEvent>>,
}

struct PooledEvent(sys::CUevent);

// SAFETY: the driver's handles may be used from any thread once the context is current there.
unsafe impl Send for PooledEvent {}

impl EventPool {
    /// The events of a device, whose context lives as long as they do.
    pub(super) fn new(handle: sys::CUdevice) -> Result<Arc<Self>, DeviceFault> {
        let context = PrimaryContext::retain(handle)?;
        Ok(Arc::new(Self { context, free: Mutex::default() }))
    }

    pub(super) fn context(&self) -> &Arc<PrimaryContext> {
        &self.context
    }

    fn take(&self) -> Result<PooledEvent, DeviceFault> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(event) = free {
            return Ok(event);
        }
        use sys::CUevent_flags_enum as Flags;
        // A thread that waits for one on the host has nothing else to do, and others need the core.
        let flags = Flags::CU_EVENT_DISABLE_TIMING as u32 | Flags::CU_EVENT_BLOCKING_SYNC as u32;
        let mut event = ptr::null_mut();
        // SAFETY: the context is current; the driver writes a handle, which is destroyed once.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
        Ok(PooledEvent(event))
    }
}

impl Drop for EventPool {
    fn drop(&mut self) {
        let _current = self.context.make_current();
        let free = self.free.get_mut().unwrap_or_else(PoisonError::into_inner);
        for PooledEvent(event) in free.drain(..) {
            // SAFETY: made by the driver, destroyed once.
            let _destroyed = unsafe { sys::cuEventDestroy_v2(event) };
        }
    }
}

/// A fence in a stream of a real device.
#[derive(Clone)]
pub struct CudaFence(Arc<RecordedEvent>);

struct RecordedEvent {
    event: PooledEvent,
    pool: Arc<EventPool>,
}

// SAFETY: the handle is only read, and may be used from any thread.
unsafe impl Sync for RecordedEvent {}

impl Drop for RecordedEvent {
    fn drop(&mut self) {
        // A stream waits for what was recorded in an event when the wait was enqueued, so that the
        // event may be recorded anew although a stream still waits for it.
        let event = PooledEvent(self.event.0);
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < EVENTS_KEPT_MAX {
            free.push(event);
            return;
        }
        drop(free);
        let _current = self.pool.context.make_current();
        // SAFETY: made by the driver, destroyed once.
        let _destroyed = unsafe { sys::cuEventDestroy_v2(event.0) };
    }
}

impl CudaFence {
    /// A fence after all that was enqueued in `stream`, whose context is current.
    pub(super) fn record(
        pool: &Arc<EventPool>,
        stream: sys::CUstream,
    ) -> Result<Self, DeviceFault> {
        let recorded = RecordedEvent { event: pool.take()?, pool: pool.clone() };
        // SAFETY: an event and a stream of the same context.
        check("cuEventRecord", unsafe { sys::cuEventRecord(recorded.event.0, stream) })?;
        Ok(Self(Arc::new(recorded)))
    }

    /// Has a stream of the current context, maybe another device's, wait for the fence.
    pub(super) fn stream_wait(&self, stream: sys::CUstream) -> Result<(), DeviceFault> {
        // SAFETY: a recorded event; a stream may wait for one of another context.
        let result = unsafe { sys::cuStreamWaitEvent(stream, self.0.event.0, 0) };
        check("cuStreamWaitEvent", result)
    }

    /// Waits on the host for the fence.
    pub(super) fn host_wait(&self) -> Result<(), DeviceFault> {
        self.0.pool.context.make_current()?;
        // SAFETY: a recorded event.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.0.event.0) })
    }
}

/// Memory of the host that every device copies by itself.
pub(super) fn allocate_host(bytes: u64) -> Result<DeviceAddress, DeviceFault> {
    let mut start: *mut c_void = ptr::null_mut();
    let size = usize::try_from(bytes).expect("a 64-bit system").max(1);
    // SAFETY: the driver writes an address, which `free_host` frees.
    let result = unsafe { sys::cuMemHostAlloc(&mut start, size, sys::CU_MEMHOSTALLOC_PORTABLE) };
    if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return Err(DeviceFault::OutOfHostMemory { asked_bytes: bytes });
    }
    check("cuMemHostAlloc", result)?;
    Ok(DeviceAddress(start as u64))
}

/// Frees memory of `allocate_host`, when nothing uses it.
pub(super) fn free_host(address: DeviceAddress) {
    // SAFETY: from `allocate_host`, freed once.
    let _freed = unsafe { sys::cuMemFreeHost(address.0 as *mut c_void) };
}

/// The handle and the context of a device, for copies between devices.
#[derive(Clone, Copy)]
pub(super) struct DeviceContext {
    pub(super) handle: sys::CUdevice,
    pub(super) context: sys::CUcontext,
}

/// The devices whose memory may be read directly, as far as direct access was requested.
#[derive(Default)]
pub(super) struct PeerAccess(Mutex<BTreeSet<sys::CUdevice>>);

impl PeerAccess {
    /// Turns direct access on where the machine has it. Without it the driver copies by way of the
    /// host. `own` is current.
    fn open(&self, own: DeviceContext, other: DeviceContext) -> Result<(), DeviceFault> {
        let mut requested = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !requested.insert(other.handle) {
            return Ok(());
        }
        let mut can: c_int = 0;
        // SAFETY: two devices; the driver writes an integer.
        let result = unsafe { sys::cuDeviceCanAccessPeer(&mut can, own.handle, other.handle) };
        check("cuDeviceCanAccessPeer", result)?;
        if can != 0 {
            // SAFETY: the other context lives as long as its device, which the caller holds.
            let result = unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) };
            // A machine may have more devices than may see each other: then the driver copies
            // through the host.
            if let Err(fault @ DeviceFault::Sticky { .. }) = check("cuCtxEnablePeerAccess", result)
            {
                return Err(fault);
            }
        }
        Ok(())
    }

    /// Copies from `other`'s memory to `own`, whose context is current, in a stream of `own`.
    pub(super) fn copy(
        &self,
        (own, to): (DeviceContext, DeviceAddress),
        (other, from): (DeviceContext, DeviceAddress),
        bytes: usize,
        stream: sys::CUstream,
    ) -> Result<(), DeviceFault> {
        if own.handle == other.handle {
            // SAFETY: the memory is the caller's; a device has one primary context.
            let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to.0, from.0, bytes, stream) };
            return check("cuMemcpyDtoDAsync", result);
        }
        self.open(own, other)?;
        // SAFETY: the memory is the caller's, each in the context that is named with it.
        let result = unsafe {
            sys::cuMemcpyPeerAsync(to.0, own.context, from.0, other.context, bytes, stream)
        };
        check("cuMemcpyPeerAsync", result)
    }
}
