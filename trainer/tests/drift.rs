//! When a plan does not fit what is measured any more.

use crate::common::{BATCH, tiny_model};
use zbelastic_kernels::CpuBackend;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::model::{Family, ModelConfig};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::plan::{
    AUTO_KINDS, Calibration, ChooseRequest, DriftJudgement, DriftSource, GAIN_MIN, HeldBeside,
    MemoryPolicy, PERIOD_GROWTH, Pace, Plan, PlanChoice, PlanRequest, ReplanStakes, ReplicaCount,
    SLACK_MAX, StageSample, StageTimes, calibrate, choose, judge, plan_period, rounded_speed,
    slack,
};
use zbelastic_types::StageIndex;

/// Plenty of steps, and a change that costs what one of them takes.
const STAKES: ReplanStakes = ReplanStakes { steps_left: 1000, change: 0.0 };
/// What counted work takes where a test does not care: a nanosecond, so that times are of a size
/// that could be measured.
const CALIBRATION: Calibration = Calibration {
    f_us: 1e-3,
    b_us: 1e-3,
    w_us: 1e-3,
    update_us: 1e-3,
    copies_us: None,
    classes: [None; 4],
};

/// A model of enough blocks to be cut unevenly.
fn model() -> ModelConfig {
    ModelConfig { blocks: 12, ..tiny_model(Family::Gpt2) }
}

fn pace(speeds: &[f64], link: f64) -> Pace {
    Pace::calibrated(&model(), BATCH.microbatch, &CALIBRATION, (speeds.to_vec(), link))
}

fn best(pace: &Pace, stage_count: u32) -> PlanChoice {
    let backend = CpuBackend::new(1).expect("one thread");
    let request = ChooseRequest {
        model: &model(),
        optimizer: OptimizerKind::AdamW,
        batch: BATCH,
        kinds: &AUTO_KINDS,
        chunks_per_stage: None,
        slice_count: None,
        memory: MemoryPolicy::default(),
        stage_count,
        replicas: ReplicaCount::ONE,
        window: Window::One,
        beside: HeldBeside::default(),
        stage_bytes_max: &[],
        pace,
    };
    choose(&backend, request).expect("there is no limit")
}

/// The judgement on the best plan for `planned`, once things are as `found`.
fn judged(planned: &Pace, found: &Pace, stage_count: u32, stakes: ReplanStakes) -> DriftJudgement {
    let plan = best(planned, stage_count).plan;
    judge(&plan, (planned, found), stakes, || Some(best(found, stage_count).prediction.period))
}

#[test]
fn a_machine_half_as_fast_leads_to_another_plan_that_names_it() {
    for slow in 0..4_u32 {
        let mut speeds = vec![1.0; 4];
        speeds[slow as usize] = 0.5;
        let planned = pace(&[], 0.0);
        let found = pace(&speeds, 0.0);
        let judgement = judged(&planned, &found, 4, STAKES);
        let DriftJudgement::Replan(drift) = judgement else { panic!("{judgement:?}") };
        assert_eq!(drift.part, DriftSource::Stage(StageIndex(slow)));
        assert!((drift.found / drift.expected - 2.0).abs() < 1e-6, "{drift:?}");
        assert!(drift.gain > 0.2 && drift.slack < 1.0, "{drift:?}");
        let chosen = best(&found, 4);
        let work = |stage: u32| -> u32 {
            let chunks = chosen.plan.chunks_of(StageIndex(stage));
            chunks.map(|(_, layers)| layers.ids().len() as u32).sum()
        };
        let others = (0..4).filter(|stage| *stage != slow).map(work).min();
        assert!(Some(work(slow)) <= others, "the slow one has least to do");
    }
}

#[test]
fn a_machine_twice_as_fast_leads_to_another_plan_as_well() {
    let judgement = judged(&pace(&[], 0.0), &pace(&[1.0, 1.0, 2.0, 1.0], 0.0), 4, STAKES);
    let DriftJudgement::Replan(drift) = judgement else { panic!("{judgement:?}") };
    assert_eq!(drift.part, DriftSource::Stage(StageIndex(2)));
    assert!(drift.found < drift.expected);
}

/// Whatever unit the plan was made in, and however slow all have become alike.
#[test]
fn what_grows_alike_everywhere_is_no_drift() {
    let counted = Pace::estimated(&model(), BATCH.microbatch);
    for slower in [0.1, 1.0, 30.0] {
        let found = pace(&[1.0 / slower; 4], 0.0);
        let found = Pace { updates: counted.updates.clone(), ..found };
        assert_eq!(judged(&counted, &found, 4, STAKES), DriftJudgement::Within, "{slower}");
    }
}

