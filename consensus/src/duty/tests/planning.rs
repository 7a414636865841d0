//! When a plan is needed, and the way to it.

use zbelastic_schedule::Window;
use zbelastic_types::{Generation, LayerId, NodeId, Step};

use crate::duty::window::ROLLBACKS_TO_WAIT;
use crate::duty::{InputRefusal, LeaderAction, NoPlan, PlanNeed, SolveRequest};
use crate::entry::{Entry, RewindReason};
use crate::fixture::{FixtureLog, SETTLE_TICKS, admit, digest, lost, solution, spec};
use crate::history::ROLLBACK_WINDOW;
use crate::job::{JobChange, JobSpec, WindowPolicy};
use crate::member::{LossReason, MemberChange};
use crate::message::LoadFault;
use crate::plan::{LayerSource, PlanReason, PlanRecord};
use crate::state::{PLANNED_AHEAD_MAX, PlanPhase};
use crate::validation::Verdict;

use super::harness::{DutiesHarness, TIMING};

pub(super) fn long() -> JobSpec {
    JobSpec { step_count: 1000, ..spec() }
}

pub(super) fn adopted(proposed: &[Entry]) -> PlanRecord {
    let [.., Entry::Adopt(plan)] = proposed else { panic!("{proposed:#?}") };
    (**plan).clone()
}

#[test]
fn the_first_plan_waits_for_a_solution_and_for_what_everybody_holds() {
    let mut harness = DutiesHarness::new(FixtureLog::with_job(spec(), &[1, 2]));
    assert_eq!(harness.need(), Some(PlanNeed::Now(PlanReason::First)));
    assert_eq!(harness.act(), []);
    assert!(harness.requests_inventory && harness.solve_request.is_some());
    harness.solve();
    assert_eq!(harness.act(), []);
    harness.report_held(1, &[], 0);
    assert!(
        harness.duties.requests_inventory_of(NodeId(2))
            && !harness.duties.requests_inventory_of(NodeId(1))
    );
    assert_eq!(harness.act(), []);
    harness.report_held(2, &[], 0);
    let plan = adopted(&harness.act());
    assert_eq!((plan.reason, plan.from_step), (PlanReason::First, Step(0)));
    assert!(plan.sources.iter().all(|source| *source == LayerSource::Initial));
}

#[test]
fn an_inventory_goes_on_without_those_who_do_not_answer_in_time() {
    let mut harness = DutiesHarness::new(FixtureLog::with_job(spec(), &[1, 2]));
    harness.act();
    harness.solve();
    harness.report_held(1, &[], 0);
    harness.tick(TIMING.inventory_ticks, &[1, 2]);
    assert_eq!(harness.act(), []);
    harness.tick(1, &[1, 2]);
    adopted(&harness.act());
}

/// A worker that came after the question is not waited for, and its report is not taken for an
/// answer.
#[test]
fn only_who_is_asked_answers() {
    let mut harness = DutiesHarness::new(FixtureLog::with_job(spec(), &[1, 2]));
    harness.act();
    harness.agree(Entry::Members(vec![admit(3, 1)]));
    let (holder, index) = (harness.log.holder(3), harness.log.state.applied());
    let tell = |harness: &mut DutiesHarness| {
        harness.duties.handle_inventory(&harness.log.state, holder, index, Vec::new())
    };
    assert_eq!(tell(&mut harness), Err(InputRefusal::NotRequested));
    harness.act();
    assert_eq!(tell(&mut harness), Ok(()), "a plan with it is under way");
}

#[test]
fn nothing_is_planned_without_a_job_or_workers_or_while_the_job_is_held() {
    assert_eq!(DutiesHarness::new(FixtureLog::empty()).decide(), None);
    assert_eq!(DutiesHarness::new(FixtureLog::with_job(spec(), &[])).decide(), None);
    let mut harness = DutiesHarness::new(FixtureLog::with_job(spec(), &[1]));
    harness.agree(Entry::Job(JobChange::Pause));
    assert_eq!((harness.need(), harness.decide()), (None, None));
    harness.agree(Entry::Job(JobChange::Continue));
    assert!(matches!(harness.decide(), Some(LeaderAction::Solve(_))));
}

