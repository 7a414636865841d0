use zbelastic_types::StageIndex;

use super::{STEP_COUNT_MAX, SimulateError, simulate, simulate_with};
use crate::cost::{ChunkTimes, CopyLanes, CostError, Costs, MemoryCosts, MemoryTimes};
use crate::generate::generate;
use crate::kind::ScheduleKind;
use crate::lower::{LowerOptions, lower};
use crate::program::{Program, Window};
use crate::ties::tie_ends;
use crate::timeline::{Timeline, TimelineSlice};

fn program(kind: ScheduleKind) -> Program {
    generate(kind, 2, 2).expect("the size is legal")
}

fn lowered(window: Window) -> Program {
    let options = LowerOptions { window, early_head_weights: false };
    lower(&program(ScheduleKind::ZbH1), options)
}

fn unit_costs(program: &Program) -> Costs {
    Costs::even(&program.placement, 1.0, 1.0, 1.0, 0.0)
}

fn slice(timeline: &Timeline, stage: u32, step: u32, op: &str) -> TimelineSlice {
    let mut slices = timeline.slices(StageIndex(stage)).iter();
    let found = slices.find(|slice| slice.step == step && slice.op.to_string() == op);
    *found.expect("the operation is in the program")
}

/// Two stages, two microbatches, all passes 1: both stages report at 7, stage 1 reaches its
/// gate in the second step 5.5 after that.
fn second_step(window: Window, verdict: f64) -> Timeline {
    let program = lowered(window);
    let costs = Costs { verdict, step: 0.5, ..unit_costs(&program) };
    simulate(&program, &costs, 2).expect("the program is legal")
}

#[test]
fn window_one_hides_the_verdict_behind_the_next_forwards() {
    let start = |timeline: &Timeline, stage, op| slice(timeline, stage, 1, op).start;
    let hidden = second_step(Window::One, 3.0);
    assert_eq!(slice(&hidden, 0, 0, "REPORT").start, 7.0);
    assert_eq!(slice(&hidden, 1, 0, "REPORT").start, 7.0);
    assert_eq!(start(&hidden, 0, "0F0"), 7.5);
    assert_eq!(start(&hidden, 0, "GATE_PREVIOUS"), 11.5);
    assert_eq!(start(&hidden, 1, "GATE_PREVIOUS"), 12.5);
    let seen = second_step(Window::One, 6.0);
    assert_eq!(start(&seen, 0, "0F0"), 7.5);
    assert_eq!(start(&seen, 0, "GATE_PREVIOUS"), 13.0);
    assert_eq!(start(&seen, 1, "GATE_PREVIOUS"), 13.0);
    assert_eq!(start(&seen, 1, "1W0"), 13.0);
}

#[test]
fn window_zero_waits_for_the_verdict_before_the_step() {
    let timeline = second_step(Window::Zero, 3.0);
    assert_eq!(slice(&timeline, 0, 0, "GATE_THIS").start, 10.0);
    assert_eq!(slice(&timeline, 0, 0, "STEP").end, 10.5);
    assert_eq!(slice(&timeline, 0, 1, "0F0").start, 10.5);
}

#[test]
fn the_first_step_waits_for_no_verdict() {
    let timeline = second_step(Window::One, 1000.0);
    assert_eq!(slice(&timeline, 0, 0, "GATE_PREVIOUS").start, 4.0);
}

#[test]
fn a_speculative_step_waits_for_the_sums_of_the_stages_before() {
    let program = lowered(Window::One);
    let mut costs = unit_costs(&program);
    costs.link = 0.25;
    costs.chunks[0].w = 10.0;
    let timeline = simulate(&program, &costs, 1).expect("the program is legal");
    let report = slice(&timeline, 0, 0, "REPORT").start;
    assert!(slice(&timeline, 1, 0, "REPORT").start < report);
    assert_eq!(slice(&timeline, 0, 0, "STEP").start, report);
    assert_eq!(slice(&timeline, 1, 0, "STEP").start, report + 0.25);
}