#[test]
fn a_stage_may_grow_by_the_slack_and_not_by_more() {
    let planned = pace(&[1.0, 1.0, 1.0, 1.0], 0.0);
    let plan = best(&planned, 4).plan;
    let slacks: Vec<f64> = (0..4).map(|stage| slack(&plan, &planned, StageIndex(stage))).collect();
    assert!(slacks.iter().any(|slack| *slack < 0.1), "a busiest stage has little: {slacks:?}");
    for (stage, slack) in slacks.iter().enumerate() {
        assert!((0.0..SLACK_MAX).contains(slack), "{slacks:?}");
        let period_at = |growth: f64| {
            let mut speeds = vec![1.0; 4];
            speeds[stage] = 1.0 / (1.0 + growth);
            let found = pace(&speeds, 0.0);
            let is_within =
                judge(&plan, (&planned, &found), STAKES, || None) == DriftJudgement::Within;
            (plan_period(&plan, &found), is_within)
        };
        let limit = plan_period(&plan, &planned) * (1.0 + PERIOD_GROWTH);
        let within = period_at(*slack);
        let beyond = period_at(slack + 0.01);
        assert!(within.0 <= limit && within.1, "stage {stage} grows by {slack}");
        assert!(beyond.0 > limit && !beyond.1, "stage {stage} grows by more than {slack}");
    }
}

#[test]
fn without_a_better_plan_or_time_for_it_nothing_is_changed() {
    let planned = pace(&[], 0.0);
    let found = pace(&[1.0, 0.5, 1.0, 1.0], 0.0);
    let plan = best(&planned, 4).plan;
    let now = plan_period(&plan, &found);
    let judged = |best: Option<f64>, stakes| judge(&plan, (&planned, &found), stakes, || best);
    for none in [None, Some(now), Some(2.0 * now), Some(now * (1.001 - GAIN_MIN))] {
        let judgement = judged(none, STAKES);
        assert!(matches!(judgement, DriftJudgement::NoBetter(_)), "{none:?}: {judgement:?}");
    }
    let better = now * (0.999 - GAIN_MIN);
    assert!(matches!(judged(Some(better), STAKES), DriftJudgement::Replan(_)));
    let gain = now - better;
    let steps_left = 10;
    let stakes = |steps: f64| ReplanStakes { steps_left, change: steps * gain };
    assert!(matches!(judged(Some(better), stakes(9.99)), DriftJudgement::Replan(_)));
    let late = judged(Some(better), stakes(10.01));
    assert!(matches!(late, DriftJudgement::TooLate(_)), "{late:?}");
}

/// A stage that would wait anyway: its times may grow, and no other plan is searched for.
#[test]
fn what_a_stage_waits_anyway_starts_no_search() {
    let planned = pace(&[1.0, 4.0], 0.0);
    let plan = best(&pace(&[1.0, 1.0], 0.0), 2).plan;
    let found = pace(&[1.0, 3.0], 0.0);
    let judgement = judge(&plan, (&planned, &found), STAKES, || panic!("no search is to be made"));
    assert_eq!(judgement, DriftJudgement::Within);
}

#[test]
fn a_measured_link_changes_the_chosen_schedule_and_is_named() {
    let slowest = {
        let work: f64 = pace(&[], 0.0).layers.iter().map(|layer| layer.total()).sum();
        work / 4.0
    };
    let near = pace(&[], 0.0);
    let far = pace(&[], 2.0 * slowest);
    let at_once = best(&near, 4).plan;
    let late = best(&far, 4).plan;
    assert_ne!(at_once.program, late.program, "hops that take long call for another order");
    let judgement = judged(&near, &far, 4, STAKES);
    let DriftJudgement::Replan(drift) = judgement else { panic!("{judgement:?}") };
    assert_eq!((drift.part, drift.expected), (DriftSource::Link, 0.0));
    assert_eq!(drift.found, far.link);
}

/// What is late can be planned around, what keeps a way occupied cannot: so much of it takes
/// longer.
#[test]
fn an_occupied_way_is_another_thing_than_a_late_one() {
    let work: f64 = pace(&[], 0.0).layers.iter().map(|layer| layer.total()).sum();
    let near = pace(&[], 0.0);
    let far = pace(&[], work);
    let occupied = Pace { link: 0.0, occupancy: work, ..near.clone() };
    let period = |pace: &Pace| best(pace, 4).prediction.period;
    let late = period(&far);
    let occupied_long = period(&occupied);
    assert!(occupied_long > 1.5 * late, "{occupied_long} occupied, {late} late");
    let judgement = judged(&near, &occupied, 4, STAKES);
    let drift = judgement.drift().expect("it is no longer what it was");
    assert_eq!((drift.part, drift.found), (DriftSource::Link, work));
}