#[test]
fn a_loss_is_planned_at_once_from_the_open_step() {
    let mut harness = DutiesHarness::running(long(), &[1, 2, 3]);
    harness.log.keep(5);
    let holder = harness.log.holder(2);
    harness.agree(Entry::Members(vec![lost(holder)]));
    let reason = PlanReason::Lost { holder, reason: LossReason::Closed };
    assert_eq!(harness.need(), Some(PlanNeed::Now(reason.clone())));
    let plan = harness.replan_now();
    let text = plan.reason.with_names(|node| format!("gpu-{node}"));
    assert_eq!(text, "node gpu-2 (2) lost: connection closed");
    assert_eq!(PlanReason::First.with_names(|_| String::new()), "first plan");
    assert_eq!((plan.reason, plan.from_step), (reason, Step(5)));
    let nodes = [NodeId(1), NodeId(3)];
    assert!(plan.sources.iter().all(|source| *source == LayerSource::Nodes(nodes.to_vec())));
    assert_eq!(harness.log.state.generation(), plan.generation, "it loads now");
}

#[test]
fn a_layer_that_is_lost_takes_the_run_back_before_it_goes_on() {
    let mut log = FixtureLog::running(long(), &[1, 2]);
    log.keep(4);
    log.checkpoint(4, 1);
    log.keep(2);
    let mut harness = DutiesHarness::new(log);
    harness.agree(Entry::Members(vec![lost(harness.log.holder(2))]));
    harness.act();
    harness.solve();
    harness.report_held(1, &[0, 1], 6);
    let (generation, to) = (harness.log.state.generation(), Step(4));
    let reason = RewindReason::LayerLost { layer: LayerId(2) };
    assert_eq!(harness.act(), [Entry::Rewind { generation, to, reason }]);
    assert_eq!(harness.need(), Some(PlanNeed::Now(PlanReason::Rewound)));
    harness.solve();
    harness.report_held(1, &[0, 1], 6);
    let plan = adopted(&harness.act());
    assert_eq!(plan.from_step, Step(4));
    let is_saved =
        |source: &LayerSource| matches!(source, LayerSource::Checkpoint { version: Step(4), .. });
    assert!(plan.sources.iter().all(is_saved), "memory is not believed after a rewind");
}

/// The worker that wrote it has reported it, and its checkpoint is agreed on while the other one is
/// lost.
#[test]
fn a_run_does_not_go_back_past_a_checkpoint_that_is_about_to_be_complete() {
    let mut log = FixtureLog::running(long(), &[1, 2]);
    log.keep(4);
    log.checkpoint(4, 1);
    log.keep(4);
    log.save(8, 1);
    log.keep(2);
    let mut harness = DutiesHarness::new(log);
    let entry = Entry::Checkpoint { version: Step(8) };
    assert_eq!(harness.decide(), Some(LeaderAction::Propose(entry.clone())));
    harness.duties.on_proposed(harness.log.state.applied() + 2, &entry);
    harness.agree(Entry::Members(vec![lost(harness.log.holder(2))]));
    harness.act();
    harness.solve();
    harness.report_held(1, &[0, 1], 10);
    assert_eq!(harness.act(), [], "it would go back to the one before");
    harness.agree(entry);
    let (generation, to) = (harness.log.state.generation(), Step(8));
    let reason = RewindReason::LayerLost { layer: LayerId(2) };
    assert_eq!(harness.act(), [Entry::Rewind { generation, to, reason }]);
}

/// Worker 1 has written these checkpoints and is lost; worker 2, which holds nothing, has come.
pub(super) fn log_of_a_replaced_worker(checkpoints: &[u64]) -> FixtureLog {
    let mut log = FixtureLog::running(long(), &[1]);
    for version in checkpoints {
        log.keep(4);
        log.checkpoint(*version, 1);
    }
    log.lose(1);
    log.join(2);
    log
}

/// These nodes hold nothing, and a plan is found.
pub(super) fn find_sources(harness: &mut DutiesHarness, nodes: &[u64]) -> Vec<Entry> {
    harness.act();
    nodes.iter().for_each(|node| harness.report_held(*node, &[], 0));
    harness.solve();
    harness.act()
}

