//! Where the progress of a cluster is printed, and whether the caller has interrupted it.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::contract::ReportedStatus;
use super::local_cluster::{LOOK_EVERY, LocalCluster, LocalClusterError};

/// A cluster is given up when neither a step was sealed nor the work that any worker reports to
/// have done changed for so long: longer than the loss of a node is noticed, a controller elected,
/// a process started again and a connection dialled, one after the other, on a machine with too few
/// cores. Nothing in it follows from the model.
pub const STANDSTILL: Duration = Duration::from_secs(60);
/// In a standstill, the cluster's status is requested after each of so many parts of it: seldom
/// enough to disturb no node, often enough to notice a worker that works.
const POLLS: u32 = 6;

/// Where lines go, and the flag that ends the watch.
pub struct RunMonitor<'a> {
    out: &'a mut dyn Write,
    stop: &'a AtomicBool,
}

impl<'a> RunMonitor<'a> {
    /// Prints to `out`; `stop` becomes true when the command is to end.
    pub fn new(out: &'a mut dyn Write, stop: &'a AtomicBool) -> Self {
        Self { out, stop }
    }

    /// Prints a line.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn print_line(&mut self, line: &str) -> Result<(), LocalClusterError> {
        let written = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
        written.map_err(LocalClusterError::Output)
    }

    /// Whether it is to end.
    ///
    /// # Errors
    /// If it is.
    pub fn check(&self) -> Result<(), LocalClusterError> {
        let is_over = self.stop.load(Ordering::Relaxed);
        if is_over { Err(LocalClusterError::Interrupted) } else { Ok(()) }
    }

    /// Polls a cluster until its run is done and the digest of its state is known.
    ///
    /// # Errors
    /// If it makes no progress for `limit`, or cannot go on.
    pub fn until_done(
        &self,
        cluster: &mut LocalCluster,
        limit: Duration,
    ) -> Result<(), LocalClusterError> {
        let mut progress = StallDetector::new(cluster);
        while cluster.observation().done().is_none() {
            self.check()?;
            cluster.poll()?;
            progress.check(cluster, limit)?;
            std::thread::sleep(LOOK_EVERY);
        }
        let is_digest_known = |cluster: &LocalCluster| {
            let is_done = cluster.observation().done().is_some_and(|(_, digest)| digest.is_some());
            is_done || cluster.final_digest().is_some()
        };
        while !is_digest_known(cluster) {
            self.check()?;
            cluster.poll_for(Duration::from_millis(200))?;
            progress.check(cluster, limit)?;
        }
        Ok(())
    }
}

/// When anything made progress last: a step was sealed, or a worker reported that it had done more.
#[derive(Debug)]
pub struct StallDetector {
    step: u64,
    since: Instant,
    /// The work of the workers at the last request, by node.
    work: BTreeMap<u64, u64>,
    polled_at: Instant,
}

impl StallDetector {
    /// Progress that counts from now on.
    #[must_use]
    pub fn new(cluster: &LocalCluster) -> Self {
        let now = Instant::now();
        Self {
            step: cluster.observation().step(),
            since: now,
            work: BTreeMap::new(),
            polled_at: now,
        }
    }

    /// Nothing can be sealed at present, so it does not count.
    pub fn excuse(&mut self) {
        self.since = Instant::now();
    }

    /// Looks whether something made progress.
    ///
    /// # Errors
    /// If the last time is longer ago than `limit`, or the run is held.
    pub fn check(
        &mut self,
        cluster: &LocalCluster,
        limit: Duration,
    ) -> Result<(), LocalClusterError> {
        let step = cluster.observation().step();
        if step > self.step {
            (self.step, self.since) = (step, Instant::now());
        }
        if let Some(reason) = cluster.observation().halted() {
            return Err(LocalClusterError::Halted { reason: reason.to_owned() });
        }
        if self.since.elapsed() > limit / POLLS && self.polled_at.elapsed() > limit / POLLS {
            self.poll_status(cluster);
        }
        if self.since.elapsed() > limit {
            let what = "a sealed step".to_owned();
            return Err(LocalClusterError::Late { what, limit, seen: cluster.seen() });
        }
        Ok(())
    }

    /// A worker that has done something since the last request makes progress. A cluster that does
    /// not answer makes none that could be seen.
    fn poll_status(&mut self, cluster: &LocalCluster) {
        if let Ok(status) = cluster.status()
            && has_grown(&mut self.work, work_of(&status))
        {
            self.since = Instant::now();
        }
        self.polled_at = Instant::now();
    }
}

/// The work of each worker, by node.
fn work_of(status: &ReportedStatus) -> BTreeMap<u64, u64> {
    let members = status.members.iter();
    members.filter_map(|member| Some((member.id, member.work?.done))).collect()
}

/// Whether a worker has done something that had not been reported before. The first answer is the
/// base that others are compared with, and no progress by itself; a worker that begins anew counts
/// from nothing.
fn has_grown(known: &mut BTreeMap<u64, u64>, now: BTreeMap<u64, u64>) -> bool {
    let is_first = known.is_empty();
    let grown = now.iter().any(|(node, done)| known.get(node) != Some(done));
    *known = now;
    grown && !is_first
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{has_grown, work_of};
    use crate::contract::ReportedStatus;

    #[test]
    fn whoever_has_done_more_since_the_last_question_makes_progress() {
        let mut known = BTreeMap::new();
        let mut check = |work: &[(u64, u64)], expected: bool| {
            assert_eq!(has_grown(&mut known, work.iter().copied().collect()), expected, "{work:?}");
        };
        check(&[], false);
        check(&[(4, 10), (5, 3)], false);
        check(&[(4, 10), (5, 3)], false);
        check(&[(4, 10), (5, 4)], true);
        check(&[(4, 10)], false);
        check(&[(4, 10), (5, 1)], true);
    }

    #[test]
    fn those_who_report_nothing_are_left_out() {
        let text = r#"{"members":[{"id":1},{"id":4,"work":{"done":7,"activity":null}},
                       {"id":5,"work":null}]}"#;
        let status: ReportedStatus = serde_json::from_str(text).expect("a status");
        assert_eq!(work_of(&status), BTreeMap::from([(4, 7)]));
    }
}
