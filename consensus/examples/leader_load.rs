//! What a leader does for each step of a cluster of so many workers: processor time, and bytes that it
//! sends. Workers are what they send: a report of each stage, the copies' updates, and heartbeats. Each
//! message is encoded as the shell would, and each write is durable at once. There is one voter, so what
//! the log sends to the others is left out: it does not depend on the workers.
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
use zbelastic_consensus::contact::Contact;
use zbelastic_consensus::core::{Core, CoreSetup, Input, Output, Start};
use zbelastic_consensus::duty::DutyTiming;
use zbelastic_consensus::entry::{Entry, ReadyRecord};
use zbelastic_consensus::job::{JobChange, JobSpec, WindowPolicy};
use zbelastic_consensus::member::{MemberChange, Resources, Role};
use zbelastic_consensus::message::{Envelope, HeldUpdate, Message, Pulse};
use zbelastic_consensus::plan::{LayerSource, PlanReason, PlanRecord, Promise};
use zbelastic_consensus::raft::RaftSetup;
use zbelastic_consensus::state::{State, copied_layers};
use zbelastic_consensus::validation::{GuardPolicy, NonfinitePolicy, Report, TensorSum};
use zbelastic_schedule::{LowerOptions, ScheduleKind, Window, generate, lower};
use zbelastic_types::{
    Bytes, ClusterId, Digest, Generation, LayerId, LayerRange, NodeId, StageIndex, Step,
    TensorIndex,
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
struct Bench {
    core: Core,
    busy: Duration,
    sent: u64,
    bytes: u64,
}

impl Bench {
    fn new(workers: u32, steps: u64) -> Self {
        let mut raft = RaftSetup::new(VOTER, 1, 9);
        raft.compact_after = 1_000_000;
        let timing = DutyTiming {
            lost_after_ticks: 1_000_000,
            stall_ticks: 1_000_000,
            load_ticks: 1_000_000,
            inventory_ticks: 100,
        };
        let setup = CoreSetup { cluster: CLUSTER, contact: Contact::of_node(VOTER), raft, timing };
        let state = Box::new(running(workers, steps));
        let core = Core::new(setup, Start::Create { voters: vec![VOTER], state });
        let core = core.expect("the setup is usual");
        Self { core, busy: Duration::ZERO, sent: 0, bytes: 0 }
    }

    fn handle(&mut self, input: Input) {
        let start = Instant::now();
        self.core.handle(input).expect("it belongs");
        while let Some(output) = self.core.poll_output() {
            match output {
                Output::Send { message, .. } => {
                    self.sent += 1;
                    self.bytes += message.encode().len() as u64;
                }
                Output::Persist { token, .. } => self.core.on_persisted(token),
                Output::Trim { .. } | Output::Event(_) => {}
                Output::Solve(_) | Output::Fatal(_) => panic!("nothing went wrong here"),
            }
        }
        self.busy += start.elapsed();
    }

    fn tell(&mut self, from: NodeId, message: Message) {
        let message = Box::new(Envelope { cluster: CLUSTER, message });
        self.handle(Input::Message { from, message });
    }

    /// Until it leads; workers are sent the plan then.
    fn elect(&mut self) {
        while self.core.duties().is_none() {
            self.handle(Input::Tick);
        }
    }

    fn beat(&mut self, plan: &PlanRecord) {
        for holder in &plan.stages {
            let known = self.core.state().applied();
            let contacts = self.core.state().contacts_index();
            let (holder, generation, pulse) = (*holder, plan.generation, Pulse::default());
            let beat = Message::Beat { holder, known, generation, contacts, pulse };
            self.tell(holder.node, beat);
        }
    }

    fn step(&mut self, plan: &PlanRecord) {
        let (turn, spec) = (self.core.state().open_turn(), self.core.state().job());
        let spec = Arc::clone(&spec.expect("there is a job").spec);
        (0..TICKS).for_each(|_| self.handle(Input::Tick));
        (0..BEATS).for_each(|_| self.beat(plan));
        for stage in plan.stage_indices() {
            let sums = sums(&spec, plan, stage);
            let is_head = stage.index() + 1 == plan.stages.len();
            let (loss_sum, state) = (is_head.then_some(2.0), Vec::new());
            let report = Report { turn, stage, sums: sums.clone(), loss_sum };
            let holder = plan.stages[stage.index()];
            self.tell(holder.node, Message::Report { holder, report, state });
            for holder in plan.copy_holders(stage).collect::<Vec<_>>() {
                let update = HeldUpdate { turn, of: stage, sums: sums.clone(), state: Vec::new() };
                self.tell(holder.node, Message::Held { holder, update });
            }
        }
        assert!(self.core.state().open_turn() > turn, "the step is sealed");
    }
}

fn sums(spec: &JobSpec, plan: &PlanRecord, stage: StageIndex) -> Vec<TensorSum> {
    let layers = plan.layers_of(stage).collect();
    let tensors = spec.tensors_of(&layers).into_iter().flatten();
    let sum = |tensor| TensorSum { tensor: TensorIndex(tensor), square_sum: 0.01, nonfinite: 0 };
    tensors.map(sum).collect()
}

/// The state of a cluster whose workers run a plan.
fn running(workers: u32, steps: u64) -> State {
    let nodes: Vec<NodeId> = (0..workers).map(|worker| NodeId(100 + u64::from(worker))).collect();
    let credentials = nodes.iter().map(|node| (*node, credential(*node)));
    let first = [(VOTER, Contact::of_node(VOTER))];
    let state = State::new(CLUSTER).with_controllers(first);
    let mut state = state.with_credentials(credentials);
    let mut apply = |entry| {
        let index = state.applied() + 1;
        state.apply(index, entry).expect("it fits");
        state.clone()
    };
    apply(Entry::Job(JobChange::Start(Arc::new(spec(workers, steps)))));
    let resources =
        Resources { memory: Bytes(1 << 30), speed_permille: 1000, class: DeviceClass::Processors };
    let admit = |node: &NodeId| {
        let addresses = vec![format!("10.0.{}.{}:7000", node.0 / 256, node.0 % 256)];
        let contact = Contact { addresses, ..Contact::of_node(*node) };
        MemberChange::Admit { node: *node, boot: 1, role: Role::Worker, resources, contact }
    };
    let joined = apply(Entry::Members(nodes.iter().map(admit).collect()));
    let plan = plan(&joined, &nodes);
    apply(Entry::Adopt(Box::new(plan.clone())));
    for stage in plan.stage_indices() {
        let digest = |layer: LayerId| (layer, Digest([layer.0 as u8; 32]));
        let (generation, holder) = (plan.generation, plan.stages[stage.index()]);
        let layers = plan.layers_of(stage).map(digest).collect();
        let copies = copied_layers(&plan, stage).into_iter().map(digest).collect();
        apply(Entry::Ready(ReadyRecord { generation, holder, layers, copies }));
    }
    apply(Entry::Resume { generation: plan.generation })
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

fn spec(workers: u32, step_count: u64) -> JobSpec {
    let policy = GuardPolicy {
        clip_norm: Some(1.0),
        nonfinite: NonfinitePolicy::Skip,
        replays_max: 0,
        spike_deviations: None,
    };
    JobSpec {
        config: Digest([9; 32]),
        document: vec![b'#'; 4096],
        layer_tensors: vec![TENSORS; (workers * LAYERS) as usize],
        layer_bytes: Vec::new(),
        microbatch_count: 2 * workers,
        step_count,
        policy,
        window: WindowPolicy::Fixed(Window::One),
        copies: 1,
        checkpoint_every: 0,
        checkpoints_kept: 1,
        attest_every: 0,
        device: DeviceKind::Processors,
        stages_max: workers,
        workers_min: 1,
        lost_after_ticks: 1_000_000,
        settle_ticks: 10,
    }
}

fn plan(state: &State, nodes: &[NodeId]) -> PlanRecord {
    let (count, layers) = (nodes.len() as u32, nodes.len() * LAYERS as usize);
    let compute = generate(ScheduleKind::ZbH1, count, 2 * count).expect("the size is legal");
    let options = LowerOptions { window: Window::One, early_head_weights: false };
    PlanRecord {
        generation: Generation(1),
        stages: nodes.iter().map(|node| state.holder_of(*node).expect("it joined")).collect(),
        copies: (0..count).map(|stage| vec![StageIndex((stage + 1) % count)]).collect(),
        promise: Promise::of(1, count),
        chunks: (0..count).map(|at| LayerRange::new(at * LAYERS, (at + 1) * LAYERS)).collect(),
        program: lower(&compute, options),
        from_step: Step(0),
        sources: vec![LayerSource::Initial; layers],
        expected: vec![None; layers],
        op_ticks_max: 1_000_000,
        reason: PlanReason::First,
    }
}

fn main() {
    let steps: u64 = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(200);
    println!("workers  us a step  us a worker  bytes a step  messages   plan to all: ms     bytes");
    for workers in [16, 64, 256] {
        let mut bench = Bench::new(workers, 2 * steps);
        bench.elect();
        let (plan_ms, plan_bytes) = (bench.busy.as_secs_f64() * 1e3, bench.bytes);
        (bench.busy, bench.sent, bench.bytes) = (Duration::ZERO, 0, 0);
        let plan = Arc::clone(&bench.core.state().plan().expect("it runs").record);
        (0..steps).for_each(|_| bench.step(&plan));
        let us = bench.busy.as_secs_f64() * 1e6 / steps as f64;
        let (bytes, sent) = (bench.bytes / steps, bench.sent / steps);
        let each = us / f64::from(workers);
        println!(
            "{workers:>7}  {us:>9.0}  {each:>11.2}  {bytes:>12}  {sent:>8}  {plan_ms:>16.1}  \
             {plan_bytes:>8}"
        );
    }
}
