//! Replicas: the same pipeline several times side by side, each with a share of the lanes. Whatever the
//! schedule, the stages and the number of replicas, the bits are those of the serial reference of as
//! many lanes, which knows of no replica, whatever befalls the steps.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::common::serial::StruckStepFate;
use crate::common::{BATCH, StageCluster, corpus_for, policy, setup, tiny_model};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::{ByteCounts, CpuBackend};
use zbelastic_schedule::{NobodyLeft, ScheduleKind, SharedOrder, Window, check_size};
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::model::{Family, LayerSpec, ModelConfig, frozen_tensors, model_layers};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::plan::{
    BatchShape, ChooseRequest, HeldBeside, LaneCount, LaneError, MemoryPolicy, Pace, Plan,
    PlanError, PlanRequest, ReplicaCount, choose, stage_memory,
};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::{HELD_OUT_MAX, StageSetup};
use zbelastic_types::{Bytes, ChunkIndex, StageIndex, Step};

const STEPS: u64 = 3;
/// The step whose gradient is corrupted, as people count.
const STRUCK: u64 = 2;
/// Some steps are clipped by it and some are not.
const CLIP_NORM: Option<f64> = Some(0.5);

/// Sixteen microbatches: eight replicas of two each, so that each has a steady part.
fn batch(lanes: u32) -> BatchShape {
    let lanes = LaneCount::new(lanes).expect("a power of two");
    BatchShape { microbatch_count: 16, lanes, ..BATCH }
}

fn replica_count(count: u32) -> ReplicaCount {
    ReplicaCount::new(count).expect("a power of two")
}

fn request(
    model: &ModelConfig,
    batch: BatchShape,
    (kind, stage_count, replicas): (ScheduleKind, u32, u32),
    window: Window,
) -> PlanRequest<'_> {
    PlanRequest {
        model,
        batch,
        kind,
        chunks_per_stage: None,
        slice_count: kind.is_sliced().then_some(2),
        stage_count,
        replicas: replica_count(replicas),
        window,
    }
}

fn replicas_setup(model: &ModelConfig, plan: Plan) -> StageSetup {
    StageSetup { clip_norm: CLIP_NORM, ..setup(model.clone(), plan, STEPS) }
}

/// The digest of a serial run, and the bits of its losses.
type SerialOutcome = (StateDigest, Vec<u64>);

fn serial(setup: &StageSetup, corpus: &Arc<Corpus>, skipped: Option<u64>) -> SerialOutcome {
    let backend = CpuBackend::new(1).expect("one thread");
    let mut run = SerialReference::new(setup, backend, corpus.clone()).expect("memory");
    let step = |step| run.step(Step(step), skipped == Some(step + 1)).loss_sum.to_bits();
    let losses = (0..setup.step_count).map(step).collect();
    (run.digest(), losses)
}

/// Schedules, stages of each pipeline and pipelines that so many lanes are dealt to.
fn sizes(lanes: u32) -> Vec<(ScheduleKind, u32, u32)> {
    let model = tiny_model(Family::Gpt2);
    let replicas = [1, 2, 4, 8].into_iter().filter(|count| *count <= lanes);
    let of_kind = |kind: ScheduleKind| (1..=4).map(move |stages| (kind, stages));
    let all = replicas.flat_map(|count| {
        ScheduleKind::ALL.into_iter().flat_map(of_kind).map(move |(kind, p)| (kind, p, count))
    });
    all.filter(|size| Plan::new(request(&model, batch(lanes), *size, Window::One)).is_ok())
        .collect()
}

/// Runs of many plans, each with one of the windows, fates and models in turn.
struct Campaign {
    corpus: Arc<Corpus>,
    models: [ModelConfig; 2],
    expected: BTreeMap<(u32, usize, u32, bool), SerialOutcome>,
    runs: usize,
    clipped: usize,
    rollbacks: usize,
    twins: usize,
}

impl Campaign {
    fn new() -> Self {
        let tied = ModelConfig { tied: true, ..tiny_model(Family::Gpt2) };
        Self::of_models([tiny_model(Family::Llama), tied])
    }

