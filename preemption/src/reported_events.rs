//! Events that were reported already.

use std::collections::VecDeque;
use std::fmt;

/// Longest name of an event; further characters are ignored.
const EVENT_CHARS_MAX: usize = 128;
/// Events that are remembered. Far more than one machine has at once; the oldest are forgotten.
const EVENTS_MAX: usize = 64;

/// The identifier that a source gives an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventId(String);

impl EventId {
    /// The event of this name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.chars().take(EVENT_CHARS_MAX).collect())
    }

    /// The name, as the source gives it, cut to its limit.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The events that were reported.
#[derive(Debug, Default)]
pub(super) struct ReportedEvents {
    events: VecDeque<EventId>,
}

impl ReportedEvents {
    /// Whether `event` was not reported yet; records it as reported.
    pub(super) fn is_first(&mut self, event: &EventId) -> bool {
        if self.events.contains(event) {
            return false;
        }
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event.clone());
        true
    }
}

/// An event that is a state: it lasts from the answer that first shows it to the first that does
/// not, no matter which answers repeat meanwhile.
#[derive(Debug, Default)]
pub(super) struct EventLatch {
    is_set: bool,
    reported: ReportedEvents,
}

impl EventLatch {
    /// It is not there.
    pub(super) fn clear(&mut self) {
        self.is_set = false;
    }

    /// Sets the latch under the name `event`. Returns whether it is to be reported.
    pub(super) fn set(&mut self, event: &EventId) -> bool {
        let was_set = std::mem::replace(&mut self.is_set, true);
        !was_set && self.reported.is_first(event)
    }
}

#[cfg(test)]
mod tests {
    use super::{EVENT_CHARS_MAX, EVENTS_MAX, EventId, EventLatch, ReportedEvents};

    #[test]
    fn an_event_is_first_once_as_long_as_it_is_remembered() {
        let mut reported = ReportedEvents::default();
        let event = |index: usize| EventId::new(&format!("event {index}"));
        let first: Vec<bool> =
            (0..EVENTS_MAX).map(|index| reported.is_first(&event(index))).collect();
        assert!(first.iter().all(|is_first| *is_first));
        assert!(!reported.is_first(&event(0)), "all that are remembered are known");
        assert!(reported.is_first(&event(EVENTS_MAX)));
        assert!(reported.is_first(&event(0)), "the oldest was forgotten for it");
        assert!(!reported.is_first(&event(EVENTS_MAX)));
    }

    #[test]
    fn a_latch_is_reported_when_it_is_set_and_new() {
        let mut latch = EventLatch::default();
        let [a, b, c] = ["a", "b", "c"].map(EventId::new);
        assert!(latch.set(&a));
        assert!(!latch.set(&a), "it is still there");
        assert!(!latch.set(&b), "it is still there, and said in other words");
        latch.clear();
        assert!(!latch.set(&a), "it came back, and was told");
        latch.clear();
        assert!(latch.set(&c), "another");
    }

    #[test]
    fn long_names_are_cut() {
        let name = "é".repeat(EVENT_CHARS_MAX + 1);
        assert_eq!(EventId::new(&name).name().chars().count(), EVENT_CHARS_MAX);
    }
}
