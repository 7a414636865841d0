//! How a request for memory fails, on any device.

use crate::fault::DeviceFault;

/// Memory could not be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocateError {
    /// What was asked for.
    pub bytes: u64,
    /// What was free then, if the device tells.
    pub free_bytes: Option<u64>,
    /// What had ended the device before, if that is why.
    pub fault: Option<Box<DeviceFault>>,
}

impl std::error::Error for AllocateError {}

impl std::fmt::Display for AllocateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(fault) = &self.fault {
            return fault.fmt(f);
        }
        write!(f, "the device has no {} bytes left", self.bytes)?;
        match self.free_bytes {
            Some(free) => write!(
                f,
                ", {free} are free; a smaller train.microbatch, memory.recompute, memory.offload \
                 or more stages need less"
            ),
            None => Ok(()),
        }
    }
}

impl AllocateError {
    /// The system has no so many bytes, and does not say what is free.
    #[must_use]
    pub const fn of_bytes(bytes: u64) -> Self {
        Self { bytes, free_bytes: None, fault: None }
    }
}
