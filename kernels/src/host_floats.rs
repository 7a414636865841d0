//! Floats that may still be on their way to the host.
//!
//! The caller that passes them on need not wait for a device; the first reader does. So a stage
//! goes on while its gradient or its state is copied, and a thread that sends or writes them waits.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::allocate::AllocateError;
use crate::cpu::FloatBlock;
use crate::fault::DeviceFault;

/// Floats that a device copies to the host.
pub trait PendingFloats: Send + Sync {
    /// The number of floats.
    fn count(&self) -> usize;

    /// Waits for the floats and returns them. NaN if the copy failed; then [`Self::fault`] returns
    /// why.
    fn floats(&self) -> &[f32];

    /// The fault that ended the device, if any: then its floats are no result.
    fn fault(&self) -> Option<DeviceFault>;
}

/// Floats on the host, or on their way there. Read as a slice they are waited for.
///
/// Those that the processor backend shares, and those made here by [`Self::zeroed`], lie in pages
/// of their own: a clone of them, and the buffer that a processor makes of them, are the same
/// memory until one is written.
#[derive(Clone)]
pub struct HostFloats(FloatStorage);

#[derive(Clone)]
enum FloatStorage {
    Owned(Vec<f32>),
    Shared(Arc<FloatBlock>),
    Pending(Arc<dyn PendingFloats>),
}

impl HostFloats {
    /// Floats that a device copies.
    #[must_use]
    pub fn pending(floats: Arc<dyn PendingFloats>) -> Self {
        Self(FloatStorage::Pending(floats))
    }

    /// `len` zeros. Memory is allocated page by page as they are written.
    ///
    /// # Errors
    /// If the system has no memory of that size.
    pub fn zeroed(len: usize) -> Result<Self, AllocateError> {
        FloatBlock::zeroed(len).map(|block| Self::sharing(Arc::new(block)))
    }

    pub(crate) fn sharing(block: Arc<FloatBlock>) -> Self {
        Self(FloatStorage::Shared(block))
    }

    /// The block that they lie in, if a processor's buffer can lie there too.
    pub(crate) fn shared(&self) -> Option<&Arc<FloatBlock>> {
        match &self.0 {
            FloatStorage::Shared(block) => Some(block),
            FloatStorage::Owned(_) | FloatStorage::Pending(_) => None,
        }
    }

    /// The floats, to be written: those that others hold too, or that a device copies, as a copy of
    /// one's own.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        if let FloatStorage::Pending(floats) = &self.0 {
            self.0 = FloatStorage::Owned(floats.floats().to_vec());
        }
        match &mut self.0 {
            FloatStorage::Owned(floats) => floats,
            FloatStorage::Shared(block) => FloatBlock::make_mut(block),
            FloatStorage::Pending(_) => unreachable!("they are here now"),
        }
    }

    /// The number of floats, without a wait.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            FloatStorage::Owned(floats) => floats.len(),
            FloatStorage::Shared(block) => block.floats().len(),
            FloatStorage::Pending(floats) => floats.count(),
        }
    }

    /// Whether there are none, without a wait.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a device copies them, so that the first reader may wait.
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        matches!(self.0, FloatStorage::Pending(_))
    }

    /// Waits for the floats and returns them.
    #[must_use]
    pub fn into_floats(self) -> Vec<f32> {
        match self.0 {
            FloatStorage::Owned(floats) => floats,
            FloatStorage::Shared(block) => block.floats().to_vec(),
            FloatStorage::Pending(floats) => floats.floats().to_vec(),
        }
    }

    /// The fault that ended the device that copied them, if any: then they are no result. To be
    /// checked once they have been read.
    #[must_use]
    pub fn fault(&self) -> Option<DeviceFault> {
        match &self.0 {
            FloatStorage::Owned(_) | FloatStorage::Shared(_) => None,
            FloatStorage::Pending(floats) => floats.fault(),
        }
    }
}

impl FromIterator<f32> for HostFloats {
    fn from_iter<I: IntoIterator<Item = f32>>(floats: I) -> Self {
        Self(FloatStorage::Owned(floats.into_iter().collect()))
    }
}

impl Deref for HostFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            FloatStorage::Owned(floats) => floats,
            FloatStorage::Shared(block) => block.floats(),
            FloatStorage::Pending(floats) => floats.floats(),
        }
    }
}

impl AsRef<[f32]> for HostFloats {
    fn as_ref(&self) -> &[f32] {
        self
    }
}

impl From<Vec<f32>> for HostFloats {
    fn from(floats: Vec<f32>) -> Self {
        Self(FloatStorage::Owned(floats))
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
            FloatStorage::Owned(floats) => floats.fmt(f),
            FloatStorage::Shared(block) => block.floats().fmt(f),
            FloatStorage::Pending(floats) => write!(f, "{} floats of a device", floats.count()),
        }
    }
}
