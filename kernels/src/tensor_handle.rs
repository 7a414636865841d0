//! A tensor on its way from one backend to another.
//!
//! Where both are devices of one process, the handle refers to a place in the first one's memory
//! and to the fence behind which it holds the tensor: no thread waits for a device to pass it on. A
//! receiver that needs the numbers requests them, and waits then.

use std::any::Any;
use std::fmt;

use crate::fault::DeviceFault;
use crate::pending::Pending;
use crate::precision::float_of_bf16;

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
            Self::Halves(halves) => halves.into_iter().map(float_of_bf16).collect(),
        }
    }
}

/// A tensor that is passed from one backend to another: its numbers, and how many there are without
/// a wait.
#[derive(Clone)]
pub struct TensorHandle {
    len: usize,
    numbers: Pending<HostTensor>,
}

impl TensorHandle {
    /// A tensor of `len` numbers that a device may still be computing.
    #[must_use]
    pub const fn pending(len: usize, numbers: Pending<HostTensor>) -> Self {
        Self { len, numbers }
    }

    /// The number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a device holds it, so that its numbers have to be waited for.
    #[must_use]
    pub const fn is_on_device(&self) -> bool {
        self.numbers.is_on_device()
    }

    /// What holds the numbers on a device, if one does: a device of the same kind can copy from it.
    #[must_use]
    pub fn device_tensor(&self) -> Option<&dyn Any> {
        match &self.numbers {
            Pending::OnDevice(tensor) => Some(&**tensor),
            Pending::Ready(_) | Pending::Failed(_) => None,
        }
    }

    /// The numbers on the host. Those that a device holds are waited for.
    ///
    /// # Errors
    /// If the device failed before they were read.
    pub fn into_host(self) -> Result<HostTensor, DeviceFault> {
        self.numbers.into_value()
    }

    /// The numbers on the host as floats, as by [`Self::into_host`].
    ///
    /// # Errors
    /// If the device failed before they were read.
    pub fn into_floats(self) -> Result<Vec<f32>, DeviceFault> {
        self.into_host().map(HostTensor::into_floats)
    }
}

impl From<HostTensor> for TensorHandle {
    fn from(numbers: HostTensor) -> Self {
        Self { len: numbers.len(), numbers: numbers.into() }
    }
}

impl From<Vec<f32>> for TensorHandle {
    fn from(floats: Vec<f32>) -> Self {
        HostTensor::Floats(floats).into()
    }
}

impl fmt::Debug for TensorHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_on_device() { "on a device" } else { "on the host" };
        write!(f, "{} numbers {place}", self.len)
    }
}
