//! Plans of a life: the product's choice of nodes and of schedules, with each node's memory as its
//! stage's limit.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::class::DeviceClass;
use zbelastic_consensus::member::{Holder, Resources, Role};
use zbelastic_consensus::plan::{PlanReason, PlanRecord, Promise, PromiseOff};
use zbelastic_kernels::{DeviceSizes, Precision};
use zbelastic_planner::{NodeResources, first_plan, memory_limits};
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::model::{
    Family, FrozenTensors, LlamaFeatures, MicrobatchShape, ModelConfig,
};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::plan::{
    BatchShape, ChooseRequest, HeldBeside, LaneCount, MemoryPolicy, Pace, Plan, ReplicaCount,
    SliceBalance, choose,
};
use zbelastic_types::{Bytes, Generation, Incarnation, NodeId, Step};

use super::check::HousekeepingMarker;
use super::surroundings::HousekeepingSurroundings;
use super::world::MemberMessage;

/// What is tried: whatever takes least memory is among it.
const KINDS: [ScheduleKind; 2] = [ScheduleKind::OneFOneB, ScheduleKind::ZbH1];

/// A plan that was found, with what each of its stages takes.
type FoundPlan = Result<(Plan, Vec<Bytes>), String>;

/// The plan in force, and those found before.
pub struct PlanHistory {
    model: ModelConfig,
    solved: BTreeMap<Vec<Bytes>, FoundPlan>,
    current: Option<Arc<PlanRecord>>,
    nodes: Vec<NodeResources>,
}

impl PlanHistory {
    /// For a model of so many blocks.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        let model = ModelConfig {
            family: Family::Gpt2,
            blocks,
            width: 8,
            heads: 2,
            kv_heads: 2,
            head_width: 4,
            mlp_width: 16,
            features: LlamaFeatures::NONE,
            vocabulary: 128,
            sliding_window: None,
            positions: 8,
            norm_epsilon: 1e-5,
            rope_theta: 10_000.0,
            tied: false,
            frozen: FrozenTensors::NONE,
            without_moments: FrozenTensors::NONE,
            lora: None,
        };
        Self { model, solved: BTreeMap::new(), current: None, nodes: Vec::new() }
    }

    /// The plan in force.
    #[must_use]
    pub const fn current(&self) -> Option<&Arc<PlanRecord>> {
        self.current.as_ref()
    }

    /// Makes a plan for these nodes. Yields what each of its stages takes, and the node that stands
    /// there.
    ///
    /// # Errors
    /// If there is none.
    pub fn solve(&mut self, nodes: &[NodeResources]) -> Result<Vec<(NodeId, Bytes)>, String> {
        let most = (nodes.len() as u32).min(self.model.blocks);
        let tried = (1..=most).rev().map(|count| (count, count));
        let model = &self.model;
        let solutions = &mut self.solved;
        let solved = first_plan(nodes, tried, |count, indices| {
            let resources: Vec<NodeResources> = indices.iter().map(|at| nodes[*at]).collect();
            let limits = memory_limits(None, &resources);
            solutions
                .entry(limits)
                .or_insert_with_key(|limits| search(model, count, limits))
                .clone()
        });
        let ((plan, taken), indices) = solved.inspect_err(|_| self.current = None)?;
        let at: Vec<NodeId> = indices.into_iter().map(|index| nodes[index].0).collect();
        let generation = self.current.as_ref().map_or(Generation(1), |plan| plan.generation.next());
        self.current = Some(Arc::new(record(plan, generation, &at)));
        Ok(at.into_iter().zip(taken).collect())
    }
}

fn search(model: &ModelConfig, stage_count: u32, limits: &[Bytes]) -> FoundPlan {
    let shape = MicrobatchShape { sequences: 1, sequence_len: 8 };
    let batch = BatchShape {
        microbatch: shape,
        microbatch_count: 2,
        cut_by: SliceBalance::Tokens,
        lanes: LaneCount::ONE,
    };
    let request = ChooseRequest {
        model,
        optimizer: OptimizerKind::AdamW,
        batch,
        kinds: &KINDS,
        chunks_per_stage: None,
        slice_count: None,
        stage_count,
        replicas: ReplicaCount::ONE,
        window: Window::One,
        memory: MemoryPolicy::default(),
        beside: HeldBeside::default(),
        stage_bytes_max: limits,
        pace: &Pace::estimated(model, shape),
    };
    let choice = choose(&DeviceSizes::Processors(Precision::F32), request).map_err(|refusals| {
        let reasons = refusals.iter().map(|(kind, refusal)| format!("{kind}: {refusal}"));
        reasons.collect::<Vec<_>>().join("; ")
    })?;
    Ok((choice.plan, choice.memory.iter().map(|stage| stage.total()).collect()))
}

fn record(plan: Plan, generation: Generation, at: &[NodeId]) -> PlanRecord {
    let holder = |node: &NodeId| Holder { node: *node, incarnation: Incarnation(1) };
    PlanRecord {
        generation,
        stages: at.iter().map(holder).collect(),
        copies: vec![Vec::new(); at.len()],
        promise: Promise::Off(PromiseOff::Configured),
        chunks: plan.chunks,
        program: plan.program,
        from_step: Step(0),
        sources: Vec::new(),
        expected: Vec::new(),
        op_ticks_max: 1,
        reason: PlanReason::First,
    }
}

impl HousekeepingSurroundings<'_> {
    /// A plan for the workers that are there, if others were there before. No member knows which
    /// one is hostile, but it is not given a stage here: what a stage may do to a run is looked at
    /// elsewhere.
    pub(super) fn replan(&mut self) {
        let members = self.cluster.agreed.members();
        let worker = |node: &NodeId| {
            let member = &self.cluster.members[node];
            let is_there = member.is_honest_and_up() && member.role == Role::Worker;
            let memory = member.memory;
            let class = DeviceClass::Processors;
            is_there.then_some((*node, Resources { memory, speed_permille: 1000, class }))
        };
        let nodes: Vec<NodeResources> = members.iter().filter_map(worker).collect();
        if nodes == self.cluster.plans.nodes {
            return self.report_held_out_loss();
        }
        self.cluster.plans.nodes.clone_from(&nodes);
        let solved = self.cluster.plans.solve(&nodes);
        match &solved {
            Ok(stages) if stages.len() < nodes.len() => {
                self.check.markers.note(HousekeepingMarker::NodeLeftOut)
            }
            Ok(_) | Err(_) => {}
        }
        self.line(|| format!("plan for {} nodes: {solved:?}", nodes.len()));
        self.check.check_plan(&self.cluster, &nodes, solved);
    }

    /// The worker with the head reports the loss of held-out text.
    fn report_held_out_loss(&mut self) {
        let Some(plan) = self.cluster.plans.current().cloned() else { return };
        let head = plan.stages.iter().map(|at| at.node).find(|node| plan.has_head(*node));
        let head = head.filter(|node| self.cluster.members[node].role == Role::Worker);
        if let (Some(head), Some(leader)) = (head, self.cluster.leader()) {
            self.send(head, leader, MemberMessage::HeldOut);
        }
    }
}
