//! A tensor on its way from one backend to another.
//!
//! Where both are devices of one process, what travels is a place on the first one's memory and the
//! moment from which on it holds the tensor: nobody waits for a device to hand it over. Whoever needs
//! numbers asks for them, and waits then.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A tensor that a device holds for whoever takes it.
pub trait Held: Any + Send + Sync {
    /// How many numbers.
    fn count(&self) -> usize;

    /// The numbers, which are waited for. NaN if the device has failed.
    fn floats(&self) -> Vec<f32>;
}

/// A tensor on its way.
#[derive(Clone)]
pub enum Parcel {
    /// On the host.
    Floats(Vec<f32>),
    /// On a device.
    Held(Arc<dyn Held>),
}

impl Parcel {
    /// How many numbers.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Floats(floats) => floats.len(),
            Self::Held(held) => held.count(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers. Those that a device holds are waited for.
    #[must_use]
    pub fn into_floats(self) -> Vec<f32> {
        match self {
            Self::Floats(floats) => floats,
            Self::Held(held) => held.floats(),
        }
    }
}

impl From<Vec<f32>> for Parcel {
    fn from(floats: Vec<f32>) -> Self {
        Self::Floats(floats)
    }
}

impl fmt::Debug for Parcel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self {
            Self::Floats(_) => "on the host",
            Self::Held(_) => "on a device",
        };
        write!(f, "{} numbers {place}", self.len())
    }
}
