//! The formulas of the papers, as `docs/schedule-ir.md` lists them, against simulation: without
//! hops, at times where they are exact.

use zbelastic_schedule::asynchronous::{
    AsyncKind, AsyncRequest, AsyncVariant, DynamicOptions, DynamicRule, generate_async,
};
use zbelastic_schedule::{
    ChunkMemory, Costs, PipelineSize, ScheduleKind, Timeline, generate, generate_sized,
    peak_memory, simulate,
};

/// Times of a whole stage: its F, B and W.
#[derive(Clone, Copy)]
struct PassTimes {
    f: f64,
    b: f64,
    w: f64,
}

const EQUAL: PassTimes = PassTimes { f: 2.0, b: 2.0, w: 2.0 };
/// W is the shortest, as measured on real models.
const REAL: PassTimes = PassTimes { f: 10.0, b: 11.0, w: 8.0 };
const SHORT_W: PassTimes = PassTimes { f: 9.0, b: 4.0, w: 1.0 };

fn replay(kind: ScheduleKind, stages: u32, microbatches: u32, times: PassTimes) -> Timeline {
    let program = generate(kind, stages, microbatches).expect("the size is legal");
    let costs = Costs::even(&program.placement, times.f, times.b, times.w, 0.0);
    simulate(&program, &costs, 1).expect("a generated program runs to its end")
}

/// `idle` is the time in which the stage with the longest span does not compute.
fn check(kind: ScheduleKind, times: PassTimes, idle: fn(stages: f64, times: PassTimes) -> f64) {
    for stages in 1..=8 {
        for microbatches in [2 * stages, 4 * stages] {
            let timeline = replay(kind, stages, microbatches, times);
            let work = f64::from(microbatches) * (times.f + times.b + times.w);
            let expected = work + idle(f64::from(stages), times);
            let found = timeline.cost(0);
            assert!((found - expected).abs() < 1e-9, "{kind} {stages} {microbatches}: {found}");
        }
    }
}

#[test]
fn bubbles_are_those_of_the_papers() {
    for times in [EQUAL, REAL, SHORT_W] {
        check(ScheduleKind::GPipe, times, |p, t| (p - 1.0) * (t.f + t.b + t.w));
        check(ScheduleKind::OneFOneB, times, |p, t| (p - 1.0) * (t.f + t.b + t.w));
        check(ScheduleKind::Interleaved, times, |p, t| (p - 1.0) * (t.f + t.b + t.w) / 2.0);
        check(ScheduleKind::ZbH1, times, |p, t| (p - 1.0) * (t.f + t.b - t.w));
        check(ScheduleKind::ZbH2, times, |p, t| (p - 1.0) * (t.f + t.b - 2.0 * t.w));
    }
    check(ScheduleKind::ZbV, EQUAL, |_, _| 0.0);
}

/// With a barrier at the end of the step even H2 has a bubble: its stages start one after another
/// and end one after another.
#[test]
fn without_a_bubble_there_is_still_a_ramp() {
    let timeline = replay(ScheduleKind::ZbH2, 4, 8, EQUAL);
    assert_eq!(timeline.bubble_span(0), 0.0);
    assert_eq!(timeline.makespan(0), timeline.cost(0) + 3.0 * EQUAL.f);
    assert_eq!(timeline.bubble_sync(0), 6.0 / 54.0);
}

