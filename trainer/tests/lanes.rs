//! Lanes: the gradient of a step as a tree over partial sums. Every schedule of any number of stages
//! has the bits of the serial reference of as many lanes, whatever befalls its steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::serial::StruckStepFate;
use crate::common::{BATCH, StageCluster, corpus_for, policy, setup, tiny_model};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::{BufferView, ByteCounts, CpuBackend, DeviceMemory};
use zbelastic_schedule::{PipelineSize, ScheduleKind, Window, check_size};
use zbelastic_trainer::data::{BatchSource, Corpus, StepTargets, TokenBatch};
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::model::{
    Family, LayerState, LoraInit, LoraScaling, LoraSettings, ModelConfig, model_layers,
};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::plan::{
    BatchShape, LaneCount, Plan, PlanRequest, ReplicaCount, stage_memory,
};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::{Bytes, MicrobatchIndex, StageIndex, Step};

const STEPS: u64 = 3;
/// The step whose gradient is corrupted, as people count.
const STRUCK: u64 = 2;
/// Some steps are clipped by it and some are not.
const CLIP_NORM: Option<f64> = Some(0.5);
const LANES: [u32; 4] = [1, 2, 4, 8];

/// One microbatch a lane or more, and nearly every schedule exists for one to four stages.
fn batch(lanes: u32) -> BatchShape {
    let lanes = LaneCount::new(lanes).expect("a power of two");
    BatchShape { microbatch_count: 8, lanes, ..BATCH }
}

/// The models: plain, with tied ends, one that Muon trains, and one with low-rank adapters.
fn variants() -> [(ModelConfig, OptimizerKind); 4] {
    let tied = ModelConfig { tied: true, ..tiny_model(Family::Gpt2) };
    let adapters = LoraSettings {
        rank: 3,
        alpha: 6.0,
        scaling: LoraScaling::Standard,
        init: LoraInit::Gaussian,
        targets: vec!["all-linear".to_owned()],
    };
    let adapted = adapters.adapt(&tiny_model(Family::Llama)).expect("legal adapters");
    let muon = OptimizerKind::Muon { momentum: 0.95 };
    [
        (tiny_model(Family::Llama), OptimizerKind::AdamW),
        (tied, OptimizerKind::AdamW),
        (tiny_model(Family::Gpt2), muon),
        (adapted, OptimizerKind::AdamW),
    ]
}

fn request(
    model: &ModelConfig,
    batch: BatchShape,
    kind: ScheduleKind,
    stage_count: u32,
    window: Window,
) -> PlanRequest<'_> {
    PlanRequest {
        model,
        batch,
        kind,
        chunks_per_stage: None,
        slice_count: kind.is_sliced().then_some(2),
        stage_count,
        replicas: ReplicaCount::ONE,
        window,
    }
}

fn lanes_setup(plan: Plan, (model, optimizer): &(ModelConfig, OptimizerKind)) -> StageSetup {
    let mut setup = StageSetup { clip_norm: CLIP_NORM, ..setup(model.clone(), plan, STEPS) };
    setup.optimizer.kind = *optimizer;
    setup
}

/// A tensor that is trained, of a block in the middle.
fn struck(model: &ModelConfig) -> String {
    let layers = model_layers(model);
    let mut trained = layers[layers.len() / 2].trained_tensors();
    trained.next().expect("something of it is trained").name.clone()
}

/// The digest of a run, and the bits of its losses.
type SerialOutcome = (StateDigest, Vec<u64>);

/// A serial run of this arithmetic.
fn serial(setup: &StageSetup, corpus: &Arc<Corpus>, skipped: Option<u64>) -> SerialOutcome {
    let backend = CpuBackend::new(1).expect("one thread");
    let mut run = SerialReference::new(setup, backend, corpus.clone()).expect("memory");
    let step = |step| run.step(Step(step), skipped == Some(step + 1)).loss_sum.to_bits();
    let losses = (0..setup.step_count).map(step).collect();
    (run.digest(), losses)
}