    fn of_models(models: [ModelConfig; 2]) -> Self {
        Self {
            corpus: corpus_for(batch(1), 0.05),
            models,
            expected: BTreeMap::new(),
            runs: 0,
            clipped: 0,
            rollbacks: 0,
            twins: 0,
        }
    }

    /// Runs what `change` makes of the plan of this size, and compares it with the serial run.
    fn check(
        &mut self,
        (lanes, size): (u32, (ScheduleKind, u32, u32)),
        change: impl FnOnce(&ModelConfig, Plan) -> Plan,
    ) {
        self.runs += 1;
        let window = if self.runs.is_multiple_of(2) { Window::Zero } else { Window::One };
        let fate = StruckStepFate::ALL[self.runs / 2 % StruckStepFate::ALL.len()];
        let model_index = self.runs / 6 % self.models.len();
        let model = &self.models[model_index];
        let plan = Plan::new(request(model, batch(lanes), size, window)).expect("it exists");
        let mut setup = replicas_setup(model, change(model, plan));
        let skipped = fate.skipped(STRUCK);
        let slices = setup.plan.program.slice_count;
        let of = (lanes, model_index, slices, skipped.is_some());
        let corpus = &self.corpus;
        let serial = self.expected.entry(of).or_insert_with(|| serial(&setup, corpus, skipped));
        fate.strike(&mut setup, STRUCK, "layers.2.mlp.up");
        let policy = policy(CLIP_NORM, fate.policy());
        let seed = self.runs as u64;
        let outcome = StageCluster::with_corpus(&setup, policy, 1, seed, corpus.clone()).run();
        let (kind, stages, replicas) = size;
        let cells = setup.plan.placement().table().cells();
        let shards = setup.plan.placement().shards().layers();
        let case = format!(
            "{lanes} lanes, {kind} {stages} x {replicas} {cells:?} {shards:?}, {window}, {fate:?}"
        );
        assert_eq!(outcome.digest, serial.0, "{case}");
        let finals = outcome.seals.iter().filter(|seal| seal.verdict.is_final());
        let sums: Vec<u64> = finals.map(|seal| seal.loss_sum_bits).collect();
        assert_eq!(sums, serial.1, "{case}");
        let placement = setup.plan.placement();
        let holders = (placement.replica_count() / placement.shards().count()) as usize;
        assert_eq!(outcome.twins, (holders - 1) * model.layer_count() as usize, "{case}");
        self.clipped += outcome.verdicts("clip");
        self.rollbacks += outcome.rollbacks;
        self.twins += outcome.twins;
    }
}

/// All lanes, stages, replicas and schedules.
#[test]
fn every_grid_has_the_bits_of_the_lanes() {
    let mut campaign = Campaign::new();
    for lanes in [2, 4, 8] {
        for size in sizes(lanes) {
            campaign.check((lanes, size), |_, plan| plan);
        }
    }
    let Campaign { runs, clipped, rollbacks, twins, .. } = campaign;
    assert!(runs > 400, "only {runs} sizes");
    assert!(clipped > 100 && rollbacks > 20 && twins > 0, "{clipped} clipped, {rollbacks} back");
}

