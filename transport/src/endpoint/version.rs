//! Versions of the protocol.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The versions this program speaks.
pub const VERSIONS: VersionRange = VersionRange { oldest: 2, newest: 2 };

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
    use super::VersionRange;

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
}
