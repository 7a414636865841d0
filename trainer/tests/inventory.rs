//! What a worker says it holds, while the layers of a plan are on their way.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use zbelastic_consensus::job::{JobSpec, WindowPolicy};
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::plan::{LayerSource, PlanReason, PlanRecord, Promise};
use zbelastic_consensus::seat::{LoadOrder, News, Order};
use zbelastic_consensus::validation::{NonfinitePolicy, Turn};
use zbelastic_kernels::CpuBackend;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::elastic::{BackendModel, ComputeModel};
use zbelastic_trainer::host::{Host, HostInput, HostOutput, HostSetup};
use zbelastic_trainer::model::{Family, model_layers};
use zbelastic_types::{
    Attempt, Digest, Generation, Incarnation, LayerId, NodeId, StageIndex, Step,
};

const STAGES: u32 = 3;

/// The plan of this number over these workers, each stage copied by the next.
fn plan(generation: u64, nodes: [u64; STAGES as usize], source: LayerSource) -> PlanRecord {
    let model = common::tiny_model(Family::Llama);
    let plan = common::plan(&model, ScheduleKind::ZbH1, STAGES, Window::One);
    let holder = |node: u64| Holder { node: NodeId(node), incarnation: Incarnation(node) };
    PlanRecord {
        generation: Generation(generation),
        stages: nodes.map(holder).to_vec(),
        copies: (0..STAGES).map(|stage| Some(StageIndex((stage + 1) % STAGES))).collect(),
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

fn load(plan: &PlanRecord, node: u64) -> HostInput {
    let layers = plan.sources.len();
    let spec = JobSpec {
        config: Digest([0; 32]),
        layer_tensors: vec![1; layers],
        microbatch_count: common::BATCH.microbatch_count,
        step_count: 4,
        policy: common::policy(None, NonfinitePolicy::Skip),
        window: WindowPolicy::Fixed(Window::One),
        copies: true,
        checkpoint_every: 0,
        checkpoints_kept: 1,
        attest_every: 0,
        stages_max: STAGES,
    };
    let stage = plan.stages.iter().position(|holder| holder.node == NodeId(node));
    HostInput::Order(Order::Load(Box::new(LoadOrder {
        plan: Arc::new(plan.clone()),
        stage: StageIndex(stage.expect("it has a stage") as u32),
        spec: Arc::new(spec),
        turn: Turn { generation: plan.generation, attempt: Attempt(0), step: Step(0) },
        updates: 0,
        is_pending: false,
    })))
}

fn inventory<M: ComputeModel>(host: &mut Host<M, Arc<Corpus>>) -> BTreeSet<LayerId> {
    host.handle(HostInput::Order(Order::TakeInventory { index: 1 })).expect("an order");
    let told = std::iter::from_fn(|| host.poll_output()).find_map(|output| {
        let HostOutput::News(News::Inventory { layers, .. }) = output else { return None };
        Some(layers)
    });
    told.expect("it answers").into_iter().map(|held| held.layer).collect()
}

/// Worker 3 held the last stage and the copy of the one before it, and moves to the first stage.
/// Nobody else may have that copy any more; a plan that is made now must know of it.
#[test]
fn a_worker_that_loads_tells_of_layers_that_it_will_not_need() {
    let model = common::tiny_model(Family::Llama);
    let setup = common::plan(&model, ScheduleKind::ZbH1, 1, Window::One);
    let stage = common::setup(model.clone(), setup, 4);
    let (optimizer, weights) = (stage.optimizer.clone(), stage.weights.clone());
    let device = || CpuBackend::new(1).expect("one thread");
    let compute = BackendModel { model, optimizer, step_count: 4, weights, device };
    let mut host = Host::new(HostSetup { stage }, compute, common::corpus());

    let before = plan(1, [1, 2, 3], LayerSource::Initial);
    host.handle(load(&before, 3)).expect("an order");
    host.handle(HostInput::Order(Order::Run { generation: Generation(1) })).expect("an order");
    let held = inventory(&mut host);
    let copied: BTreeSet<LayerId> = before.layers_of(StageIndex(1)).collect();
    assert!(held.is_superset(&copied));

    let all = LayerSource::Nodes(vec![NodeId(1), NodeId(2), NodeId(3)]);
    host.handle(HostInput::Order(Order::Stop)).expect("an order");
    host.handle(load(&plan(2, [3, 2, 1], all), 3)).expect("an order");
    assert_eq!(inventory(&mut host), held);
}