/// The same with the optimizer sharded, over as many replicas as there can be shards, and over half of them.
#[test]
fn every_sharded_grid_has_the_bits_of_the_lanes() {
    // Ends that are tied are whole on one replica: such a plan is not sharded.
    let plain = tiny_model(Family::Gpt2);
    // Nothing of a frozen layer is sent, and it is committed with the others.
    let frozen = ["embed", "layers.0", "layers.*.attn.k"].map(str::to_owned);
    let frozen = frozen_tensors(&plain, &frozen).expect("there are such");
    let mut campaign =
        Campaign::of_models([tiny_model(Family::Llama), plain.clone().freezing(frozen)]);
    let mut shards = BTreeMap::new();
    for lanes in [2, 4, 8] {
        for size in sizes(lanes).into_iter().filter(|size| size.2 > 1) {
            for holders in [1, 2] {
                let plan = Plan::new(request(&plain, batch(lanes), size, Window::One));
                let sharded = plan.expect("it exists").with_shards(&plain, holders);
                let count = sharded.placement().shards().count();
                if count > 1 {
                    *shards.entry(count).or_insert(0) += 1;
                    campaign.check((lanes, size), |model, plan| plan.with_shards(model, holders));
                }
            }
        }
    }
    let Campaign { runs, clipped, rollbacks, .. } = campaign;
    assert!(shards[&2] > 150 && shards[&4] > 60 && shards[&8] > 3, "{shards:?} of {runs} runs");
    assert!(clipped > 50 && rollbacks > 10, "{clipped} clipped, {rollbacks} back");
}

/// The plan without one worker or two, whose places others stand at: which, and in which order the
/// columns of those alternate, differs from run to run.
fn without_some(plan: &Plan, pace: &Pace, run: usize) -> Option<Plan> {
    let stages = plan.placement().stage_count();
    let first = StageIndex(run as u32 * 5 % stages);
    let second = StageIndex((first.0 + 1 + run as u32 / 2 % (stages - 1)) % stages);
    let lost: &[StageIndex] = if run.is_multiple_of(2) { &[first] } else { &[first, second] };
    let order = if run.is_multiple_of(3) { SharedOrder::InTurn } else { SharedOrder::ByTime };
    let found = plan.rerouted(lost, |_| pace.clone(), order);
    found.ok().map(|reroute| reroute.plan)
}

/// The same of tables that are no grids: what a loss leaves, where others of the same place go on.
#[test]
fn every_table_has_the_bits_of_the_lanes() {
    let mut campaign = Campaign::new();
    let mut tables = 0;
    for lanes in [2, 4, 8] {
        for size in sizes(lanes).into_iter().filter(|size| [2, 4].contains(&size.2)) {
            let run = campaign.runs;
            campaign.check((lanes, size), |model, plan| {
                let pace = Pace::estimated(model, plan.batch.microbatch);
                let table = without_some(&plan, &pace, run);
                tables += usize::from(table.is_some());
                table.unwrap_or(plan)
            });
        }
    }
    let Campaign { runs, clipped, rollbacks, .. } = campaign;
    // Of the others two workers at one place were lost, and nobody was left there.
    assert!(tables > 300 && tables > runs * 4 / 5, "{tables} tables of {runs} sizes");
    assert!(clipped > 50 && rollbacks > 10, "{clipped} clipped, {rollbacks} back");
}

/// The same of tables in which the optimizer is sharded: whoever goes on has the moments of all that it updates,
/// and who joins gets the place back.
#[test]
fn every_sharded_table_has_the_bits_of_the_lanes() {
    let plain = tiny_model(Family::Gpt2);
    let mut campaign = Campaign::of_models([tiny_model(Family::Llama), plain.clone()]);
    let mut tables = 0;
    for lanes in [4, 8] {
        for size in sizes(lanes).into_iter().filter(|size| [4, 8].contains(&size.2)) {
            let plan = Plan::new(request(&plain, batch(lanes), size, Window::One));
            if !plan.expect("it exists").with_shards(&plain, 2).is_sharded() {
                continue;
            }
            let run = campaign.runs;
            campaign.check((lanes, size), |model, plan| {
                let pace = Pace::estimated(model, plan.batch.microbatch);
                let plan = plan.with_shards(model, 2);
                let table = without_some(&plan, &pace, run);
                tables += usize::from(table.is_some());
                let Some(table) = table else { return plan };
                assert_eq!(table.placement().shards().layers(), plan.placement().shards().layers());
                let order = SharedOrder::ByTime;
                let whole = table.refilled(u32::MAX, |_| pace.clone(), order).expect("shared").plan;
                assert_eq!(whole, plan);
                table
            });
        }
    }
    let Campaign { runs, clipped, rollbacks, .. } = campaign;
    assert!(tables > 80 && tables > runs * 4 / 5, "{tables} tables of {runs} sizes");
    assert!(clipped > 10 && rollbacks > 2, "{clipped} clipped, {rollbacks} back");
}

