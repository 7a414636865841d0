//! Floats that leave for the host: gradients for who keeps copies, and states of layers.
//!
//! ```text
//!   compute  ... W ─fence─┐              ┌─follow─ the next that writes them
//!   out                   └─▶ copy ─fence┤
//!   a thread that sends or writes them   └─reach─ read
//! ```
//!
//! The stage goes on at once. A buffer knows the copy that still reads it: it may be read meanwhile, and
//! whoever writes it has the device wait first ([`super::away::settle`]).

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::away::Guard;
use super::backend::CudaBackend;
use super::device::{Device, Stream};
use super::error::DeviceFault;
use super::memory::{CudaBuffer, Element};
use super::recorder::Recorder;
use super::sheets::{Sheet, Sheets};
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
    device: Arc<Recorder<D>>,
    /// Its backend's, told before floats that are none leave.
    fault: Arc<OnceLock<DeviceFault>>,
    /// Where it arrives, until it has been read. Locked by who gives it back.
    sheet: Mutex<Option<Sheet<D>>>,
    /// When it has arrived.
    copied: D::Fence,
    len: usize,
    element: Element,
    home: SyncSender<Sheet<D>>,
    floats: OnceLock<Vec<f32>>,
}

impl<D: Device> Leaving<D> {
    fn take_sheet(&self) -> Option<Sheet<D>> {
        self.sheet.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn give_back(&self, sheet: Sheet<D>) {
        let _gone = self.home.try_send(sheet);
    }

    fn read(&self) -> Vec<f32> {
        let sheet = self.take_sheet().expect("it is read once");
        let reached = self.device.reach(&self.copied);
        let floats = match reached {
            Ok(()) => {
                let mut bytes = vec![0; sheet.bytes() as usize];
                self.device.read_host(sheet.start(), &mut bytes);
                numbers_of(&bytes, self.element, self.device.precision()).into_floats()
            }
            Err(fault) => {
                // Only the first one counts.
                let _kept = self.fault.set(fault);
                vec![f32::NAN; self.len]
            }
        };
        self.give_back(sheet);
        floats
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

impl<D: Device> Drop for Leaving<D> {
    fn drop(&mut self) {
        if let Some(sheet) = self.take_sheet() {
            self.give_back(sheet);
        }
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
    let Some(sheet) = sheets.take(device, bytes) else { return Ok(None) };
    device.follow(Stream::Out, &device.fence(Stream::Compute)?)?;
    device.copy_out(Stream::Out, from.at(0), sheet.start(), bytes)?;
    let copied = device.fence(Stream::Out)?;
    from.set_reader(Guard::new(copied.clone(), backend.next_copy()));
    let (device, fault, home) = (device.clone(), backend.shared_fault(), sheets.home());
    let (sheet, floats) = (Mutex::new(Some(sheet)), OnceLock::new());
    let leaving = Leaving { device, fault, sheet, copied, len, element, home, floats };
    Ok(Some(HostFloats::arriving(Arc::new(leaving))))
}
