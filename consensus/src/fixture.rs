//! A small cluster for tests: a model of four layers with a tensor each, and few nodes.
//!
//! [`Log`] applies entries as they come and knows the usual ones; a test names only the unusual.

use std::sync::Arc;

use zbelastic_schedule::{
    Costs, LowerOptions, Program, ScheduleKind, SharedOrder, Window, generate, lower, on_table,
    side_by_side,
};
use zbelastic_types::{
    Bytes, ClusterId, Digest, Fingerprint, Generation, LayerId, LayerRange, NodeId, RunId,
    StageIndex, Step, TensorIndex,
};

use crate::access::{AccessRole, Credential};
use crate::checkpoint::LayerDigest;
use crate::codec;
use crate::contact::Contact;
use crate::duty::PlanSolution;
use crate::entry::{Entry, ReadyRecord, RewindReason};
use crate::job::{JobChange, JobSpec, WindowPolicy};
use crate::member::{Holder, LossReason, MemberChange, Resources, Role};
use crate::plan::{LayerSource, PlanReason, PlanRecord, Promise, copies_at};
use crate::state::{EntryRefusal, State, StateChange, copied_layers};
use crate::validation::{
    GuardPolicy, LayerFingerprint, NonfinitePolicy, Reason, Seal, TensorSum, Turn, Verdict,
};

pub(crate) const CLUSTER: ClusterId = ClusterId(7);
pub(crate) const LAYERS: u32 = 4;
/// Ticks of silence that the job of [`spec`] allows.
pub(crate) const LOST_AFTER_TICKS: u32 = 10;
/// Ticks that it waits for more workers.
pub(crate) const SETTLE_TICKS: u32 = 5;
pub(crate) const RESOURCES: Resources = Resources {
    memory: Bytes(1 << 30),
    speed_permille: 1000,
    class: crate::class::DeviceClass::Processors,
};

/// Twelve steps of two microbatches, a checkpoint every four of which two are kept, state attested
/// every three steps.
pub(crate) fn spec() -> JobSpec {
    let policy = GuardPolicy {
        clip_norm: Some(1.0),
        nonfinite: NonfinitePolicy::Skip,
        replays_max: 1,
        spike_deviations: None,
    };
    JobSpec {
        run: RunId(1),
        name: "a-run".to_owned(),
        from: None,
        config: Digest([9; 32]),
        document: b"a document".to_vec(),
        layer_tensors: vec![1; LAYERS as usize],
        layer_bytes: Vec::new(),
        microbatch_count: 2,
        step_count: 12,
        policy,
        window: WindowPolicy::Fixed(Window::One),
        copies: 1,
        checkpoint_every: 4,
        checkpoint_ticks: 0,
        checkpoints_kept: 2,
        attest_every: 3,
        device: crate::class::DeviceKind::Processors,
        stages_max: 4,
        workers_min: 1,
        lost_after_ticks: LOST_AFTER_TICKS,
        settle_ticks: SETTLE_TICKS,
    }
}

/// A lowered program for two microbatches.
pub(crate) fn program(stage_count: u32, window: Window) -> Program {
    let compute = generate(ScheduleKind::ZbH1, stage_count, 2).expect("the size is legal");
    lower(&compute, LowerOptions { window, early_head_weights: false })
}

/// One chunk a stage; the last also holds the remainder.
pub(crate) fn chunks(stage_count: u32) -> Vec<LayerRange> {
    let each = LAYERS / stage_count;
    let end = |stage| if stage + 1 == stage_count { LAYERS } else { (stage + 1) * each };
    (0..stage_count).map(|stage| LayerRange::new(stage * each, end(stage))).collect()
}

/// Makes a plan over two stages one of two replicas: each stage trains the layers that the other
/// speaks for.
pub(crate) fn crossed(plan: &mut PlanRecord) {
    let two = generate(ScheduleKind::Chimera, 2, 2).expect("the size is legal");
    let options = LowerOptions { window: Window::One, early_head_weights: false };
    plan.program = lower(&two, options);
    plan.chunks = [LayerRange::new(0, 1), LayerRange::new(1, LAYERS)].repeat(2);
}

/// Makes a plan over four stages one of two pipelines of two stages each.
pub(crate) fn side_by_side_twice(plan: &mut PlanRecord) {
    let one = generate(ScheduleKind::OneFOneB, 2, 1).expect("the size is legal");
    let options = LowerOptions { window: Window::One, early_head_weights: false };
    plan.program = lower(&side_by_side(&[one.clone(), one]).expect("alike"), options);
    plan.chunks = [LayerRange::new(0, 1), LayerRange::new(1, LAYERS)].repeat(2);
    plan.copies = vec![Vec::new(); 4];
}