#[test]
fn who_lacks_the_memory_for_its_stage_is_done_without_and_no_checkpoint_is_blamed() {
    let mut log = log_of_a_replaced_worker(&[4]);
    log.join(3);
    let mut harness = DutiesHarness::new(log);
    adopted(&find_sources(&mut harness, &[2, 3]));
    for node in [2, 3] {
        let (state, holder) = (&harness.log.state, harness.log.holder(node));
        let (generation, fault) = (state.generation(), (LayerId(0), LoadFault::Memory));
        harness.duties.handle_load_failed(state, holder, generation, fault).expect("it loads");
    }
    let changes = [2, 3].map(|node| {
        let (holder, reason) = (harness.log.holder(node), LossReason::OutOfMemory);
        MemberChange::Lost { holder, reason }
    });
    assert_eq!(harness.act(), [Entry::Members(changes.to_vec())]);
    harness.agree(Entry::Members(vec![crate::fixture::admit(4, 1)]));
    assert_eq!(adopted(&find_sources(&mut harness, &[4])).from_step, Step(4));
}

/// Owner and copy loaded different bits: the run goes back, whatever else could be proposed.
#[test]
fn a_plan_whose_holders_loaded_different_bits_goes_back() {
    let mut log = FixtureLog::running(long(), &[1, 2]);
    log.keep(4);
    log.checkpoint(4, 1);
    log.keep(1);
    let plan = log.plan(&[2, 1]);
    let expected = vec![None; plan.sources.len()];
    log.adopt(PlanRecord { expected, ..plan });
    let mut harness = DutiesHarness::new(log);
    let mut records = [0, 1].map(|stage| harness.log.ready(stage));
    records[0].layers[0].1 = digest(99, 99);
    for ready in records {
        let (state, duties) = (&harness.log.state, &mut harness.duties);
        duties.handle_ready(state, ready).expect("it is awaited");
    }
    let proposed = harness.act();
    let generation = harness.log.state.generation();
    let reason = RewindReason::StateDiffers { layer: LayerId(0) };
    let rewind = Entry::Rewind { generation, to: Step(4), reason };
    assert_eq!(proposed[2..], [Entry::Resume { generation }, rewind], "{proposed:?}");
}

#[test]
fn who_comes_and_goes_holds_a_plan_up_for_so_long_only() {
    let mut harness = DutiesHarness::running(long(), &[1, 2, 3]);
    harness.agree(Entry::Members(vec![lost(harness.log.holder(2))]));
    let mut boot = 0;
    let mut requests = 0;
    for _ in 0..8 * TIMING.inventory_ticks {
        boot += 1;
        harness.agree(Entry::Members(vec![crate::fixture::admit(9, boot)]));
        harness.tick(1, &[1, 3, 9]);
        harness.act();
        requests += u32::from(harness.solve_request.is_some());
        if harness.solve_request.is_some() {
            harness.solve();
        }
        for node in [1, 3] {
            if harness.duties.requests_inventory_of(NodeId(node)) {
                harness.report_held(node, &[0, 1, 2, 3], 0);
            }
        }
        if harness.plan().generation == Generation(2) {
            assert!(requests > 4 * TIMING.inventory_ticks, "newcomers are waited for at first");
            return;
        }
    }
    panic!("no plan in all that time");
}

/// The solver runs on the leader's node: it answers, however long it looks.
#[test]
fn the_solvers_answer_is_waited_for_however_long_it_takes() {
    let mut harness = DutiesHarness::new(FixtureLog::with_job(spec(), &[1]));
    harness.act();
    harness.report_held(1, &[], 0);
    harness.tick(100 * TIMING.progress_ticks, &[1]);
    assert_eq!((harness.act(), harness.given_up.len()), (Vec::new(), 0));
    harness.solve();
    adopted(&harness.act());
}

#[test]
fn a_plan_that_no_entry_holds_is_not_proposed() {
    let mut harness = DutiesHarness::new(FixtureLog::with_job(spec(), &[1]));
    harness.act();
    harness.report_held(1, &[], 0);
    let SolveRequest { number, window, .. } =
        harness.solve_request.take().expect("one is asked for");
    let mut large = crate::fixture::solution(1, window);
    large.op_ticks_max = u32::MAX;
    let op = large.program.stages[0][0];
    large.program.stages[0].extend(std::iter::repeat_n(op, 1 << 20));
    assert!(harness.duties.handle_solution(number, Ok(large)));
    assert_eq!(harness.act(), []);
    assert!(matches!(harness.given_up[..], [NoPlan::Refused(_) | NoPlan::TooLarge { .. }]));
    assert_eq!((harness.act(), harness.solve_request.is_some()), (Vec::new(), false));
}