/// Chunks dealt round, in any number: `idle` of stages, chunks and times, and the chunks
/// that a stage keeps of stages, chunks and microbatches.
fn check_chunks(
    kind: ScheduleKind,
    idle: fn(p: f64, v: f64, times: PassTimes) -> f64,
    kept: fn(p: u32, v: u32, m: u32) -> u32,
) {
    for (stages, chunks, rounds) in
        (1..=8).flat_map(|p| (2..=5).flat_map(move |v| [(p, v, 1), (p, v, 2), (p, v, 4)]))
    {
        let size = PipelineSize {
            stage_count: stages,
            chunks_per_stage: chunks,
            microbatch_count: rounds * stages,
            slice_count: 1,
        };
        let program = generate_sized(kind, size).expect("the size is legal");
        for times in [EQUAL, REAL, SHORT_W] {
            let costs = Costs::even(&program.placement, times.f, times.b, times.w, 0.0);
            let timeline = simulate(&program, &costs, 1).expect("it runs to its end");
            let work = f64::from(size.microbatch_count) * (times.f + times.b + times.w);
            let expected = work + idle(f64::from(stages), f64::from(chunks), times);
            let found = timeline.cost(0);
            assert!((found - expected).abs() < 1e-9, "{kind} {size:?}: {found}, not {expected}");
        }
        let peak = chunks_kept(&program);
        assert_eq!(peak, f64::from(kept(stages, chunks, size.microbatch_count)), "{kind} {size:?}");
    }
}

/// Most chunks whose activations any stage keeps, until W gives them back.
fn chunks_kept(program: &zbelastic_schedule::Program) -> f64 {
    let one = ChunkMemory {
        after_forward: 1.0,
        after_drop: 0.0,
        after_input_gradient: 1.0,
        after_early_weights: 1.0,
    };
    let chunks = vec![one; program.placement.chunk_count() as usize];
    peak_memory(program, &chunks).into_iter().fold(0.0, f64::max)
}

#[test]
fn more_chunks_leave_smaller_bubbles() {
    let whole = |p: f64, v: f64, t: PassTimes| (p - 1.0) * (t.f + t.b + t.w) / v;
    check_chunks(ScheduleKind::LoopedBfs, whole, |_, v, m| v * m);
    check_chunks(ScheduleKind::Interleaved, whole, |p, v, m| (v * p + p - 1).min(v * m));
    check_chunks(ScheduleKind::Gis, |p, v, t| (p - 1.0) * (t.f + t.b) / v, |p, v, _| v * p);
}

#[test]
fn smaller_groups_keep_less_and_leave_larger_bubbles() {
    for (stages, chunks) in (1..=4).flat_map(|half| (2..=5).map(move |v| (2 * half, v))) {
        let size = |m| PipelineSize {
            stage_count: stages,
            chunks_per_stage: chunks,
            microbatch_count: m,
            slice_count: 1,
        };
        let p = f64::from(stages);
        let v = f64::from(chunks);
        for m in [stages, 3 * stages] {
            let program = generate_sized(ScheduleKind::GisH, size(m)).expect("legal");
            for PassTimes { f, b, w } in [EQUAL, REAL] {
                let costs = Costs::even(&program.placement, f, b, w, 0.0);
                let timeline = simulate(&program, &costs, 1).expect("it runs to its end");
                let idle = ((p - 1.0) * (f + b) + (v - 1.0) * p / 2.0 * (f + b - w)) / v;
                let expected = f64::from(m) * (f + b + w) + idle;
                assert!((timeline.cost(0) - expected).abs() < 1e-9, "{stages} {chunks} {m}");
            }
            assert_eq!(chunks_kept(&program), f64::from(stages + (chunks - 1) * stages / 2));
            let program = generate_sized(ScheduleKind::Po, size(m)).expect("legal");
            let costs = Costs::even(&program.placement, REAL.f, REAL.b, REAL.w, 0.0);
            let timeline = simulate(&program, &costs, 1).expect("it runs to its end");
            let whole = REAL.f + REAL.b + REAL.w;
            assert!(timeline.cost(0) <= (f64::from(m) + p - 1.0) * whole, "{stages} {chunks} {m}");
        }
    }
}

