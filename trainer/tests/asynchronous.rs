//! Asynchronous schedules against their serial references: the same bits, whatever the order of
//! frames and the threads.

mod common;

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use common::{BATCH, corpus_for, optimizer, tiny_model};
use zbelastic_kernels::CpuBackend;
use zbelastic_schedule::ScheduleKind;
use zbelastic_schedule::Window;
use zbelastic_schedule::asynchronous::{
    AsyncKind, AsyncOp, AsyncProgram, AsyncRequest, AsyncVariant, Dynamic, DynamicRule, check_async,
};
use zbelastic_trainer::asynchronous::{
    AsyncFrame, AsyncKnobs, AsyncOutput, AsyncPlan, AsyncPlanError, AsyncProgress, AsyncReference,
    AsyncSetup, AsyncStage, AsyncState, frames_max, replay_found,
};
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::model::Family;
use zbelastic_trainer::plan::{BatchShape, Plan, PlanRequest};
use zbelastic_trainer::random::{Purpose, Stream};
use zbelastic_trainer::reference::Reference;
use zbelastic_trainer::stage::InitialWeights;
use zbelastic_types::{StageIndex, Step};

type Stage = AsyncStage<CpuBackend, Arc<Corpus>>;

/// Stages, minibatches, microbatches of each.
type Size = (u32, u32, u32);

fn batch(microbatch_count: u32) -> BatchShape {
    BatchShape { microbatch_count, ..BATCH }
}

fn request(
    kind: AsyncKind,
    (stage_count, minibatch_count, microbatch_count): Size,
) -> AsyncRequest {
    AsyncRequest {
        kind,
        stage_count,
        minibatch_count,
        microbatch_count,
        replica_count: 2,
        dynamic: Dynamic { rule: DynamicRule::Newest, cap: 3, update_every: 2 },
        variant: AsyncVariant::Usual,
    }
}

fn setup_for(family: Family, request: AsyncRequest) -> AsyncSetup {
    let model = tiny_model(family);
    let plan = AsyncPlan::new(&model, batch(request.microbatch_count), request);
    AsyncSetup {
        plan: plan.expect("the size is legal"),
        model,
        optimizer: optimizer(),
        clip_norm: Some(1.0),
        weights: InitialWeights::Drawn { seed: 3 },
        injections: Vec::new(),
        knobs: AsyncKnobs { anneal_updates: 5, elastic_alpha: 0.25 },
    }
}

fn setup(kind: AsyncKind, size: Size) -> AsyncSetup {
    setup_for(Family::Gpt2, request(kind, size))
}

fn text(setup: &AsyncSetup) -> Arc<Corpus> {
    corpus_for(setup.plan.batch, 0.05)
}

fn stages(setup: &AsyncSetup, threads: usize) -> Vec<Stage> {
    let (shared, corpus) = (Arc::new(setup.clone()), text(setup));
    let stages = (0..setup.plan.program.placement.stage_count()).map(StageIndex);
    stages
        .map(|stage| {
            let backend = CpuBackend::new(threads).expect("threads");
            AsyncStage::new(shared.clone(), stage, backend, corpus.clone()).expect("memory")
        })
        .collect()
}

/// What a run ended with, and the order it found if it was to find one.
struct Outcome {
    state: AsyncState,
    losses: Vec<f64>,
    found: Option<AsyncProgram>,
}

fn outcome(setup: &AsyncSetup, stages: Vec<Stage>, losses: Vec<(u32, f64)>) -> Outcome {
    let mut state = AsyncState::default();
    stages.iter().for_each(|stage| state.extend(stage.state()));
    let found: Option<Vec<Vec<AsyncOp>>> =
        stages.iter().map(|stage| stage.found().map(<[AsyncOp]>::to_vec)).collect();
    let found = found.map(|stages| AsyncProgram { stages, ..setup.plan.program.clone() });
    let mut losses = losses;
    losses.sort_by_key(|(microbatch, _)| *microbatch);
    Outcome { state, losses: losses.into_iter().map(|(_, loss)| loss).collect(), found }
}

/// All stages on this thread; a seed draws who runs next.
fn run_alone(setup: &AsyncSetup, threads: usize, seed: u64) -> Outcome {
    let mut stages = stages(setup, threads);
    let draws = Stream::new(seed, Purpose::Sampling, 7);
    let (mut losses, mut idle) = (Vec::new(), 0);
    for turn in 0.. {
        let stage = draws.block(turn)[0] as usize % stages.len();
        idle = if matches!(stages[stage].run_next(), AsyncProgress::Ran(_)) { 0 } else { idle + 1 };
        while let Some(output) = stages[stage].poll_output() {
            match output {
                AsyncOutput::Frame { to, frame } => stages[to.index()].handle(frame),
                AsyncOutput::Loss { microbatch, loss_sum } => losses.push((microbatch.0, loss_sum)),
                AsyncOutput::Updated(_) => {}
            }
        }
        if stages.iter().all(Stage::is_finished) {
            break;
        }
        assert!(idle < 1000, "the stages stand still");
    }
    outcome(setup, stages, losses)
}

