//! A worker while the layers of a plan are on their way: what it reports it holds, which layers it
//! accepts from which sender, and what it writes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zbelastic_consensus::job::{JobSpec, WindowPolicy};
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::message::LoadFault;
use zbelastic_consensus::plan::{LayerSource, PlanReason, PlanRecord, Promise};
use zbelastic_consensus::session::{LoadCommand, WorkerCommand, WorkerEvent};
use zbelastic_consensus::validation::{NonfinitePolicy, Reason, Seal, Turn, Verdict};
use zbelastic_kernels::{CpuBackend, HostThreads};
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::elastic::{
    BackendStageFactory, DeviceUse, FrameLimits, GradientPart, LayerCopy, LayerGradient,
    LayerImage, StageFactory, layer_digest,
};
use zbelastic_trainer::model::{Family, ModelConfig, model_layers};
use zbelastic_trainer::plan::{LaneCount, Plan};
use zbelastic_trainer::runtime::{
    PeerBody, PeerFrame, PeerFrameRefusal, PlanMismatch, RuntimeInput, RuntimeOutput, RuntimeSetup,
    StageRefusal, WorkerRuntime,
};
use zbelastic_trainer::stage::SealedState;
use zbelastic_types::{
    Attempt, Digest, Generation, Incarnation, LayerId, NodeId, StageIndex, Step,
};

const STAGES: u32 = 3;
/// Worker 3 in the life behind the one that plans name.
const BACK: Holder = Holder { node: NodeId(3), incarnation: Incarnation(9) };

/// The plan of this number over these workers, each stage copied by the next.
fn plan(generation: u64, nodes: [u64; STAGES as usize], source: LayerSource) -> PlanRecord {
    let model = crate::common::tiny_model(Family::Llama);
    let plan = crate::common::plan(&model, ScheduleKind::ZbH1, STAGES, Window::One);
    let holder = |node: u64| Holder { node: NodeId(node), incarnation: Incarnation(node) };
    PlanRecord {
        generation: Generation(generation),
        stages: nodes.map(holder).to_vec(),
        copies: (0..STAGES).map(|stage| vec![StageIndex((stage + 1) % STAGES)]).collect(),
        promise: Promise::Kept,
        chunks: plan.chunks,
        program: plan.program,
        from_step: Step(0),
        sources: vec![source; model_layers(&model).len()],
        expected: vec![None; model_layers(&model).len()],
        op_ticks_max: 1,
        reason: PlanReason::First,
    }
}

fn load(plan: &PlanRecord, node: u64) -> RuntimeInput {
    let layers = plan.sources.len();
    let spec = JobSpec {
        run: zbelastic_types::RunId(1),
        name: "a-run".to_owned(),
        from: None,
        config: Digest([0; 32]),
        document: Vec::new(),
        layer_tensors: vec![1; layers],
        layer_bytes: Vec::new(),
        microbatch_count: crate::common::BATCH.microbatch_count,
        step_count: 4,
        policy: crate::common::policy(None, NonfinitePolicy::Skip),
        window: WindowPolicy::Fixed(Window::One),
        copies: 1,
        checkpoint_every: 0,
        checkpoint_ticks: 0,
        checkpoints_kept: 1,
        attest_every: 0,
        device: zbelastic_consensus::class::DeviceKind::Processors,
        stages_max: STAGES,
        workers_min: 1,
        lost_after_ticks: 100,
        settle_ticks: 10,
    };
    let stage = plan.stages.iter().position(|holder| holder.node == NodeId(node));
    RuntimeInput::Command(WorkerCommand::Load(Box::new(LoadCommand {
        plan: Arc::new(plan.clone()),
        stage: StageIndex(stage.expect("it has a stage") as u32),
        spec: Arc::new(spec),
        turn: Turn { generation: plan.generation, attempt: Attempt(0), step: Step(0) },
        updates: 0,
        is_pending: false,
    })))
}

fn inventory(runtime: &mut CpuWorker) -> BTreeSet<LayerId> {
    runtime
        .handle(RuntimeInput::Command(WorkerCommand::TakeInventory { holder: BACK, index: 1 }))
        .expect("a command");
    let layers = std::iter::from_fn(|| runtime.poll_output()).find_map(|output| {
        let RuntimeOutput::Event(WorkerEvent::Inventory { layers, .. }) = output else {
            return None;
        };
        Some(layers)
    });
    let layers = layers.expect("it reports an inventory");
    assert_eq!(layers, runtime.inventory(), "whatever it keeps of an earlier one");
    layers.into_iter().map(|held| held.layer).collect()
}

