use zbelastic_types::{Attempt, Generation};

use super::*;

fn turn(step: u64, attempt: u32) -> Turn {
    Turn { generation: Generation(0), step: Step(step), attempt: Attempt(attempt) }
}

fn pass(turn: Turn, compute: Compute, start_us: f64, end_us: f64) -> Slice {
    let pass = Pass::new(0, 0);
    let op = Op::Compute(compute, pass);
    Slice { doing: Doing::Ran(Activity::Op { turn, op }), start_us, end_us }
}

fn update(turn: Turn, update: Update, start_us: f64, end_us: f64) -> Slice {
    let op = Op::Update(update);
    Slice { doing: Doing::Ran(Activity::Op { turn, op }), start_us, end_us }
}

/// The extent of step 1, whose second attempt counts.
fn extent(slices: &[Slice]) -> Option<Extent> {
    Extent::of_step(&slices.iter().copied().collect(), turn(1, 1))
}

#[test]
fn an_extent_goes_from_the_first_pass_to_the_last() {
    let slices = [
        pass(turn(0, 0), Compute::W, 0.0, 5.0),
        pass(turn(1, 1), Compute::F, 6.0, 8.0),
        pass(turn(1, 1), Compute::B, 9.0, 12.0),
        update(turn(1, 1), Update::Report, 12.0, 13.0),
        pass(turn(2, 1), Compute::F, 13.0, 15.0),
    ];
    let expected = Extent { start_us: 6.0, end_us: 12.0, work_us: 5.0 };
    assert_eq!(extent(&slices), Some(expected));
    assert_eq!(extent(&slices[..1]), None);
}

#[test]
fn what_was_dropped_takes_time_and_is_no_work() {
    let slices = [
        pass(turn(1, 0), Compute::F, 0.0, 4.0),
        Slice {
            doing: Doing::Ran(Activity::Settled { turn: turn(0, 0) }),
            start_us: 4.0,
            end_us: 5.0,
        },
        pass(turn(1, 1), Compute::F, 5.0, 9.0),
        pass(turn(1, 1), Compute::BW, 9.0, 10.0),
    ];
    let expected = Extent { start_us: 0.0, end_us: 10.0, work_us: 6.0 };
    assert_eq!(extent(&slices), Some(expected));
}

#[test]
fn updates_within_a_step_are_work_and_gates_are_not() {
    let slices = [
        pass(turn(1, 1), Compute::F, 0.0, 2.0),
        update(turn(1, 1), Update::GatePrevious, 2.0, 3.0),
        update(turn(1, 1), Update::Commit, 3.0, 5.0),
        Slice { doing: Doing::Waited(turn(0, 0)), start_us: 5.0, end_us: 7.0 },
        pass(turn(1, 1), Compute::W, 7.0, 8.0),
    ];
    let expected = Extent { start_us: 0.0, end_us: 8.0, work_us: 5.0 };
    assert_eq!(extent(&slices), Some(expected));
}

#[test]
fn the_bubble_is_what_the_busiest_stage_does_not_work() {
    let stages = [
        Extent { start_us: 0.0, end_us: 8.0, work_us: 6.0 },
        Extent { start_us: 2.0, end_us: 10.0, work_us: 7.0 },
    ];
    assert_eq!(measured_bubble(&stages, Window::One), 0.125);
    assert_eq!(measured_bubble(&stages, Window::Zero), 0.3);
    assert_eq!(measured_bubble(&[], Window::Zero), 0.0);
}

#[test]
fn medians_are_of_the_latest() {
    let mut samples = Samples::default();
    assert_eq!(samples.median(), 0.0);
    (0..10).for_each(|_| samples.push(1e9));
    (0..SAMPLES_MAX).for_each(|index| samples.push(index as f64));
    assert_eq!(samples.median(), SAMPLES_MAX as f64 / 2.0);
}

mod planned {
    use zbelastic_schedule::ScheduleKind;
    use zbelastic_trainer::plan::{Plan, PlanRequest};
    use zbelastic_trainer::stage::InitialWeights;

    use super::*;
    use crate::config::{Flag, Sources, load};

    pub fn timing(kind: ScheduleKind, window: Window) -> Timing {
        let flags = vec![Flag::Set("model.preset=tiny".to_owned())];
        let config = load(&Sources { file: None, flags }).expect("legal").config;
        let (model, batch) = (&config.model, config.batch);
        let plan = Plan::new(PlanRequest {
            model,
            batch,
            kind,
            chunks_per_stage: None,
            stage_count: 2,
            window,
        });
        Timing::new(Arc::new(StageSetup {
            plan: plan.expect("legal"),
            model: config.model,
            optimizer: config.optimizer,
            clip_norm: None,
            step_count: 9,
            evaluate_every: 0,
            weights: InitialWeights::Drawn { seed: 1 },
            injections: Vec::new(),
            copies_wanted: false,
            attest_every: 0,
        }))
    }

    /// Passes of `chunk`, each with its duration.
    fn record(timing: &mut Timing, chunk: u32, passes: &[(Compute, f64)]) {
        let mut start_us = 0.0;
        let slices = passes.iter().map(|(compute, duration_us)| {
            let pass = Pass::new(chunk, 0);
            let op = Op::Compute(*compute, pass);
            let doing = Doing::Ran(Activity::Op { turn: turn(0, 0), op });
            let slice = Slice { doing, start_us, end_us: start_us + duration_us };
            start_us += duration_us;
            slice
        });
        let slices = slices.collect();
        timing.record(StageIndex(chunk), slices);
    }

