//! Floats that leave for the host: gradients for the holders of copies, and states of layers.
//!
//! ```text
//!   compute  ... W ─fence─┐              ┌─follow─ the next that writes them
//!   out                   └─▶ copy ─fence┤
//!   a thread that sends or writes them   └─reach─ read
//! ```
//!
//! The stage goes on at once. A buffer holds the copy that still reads it: it may be read meanwhile, and
//! the caller that writes it has the device wait first ([`super::away::settle`]).

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::away::Guard;
use super::backend::CudaBackend;
use super::device::{Device, Stream};
use super::error::DeviceFault;
use super::memory::{CudaBuffer, Element};
use super::sheets::{Copied, Sheets};
use super::source::Precision;
use super::transfer::numbers_of;
use crate::arriving::{Arriving, HostFloats};

/// Buffers of a backend that are on their way: gradient, weights and both moments of 1,024 layers.
pub const LEAVING_MAX: usize = 1 << 12;
/// Memory of the host for all of them. What would take more is waited for at once.
pub const LEAVING_BYTES_MAX: u64 = 4 << 30;

/// The limits of what is on its way.
pub(super) const LIMITS: (usize, u64) = (LEAVING_MAX, LEAVING_BYTES_MAX);

/// A buffer on its way.
struct Leaving<D: Device> {
    precision: Precision,
    /// The fault of the backend that the buffer is of.
    fault: Arc<OnceLock<DeviceFault>>,
    /// The bytes of the buffer, until they have been read. Locked by the reader that takes them.
    copied: Mutex<Option<Copied<D>>>,
    len: usize,
    element: Element,
    floats: OnceLock<Vec<f32>>,
}

impl<D: Device> Leaving<D> {
    fn read(&self) -> Vec<f32> {
        let copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner).take();
        match copied.expect("it is read once").bytes() {
            Some(bytes) => numbers_of(&bytes, self.element, self.precision).into_floats(),
            None => vec![f32::NAN; self.len],
        }
    }
}

impl<D: Device> Arriving for Leaving<D> {
    fn count(&self) -> usize {
        self.len
    }

    fn floats(&self) -> &[f32] {
        self.floats.get_or_init(|| self.read())
    }

    fn fault(&self) -> Option<DeviceFault> {
        self.fault.get().cloned()
    }
}

/// Sends a buffer's floats to the host; none if there is no room for them there.
pub(super) fn carry<D: Device>(
    backend: &CudaBackend<D>,
    sheets: &Sheets<D>,
    from: &mut CudaBuffer<D>,
) -> Result<Option<HostFloats>, DeviceFault> {
    let (device, element, len) = (backend.shared_device(), from.element(), from.len());
    if len == 0 {
        return Ok(Some(Vec::new().into()));
    }
    let bytes = element.bytes(device.precision()) * len as u64;
    device.follow(Stream::Out, &device.fence(Stream::Compute)?)?;
    let Some(copied) = sheets.copy_out(backend, Stream::Out, (from.at(0), bytes))? else {
        return Ok(None);
    };
    from.set_reader(Guard::new(copied.arrived().clone(), backend.next_copy()));
    let (precision, fault) = (device.precision(), backend.shared_fault());
    let (copied, floats) = (Mutex::new(Some(copied)), OnceLock::new());
    let leaving = Leaving { precision, fault, copied, len, element, floats };
    Ok(Some(HostFloats::arriving(Arc::new(leaving))))
}