/// All lanes, stages and schedules, each with one of the windows, fates and models in turn. Lanes
/// of one are the serial chain.
#[test]
fn every_schedule_has_the_bits_of_the_lanes() {
    let corpus = corpus_for(batch(1), 0.05);
    let variants = variants();
    let mut expected: BTreeMap<(u32, usize, u32, bool), SerialOutcome> = BTreeMap::new();
    let mut runs = 0;
    let (mut clipped, mut rollbacks) = (0, 0);
    for lanes in LANES {
        for (kind, stage_count) in sizes(lanes) {
            runs += 1;
            let window = if runs % 2 == 0 { Window::Zero } else { Window::One };
            let fate = StruckStepFate::ALL[runs / 2 % StruckStepFate::ALL.len()];
            let variant = (runs / 6) % variants.len();
            let (model, _) = &variants[variant];
            let plan = Plan::new(request(model, batch(lanes), kind, stage_count, window));
            let mut setup = lanes_setup(plan.expect("the size exists"), &variants[variant]);
            let skipped = fate.skipped(STRUCK);
            let slices = setup.plan.program.slice_count;
            let of = (lanes, variant, slices, skipped.is_some());
            let (digest, losses) =
                expected.entry(of).or_insert_with(|| serial(&setup, &corpus, skipped)).clone();
            fate.strike(&mut setup, STRUCK, &struck(model));
            let policy = policy(CLIP_NORM, fate.policy());
            // Threads that wait for each other are slow on a busy machine: one run has two.
            let threads = if runs == 5 { 2 } else { 1 };
            let cluster =
                StageCluster::with_corpus(&setup, policy, threads, runs as u64, corpus.clone());
            let outcome = cluster.run();
            let case = format!("{lanes} lanes, {kind}, {stage_count} stages, {window}, {fate:?}");
            assert_eq!(outcome.digest, digest, "{case}");
            let finals = outcome.seals.iter().filter(|seal| seal.verdict.is_final());
            let sums: Vec<u64> = finals.map(|seal| seal.loss_sum_bits).collect();
            assert_eq!(sums, losses, "{case}");
            clipped += outcome.verdicts("clip");
            rollbacks += outcome.rollbacks;
        }
    }
    assert!(runs > 300, "only {runs} sizes");
    assert!(clipped > 100 && rollbacks > 20, "{clipped} steps clipped, {rollbacks} rollbacks");
    let of_lanes: Vec<StateDigest> =
        LANES.iter().map(|lanes| expected[&(*lanes, 0, 1, false)].0).collect();
    assert!((1..of_lanes.len()).all(|at| !of_lanes[..at].contains(&of_lanes[at])), "trees differ");
}

/// The schedules of one to four stages that run so many lanes.
fn sizes(lanes: u32) -> Vec<(ScheduleKind, u32)> {
    let of_kind = |kind: ScheduleKind| (1..=4).map(move |stage_count| (kind, stage_count));
    let exists = |(kind, stage_count): &(ScheduleKind, u32)| {
        let size = PipelineSize::of(*kind, *stage_count, batch(1).microbatch_count);
        check_size(*kind, size).is_ok() && kind.replica_count() <= lanes
    };
    ScheduleKind::ALL.into_iter().flat_map(of_kind).filter(exists).collect()
}