/// Every stage on a thread of its own, with a mailbox that is as large as the plan says.
fn run_in_threads(setup: &AsyncSetup) -> Outcome {
    let program = &setup.plan.program;
    let boxes = (0..program.placement.stage_count())
        .map(|stage| sync_channel::<AsyncFrame>(frames_max(program, StageIndex(stage))));
    let (senders, receivers): (Vec<_>, Vec<_>) = boxes.unzip();
    let mut stages = stages(setup, 1);
    let losses = thread::scope(|scope| {
        let senders = &senders;
        let handles: Vec<_> = stages
            .iter_mut()
            .zip(receivers)
            .map(|(stage, mailbox)| {
                scope.spawn(move || {
                    let mut losses = Vec::new();
                    while !stage.is_finished() {
                        mailbox.try_iter().for_each(|frame| stage.handle(frame));
                        let progress = stage.run_next();
                        deliver(stage, senders, &mut losses);
                        if progress == AsyncProgress::Blocked {
                            stage.handle(mailbox.recv().expect("somebody sends"));
                        }
                    }
                    losses
                })
            })
            .collect();
        handles.into_iter().flat_map(|handle| handle.join().expect("no panic")).collect()
    });
    outcome(setup, stages, losses)
}

fn deliver(stage: &mut Stage, to: &[SyncSender<AsyncFrame>], losses: &mut Vec<(u32, f64)>) {
    while let Some(output) = stage.poll_output() {
        match output {
            AsyncOutput::Frame { to: stage, frame } => {
                to[stage.index()].try_send(frame).expect("a mailbox has room for what is planned");
            }
            AsyncOutput::Loss { microbatch, loss_sum } => losses.push((microbatch.0, loss_sum)),
            AsyncOutput::Updated(_) => {}
        }
    }
}

fn serial(setup: &AsyncSetup) -> (StateDigest, Vec<f64>) {
    let backend = CpuBackend::new(1).expect("one thread");
    let shared = Arc::new(setup.clone());
    let mut reference = AsyncReference::new(shared, backend, text(setup)).expect("memory");
    let losses = reference.run();
    (reference.state().digest(), losses)
}

/// The executor equals the reference, alone in two orders and in threads.
fn check_against_serial(setup: &AsyncSetup) {
    let program = &setup.plan.program;
    let (digest, losses) = serial(setup);
    let case = program.to_string().lines().next().unwrap_or_default().to_owned();
    for (threads, seed) in [(1, 1), (2, 2)] {
        let alone = run_alone(setup, threads, seed);
        assert_eq!(alone.losses, losses, "{case}");
        assert_eq!(alone.state.digest(), digest, "{case} {threads} threads, order {seed}");
    }
    assert_eq!(run_in_threads(setup).state.digest(), digest, "{case} in threads");
}

fn check_sizes(kind: AsyncKind, sizes: &[Size]) {
    for size in sizes {
        check_against_serial(&setup(kind, *size));
    }
    let last = *sizes.last().expect("a size");
    check_against_serial(&setup_for(Family::Llama, request(kind, last)));
}

#[test]
fn pipedream_equals_its_reference() {
    check_sizes(AsyncKind::PipeDream, &[(1, 4, 1), (2, 7, 1), (3, 2, 3), (4, 9, 1)]);
}

#[test]
fn two_buffers_equal_their_reference() {
    check_sizes(AsyncKind::PipeDream2Bw, &[(1, 4, 1), (2, 4, 2), (3, 3, 4), (4, 4, 4)]);
}

#[test]
fn pipemare_equals_its_reference() {
    check_sizes(AsyncKind::PipeMare, &[(1, 4, 2), (2, 6, 1), (3, 4, 2), (4, 9, 1)]);
}

/// PipeMare's synchronous first steps: none, some, all, and more than there are.
#[test]
fn pipemare_equals_its_reference_behind_a_warm_up() {
    for (size, steps) in
        [((1, 4, 2), 2), ((4, 7, 1), 2), ((3, 5, 2), 3), ((4, 4, 3), 4), ((2, 2, 2), 9)]
    {
        let variant = AsyncVariant::WarmUp(steps);
        let request = AsyncRequest { variant, ..request(AsyncKind::PipeMare, size) };
        check_against_serial(&setup_for(Family::Gpt2, request));
    }
}

#[test]
fn pipedream_with_vertical_sync_equals_its_reference() {
    let variant = AsyncVariant::VerticalSync;
    for size in [(1, 4, 1), (2, 7, 1), (3, 2, 3), (4, 9, 1)] {
        let usual = request(AsyncKind::PipeDream, size);
        let vertical = setup_for(Family::Gpt2, AsyncRequest { variant, ..usual });
        check_against_serial(&vertical);
        // On two stages and more it is another method.
        let is_usual = serial(&vertical).0 == serial(&setup_for(Family::Gpt2, usual)).0;
        assert_eq!(is_usual, size.0 == 1, "{size:?}");
    }
}

