//! How often a server that does not answer is asked again, and what is said about it.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// How often and how soon a request is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How often a request is sent at most, 1 or more.
    pub attempts_max: u32,
    /// The wait behind the first attempt; each wait after it is twice as long.
    pub wait_first: Duration,
    /// The longest wait.
    pub wait_max: Duration,
}

impl RetryPolicy {
    /// Ten attempts with waits of 0.5, 1, 2, 4, 8, 16, 30, 30 and 30 s, two minutes in all: a store
    /// that splits a partition or a node that is replaced is back within one, and a signature of a
    /// request is good for fifteen (AWS Signature Version 4).
    pub const STANDARD: Self = Self {
        attempts_max: 10,
        wait_first: Duration::from_millis(500),
        wait_max: Duration::from_secs(30),
    };

    /// The wait behind this attempt, the first being 1; none behind the last.
    #[must_use]
    pub fn wait(&self, attempt: u32) -> Option<Duration> {
        let doublings = attempt.saturating_sub(1).min(u32::BITS - 1);
        let wait = self.wait_first.saturating_mul(1 << doublings);
        (attempt < self.attempts_max).then_some(wait.min(self.wait_max))
    }
}

/// An attempt that failed, and the wait before the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryNotice {
    /// The host that was asked.
    pub host: String,
    /// The failure.
    pub reason: String,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// How often the request is sent at most.
    pub attempts_max: u32,
    /// The wait.
    pub wait: Duration,
}

impl fmt::Display for RetryNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, reason, attempt, attempts_max, wait } = self;
        let seconds = wait.as_secs_f64();
        write!(f, "{host}: {reason} (attempt {attempt} of {attempts_max}), again in {seconds} s")
    }
}

/// What happens while a server does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryEvent<'a> {
    /// A wait begins.
    Begins(&'a RetryNotice),
    /// It goes on, a few times a second.
    Waiting,
}

/// Called during waits; with [`ControlFlow::Break`] it ends the request.
pub type OnRetry = Arc<dyn Fn(RetryEvent<'_>) -> ControlFlow<()> + Send + Sync>;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{RetryNotice, RetryPolicy};

    #[test]
    fn waits_double_up_to_the_longest_and_end() {
        let waits: Vec<_> =
            (1..).map_while(|attempt| RetryPolicy::STANDARD.wait(attempt)).collect();
        let expected = [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000];
        assert_eq!(waits, expected.map(Duration::from_millis));
        let once = RetryPolicy { attempts_max: 1, ..RetryPolicy::STANDARD };
        assert_eq!(once.wait(1), None);
        let many = RetryPolicy { attempts_max: u32::MAX, ..RetryPolicy::STANDARD };
        assert_eq!(many.wait(100), Some(Duration::from_secs(30)));
    }

    #[test]
    fn a_notice_says_who_why_and_when() {
        let notice = RetryNotice {
            host: "s3.example.org".to_owned(),
            reason: "503 SlowDown".to_owned(),
            attempt: 1,
            attempts_max: 10,
            wait: Duration::from_millis(500),
        };
        let expected = "s3.example.org: 503 SlowDown (attempt 1 of 10), again in 0.5 s";
        assert_eq!(notice.to_string(), expected);
    }
}