/// Verdicts, R and copies take the same whatever the plan: nothing to be planned anew for.
#[test]
fn what_a_verdict_takes_is_no_drift_and_makes_steps_that_wait_for_it_longer() {
    let planned = pace(&[], 0.0);
    let work: f64 = planned.layers.iter().map(|layer| layer.total()).sum();
    let found = Pace { verdict: work, ..planned.clone() };
    assert_eq!(judged(&planned, &found, 4, STAKES), DriftJudgement::Within);
    let plan = Plan::new(PlanRequest {
        model: &model(),
        batch: BATCH,
        kind: ScheduleKind::ZbH1,
        chunks_per_stage: None,
        slice_count: None,
        stage_count: 4,
        replicas: ReplicaCount::ONE,
        window: Window::Zero,
    });
    let plan = plan.expect("legal");
    let longer = plan_period(&plan, &found) - plan_period(&plan, &planned);
    assert!((longer / work - 1.0).abs() < 1e-6, "{longer} longer, a verdict takes {work}");
}

/// From what stages report of their passes to a plan, and from that plan to the next: the second
/// one fits, so there is no third.
#[test]
fn what_is_measured_under_the_new_plan_asks_for_no_other() {
    let truth = [1.0, 0.4, 1.0, 0.9];
    let mut planned = Pace::estimated(&model(), BATCH.microbatch);
    let mut judgements = Vec::new();
    for _ in 0..3 {
        let plan = best(&planned, 4).plan;
        let work = pace(&truth, 0.0);
        let sample = |stage: u32| {
            let stage = StageIndex(stage);
            let chunks = plan.chunks_of(stage).flat_map(|(_, layers)| layers.ids());
            let layers: Vec<u32> = chunks.collect();
            let sum = |of: fn(&zbelastic_trainer::plan::LayerWork) -> f64| -> f64 {
                layers.iter().map(|layer| of(&work.layers[*layer as usize])).sum::<f64>()
                    / truth[stage.index()]
            };
            let times = StageTimes {
                f: sum(|l| l.f),
                b: sum(|l| l.b),
                w: sum(|l| l.w),
                ..Default::default()
            };
            StageSample::of_layers(&model(), BATCH.microbatch, layers.into_iter(), (1.0, times))
        };
        let samples: Vec<StageSample> = (0..4).map(sample).collect();
        let (calibration, speeds) = calibrate(&samples).expect("the samples can be used");
        let speeds = speeds
            .iter()
            .map(|speed| rounded_speed(speed.expect("the sample can be used")))
            .collect();
        let found = Pace::calibrated(&model(), BATCH.microbatch, &calibration, (speeds, 0.0));
        judgements.push(judge(&plan, (&planned, &found), STAKES, || {
            Some(best(&found, 4).prediction.period)
        }));
        planned = found;
    }
    assert!(matches!(judgements[0], DriftJudgement::Replan(_)), "{judgements:?}");
    assert_eq!(judgements[1..], [DriftJudgement::Within; 2]);
}

#[test]
fn every_schedule_has_a_slack() {
    let planned = pace(&[], 0.0);
    let backend = CpuBackend::new(1).expect("one thread");
    for kind in AUTO_KINDS {
        let request = ChooseRequest {
            model: &model(),
            optimizer: OptimizerKind::AdamW,
            batch: BATCH,
            kinds: &[kind],
            chunks_per_stage: None,
            slice_count: None,
            memory: MemoryPolicy::default(),
            stage_count: 2,
            replicas: ReplicaCount::ONE,
            window: Window::Zero,
            beside: HeldBeside::default(),
            stage_bytes_max: &[],
            pace: &planned,
        };
        let plan = choose(&backend, request).expect("there is no limit").plan;
        assert!(slack(&plan, &planned, StageIndex(0)) >= 0.0, "{kind}");
        let found = pace(&[0.3, 1.0], 0.0);
        let judgement = judge(&plan, (&planned, &found), STAKES, || None);
        assert!(matches!(judgement, DriftJudgement::NoBetter(_)), "{kind}: {judgement:?}");
    }
}
