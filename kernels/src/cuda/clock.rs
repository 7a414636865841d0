//! Timing events in a device's stream, and the time between them as the device counts it.

use std::ptr;

use cudarc::driver::sys;

use super::devices::check;
use super::driver::CudaDevice;
use super::error::DeviceFault;

/// An event between two operations that the device records with its time.
pub struct TimingEvent<'a> {
    device: &'a CudaDevice,
    event: sys::CUevent,
}

impl CudaDevice {
    /// Records an event after everything enqueued so far.
    ///
    /// # Errors
    /// If the driver reports a fault.
    pub fn record_event(&self) -> Result<TimingEvent<'_>, DeviceFault> {
        let _guard = self.enter()?;
        let mut recorded = TimingEvent { device: self, event: ptr::null_mut() };
        let flags = sys::CUevent_flags_enum::CU_EVENT_DEFAULT as u32;
        // SAFETY: the driver writes a handle, which `drop` destroys; the stream is the device's.
        unsafe {
            check("cuEventCreate", sys::cuEventCreate(&mut recorded.event, flags))?;
            check("cuEventRecord", sys::cuEventRecord(recorded.event, self.stream()))?;
        }
        Ok(recorded)
    }
}

impl TimingEvent<'_> {
    /// Seconds from here to `later`, which is waited for.
    ///
    /// # Errors
    /// If the driver reports a fault of anything before `later`.
    pub fn seconds_until(&self, later: &Self) -> Result<f64, DeviceFault> {
        self.device.make_current()?;
        let mut milliseconds = 0.0f32;
        // SAFETY: two recorded events of the device.
        unsafe {
            check("cuEventSynchronize", sys::cuEventSynchronize(later.event))?;
            let result = sys::cuEventElapsedTime_v2(&mut milliseconds, self.event, later.event);
            check("cuEventElapsedTime", result)?;
        }
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for TimingEvent<'_> {
    fn drop(&mut self) {
        if !self.event.is_null() {
            // SAFETY: made by the driver, destroyed once.
            let _destroyed = unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}
