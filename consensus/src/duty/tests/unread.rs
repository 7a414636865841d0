//! Checkpoints that could not be read, and when they are given up.

use zbelastic_types::{LayerId, Step};

use crate::duty::{PLANS_FAILED_MAX, PlanNeed};
use crate::entry::Entry;
use crate::fixture::{FixtureLog, admit, lost};
use crate::job::{HaltReason, JobChange};
use crate::message::LoadFault;
use crate::plan::{LayerSource, PlanReason};
use crate::state::State;

use super::harness::{DutiesHarness, TIMING};
use super::planning::{adopted, find_sources, log_of_a_replaced_worker};

/// A leader in whose time nobody was lost for so long that nobody is waited for (R11).
fn long_behind_the_loss(checkpoints: &[u64]) -> DutiesHarness {
    let mut harness = DutiesHarness::new(log_of_a_replaced_worker(checkpoints));
    harness.tick(TIMING.progress_ticks, &[2]);
    harness
}

/// R11: three workers were killed at once, with every copy of a piece on their disks. Their processes
/// were back within a second, and until then the run had gone back through all its checkpoints.
#[test]
fn r11_a_checkpoint_is_not_given_up_while_who_keeps_it_may_come_back() {
    let mut harness = DutiesHarness::new(log_of_a_replaced_worker(&[4, 8]));
    adopted(&find_sources(&mut harness, &[2]));
    for _ in 0..TIMING.progress_ticks - 1 {
        fail_to_load(&mut harness, 8);
        assert_eq!((harness.need(), harness.act()), (None, Vec::new()), "it is waited for");
        harness.tick(1, &[2]);
    }
    // It is back: the same checkpoint is read again, as often as others come back.
    harness.agree(Entry::Members(vec![admit(1, 2)]));
    fail_to_load(&mut harness, 8);
    let layer = LayerId(0);
    assert_eq!(harness.need(), Some(PlanNeed::Now(PlanReason::LoadFailed { layer })));
    assert_eq!(adopted(&find_sources(&mut harness, &[2, 1])).from_step, Step(8));
    // Nobody is away any more: what cannot be read now is given up.
    fail_to_load(&mut harness, 8);
    for _ in 1..PLANS_FAILED_MAX {
        adopted(&find_sources(&mut harness, &[2, 1]));
        fail_to_load(&mut harness, 8);
    }
    let proposed = find_sources(&mut harness, &[2, 1]);
    assert!(matches!(proposed[..], [Entry::Rewind { to: Step(4), .. }]), "{proposed:?}");
}

/// R11: in a fleet that loses somebody every few seconds, too, what nobody has is given up.
#[test]
fn r11_a_piece_is_waited_for_with_an_end_however_often_members_are_lost() {
    const ROUNDS_MAX: u64 = 20;
    let mut harness = DutiesHarness::new(log_of_a_replaced_worker(&[4, 8]));
    let mut rewinds = (0..ROUNDS_MAX).filter(|round| {
        let proposed = find_sources(&mut harness, &[2]);
        if let [Entry::Rewind { to, .. }] = proposed[..] {
            assert_eq!(to, Step(4));
            return true;
        }
        adopted(&proposed);
        harness.tick(TIMING.progress_ticks / 4, &[2]);
        fail_to_load(&mut harness, 8);
        let node = 10 + round;
        harness.agree(Entry::Members(vec![admit(node, 1)]));
        harness.agree(Entry::Members(vec![lost(harness.log.holder(node))]));
        fail_to_load(&mut harness, 8);
        false
    });
    assert!(rewinds.next().is_some_and(|round| round > PLANS_FAILED_MAX as u64));
}

/// R11: a plan that runs misses nothing, and how long it runs is no time in which a checkpoint was waited
/// for. (Found by a life, in which a checkpoint was given up within a moment for a piece that had been missed 10 s
/// before; a plan had run since, with layers that workers had in memory.)
#[test]
fn r11_a_checkpoint_is_waited_for_anew_once_a_plan_ran_without_it() {
    let mut harness = DutiesHarness::new(log_of_a_replaced_worker(&[4]));
    adopted(&find_sources(&mut harness, &[2]));
    fail_to_load(&mut harness, 4);
    harness.tick(1, &[2]);
    harness.agree(Entry::Members(vec![admit(3, 1)]));
    fail_to_load(&mut harness, 4);
    harness.act();
    harness.report_held(2, &[], 0);
    harness.report_held(3, &[0, 1, 2, 3], 4);
    harness.solve();
    let record = adopted(&harness.act());
    let is_held = |source: &LayerSource| matches!(source, LayerSource::Nodes(_));
    assert!(record.sources.iter().all(is_held), "{:?}", record.sources);
    let ready: Vec<_> = (0..record.stages.len()).map(|at| harness.log.ready(at)).collect();
    ready.into_iter().for_each(|ready| {
        harness.duties.handle_ready(&harness.log.state, ready).expect("it is awaited");
    });
    harness.act();
    harness.tick(TIMING.progress_ticks, &[2, 3]);
    harness.agree(Entry::Members(vec![lost(harness.log.holder(3))]));
    adopted(&find_sources(&mut harness, &[2]));
    fail_to_load(&mut harness, 4);
    assert_eq!((harness.need(), harness.act()), (None, Vec::new()), "it is waited for");
}

