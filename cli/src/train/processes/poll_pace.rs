//! How long to wait between two requests for the events of a run.
//!
//! A request is a few datagrams, threads that wake and an answer: most of a millisecond of processor
//! time for both processes, which passes lack where all cores compute. At 33 requests a second that
//! was 1.4 % of two cores. While a step of seconds lasts there are four a second; steps of less than
//! the pause bring events, and so requests, as often as they end.

use std::time::Duration;

/// Pause between two requests for something that is not there yet.
pub const POLL_PAUSE: Duration = Duration::from_millis(30);
/// The longest pause: a line is printed this late at most, which a person does not see.
const PAUSE_MAX: Duration = Duration::from_millis(240);

/// The pause before the next request: it grows while no event comes.
#[derive(Debug)]
pub struct PollPace {
    pause: Duration,
}

impl PollPace {
    /// Begins with the shortest pause.
    #[must_use]
    pub const fn new() -> Self {
        Self { pause: POLL_PAUSE }
    }

    /// Returns to the shortest pause, as after an answer with events: the next ones may follow soon.
    pub fn reset(&mut self) {
        self.pause = POLL_PAUSE;
    }

    /// The pause after an answer without an event. The one after it is twice as long, up to
    /// [`PAUSE_MAX`].
    pub fn poll_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (2 * pause).min(PAUSE_MAX);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_become_rarer_until_an_event_comes() {
        let mut pace = PollPace::new();
        let mut pauses = |count: usize| -> Vec<u128> {
            (0..count).map(|_| pace.poll_pause().as_millis()).collect()
        };
        assert_eq!(pauses(6), [30, 60, 120, 240, 240, 240]);
        pace.reset();
        assert_eq!(pace.poll_pause(), POLL_PAUSE);
        assert_eq!(pace.poll_pause(), 2 * POLL_PAUSE);
    }
}
