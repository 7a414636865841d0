//! The outcome of a campaign.

use std::collections::BTreeMap;
use std::fmt;

use crate::case::LifeTicket;
use crate::crash_points::{CrashPoint, CrashPointCounts};
use crate::failure::{FailureKind, Invariant, LifeFailure};
use crate::life::LifeResult;
use crate::markers::{Marker, Markers};
use crate::options::ComputeModelKind;

/// Lives of the digest model from which on a marker that was never seen is a failure of the
/// campaign. A marker that one life in a hundred hits is missing by chance once in twenty thousand
/// such campaigns. Lives of the float model are few and do not have all faults, so they do not
/// count.
pub const LIVES_FOR_MARKERS: u64 = 1000;
/// The same for crash points that are seldom reached: in twelve thousand lives a process died 63
/// times with a drain half done, and about 110 times at each of the two others.
pub const LIVES_FOR_RARE_POINTS: u64 = 10_000;
/// Faults that a life is to meet while it trains.
const FAULTS_WANTED: u64 = 3;
/// The share of lives that may end in an excused way. Of 12,000 lives 43 did.
const EXCUSED_SHARE_MAX: f64 = 0.02;
/// Failures that are kept, the first by order of their tickets; the rest are counted.
const FAILURES_KEPT: usize = 100;

/// A life that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedLife {
    /// The ticket of the life.
    pub ticket: LifeTicket,
    /// How the life failed.
    pub failure: LifeFailure,
}

/// The outcomes of the lives of a campaign.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CampaignReport {
    /// Number of lives that were run.
    pub lives: u64,
    /// Steps sealed in all lives.
    pub steps: u64,
    /// Faults that were injected in all lives.
    pub faults: u64,
    /// Events of all lives.
    pub events: u64,
    /// Length of all lives in microseconds of virtual time.
    pub virtual_us: u64,
    /// Faults that were injected before the last step was sealed.
    pub faults_in_training: u64,
    /// Lives in which fewer than three of these were injected.
    pub undisturbed_lives: u64,
    /// Markers that lives have set, with how often.
    pub markers: Markers,
    /// How often processes died at each crash point.
    pub crash_points: CrashPointCounts,
    /// Lives of the digest model.
    digest_lives: u64,
    /// How many failed, by kind.
    failed: BTreeMap<FailureKind, u64>,
    /// The first that failed, by the number of their ticket.
    failures: BTreeMap<usize, FailedLife>,
}

/// How a campaign ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CampaignEnding {
    /// Every life passed, and the campaign has seen every marker that it must see.
    Passed,
    /// Lives failed; the worst kind of them.
    Failed(FailureKind),
    /// All passed, and a marker was never seen: the campaign has not tried everything that it is
    /// there for.
    MarkersMissed,
    /// Likewise with a crash point at which no process died.
    CrashPointsMissed,
    /// All passed, and too many of them because a fault excused their end.
    TooManyExcused,
}

impl CampaignEnding {
    /// The exit code of the harness itself.
    pub const HARNESS: u8 = 14;

    /// The exit code of this ending.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Failed(kind) => kind.exit_code(),
            Self::MarkersMissed | Self::CrashPointsMissed | Self::TooManyExcused => Self::HARNESS,
        }
    }
}

impl CampaignReport {
    /// Adds the life of the ticket with this number.
    pub(crate) fn add(&mut self, number: usize, ticket: LifeTicket, life: LifeResult) {
        let outcome = life.outcome;
        self.lives += 1;
        self.digest_lives += u64::from(ticket.model == ComputeModelKind::Digest);
        self.steps += outcome.steps;
        self.faults += outcome.faults;
        self.events += outcome.events;
        self.virtual_us += outcome.virtual_us;
        self.faults_in_training += outcome.faults_in_training;
        let is_undisturbed = outcome.faults_in_training < FAULTS_WANTED;
        self.undisturbed_lives += u64::from(is_undisturbed);
        self.markers.merge(&outcome.markers);
        self.crash_points.merge(&outcome.crash_points);
        if let Some(failure) = outcome.failure {
            *self.failed.entry(failure.kind).or_default() += 1;
            self.failures.insert(number, FailedLife { ticket, failure });
            if self.failures.len() > FAILURES_KEPT {
                self.failures.pop_last();
            }
        }
    }