/// The gradients of a step's lanes, each from a serial run whose step is that lane alone, added by
/// hand as the tree says: what all the digests above agree on is the definition.
#[test]
fn the_reference_is_the_tree_of_the_definition() {
    let model = tiny_model(Family::Gpt2);
    let corpus = corpus_for(BatchShape { microbatch_count: 4, ..BATCH }, 0.05);
    // Of four microbatches those from `first` on. They are scaled by the tokens of four alike.
    let gradient = |lanes: u32, microbatches: std::ops::Range<u32>| -> Vec<f32> {
        let lanes = LaneCount::new(lanes).expect("a power of two");
        let batch = BatchShape { microbatch_count: microbatches.len() as u32, lanes, ..BATCH };
        let plan = Plan::new(request(&model, batch, ScheduleKind::GPipe, 1, Window::Zero));
        let setup = setup(model.clone(), plan.expect("one stage"), 1);
        let backend = CpuBackend::new(1).expect("one thread");
        let source = FromMicrobatch { corpus: corpus.clone(), first: microbatches.start };
        let mut run = SerialReference::new(&setup, backend, source).expect("memory");
        run.step(Step(0), true);
        let read = |layer: &LayerState<CpuBackend>| {
            run.backend().download(BufferView::new(&layer.g, 0..layer.spec.len()))
        };
        run.layers().iter().flat_map(read).collect()
    };
    let sum = |left: Vec<f32>, right: Vec<f32>| -> Vec<f32> {
        left.into_iter().zip(right).map(|(left, right)| left + right).collect()
    };
    let bits = |floats: Vec<f32>| floats.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let one = |k| gradient(1, k..k + 1);
    let tree = sum(sum(one(0), one(1)), sum(one(2), one(3)));
    assert_eq!(bits(gradient(4, 0..4)), bits(tree.clone()));
    let two = sum(gradient(1, 0..2), gradient(1, 2..4));
    assert_eq!(bits(gradient(2, 0..4)), bits(two.clone()));
    assert_ne!(bits(two), bits(tree));
}

/// The microbatches of a corpus from one on; a step counts the targets of all.
struct FromMicrobatch {
    corpus: Arc<Corpus>,
    first: u32,
}

impl BatchSource for FromMicrobatch {
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch {
        self.corpus.training(step, MicrobatchIndex(self.first + microbatch.0))
    }

    fn targets(&self, step: Step, _microbatch_count: u32) -> StepTargets {
        self.corpus.targets(step, 4)
    }

    fn held_out(&self, index: u32) -> Option<TokenBatch> {
        self.corpus.held_out(index)
    }
}

/// A stage that adds up eight lanes holds three sums beside the gradient of each layer, and claims
/// them; one that adds up one holds none.
#[test]
fn sums_that_wait_are_claimed() {
    let model = tiny_model(Family::Llama);
    let backend = CpuBackend::new(1).expect("one thread");
    let state = |lanes: u32, kind: ScheduleKind| -> Bytes {
        let plan = Plan::new(request(&model, batch(lanes), kind, 2, Window::One));
        let plan = plan.expect("the size exists");
        let stages = (0..2).map(StageIndex);
        stages
            .map(|stage| stage_memory(&backend, &model, OptimizerKind::AdamW, &plan, stage).state)
            .sum()
    };
    let one_sum: u64 =
        model_layers(&model).iter().map(|layer| backend.buffer_bytes(layer.len())).sum();
    let of_one = state(1, ScheduleKind::ZbH1);
    for (lanes, levels) in [(2, 1), (4, 2), (8, 3)] {
        assert_eq!(state(lanes, ScheduleKind::ZbH1), of_one + Bytes(levels * one_sum));
        // Each direction adds up half of them.
        let twice = Bytes(2 * of_one.0);
        let both = Bytes(2 * (levels - 1) * one_sum);
        assert_eq!(state(lanes, ScheduleKind::Chimera), twice + both);
    }
}

/// What copies follow is the gradient that the lanes add up to.
#[test]
fn copies_follow_the_gradient_of_all_lanes() {
    let model = tiny_model(Family::Llama);
    for (kind, stage_count) in [(ScheduleKind::ZbH1, 3), (ScheduleKind::Chimera, 2)] {
        let plan = Plan::new(request(&model, batch(4), kind, stage_count, Window::One));
        let mut setup =
            lanes_setup(plan.expect("the size exists"), &(model.clone(), OptimizerKind::AdamW));
        (setup.copies_wanted, setup.attest_every) = (true, 1);
        let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
        let corpus = corpus_for(batch(4), 0.05);
        let cluster = StageCluster::with_corpus(&setup, policy, 1, 4, corpus);
        let outcome = cluster.witnessed(&setup).run();
        let layers = model_layers(&model).len() * kind.replica_count() as usize;
        assert_eq!(outcome.witnessed, layers * STEPS as usize, "{kind}");
    }
}
