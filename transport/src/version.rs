//! Versions of the protocol.

use std::fmt;
use std::sync::atomic::{AtomicU16, Ordering};

use serde::{Deserialize, Serialize};

/// The versions this program supports. They distinguish programs: version 3 has the messages of
/// version 2, and is supported by programs that read the log's format 10.
pub const VERSIONS: VersionRange = VersionRange { oldest: 2, newest: 3 };

/// The versions that a process supports with members: those of its program, until older ones are
/// retired.
#[derive(Debug)]
pub(crate) struct SpokenVersions {
    oldest: AtomicU16,
}

impl Default for SpokenVersions {
    fn default() -> Self {
        Self { oldest: AtomicU16::new(VERSIONS.oldest) }
    }
}

impl SpokenVersions {
    pub(crate) fn range(&self) -> VersionRange {
        VersionRange { oldest: self.oldest.load(Ordering::Relaxed), newest: VERSIONS.newest }
    }

    /// Retires the versions before this one.
    pub(crate) fn retire_before(&self, oldest: u16) {
        self.oldest.fetch_max(oldest.min(VERSIONS.newest), Ordering::Relaxed);
    }
}

/// An inclusive range of protocol versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRange {
    /// The oldest that is understood.
    pub oldest: u16,
    /// The newest that is understood.
    pub newest: u16,
}

impl VersionRange {
    /// The newest version that both understand.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.oldest, self.newest)
    }
}

#[cfg(test)]
mod tests {
    use super::{SpokenVersions, VERSIONS, VersionRange};

    const fn range(oldest: u16, newest: u16) -> VersionRange {
        VersionRange { oldest, newest }
    }

    #[test]
    fn the_newest_common_version_is_taken_and_none_when_ranges_only_touch_from_outside() {
        assert_eq!(range(1, 3).common(range(3, 9)), Some(3));
        assert_eq!(range(1, 3).common(range(4, 9)), None);
        assert_eq!(range(4, 9).common(range(1, 3)), None);
        assert_eq!(range(1, 9).common(range(2, 5)), Some(5));
        assert_eq!(range(5, 1).common(range(1, 9)), None);
    }

    #[test]
    fn what_was_given_up_is_not_spoken_again_and_the_newest_is_kept() {
        let versions = SpokenVersions::default();
        assert_eq!(versions.range(), VERSIONS);
        for (oldest, expected) in [(3, 3), (2, 3), (u16::MAX, VERSIONS.newest)] {
            versions.retire_before(oldest);
            assert_eq!(versions.range(), range(expected, VERSIONS.newest), "before {oldest}");
        }
    }
}
