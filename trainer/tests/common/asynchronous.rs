//! Asynchronous runs on backends of any kind, and what they are held against: the runs that every
//! kind of backend is tried with, and checks of one of them.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use zbelastic_kernels::Backend;
use zbelastic_schedule::asynchronous::{
    AsyncKind, AsyncOp, AsyncProgram, AsyncRequest, AsyncVariant, DynamicOptions, DynamicRule,
    check_async,
};
use zbelastic_trainer::asynchronous::{
    AsyncFrame, AsyncHyperparameters, AsyncOutput, AsyncPlan, AsyncProgress, AsyncReference,
    AsyncSetup, AsyncStage, AsyncState, frames_max, replay_found,
};
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::model::Family;
use zbelastic_trainer::plan::BatchShape;
use zbelastic_trainer::random::{RandomPurpose, RandomStream};
use zbelastic_trainer::stage::InitialWeights;
use zbelastic_types::StageIndex;

use crate::common::documents::Documents;
use crate::common::{BATCH, corpus_for, decay_rates, optimizer, tiny_model};

pub type CorpusStage<B> = AsyncStage<B, Arc<dyn BatchSource + Send + Sync>>;

/// Stages, minibatches, microbatches of each.
pub type RunSize = (u32, u32, u32);

/// Where backends come from.
pub trait BackendProvider {
    type Backend: Backend<Buffer: Send, Matrix: Send> + Send;
    /// Runs on one thread that are held against the reference: their ways, and seeds of their
    /// orders.
    const ALONE: &'static [(u32, u64)];

    /// One for a stage. A way, from 0 on, changes no bit of what it computes.
    fn backend(&self, stage: StageIndex, way: u32) -> Self::Backend;
}

pub fn request(
    kind: AsyncKind,
    (stage_count, minibatch_count, microbatch_count): RunSize,
) -> AsyncRequest {
    AsyncRequest {
        kind,
        stage_count,
        minibatch_count,
        microbatch_count,
        replica_count: 2,
        dynamic: DynamicOptions { rule: DynamicRule::Newest, cap: 3, update_every: 2 },
        variant: AsyncVariant::Usual,
    }
}

pub fn setup_for(family: Family, request: AsyncRequest) -> AsyncSetup {
    let model = tiny_model(family);
    let batch = BatchShape { microbatch_count: request.microbatch_count, ..BATCH };
    let plan = AsyncPlan::new(&model, batch, request);
    AsyncSetup {
        plan: plan.expect("the size is legal"),
        model,
        optimizer: optimizer(),
        z_loss: 0.0,
        clip_norm: Some(1.0),
        weights: InitialWeights::Drawn { seed: 3 },
        injections: Vec::new(),
        knobs: AsyncHyperparameters { anneal_updates: 5, elastic_alpha: 0.25 },
    }
}

pub fn setup(kind: AsyncKind, size: RunSize) -> AsyncSetup {
    setup_for(Family::Gpt2, request(kind, size))
}

/// Runs of a kind whose reference is a formula, over partitions of one to four stages.
///
/// # Panics
/// For AMPNet, which has none.
pub fn runs_of(kind: AsyncKind) -> Vec<AsyncSetup> {
    let sizes: &[RunSize] = match kind {
        AsyncKind::PipeDream => &[(1, 4, 1), (2, 7, 1), (3, 2, 3), (4, 9, 1)],
        AsyncKind::PipeDream2Bw => &[(1, 4, 1), (2, 4, 2), (3, 3, 4), (4, 4, 4)],
        AsyncKind::PipeMare => &[(1, 4, 2), (2, 6, 1), (3, 4, 2), (4, 9, 1)],
        AsyncKind::XPipe => &[(1, 4, 2), (2, 6, 1), (3, 4, 2), (4, 5, 3)],
        AsyncKind::SpecTrain => &[(1, 4, 1), (2, 3, 2), (3, 5, 1), (4, 9, 1)],
        AsyncKind::WPipe => &[(1, 4, 2), (2, 1, 3), (2, 5, 2), (2, 4, 3)],
        AsyncKind::AvgPipe => &[(1, 4, 2), (2, 6, 1), (3, 4, 2), (4, 4, 4)],
        AsyncKind::AmpNet => panic!("{kind} has no formula"),
    };
    let mut runs: Vec<_> = sizes.iter().map(|size| setup(kind, *size)).collect();
    let last = *sizes.last().expect("a size");
    let mut llama = AsyncSetup { z_loss: 0.05, ..setup_for(Family::Llama, request(kind, last)) };
    llama.optimizer.decay_rates = decay_rates(&llama.model);
    runs.push(llama);
    if kind == AsyncKind::AvgPipe {
        let three = AsyncRequest { replica_count: 3, ..request(kind, (2, 6, 2)) };
        runs.push(setup_for(Family::Gpt2, three));
    }
    runs
}