/// R11: a cluster that was founded from a checkpoint halted within a second, since the first of its workers
/// had a part of it alone; the others came two seconds later. (Found by a life.)
#[test]
fn r11_the_only_checkpoint_is_waited_for_as_long_as_members_come() {
    let before = log_of_a_replaced_worker(&[4, 8]).state;
    let spec = before.job().expect("there is one").spec.clone();
    let checkpoint = before.checkpoints().last().expect("two").clone();
    let state = State::recovered(before.cluster(), spec, checkpoint);
    let mut harness = DutiesHarness::new(FixtureLog { state });
    harness.agree(Entry::Members(vec![admit(2, 9)]));
    adopted(&find_sources(&mut harness, &[2]));
    for node in 3..6 {
        let there: Vec<_> = (2..node).collect();
        let mut rereads = 0;
        for _ in 0..TIMING.progress_ticks - 1 {
            fail_to_load(&mut harness, 8);
            if harness.need().is_some() {
                assert_eq!(adopted(&find_sources(&mut harness, &there)).from_step, Step(8));
                rereads += 1;
            }
            assert_eq!(harness.act(), [], "others may come");
            harness.tick(1, &there);
        }
        assert!((5..=10).contains(&rereads), "a read may fail once: {rereads}");
        harness.agree(Entry::Members(vec![admit(node, 1)]));
        fail_to_load(&mut harness, 8);
        let there: Vec<_> = (2..=node).collect();
        adopted(&find_sources(&mut harness, &there));
    }
    // Whoever loads is not interrupted.
    for _ in 0..TIMING.progress_ticks / 2 {
        harness.work(1, &[2, 3, 4, 5]);
        fail_to_load(&mut harness, 8);
        assert_eq!((harness.need(), harness.act()), (None, Vec::new()), "others load");
    }
}

fn fail_to_load(harness: &mut DutiesHarness, version: u64) {
    fail_to_load_at(harness, 2, version);
}

fn fail_to_load_at(harness: &mut DutiesHarness, node: u64, version: u64) {
    let is_it = |source: &LayerSource| source.is_checkpoint(Step(version));
    assert!(harness.plan().sources.iter().all(is_it), "{:?}", harness.plan().sources);
    let (state, holder) = (&harness.log.state, harness.log.holder(node));
    let failed = harness.duties.handle_load_failed(
        state,
        holder,
        state.generation(),
        (LayerId(0), LoadFault::Source),
    );
    failed.expect("it loads");
}

/// So often that another checkpoint is gone back to.
fn fail_to_load_often(harness: &mut DutiesHarness, version: u64) {
    for _ in 0..PLANS_FAILED_MAX {
        adopted(&find_sources(harness, &[2]));
        fail_to_load(harness, version);
    }
}

/// A checkpoint that could not be read is not tried again; when the last is gone, so is the run.
#[test]
fn a_run_with_nowhere_to_go_back_to_is_held() {
    let mut harness = long_behind_the_loss(&[4, 8, 12]);
    assert_eq!(harness.log.state.history().base(), Step(8));
    fail_to_load_often(&mut harness, 12);
    let proposed = find_sources(&mut harness, &[2]);
    assert!(matches!(proposed[..], [Entry::Rewind { to: Step(8), .. }]), "{proposed:?}");
    // R11: behind it there is nothing, so it is waited for whoever is there.
    adopted(&find_sources(&mut harness, &[2]));
    fail_to_load(&mut harness, 8);
    assert_eq!((harness.need(), harness.act()), (None, Vec::new()), "it is waited for");
    harness.tick(TIMING.progress_ticks, &[2]);
    fail_to_load(&mut harness, 8);
    for _ in 1..PLANS_FAILED_MAX {
        adopted(&find_sources(&mut harness, &[2]));
        fail_to_load(&mut harness, 8);
    }
    let halt = Entry::Job(JobChange::Halt(HaltReason::NothingToRestore));
    assert_eq!(find_sources(&mut harness, &[2]), [halt]);
    harness.agree(Entry::Job(JobChange::Continue));
    let plan = adopted(&find_sources(&mut harness, &[2]));
    assert_eq!(plan.from_step, Step(8), "whoever has it go on may have repaired it");
}

/// Reads fail now and then: what could be read since is not held against a checkpoint.
#[test]
fn a_checkpoint_that_was_read_is_believed_again() {
    let mut harness = long_behind_the_loss(&[4]);
    for _ in 1..PLANS_FAILED_MAX {
        adopted(&find_sources(&mut harness, &[2]));
        fail_to_load(&mut harness, 4);
    }
    adopted(&find_sources(&mut harness, &[2]));
    let ready = harness.log.ready(0);
    harness.duties.handle_ready(&harness.log.state, ready).expect("it is awaited");
    harness.act();
    harness.agree(Entry::Members(vec![lost(harness.log.holder(2)), admit(3, 1)]));
    harness.tick(TIMING.progress_ticks, &[3]);
    adopted(&find_sources(&mut harness, &[3]));
    fail_to_load_at(&mut harness, 3, 4);
    assert_eq!(adopted(&find_sources(&mut harness, &[3])).from_step, Step(4));
}

/// A checkpoint that was written anew is another one.
#[test]
fn a_checkpoint_that_is_made_again_is_believed_again() {
    let mut harness = long_behind_the_loss(&[4, 8]);
    fail_to_load_often(&mut harness, 8);
    let proposed = find_sources(&mut harness, &[2]);
    assert!(matches!(proposed[..], [Entry::Rewind { to: Step(4), .. }]), "{proposed:?}");
    adopted(&find_sources(&mut harness, &[2]));
    harness.log.load();
    harness.log.keep(4);
    harness.log.save(8, 2);
    harness.agree(Entry::Checkpoint { version: Step(8) });
    harness.agree(Entry::Members(vec![lost(harness.log.holder(2)), admit(3, 1)]));
    assert_eq!(adopted(&find_sources(&mut harness, &[3])).from_step, Step(8));
}
