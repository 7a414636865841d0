//! A value that a device may still be computing or copying.
//!
//! No caller waits for a device to pass such a value on; the one that reads it does. What is read
//! from a device that failed is no value: [`Pending::wait`] returns the fault instead.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::fault::DeviceFault;

/// A value that lies on a device, or is on its way to the host.
pub trait DeviceValue<T>: Any + Send + Sync {
    /// Waits for the value and returns it; read again it is the same.
    ///
    /// # Errors
    /// If the device failed before the value was read. The backend that it is of has that fault by
    /// then.
    fn read(&self) -> Result<T, DeviceFault>;
}

/// A value, or the handle of one that a device has not finished.
#[derive(Clone)]
pub enum Pending<T> {
    /// The value, complete on the host.
    Ready(T),
    /// The device failed before it began to compute the value.
    Failed(DeviceFault),
    /// The value of a device, which is waited for when it is read.
    OnDevice(Arc<dyn DeviceValue<T>>),
}

impl<T: Clone + 'static> Pending<T> {
    /// The value. One that a device has not finished is waited for.
    ///
    /// # Errors
    /// If the device failed before the value was read.
    pub fn wait(&self) -> Result<T, DeviceFault> {
        match self {
            Self::Ready(value) => Ok(value.clone()),
            Self::Failed(fault) => Err(fault.clone()),
            Self::OnDevice(value) => value.read(),
        }
    }
}

impl<T: 'static> Pending<T> {
    /// The value, as by [`Self::wait`] and without a copy.
    ///
    /// # Errors
    /// If the device failed before the value was read.
    pub fn into_value(self) -> Result<T, DeviceFault> {
        match self {
            Self::Ready(value) => Ok(value),
            Self::Failed(fault) => Err(fault),
            Self::OnDevice(value) => value.read(),
        }
    }

    /// Whether a device has the value, so that the reader may wait.
    #[must_use]
    pub const fn is_on_device(&self) -> bool {
        matches!(self, Self::OnDevice(_))
    }
}

impl<T> From<T> for Pending<T> {
    fn from(value: T) -> Self {
        Self::Ready(value)
    }
}

impl<T: fmt::Debug> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(value) => value.fmt(f),
            Self::Failed(fault) => write!(f, "lost: {fault}"),
            Self::OnDevice(_) => write!(f, "on a device"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sum(Result<u64, DeviceFault>);

    impl DeviceValue<u64> for Sum {
        fn read(&self) -> Result<u64, DeviceFault> {
            self.0.clone()
        }
    }

    #[test]
    fn a_value_is_read_as_often_as_it_is_needed_and_a_fault_is_never_a_value() {
        let fault = DeviceFault::OutOfHostMemory { asked_bytes: 8 };
        let check = |pending: Pending<u64>, expected: Result<u64, DeviceFault>, is_on_device| {
            assert_eq!(pending.is_on_device(), is_on_device);
            assert_eq!(pending.wait(), expected);
            assert_eq!(pending.clone().into_value(), expected);
            assert_eq!(pending.wait(), expected);
        };
        check(7.into(), Ok(7), false);
        check(Pending::Failed(fault.clone()), Err(fault.clone()), false);
        check(Pending::OnDevice(Arc::new(Sum(Ok(7)))), Ok(7), true);
        check(Pending::OnDevice(Arc::new(Sum(Err(fault.clone())))), Err(fault), true);
    }
}