/// What a vee keeps, in microbatches, and the most that its stages idle at equal times, in F: the
/// paper gives both as limits of the share per stage.
#[test]
fn a_vee_keeps_half_a_third_or_two_thirds() {
    let check = |kind, kept: fn(u32) -> u32, idle_a_stage: f64| {
        for stages in 1..=16 {
            for microbatches in [2 * stages, 4 * stages] {
                let program = generate(kind, stages, microbatches).expect("legal");
                assert_eq!(chunks_kept(&program), f64::from(2 * kept(stages)), "{kind} {stages}");
                let timeline = replay(kind, stages, microbatches, EQUAL);
                let work = f64::from(microbatches) * 3.0 * EQUAL.f;
                let idle = timeline.cost(0) - work;
                assert!(
                    idle <= idle_a_stage * f64::from(stages) * EQUAL.f,
                    "{kind} {stages} {idle}"
                );
            }
        }
    };
    check(ScheduleKind::VHalf, |p| p / 2 + 1, 1.5);
    check(ScheduleKind::VMin, |p| (p + 1) / 3 + 1, 1.875);
    check(ScheduleKind::OneFOneBV, |p| 2 * p / 3 + 1, 2.375);
}

/// Slices leave a bubble and a ramp of activations that are as much smaller as they are.
#[test]
fn slices_leave_a_share_of_the_bubble() {
    let kind = ScheduleKind::Seq1F1B;
    for (stages, slices) in (1..=8).flat_map(|p| (1..=6).map(move |n| (p, n))) {
        let p = f64::from(stages);
        let n = f64::from(slices);
        for microbatches in [2, stages.max(2), 4 * stages] {
            let size = PipelineSize {
                slice_count: slices,
                ..PipelineSize::of(kind, stages, microbatches)
            };
            let program = generate_sized(kind, size).expect("the size is legal");
            let kept = (stages - 1 + slices).min(microbatches * slices);
            assert_eq!(chunks_kept(&program), f64::from(kept) / n, "{size:?}");
            if microbatches * slices < stages - 1 + slices {
                continue;
            }
            for PassTimes { f, b, w } in [EQUAL, REAL, SHORT_W] {
                let costs = Costs::even(&program.placement, f, b, w, 0.0);
                let timeline = simulate(&program, &costs, 1).expect("it runs to its end");
                let whole = f + b + w;
                let expected = f64::from(microbatches) * whole + (p - 1.0) * whole / n;
                let found = timeline.cost(0);
                assert!((found - expected).abs() < 1e-9, "{size:?}: {found}, not {expected}");
            }
        }
    }
}

#[test]
fn one_slice_is_no_slice() {
    let size = PipelineSize { slice_count: 1, ..PipelineSize::of(ScheduleKind::Seq1F1B, 4, 7) };
    let one = generate_sized(ScheduleKind::Seq1F1B, size).expect("the size is legal");
    let plain = generate(ScheduleKind::OneFOneB, 4, 7).expect("the size is legal");
    assert_eq!(one.stages, plain.stages);
}

#[test]
fn pairs_in_sequence_leave_the_bubble_of_one_leg() {
    for times in [EQUAL, REAL] {
        check(ScheduleKind::DualPipeV, times, |p, t| (p - 1.0) * (t.f + t.b - t.w) / 2.0);
    }
    let program = generate(ScheduleKind::DualPipeV, 6, 12).expect("legal");
    assert_eq!(chunks_kept(&program), 13.0);
}

/// Microbatches whose activations a stage keeps, by stage.
fn microbatches_kept(program: &zbelastic_schedule::Program) -> Vec<f64> {
    let one = ChunkMemory {
        after_forward: 1.0,
        after_drop: 0.0,
        after_input_gradient: 1.0,
        after_early_weights: 1.0,
    };
    peak_memory(program, &vec![one; program.placement.chunk_count() as usize])
}

