//! Islands against their serial reference: each comes to its bits, whatever its plan, its verdicts
//! and the order in which messages and the weights of others arrive.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::CpuBackend;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::model::{Family, ModelConfig, frozen_tensors};
use zbelastic_trainer::outer::{OuterConfig, OuterSchedule, OuterState};
use zbelastic_trainer::plan::{BatchShape, LaneCount, Plan, PlanRequest, ReplicaCount};
use zbelastic_trainer::reference::IslandsReference;
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::{LayerId, Step};

use crate::common::{
    BATCH, RecordedExchange, StageCluster, corpus_for, plan, policy, setup, tiny_model,
};

const STEPS: u64 = 14;
const CLIP_NORM: Option<f64> = Some(0.5);

fn config(islands: u32, every: u64, fragments: u32, overlap: u64) -> OuterConfig {
    OuterConfig {
        islands,
        island: 0,
        every,
        fragments,
        overlap,
        local_share: 0.25,
        lr: 0.7,
        momentum: 0.9,
    }
}

fn island_setup(plan: Plan, model: &ModelConfig, config: OuterConfig) -> StageSetup {
    let outer = OuterSchedule::new(config, model, STEPS);
    let outer = Some(Arc::new(outer));
    StageSetup { clip_norm: CLIP_NORM, outer, ..setup(model.clone(), plan, STEPS) }
}

/// The digest of each island, and what it published and received.
fn reference(
    setup: &StageSetup,
    batch: BatchShape,
    skipped: Option<(u32, u64)>,
) -> Vec<(StateDigest, Arc<RecordedExchange>)> {
    let schedule = setup.outer.clone().expect("islands");
    let backend = || CpuBackend::new(1).expect("one thread");
    let corpus = corpus_for(batch, 0.05);
    let mut run = IslandsReference::new(setup, backend, corpus).expect("memory");
    let mut published = BTreeMap::new();
    let mut outer = BTreeMap::new();
    for version in (0..=STEPS).map(Step) {
        if let Some(step) = version.0.checked_sub(1) {
            let is_skipped = |island| skipped == Some((island, step + 1));
            run.step(Step(step), is_skipped);
        }
        for layer in (0..setup.model.layer_count()).map(LayerId) {
            if schedule.publishes(layer, version) {
                let weights = run.islands().iter().map(|island| island.trained_weights(layer));
                published.insert((layer, version), weights.collect::<Vec<_>>());
            }
            if let Some(round) = schedule.mixed_at(layer, version) {
                let state: &OuterState = run.outer_state(layer).expect("it is exchanged");
                let weights = schedule.config().outer_weights(layer, round, state);
                outer.insert((layer, version), weights);
            }
        }
    }
    let islands = run.digests().into_iter().zip(0..);
    let recorded = |(digest, island)| {
        let (published, outer) = (published.clone(), outer.clone());
        (digest, Arc::new(RecordedExchange { island, published, outer }))
    };
    islands.map(recorded).collect()
}

/// The setup of one of the islands.
fn of_island(setup: &StageSetup, island: u32) -> StageSetup {
    let schedule = setup.outer.as_ref().expect("islands").of_island(island);
    StageSetup { outer: Some(Arc::new(schedule)), ..setup.clone() }
}

#[test]
fn islands_under_every_plan_equal_the_reference() {
    let model = tiny_model(Family::Llama);
    let mut seed = 0;
    for config in [config(2, 4, 1, 1), config(3, 5, 3, 2), config(2, 6, 2, 5)] {
        let serial = plan(&model, ScheduleKind::GPipe, 1, Window::Zero);
        let expected = reference(&island_setup(serial, &model, config.clone()), BATCH, None);
        for kind in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1, ScheduleKind::ZbV] {
            for (stage_count, window) in [(1, Window::One), (2, Window::Zero), (3, Window::One)] {
                seed += 1;
                let plan = plan(&model, kind, stage_count, window);
                let all = island_setup(plan, &model, config.clone());
                let island = seed as u32 % config.islands;
                let (digest, exchange) = &expected[island as usize];
                let setup = of_island(&all, island);
                let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
                let cluster = StageCluster::new(&setup, policy, 1, seed);
                let outcome = cluster.among_islands(exchange.clone()).run();
                let case = format!("{config:?} {kind} {stage_count} stages, window {window}");
                assert_eq!(outcome.digest, *digest, "{case}");
                assert!(outcome.verdicts("clip") > 0, "{case}");
            }
        }
    }
}

