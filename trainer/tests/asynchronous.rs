//! Asynchronous schedules against their serial references: the same bits, whatever the order of
//! frames and the threads.

#[path = "common/asynchronous.rs"]
mod runs;

use runs::{
    BackendProvider, check_against_replay, check_against_serial, found_runs, request, run_alone,
    runs_of, serial, setup, setup_for, struck_runs, text, vertical_syncs, warm_ups,
};
use zbelastic_kernels::CpuBackend;
use zbelastic_schedule::ScheduleKind;
use zbelastic_schedule::Window;
use zbelastic_schedule::asynchronous::{
    AsyncKind, AsyncRequest, AsyncVariant, DynamicOptions, DynamicRule, check_async,
};
use zbelastic_trainer::asynchronous::{AsyncPlanError, AsyncSetup};
use zbelastic_trainer::model::Family;
use zbelastic_trainer::plan::{Plan, PlanRequest, ReplicaCount};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_types::{StageIndex, Step};

/// A thread for each way, and one.
struct CpuBackends;

impl BackendProvider for CpuBackends {
    type Backend = CpuBackend;
    const ALONE: &'static [(u32, u64)] = &[(0, 1), (1, 2)];

    fn backend(&self, _: StageIndex, way: u32) -> CpuBackend {
        CpuBackend::new(way as usize + 1).expect("threads")
    }
}

fn check_runs_of(kind: AsyncKind) {
    runs_of(kind).iter().for_each(|setup| check_against_serial(&CpuBackends, setup));
}

#[test]
fn pipedream_equals_its_reference() {
    check_runs_of(AsyncKind::PipeDream);
}

#[test]
fn two_buffers_equal_their_reference() {
    check_runs_of(AsyncKind::PipeDream2Bw);
}

#[test]
fn pipemare_equals_its_reference() {
    check_runs_of(AsyncKind::PipeMare);
}

#[test]
fn pipemare_equals_its_reference_behind_a_warm_up() {
    warm_ups().iter().for_each(|setup| check_against_serial(&CpuBackends, setup));
}

#[test]
fn pipedream_with_vertical_sync_equals_its_reference() {
    for [vertical, usual] in vertical_syncs() {
        check_against_serial(&CpuBackends, &vertical);
        // On two stages and more it is another method.
        let is_usual = serial(&CpuBackends, &vertical).0 == serial(&CpuBackends, &usual).0;
        assert_eq!(is_usual, usual.plan.program.placement.stage_count() == 1);
    }
}

#[test]
fn xpipe_equals_its_reference() {
    check_runs_of(AsyncKind::XPipe);
}

#[test]
fn spectrain_equals_its_reference() {
    check_runs_of(AsyncKind::SpecTrain);
}

#[test]
fn wpipe_equals_its_reference() {
    check_runs_of(AsyncKind::WPipe);
}

#[test]
fn avgpipe_equals_its_reference() {
    check_runs_of(AsyncKind::AvgPipe);
}

#[test]
fn ampnet_equals_a_replay_of_the_order_it_found() {
    found_runs().iter().for_each(|setup| check_against_replay(&CpuBackends, setup));
}

#[test]
fn an_order_of_another_run_or_that_breaks_a_rule_is_refused() {
    let plan = |size| setup(AsyncKind::AmpNet, size).plan;
    let setup = setup(AsyncKind::AmpNet, (2, 5, 1));
    let order = run_alone(&CpuBackends, &setup, 0, 1).found.expect("a dynamic run finds an order");
    let other = plan((2, 4, 1)).with_order(order.clone());
    assert!(matches!(other, Err(AsyncPlanError::OtherRun { .. })), "{other:?}");
    let mut broken = order.clone();
    broken.stages[1].pop();
    let broken = plan((2, 5, 1)).with_order(broken);
    assert!(matches!(broken, Err(AsyncPlanError::Order { .. })), "{broken:?}");
    assert_eq!(plan((2, 5, 1)).with_order(order.clone()).map(|plan| plan.program), Ok(order));
}

