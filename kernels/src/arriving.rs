//! Floats that may still be on their way to the host.
//!
//! Whoever hands them on need not wait for a device; whoever reads them first does. So a stage goes on
//! while its gradient or its state is copied, and a thread that sends or writes them waits.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::fault::DeviceFault;

/// Floats that a device copies to the host.
pub trait Arriving: Send + Sync {
    /// How many.
    fn count(&self) -> usize;

    /// The floats, which are waited for. NaN if they could not be had; then [`Self::fault`] says why.
    fn floats(&self) -> &[f32];

    /// What has ended the device, if anything has: then its floats are no result.
    fn fault(&self) -> Option<DeviceFault>;
}

/// Floats on the host, or on their way there. Read as a slice they are waited for.
#[derive(Clone)]
pub struct HostFloats(Place);

#[derive(Clone)]
enum Place {
    Here(Vec<f32>),
    Arriving(Arc<dyn Arriving>),
}

impl HostFloats {
    /// Floats that a device copies.
    #[must_use]
    pub fn arriving(floats: Arc<dyn Arriving>) -> Self {
        Self(Place::Arriving(floats))
    }

    /// How many, without a wait.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Place::Here(floats) => floats.len(),
            Place::Arriving(floats) => floats.count(),
        }
    }

    /// Whether there are none, without a wait.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a device copies them, so that whoever reads them first may wait.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        matches!(self.0, Place::Arriving(_))
    }

    /// The floats, which are waited for.
    #[must_use]
    pub fn into_floats(self) -> Vec<f32> {
        match self.0 {
            Place::Here(floats) => floats,
            Place::Arriving(floats) => floats.floats().to_vec(),
        }
    }

    /// What has ended the device that copied them, if anything has: then they are no result. To be asked
    /// once they have been read.
    #[must_use]
    pub fn fault(&self) -> Option<DeviceFault> {
        match &self.0 {
            Place::Here(_) => None,
            Place::Arriving(floats) => floats.fault(),
        }
    }
}

impl FromIterator<f32> for HostFloats {
    fn from_iter<I: IntoIterator<Item = f32>>(floats: I) -> Self {
        Self(Place::Here(floats.into_iter().collect()))
    }
}

impl Deref for HostFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            Place::Here(floats) => floats,
            Place::Arriving(floats) => floats.floats(),
        }
    }
}

impl From<Vec<f32>> for HostFloats {
    fn from(floats: Vec<f32>) -> Self {
        Self(Place::Here(floats))
    }
}

impl PartialEq for HostFloats {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for HostFloats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Here(floats) => floats.fmt(f),
            Place::Arriving(floats) => write!(f, "{} floats of a device", floats.count()),
        }
    }
}
