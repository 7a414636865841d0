//! Losses, and sums of fingerprints, that wait on a device until somebody reads them: an F of the last
//! stage does not stop the host then, nor does a COMMIT.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};

use super::backend::CudaBackend;
use super::device::{Address, Device, Stream};
use super::error::DeviceFault;
use super::recorder::Recorder;
use super::sheets::{Sheet, Sheets};
use crate::fingerprint::{HeldSums, StateSums};
use crate::parcel::{HeldLoss, Loss};

/// Losses and sums of a backend that nobody has read: those of the largest step, and of one before that
/// was dropped. One more is waited for at once.
const LOSSES_MAX: usize = 1 << 13;
/// The two sums of a state.
const SUMS_BYTES: usize = 16;

/// The sheets for them. How many bytes a loss takes follows from the rows of a microbatch.
pub(super) fn sheets<D: Device>() -> Sheets<D> {
    Sheets::new((LOSSES_MAX, u64::MAX))
}

/// Numbers on their way.
struct Pending<D: Device> {
    device: Arc<Recorder<D>>,
    /// Its backend's, told before a number that is none is passed on.
    fault: Arc<OnceLock<DeviceFault>>,
    /// There until this is dropped.
    sheet: Option<Sheet<D>>,
    /// When they have arrived.
    copied: D::Fence,
    home: SyncSender<Sheet<D>>,
}

impl<D: Device> Pending<D> {
    /// The bytes, which are waited for; nothing if the device has failed.
    fn bytes(&self) -> Option<Vec<u8>> {
        let sheet = self.sheet.as_ref().expect("there until this is dropped");
        if let Err(fault) = self.device.reach(&self.copied) {
            // Only the first one counts.
            let _kept = self.fault.set(fault);
            return None;
        }
        let mut bytes = vec![0; sheet.bytes() as usize];
        self.device.read_host(sheet.start(), &mut bytes);
        Some(bytes)
    }
}

impl<D: Device> HeldLoss for Pending<D> {
    fn wait(&self) -> f64 {
        self.bytes().map_or(f64::NAN, |bytes| sum(&bytes))
    }
}

impl<D: Device> HeldSums for Pending<D> {
    fn wait(&self) -> [u64; 2] {
        self.bytes().map_or([0; 2], |bytes| pair(&bytes))
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

fn pair(bytes: &[u8]) -> [u64; 2] {
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|i| u64::from_le_bytes(words[i]))
}

/// The loss of these rows, later; at once if too many were left unread.
pub(super) fn hold<D: Device>(
    backend: &CudaBackend<D>,
    (rows, count): (Address, usize),
) -> Result<Loss, DeviceFault> {
    let bytes = count * 8;
    Ok(match send(backend, rows, bytes)? {
        Some(pending) => Loss::Held(pending),
        None => sum(&read(backend, rows, bytes)?).into(),
    })
}

/// The two sums that lie there, later; at once if too many were left unread.
pub(super) fn hold_sums<D: Device>(
    backend: &CudaBackend<D>,
    sums: Address,
) -> Result<StateSums, DeviceFault> {
    Ok(match send(backend, sums, SUMS_BYTES)? {
        Some(pending) => StateSums::Held(pending),
        None => pair(&read(backend, sums, SUMS_BYTES)?).into(),
    })
}

fn read<D: Device>(
    backend: &CudaBackend<D>,
    from: Address,
    bytes: usize,
) -> Result<Vec<u8>, DeviceFault> {
    let mut found = vec![0; bytes];
    backend.device().read(from, &mut found)?;
    Ok(found)
}

/// Sends numbers on their way, if there is a sheet for them.
fn send<D: Device>(
    backend: &CudaBackend<D>,
    from: Address,
    bytes: usize,
) -> Result<Option<Arc<Pending<D>>>, DeviceFault> {
    let (device, losses, bytes) = (backend.shared_device(), backend.losses(), bytes as u64);
    let Some(sheet) = losses.take(device, bytes) else { return Ok(None) };
    // So little that it need not be beside the work; and what comes next may use the memory again.
    device.copy_out(Stream::Compute, from, sheet.start(), bytes)?;
    let (device, home) = (device.clone(), losses.home());
    let (copied, fault) = (device.fence(Stream::Compute)?, backend.shared_fault());
    Ok(Some(Arc::new(Pending { device, fault, sheet: Some(sheet), copied, home })))
}