type CpuWorker = WorkerRuntime<BackendStageFactory<fn(DeviceUse) -> CpuBackend>, Arc<Corpus>>;

fn tiny() -> ModelConfig {
    crate::common::tiny_model(Family::Llama)
}

fn runtime() -> CpuWorker {
    runtime_of(tiny())
}

fn runtime_of(model: ModelConfig) -> CpuWorker {
    counted_runtime(model, Arc::default())
}

/// The same, which counts the bytes of layers that it begins with.
fn counted_runtime(model: ModelConfig, drawn: Arc<AtomicU64>) -> CpuWorker {
    let setup = crate::common::plan(&model, ScheduleKind::ZbH1, 1, Window::One);
    let stage = crate::common::setup(model.clone(), setup, 4);
    let optimizer = stage.optimizer.clone();
    let weights = stage.weights.clone();
    let device: fn(DeviceUse) -> CpuBackend = |_| CpuBackend::new(1).expect("one thread");
    let host = HostThreads::one();
    let store = None;
    let clock = None;
    let step_count = 4;
    let factory = BackendStageFactory {
        model,
        optimizer,
        step_count,
        weights,
        drawn,
        device,
        host,
        store,
        clock,
    };
    WorkerRuntime::new(
        RuntimeSetup { stage, gradient_limits: FrameLimits { parts: 2, floats: 100 } },
        factory,
        crate::common::corpus(),
    )
}

fn outputs(runtime: &mut CpuWorker) -> Vec<RuntimeOutput> {
    std::iter::from_fn(|| runtime.poll_output()).collect()
}

/// Worker 3 held the last stage and the copy of the one before it, and moves to the first stage.
/// No other worker may have that copy any more; a plan that is made now must know of it.
#[test]
fn a_worker_that_loads_reports_layers_that_it_will_not_need() {
    let mut runtime = runtime();
    let before = plan(1, [1, 2, 3], LayerSource::Initial);
    runtime.handle(load(&before, 3)).expect("a command");
    runtime
        .handle(RuntimeInput::Command(WorkerCommand::Run { generation: Generation(1) }))
        .expect("a command");
    let held = inventory(&mut runtime);
    let copied: BTreeSet<LayerId> = before.layers_of(StageIndex(1)).collect();
    assert!(held.is_superset(&copied));
    assert_eq!(inventory(&mut runtime), held, "requested again");

    let all = LayerSource::Nodes(vec![NodeId(1), NodeId(2), NodeId(3)]);
    runtime.handle(RuntimeInput::Command(WorkerCommand::Stop)).expect("a command");
    runtime.handle(load(&plan(2, [3, 2, 1], all), 3)).expect("a command");
    assert_eq!(inventory(&mut runtime), held);
}

/// A layer is in memory once, in every phase of a runtime: loaded, in training, as a copy and
/// stopped.
#[test]
fn a_layer_is_not_copied_when_its_owner_in_memory_changes() {
    let mut runtime = runtime();
    runtime.handle(load(&plan(1, [1, 2, 3], LayerSource::Initial), 3)).expect("a command");
    let places = |images: Vec<LayerImage>| -> BTreeSet<*const f32> {
        let parts = images.iter().flat_map(|image| [&image.w, &image.m, &image.v]);
        parts.map(|part| part.as_ptr()).collect()
    };
    let idle = |runtime: &CpuWorker| {
        places(runtime.idle_layers().values().map(|image| LayerImage::clone(image)).collect())
    };
    let loaded = idle(&runtime);
    let active = runtime.active_stage().expect("all layers are from the seed");
    let mut held = places(active.engine().executor().images());
    held.extend(places(active.copies().map(LayerCopy::image).collect()));
    assert_eq!(held, loaded);
    runtime
        .handle(RuntimeInput::Command(WorkerCommand::Run { generation: Generation(1) }))
        .expect("a command");
    runtime.handle(RuntimeInput::Command(WorkerCommand::Stop)).expect("a command");
    assert_eq!(idle(&runtime), loaded);
}