/// Makes a plan over two stages one of two replicas of a stage, which share the optimizer: layers are counted
/// by shard.
pub(crate) fn one_stage_sharded(plan: &mut PlanRecord, shards: &[u32]) {
    let one = generate(ScheduleKind::OneFOneB, 1, 1).expect("the size is legal");
    let mut both = side_by_side(&[one.clone(), one]).expect("alike");
    both.placement = both.placement.sharded(vec![shards.to_vec()]).expect("as many as columns");
    let options = LowerOptions { window: Window::One, early_head_weights: false };
    plan.program = lower(&both, options);
    plan.chunks = [LayerRange::new(0, LAYERS)].repeat(2);
    plan.copies = vec![Vec::new(); 2];
}

/// Makes a plan over four stages one of four replicas of a stage, of which two each update the first layer and
/// the others.
pub(crate) fn four_in_two_shards(plan: &mut PlanRecord) {
    let one = generate(ScheduleKind::OneFOneB, 1, 1).expect("the size is legal");
    let mut four = side_by_side(&vec![one; 4]).expect("alike");
    four.placement = four.placement.sharded(vec![vec![1, LAYERS - 1]]).expect("four columns");
    let options = LowerOptions { window: Window::One, early_head_weights: false };
    plan.program = lower(&four, options);
    plan.chunks = vec![LayerRange::new(0, LAYERS); 4];
    plan.copies = vec![Vec::new(); 4];
}

/// Makes a plan of [`side_by_side_twice`] or [`four_in_two_shards`] one without the third stage: the first one is
/// left alone with its layers, and stands in both pipelines.
pub(crate) fn without_the_third(plan: &mut PlanRecord) {
    let (table, _) =
        plan.program.placement.table().rerouted(&[StageIndex(2)]).expect("one is left");
    let costs = Costs::even(&table, 1.0, 1.0, 1.0, 0.0);
    let shared = on_table(&plan.program, &table, &costs, SharedOrder::ByTime);
    let options = LowerOptions { window: Window::One, early_head_weights: false };
    plan.program = lower(&shared.expect("it runs to its end"), options);
    plan.copies = vec![Vec::new(); table.stage_count() as usize];
}

/// The answer of a solver for so many nodes.
pub(crate) fn solution(stage_count: u32, window: Window) -> PlanSolution {
    let program = program(stage_count, window);
    let chunks = chunks(stage_count);
    let stage_nodes = (0..stage_count as usize).collect();
    PlanSolution { program, chunks, stage_nodes, op_ticks_max: 50 }
}

/// The state of a layer at a version, as a digest.
pub(crate) fn digest(layer: u32, version: u64) -> Digest {
    let mut bytes = [layer as u8; 32];
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    Digest(bytes)
}

pub(crate) fn digests(layers: impl IntoIterator<Item = LayerId>, version: u64) -> Vec<LayerDigest> {
    layers.into_iter().map(|layer| (layer, digest(layer.0, version))).collect()
}

/// The state of layers at a version, as it is attested.
pub(crate) fn fingerprints(
    layers: impl IntoIterator<Item = LayerId>,
    version: u64,
) -> Vec<LayerFingerprint> {
    let fingerprint = |layer: LayerId| Fingerprint([version, u64::from(layer.0)]);
    layers.into_iter().map(|layer| (layer, fingerprint(layer))).collect()
}

pub(crate) fn all_layers() -> impl Iterator<Item = LayerId> {
    (0..LAYERS).map(LayerId)
}

/// One tensor a layer: the sum of the tensor of `layer`.
pub(crate) fn sum(layer: LayerId, square_sum: f64) -> TensorSum {
    let nonfinite = u64::from(!square_sum.is_finite());
    TensorSum { tensor: TensorIndex(layer.0), square_sum, nonfinite }
}

pub(crate) fn admit(node: u64, boot: u64) -> MemberChange {
    let node = NodeId(node);
    let role = Role::Worker;
    let resources = RESOURCES;
    MemberChange::Admit { node, boot, role, resources, contact: contact(node.0) }
}

/// Where a node is reached.
pub(crate) fn contact(node: u64) -> Contact {
    let addresses = vec![format!("10.0.0.{node}:7000")];
    Contact { addresses, ..Contact::of_node(NodeId(node)) }
}

/// The first controllers of a cluster.
pub(crate) fn controllers(nodes: &[NodeId]) -> impl Iterator<Item = (NodeId, Contact)> {
    nodes.iter().map(|node| (*node, contact(node.0)))
}

