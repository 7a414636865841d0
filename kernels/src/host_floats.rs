//! Floats on the host, and floats that may still be on their way there.
//!
//! The caller that passes the latter on need not wait for a device; the reader does. So a stage
//! goes on while its gradient or its state is copied, and a thread that sends or writes them waits.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::allocate::AllocateError;
use crate::fault::DeviceFault;
use crate::host_memory::FloatBlock;
use crate::pending::Pending;

/// Floats on the host. A clone shares their memory until one of the two is written.
///
/// Those that the processor backend shares, and those made here by [`Self::zeroed`], lie in pages
/// of their own: the buffer that a processor makes of them is the same memory, too.
#[derive(Clone)]
pub struct HostFloats(FloatStorage);

#[derive(Clone)]
enum FloatStorage {
    Owned(Arc<Vec<f32>>),
    Shared(Arc<FloatBlock>),
    Foreign(Arc<dyn AsRef<[f32]> + Send + Sync>),
}

impl HostFloats {
    /// Floats that lie in memory of another owner, which has it back once all clones are dropped.
    #[must_use]
    pub fn foreign(floats: Arc<dyn AsRef<[f32]> + Send + Sync>) -> Self {
        Self(FloatStorage::Foreign(floats))
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

    /// Whether a processor's buffer can be the same memory.
    #[must_use]
    pub fn is_shareable(&self) -> bool {
        self.shared().is_some()
    }

    /// The block that they lie in, if a processor's buffer can lie there too.
    pub(crate) fn shared(&self) -> Option<&Arc<FloatBlock>> {
        match &self.0 {
            FloatStorage::Shared(block) => Some(block),
            FloatStorage::Owned(_) | FloatStorage::Foreign(_) => None,
        }
    }

    /// The floats, to be written: those that others hold too as a copy of one's own.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        if let FloatStorage::Foreign(floats) = &self.0 {
            self.0 = FloatStorage::Owned(Arc::new((**floats).as_ref().to_vec()));
        }
        match &mut self.0 {
            FloatStorage::Owned(floats) => Arc::make_mut(floats).as_mut_slice(),
            FloatStorage::Shared(block) => FloatBlock::make_mut(block),
            FloatStorage::Foreign(_) => unreachable!("they are owned now"),
        }
    }

    /// The floats as a vector, without a copy where they lie in one that no other holds.
    #[must_use]
    pub fn into_floats(self) -> Vec<f32> {
        match self.0 {
            FloatStorage::Owned(floats) => Arc::unwrap_or_clone(floats),
            FloatStorage::Shared(_) | FloatStorage::Foreign(_) => self.to_vec(),
        }
    }
}

impl FromIterator<f32> for HostFloats {
    fn from_iter<I: IntoIterator<Item = f32>>(floats: I) -> Self {
        floats.into_iter().collect::<Vec<f32>>().into()
    }
}

impl Deref for HostFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            FloatStorage::Owned(floats) => floats,
            FloatStorage::Shared(block) => block.floats(),
            FloatStorage::Foreign(floats) => (**floats).as_ref(),
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
        Self(FloatStorage::Owned(Arc::new(floats)))
    }
}

impl PartialEq for HostFloats {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for HostFloats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Floats that may still be on their way to the host, and how many there are without a wait.
#[derive(Clone, Debug)]
pub struct PendingFloats {
    len: usize,
    floats: Pending<HostFloats>,
}

impl PendingFloats {
    /// `len` floats that a device may still be copying.
    #[must_use]
    pub const fn new(len: usize, floats: Pending<HostFloats>) -> Self {
        Self { len, floats }
    }

    /// The number of floats.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a device copies them, so that the reader may wait.
    #[must_use]
    pub const fn is_on_device(&self) -> bool {
        self.floats.is_on_device()
    }

    /// The floats. Those that a device copies are waited for.
    ///
    /// # Errors
    /// If the device failed before they were read.
    pub fn wait(&self) -> Result<HostFloats, DeviceFault> {
        self.floats.wait()
    }
}

impl From<HostFloats> for PendingFloats {
    fn from(floats: HostFloats) -> Self {
        Self { len: floats.len(), floats: floats.into() }
    }
}

impl From<Vec<f32>> for PendingFloats {
    fn from(floats: Vec<f32>) -> Self {
        HostFloats::from(floats).into()
    }
}
