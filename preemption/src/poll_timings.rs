//! How often requests are sent, and how long an answer is waited for.

use std::time::Duration;

/// Between two polls of Amazon's metadata: of two minutes' notice, little is lost.
const AWS_POLL: Duration = Duration::from_secs(2);
/// Between two polls of Microsoft's: a notice may be 30 s before.
const AZURE_POLL: Duration = Duration::from_secs(1);
/// How long Google's server is requested to hold an answer back while nothing changes. Shorter than
/// the time that gateways allow an idle connection.
const GCP_HANG: Duration = Duration::from_secs(60);
/// After an answer of Google's, so that a server that never holds one back is not overrun. A change
/// meanwhile is not lost: the next request names the last answer.
const GCP_PAUSE: Duration = Duration::from_millis(250);
/// How long an answer is waited for: it comes from the same host, in milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long Microsoft's first list of events is waited for: the first request switches them on,
/// which is documented to last up to two minutes.
const AZURE_FIRST_PATIENCE: Duration = Duration::from_secs(130);
/// How long a cloud has to answer the probe.
const PROBE_PATIENCE: Duration = Duration::from_millis(1500);
/// Probes of a machine that none answers, in some ten minutes: one that is being started has its network by then.
const PROBES_MAX: u32 = 60;
/// The longest wait after a failure: of the shortest notice, 30 s, two thirds are left.
const FAULT_WAIT_MAX: Duration = Duration::from_secs(10);
/// The shortest wait after a failure.
const FAULT_WAIT_MIN: Duration = Duration::from_secs(1);
/// Doublings of the wait after which it is the longest in any case.
const DOUBLINGS_MAX: u32 = 16;

/// How often requests are sent, and how long an answer is waited for. The default is right for real
/// clouds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollTimings {
    /// Between two polls of Amazon's metadata.
    pub aws_poll: Duration,
    /// Between two looks at Microsoft's.
    pub azure_poll: Duration,
    /// How long Google's server may hold back an answer; whole seconds count.
    pub gcp_hang: Duration,
    /// After each answer of Google's.
    pub gcp_pause: Duration,
    /// How long an answer is waited for.
    pub patience: Duration,
    /// How long Microsoft's first list of events is waited for.
    pub azure_first_patience: Duration,
    /// How long a cloud has to answer the probe.
    pub probe_patience: Duration,
    /// How often clouds are probed if none answers, with the waits after failures between.
    pub probes_max: u32,
    /// The wait after one failure; it doubles with each that follows.
    pub fault_wait_min: Duration,
    /// The longest wait after a failure.
    pub fault_wait_max: Duration,
}

impl Default for PollTimings {
    fn default() -> Self {
        Self {
            aws_poll: AWS_POLL,
            azure_poll: AZURE_POLL,
            gcp_hang: GCP_HANG,
            gcp_pause: GCP_PAUSE,
            patience: PATIENCE,
            azure_first_patience: AZURE_FIRST_PATIENCE,
            probe_patience: PROBE_PATIENCE,
            probes_max: PROBES_MAX,
            fault_wait_min: FAULT_WAIT_MIN,
            fault_wait_max: FAULT_WAIT_MAX,
        }
    }
}

impl PollTimings {
    /// How long to wait after this many failures without a good answer between them.
    #[must_use]
    pub fn fault_wait(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(DOUBLINGS_MAX);
        self.fault_wait_min.saturating_mul(1 << doublings).min(self.fault_wait_max)
    }
}

#[cfg(test)]
mod tests {
    use super::PollTimings;

    #[test]
    fn waits_double_up_to_the_longest() {
        let pace = PollTimings::default();
        let seconds = [1, 2, 3, 4, 5, 6, u32::MAX].map(|count| pace.fault_wait(count).as_secs());
        assert_eq!(seconds, [1, 2, 4, 8, 10, 10, 10]);
    }
}
