use zbelastic_planner::StepMeasurement;
use zbelastic_schedule::Flow;
use zbelastic_types::{Attempt, Generation, MicrobatchIndex};

use super::arrivals::ArrivalKind;
use super::*;

fn turn(step: u64, attempt: u32) -> Turn {
    Turn { generation: Generation(0), step: Step(step), attempt: Attempt(attempt) }
}

fn pass(turn: Turn, compute: Compute, start_us: f64, end_us: f64) -> MeasuredSlice {
    let pass = Pass::new(0, 0);
    let op = Op::Compute(compute, pass);
    MeasuredSlice { doing: SliceActivity::Ran(EngineActivity::Op { turn, op }), start_us, end_us }
}

fn update(turn: Turn, update: UpdateOp, start_us: f64, end_us: f64) -> MeasuredSlice {
    let op = Op::Update(update);
    MeasuredSlice { doing: SliceActivity::Ran(EngineActivity::Op { turn, op }), start_us, end_us }
}

/// The extent of step 1, whose second attempt counts.
fn extent(slices: &[MeasuredSlice]) -> Option<MeasuredSpan> {
    MeasuredSpan::of_step(&slices.iter().copied().collect(), turn(1, 1))
}

#[test]
fn an_extent_goes_from_the_first_pass_to_the_last() {
    let slices = [
        pass(turn(0, 0), Compute::W, 0.0, 5.0),
        pass(turn(1, 1), Compute::F, 6.0, 8.0),
        pass(turn(1, 1), Compute::B, 9.0, 12.0),
        update(turn(1, 1), UpdateOp::Report, 12.0, 13.0),
        pass(turn(2, 1), Compute::F, 13.0, 15.0),
    ];
    let expected = MeasuredSpan { start_us: 6.0, end_us: 12.0, work_us: 5.0 };
    assert_eq!(extent(&slices), Some(expected));
    assert_eq!(extent(&slices[..1]), None);
}

#[test]
fn what_was_dropped_takes_time_and_is_no_work() {
    let slices = [
        pass(turn(1, 0), Compute::F, 0.0, 4.0),
        MeasuredSlice {
            doing: SliceActivity::Ran(EngineActivity::Settled { turn: turn(0, 0) }),
            start_us: 4.0,
            end_us: 5.0,
        },
        pass(turn(1, 1), Compute::F, 5.0, 9.0),
        pass(turn(1, 1), Compute::BW, 9.0, 10.0),
    ];
    let expected = MeasuredSpan { start_us: 0.0, end_us: 10.0, work_us: 6.0 };
    assert_eq!(extent(&slices), Some(expected));
}

#[test]
fn updates_within_a_step_are_work_and_gates_are_not() {
    let slices = [
        pass(turn(1, 1), Compute::F, 0.0, 2.0),
        update(turn(1, 1), UpdateOp::GatePrevious, 2.0, 3.0),
        update(turn(1, 1), UpdateOp::Commit, 3.0, 5.0),
        MeasuredSlice { doing: SliceActivity::Waited(turn(0, 0)), start_us: 5.0, end_us: 7.0 },
        pass(turn(1, 1), Compute::W, 7.0, 8.0),
    ];
    let expected = MeasuredSpan { start_us: 0.0, end_us: 8.0, work_us: 5.0 };
    assert_eq!(extent(&slices), Some(expected));
}

#[test]
fn the_bubble_is_what_the_busiest_stage_does_not_work() {
    let stages = [
        MeasuredSpan { start_us: 0.0, end_us: 8.0, work_us: 6.0 },
        MeasuredSpan { start_us: 2.0, end_us: 10.0, work_us: 7.0 },
    ];
    assert_eq!(measured_bubble(&stages, Window::One), 0.125);
    assert_eq!(measured_bubble(&stages, Window::Zero), 0.3);
    assert_eq!(measured_bubble(&[], Window::Zero), 0.0);
}

