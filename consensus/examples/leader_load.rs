//! What a leader does for each step of a cluster of so many workers: processor time, and bytes that
//! it sends. Workers are what they send: a report of each stage, the copies' updates, and
//! heartbeats. Each message is encoded as the shell would, and each write is durable at once. There
//! is one voter, so what the log sends to the others is left out: it does not depend on the
//! workers.
//!
//! ```text
//! cargo run --release -p zbelastic-consensus --example leader_load [steps]
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "a measurement reads the clock; the code it measures does not"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use zbelastic_consensus::access::{AccessRole, Credential};
use zbelastic_consensus::class::{DeviceClass, DeviceKind};
use zbelastic_consensus::codec::Format;
use zbelastic_consensus::contact::Contact;
use zbelastic_consensus::core::{Core, CoreSetup, CoreStart, Input, OperatorCommand, Output};
use zbelastic_consensus::duty::{DutyTiming, PlanSolution, SolveRequest};
use zbelastic_consensus::entry::ReadyRecord;
use zbelastic_consensus::job::{JobChange, JobSpec, WindowPolicy};
use zbelastic_consensus::member::{Resources, Role};
use zbelastic_consensus::message::{Envelope, HeldUpdate, Message, WorkerActivity};
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::raft::RaftSetup;
use zbelastic_consensus::state::{State, copied_layers};
use zbelastic_consensus::validation::{GradientReport, GuardPolicy, NonfinitePolicy, TensorSum};
use zbelastic_schedule::{LowerOptions, ScheduleKind, Window, generate, lower, side_by_side};
use zbelastic_types::{
    Bytes, ClusterId, Digest, LayerId, LayerRange, NodeId, StageIndex, TensorIndex,
};

const CLUSTER: ClusterId = ClusterId(7);
const VOTER: NodeId = NodeId(1);
/// Layers of each stage, and tensors of each: half blocks of a transformer.
const LAYERS: u32 = 4;
const TENSORS: u32 = 6;
/// Heartbeats of each worker in a step: one in 60 ms, steps of 240 ms.
const BEATS: u32 = 4;
/// Ticks of a step.
const TICKS: u32 = 24;

/// The core, and what it did so far.
struct LeaderLoad {
    core: Core,
    busy: Duration,
    sent: u64,
    bytes: u64,
    /// Plans that it requested, and workers whose inventory it requested, with the index of the
    /// request.
    solves: Vec<SolveRequest>,
    inventory_requests: Vec<(NodeId, u64)>,
}

impl LeaderLoad {
    /// A cluster of one controller that lets so many workers in.
    fn new(nodes: &[NodeId]) -> Self {
        let mut raft = RaftSetup::new(VOTER, 1, 9);
        raft.compact_after = 1_000_000;
        let timing = DutyTiming {
            lost_after_ticks: 1_000_000,
            progress_ticks: 1_000_000,
            inventory_ticks: 100,
        };
        let setup = CoreSetup {
            cluster: CLUSTER,
            contact: Contact::of_node(VOTER),
            raft,
            timing,
            newest_format: Format::NEWEST,
        };
        let first = [(VOTER, Contact::of_node(VOTER))];
        let credentials = nodes.iter().map(|node| (*node, credential(*node)));
        let state = State::new(CLUSTER).with_controllers(first).with_credentials(credentials);
        let start = CoreStart::Create { voters: vec![VOTER], state: Box::new(state) };
        let core = Core::new(setup, start).expect("the setup is usual");
        Self {
            core,
            busy: Duration::ZERO,
            sent: 0,
            bytes: 0,
            solves: Vec::new(),
            inventory_requests: Vec::new(),
        }
    }

    fn handle(&mut self, input: Input) {
        let start = Instant::now();
        self.core.handle(input).expect("it belongs");
        while let Some(output) = self.core.poll_output() {
            match output {
                Output::Send { to, message } => {
                    self.sent += 1;
                    self.bytes += message.encode().len() as u64;
                    if let Message::Briefing(briefing) = message.message
                        && briefing.requests_inventory
                    {
                        self.inventory_requests.push((to, briefing.index));
                    }
                }
                Output::Persist { token, .. } => self.core.on_persisted(token),
                Output::Solve(request) => self.solves.push(request),
                Output::Trim { .. } | Output::Event(_) => {}
                Output::Fatal(_) => panic!("nothing went wrong here"),
            }
        }
        self.busy += start.elapsed();
    }

