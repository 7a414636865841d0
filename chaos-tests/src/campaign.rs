//! Many lives, on all threads.
//!
//! A life knows nothing of the others, so the same tickets come to the same report on any number of
//! threads.

use std::num::NonZeroUsize;

use crate::case::{LifeCase, LifeTicket};
use crate::life::LifeResult;
use crate::report::{CampaignReport, FailedLife};
use crate::shrink::{ShrunkCase, shrink};
use crate::worker_threads::share_out;

/// Failures that are shrunk and written after a campaign, different ones first: more are seldom
/// looked at.
pub const FAILURES_SHRUNK: usize = 8;

/// How lives are lived.
#[derive(Clone, Copy)]
pub struct Campaign<'a> {
    /// Threads that live lives at the same time.
    pub jobs: NonZeroUsize,
    /// Whether every case is lived twice, and has to come to the same.
    pub is_twice: bool,
    /// Lives a case: [`LifeResult::of`], with the state that a test has to set up on the thread it
    /// is called on.
    pub live: &'a (dyn Fn(&LifeCase) -> LifeResult + Sync),
}

impl Campaign<'_> {
    /// Lives the tickets, and shows the report to `watch` after every life.
    pub fn run(
        &self,
        tickets: impl Iterator<Item = LifeTicket> + Send,
        mut watch: impl FnMut(&CampaignReport),
    ) -> CampaignReport {
        let mut report = CampaignReport::default();
        let work =
            |(number, ticket): (usize, LifeTicket)| (number, ticket, self.life(&ticket.case()));
        share_out(self.jobs, tickets.enumerate(), &work, |(number, ticket, life)| {
            report.add(number, ticket, life);
            watch(&report);
        });
        report
    }

    /// Makes the cases of lives that failed smaller, as long as they fail alike.
    #[must_use]
    pub fn shrink(&self, failures: Vec<FailedLife>) -> Vec<(LifeTicket, ShrunkCase)> {
        let fails = |case: &LifeCase| self.life(case).outcome.failure;
        let work = |(number, life): (usize, FailedLife)| {
            (number, life.ticket, shrink(ShrunkCase::as_drawn(&life), fails))
        };
        let mut shrunk = Vec::new();
        let numbered = failures.into_iter().enumerate();
        share_out(self.jobs, numbered, &work, |result| shrunk.push(result));
        shrunk.sort_by_key(|(number, ..)| *number);
        shrunk.into_iter().map(|(_, ticket, shrunk)| (ticket, shrunk)).collect()
    }

    fn life(&self, case: &LifeCase) -> LifeResult {
        let life = (self.live)(case);
        if self.is_twice { life.same_as(&(self.live)(case)) } else { life }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{Campaign, LifeResult, LifeTicket};
    use crate::case::LifeCase;
    use crate::crash_points::{CrashPoint, CrashPointCounts};
    use crate::failure::{FailureKind, Invariant, LifeFailure};
    use crate::markers::{Marker, Markers};
    use crate::options::ComputeModelKind;
    use crate::report::{CampaignEnding, CampaignReport, LIVES_FOR_MARKERS, LIVES_FOR_RARE_POINTS};
    use crate::world::LifeOutcome;

    fn life(digest: u64, failure: Option<LifeFailure>) -> LifeResult {
        let mut markers = Markers::default();
        markers.hit(Marker::Clipped);
        let outcome = LifeOutcome {
            failure,
            markers,
            crash_points: CrashPointCounts::default(),
            steps: 2,
            faults: 3,
            faults_in_training: 2,
            virtual_us: 5,
            events: 7,
        };
        LifeResult { outcome, digest }
    }

    /// A life that saw every marker and died at every crash point but these.
    fn life_that_saw(unseen: &[Marker], points_unseen: &[CrashPoint]) -> LifeResult {
        let mut life = life(0, None);
        let outcome = &mut life.outcome;
        outcome.markers = Markers::default();
        let seen = Marker::expected().filter(|marker| !unseen.contains(marker));
        seen.for_each(|marker| outcome.markers.hit(marker));
        let seen = CrashPoint::ALL.into_iter().filter(|point| !points_unseen.contains(point));
        seen.for_each(|point| outcome.crash_points.hit(point));
        life
    }

    fn tickets(count: u64) -> impl Iterator<Item = LifeTicket> + Send {
        (1..=count).map(|seed| LifeTicket { seed, model: ComputeModelKind::Digest })
    }

    fn campaign(jobs: usize, live: &(dyn Fn(&LifeCase) -> LifeResult + Sync)) -> Campaign<'_> {
        Campaign { jobs: NonZeroUsize::new(jobs).expect("not zero"), is_twice: false, live }
    }

    /// Every tenth seed panics, every third after it breaks an invariant.
    fn sometimes(case: &LifeCase) -> LifeResult {
        let failure = match case.seed % 10 {
            0 => Some(LifeFailure::panic("oh")),
            3 => Some(LifeFailure::safety(Invariant::N1, "bits")),
            _ => None,
        };
        life(case.seed, failure)
    }

    #[test]
    fn a_report_adds_up_and_does_not_depend_on_threads() {
        let report = campaign(1, &sometimes).run(tickets(40), |_| ());
        assert_eq!((report.lives, report.failed()), (40, 8));
        assert_eq!((report.steps, report.faults), (80, 120));
        assert_eq!((report.faults_in_training, report.undisturbed_lives), (80, 40));
        assert_eq!((report.virtual_us, report.events), (200, 280));
        assert_eq!(report.markers.count(Marker::Clipped), 40);
        let seeds: Vec<u64> = report.failures().map(|life| life.ticket.seed).collect();
        assert_eq!(seeds, [3, 10, 13, 20, 23, 30, 33, 40]);
        assert_eq!(report, campaign(4, &sometimes).run(tickets(40), |_| ()));
    }

    #[test]
    fn the_worst_kind_gives_the_exit_code() {
        let ending = |kinds: &[LifeFailure]| {
            let live = |case: &LifeCase| life(0, kinds.get(case.seed as usize - 1).cloned());
            campaign(2, &live).run(tickets(5), |_| ()).ending()
        };
        let safety = LifeFailure::safety(Invariant::S1, "");
        let liveness = LifeFailure::liveness("");
        let panic = LifeFailure::panic("");
        let differs = LifeFailure::non_determinism("");
        assert_eq!(ending(&[]), CampaignEnding::Passed);
        assert_eq!(ending(std::slice::from_ref(&differs)).exit_code(), 13);
        assert_eq!(ending(&[differs.clone(), panic.clone()]).exit_code(), 12);
        assert_eq!(ending(&[panic.clone(), liveness.clone()]).exit_code(), 11);
        let all = [panic, liveness, safety, differs];
        assert_eq!(ending(&all), CampaignEnding::Failed(FailureKind::Safety));
        assert_eq!(ending(&all).exit_code(), 10);
    }

    #[test]
    fn a_large_campaign_must_have_seen_every_marker() {
        let ending = |count: u64, model, unseen: &[Marker]| {
            let live = |_: &LifeCase| life_that_saw(unseen, &[]);
            let tickets = (0..count).map(|seed| LifeTicket { seed, model });
            campaign(2, &live).run(tickets, |_| ()).ending()
        };
        let check = |marker, lives| {
            assert_eq!(
                ending(lives - 1, ComputeModelKind::Digest, &[marker]),
                CampaignEnding::Passed
            );
            assert_eq!(
                ending(lives, ComputeModelKind::Digest, &[marker]),
                CampaignEnding::MarkersMissed
            );
            assert_eq!(ending(lives, ComputeModelKind::Digest, &[]), CampaignEnding::Passed);
            assert_eq!(ending(lives, ComputeModelKind::Float, &[marker]), CampaignEnding::Passed);
        };
        check(Marker::Clipped, LIVES_FOR_MARKERS);
        check(Marker::RolledBackTwice, LIVES_FOR_MARKERS);
        assert_eq!(CampaignEnding::MarkersMissed.exit_code(), 14);
    }

    #[test]
    fn in_a_large_campaign_processes_must_have_died_at_every_crash_point() {
        let ending = |count: u64, unseen: &[CrashPoint]| {
            let live = |_: &LifeCase| life_that_saw(&[], unseen);
            campaign(2, &live).run(tickets(count), |_| ()).ending()
        };
        let check = |point, lives| {
            assert_eq!(ending(lives - 1, &[point]), CampaignEnding::Passed);
            assert_eq!(ending(lives, &[point]), CampaignEnding::CrashPointsMissed);
        };
        check(CrashPoint::BroadcastHalf, LIVES_FOR_MARKERS);
        check(CrashPoint::AfterInstall, LIVES_FOR_RARE_POINTS);
        assert_eq!(CampaignEnding::CrashPointsMissed.exit_code(), 14);
    }

    #[test]
    fn a_large_campaign_may_not_end_early_too_often() {
        let ending = |halted: u64| {
            let live = |case: &LifeCase| {
                let mut life = life_that_saw(&[], &[]);
                if case.seed < halted {
                    life.outcome.markers.hit(Marker::Halted);
                }
                life
            };
            let tickets =
                (0..1000).map(|seed| LifeTicket { seed, model: ComputeModelKind::Digest });
            campaign(2, &live).run(tickets, |_| ()).ending()
        };
        assert_eq!(ending(20), CampaignEnding::Passed);
        assert_eq!(ending(21), CampaignEnding::TooManyExcused);
        assert_eq!(CampaignEnding::TooManyExcused.exit_code(), 14);
    }

    #[test]
    fn a_case_that_lives_differently_the_second_time_is_found() {
        let lives = AtomicU64::new(0);
        let live = |_: &LifeCase| life(lives.fetch_add(1, Ordering::SeqCst) / 3, None);
        let report = Campaign { is_twice: true, ..campaign(1, &live) }.run(tickets(3), |_| ());
        // Digests 0 0, 0 1, 1 1.
        let seeds: Vec<u64> = report.failures().map(|life| life.ticket.seed).collect();
        assert_eq!(seeds, [2]);
        assert_eq!(report.ending(), CampaignEnding::Failed(FailureKind::NonDeterminism));
    }

    #[test]
    fn different_failures_are_shrunk_before_similar_ones() {
        let report = campaign(1, &sometimes).run(tickets(40), |_| ());
        let seeds = |count| -> Vec<u64> {
            report.most_different(count).iter().map(|life| life.ticket.seed).collect()
        };
        assert_eq!(seeds(3), [3, 10, 13]);
        let late = |case: &LifeCase| match case.seed {
            9 => life(0, Some(LifeFailure::liveness("stands"))),
            seed if seed < 9 => life(0, Some(LifeFailure::panic("oh"))),
            _ => life(0, None),
        };
        let report = campaign(1, &late).run(tickets(20), |_| ());
        let first: Vec<u64> = report.most_different(2).iter().map(|l| l.ticket.seed).collect();
        assert_eq!(first, [1, 9]);
        let shrunk = campaign(2, &late).shrink(report.most_different(2));
        assert_eq!(shrunk.iter().map(|(ticket, _)| ticket.seed).collect::<Vec<_>>(), [1, 9]);
        assert!(shrunk.iter().all(|(_, shrunk)| shrunk.case.faults.is_empty()));
    }

    #[test]
    fn very_many_failures_are_counted_and_the_first_are_kept() {
        let live = |_: &LifeCase| life(0, Some(LifeFailure::panic("oh")));
        let report: CampaignReport = campaign(4, &live).run(tickets(500), |_| ());
        assert_eq!(report.failed(), 500);
        let seeds: Vec<u64> = report.failures().map(|life| life.ticket.seed).collect();
        assert_eq!(seeds, (1..=100).collect::<Vec<_>>());
        assert!(report.to_string().contains("and 400 more"));
    }
}
