//! Follows the events of a node: returns each once, in order, and counts those that were missed.

use std::time::Duration;

use zbelastic_api::client::{ApiClient, ApiError};
use zbelastic_api::{ClusterEvent, EVENTS_MAX, ReportedEntries};

/// How long to wait before the next request for events.
pub const FOLLOW_PAUSE: Duration = Duration::from_millis(250);

/// The events that were returned, and the sequence number to request next. Sequence numbers are
/// those of one node's journal; if another node answers, or the same one has started again, events
/// of entries that were returned are left out, and others up to the time of the last one returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPoller {
    log: Option<u64>,
    next: u64,
    /// Time of the newest event returned from other logs; events up to it are left out.
    returned_until_ms: Option<u64>,
    /// Time of the newest event returned.
    newest_ms: Option<u64>,
    /// The entries of the cluster's log whose events were returned.
    returned: ReportedEntries,
}

/// The result of one poll.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolledEvents {
    /// Events, in the order of the log.
    pub events: Vec<ClusterEvent>,
    /// Events that were forgotten before they could be received.
    pub missed: u64,
    /// Whether the events are from another log than those of the poll before.
    pub is_other_log: bool,
}

impl EventPoller {
    /// From a sequence number on.
    #[must_use]
    pub fn starting_at(sequence: u64) -> Self {
        Self { next: sequence, ..Self::behind(None) }
    }

    /// From the first event on that is later than this time, in milliseconds since 1970.
    #[must_use]
    pub fn behind(time_ms: Option<u64>) -> Self {
        Self {
            log: None,
            next: 0,
            returned_until_ms: time_ms,
            newest_ms: time_ms,
            returned: ReportedEntries::default(),
        }
    }

    /// Requests the events since the last poll.
    ///
    /// # Errors
    /// If there is no answer; a later poll goes on where this one stopped.
    pub fn poll(&mut self, client: &mut ApiClient<'_>) -> Result<PolledEvents, ApiError> {
        let mut page = client.events(self.next, EVENTS_MAX)?;
        let is_other_log = self.log.is_some_and(|log| log != page.log);
        if is_other_log {
            self.returned_until_ms = self.newest_ms;
            self.returned.restart();
            page = client.events(0, EVENTS_MAX)?;
        }
        let is_first = self.log.replace(page.log).is_none() || is_other_log;
        let oldest = page.first_sequence;
        let missed = if is_first { 0 } else { oldest.saturating_sub(self.next) };
        self.next = page.next_sequence;
        let mut events = page.events;
        events.retain(|event| self.admit(event));
        let newest = events.iter().map(|event| event.at_ms).max();
        self.newest_ms = self.newest_ms.max(newest);
        Ok(PolledEvents { events, missed, is_other_log })
    }

    /// Whether an event was not returned yet.
    fn admit(&mut self, event: &ClusterEvent) -> bool {
        match (event.log_index, self.returned.index()) {
            (Some(index), Some(_)) => self.returned.admit(index),
            (index, _) => {
                let is_new = Some(event.at_ms) > self.returned_until_ms;
                if is_new && let Some(index) = index {
                    self.returned.note(index);
                }
                is_new
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::sample::scripted;
    use zbelastic_api::{ApiAnswer, ApiRequest, EventKind, EventPage};

    /// A page of a log whose entries are these, all of them at one time.
    fn page_of_entries(log: u64, at_ms: u64, entries: &[u64]) -> ApiAnswer {
        let event = |(sequence, index): (u64, &u64)| {
            ClusterEvent::new(sequence, at_ms, EventKind::QuorumHeld).of_entry(Some(*index))
        };
        let events = (0..).zip(entries).map(event).collect();
        let next_sequence = entries.len() as u64;
        ApiAnswer::Events(EventPage { log, first_sequence: 0, next_sequence, events })
    }

    /// A page of a log, with events of these numbers, each at ten times that many milliseconds.
    fn page(log: u64, first_sequence: u64, sequences: std::ops::Range<u64>) -> ApiAnswer {
        let next_sequence = sequences.end;
        let event = |sequence| ClusterEvent::new(sequence, 10 * sequence, EventKind::QuorumHeld);
        let events = sequences.map(event).collect();
        ApiAnswer::Events(EventPage { log, first_sequence, next_sequence, events })
    }

    fn check(answers: Vec<ApiAnswer>, expected: &[(&[u64], u64)]) -> Vec<u64> {
        let (mut client, requests) = scripted(answers.into_iter().map(Ok).collect());
        let mut poller = EventPoller::starting_at(0);
        for (sequences, missed) in expected {
            let polled = poller.poll(&mut client).expect("an answer");
            let found: Vec<u64> = polled.events.iter().map(|event| event.sequence).collect();
            assert_eq!((found.as_slice(), polled.missed), (*sequences, *missed));
        }
        let from = |request: &ApiRequest| {
            let ApiRequest::Events { from_sequence, .. } = request else { panic!("{request:?}") };
            *from_sequence
        };
        let requests = requests.borrow();
        requests.iter().map(from).collect()
    }

    #[test]
    fn each_event_is_returned_once_and_gaps_are_counted() {
        let answers = vec![page(1, 3, 3..5), page(1, 3, 5..5), page(1, 9, 9..10)];
        // Events that were forgotten before the first request are not counted as missed.
        let requests = check(answers, &[(&[3, 4], 0), (&[], 0), (&[9], 4)]);
        assert_eq!(requests, [0, 5, 5]);
    }

    #[test]
    fn events_of_an_entry_are_returned_once_whenever_another_node_applied_it() {
        let first = page_of_entries(1, 500, &[3, 8, 8]);
        let later = || page_of_entries(2, 900, &[3, 8, 8, 9]);
        let earlier = || page_of_entries(3, 400, &[8, 8, 9, 11]);
        let answers = vec![first, later(), later(), earlier(), earlier()];
        check(answers, &[(&[0, 1, 2], 0), (&[3], 0), (&[3], 0)]);
    }

    #[test]
    fn another_log_goes_on_where_the_first_one_stopped() {
        let answers = vec![page(1, 0, 0..5), page(2, 0, 5..7), page(2, 2, 2..7), page(2, 2, 7..8)];
        let requests = check(answers, &[(&[0, 1, 2, 3, 4], 0), (&[5, 6], 0), (&[7], 0)]);
        assert_eq!(requests, [0, 5, 0, 7]);
    }
}