/// Each layer is updated by whoever updated it before, and if nobody is left who did nobody takes over.
#[test]
fn whoever_takes_a_shard_over_has_its_moments() {
    let model = tiny_model(Family::Gpt2);
    let plan = Plan::new(request(&model, batch(8), (ScheduleKind::ZbH1, 2, 8), Window::One));
    let plan = plan.expect("it exists").with_shards(&model, 2);
    let pace = Pace::estimated(&model, BATCH.microbatch);
    let updated = |plan: &Plan, stage| -> BTreeSet<u32> {
        plan.chunks_of(stage).flat_map(|(chunk, _)| plan.updated_layers(chunk)).collect()
    };
    let spoken_for = |plan: &Plan| -> Vec<u32> {
        let chunks = (0..plan.placement().chunk_count()).map(ChunkIndex);
        let mut layers: Vec<u32> = chunks.flat_map(|chunk| plan.owned_layers(chunk)).collect();
        layers.sort_unstable();
        layers
    };
    for lost in (0..16).map(StageIndex) {
        let found = plan.rerouted(&[lost], |_| pace.clone(), SharedOrder::ByTime);
        let found = found.expect("another one has the moments");
        assert!(!found.stages.contains(&lost));
        for (stage, known) in (0..).map(StageIndex).zip(&found.stages) {
            assert_eq!(updated(&found.plan, stage), updated(&plan, *known), "{lost} lost");
        }
        assert_eq!(spoken_for(&found.plan), (0..model.layer_count()).collect::<Vec<_>>());
        assert_eq!(found.plan.halved(), None, "halves would update two shards");
    }
    let both = [StageIndex(0), StageIndex(8)];
    let nobody = plan.rerouted(&both, |_| pace.clone(), SharedOrder::ByTime);
    assert_eq!(nobody, Err(NobodyLeft { place: 0, shard: 0 }));
}

/// The same of tables in which some that joined have places of their own; when all have, the plan is that
/// of before the losses.
#[test]
fn tables_that_are_refilled_have_the_bits_of_the_lanes() {
    let mut campaign = Campaign::new();
    let mut tables = 0;
    for size in sizes(8).into_iter().filter(|size| size.2 == 4) {
        let joining = campaign.runs as u32 % 2 + 1;
        campaign.check((8, size), |model, plan| {
            let pace = Pace::estimated(model, plan.batch.microbatch);
            let places = plan.placement().stages_per_column();
            let lost: Vec<StageIndex> = (0..3).map(|at| StageIndex(at * places)).collect();
            let order = SharedOrder::ByTime;
            let table = plan.rerouted(&lost, |_| pace.clone(), order).expect("one is left").plan;
            let whole = table.refilled(u32::MAX, |_| pace.clone(), order).expect("shared").plan;
            assert_eq!(whole, plan);
            let refilled = table.refilled(joining, |_| pace.clone(), order).expect("shared");
            let further = refilled.stages.iter().filter(|at| at.is_none()).count();
            assert_eq!(further, 1, "with two the most columns are no fewer");
            tables += usize::from(refilled.plan.placement().is_table());
            refilled.plan
        });
    }
    let Campaign { runs, clipped, .. } = campaign;
    assert!(runs > 30 && tables * 2 > runs, "{tables} tables of {runs}");
    assert!(clipped > 5, "{clipped} clipped");
}