#[test]
fn those_who_join_are_planned_in_ahead_once_no_more_come() {
    let mut harness = DutiesHarness::running(long(), &[1]);
    harness.log.keep(5);
    harness.tick(3, &[1]);
    harness.agree(Entry::Members(vec![crate::fixture::admit(2, 1)]));
    harness.tick(SETTLE_TICKS - 1, &[1, 2]);
    assert_eq!(harness.need(), None);
    harness.tick(1, &[1, 2]);
    let reason = PlanReason::Joined { count: 1 };
    assert_eq!(harness.need(), Some(PlanNeed::Planned(reason.clone())));
    harness.act();
    assert!(!harness.requests_inventory, "the plan in force says who holds what");
    harness.solve();
    let plan = adopted(&harness.act());
    assert_eq!((&plan.reason, DutiesHarness::nodes(&plan)), (&reason, vec![NodeId(1), NodeId(2)]));
    assert!((6..=5 + PLANNED_AHEAD_MAX).contains(&plan.from_step.0), "the open step is finished");
    let both = LayerSource::Nodes(vec![NodeId(1), NodeId(2)]);
    assert_eq!(plan.sources, vec![both; 4], "who follows a layer has it");
    let state = &harness.log.state;
    assert!(state.is_running() && state.next_plan().is_some(), "training goes on meanwhile");
    for _ in 5..plan.from_step.0 {
        harness.report_all();
        assert!(matches!(harness.act()[..], [Entry::Seal(_)]));
    }
    assert_eq!(harness.plan().generation, plan.generation);
    assert!(matches!(harness.log.state.plan().map(|p| &p.phase), Some(PlanPhase::Loading(_))));
}

#[test]
fn a_plan_with_as_many_stages_as_may_be_takes_in_nobody() {
    let mut harness = DutiesHarness::running(JobSpec { stages_max: 1, ..long() }, &[1]);
    harness.agree(Entry::Members(vec![crate::fixture::admit(2, 1)]));
    harness.tick(3 * SETTLE_TICKS, &[1, 2]);
    assert_eq!((harness.need(), harness.decide()), (None, None));
}

/// A loss comes first while new workers are to be planned in.
#[test]
fn a_loss_comes_before_a_join() {
    let mut harness = DutiesHarness::running(long(), &[1, 2]);
    harness.agree(Entry::Members(vec![crate::fixture::admit(3, 1)]));
    harness.tick(SETTLE_TICKS, &[1, 2, 3]);
    harness.act();
    let first = harness.solve_request.take().expect("a plan with three");
    harness.agree(Entry::Members(vec![lost(harness.log.holder(2))]));
    harness.act();
    let second = harness.solve_request.as_ref().expect("a plan with two");
    assert_eq!(second.nodes.iter().map(|(node, _)| node.0).collect::<Vec<_>>(), [1, 3]);
    let late = Ok(solution(3, Window::One));
    assert!(!harness.duties.handle_solution(first.number, late), "nobody waits for it any more");
}

#[test]
fn who_is_about_to_go_is_planned_out_and_then_gone() {
    let mut harness = DutiesHarness::running(long(), &[1, 2]);
    let holder = harness.log.holder(2);
    harness
        .duties
        .handle_change(&harness.log.state, MemberChange::Drain { holder })
        .expect("it may");
    assert_eq!(harness.act(), [Entry::Members(vec![MemberChange::Drain { holder }])]);
    let reason = PlanReason::Draining { count: 1 };
    assert_eq!(harness.need(), Some(PlanNeed::Planned(reason.clone())));
    harness.solve();
    let plan = adopted(&harness.act());
    assert_eq!((&plan.reason, DutiesHarness::nodes(&plan)), (&reason, vec![NodeId(1)]));
    for _ in 0..plan.from_step.0 {
        harness.report_all();
        harness.act();
    }
    assert!(harness.log.state.is_live(holder), "it is a source of layers still");
    harness.duties.handle_ready(&harness.log.state, harness.log.ready(0)).expect("it loads");
    let proposed = harness.act();
    let gone = MemberChange::Lost { holder, reason: LossReason::Drained };
    assert_eq!(proposed.last(), Some(&Entry::Members(vec![gone])));
}