/// PipeMare's synchronous first steps: none, some, all, and more than there are.
pub fn warm_ups() -> Vec<AsyncSetup> {
    let sizes = [((1, 4, 2), 2), ((4, 7, 1), 2), ((3, 5, 2), 3), ((4, 4, 3), 4), ((2, 2, 2), 9)];
    let warm_up = |(size, steps)| {
        let variant = AsyncVariant::WarmUp(steps);
        setup_for(Family::Gpt2, AsyncRequest { variant, ..request(AsyncKind::PipeMare, size) })
    };
    sizes.into_iter().map(warm_up).collect()
}

/// PipeDream whose stages read one version in all of a microbatch's passes, with the usual one.
pub fn vertical_syncs() -> Vec<[AsyncSetup; 2]> {
    let both = |size| {
        let usual = request(AsyncKind::PipeDream, size);
        let vertical = AsyncRequest { variant: AsyncVariant::VerticalSync, ..usual };
        [vertical, usual].map(|request| setup_for(Family::Gpt2, request))
    };
    [(1, 4, 1), (2, 7, 1), (3, 2, 3), (4, 9, 1)].into_iter().map(both).collect()
}

/// Runs that find their order.
pub fn found_runs() -> Vec<AsyncSetup> {
    let sizes = [((1, 4, 2), 1, 2), ((2, 5, 1), 2, 1), ((4, 6, 2), 5, 3)];
    let of_rule = |rule| {
        sizes.map(|(size, cap, update_every)| {
            let dynamic = DynamicOptions { rule, cap, update_every };
            setup_for(Family::Gpt2, AsyncRequest { dynamic, ..request(AsyncKind::AmpNet, size) })
        })
    };
    [DynamicRule::Newest, DynamicRule::Oldest].into_iter().flat_map(of_rule).collect()
}

/// Runs in which one update of one stage is not finite.
pub fn struck_runs() -> Vec<AsyncSetup> {
    let struck = |kind| {
        let injections = vec!["step=3,tensor=head,value=nan".parse().expect("an injection")];
        AsyncSetup { injections, ..setup(kind, (2, 6, 1)) }
    };
    [AsyncKind::PipeDream, AsyncKind::PipeMare, AsyncKind::XPipe].map(struck).into()
}

/// The text of the other tests, as documents if the model has a window that slides.
pub fn text(setup: &AsyncSetup) -> Arc<dyn BatchSource + Send + Sync> {
    let corpus = corpus_for(setup.plan.batch, 0.05);
    match setup.model.sliding_window {
        Some(_) => Documents::new(corpus, setup.plan.batch.microbatch.sequence_len),
        None => corpus,
    }
}

fn stages<P: BackendProvider>(
    place: &P,
    setup: &AsyncSetup,
    way: u32,
) -> Vec<CorpusStage<P::Backend>> {
    let shared = Arc::new(setup.clone());
    let corpus = text(setup);
    let stages = (0..setup.plan.program.placement.stage_count()).map(StageIndex);
    stages
        .map(|stage| {
            let backend = place.backend(stage, way);
            AsyncStage::new(shared.clone(), stage, backend, corpus.clone()).expect("memory")
        })
        .collect()
}

/// What a run ended with, and the order it found if it was to find one.
pub struct AsyncPipelineOutcome {
    pub state: AsyncState,
    pub losses: Vec<f64>,
    pub found: Option<AsyncProgram>,
}

fn outcome<B: Backend>(
    setup: &AsyncSetup,
    stages: &[CorpusStage<B>],
    mut losses: Vec<(u32, f64)>,
) -> AsyncPipelineOutcome {
    let mut state = AsyncState::default();
    stages.iter().for_each(|stage| state.extend(stage.state()));
    let found: Option<Vec<Vec<AsyncOp>>> =
        stages.iter().map(|stage| stage.found().map(<[AsyncOp]>::to_vec)).collect();
    let found = found.map(|stages| AsyncProgram { stages, ..setup.plan.program.clone() });
    losses.sort_by_key(|(microbatch, _)| *microbatch);
    AsyncPipelineOutcome {
        state,
        losses: losses.into_iter().map(|(_, loss)| loss).collect(),
        found,
    }
}