    /// Workers come, are given a plan, and run it. What that takes is left out of the steps.
    fn begin(&mut self, nodes: &[NodeId], spec: JobSpec, replicas: u32) -> Arc<PlanRecord> {
        while self.core.duties().is_none() {
            self.handle(Input::Tick);
        }
        let workers = nodes.len() as u32;
        self.handle(Input::Command(OperatorCommand::Job(JobChange::Start(Arc::new(spec)))));
        nodes.iter().for_each(|node| self.send(*node, join(*node)));
        while self.core.state().plan().is_none() {
            self.handle(Input::Tick);
            for request in std::mem::take(&mut self.solves) {
                let solution = Box::new(Ok(solution(workers, replicas)));
                self.handle(Input::Solved { number: request.number, solution });
            }
            for (node, index) in std::mem::take(&mut self.inventory_requests) {
                let holder = self.core.state().holder_of(node).expect("it came");
                self.send(node, Message::Inventory { holder, index, layers: Vec::new() });
            }
        }
        let plan = Arc::clone(&self.core.state().plan().expect("seen above").record);
        for stage in plan.stage_indices() {
            let ready = ready(&plan, stage);
            self.send(ready.holder.node, Message::Ready(ready));
        }
        assert!(self.core.state().is_running(), "everybody is ready");
        plan
    }

    fn send(&mut self, from: NodeId, message: Message) {
        let message = Box::new(Envelope { cluster: CLUSTER, message });
        self.handle(Input::Message { from, message });
    }

    fn beat(&mut self, plan: &PlanRecord) {
        for holder in &plan.stages {
            let known = self.core.state().applied();
            let contacts = self.core.state().membership().contacts_index();
            let holder = *holder;
            let generation = plan.generation;
            let pulse = WorkerActivity::default();
            let beat = Message::Beat { holder, known, generation, contacts, pulse };
            self.send(holder.node, beat);
        }
    }

    fn step(&mut self, plan: &PlanRecord) {
        let turn = self.core.state().open_turn();
        let spec = self.core.state().job();
        let spec = Arc::clone(&spec.expect("there is a job").spec);
        (0..TICKS).for_each(|_| self.handle(Input::Tick));
        (0..BEATS).for_each(|_| self.beat(plan));
        for stage in plan.stage_indices() {
            let sums = sums(&spec, plan, stage);
            let is_head = stage.0 + 1 == plan.program.placement.stages_per_column();
            let loss_sum = is_head.then_some(2.0);
            let state = Vec::new();
            let report = GradientReport { turn, stage, sums: sums.clone(), loss_sum };
            let holder = plan.stages[stage.index()];
            self.send(holder.node, Message::Report { holder, report, state });
            for holder in plan.copy_holders(stage).collect::<Vec<_>>() {
                let update = HeldUpdate { turn, of: stage, sums: sums.clone(), state: Vec::new() };
                self.send(holder.node, Message::Held { holder, update });
            }
        }
        assert!(self.core.state().open_turn() > turn, "the step is sealed");
    }
}

/// Stages of the first pipeline report sums; others have the same layers.
fn sums(spec: &JobSpec, plan: &PlanRecord, stage: StageIndex) -> Vec<TensorSum> {
    if plan.program.placement.table().place_of(stage) != stage {
        return Vec::new();
    }
    let layers = plan.layers_of(stage).collect();
    let tensors = spec.tensors_of(&layers).into_iter().flatten();
    let sum = |tensor| TensorSum { tensor: TensorIndex(tensor), square_sum: 0.01, nonfinite: 0 };
    tensors.map(sum).collect()
}

fn join(node: NodeId) -> Message {
    let resources =
        Resources { memory: Bytes(1 << 30), speed_permille: 1000, class: DeviceClass::Processors };
    let addresses = vec![format!("10.0.{}.{}:7000", node.0 / 256, node.0 % 256)];
    let contact = Contact { addresses, ..Contact::of_node(node) };
    Message::Join { boot: 1, role: Role::Worker, resources, contact }
}

