//! Losses that wait on a device until somebody reads them: an F of the last stage does not stop the
//! host then.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};

use super::backend::CudaBackend;
use super::device::{Address, Device, Stream};
use super::error::DeviceFault;
use super::recorder::Recorder;
use super::sheets::{Sheet, Sheets};
use crate::parcel::{HeldLoss, Loss};

/// Losses of a backend that nobody has read: those of the largest step, and of one before that was
/// dropped. One more is waited for at once.
const LOSSES_MAX: usize = 1 << 13;

/// The sheets for them. How many bytes a loss takes follows from the rows of a microbatch.
pub(super) fn sheets<D: Device>() -> Sheets<D> {
    Sheets::new((LOSSES_MAX, u64::MAX))
}

/// A loss whose rows are on their way.
struct Pending<D: Device> {
    device: Arc<Recorder<D>>,
    /// Its backend's, told before a loss that is none is passed on.
    fault: Arc<OnceLock<DeviceFault>>,
    /// There until this is dropped.
    sheet: Option<Sheet<D>>,
    /// When they have arrived.
    copied: D::Fence,
    home: SyncSender<Sheet<D>>,
}

impl<D: Device> HeldLoss for Pending<D> {
    fn wait(&self) -> f64 {
        let sheet = self.sheet.as_ref().expect("there until this is dropped");
        if let Err(fault) = self.device.reach(&self.copied) {
            // Only the first one counts.
            let _kept = self.fault.set(fault);
            return f64::NAN;
        }
        let mut bytes = vec![0; sheet.bytes() as usize];
        self.device.read_host(sheet.start(), &mut bytes);
        sum(&bytes)
    }
}

impl<D: Device> Drop for Pending<D> {
    fn drop(&mut self) {
        // The next copy into the sheet is in the same stream as this one. Where the backend is gone
        // the memory is given back, which waits for the copy.
        if let Some(sheet) = self.sheet.take() {
            let _gone = self.home.try_send(sheet);
        }
    }
}

/// The sum of losses in the order of rows.
pub(super) fn sum(bytes: &[u8]) -> f64 {
    let (losses, _) = bytes.as_chunks::<8>();
    losses.iter().map(|loss| f64::from_le_bytes(*loss)).sum()
}

/// The loss of these rows, later; at once if too many were left unread.
pub(super) fn hold<D: Device>(
    backend: &CudaBackend<D>,
    losses: &Sheets<D>,
    (rows, count): (Address, usize),
) -> Result<Loss, DeviceFault> {
    let (device, bytes) = (backend.shared_device(), count as u64 * 8);
    let Some(sheet) = losses.take(device, bytes) else {
        let mut read = vec![0; bytes as usize];
        device.read(rows, &mut read)?;
        return Ok(sum(&read).into());
    };
    // So little that it need not be beside the work; and what comes next may use the rows again.
    device.copy_out(Stream::Compute, rows, sheet.start(), bytes)?;
    let (device, home) = (device.clone(), losses.home());
    let (copied, fault) = (device.fence(Stream::Compute)?, backend.shared_fault());
    Ok(Loss::Held(Arc::new(Pending { device, fault, sheet: Some(sheet), copied, home })))
}