#[test]
fn medians_are_of_the_latest() {
    let mut samples = DurationSamples::default();
    assert_eq!(samples.median(), 0.0);
    (0..10).for_each(|_| samples.push(1e9));
    (0..SAMPLES_MAX).for_each(|index| samples.push(index as f64));
    assert_eq!(samples.median(), SAMPLES_MAX as f64 / 2.0);
}

mod planned {
    use zbelastic_schedule::ScheduleKind;
    use zbelastic_trainer::plan::{Plan, PlanRequest, ReplicaCount};
    use zbelastic_trainer::stage::InitialWeights;

    use super::*;
    use zbelastic_config::{ConfigFlag, ConfigSources, load};

    pub fn timing(kind: ScheduleKind, window: Window) -> RunTiming {
        let flags = vec![ConfigFlag::Set("model.preset=tiny".to_owned())];
        let config = load(&ConfigSources { file: None, flags }).expect("legal").config;
        let model = &config.model;
        let batch = config.batch;
        let plan = Plan::new(PlanRequest {
            model,
            batch,
            kind,
            chunks_per_stage: None,
            slice_count: None,
            stage_count: 2,
            replicas: ReplicaCount::ONE,
            window,
        });
        RunTiming::new(Arc::new(StageSetup {
            plan: plan.expect("legal"),
            model: config.model,
            optimizer: config.optimizer,
            z_loss: 0.0,
            clip_norm: None,
            step_count: 9,
            evaluate_every: 0,
            weights: InitialWeights::Drawn { seed: 1 },
            injections: Vec::new(),
            copies_wanted: false,
            attest_every: 0,
            outer: None,
        }))
    }

