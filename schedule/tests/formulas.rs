//! The formulas of the papers, as `docs/schedule-ir.md` lists them, against simulation: without
//! hops, at times where they are exact.

use zbelastic_schedule::asynchronous::{
    AsyncKind, AsyncRequest, Dynamic, DynamicRule, generate_async,
};
use zbelastic_schedule::{Costs, ScheduleKind, Timeline, generate, simulate};

/// Whole-stage times.
#[derive(Clone, Copy)]
struct Times {
    f: f64,
    b: f64,
    w: f64,
}

const EQUAL: Times = Times { f: 2.0, b: 2.0, w: 2.0 };
/// W is the shortest, as measured on real models.
const REAL: Times = Times { f: 10.0, b: 11.0, w: 8.0 };
const SHORT_W: Times = Times { f: 9.0, b: 4.0, w: 1.0 };

fn replay(kind: ScheduleKind, stages: u32, microbatches: u32, times: Times) -> Timeline {
    let program = generate(kind, stages, microbatches).expect("the size is legal");
    let costs = Costs::even(&program.placement, times.f, times.b, times.w, 0.0);
    simulate(&program, &costs, 1).expect("a generated program runs to its end")
}

/// `idle` is the time in which the stage with the longest span does not compute.
fn check(kind: ScheduleKind, times: Times, idle: fn(stages: f64, times: Times) -> f64) {
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

/// Once an asynchronous pipeline is full, its busiest stage does not wait; AvgPipe flushes, and what
/// one of its pipelines waits is more than half filled by the other.
#[test]
fn without_a_flush_nobody_waits() {
    for kind in AsyncKind::ALL {
        if kind == AsyncKind::AmpNet {
            continue;
        }
        for times in [EQUAL, REAL] {
            let (stages, microbatches) = (4, 8);
            let cost = |minibatch_count| {
                let request = AsyncRequest {
                    kind,
                    stage_count: stages,
                    minibatch_count,
                    microbatch_count: microbatches,
                    replica_count: 2,
                    dynamic: Dynamic { rule: DynamicRule::Oldest, cap: 1, update_every: 1 },
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