/// Li and Hoefler, SC 2021, table 2 and figure 2: p - 2 slots of the length of F, as long as BW
/// takes one as well, however many units there are; and from p/2 + 1 to p microbatches kept.
#[test]
fn two_directions_leave_half_of_a_bubble() {
    let slot = PassTimes { f: 6.0, b: 4.0, w: 2.0 };
    for half in 1..=4 {
        let p = f64::from(2 * half);
        let stages = 2 * half;
        for microbatches in [stages, 2 * stages, 5 * stages] {
            let timeline = replay(ScheduleKind::Chimera, stages, microbatches, slot);
            let n = f64::from(microbatches);
            assert_eq!(timeline.cost(0), (2.0 * n + p - 2.0) * slot.f, "{stages} {microbatches}");
            let rate = (p - 2.0) / (2.0 * n + p - 2.0);
            assert!((timeline.bubble_span(0) - rate).abs() < 1e-12);
            let program = generate(ScheduleKind::Chimera, stages, microbatches).expect("legal");
            let side = |stage: u32| stage.min(stages - 1 - stage);
            let expected: Vec<f64> =
                (0..stages).map(|stage| f64::from(half + 1 + side(stage))).collect();
            assert_eq!(microbatches_kept(&program), expected, "{stages} {microbatches}");
        }
        // Whatever the microbatches, no direction is in the way of the other.
        for microbatches in (2..6 * stages).step_by(2) {
            let timeline = replay(ScheduleKind::Chimera, stages, microbatches, slot);
            let most = (f64::from(microbatches.div_ceil(stages) * stages) * 2.0 + p - 2.0) * slot.f;
            assert!(timeline.cost(0) <= most, "{stages} {microbatches}");
        }
    }
}

/// The same paper's formula for GEMS, where BW takes twice as long as F: a bubble rate of (p -
/// 1)/(p + 1/2) as the microbatches grow, and one microbatch kept. For an even number of them it is
/// exact.
#[test]
fn one_microbatch_after_the_other_idles_most_of_the_time() {
    for stages in 1..=8 {
        let p = f64::from(stages);
        let times = PassTimes { f: 2.0, b: 2.0, w: 2.0 };
        let timeline = replay(ScheduleKind::Gems, stages, 12, times);
        let rate = (p - 1.0) / (p + 0.5);
        assert!((timeline.bubble_span(0) - rate).abs() < 1e-12, "{stages}");
        for times in [EQUAL, REAL] {
            let timeline = replay(ScheduleKind::Gems, stages, 12, times);
            let expected = 12.0 * (p * (times.b + times.w) + times.f);
            assert!((timeline.cost(0) - expected).abs() < 1e-9, "{stages}");
        }
        let program = generate(ScheduleKind::Gems, stages, 12).expect("legal");
        assert_eq!(microbatches_kept(&program), vec![1.0; stages as usize]);
    }
}

/// Once an asynchronous pipeline is full, its busiest stage does not wait; AvgPipe flushes, and
/// what one of its pipelines waits is more than half filled by the other.
#[test]
fn without_a_flush_nobody_waits() {
    for kind in AsyncKind::ALL {
        if kind == AsyncKind::AmpNet {
            continue;
        }
        for times in [EQUAL, REAL] {
            let stages = 4;
            let microbatches = 8;
            let cost = |minibatch_count| {
                let request = AsyncRequest {
                    kind,
                    stage_count: stages,
                    minibatch_count,
                    microbatch_count: microbatches,
                    replica_count: 2,
                    dynamic: DynamicOptions { rule: DynamicRule::Oldest, cap: 1, update_every: 1 },
                    variant: AsyncVariant::Usual,
                };
                let program = generate_async(request).expect("the size is legal").plain();
                let costs = Costs::even(&program.placement, times.f, times.b, times.w, 0.0);
                simulate(&program, &costs, 1).expect("a generated program ends").cost(0)
            };
            let pass = times.f + times.b + times.w;
            let idle = (cost(16) - cost(8)) / 8.0 - f64::from(microbatches) * pass;
            let flush = f64::from(stages - 1) * pass;
            let most = if kind == AsyncKind::AvgPipe { flush / 2.0 } else { 0.0 };
            assert!((0.0..=most + 1e-9).contains(&idle), "{kind}: {idle} of {flush}");
        }
    }
}
