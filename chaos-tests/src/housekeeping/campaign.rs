//! Many lives, and what they came to.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;

use super::check::{HousekeepingMarker, HousekeepingMarkerCounts};
use super::{HousekeepingOutcome, live_quietly};
use crate::failure::{FailureKind, LifeFailure};
use crate::report::CampaignEnding;
use crate::worker_threads::share_out;

/// Lives from which on a campaign must have seen all that there is to see.
pub const LIVES_FOR_SEEN: u64 = 300;
/// Failures that are kept, the first by their seeds.
const FAILURES_KEPT: usize = 20;

/// What the lives of a campaign came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HousekeepingReport {
    /// Number of lives that were run.
    pub lives: u64,
    /// Checkpoints that came about.
    pub checkpoints: u64,
    /// Length of all lives in microseconds of virtual time.
    pub virtual_us: u64,
    /// Counts of what the lives came to.
    pub markers: HousekeepingMarkerCounts,
    /// How many failed, by kind.
    pub failed: BTreeMap<FailureKind, u64>,
    /// The first that failed, by seed.
    pub failures: BTreeMap<u64, LifeFailure>,
}

impl HousekeepingReport {
    fn add(&mut self, seed: u64, outcome: HousekeepingOutcome) {
        self.lives += 1;
        self.checkpoints += outcome.checkpoints;
        self.virtual_us += outcome.virtual_us;
        self.markers.merge(&outcome.markers);
        if let Some(failure) = outcome.failure {
            *self.failed.entry(failure.kind).or_default() += 1;
            self.failures.insert(seed, failure);
            if self.failures.len() > FAILURES_KEPT {
                self.failures.pop_last();
            }
        }
    }

    /// What a campaign that is large enough has not seen.
    #[must_use]
    pub fn missed(&self) -> Vec<HousekeepingMarker> {
        let missed =
            HousekeepingMarker::ALL.into_iter().filter(|seen| self.markers.count(*seen) == 0);
        if self.lives >= LIVES_FOR_SEEN { missed.collect() } else { Vec::new() }
    }

    /// How the campaign ends.
    #[must_use]
    pub fn ending(&self) -> CampaignEnding {
        match self.failed.keys().min_by_key(|kind| kind.exit_code()) {
            Some(kind) => CampaignEnding::Failed(*kind),
            None if !self.missed().is_empty() => CampaignEnding::MarkersMissed,
            None => CampaignEnding::Passed,
        }
    }
}

impl fmt::Display for HousekeepingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seen")?;
        for seen in HousekeepingMarker::ALL {
            writeln!(f, "{:>10}  {seen:?}", self.markers.count(seen))?;
        }
        for (seed, failure) in &self.failures {
            writeln!(f, "  seed {seed}: {failure}")?;
        }
        let lives = self.lives;
        let checkpoints = self.checkpoints;
        let virtual_s = self.virtual_us / 1_000_000;
        match self.ending() {
            CampaignEnding::Passed => {
                write!(f, "passed: {lives} lives, {checkpoints} checkpoints, {virtual_s} s lived")
            }
            CampaignEnding::Failed(_) => {
                let failed: u64 = self.failed.values().sum();
                write!(f, "FAILED: {failed} of {lives} lives")
            }
            CampaignEnding::MarkersMissed
            | CampaignEnding::CrashPointsMissed
            | CampaignEnding::TooManyExcused => {
                write!(f, "FAILED: {lives} lives never saw {:?}", self.missed())
            }
        }
    }
}

/// Lives these seeds. `watch` is shown the report after each.
pub fn campaign(
    jobs: NonZeroUsize,
    is_twice: bool,
    seeds: impl Iterator<Item = u64> + Send,
    mut watch: impl FnMut(&HousekeepingReport),
) -> HousekeepingReport {
    let mut report = HousekeepingReport::default();
    let work = |seed: u64| {
        let (mut outcome, digest) = live_quietly(seed);
        if is_twice && live_quietly(seed) != (outcome.clone(), digest) {
            outcome.failure = Some(LifeFailure::non_determinism("the second life was another one"));
        }
        (seed, outcome)
    };
    share_out(jobs, seeds, &work, |(seed, outcome)| {
        report.add(seed, outcome);
        watch(&report);
    });
    report
}