/// The credential with which a node is admitted.
pub(crate) fn credential(node: u64, role: AccessRole) -> (NodeId, Credential) {
    let credential = Credential {
        role,
        name: format!("node-{node}"),
        key: Digest([node as u8; 32]),
        token: None,
        issued_at_s: 0,
        expires_at_s: 86_400,
        is_ephemeral: false,
        is_revoked: false,
    };
    (NodeId(node), credential)
}

pub(crate) fn lost(holder: Holder) -> MemberChange {
    MemberChange::Lost { holder, reason: LossReason::Closed }
}

/// Applies entries in order.
#[derive(Clone, Debug)]
pub(crate) struct FixtureLog {
    pub state: State,
}

impl FixtureLog {
    /// A cluster without members and without a job.
    pub fn empty() -> Self {
        Self { state: State::new(CLUSTER) }
    }

    /// A cluster with a job and these workers.
    pub fn with_job(spec: JobSpec, nodes: &[u64]) -> Self {
        let mut log = Self::empty();
        log.apply(Entry::Job(JobChange::Start(Arc::new(spec))));
        for node in nodes {
            log.join(*node);
        }
        log
    }

    /// A cluster whose workers run the first plan, in this order.
    pub fn running(spec: JobSpec, nodes: &[u64]) -> Self {
        let mut log = Self::with_job(spec, nodes);
        log.run_plan(nodes);
        log
    }

    /// Issues credentials to these nodes as workers.
    pub fn vouch(&mut self, nodes: impl IntoIterator<Item = u64>) {
        let state = std::mem::replace(&mut self.state, State::new(CLUSTER));
        let workers = nodes.into_iter().map(|node| credential(node, AccessRole::Worker));
        self.state = state.with_credentials(workers);
    }

    /// Every node that is to be admitted has a credential: it came by a token before.
    fn vouch_for(&mut self, entry: &Entry) {
        let Entry::Members(changes) = entry else { return };
        let known = self.state.access().credentials();
        let is_new = |change: &MemberChange| match change {
            MemberChange::Admit { node, .. } => (!known.contains_key(node)).then_some(node.0),
            MemberChange::Lost { .. } | MemberChange::Drain { .. } | MemberChange::Moved { .. } => {
                None
            }
        };
        let new: Vec<u64> = changes.iter().filter_map(is_new).collect();
        if !new.is_empty() {
            self.vouch(new);
        }
    }

    pub fn try_apply(&mut self, entry: Entry) -> Result<StateChange, EntryRefusal> {
        self.vouch_for(&entry);
        self.state.apply(self.state.applied() + 1, entry)
    }

    /// Applies an entry that fits.
    pub fn apply(&mut self, entry: Entry) -> StateChange {
        let name = entry.name();
        self.try_apply(entry).unwrap_or_else(|refusal| panic!("{name} refused: {refusal}"))
    }

    /// Applies an entry that does not fit: nothing changes but the index.
    pub fn refuse(&mut self, entry: Entry, expected: impl Into<EntryRefusal>) {
        self.vouch_for(&entry);
        let text = format!("{entry:?}");
        let mut before = self.state.clone();
        assert_eq!(self.try_apply(entry), Err(expected.into()), "{text}");
        before.pass(self.state.applied());
        assert_eq!(self.state, before, "{text}");
        assert_eq!(codec::encode(&self.state), codec::encode(&before), "{text}");
    }

    pub fn join(&mut self, node: u64) -> Holder {
        let boot = self.state.members().get(&NodeId(node)).map_or(1, |member| member.boot + 1);
        self.apply(Entry::Members(vec![admit(node, boot)]));
        self.holder(node)
    }

    pub fn lose(&mut self, node: u64) {
        let holder = self.holder(node);
        self.apply(Entry::Members(vec![lost(holder)]));
    }

    pub fn holder(&self, node: u64) -> Holder {
        self.state.holder_of(NodeId(node)).expect("the node is a member")
    }