#[test]
fn early_weights_take_their_share_of_w() {
    let options = LowerOptions { window: Window::One, early_head_weights: true };
    let program = lower(&program(ScheduleKind::ZbH1), options);
    let times = ChunkTimes { f: 1.0, b: 1.0, w: 5.0, w_early: 3.0 };
    let costs = Costs { chunks: vec![times; 2], ..unit_costs(&program) };
    let timeline = simulate(&program, &costs, 1).expect("the program is legal");
    let duration = |stage, op| slice(&timeline, stage, 0, op).duration();
    assert_eq!(duration(1, "1WE0"), 3.0);
    assert_eq!(duration(1, "1W0"), 2.0);
    assert_eq!(duration(0, "0W0"), 5.0);
}

#[test]
fn slices_take_their_shares_of_a_microbatch() {
    let program = program(ScheduleKind::Seq1F1B);
    let even = Costs::even(&program.placement, 1.0, 2.0, 4.0, 0.0);
    let check = |slice_shares, expected: [f64; 2]| {
        let costs = Costs { slice_shares, ..even.clone() };
        let timeline = simulate(&program, &costs, 1).expect("the program is legal");
        let duration = |op| slice(&timeline, 1, 0, op).duration();
        assert_eq!([duration("1F1"), duration("1F1.1")], expected);
        assert_eq!([duration("1BW0"), duration("1BW0.1")], expected.map(|time| 6.0 * time));
    };
    check(vec![], [0.5, 0.5]);
    check(vec![0.25, 0.75], [0.25, 0.75]);
}

#[test]
fn a_way_carries_one_result_at_a_time() {
    let program = program(ScheduleKind::GPipe);
    let mut costs = Costs::even(&program.placement, 1.0, 2.0, 4.0, 0.5);
    costs.occupancy = 3.0;
    let timeline = simulate(&program, &costs, 1).expect("the program is legal");
    let start = |stage, op| slice(&timeline, stage, 0, op).start;
    // The first is sent from 1 to 4, the second, made at 2, from 4 to 7.
    assert_eq!((start(1, "1F0"), start(1, "1F1")), (4.5, 7.5));
    // Gradients go in the other direction, and take longer than they occupy the link.
    assert_eq!((start(1, "1BW0"), start(0, "0BW0")), (8.5, 18.0));
    assert_eq!((start(1, "1BW1"), start(0, "0BW1")), (14.5, 24.0));
}

#[test]
fn gradients_of_twins_meet_a_hop_after_the_later_one_is_complete() {
    let program = lower(
        &program(ScheduleKind::Gems),
        LowerOptions { window: Window::Zero, early_head_weights: false },
    );
    let costs = Costs::even(&program.placement, 1.0, 1.0, 1.0, 0.5);
    let at = |costs: &Costs, stage, op| {
        let timeline = simulate(&program, costs, 1).expect("the program is legal");
        slice(&timeline, stage, 0, op).start
    };
    assert_eq!((at(&costs, 1, "1SEND_G"), at(&costs, 1, "2SEND_G")), (4.5, 12.5));
    assert_eq!((at(&costs, 0, "0SEND_G"), at(&costs, 0, "3SEND_G")), (7.0, 10.0));
    assert_eq!((at(&costs, 0, "0REDUCE"), at(&costs, 0, "3REDUCE")), (13.0, 13.0));
    assert_eq!((at(&costs, 1, "1REDUCE"), at(&costs, 1, "REPORT")), (12.5, 12.5));
    // Two more each for F and B of both microbatches, and then for the gradient itself.
    let slow = Costs { occupancy: 2.0, ..costs };
    assert_eq!(at(&slow, 0, "0REDUCE"), 13.0 + 4.0 * 2.0);
}