#[test]
fn xpipe_equals_its_reference() {
    check_sizes(AsyncKind::XPipe, &[(1, 4, 2), (2, 6, 1), (3, 4, 2), (4, 5, 3)]);
}

#[test]
fn spectrain_equals_its_reference() {
    check_sizes(AsyncKind::SpecTrain, &[(1, 4, 1), (2, 3, 2), (3, 5, 1), (4, 9, 1)]);
}

#[test]
fn wpipe_equals_its_reference() {
    check_sizes(AsyncKind::WPipe, &[(1, 4, 2), (2, 1, 3), (2, 5, 2), (2, 4, 3)]);
}

#[test]
fn avgpipe_equals_its_reference() {
    check_sizes(AsyncKind::AvgPipe, &[(1, 4, 2), (2, 6, 1), (3, 4, 2), (4, 4, 4)]);
    let three = AsyncRequest { replica_count: 3, ..request(AsyncKind::AvgPipe, (2, 6, 2)) };
    check_against_serial(&setup_for(Family::Gpt2, three));
}

#[test]
fn ampnet_equals_a_replay_of_the_order_it_found() {
    for rule in [DynamicRule::Newest, DynamicRule::Oldest] {
        for (size, cap, update_every) in [((1, 4, 2), 1, 2), ((2, 5, 1), 2, 1), ((4, 6, 2), 5, 3)] {
            let dynamic = Dynamic { rule, cap, update_every };
            let request = AsyncRequest { dynamic, ..request(AsyncKind::AmpNet, size) };
            let setup = setup_for(Family::Gpt2, request);
            let runs = [run_alone(&setup, 1, 1), run_alone(&setup, 1, 2), run_in_threads(&setup)];
            for run in runs {
                let found = run.found.expect("a dynamic run finds an order");
                assert_eq!(check_async(&found), Ok(()), "{found}");
                let backend = CpuBackend::new(1).expect("one thread");
                let replayed = replay_found(&setup, &found, &backend, &text(&setup));
                let replayed = replayed.expect("memory").digest();
                assert_eq!(run.state.digest(), replayed, "{found}");
                let mut again = setup.clone();
                again.plan = again.plan.with_order(found).expect("it is of this run");
                assert_eq!(run_alone(&again, 1, 3).state.digest(), replayed, "run as a list");
            }
        }
    }
}

#[test]
fn an_order_of_another_run_or_that_breaks_a_rule_is_refused() {
    let plan = |size| setup(AsyncKind::AmpNet, size).plan;
    let setup = setup(AsyncKind::AmpNet, (2, 5, 1));
    let order = run_alone(&setup, 1, 1).found.expect("a dynamic run finds an order");
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
            run_alone(&setup, 1, 1).state.digest()
        } else {
            serial(&setup).0
        };
        let plan = PlanRequest {
            model: &setup.model,
            batch: setup.plan.batch,
            kind: ScheduleKind::GPipe,
            stage_count: 1,
            chunks_per_stage: None,
            slice_count: None,
            window: Window::Zero,
        };
        let plan = Plan::new(plan).expect("a legal plan");
        let steps = u64::from(request.minibatch_count);
        let synchronous = common::setup(setup.model.clone(), plan, steps);
        let backend = CpuBackend::new(1).expect("one thread");
        let mut run = Reference::new(&synchronous, backend, text(&setup)).expect("memory");
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
    let dynamic = Dynamic { rule: DynamicRule::Oldest, cap: 1, update_every: 3 };
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
    let layers = |setup: &AsyncSetup| run_alone(setup, 1, 1).state.layers;
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
    let digest = serial(&setup).0;
    assert_ne!(run_alone(&off, 1, 1).state.digest(), digest, "and so do the bits");
    assert_eq!(run_alone(&setup, 1, 1).state.digest(), digest);
}

/// The guard acts on a chunk alone: its own update is left out, the others go on.
#[test]
fn a_gradient_that_is_not_finite_spoils_the_update_of_its_stage_alone() {
    for kind in [AsyncKind::PipeDream, AsyncKind::PipeMare, AsyncKind::XPipe] {
        let mut struck = setup(kind, (2, 6, 1));
        let straight = run_alone(&struck, 1, 1).state;
        struck.injections = vec!["step=3,tensor=head,value=nan".parse().expect("an injection")];
        check_against_serial(&struck);
        let state = run_alone(&struck, 1, 1).state;
        assert_eq!(state.updates + 1, straight.updates, "{kind}: one update of one stage");
        assert!(state.layers.iter().all(|(_, image)| image.w.iter().all(|w| w.is_finite())));
    }
}