/// The same of columns cut in two, of which several others each run a half; who joins gets both, and the
/// plan is that of before the loss.
#[test]
fn tables_of_halves_have_the_bits_of_the_lanes() {
    let mut campaign = Campaign::new();
    let mut split = 0;
    for size in sizes(8).into_iter().filter(|size| size.2 == 4) {
        let run = campaign.runs as u32;
        campaign.check((8, size), |model, plan| {
            let pace = Pace::estimated(model, plan.batch.microbatch);
            let Some(halves) = plan.halved() else { return plan };
            let lost = [StageIndex(run % plan.placement().stage_count())];
            let order = SharedOrder::ByTime;
            let table = halves.rerouted(&lost, |_| pace.clone(), order).expect("three are left");
            let table = table.plan;
            let whole = table.refilled(1, |_| pace.clone(), order).expect("two have more");
            assert_eq!(whole.plan, plan);
            let stages = (0..table.placement().stage_count()).map(StageIndex);
            let columns = |stage| table.placement().table().columns_of(stage).count();
            let three = stages.filter(|stage| columns(*stage) == 3).count();
            assert_eq!(three, 2, "each half goes to another one");
            split += 1;
            table
        });
    }
    let Campaign { runs, clipped, .. } = campaign;
    assert!(split > 20 && clipped > 5, "{split} of {runs}, {clipped} clipped");
    let few = Plan::new(request(
        &tiny_model(Family::Gpt2),
        batch(4),
        (ScheduleKind::ZbH1, 2, 4),
        Window::One,
    ));
    assert_eq!(few.expect("it exists").halved(), None, "each column has one lane");
}

/// What a worker that stands in two columns claims beside one that stands in one: a gradient and lanes
/// that wait, what is exchanged, and activations; no weights and no moments.
#[test]
fn a_shared_place_claims_its_state_once() {
    let model = tiny_model(Family::Llama);
    let backend = CpuBackend::new(1).expect("one thread");
    let size = (ScheduleKind::ZbH1, 2, 2);
    let plan = Plan::new(request(&model, batch(8), size, Window::One)).expect("it exists");
    let pace = Pace::estimated(&model, BATCH.microbatch);
    let claim =
        |plan: &Plan| stage_memory(&backend, &model, OptimizerKind::AdamW, plan, StageIndex(0));
    let layers = plan.chunks[0].ids().map(|layer| model_layers(&model)[layer as usize].len());
    let buffers: u64 = layers.map(|len| backend.buffer_bytes(len)).sum();
    let [alone, by_time, in_turn] = [None, Some(SharedOrder::ByTime), Some(SharedOrder::InTurn)]
        .map(|order| match order {
            None => claim(&plan),
            Some(order) => {
                let table = plan.rerouted(&[StageIndex(2)], |_| pace.clone(), order);
                claim(&table.expect("one is left").plan)
            }
        });
    let levels = 2; // Four lanes of each column.
    for shared in [by_time, in_turn] {
        assert_eq!(shared.state, alone.state + Bytes((1 + levels) * buffers));
        assert_eq!(shared.scratch, alone.scratch);
    }
    assert!(by_time.stash > alone.stash && by_time.stash <= alone.stash * 2);
}

/// Held-out text is read by the first pipeline, and a run that is halted ends sealed everywhere.
#[test]
fn held_out_text_is_read_once_and_a_halted_run_ends_sealed() {
    let model = tiny_model(Family::Gpt2);
    let corpus = corpus_for(batch(1), 0.05);
    for size in [(ScheduleKind::ZbH1, 2, 4), (ScheduleKind::ZbV, 2, 2), (ScheduleKind::Gems, 2, 2)]
    {
        let plan = Plan::new(request(&model, batch(4), size, Window::One)).expect("it exists");
        let mut setup = replicas_setup(&model, plan);
        setup.evaluate_every = 2;
        let backend = CpuBackend::new(1).expect("one thread");
        let mut run = SerialReference::new(&setup, backend, corpus.clone()).expect("memory");
        for step in 0..2 {
            run.step(Step(step), false);
        }
        let loss = run.held_out_loss(HELD_OUT_MAX).expect("no fault").expect("there is some");
        let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
        let cluster = StageCluster::with_corpus(&setup, policy, 1, 5, corpus.clone());
        let outcome = cluster.halt_after(2).run();
        assert_eq!((outcome.digest, outcome.evaluations), (run.digest(), vec![(2, loss)]));
    }
}

