//! Floats that may still be on their way to the host.
//!
//! The caller that hands them on need not wait for a device; the first reader does. So a stage goes on
//! while its gradient or its state is copied, and a thread that sends or writes them waits.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::allocate::AllocateError;
use crate::cpu::Block;
use crate::fault::DeviceFault;

/// Floats that a device copies to the host.
pub trait Arriving: Send + Sync {
    /// The number of floats.
    fn count(&self) -> usize;

    /// Waits for the floats and returns them. NaN if the copy failed; then [`Self::fault`] returns why.
    fn floats(&self) -> &[f32];

    /// What has ended the device, if anything has: then its floats are no result.
    fn fault(&self) -> Option<DeviceFault>;
}

/// Floats on the host, or on their way there. Read as a slice they are waited for.
///
/// Those that the processor backend shares, and those made here by [`Self::zeroed`], lie in pages of their
/// own: a clone of them, and the buffer that a processor makes of them, are the same memory until one is
/// written.
#[derive(Clone)]
pub struct HostFloats(Place);

#[derive(Clone)]
enum Place {
    Here(Vec<f32>),
    Shared(Arc<Block>),
    Arriving(Arc<dyn Arriving>),
}

impl HostFloats {
    /// Floats that a device copies.
    #[must_use]
    pub fn arriving(floats: Arc<dyn Arriving>) -> Self {
        Self(Place::Arriving(floats))
    }

    /// `len` zeros. Memory is taken page by page as they are written.
    ///
    /// # Errors
    /// If the system has no memory of that size.
    pub fn zeroed(len: usize) -> Result<Self, AllocateError> {
        Block::zeroed(len).map(|block| Self::sharing(Arc::new(block)))
    }

    pub(crate) fn sharing(block: Arc<Block>) -> Self {
        Self(Place::Shared(block))
    }

    /// The block that they lie in, if a processor's buffer can lie there too.
    pub(crate) fn shared(&self) -> Option<&Arc<Block>> {
        match &self.0 {
            Place::Shared(block) => Some(block),
            Place::Here(_) | Place::Arriving(_) => None,
        }
    }

    /// The floats, to be written: those that others hold too, or that a device copies, as a copy of one's
    /// own.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        if let Place::Arriving(floats) = &self.0 {
            self.0 = Place::Here(floats.floats().to_vec());
        }
        match &mut self.0 {
            Place::Here(floats) => floats,
            Place::Shared(block) => Block::make_mut(block),
            Place::Arriving(_) => unreachable!("they are here now"),
        }
    }

    /// The number of floats, without a wait.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Place::Here(floats) => floats.len(),
            Place::Shared(block) => block.floats().len(),
            Place::Arriving(floats) => floats.count(),
        }
    }

    /// Whether there are none, without a wait.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a device copies them, so that the first reader may wait.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        matches!(self.0, Place::Arriving(_))
    }

    /// Waits for the floats and returns them.
    #[must_use]
    pub fn into_floats(self) -> Vec<f32> {
        match self.0 {
            Place::Here(floats) => floats,
            Place::Shared(block) => block.floats().to_vec(),
            Place::Arriving(floats) => floats.floats().to_vec(),
        }
    }

    /// What has ended the device that copied them, if anything has: then they are no result. To be checked
    /// once they have been read.
    #[must_use]
    pub fn fault(&self) -> Option<DeviceFault> {
        match &self.0 {
            Place::Here(_) | Place::Shared(_) => None,
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
            Place::Shared(block) => block.floats(),
            Place::Arriving(floats) => floats.floats(),
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
            Place::Shared(block) => block.floats().fmt(f),
            Place::Arriving(floats) => write!(f, "{} floats of a device", floats.count()),
        }
    }
}
