//! How often something was seen.

use std::collections::BTreeMap;

/// How often each of several things was seen, in one life or in many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OccurrenceCounts<T: Ord> {
    counts: BTreeMap<T, u64>,
}

impl<T: Ord> Default for OccurrenceCounts<T> {
    fn default() -> Self {
        Self { counts: BTreeMap::new() }
    }
}

impl<T: Ord + Copy> OccurrenceCounts<T> {
    /// Counts one occurrence of `what`.
    pub fn hit(&mut self, what: T) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// How often `what` was counted.
    #[must_use]
    pub fn count(&self, what: T) -> u64 {
        self.counts.get(&what).copied().unwrap_or(0)
    }

    /// Adds the counts of another life.
    pub fn merge(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            *self.counts.entry(*what).or_default() += count;
        }
    }

    /// Those of them that were never seen.
    #[must_use]
    pub fn missing(&self, of: impl IntoIterator<Item = T>) -> Vec<T> {
        of.into_iter().filter(|what| self.count(*what) == 0).collect()
    }
}