    /// A plan that fits: the next number, from the open step, memory where there is any.
    pub fn plan(&self, nodes: &[u64]) -> PlanRecord {
        let job = self.state.job().expect("there is a job");
        let stage_count = nodes.len() as u32;
        let open = self.state.open_turn().step;
        let wanted = job.spec.copies;
        let by = |stage: u32| {
            let places = 1..=copies_at(wanted, stage_count);
            places.map(|place| StageIndex((stage + place) % stage_count)).collect()
        };
        let window = match job.spec.window {
            WindowPolicy::Fixed(window) => window,
            WindowPolicy::Auto => Window::One,
        };
        let source = match open {
            Step(0) => LayerSource::Initial,
            _ => LayerSource::Nodes(nodes.iter().map(|node| NodeId(*node)).collect()),
        };
        PlanRecord {
            generation: self.state.training().plans().generation_next(),
            stages: nodes.iter().map(|node| self.holder(*node)).collect(),
            copies: (0..stage_count).map(by).collect(),
            promise: Promise::of(wanted, stage_count),
            chunks: chunks(stage_count),
            program: program(stage_count, window),
            from_step: open,
            sources: vec![source; LAYERS as usize],
            expected: vec![None; LAYERS as usize],
            op_ticks_max: 50,
            reason: PlanReason::First,
        }
    }

    pub fn adopt(&mut self, plan: PlanRecord) -> StateChange {
        self.apply(Entry::Adopt(Box::new(plan)))
    }

    /// The holder of `stage` is ready, with the digests of the open version.
    pub fn ready(&self, stage: usize) -> ReadyRecord {
        let plan = &self.state.plan().expect("there is a plan").record;
        let stage = StageIndex(stage as u32);
        let version = plan.from_step.0;
        let copied = copied_layers(plan, stage);
        ReadyRecord {
            generation: plan.generation,
            holder: plan.stages[stage.index()],
            layers: digests(plan.layers_of(stage), version),
            copies: digests(copied, version),
        }
    }

    /// Every holder in the plan is ready, and it runs.
    pub fn load(&mut self) {
        let stage_count = self.state.plan().expect("there is a plan").record.stages.len();
        (0..stage_count).for_each(|stage| drop(self.apply(Entry::Ready(self.ready(stage)))));
        self.resume();
    }

    pub fn resume(&mut self) -> StateChange {
        self.apply(Entry::Resume { generation: self.state.generation() })
    }

    pub fn run_plan(&mut self, nodes: &[u64]) {
        self.adopt(self.plan(nodes));
        self.load();
    }

    /// The seal of the open turn. Its bits name the step.
    pub fn seal(&self, verdict: Verdict) -> Seal {
        let turn = self.state.open_turn();
        let updates = self.state.ledger().updates();
        seal_at(turn, verdict, updates + u64::from(verdict.coefficient().is_some()))
    }

    /// Keeps so many steps, one after the other.
    pub fn keep(&mut self, count: u64) {
        for _ in 0..count {
            self.apply(Entry::Seal(self.seal(Verdict::Keep)));
        }
    }

    /// That layers of `version` are durable, sealed under the plan that opened it, or this one.
    pub fn durable(&self, version: u64, holder: Holder, layers: Vec<LayerDigest>) -> Entry {
        let version = Step(version);
        let pending = self.state.pending().iter().find(|pending| pending.version == version);
        let generation = pending.map_or(self.state.generation(), |found| found.generation());
        Entry::Durable { version, generation, holder, layers }
    }

    /// Makes all layers of `version` durable.
    pub fn save(&mut self, version: u64, by: u64) {
        let holder = self.holder(by);
        let layers = digests(all_layers(), version);
        let entry = self.durable(version, holder, layers);
        self.apply(entry);
    }

    /// Makes a checkpoint of `version`.
    pub fn checkpoint(&mut self, version: u64, by: u64) -> StateChange {
        self.save(version, by);
        self.apply(Entry::Checkpoint { version: Step(version) })
    }

    pub fn rewind(&self, to: u64) -> Entry {
        let reason = RewindReason::LayerLost { layer: LayerId(0) };
        Entry::Rewind { generation: self.state.generation(), to: Step(to), reason }
    }

    pub fn checkpoint_versions(&self) -> Vec<u64> {
        self.state.checkpoints().iter().map(|found| found.version.0).collect()
    }

    pub fn pending_versions(&self) -> Vec<u64> {
        self.state.pending().iter().map(|found| found.version.0).collect()
    }
}

pub(crate) fn seal_at(turn: Turn, verdict: Verdict, updates_after: u64) -> Seal {
    Seal {
        turn,
        verdict,
        reason: Reason::Sound,
        square_sum_bits: (0.25 + turn.step.0 as f64).to_bits(),
        loss_sum_bits: 2.0f64.to_bits(),
        updates_after,
        cursor_after: turn.after(verdict).step,
    }
}

/// A turn of the first plan.
pub(crate) fn turn(step: u64, attempt: u32) -> Turn {
    let attempt = zbelastic_types::Attempt(attempt);
    Turn { generation: Generation(1), step: Step(step), attempt }
}