/// Worker 3 is declared lost and lives on: its next life holds the stage and the copy of the life
/// before, once in memory, and sends them in its own name. Another cluster's layers it does not
/// keep.
#[test]
fn the_layers_of_a_life_that_ended_are_those_of_the_next_one() {
    let mut runtime = runtime();
    let before = plan(1, [1, 2, 3], LayerSource::Initial);
    let run = WorkerCommand::Run { generation: Generation(1) };
    runtime.handle(load(&before, 3)).expect("a command");
    runtime.handle(RuntimeInput::Command(run)).expect("a command");
    let (held, digests) = (inventory(&mut runtime), runtime.inventory());
    runtime.handle(RuntimeInput::Command(WorkerCommand::EndLife)).expect("a command");
    assert!(runtime.active_stage().is_none());
    let fetch = |layer: LayerId| {
        let body = PeerBody::Fetch { layer, version: Step(0) };
        RuntimeInput::Peer(PeerFrame { generation: Generation(2), sender: holder(1), body })
    };
    let layer = *held.first().expect("it holds a stage");
    let lacking = PeerFrameRefusal::Lacking { layer, version: Step(0) };
    assert_eq!(runtime.handle(fetch(layer)), Err(lacking), "it is nobody between two lives");
    outputs(&mut runtime);
    assert_eq!((inventory(&mut runtime), runtime.inventory()), (held, digests));
    runtime.handle(fetch(layer)).expect("it has the layer");
    let answers = frames(&mut runtime);
    let [(to, answer)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((*to, answer.sender), (NodeId(1), BACK));
    for end in [WorkerCommand::Forget, WorkerCommand::Release] {
        runtime.handle(RuntimeInput::Command(end)).expect("a command");
        assert!(runtime.inventory().is_empty());
        runtime.handle(load(&before, 3)).expect("a command");
        runtime.handle(RuntimeInput::Command(WorkerCommand::EndLife)).expect("a command");
        assert!(!runtime.inventory().is_empty(), "what was loaded and did not run is sealed too");
    }
}

#[test]
fn layers_that_a_run_begins_with_are_counted_as_they_are_made() {
    let drawn = Arc::<AtomicU64>::default();
    let mut runtime = counted_runtime(tiny(), drawn.clone());
    runtime.handle(load(&plan(1, [1, 2, 3], LayerSource::Initial), 3)).expect("a command");
    let made: usize = runtime.idle_layers().values().map(|image| image.encode().len()).sum();
    assert!(made > 0);
    assert_eq!(drawn.load(Ordering::Relaxed), made as u64);
}

/// What a checkpoint or a peer holds of a version stays that version while the layer goes on.
#[test]
fn an_image_stays_as_it_was_while_its_layer_goes_on() {
    let mut runtime = runtime();
    runtime.handle(load(&plan(1, [1, 2, 3], LayerSource::Initial), 3)).expect("a command");
    let image = runtime.idle_layers().values().next().expect("it is loaded").clone();
    let before = image.encode();
    let apart = LayerImage::decode(&before).expect("an image");
    let after = [&*image, &apart].map(|image| {
        let setup = crate::common::setup(
            crate::common::tiny_model(Family::Llama),
            crate::common::plan(
                &crate::common::tiny_model(Family::Llama),
                ScheduleKind::ZbH1,
                1,
                Window::One,
            ),
            4,
        );
        let model = BackendStageFactory {
            model: setup.model,
            optimizer: setup.optimizer,
            step_count: 4,
            weights: setup.weights,
            drawn: Arc::default(),
            device: |_: DeviceUse| CpuBackend::new(1).expect("one thread"),
            host: HostThreads::one(),
            store: None,
            clock: None,
        };
        let mut copy = model.copy(image).expect("memory");
        let turn = Turn { generation: Generation(1), attempt: Attempt(0), step: Step(0) };
        let g: Vec<f32> = (0..image.w.len()).map(|i| i as f32 * 1e-3 - 0.1).collect();
        let gradient = Arc::new(LayerGradient { layer: image.layer, turn, g: g.into() });
        copy.hold(&GradientPart::whole(gradient)).expect("the open step");
        let seal = Seal {
            turn,
            verdict: Verdict::Keep,
            reason: Reason::Sound,
            square_sum_bits: 0,
            loss_sum_bits: 0,
            updates_after: 1,
            cursor_after: Step(1),
        };
        copy.apply(&seal).expect("its gradient is held");
        copy.image()
    });
    assert_eq!(image.encode(), before);
    assert_eq!(apart.encode(), before);
    assert_eq!(after[0], after[1]);
    assert_ne!(after[0].w, image.w);
}

fn holder(node: u64) -> Holder {
    Holder { node: NodeId(node), incarnation: Incarnation(node) }
}

fn frames(runtime: &mut CpuWorker) -> Vec<(NodeId, PeerFrame)> {
    let frame = |output| match output {
        RuntimeOutput::Peer { to, frame } => Some((to, frame)),
        RuntimeOutput::Event(_)
        | RuntimeOutput::Read { .. }
        | RuntimeOutput::Write { .. }
        | RuntimeOutput::Outer(_)
        | RuntimeOutput::Evaluated { .. } => None,
    };
    outputs(runtime).into_iter().filter_map(frame).collect()
}

/// Worker 4 is to get what worker 1 holds, and has requested it; the answers are on their way.
fn handover() -> (CpuWorker, Vec<PeerFrame>) {
    let (loader, requests, answers) = handover_from(&[1]);
    assert!(requests.iter().all(|(to, _)| *to == NodeId(1)));
    (loader, answers)
}

/// The same from several workers, by a plan that expects the bits of worker 1: the requests, and the
/// answers of worker 1.
fn handover_from(sources: &[u64]) -> (CpuWorker, Vec<(NodeId, LayerId)>, Vec<PeerFrame>) {
    let mut holder_of_layers = runtime();
    let mut loader = runtime();
    holder_of_layers.handle(load(&plan(1, [1, 2, 3], LayerSource::Initial), 1)).expect("a command");
    holder_of_layers.handle(RuntimeInput::Command(WorkerCommand::Stop)).expect("a command");
    outputs(&mut holder_of_layers);
    let nodes = sources.iter().map(|node| NodeId(*node)).collect();
    let mut second = plan(2, [4, 2, 3], LayerSource::Nodes(nodes));
    for held in holder_of_layers.inventory() {
        second.expected[held.layer.index()] = Some(held.digest);
    }
    loader.handle(load(&second, 4)).expect("a command");
    let mut requests = Vec::new();
    for (to, frame) in frames(&mut loader) {
        assert_eq!(frame.sender, holder(4));
        let PeerBody::Fetch { layer, .. } = frame.body else { panic!("{frame:?}") };
        requests.push((to, layer));
        if to == NodeId(1) {
            holder_of_layers.handle(RuntimeInput::Peer(frame)).expect("it has the layer");
        }
    }
    let answers = frames(&mut holder_of_layers).into_iter().map(|(to, frame)| {
        assert_eq!(
            (to, frame.sender),
            (NodeId(4), holder(1)),
            "a worker that answers names itself"
        );
        frame
    });
    (loader, requests, answers.collect())
}

fn is_loaded(runtime: &mut CpuWorker) -> bool {
    outputs(runtime).iter().any(|o| matches!(o, RuntimeOutput::Event(WorkerEvent::Loaded { .. })))
}

#[test]
fn a_plan_is_loaded_from_the_workers_that_hold_its_layers() {
    let (mut loader, answers) = handover();
    for frame in answers {
        assert!(!is_loaded(&mut loader));
        loader.handle(RuntimeInput::Peer(frame)).expect("it is awaited");
    }
    assert!(is_loaded(&mut loader));
}

#[test]
fn a_layer_is_requested_of_all_workers_that_hold_it_at_once() {
    let (mut loader, requests, answers) = handover_from(&[1, 3]);
    let layers = |of: u64| -> Vec<LayerId> {
        requests.iter().filter(|(to, _)| *to == NodeId(of)).map(|(_, layer)| *layer).collect()
    };
    assert_eq!((layers(1).len(), layers(1)), (answers.len(), layers(3)));
    for frame in answers {
        loader.handle(RuntimeInput::Peer(frame.clone())).expect("it is awaited");
        assert!(loader.handle(RuntimeInput::Peer(frame)).is_err(), "it is here");
    }
    assert!(is_loaded(&mut loader));
}

/// One of those that sent a layer together spoils it: it is requested of each by itself, and stands
/// as it came once all were, for the log to judge.
#[test]
fn a_layer_that_came_with_other_bits_is_requested_of_one_worker_after_the_other() {
    let (_, _, answers) = handover_from(&[1, 3]);
    let good = answers[0].clone();
    let PeerBody::Layer(image) = &good.body else { panic!("{good:?}") };
    let mut w = image.w.to_vec();
    w[0] += 1.0;
    let spoiled = Arc::new(LayerImage { w: w.into(), ..(**image).clone() });
    let spoiled = PeerFrame { body: PeerBody::Layer(spoiled), ..good.clone() };
    for last in [&good, &spoiled] {
        let (mut loader, _, _) = handover_from(&[1, 3]);
        let mut requested = BTreeSet::new();
        for _ in 0..2 {
            loader.handle(RuntimeInput::Peer(spoiled.clone())).expect("it is awaited");
            let requests = frames(&mut loader);
            let [(to, PeerFrame { body: PeerBody::Fetch { layer, .. }, .. })] = &requests[..]
            else {
                panic!("{requests:?}")
            };
            assert_eq!(*layer, image.layer);
            requested.insert(*to);
        }
        assert_eq!(requested, BTreeSet::from([NodeId(1), NodeId(3)]));
        for frame in std::iter::once(last).chain(&answers[1..]) {
            loader.handle(RuntimeInput::Peer(frame.clone())).expect("it is awaited");
        }
        assert!(is_loaded(&mut loader));
    }
}

/// S3, for layers: what does not belong leaves the runtime as it was, and the layer is still
/// awaited.
#[test]
fn a_layer_that_was_not_requested_from_its_sender_is_refused() {
    let (mut loader, answers) = handover();
    let good = answers[0].clone();
    let PeerBody::Layer(image) = &good.body else { panic!("{good:?}") };
    let with =
        |image: LayerImage| PeerFrame { body: PeerBody::Layer(Arc::new(image)), ..good.clone() };
    let layer = image.layer;
    let version = image.version;
    let later = image.version.next();
    let unrequested = |sender, version| PeerFrameRefusal::Unrequested { layer, version, sender };
    let expected = Generation(2);
    let found = Generation(1);
    let w = image.w[1..].to_vec().into();
    let refused = [
        (
            PeerFrame { generation: found, ..good.clone() },
            PeerFrameRefusal::OtherGeneration { expected, found },
        ),
        (PeerFrame { sender: holder(3), ..good.clone() }, unrequested(holder(3), version)),
        (with(LayerImage { version: later, ..(**image).clone() }), unrequested(holder(1), later)),
        (with(LayerImage { w, ..(**image).clone() }), PeerFrameRefusal::WrongShape { layer }),
    ];
    for (frame, refusal) in refused {
        assert_eq!(loader.handle(RuntimeInput::Peer(frame)), Err(refusal));
    }
    for frame in answers {
        loader.handle(RuntimeInput::Peer(frame)).expect("it is awaited");
    }
    assert!(is_loaded(&mut loader));
    let late = loader.handle(RuntimeInput::Peer(good));
    assert_eq!(late, Err(PeerFrameRefusal::NoStage));
}

/// A plan that ties the ends of a model that is not tied, or the other way round, would train other
/// bits: the worker names why it does not run it, reports it, and loads the plan after it.
#[test]
fn a_plan_of_another_arithmetic_is_refused() {
    let tied = ModelConfig { tied: true, ..crate::common::tiny_model(Family::Llama) };
    let legal = plan(1, [1, 2, 3], LayerSource::Initial);
    for (model, kind, mismatch) in [
        (&tied, ScheduleKind::ZbH1, PlanMismatch::Tied),
        (&tiny(), ScheduleKind::Seq1F1B, PlanMismatch::Slices { expected: 1, found: 2 }),
        (&tiny(), ScheduleKind::Gems, PlanMismatch::Directions { lanes: LaneCount::ONE, found: 2 }),
    ] {
        let Plan { program, chunks, .. } = crate::common::plan(model, kind, STAGES, Window::One);
        check_refused(runtime(), &PlanRecord { program, chunks, ..legal.clone() }, mismatch);
    }
    check_refused(runtime_of(tied), &legal, PlanMismatch::Untied);
}

fn check_refused(mut runtime: CpuWorker, wrong: &PlanRecord, expected: PlanMismatch) {
    runtime.handle(load(wrong, 1)).expect("a command");
    let failed = outputs(&mut runtime).into_iter().find_map(|output| {
        let RuntimeOutput::Event(WorkerEvent::LoadFailed { generation, cause, .. }) = output else {
            return None;
        };
        Some((generation, cause))
    });
    assert_eq!(failed, Some((Generation(1), LoadFault::Source)), "{expected:?}");
    match runtime.take_refusal() {
        Some(StageRefusal::Plan(found)) => assert_eq!(found, expected),
        other => panic!("{expected:?}: {other:?}"),
    }
    assert!(runtime.active_stage().is_none());
}

#[test]
fn a_layer_is_requested_ever_more_seldom_and_given_up_when_nothing_comes() {
    let (mut loader, _) = handover();
    let mut requested = Vec::new();
    for tick in 1..=141 {
        loader.handle(RuntimeInput::Tick).expect("a tick");
        for output in outputs(&mut loader) {
            match output {
                RuntimeOutput::Peer { .. } if requested.last() != Some(&tick) => {
                    requested.push(tick)
                }
                RuntimeOutput::Peer { .. } => {}
                RuntimeOutput::Event(WorkerEvent::LoadFailed { layer, cause, .. }) => {
                    // 3, 6 and 12 ticks, and five times 24: each of eight sources gets a request.
                    assert_eq!((tick, layer, cause), (141, LayerId(0), LoadFault::Source));
                    assert_eq!(requested[..5], [3, 9, 21, 45, 69]);
                    return;
                }
                other @ (RuntimeOutput::Event(_)
                | RuntimeOutput::Read { .. }
                | RuntimeOutput::Write { .. }
                | RuntimeOutput::Outer(_)
                | RuntimeOutput::Evaluated { .. }) => panic!("{other:?}"),
            }
        }
    }
    panic!("it is never given up");
}

/// A layer of gigabytes takes longer to be read than a node is waited for, and its checkpoint is
/// sound.
#[test]
fn a_read_is_waited_for_however_long_it_takes() {
    let mut reader = runtime();
    let digest = Digest([7; 32]);
    let source = LayerSource::Checkpoint { version: Step(0), digest };
    reader.handle(load(&plan(2, [4, 2, 3], source), 4)).expect("a command");
    let requests = outputs(&mut reader);
    let reads =
        requests.iter().filter(|output| matches!(output, RuntimeOutput::Read { .. })).count();
    assert!(reads > 0 && reads == requests.iter().filter(|o| !is_event(o)).count(), "{requests:?}");
    for _ in 0..10_000 {
        reader.handle(RuntimeInput::Tick).expect("a tick");
        assert!(outputs(&mut reader).is_empty(), "it is requested once, and waited for");
    }
    // The read failed: that is reported at once.
    let RuntimeOutput::Read { version, layer, .. } =
        *requests.iter().find(|o| !is_event(o)).expect("one")
    else {
        panic!("a read")
    };
    reader.handle(RuntimeInput::Read { version, layer, read: None }).expect("an answer");
    let reported = outputs(&mut reader);
    assert!(
        matches!(reported[..], [RuntimeOutput::Event(WorkerEvent::LoadFailed { .. })]),
        "{reported:?}"
    );
}

fn is_event(output: &RuntimeOutput) -> bool {
    matches!(output, RuntimeOutput::Event(_))
}

/// Two states of one version are two things; only the one that was requested last is reported.
#[test]
fn what_was_written_of_another_state_is_not_reported_as_durable() {
    let mut runtime = runtime();
    let RuntimeInput::Command(WorkerCommand::Load(mut command)) =
        load(&plan(1, [1, 2, 3], LayerSource::Initial), 1)
    else {
        panic!("a command to load")
    };
    command.is_pending = true;
    runtime.handle(RuntimeInput::Command(WorkerCommand::Load(command))).expect("a command");
    let writes: Vec<_> = outputs(&mut runtime)
        .into_iter()
        .filter_map(|output| {
            let RuntimeOutput::Write { image, generation } = output else { return None };
            Some((image.version, image.layer, generation, layer_digest(&image)))
        })
        .collect();
    assert!(!writes.is_empty(), "what becomes a checkpoint is written when it is loaded");
    let mut written = |plans_later, is_durable: bool| {
        for (version, layer, generation, digest) in writes.iter().copied() {
            let generation = Generation(generation.0 + plans_later);
            let durable = is_durable.then_some(digest);
            let input = RuntimeInput::Written { version, layer, generation, durable };
            runtime.handle(input).expect("an answer");
        }
        outputs(&mut runtime)
    };
    assert!(written(1, true).is_empty());
    assert!(written(1, false).is_empty(), "nor does its failure count");
    let reported = written(0, true);
    let [RuntimeOutput::Event(WorkerEvent::Saved { version: Step(0), layers, .. })] = &reported[..]
    else {
        panic!("one checkpoint: {reported:?}")
    };
    let expected: Vec<_> = writes.iter().map(|(_, layer, _, digest)| (*layer, *digest)).collect();
    assert_eq!(*layers, expected, "the digests that the writer computed");
}