/// Copies follow what all replicas add up to, and every stage reports the state that it has.
#[test]
fn copies_follow_the_gradient_of_all_replicas() {
    let model = tiny_model(Family::Llama);
    let corpus = corpus_for(batch(4), 0.05);
    for size in [(ScheduleKind::ZbH1, 3, 2), (ScheduleKind::Chimera, 2, 2)] {
        let plan = Plan::new(request(&model, batch(4), size, Window::One)).expect("it exists");
        let mut setup = replicas_setup(&model, plan);
        (setup.copies_wanted, setup.attest_every) = (true, 1);
        let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
        let cluster = StageCluster::with_corpus(&setup, policy, 1, 4, corpus.clone());
        let outcome = cluster.witnessed(&setup).run();
        let replicas = setup.plan.placement().replica_count() as usize;
        assert_eq!(outcome.witnessed, model_layers(&model).len() * replicas * STEPS as usize);
    }
}

/// A stage claims what it exchanges, which is 2(D-1)/D of a gradient in each direction, and fewer sums of its
/// own lanes.
#[test]
fn exchanged_sums_are_claimed() {
    let model = tiny_model(Family::Llama);
    let backend = CpuBackend::new(1).expect("one thread");
    let claim = |replicas: u32| {
        let size = (ScheduleKind::ZbH1, 1, replicas);
        let plan = Plan::new(request(&model, batch(8), size, Window::One)).expect("it exists");
        stage_memory(&backend, &model, OptimizerKind::AdamW, &plan, StageIndex(0))
    };
    let layers = model_layers(&model);
    let floats: usize = layers.iter().map(|layer| layer.len()).sum();
    let buffers: u64 = layers.iter().map(|layer| backend.buffer_bytes(layer.len())).sum();
    let alone = claim(1);
    for (replicas, levels) in [(2, 1), (4, 2), (8, 3)] {
        let found = claim(replicas);
        assert_eq!(found.state + Bytes(levels * buffers), alone.state, "lanes that wait");
        assert_eq!(floats % replicas as usize, 0, "halves are equal");
        let exchanged = Bytes::of_f32(4 * (replicas as usize - 1) * floats / replicas as usize);
        let passes = found.messages.0 - exchanged.0;
        assert!(passes > 0 && passes <= alone.messages.0, "beside boundary tensors");
    }
}

/// Replicas that cannot be had say what they would need.
#[test]
fn replicas_need_lanes_and_a_power_of_two() {
    let model = tiny_model(Family::Gpt2);
    let of = |lanes, size| Plan::new(request(&model, batch(lanes), size, Window::One));
    let refused = |lanes, size: (ScheduleKind, u32, u32)| match of(lanes, size) {
        Err(PlanError::Lanes(error)) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("there is a plan"),
    };
    let few = refused(2, (ScheduleKind::ZbH1, 1, 4));
    assert_eq!(few, "4 replicas of zb-h1 need 4 lanes or more, found 2");
    let directions = refused(4, (ScheduleKind::Gems, 1, 4));
    assert_eq!(directions, "4 replicas of gems need 8 lanes or more, found 4");
    let three = ReplicaCount::new(3);
    assert_eq!(three, Err(LaneError::ReplicaCount { found: 3 }));
    let size = zbelastic_schedule::PipelineSize::of(ScheduleKind::DualPipeV, 2, 2);
    assert!(check_size(ScheduleKind::DualPipeV, size).is_err(), "too few microbatches are left");
    assert!(of(8, (ScheduleKind::DualPipeV, 2, 8)).is_err());
}