/// A worker drains: whether it is removed at once.
fn is_let_go(mut harness: DutiesHarness, node: u64) -> bool {
    let holder = harness.log.holder(node);
    harness.agree(Entry::Members(vec![MemberChange::Drain { holder }]));
    let gone = MemberChange::Lost { holder, reason: LossReason::Drained };
    harness.act().contains(&Entry::Members(vec![gone]))
}

#[test]
fn who_is_about_to_go_waits_for_nothing_where_nothing_is_computed() {
    let mut standby = FixtureLog::empty();
    standby.join(1);
    assert!(is_let_go(DutiesHarness::new(standby), 1), "there is no run");
    let ended = |change: JobChange| {
        let mut log = FixtureLog::running(long(), &[1, 2]);
        log.apply(Entry::Job(change));
        DutiesHarness::new(log)
    };
    assert!(is_let_go(ended(JobChange::Stop), 2), "the run was stopped");
    assert!(!is_let_go(ended(JobChange::Pause), 2), "what it is held at is nowhere else");
}

#[test]
fn who_is_about_to_go_waits_for_the_checkpoint_that_a_run_is_held_at() {
    let held_at = |sealed: u32, is_durable: bool| {
        let mut log = FixtureLog::running(JobSpec { checkpoint_every: 4, ..long() }, &[1, 2]);
        (0..sealed).for_each(|_| drop(log.apply(Entry::Seal(log.seal(Verdict::Keep)))));
        if is_durable {
            log.checkpoint(4, 1);
        }
        log.apply(Entry::Job(JobChange::Pause));
        DutiesHarness::new(log)
    };
    assert!(!is_let_go(held_at(4, false), 2), "it is being written");
    assert!(!is_let_go(held_at(5, true), 2), "a step was sealed since");
    assert!(is_let_go(held_at(4, true), 2));
    let mut harness = held_at(4, true);
    let holder = harness.log.holder(2);
    harness.agree(Entry::Members(vec![MemberChange::Drain { holder }]));
    let reason = LossReason::Drained;
    harness.agree(Entry::Members(vec![MemberChange::Lost { holder, reason }]));
    harness.agree(Entry::Job(JobChange::Continue));
    assert_eq!(harness.need(), Some(PlanNeed::Now(PlanReason::Lost { holder, reason })));
}

/// A cluster whose last seals were so often no plain keeps.
fn with_rollbacks(rollbacks: u32, seals: u32) -> DutiesHarness {
    let mut log = FixtureLog::running(JobSpec { window: WindowPolicy::Auto, ..long() }, &[1, 2]);
    for seal in 0..seals {
        let clip = Verdict::Clip { coefficient: 0.5 };
        let verdict = if seal < rollbacks { clip } else { Verdict::Keep };
        log.apply(Entry::Seal(log.seal(verdict)));
    }
    DutiesHarness::new(log)
}

#[test]
fn the_window_is_switched_when_going_ahead_does_not_pay_and_the_plan_says_why() {
    let seals = ROLLBACK_WINDOW as u32;
    let below = with_rollbacks(ROLLBACKS_TO_WAIT - 1, seals);
    assert_eq!(below.need(), None);
    let mut harness = with_rollbacks(ROLLBACKS_TO_WAIT, seals);
    let (window, rollbacks, wait_ticks) = (Window::Zero, ROLLBACKS_TO_WAIT, 0);
    let reason = PlanReason::WindowSwitched { window, rollbacks, seals, wait_ticks };
    assert_eq!(harness.need(), Some(PlanNeed::Planned(reason.clone())));
    harness.act();
    assert_eq!(harness.requested_window(), Window::Zero);
    harness.solve();
    let plan = adopted(&harness.act());
    assert_eq!((plan.window(), plan.reason), (Some(Window::Zero), reason));
}