    /// How many lives failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.values().sum()
    }

    /// The first lives that failed, in the order of their tickets.
    pub fn failures(&self) -> impl Iterator<Item = &FailedLife> {
        self.failures.values()
    }

    /// The first `count` failures: one of each kind and invariant before a second of any.
    #[must_use]
    pub fn most_different(&self, count: usize) -> Vec<FailedLife> {
        let mut seen: BTreeMap<(FailureKind, Option<Invariant>), usize> = BTreeMap::new();
        let ranked = self.failures().map(|life| {
            let rank = seen.entry((life.failure.kind, life.failure.invariant)).or_default();
            *rank += 1;
            (*rank, life)
        });
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().take(count).map(|(_, life)| life.clone()).collect()
    }

    /// Markers that were never seen, in a campaign that is large enough to have seen them.
    #[must_use]
    pub fn missed(&self) -> Vec<Marker> {
        let is_large = self.digest_lives >= LIVES_FOR_MARKERS;
        if is_large { self.markers.missing(Marker::expected()) } else { Vec::new() }
    }

    /// Crash points at which no process died, in a campaign that is large enough.
    #[must_use]
    pub fn missed_points(&self) -> Vec<CrashPoint> {
        let lives_for = |point: &CrashPoint| {
            let is_rare = CrashPoint::RARE.contains(point);
            if is_rare { LIVES_FOR_RARE_POINTS } else { LIVES_FOR_MARKERS }
        };
        let missing = self.crash_points.missing(CrashPoint::ALL).into_iter();
        missing.filter(|point| self.digest_lives >= lives_for(point)).collect()
    }

    /// Lives with an end that a fault excused.
    #[must_use]
    pub fn excused(&self) -> u64 {
        Marker::EXCUSED.into_iter().map(|marker| self.markers.count(marker)).sum()
    }

    fn has_too_many_excused(&self) -> bool {
        let excused_max = (self.lives as f64 * EXCUSED_SHARE_MAX) as u64;
        self.digest_lives >= LIVES_FOR_MARKERS && self.excused() > excused_max
    }

    /// How the campaign ends.
    #[must_use]
    pub fn ending(&self) -> CampaignEnding {
        match self.failed.keys().min_by_key(|kind| kind.exit_code()) {
            Some(kind) => CampaignEnding::Failed(*kind),
            None if !self.missed().is_empty() => CampaignEnding::MarkersMissed,
            None if !self.missed_points().is_empty() => CampaignEnding::CrashPointsMissed,
            None if self.has_too_many_excused() => CampaignEnding::TooManyExcused,
            None => CampaignEnding::Passed,
        }
    }

    /// How the campaign ends, in a line.
    #[must_use]
    pub fn summary(&self) -> String {
        let lives = self.lives;
        let failed = self.failed();
        let ending = self.ending();
        let code = ending.exit_code();
        match ending {
            CampaignEnding::Passed => format!("passed: {lives} lives"),
            CampaignEnding::Failed(_) => {
                let kinds = self.failed.iter().map(|(kind, count)| format!("{count} {kind:?}"));
                let kinds = kinds.collect::<Vec<_>>().join(", ");
                format!("FAILED: {failed} of {lives} lives ({kinds}), exit code {code}")
            }
            CampaignEnding::TooManyExcused => {
                let excused = self.excused();
                format!("FAILED: {excused} of {lives} lives ended early, exit code {code}")
            }
            CampaignEnding::MarkersMissed => {
                let missed = self.missed();
                format!("FAILED: {lives} lives passed, and never saw {missed:?}, exit code {code}")
            }
            CampaignEnding::CrashPointsMissed => {
                let missed = self.missed_points();
                format!(
                    "FAILED: {lives} lives passed, no process died at {missed:?}, exit code {code}"
                )
            }
        }
    }
}

impl fmt::Display for CampaignReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "markers")?;
        for marker in Marker::ALL {
            writeln!(f, "{:>10}  {marker:?}", self.markers.count(marker))?;
        }
        writeln!(f, "crash points")?;
        for point in CrashPoint::ALL {
            writeln!(f, "{:>10}  {point:?}", self.crash_points.count(point))?;
        }
        writeln!(f, "faults before the last seal")?;
        writeln!(f, "{:>10}  of {}", self.faults_in_training, self.faults)?;
        writeln!(f, "{:>10}  lives with fewer than {FAULTS_WANTED}", self.undisturbed_lives)?;
        if self.failed() > 0 {
            writeln!(f, "failures")?;
        }
        for FailedLife { ticket, failure } in self.failures() {
            writeln!(f, "  {ticket}: {failure}")?;
        }
        match self.failed() - self.failures.len() as u64 {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more"),
        }
    }
}
