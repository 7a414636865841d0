//! How much was done, counted where it is done and read elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A count that only grows. Cheap to clone: all clones count together.
#[derive(Clone, Debug, Default)]
pub struct WorkCounter(Arc<AtomicU64>);

impl WorkCounter {
    /// Counts this much more.
    pub fn add(&self, done: u64) {
        self.0.fetch_add(done, Ordering::Relaxed);
    }

    /// All that was counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The counter itself, for callers in packages that do not depend on this one.
    #[must_use]
    pub fn shared(&self) -> Arc<AtomicU64> {
        self.0.clone()
    }
}