    #[test]
    fn the_plan_is_simulated_with_what_was_measured() {
        let check = |kind, window, chunks: [&[(Compute, f64)]; 2], expected: f64| {
            let mut timing = timing(kind, window);
            for (chunk, passes) in (0..).zip(chunks) {
                record(&mut timing, chunk, passes);
            }
            let found = timing.end_step(turn(0, 0)).planned;
            assert!((found - expected).abs() < 1e-9, "{found}, expected {expected}");
        };
        // Eight microbatches, two stages: one F and one BW beside eight of each.
        let even: &[_] = &[(Compute::F, 1.0), (Compute::BW, 2.0)];
        check(ScheduleKind::OneFOneB, Window::One, [even, even], 3.0 / 27.0);
        check(ScheduleKind::OneFOneB, Window::Zero, [even, even], 3.0 / 27.0);
        let slow: &[_] = &[(Compute::F, 2.0), (Compute::BW, 4.0)];
        // The slow last stage waits for nothing but its first F.
        check(ScheduleKind::GPipe, Window::One, [even, slow], 3.0 / 51.0);
    }
}

mod explained {
    use zbelastic_schedule::{Costs, Program, ScheduleKind, simulate_with};

    use super::planned::timing;
    use super::*;

    /// What a step is like beside the profiled ones.
    #[derive(Clone, Copy)]
    struct Step {
        slower: f64,
        link_us: f64,
        verdict_us: f64,
    }

    const AS_PROFILED: Step = Step { slower: 1.0, link_us: 0.0, verdict_us: 0.0 };

    fn slices_of(program: &Program, turn: Turn, step: Step) -> Vec<Vec<Slice>> {
        let costs = Costs {
            link: step.link_us,
            verdict: step.verdict_us,
            ..Costs::even(&program.placement, 100.0, 110.0, 80.0, 0.0)
        };
        let took = |_: StageIndex, op: Op| match op {
            Op::Compute(Compute::F, _) => Some(100.0 * step.slower),
            Op::Compute(Compute::B, _) => Some(110.0 * step.slower),
            Op::Compute(Compute::W, _) => Some(80.0 * step.slower),
            Op::Compute(Compute::WE | Compute::BW | Compute::R, _)
            | Op::Transfer(..)
            | Op::Update(_)
            | Op::Reduce(..)
            | Op::Memory(..) => None,
        };
        let timeline = simulate_with(program, &costs, 3, &took).expect("it runs to its end");
        let offset_us = 1e6 * turn.step.0 as f64;
        let of_stage = |stage| {
            let (mut told, mut clock_us) = (Vec::new(), f64::NAN);
            for slice in timeline.slices(stage).iter().filter(|slice| slice.step == 1) {
                let (start_us, end_us) = (slice.start + offset_us, slice.end + offset_us);
                if slice.op == Op::Update(Update::GatePrevious) && start_us > clock_us {
                    let doing = Doing::Waited(turn);
                    told.push(Slice { doing, start_us: clock_us, end_us: start_us });
                }
                let doing = Doing::Ran(Activity::Op { turn, op: slice.op });
                told.push(Slice { doing, start_us, end_us });
                clock_us = end_us;
            }
            told
        };
        timeline.stages().map(of_stage).collect()
    }

    /// The mean causes of three steps of this kind, after the profiled ones.
    fn causes(step: Step) -> Causes {
        let mut timing = timing(ScheduleKind::ZbH1, Window::One);
        let program = timing.setup.plan.program.clone();
        let mut found = None;
        for number in 0..u64::from(PROFILED_STEPS) + 3 {
            let is_profiled = number < u64::from(PROFILED_STEPS);
            let turn = turn(number, 0);
            let slices = slices_of(&program, turn, if is_profiled { AS_PROFILED } else { step });
            for (stage, slices) in (0..).map(StageIndex).zip(slices) {
                timing.record(stage, slices);
            }
            found = timing.end_step(turn).causes;
            assert_eq!(found.is_none(), is_profiled);
        }
        found.expect("it was held against the profile")
    }

    #[track_caller]
    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
    }

    #[test]
    fn steps_as_profiled_are_as_planned() {
        let found = causes(AS_PROFILED);
        near(found.total_ms(), found.planned_ms);
        for cause in [found.computation_ms, found.messages_ms, found.verdicts_ms, found.rest_ms] {
            near(cause, 0.0);
        }
    }

    #[test]
    fn longer_passes_are_computation() {
        let found = causes(Step { slower: 1.5, ..AS_PROFILED });
        near(found.computation_ms, 0.5 * found.planned_ms);
        near(found.messages_ms + found.verdicts_ms + found.rest_ms, 0.0);
    }

    #[test]
    fn slow_links_are_messages() {
        let found = causes(Step { link_us: 70.0, ..AS_PROFILED });
        assert!(found.messages_ms > 0.05, "{found:?}");
        near(found.computation_ms + found.verdicts_ms + found.rest_ms, 0.0);
    }

    #[test]
    fn late_verdicts_are_verdicts() {
        let found = causes(Step { verdict_us: 2000.0, ..AS_PROFILED });
        assert!(found.verdicts_ms > 1.0, "{found:?}");
        near(found.computation_ms, 0.0);
        assert!(found.rest_ms.abs() + found.messages_ms < 0.4, "{found:?}");
    }
}