/// On one stage nothing is late, for the methods whose lateness is that of the pipeline.
#[test]
fn without_staleness_the_reference_is_that_of_synchronous_training() {
    let check = |request: AsyncRequest, alpha| {
        let mut setup = setup_for(Family::Gpt2, request);
        setup.knobs.elastic_alpha = alpha;
        let digest = if request.kind == AsyncKind::AmpNet {
            run_alone(&CpuBackends, &setup, 0, 1).state.digest()
        } else {
            serial(&CpuBackends, &setup).0
        };
        let plan = PlanRequest {
            model: &setup.model,
            batch: setup.plan.batch,
            kind: ScheduleKind::GPipe,
            stage_count: 1,
            replicas: ReplicaCount::ONE,
            chunks_per_stage: None,
            slice_count: None,
            window: Window::Zero,
        };
        let plan = Plan::new(plan).expect("a legal plan");
        let steps = u64::from(request.minibatch_count);
        let synchronous = crate::common::setup(setup.model.clone(), plan, steps);
        let backend = CpuBackend::new(1).expect("one thread");
        let mut run = SerialReference::new(&synchronous, backend, text(&setup)).expect("memory");
        for step in 0..steps {
            run.step(Step(step), false);
        }
        (digest, run.digest())
    };
    let equal = |request, alpha| {
        let (found, expected) = check(request, alpha);
        assert_eq!(found, expected, "{request:?}");
    };
    equal(request(AsyncKind::PipeDream, (1, 5, 1)), 0.0);
    equal(request(AsyncKind::SpecTrain, (1, 5, 1)), 0.0);
    equal(request(AsyncKind::XPipe, (1, 5, 1)), 0.0);
    equal(request(AsyncKind::PipeMare, (1, 5, 3)), 0.0);
    let dynamic = DynamicOptions { rule: DynamicRule::Oldest, cap: 1, update_every: 3 };
    equal(AsyncRequest { dynamic, ..request(AsyncKind::AmpNet, (1, 5, 3)) }, 0.0);
    for late in [AsyncKind::PipeDream2Bw, AsyncKind::WPipe] {
        let (found, expected) = check(request(late, (1, 5, 3)), 0.0);
        assert_ne!(found, expected, "{late} is an update late on one stage as well");
    }
}

#[test]
fn a_pipeline_alone_that_is_not_pulled_trains_synchronously() {
    let one = AsyncRequest { replica_count: 1, ..request(AsyncKind::AvgPipe, (2, 4, 3)) };
    let mut avgpipe = setup_for(Family::Gpt2, one);
    avgpipe.knobs.elastic_alpha = 0.0;
    avgpipe.clip_norm = None;
    let mut pipemare = setup(AsyncKind::PipeMare, (1, 4, 3));
    pipemare.clip_norm = None;
    let layers = |setup: &AsyncSetup| run_alone(&CpuBackends, setup, 0, 1).state.layers;
    assert_eq!(layers(&avgpipe), layers(&pipemare), "without a delay PipeMare is synchronous");
    let variant = AsyncVariant::WarmUp(4);
    let warm_up = AsyncRequest { variant, ..request(AsyncKind::PipeMare, (3, 4, 3)) };
    let mut warm_up = setup_for(Family::Gpt2, warm_up);
    warm_up.clip_norm = None;
    assert_eq!(layers(&warm_up), layers(&pipemare), "and so is its warm-up, on three stages");
}

/// A version that is one off changes the bits, so that the tests above would see it.
#[test]
fn a_version_that_is_one_off_is_found() {
    let setup = setup(AsyncKind::PipeDream, (3, 6, 1));
    let text = setup.plan.program.to_string();
    // Version 1 is still kept when F of microbatch 3 runs, which should read the newest, 2.
    assert_eq!(text.matches(" 1F3@2 ").count(), 1, "{text}");
    let mut off = setup.clone();
    off.plan.program = text.replace(" 1F3@2 ", " 1F3@1 ").parse().expect("a program");
    assert!(check_async(&off.plan.program).is_err(), "the checker sees it");
    let digest = serial(&CpuBackends, &setup).0;
    assert_ne!(run_alone(&CpuBackends, &off, 0, 1).state.digest(), digest, "and so do the bits");
    assert_eq!(run_alone(&CpuBackends, &setup, 0, 1).state.digest(), digest);
}

/// The guard acts on a chunk alone: its own update is left out, the others go on.
#[test]
fn a_gradient_that_is_not_finite_spoils_the_update_of_its_stage_alone() {
    for struck in struck_runs() {
        let kind = struck.plan.program.kind;
        let straight = run_alone(&CpuBackends, &setup(kind, (2, 6, 1)), 0, 1).state;
        check_against_serial(&CpuBackends, &struck);
        let state = run_alone(&CpuBackends, &struck, 0, 1).state;
        assert_eq!(state.updates + 1, straight.updates, "{kind}: one update of one stage");
        assert!(state.layers.iter().all(|(_, image)| image.w.iter().all(|w| w.is_finite())));
    }
}

/// Documents, a window that slides and targets that do not count, of every method.
#[test]
fn methods_over_documents_equal_their_references() {
    let over_documents = |kind| {
        let mut setup = setup_for(Family::Llama, request(kind, (2, 6, 2)));
        setup.model.sliding_window = Some(3);
        setup
    };
    for kind in AsyncKind::ALL {
        let setup = over_documents(kind);
        if kind == AsyncKind::AmpNet {
            check_against_replay(&CpuBackends, &setup);
        } else {
            check_against_serial(&CpuBackends, &setup);
        }
    }
}