/// Each part needs a hop and its own time; the head's has arrived long before the embedding's.
#[test]
fn tied_ends_wait_for_the_part_that_comes_last() {
    let options = LowerOptions { window: Window::One, early_head_weights: true };
    let program = tie_ends(&lower(&program(ScheduleKind::ZbH1), options));
    let costs = Costs::even(&program.placement, 1.0, 1.0, 1.0, 0.5);
    let at = |costs: &Costs, stage, op| {
        let timeline = simulate(&program, costs, 1).expect("the program is legal");
        slice(&timeline, stage, 0, op).start
    };
    let sent = at(&costs, 0, "0SEND_T");
    assert!(at(&costs, 1, "1SEND_T") < sent);
    assert_eq!((at(&costs, 0, "0TIE"), at(&costs, 1, "1TIE")), (sent, sent + 0.5));
    let slow = Costs { tied: 3.0, ..costs };
    assert_eq!((at(&slow, 1, "1TIE"), at(&slow, 1, "REPORT")), (sent + 3.5, sent + 3.5));
}

#[test]
fn a_fused_backward_releases_its_result_at_its_end() {
    let program = program(ScheduleKind::OneFOneB);
    let costs = Costs::even(&program.placement, 1.0, 2.0, 4.0, 0.5);
    let timeline = simulate(&program, &costs, 1).expect("the program is legal");
    let last = slice(&timeline, 1, 0, "1BW0");
    assert_eq!((last.start, last.end), (2.5, 8.5));
    assert_eq!(slice(&timeline, 0, 0, "0BW0").start, 9.0);
}

/// One stage, three microbatches; a pass takes 1, a copy out 3, a copy back 2, R half of F.
fn moved(lanes: CopyLanes) -> Timeline {
    let text = "program gpipe line stages 1 chunks 1 microbatches 3 window -
        stage 0: 0F0 0F1 0DROP1 0OFFLOAD0 0F2 0RELOAD0 0BW2 0R1 0BW1 0BW0";
    let program: Program = text.parse().expect("the text is a program");
    let mut costs = Costs::even(&program.placement, 1.0, 0.5, 0.5, 0.0);
    let times = MemoryTimes { recompute: 0.5, offload: 3.0, reload: 2.0 };
    costs.memory = MemoryCosts { lanes, chunks: vec![times] };
    simulate(&program, &costs, 1).expect("the program is legal")
}

#[test]
fn copies_run_beside_passes_and_are_waited_for() {
    let timeline = moved(CopyLanes::Alternating);
    let times = |op| {
        let slice = slice(&timeline, 0, 0, op);
        (slice.start, slice.end)
    };
    // The copy begins when F0 is done, and the stage waits for it where it stands.
    assert_eq!(times("0OFFLOAD0"), (1.0, 4.0));
    assert_eq!(times("0F2"), (4.0, 5.0));
    // The stage goes on during the reload, and only its pass waits.
    assert_eq!(times("0RELOAD0"), (5.0, 7.0));
    assert_eq!(times("0BW2"), (5.0, 6.0));
    assert_eq!(times("0R1"), (6.0, 6.5));
    assert_eq!(times("0BW1"), (6.5, 7.5));
    assert_eq!(times("0BW0"), (7.5, 8.5));
    assert_eq!(timeline.work(StageIndex(0), 0), 6.5, "R is work, copies are not");
}

#[test]
fn a_stage_without_a_lane_copies_in_turn_with_its_passes() {
    let timeline = moved(CopyLanes::InTurn);
    let times = |op| {
        let slice = slice(&timeline, 0, 0, op);
        (slice.start, slice.end)
    };
    assert_eq!(times("0OFFLOAD0"), (2.0, 5.0), "it comes after F1");
    assert_eq!(times("0RELOAD0"), (6.0, 8.0));
    assert_eq!(times("0BW2"), (8.0, 9.0), "it needs nothing that is reloaded, and waits");
    assert_eq!(times("0BW0").1, 11.5);
}