/// All stages on this thread; a seed draws which one runs next.
pub fn run_alone<P: BackendProvider>(
    place: &P,
    setup: &AsyncSetup,
    way: u32,
    seed: u64,
) -> AsyncPipelineOutcome {
    let mut stages = stages(place, setup, way);
    let draws = RandomStream::new(seed, RandomPurpose::Sampling, 7);
    let mut losses = Vec::new();
    let mut idle = 0;
    for turn in 0.. {
        let stage = draws.block(turn)[0] as usize % stages.len();
        idle = if matches!(stages[stage].run_next(), AsyncProgress::Ran(_)) { 0 } else { idle + 1 };
        while let Some(output) = stages[stage].poll_output() {
            match output {
                AsyncOutput::Frame { to, frame } => stages[to.index()].handle(frame),
                AsyncOutput::Loss { microbatch, loss_sum } => losses.push((microbatch.0, loss_sum)),
                AsyncOutput::Update(_) => {}
            }
        }
        if stages.iter().all(CorpusStage::is_finished) {
            break;
        }
        assert!(idle < 1000, "the stages stand still");
    }
    outcome(setup, &stages, losses)
}

/// Every stage on a thread of its own, with a mailbox that is as large as the plan says.
pub fn run_in_threads<P: BackendProvider>(place: &P, setup: &AsyncSetup) -> AsyncPipelineOutcome {
    let program = &setup.plan.program;
    let boxes = (0..program.placement.stage_count())
        .map(|stage| sync_channel::<AsyncFrame>(frames_max(program, StageIndex(stage))));
    let (senders, receivers): (Vec<_>, Vec<_>) = boxes.unzip();
    let mut stages = stages(place, setup, 0);
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
                            stage.handle(mailbox.recv().expect("a stage sends"));
                        }
                    }
                    losses
                })
            })
            .collect();
        handles.into_iter().flat_map(|handle| handle.join().expect("no panic")).collect()
    });
    outcome(setup, &stages, losses)
}

fn deliver<B: Backend>(
    stage: &mut CorpusStage<B>,
    to: &[SyncSender<AsyncFrame>],
    losses: &mut Vec<(u32, f64)>,
) {
    while let Some(output) = stage.poll_output() {
        match output {
            AsyncOutput::Frame { to: stage, frame } => {
                to[stage.index()].try_send(frame).expect("a mailbox holds what is planned");
            }
            AsyncOutput::Loss { microbatch, loss_sum } => losses.push((microbatch.0, loss_sum)),
            AsyncOutput::Update(_) => {}
        }
    }
}

/// What the reference comes to, on a backend of the same kind.
pub fn serial<P: BackendProvider>(place: &P, setup: &AsyncSetup) -> (StateDigest, Vec<f64>) {
    let backend = place.backend(StageIndex(0), 0);
    let shared = Arc::new(setup.clone());
    let mut reference = AsyncReference::new(shared, backend, text(setup)).expect("memory");
    let losses = reference.run();
    (reference.state().digest(), losses)
}

/// The executor equals the reference, alone in some orders and in threads.
pub fn check_against_serial<P: BackendProvider>(place: &P, setup: &AsyncSetup) {
    let program = &setup.plan.program;
    let (digest, losses) = serial(place, setup);
    let case = program.to_string().lines().next().unwrap_or_default().to_owned();
    for (way, seed) in P::ALONE {
        let alone = run_alone(place, setup, *way, *seed);
        assert_eq!(alone.losses, losses, "{case}");
        assert_eq!(alone.state.digest(), digest, "{case} way {way}, order {seed}");
    }
    assert_eq!(run_in_threads(place, setup).state.digest(), digest, "{case} in threads");
}

/// Every run of `setup` equals a replay of the order that it found, and so does a run of that as a
/// list.
pub fn check_against_replay<P: BackendProvider>(place: &P, setup: &AsyncSetup) {
    let alone = P::ALONE.iter().map(|(way, seed)| run_alone(place, setup, *way, *seed));
    for run in alone.chain([run_in_threads(place, setup)]) {
        let found = run.found.expect("a dynamic run finds an order");
        assert_eq!(check_async(&found), Ok(()), "{found}");
        let backend = place.backend(StageIndex(0), 0);
        let replayed = replay_found(setup, &found, &backend, &text(setup));
        let replayed = replayed.expect("memory").digest();
        assert_eq!(run.state.digest(), replayed, "{found}");
        let mut again = setup.clone();
        again.plan = again.plan.with_order(found).expect("it is of this run");
        assert_eq!(run_alone(place, &again, 0, 3).state.digest(), replayed, "run as a list");
    }
}