/// A verdict is an island's own: one leaves a step out and the other does not. The outer step is mixed
/// in all the same.
#[test]
fn an_island_leaves_a_step_out_and_others_do_not() {
    let model = tiny_model(Family::Gpt2);
    // The update into which layers are mixed, and one beside it.
    for struck in [5, 7] {
        let config = config(2, 4, 1, 1);
        let serial = plan(&model, ScheduleKind::GPipe, 1, Window::Zero);
        let serial = island_setup(serial, &model, config.clone());
        let expected = reference(&serial, BATCH, Some((1, struck)));
        assert_ne!(expected[0].0, reference(&serial, BATCH, None)[0].0, "it shows in the other");
        for window in [Window::One, Window::Zero] {
            let plan = plan(&model, ScheduleKind::ZbH1, 2, window);
            let mut setup = of_island(&island_setup(plan, &model, config.clone()), 1);
            let text = format!("step={struck},tensor=layers.2.mlp.up,value=nan");
            setup.injections = vec![text.parse().expect("a legal injection")];
            let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
            let cluster = StageCluster::new(&setup, policy, 1, struck);
            let outcome = cluster.among_islands(expected[1].1.clone()).run();
            assert_eq!(outcome.digest, expected[1].0, "step {struck}, window {window}");
            assert_eq!(outcome.verdicts("skip"), 1);
        }
    }
}

/// Several pipelines within an island have its weights, and mix as one.
#[test]
fn replicas_within_an_island_equal_the_reference() {
    let model = tiny_model(Family::Gpt2);
    let lanes = LaneCount::new(4).expect("a power of two");
    let batch = BatchShape { microbatch_count: 8, lanes, ..BATCH };
    let of_replicas = |kind, stage_count, replicas| {
        let request = PlanRequest {
            model: &model,
            batch,
            kind,
            chunks_per_stage: None,
            slice_count: None,
            stage_count,
            replicas: ReplicaCount::new(replicas).expect("a power of two"),
            window: Window::One,
        };
        island_setup(Plan::new(request).expect("it exists"), &model, config(2, 5, 2, 2))
    };
    let expected = reference(&of_replicas(ScheduleKind::GPipe, 1, 1), batch, None);
    for (kind, stage_count, replicas) in
        [(ScheduleKind::ZbH1, 2, 2), (ScheduleKind::OneFOneB, 1, 4), (ScheduleKind::Chimera, 2, 2)]
    {
        for (island, (digest, exchange)) in (0..).zip(&expected) {
            let setup = of_island(&of_replicas(kind, stage_count, replicas), island);
            let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
            let corpus = corpus_for(batch, 0.05);
            let cluster = StageCluster::with_corpus(&setup, policy, 1, 9, corpus);
            let outcome = cluster.among_islands(exchange.clone()).run();
            assert_eq!(outcome.digest, *digest, "{kind}, {replicas} replicas, island {island}");
            assert!(outcome.twins > 0);
        }
    }
}

/// What is frozen is neither sent nor mixed, and both ends of a tied model have one matrix.
#[test]
fn tied_and_frozen_models_equal_the_reference() {
    let tied = ModelConfig { tied: true, ..tiny_model(Family::Gpt2) };
    let names = ["layers.0".to_owned(), "layers.*.attn.k".to_owned()];
    let whole = tiny_model(Family::Llama);
    let frozen = frozen_tensors(&whole, &names).expect("they are there");
    let frozen = whole.clone().freezing(frozen);
    for model in [tied, frozen] {
        let config = config(2, 5, 3, 2);
        let serial = plan(&model, ScheduleKind::GPipe, 1, Window::Zero);
        let expected = reference(&island_setup(serial, &model, config.clone()), BATCH, None);
        let plan = plan(&model, ScheduleKind::ZbH1, 3, Window::One);
        for (island, (digest, exchange)) in (0..).zip(&expected) {
            let setup = of_island(&island_setup(plan.clone(), &model, config.clone()), island);
            let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
            let cluster = StageCluster::new(&setup, policy, 1, 3);
            let outcome = cluster.among_islands(exchange.clone()).run();
            assert_eq!(outcome.digest, *digest, "tied: {}, island {island}", model.tied);
        }
    }
}

/// The last round ends with the same weights everywhere, and islands did train apart before.
#[test]
fn islands_end_with_the_same_weights_and_differ_before() {
    let model = tiny_model(Family::Gpt2);
    let serial = plan(&model, ScheduleKind::GPipe, 1, Window::Zero);
    let setup = island_setup(serial, &model, config(3, 4, 2, 2));
    let backend = || CpuBackend::new(1).expect("one thread");
    let corpus = corpus_for(BATCH, 0.05);
    let mut run = IslandsReference::new(&setup, backend, corpus).expect("memory");
    for step in 0..STEPS {
        run.step(Step(step), |_| false);
        let weights =
            |layer| run.islands().iter().map(move |it| it.trained_weights(LayerId(layer)));
        for layer in 0..model.layer_count() {
            let mut all = weights(layer);
            let first = all.next().expect("an island");
            let are_equal = all.all(|other| other == first);
            assert_eq!(are_equal, step + 1 == STEPS, "layer {layer} after step {}", step + 1);
        }
    }
}