#[test]
fn a_lane_carries_one_copy_at_a_time_or_one_each_way() {
    let text = "program gpipe line stages 1 chunks 1 microbatches 3 window -
        stage 0: 0F0 0OFFLOAD0 0F1 0F2 0RELOAD0 0OFFLOAD1 0BW2 0BW0 0RELOAD1 0BW1";
    let program: Program = text.parse().expect("the text is a program");
    let start = |lanes, op| {
        let mut costs = Costs::even(&program.placement, 1.0, 0.5, 0.5, 0.0);
        let times = MemoryTimes { recompute: 0.0, offload: 1.0, reload: 4.0 };
        costs.memory = MemoryCosts { lanes, chunks: vec![times] };
        slice(&simulate(&program, &costs, 1).expect("legal"), 0, 0, op).start
    };
    assert_eq!(start(CopyLanes::Alternating, "0OFFLOAD1"), 8.0);
    assert_eq!(start(CopyLanes::Duplex, "0OFFLOAD1"), 3.0);
    assert_eq!(start(CopyLanes::Duplex, "0RELOAD0"), 4.0);
}

#[test]
fn measured_durations_replace_costs() {
    let program = lowered(Window::One);
    let measured = |stage: StageIndex, op: crate::op::Op| {
        (stage == StageIndex(1) && op.to_string() == "1F0").then_some(4.0)
    };
    let found = simulate_with(&program, &unit_costs(&program), 2, &measured).expect("legal");
    assert_eq!(slice(&found, 1, 0, "1F0").duration(), 4.0);
    assert_eq!(slice(&found, 1, 1, "1F0").duration(), 4.0);
    assert_eq!(slice(&found, 1, 0, "1F1").duration(), 1.0);
    assert_eq!(slice(&found, 0, 0, "0F0").duration(), 1.0);
}

#[test]
fn simulation_errors_are_named() {
    let check = |program: &Program, costs: &Costs, steps, expected: SimulateError| {
        assert_eq!(simulate(program, costs, steps), Err(expected));
    };
    let bare = program(ScheduleKind::ZbH1);
    let costs = unit_costs(&bare);
    check(&bare, &costs, 0, SimulateError::StepCount { found: 0 });
    let found = STEP_COUNT_MAX + 1;
    check(&bare, &costs, found, SimulateError::StepCount { found });
    check(&bare, &costs, 2, SimulateError::NotLowered { step_count: 2 });
    assert!(simulate(&lowered(Window::One), &costs, STEP_COUNT_MAX).is_ok());
    let few = Costs { chunks: Vec::new(), ..costs.clone() };
    check(&bare, &few, 1, CostError::ChunkCount { expected: 2, found: 0 }.into());
}

/// Programs that were never checked: nothing panics, and the operation is named.
#[test]
fn a_twin_the_program_does_not_have_is_where_it_stops() {
    for kind in [ScheduleKind::ZbH1, ScheduleKind::Chimera] {
        for word in ["0REDUCE", "9SEND_G", "4294967295RECV_G", "2LOCAL_G"] {
            let mut broken = program(kind);
            let op = word.parse().expect("the word is an operation");
            broken.stages[1].insert(0, op);
            let found = simulate(&broken, &unit_costs(&broken), 1);
            let is_there = kind == ScheduleKind::Chimera && word == "2LOCAL_G";
            assert_eq!(found.is_ok(), is_there, "{kind} {word}");
        }
    }
}

#[test]
fn a_pass_the_program_does_not_have_is_where_it_stops() {
    for word in ["2F0", "0F2", "9B9", "4294967295RECV_F0", "0RECV_F0", "2W0", "0SEND_F9"] {
        let mut broken = program(ScheduleKind::ZbH1);
        let op = word.parse().expect("the word is an operation");
        broken.stages[1].push(op);
        let found = simulate(&broken, &unit_costs(&broken), 1);
        let Err(SimulateError::Deadlock(found)) = found else { panic!("{word}: {found:?}") };
        assert_eq!(found.places[0].op, None);
        assert_eq!(found.places[1].op, Some(op));
    }
}
