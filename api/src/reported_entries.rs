//! How far the events of the log's entries were reported. Every controller applies the same entries
//! in the same order, and one that starts again applies those since its snapshot once more.

/// The last entry of which events were reported, and how many of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedEntries {
    index: Option<u64>,
    events: u32,
    /// Events of that entry that came once more since [`Self::restart`].
    repeated: u32,
}

impl ReportedEntries {
    /// Index of the last entry that was reported.
    #[must_use]
    pub const fn index(&self) -> Option<u64> {
        self.index
    }

    /// Notes an event of this entry that was reported.
    pub fn note(&mut self, index: u64) {
        self.events = if self.index == Some(index) { self.events + 1 } else { 1 };
        self.index = Some(index);
        self.repeated = self.events;
    }

    /// Events may come once more: of a controller that started again, or of another one.
    pub fn restart(&mut self) {
        self.repeated = 0;
    }

    /// Whether the next event of this entry was not reported yet, and notes it if so.
    pub fn admit(&mut self, index: u64) -> bool {
        if self.index == Some(index) && self.repeated < self.events {
            self.repeated += 1;
            return false;
        }
        let is_new = self.index <= Some(index);
        if is_new {
            self.note(index);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_of_each_entry_is_reported_once() {
        let mut reported = ReportedEntries::default();
        let mut admitted = |entries: &[u64]| -> Vec<bool> {
            reported.restart();
            entries.iter().map(|index| reported.admit(*index)).collect()
        };
        assert_eq!(admitted(&[4, 6, 6]), [true; 3]);
        assert_eq!(admitted(&[4, 6, 6]), [false; 3], "the same once more");
        assert_eq!(admitted(&[6]), [false], "cut short");
        assert_eq!(admitted(&[4, 6, 6, 6, 9]), [false, false, false, true, true], "and goes on");
        assert_eq!(admitted(&[9, 9]), [false, true]);
    }
}