/// Of unequal workers each place is as slow as its slowest, and layers are cut for that; orders are
/// solved for one pipeline, within what the exchange leaves of the limits.
#[test]
fn a_choice_of_several_pipelines_is_that_of_one_for_the_slowest() {
    let model = tiny_model(Family::Gpt2);
    let backend = CpuBackend::new(1).expect("one thread");
    let even = Pace::estimated(&model, BATCH.microbatch);
    let chosen = |speeds: Vec<f64>, replicas: u32, limits: &[Bytes]| {
        let pace = Pace { speeds, ..even.clone() };
        let request = ChooseRequest {
            model: &model,
            optimizer: OptimizerKind::AdamW,
            batch: batch(2),
            kinds: &[ScheduleKind::ZbH1, ScheduleKind::ZbAuto, ScheduleKind::ZbV],
            chunks_per_stage: None,
            slice_count: None,
            stage_count: 2,
            replicas: replica_count(replicas),
            window: Window::One,
            memory: MemoryPolicy::default(),
            beside: HeldBeside::default(),
            stage_bytes_max: limits,
            pace: &pace,
        };
        choose(&backend, request).expect("something fits")
    };
    let slow = chosen(vec![1.0, 1.0, 1.0, 0.5], 2, &[]);
    assert_eq!(slow.plan.placement().column_count(), 2);
    let alone = chosen(vec![1.0, 0.5], 1, &[]);
    let per_replica = slow.plan.placement().chunks_per_replica() as usize;
    if slow.plan.program.kind == alone.plan.program.kind {
        assert_eq!(slow.plan.chunks[..per_replica], alone.plan.chunks[..per_replica]);
    }
    let two = chosen(Vec::new(), 2, &[]).prediction.period;
    let one = chosen(Vec::new(), 1, &[]).prediction.period;
    assert!(two < 0.7 * one, "half of the microbatches each: {two} of {one}");
    let limit = slow.memory.iter().map(|memory| memory.total()).max().expect("stages");
    let limits = vec![limit; 4];
    let limited = chosen(vec![1.0, 1.0, 1.0, 0.5], 2, &limits);
    assert!(limited.memory.iter().all(|memory| memory.total() <= limit));
}

/// Of the moments each stage has those of the layers that it updates, which are as many replicas' as are required;
/// the two parts of a GPT-2 of 124M in shards are within 5 % of an even share.
#[test]
fn moments_are_claimed_where_layers_are_updated() {
    let model = tiny_model(Family::Gpt2);
    let backend = CpuBackend::new(1).expect("one thread");
    let whole = Plan::new(request(&model, batch(8), (ScheduleKind::ZbH1, 2, 4), Window::One));
    let whole = whole.expect("it exists");
    let layers = model_layers(&model);
    let moments = |layers: Range<u32>, specs: &[LayerSpec]| -> u64 {
        let of = |layer: u32| 2 * backend.buffer_bytes(specs[layer as usize].len());
        layers.map(of).sum()
    };
    for holders in [1, 2] {
        let sharded = whole.clone().with_shards(&model, holders);
        assert_eq!(sharded.placement().shards().count(), 4 / holders);
        let mut held = 0;
        for stage in (0..8).map(StageIndex) {
            let state =
                |plan| stage_memory(&backend, &model, OptimizerKind::AdamW, plan, stage).state;
            let (chunk, all) = whole.chunks_of(stage).next().expect("a chunk a stage");
            let own = moments(sharded.updated_layers(chunk), &layers);
            let saved = Bytes(moments(all.ids(), &layers) - own);
            assert_eq!(state(&sharded) + saved, state(&whole), "stage {stage}, {holders}");
            held += own;
        }
        assert_eq!(held, u64::from(holders) * moments(0..model.layer_count(), &layers));
    }
    let large = ModelConfig {
        blocks: 12,
        width: 768,
        heads: 12,
        kv_heads: 12,
        head_width: 64,
        mlp_width: 3072,
        vocabulary: 50257,
        positions: 1024,
        ..model
    };
    let plan = Plan::new(request(&large, batch(8), (ScheduleKind::ZbH1, 1, 2), Window::One));
    let plan = plan.expect("it exists").with_shards(&large, 1);
    let specs = model_layers(&large);
    let [one, other] = [0, 1].map(|chunk| moments(plan.updated_layers(ChunkIndex(chunk)), &specs));
    assert!(one.max(other) * 2 * 100 <= (one + other) * 105, "{one} and {other} bytes");
}
