//! How long entries of the log took from the leader's append to the commit.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use zbelastic_trainer::plan::median;

/// Commits that are looked at: those of some hundred steps, each of which has at least one.
const COMMITS_MAX: usize = 256;
/// Appends that wait for their commit. A leader without a majority accepts no more entries long before
/// (`uncommitted_max` of the Raft setup); beyond it the oldest is not timed.
const APPENDS_MAX: usize = 4096;

/// The commits of entries that this node appended as the leader.
#[derive(Debug, Default)]
pub struct CommitTimes {
    /// The last index of each append that is not committed, and when it was made.
    appended: VecDeque<(u64, Instant)>,
    /// Where the log ended, once this node was seen to lead.
    last_index: Option<u64>,
    /// What the last commits took, the newest last.
    recent: VecDeque<Duration>,
}

/// What the last commits took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitLatency {
    /// The median.
    pub median: Duration,
    /// The longest.
    pub longest: Duration,
    /// Number of commits.
    pub count: u64,
}

impl CommitTimes {
    /// The log of the leader ends with `last_index`, and is committed up to `commit`.
    pub fn note(&mut self, last_index: u64, commit: u64, now: Instant) {
        if self.last_index.is_some_and(|before| last_index > before) {
            self.appended.push_back((last_index, now));
        }
        self.last_index = Some(last_index);
        if self.appended.len() > APPENDS_MAX {
            self.appended.pop_front();
        }
        while let Some((_, since)) = self.appended.front().filter(|(index, _)| *index <= commit) {
            self.recent.push_back(now - *since);
            self.appended.pop_front();
        }
        let excess = self.recent.len().saturating_sub(COMMITS_MAX);
        self.recent.drain(..excess);
    }

    /// This node follows: what it had appended is timed by nobody, and what comes to its log from now
    /// on another one appended.
    pub fn note_follower(&mut self) {
        *self = Self::default();
    }

    /// What the last commits took, if this node leads and there were some.
    #[must_use]
    pub fn latency(&self) -> Option<CommitLatency> {
        let longest = self.recent.iter().max().copied()?;
        let median = median(self.recent.iter().copied(), Ord::cmp)?;
        Some(CommitLatency { median, longest, count: self.recent.len() as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_timed_from_the_append_of_the_leader() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut times = CommitTimes::default();
        assert_eq!(times.latency(), None);
        times.note(0, 0, at(0));
        times.note(1, 0, at(0));
        times.note(1, 0, at(1));
        times.note(3, 0, at(2));
        assert_eq!(times.latency(), None, "nothing is committed");
        times.note(3, 2, at(4));
        times.note(3, 3, at(12));
        let found = times.latency().expect("two appends");
        assert_eq!((found.longest, found.count), (Duration::from_millis(10), 2));
        for index in 4..4 + 2 * COMMITS_MAX as u64 {
            times.note(index, index - 1, at(20));
            times.note(index, index, at(23));
        }
        let found = times.latency().expect("many");
        let three = Duration::from_millis(3);
        assert_eq!((found.median, found.longest, found.count), (three, three, COMMITS_MAX as u64));
    }

    #[test]
    fn a_node_that_follows_times_nothing_and_begins_anew_when_it_leads() {
        let start = Instant::now();
        let mut times = CommitTimes::default();
        times.note(0, 0, start);
        times.note(1, 0, start);
        times.note(1, 1, start + Duration::from_millis(5));
        times.note_follower();
        assert_eq!(times.latency(), None);
        // It comes to lead a log that others wrote: that has an end, and is no append.
        times.note(40, 40, start);
        assert_eq!(times.latency(), None);
        times.note(41, 40, start);
        times.note(41, 41, start + Duration::from_millis(2));
        assert_eq!(times.latency().map(|found| found.count), Some(1));
    }
}