#[test]
fn long_waits_for_verdicts_are_a_reason_to_go_ahead_whatever_is_rolled_back() {
    let mut harness = with_rollbacks(ROLLBACK_WINDOW as u32, ROLLBACK_WINDOW as u32);
    harness.beat(1, 0, 2);
    assert_eq!(harness.need(), None);
    harness.beat(1, 0, 1);
    assert!(harness.need().is_some());
}

#[test]
fn a_plan_that_stands_still_is_given_up_after_so_many_ticks() {
    let mut harness = DutiesHarness::running(long(), &[1, 2]);
    harness.tick(TIMING.progress_ticks, &[1, 2]);
    assert_eq!(harness.need(), None);
    harness.tick(1, &[1, 2]);
    let ticks = TIMING.progress_ticks + 1;
    assert_eq!(harness.need(), Some(PlanNeed::Now(PlanReason::Stalled { ticks })));
    let plan = harness.replan_now();
    assert_eq!(plan.reason, PlanReason::Stalled { ticks });
}

#[test]
fn a_seal_shows_that_a_plan_moves() {
    let mut harness = DutiesHarness::running(long(), &[1, 2]);
    harness.tick(TIMING.progress_ticks, &[1, 2]);
    harness.report_all();
    harness.act();
    harness.tick(TIMING.progress_ticks, &[1, 2]);
    assert_eq!(harness.need(), None);
}

pub(super) fn loading() -> DutiesHarness {
    let mut log = FixtureLog::with_job(long(), &[1, 2]);
    log.adopt(log.plan(&[1, 2]));
    DutiesHarness::new(log)
}

#[test]
fn a_plan_that_does_not_load_is_given_up_after_so_many_ticks() {
    let mut harness = loading();
    harness.tick(TIMING.progress_ticks, &[1, 2]);
    assert_eq!(harness.need(), None);
    harness.tick(1, &[1, 2]);
    let ticks = TIMING.progress_ticks + 1;
    assert_eq!(harness.need(), Some(PlanNeed::Now(PlanReason::Stalled { ticks })));
}

/// A worker that reports again and again that it has loaded something else does not hold the limit
/// off.
#[test]
fn a_record_that_is_refused_does_not_show_that_a_plan_moves() {
    let mut harness = loading();
    let wrong = crate::entry::ReadyRecord { layers: Vec::new(), ..harness.log.ready(0) };
    for _ in 0..=TIMING.progress_ticks {
        harness.tick(1, &[1, 2]);
        harness.duties.handle_ready(&harness.log.state, wrong.clone()).expect("it has a stage");
        harness.act();
    }
    assert!(matches!(harness.need(), Some(PlanNeed::Now(PlanReason::Lost { .. }))));
}

#[test]
fn a_layer_that_cannot_be_loaded_ends_the_plan_at_once() {
    let mut harness = loading();
    let (state, layer) = (&harness.log.state, LayerId(1));
    let holder = harness.log.holder(1);
    let failed = harness.duties.handle_load_failed(
        state,
        holder,
        state.generation(),
        (layer, LoadFault::Source),
    );
    failed.expect("it loads");
    assert_eq!(harness.need(), Some(PlanNeed::Now(PlanReason::LoadFailed { layer })));
    assert_eq!(harness.replan_now().reason, PlanReason::LoadFailed { layer });
}

#[test]
fn where_there_is_no_plan_none_is_asked_for_again_until_something_changes() {
    let mut harness = DutiesHarness::new(FixtureLog::with_job(spec(), &[1]));
    harness.act();
    harness.report_held(1, &[], 0);
    harness.solve_not();
    for _ in 0..20 {
        harness.tick(1, &[1]);
        assert_eq!((harness.act(), harness.solve_request.is_some()), (Vec::new(), false));
    }
    harness.agree(Entry::Members(vec![crate::fixture::admit(2, 1)]));
    harness.act();
    assert!(harness.solve_request.is_some(), "with another node there may be one");
}

#[test]
fn no_change_is_planned_for_after_the_last_step() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(10);
    let mut harness = DutiesHarness::new(log);
    harness.agree(Entry::Members(vec![crate::fixture::admit(2, 1)]));
    harness.tick(SETTLE_TICKS, &[1, 2]);
    harness.act();
    harness.solve();
    assert_eq!(harness.act(), []);
}
