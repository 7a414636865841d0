//! A leader fails, a majority fails, or an entry comes too late.

use zbelastic_consensus::codec::Format;

use crate::play::{Play, PlayClaim, PlayGoal, PlayMessageKind, PlayOptions};

#[test]
pub fn case_01_a_leader_that_dies_before_it_proposes_costs_nothing() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    play.hold(PlayMessageKind::ReportsFrom(play.stage(0)));
    play.run_until_quiet();
    assert_eq!(play.sealed(), 4, "a report is missing");
    play.crash(play.leader());
    play.release(PlayMessageKind::ReportsFrom(play.stage(0)));
    play.finish();
    play.expect(PlayClaim::NoRollback);
    play.expect(PlayClaim::Plans(1));
    play.expect(PlayClaim::SameAsUndisturbed);
}

#[test]
pub fn case_02_an_entry_of_a_dead_leader_commits_with_the_next_ones_first() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    play.hold(PlayMessageKind::Raft);
    play.run_until_quiet();
    let index = play.last_index(play.leader());
    play.deliver(PlayMessageKind::Raft, play.followers()[0]);
    play.crash(play.leader());
    assert_eq!(play.sealed(), 4, "nobody knows that the entry will stay");
    play.release(PlayMessageKind::Raft);
    play.finish();
    play.expect(PlayClaim::SealedAt { step: 4, index });
    play.expect(PlayClaim::NoRollback);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// The leader that died comes back with the entry on its disk, and gives it up.
#[test]
pub fn case_03_an_entry_lost_with_its_leader_is_proposed_again() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    play.hold(PlayMessageKind::Raft);
    play.run_until_quiet();
    let leader = play.leader();
    let index = play.last_index(leader);
    play.crash(leader);
    play.release(PlayMessageKind::Raft);
    play.run_until(PlayGoal::Sealed(6));
    play.restart(leader);
    play.finish();
    play.expect(PlayClaim::NotSealedAt { step: 4, index });
    play.expect(PlayClaim::NoRollback);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// The entry made no worker give up what undoes the step (rule R1), so those that are left can run
/// it again.
#[test]
pub fn case_03_a_stage_may_die_with_the_leader_that_proposed() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Settled(4));
    play.hold(PlayMessageKind::Raft);
    play.run_until(PlayGoal::Begun(play.stage(1), 5));
    play.run_until_quiet();
    play.crash(play.leader());
    play.crash(play.stage(1));
    play.release(PlayMessageKind::Raft);
    play.finish();
    play.expect(PlayClaim::Redone(&[4, 5]));
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

#[test]
pub fn case_04_workers_request_a_seal_they_did_not_receive() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Settled(4));
    play.hold(PlayMessageKind::Briefings);
    play.run_until(PlayGoal::Sealed(5));
    let index = play.last_index(play.leader());
    play.crash(play.leader());
    play.release(PlayMessageKind::Briefings);
    play.finish();
    play.expect(PlayClaim::SealedAt { step: 4, index });
    play.expect(PlayClaim::NoRollback);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// A plan is proposed while a report is missing; when it comes, the leader still proposes the seal,
/// which lies behind the plan in the log.
#[test]
pub fn case_11_a_seal_that_comes_behind_a_new_plan_is_ignored() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    let late = play.stage(0);
    let lost = play.stage(2);
    play.hold(PlayMessageKind::ReportsFrom(late));
    play.run_until_quiet();
    play.hold(PlayMessageKind::Plans);
    play.crash(lost);
    play.run_until_quiet();
    play.hold(PlayMessageKind::Raft);
    play.release(PlayMessageKind::Plans);
    play.run_until_quiet();
    play.release(PlayMessageKind::ReportsFrom(late));
    play.run_until_quiet();
    play.release(PlayMessageKind::Raft);
    play.finish();
    play.expect(PlayClaim::LateSealIgnored);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// A member that is not connected may have the program before, whatever the others have.
#[test]
pub fn the_format_is_raised_once_every_member_is_known_to_read_it() {
    let mut play = Play::new(PlayOptions { format: Format::OLDEST, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(4));
    let away = play.stage(1);
    let others = [play.leader(), play.stage(0), play.stage(2)];
    others.into_iter().chain(play.followers()).for_each(|node| play.connect(node));
    play.run_until(PlayGoal::Sealed(8));
    assert_eq!(play.format(), Format::OLDEST, "F1: node {away} may not read a newer one");
    play.connect(away);
    play.finish();
    assert_eq!(play.format(), Format::NEWEST);
    play.expect(PlayClaim::SameAsUndisturbed);
}

#[test]
pub fn case_13_without_a_majority_training_waits_at_the_gate_and_goes_on_by_itself() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    let followers = play.followers();
    followers.iter().for_each(|node| play.crash(*node));
    let sealed = play.sealed();
    play.run_until(PlayGoal::Begun(play.stage(0), sealed + 1));
    play.run_ticks(300);
    assert_eq!(play.sealed(), sealed, "nothing is sealed without a majority");
    followers.iter().for_each(|node| play.restart(*node));
    play.finish();
    play.expect(PlayClaim::NoRollback);
    play.expect(PlayClaim::Plans(1));
    play.expect(PlayClaim::SameAsUndisturbed);
}