fn ready(plan: &PlanRecord, stage: StageIndex) -> ReadyRecord {
    let digest = |layer: LayerId| (layer, Digest([layer.0 as u8; 32]));
    let mut layers: Vec<_> = plan.layers_of(stage).map(digest).collect();
    layers.sort_unstable_by_key(|(layer, _)| *layer);
    let copies = copied_layers(plan, stage).into_iter().map(digest).collect();
    let generation = plan.generation;
    let holder = plan.stages[stage.index()];
    ReadyRecord { generation, holder, layers, copies }
}

fn credential(node: NodeId) -> Credential {
    Credential {
        role: AccessRole::Worker,
        name: Contact::of_node(node).name,
        key: Digest([0; 32]),
        token: None,
        issued_at_s: 0,
        expires_at_s: u64::MAX,
        is_ephemeral: false,
        is_revoked: false,
    }
}

fn spec(workers: u32, replicas: u32, step_count: u64) -> JobSpec {
    let policy = GuardPolicy {
        clip_norm: Some(1.0),
        nonfinite: NonfinitePolicy::Skip,
        replays_max: 0,
        spike_deviations: None,
    };
    JobSpec {
        run: zbelastic_types::RunId(1),
        name: "a-run".to_owned(),
        from: None,
        config: Digest([9; 32]),
        document: vec![b'#'; 4096],
        layer_tensors: vec![TENSORS; (workers / replicas * LAYERS) as usize],
        layer_bytes: Vec::new(),
        microbatch_count: 2 * workers,
        step_count,
        policy,
        window: WindowPolicy::Fixed(Window::One),
        copies: 1,
        checkpoint_every: 0,
        checkpoint_ticks: 0,
        checkpoints_kept: 1,
        attest_every: 0,
        device: DeviceKind::Processors,
        stages_max: workers,
        workers_min: workers,
        lost_after_ticks: 1_000_000,
        settle_ticks: 10,
    }
}

/// What a solver returns: the schedule that copes best with many stages, in so many pipelines.
fn solution(workers: u32, replicas: u32) -> PlanSolution {
    let stages = workers / replicas;
    let column = generate(ScheduleKind::ZbH1, stages, 2 * stages).expect("the size is legal");
    let compute = side_by_side(&vec![column; replicas as usize]).expect("a power of two");
    let options = LowerOptions { window: Window::One, early_head_weights: false };
    PlanSolution {
        program: lower(&compute, options),
        chunks: (0..stages)
            .map(|at| LayerRange::new(at * LAYERS, (at + 1) * LAYERS))
            .collect::<Vec<_>>()
            .repeat(replicas as usize),
        stage_nodes: (0..workers as usize).collect(),
        op_ticks_max: 1_000_000,
    }
}

fn main() {
    let steps: u64 = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(200);
    println!(
        "workers  pipelines  us a step  us a worker  bytes a step  messages   to begin: ms     bytes"
    );
    for (workers, replicas) in [(16, 1), (64, 1), (256, 1), (64, 4), (256, 4), (256, 16)] {
        let nodes: Vec<NodeId> = (0..u64::from(workers)).map(|at| NodeId(100 + at)).collect();
        let mut load = LeaderLoad::new(&nodes);
        let plan = load.begin(&nodes, spec(workers, replicas, 2 * steps), replicas);
        let begin_ms = load.busy.as_secs_f64() * 1e3;
        let begin_bytes = load.bytes;
        (load.busy, load.sent, load.bytes) = (Duration::ZERO, 0, 0);
        (0..steps).for_each(|_| load.step(&plan));
        let us = load.busy.as_secs_f64() * 1e6 / steps as f64;
        let bytes = load.bytes / steps;
        let sent = load.sent / steps;
        let each = us / f64::from(workers);
        println!(
            "{workers:>7}  {replicas:>9}  {us:>9.0}  {each:>11.2}  {bytes:>12}  {sent:>8}  {begin_ms:>13.1}  \
             {begin_bytes:>8}"
        );
    }
}