    /// Passes of `chunk`, each with its duration.
    fn record(timing: &mut RunTiming, chunk: u32, passes: &[(Compute, f64)]) {
        let mut start_us = 0.0;
        let slices = passes.iter().map(|(compute, duration_us)| {
            let pass = Pass::new(chunk, 0);
            let op = Op::Compute(*compute, pass);
            let doing = SliceActivity::Ran(EngineActivity::Op { turn: turn(0, 0), op });
            let slice = MeasuredSlice { doing, start_us, end_us: start_us + duration_us };
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

    /// Times of a step beside the profiled ones.
    #[derive(Clone, Copy)]
    struct StepScenario {
        slower: f64,
        link_us: f64,
        verdict_us: f64,
    }

    const AS_PROFILED: StepScenario = StepScenario { slower: 1.0, link_us: 0.0, verdict_us: 0.0 };

    fn slices_of(program: &Program, turn: Turn, step: StepScenario) -> Vec<Vec<MeasuredSlice>> {
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
            let mut slices = Vec::new();
            let mut clock_us = f64::NAN;
            for slice in timeline.slices(stage).iter().filter(|slice| slice.step == 1) {
                let start_us = slice.start + offset_us;
                let end_us = slice.end + offset_us;
                if slice.op == Op::Update(UpdateOp::GatePrevious) && start_us > clock_us {
                    let doing = SliceActivity::Waited(turn);
                    slices.push(MeasuredSlice { doing, start_us: clock_us, end_us: start_us });
                }
                let doing = SliceActivity::Ran(EngineActivity::Op { turn, op: slice.op });
                slices.push(MeasuredSlice { doing, start_us, end_us });
                clock_us = end_us;
            }
            slices
        };
        timeline.stages().map(of_stage).collect()
    }

    /// The mean causes of three steps of this kind, after the profiled ones.
    fn causes(step: StepScenario) -> StepTimeBreakdown {
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

    /// A step begins a second after the one before.
    #[test]
    fn what_lies_between_steps_is_a_part_of_them() {
        let found = causes(AS_PROFILED);
        near(found.total_ms(), 1000.0);
        assert!(found.between_ms > 990.0, "{found:?}");
    }

    #[test]
    fn a_trace_from_a_step_on_has_none_before_it() {
        let mut timing = timing(ScheduleKind::ZbH1, Window::One);
        let program = timing.setup.plan.program.clone();
        for number in 20..26 {
            let turn = turn(number, 0);
            for (stage, slices) in (0..).map(StageIndex).zip(slices_of(&program, turn, AS_PROFILED))
            {
                timing.record(stage, slices);
            }
            timing.end_step(turn);
        }
        // Measured steps, and those of the plan behind them.
        let steps_from = |from: Option<u64>| -> Vec<u64> {
            let text = crate::trace::trace(&timing, 2, from.map(Step));
            (1..30).filter(|step| text.contains(&format!("step {step}\""))).collect()
        };
        let all = [1, 2, 3, 4, 5, 6, 7, 8, 21, 22, 23, 24, 25, 26];
        assert_eq!(steps_from(None), all);
        assert_eq!(steps_from(Some(23)), [1, 2, 3, 24, 25, 26]);
        let measured_of_unknown: Vec<u64> =
            steps_from(Some(99)).into_iter().filter(|step| *step > 20).collect();
        assert_eq!(measured_of_unknown, [21, 22, 23, 24, 25, 26]);
    }

    #[test]
    fn held_out_text_is_not_between_steps() {
        let mut timing = timing(ScheduleKind::ZbH1, Window::One);
        let program = timing.setup.plan.program.clone();
        let mut found = None;
        for number in 0..u64::from(PROFILED_STEPS) + 2 {
            let turn = turn(number, 0);
            for (stage, mut slices) in
                (0..).map(StageIndex).zip(slices_of(&program, turn, AS_PROFILED))
            {
                let start_us = 1e6 * number as f64 + 500_000.0;
                let chunk = ChunkIndex(stage.0);
                let pass = Pass { chunk, microbatch: MicrobatchIndex(0), slice: SliceIndex(0) };
                let doing = SliceActivity::Ran(EngineActivity::Evaluation { pass });
                slices.push(MeasuredSlice { doing, start_us, end_us: start_us + 300_000.0 });
                timing.record(stage, slices);
            }
            found = timing.end_step(turn).causes;
        }
        near(found.expect("it was held against the profile").total_ms(), 700.0);
    }

    #[test]
    fn steps_as_profiled_are_as_planned() {
        let found = causes(AS_PROFILED);
        near(found.total_ms() - found.between_ms, found.planned_ms);
        for cause in [found.computation_ms, found.messages_ms, found.verdicts_ms, found.rest_ms] {
            near(cause, 0.0);
        }
    }

    #[test]
    fn longer_passes_are_computation() {
        let found = causes(StepScenario { slower: 1.5, ..AS_PROFILED });
        near(found.computation_ms, 0.5 * found.planned_ms);
        near(found.messages_ms + found.verdicts_ms + found.rest_ms, 0.0);
    }

    #[test]
    fn slow_links_are_messages() {
        let found = causes(StepScenario { link_us: 70.0, ..AS_PROFILED });
        assert!(found.messages_ms > 0.05, "{found:?}");
        near(found.computation_ms + found.verdicts_ms + found.rest_ms, 0.0);
    }

    #[test]
    fn late_verdicts_are_verdicts() {
        let found = causes(StepScenario { verdict_us: 2000.0, ..AS_PROFILED });
        assert!(found.verdicts_ms > 1.0, "{found:?}");
        near(found.computation_ms, 0.0);
        assert!(found.rest_ms.abs() + found.messages_ms < 0.4, "{found:?}");
    }

    /// A step as it is measured where the second stage's clock is ahead by so much.
    fn measured(step: StepScenario, ahead_us: f64) -> Option<StepMeasurement> {
        let mut timing = timing(ScheduleKind::ZbH1, Window::One);
        let program = timing.setup.plan.program.clone();
        let slices = slices_of(&program, turn(1, 0), step);
        for (stage, mut slices) in (0..).map(StageIndex).zip(slices) {
            // Transfers are not reported.
            let is_transfer = |slice: &MeasuredSlice| match slice.doing {
                SliceActivity::Ran(EngineActivity::Op { op, .. }) => matches!(op, Op::Transfer(..)),
                SliceActivity::Ran(_) | SliceActivity::Waited(_) => false,
            };
            slices.retain(|slice| !is_transfer(slice));
            for slice in slices.iter_mut().filter(|_| stage.0 == 1) {
                (slice.start_us, slice.end_us) =
                    (slice.start_us + ahead_us, slice.end_us + ahead_us);
            }
            timing.record(stage, slices);
        }
        timing.measure(turn(1, 0))
    }

    #[test]
    fn a_step_is_measured_stage_by_stage() {
        let found =
            measured(StepScenario { slower: 1.5, ..AS_PROFILED }, 0.0).expect("all was told");
        assert_eq!(found.stages.len(), 2);
        for stage in &found.stages {
            near(stage.f, 150.0);
            near(stage.b, 165.0);
            // The last chunk's W is in two parts, of which WE takes nothing here.
            near(stage.w, 120.0);
            near(stage.bw, 0.0);
        }
    }

    #[test]
    fn a_hop_is_measured_whatever_clocks_say() {
        for (link_us, ahead_us) in [(300.0, 0.0), (300.0, 40_000.0), (75.0, -8_000.0)] {
            let found =
                measured(StepScenario { link_us, ..AS_PROFILED }, ahead_us).expect("all was told");
            let [((one, other), hop)] = found.hops.into_iter().collect::<Vec<_>>()[..] else {
                panic!("one pair of stages")
            };
            assert_eq!((one, other), (StageIndex(0), StageIndex(1)));
            near(hop, link_us);
        }
    }

    const LATENCY_US: f64 = 70.0;
    const BYTE_US: f64 = 0.01;
    const BOUNDARY_BYTES: u64 = 4_000;
    const GRADIENT_BYTES: u64 = 900_000;

    /// Messages other than boundary tensors from the first stage to the second.
    #[derive(Clone, Copy)]
    enum ExtraTraffic {
        Nothing,
        Prefix,
        Gradient,
        /// A gradient, behind which the sums of the stages before wait.
        Both,
    }

    /// Arrivals at the second stage, whose clock is ahead by so much.
    fn arrivals(timing: &RunTiming, ahead_us: f64, beside: ExtraTraffic) -> Vec<MessageArrival> {
        let turn = turn(1, 0);
        let way_us = |bytes: u64| LATENCY_US + bytes as f64 * BYTE_US;
        let arrival = |what, bytes: u64, sent_us: f64| MessageArrival {
            what,
            bytes,
            at_us: sent_us + way_us(bytes) + ahead_us,
        };
        let boundary = |slice: &MeasuredSlice| match slice.pass()? {
            (_, Compute::F, pass) => {
                let pass = Pass { chunk: ChunkIndex(1), ..pass };
                let what = ArrivalKind::Boundary { turn, flow: Flow::Forward, pass };
                Some(arrival(what, BOUNDARY_BYTES, slice.end_us))
            }
            (..) => None,
        };
        let mut all: Vec<MessageArrival> = timing.slices[0].iter().filter_map(boundary).collect();
        let ended = |update| timing.update_ended(StageIndex(0), turn, update).expect("it ran").1;
        let gradients = ArrivalKind::Gradients { turn, of: StageIndex(0) };
        let gradients = arrival(gradients, GRADIENT_BYTES, ended(UpdateOp::Report));
        let prefix = |us| arrival(ArrivalKind::Prefix { turn }, 0, ended(UpdateOp::Step) + us);
        match beside {
            ExtraTraffic::Nothing => {}
            ExtraTraffic::Prefix => all.push(prefix(0.0)),
            ExtraTraffic::Gradient => all.push(gradients),
            ExtraTraffic::Both => all.extend([gradients, prefix(5_000.0)]),
        }
        all
    }

    fn occupied(ahead_us: f64, beside: ExtraTraffic) -> Option<f64> {
        let mut timing = timing(ScheduleKind::ZbH1, Window::One);
        let program = timing.setup.plan.program.clone();
        for (stage, slices) in
            (0..).map(StageIndex).zip(slices_of(&program, turn(1, 0), AS_PROFILED))
        {
            timing.record(stage, slices);
        }
        let arrivals = arrivals(&timing, ahead_us, beside);
        timing.record_arrivals(StageIndex(1), &arrivals);
        let found = timing.measure(turn(1, 0)).expect("all was told").occupied;
        assert!(found.len() <= 1, "one pair of stages: {found:?}");
        found.get(&(StageIndex(0), StageIndex(1))).copied()
    }

    #[test]
    fn what_a_message_occupies_is_derived_from_messages_of_two_lengths_whatever_clocks_say() {
        for ahead_us in [0.0, 40_000.0, -8_000.0] {
            for beside in [ExtraTraffic::Prefix, ExtraTraffic::Gradient, ExtraTraffic::Both] {
                let found = occupied(ahead_us, beside).expect("two lengths came");
                near(found, BOUNDARY_BYTES as f64 * BYTE_US);
            }
            assert_eq!(occupied(ahead_us, ExtraTraffic::Nothing), None, "one length came");
        }
    }

    #[test]
    fn times_of_arrival_that_cannot_be_are_not_sound() {
        let what = ArrivalKind::Prefix { turn: turn(1, 0) };
        let is_sound = |at_us| MessageArrival { what, bytes: 0, at_us }.is_sound();
        assert!(is_sound(0.0) && is_sound(5.0));
        assert!(
            !is_sound(-1.0)
                && !is_sound(f64::NAN)
                && !is_sound(f64::INFINITY)
                && !is_sound(f64::MAX)
        );
    }

    #[test]
    fn a_step_of_which_a_pass_is_missing_is_not_measured() {
        let mut timing = timing(ScheduleKind::ZbH1, Window::One);
        let program = timing.setup.plan.program.clone();
        let mut slices = slices_of(&program, turn(1, 0), AS_PROFILED);
        let last = slices[1].iter().rposition(|slice| slice.pass().is_some()).expect("a pass");
        slices[1].remove(last);
        for (stage, slices) in (0..).map(StageIndex).zip(slices) {
            timing.record(stage, slices);
        }
        assert_eq!(timing.measure(turn(1, 0)), None);
    }
}

mod verdicts {
    use zbelastic_schedule::ScheduleKind;

    use super::planned::timing;
    use super::*;

    /// A stage that reported and came to its gate then, by its own clock, and waited there or not.
    fn stage(reported_us: f64, gate_us: (f64, f64), has_waited: bool) -> Vec<MeasuredSlice> {
        let before = turn(1, 0);
        let after = turn(2, 0);
        let (start_us, end_us) = gate_us;
        let waited = MeasuredSlice { doing: SliceActivity::Waited(before), start_us, end_us };
        let mut slices = vec![
            update(before, UpdateOp::Report, reported_us - 5.0, reported_us),
            update(before, UpdateOp::Step, reported_us, reported_us + 1.0),
            pass(after, Compute::F, reported_us + 1.0, start_us),
        ];
        slices.extend(has_waited.then_some(waited));
        slices.push(update(after, UpdateOp::GatePrevious, end_us, end_us));
        slices
    }

    fn verdict(stages: [Vec<MeasuredSlice>; 2]) -> Option<f64> {
        let mut timing = timing(ScheduleKind::ZbH1, Window::One);
        for (index, slices) in (0..).map(StageIndex).zip(stages) {
            timing.record(index, slices);
        }
        timing.verdict(turn(2, 0))
    }

    #[test]
    fn a_verdict_takes_what_the_stage_waited_that_reported_last() {
        // The second stage's clock is far ahead; it reports 60 later and gets the verdict with the
        // first.
        let first = || stage(100.0, (120.0, 200.0), true);
        let last = || stage(9_160.0, (9_170.0, 9_200.0), true);
        assert_eq!(verdict([first(), last()]), Some(40.0));
        assert_eq!(verdict([last(), first()]), Some(40.0));
        let unhurried = stage(9_160.0, (9_200.0, 9_200.0), false);
        assert_eq!(verdict([first(), unhurried]), None, "it was there, nobody knows since when");
        assert_eq!(verdict([first(), Vec::new()]), None, "a stage told nothing");
    }
}
