//! A tensor on its way from one backend to another.
//!
//! Where both are devices of one process, the handle refers to a place in the first one's memory
//! and to the fence behind which it holds the tensor: no thread waits for a device to pass it on. A
//! receiver that needs the numbers requests them, and waits then.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::fault::DeviceFault;

/// Numbers on the host, in the type that they are computed with.
#[derive(Clone, Debug, PartialEq)]
pub enum HostTensor {
    /// Numbers as 32-bit floats.
    Floats(Vec<f32>),
    /// The upper halves of 32-bit floats: bfloat16.
    Halves(Vec<u16>),
}

impl HostTensor {
    /// The number of floats or halves.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Floats(floats) => floats.len(),
            Self::Halves(halves) => halves.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same numbers as floats, exactly.
    #[must_use]
    pub fn into_floats(self) -> Vec<f32> {
        match self {
            Self::Floats(floats) => floats,
            Self::Halves(halves) => {
                halves.into_iter().map(|half| f32::from_bits(u32::from(half) << 16)).collect()
            }
        }
    }
}

/// A tensor that a device holds until its receiver takes it.
pub trait PendingTensor: Any + Send + Sync {
    /// The number of elements.
    fn count(&self) -> usize;

    /// Waits for the numbers and returns them. NaN if the copy failed; then [`Self::fault`] returns
    /// why.
    fn wait(&self) -> HostTensor;

    /// The fault that ended the device that holds it, if any: then its numbers are no result.
    fn fault(&self) -> Option<DeviceFault>;
}

/// A tensor that is passed from one backend to another.
#[derive(Clone)]
pub enum TensorHandle {
    /// The numbers lie on the host.
    OnHost(HostTensor),
    /// A device holds the numbers.
    OnDevice(Arc<dyn PendingTensor>),
}

impl TensorHandle {
    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::OnHost(numbers) => numbers.len(),
            Self::OnDevice(pending) => pending.count(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a device holds it, so that its numbers have to be waited for.
    #[must_use]
    pub const fn is_on_device(&self) -> bool {
        matches!(self, Self::OnDevice(_))
    }

    /// The device's tensor, if a device holds it.
    #[must_use]
    pub fn device_tensor(&self) -> Option<Arc<dyn PendingTensor>> {
        match self {
            Self::OnHost(_) => None,
            Self::OnDevice(pending) => Some(pending.clone()),
        }
    }

    /// The numbers on the host. Those that a device holds are waited for.
    #[must_use]
    pub fn into_host(self) -> HostTensor {
        match self {
            Self::OnHost(numbers) => numbers,
            Self::OnDevice(pending) => pending.wait(),
        }
    }

    /// The numbers on the host as floats, as by [`Self::into_host`].
    #[must_use]
    pub fn into_floats(self) -> Vec<f32> {
        self.into_host().into_floats()
    }
}

impl From<Vec<f32>> for TensorHandle {
    fn from(floats: Vec<f32>) -> Self {
        Self::OnHost(HostTensor::Floats(floats))
    }
}

impl fmt::Debug for TensorHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_on_device() { "on a device" } else { "on the host" };
        write!(f, "{} numbers {place}", self.len())
    }
}

/// A loss that a device may still be computing.
pub trait PendingLoss: Send + Sync {
    /// The loss, which is waited for. NaN if the device has failed.
    fn wait(&self) -> f64;
}

/// The sum of a pass's cross-entropies, in nats.
#[derive(Clone)]
pub enum Loss {
    /// The loss, complete on the host.
    Ready(f64),
    /// The loss, which a device may still be computing.
    Pending(Arc<dyn PendingLoss>),
}

impl Loss {
    /// The loss. One that a device still computes is waited for.
    #[must_use]
    pub fn wait(&self) -> f64 {
        match self {
            Self::Ready(loss) => *loss,
            Self::Pending(pending) => pending.wait(),
        }
    }
}

impl From<f64> for Loss {
    fn from(loss: f64) -> Self {
        Self::Ready(loss)
    }
}

impl fmt::Debug for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(loss) => write!(f, "{loss}"),
            Self::Pending(_) => write!(f, "on a device"),
        }
    }
}
