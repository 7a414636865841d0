//! Seals a second through three Raft nodes and their replicated states in one thread: memory only,
//! each write durable at once. It is the cost of the log itself, and so a bound on what a cluster
//! of machines can do.
//!
//! ```text
//! cargo run --release -p zbelastic-consensus --example seals_per_second [seals]
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "a measurement reads the clock; the code it measures does not"
)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use zbelastic_consensus::access::{AccessRole, Credential};
use zbelastic_consensus::codec;
use zbelastic_consensus::contact::Contact;
use zbelastic_consensus::entry::{Entry, ReadyRecord};
use zbelastic_consensus::job::{JobChange, JobSpec, WindowPolicy};
use zbelastic_consensus::member::{Holder, MemberChange, Resources, Role};
use zbelastic_consensus::plan::{LayerSource, PlanReason, PlanRecord, Promise, PromiseOff};
use zbelastic_consensus::raft::ENTRY_BYTES_MAX;
use zbelastic_consensus::raft::{RaftMessage, RaftNode, RaftOutput, RaftSetup};
use zbelastic_consensus::state::State;
use zbelastic_consensus::validation::{GuardPolicy, NonfinitePolicy, Reason, Seal, Turn, Verdict};
use zbelastic_schedule::{LowerOptions, ScheduleKind, Window, generate, lower};
use zbelastic_types::{
    Bytes, ClusterId, Digest, Generation, Incarnation, LayerId, LayerRange, NodeId,
};

const WORKER: NodeId = NodeId(9);

struct VoterGroup {
    nodes: Vec<RaftNode>,
    states: Vec<State>,
    network: VecDeque<(NodeId, NodeId, RaftMessage)>,
}

impl VoterGroup {
    fn new(steps: u64) -> Self {
        let voters: Vec<_> = (1..=3).map(NodeId).collect();
        let state = running(steps);
        let nodes = voters.iter().map(|&node| {
            let setup = RaftSetup::new(node, node.0, 9 + node.0 as u32);
            RaftNode::create(setup, &voters, codec::encode(&state)).expect("the setup is usual")
        });
        Self { nodes: nodes.collect(), states: vec![state; 3], network: VecDeque::new() }
    }

    fn perform(&mut self, at: usize) {
        while let Some(output) = self.nodes[at].poll() {
            match output {
                RaftOutput::Send { to, message } => {
                    self.network.push_back((NodeId(at as u64 + 1), to, message));
                }
                RaftOutput::Persist { token, .. } => self.nodes[at].on_persisted(token),
                RaftOutput::Committed(entry) => self.apply(at, &entry.data),
                RaftOutput::RequestSnapshot => {
                    let applied = self.nodes[at].status().applied;
                    let data = codec::encode(&self.states[at]);
                    self.nodes[at].compact(applied, data).expect("it was handed out");
                }
                RaftOutput::Installed { .. }
                | RaftOutput::Trim { .. }
                | RaftOutput::LeaderChanged { .. } => {}
                RaftOutput::Fatal(reason) => panic!("nothing went wrong here: {reason:?}"),
            }
        }
    }

    fn apply(&mut self, at: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let entry = codec::decode(data, ENTRY_BYTES_MAX).expect("it was encoded here");
        let state = &mut self.states[at];
        state.apply(state.applied() + 1, entry).expect("seals come in order");
    }

    fn deliver(&mut self) {
        while let Some((from, to, message)) = self.network.pop_front() {
            let at = to.0 as usize - 1;
            // A refusal is of an early message to a node that is greeting.
            let _ = self.nodes[at].handle(from, message);
            self.perform(at);
        }
    }

    fn elect(&mut self) -> usize {
        loop {
            for at in 0..3 {
                self.nodes[at].tick();
                self.perform(at);
            }
            self.deliver();
            if let Some(at) = (0..3).find(|&at| self.nodes[at].status().leads_applied) {
                return at;
            }
        }
    }

    /// Seals so many steps, with so many seals under way at once.
    fn run(&mut self, leader: usize, seals: u64, in_flight: u64) {
        let first = self.states[leader].open_turn().step.0;
        let mut turn = self.states[leader].open_turn();
        let mut updates = self.states[leader].ledger().updates();
        loop {
            let sealed = self.states[leader].open_turn().step.0 - first;
            if sealed == seals {
                return;
            }
            while turn.step.0 - first < seals && turn.step.0 - first - sealed < in_flight {
                updates += 1;
                let entry = codec::encode(&Entry::Seal(seal(turn, updates)));
                self.nodes[leader].propose(entry).expect("fewer are in flight than may be");
                turn = turn.after(Verdict::Keep);
            }
            self.perform(leader);
            self.deliver();
        }
    }
}

fn seal(turn: Turn, updates_after: u64) -> Seal {
    Seal {
        turn,
        verdict: Verdict::Keep,
        reason: Reason::Sound,
        square_sum_bits: 0.25f64.to_bits(),
        loss_sum_bits: 2.0f64.to_bits(),
        updates_after,
        cursor_after: turn.after(Verdict::Keep).step,
    }
}

/// The state of a cluster whose one worker runs a plan.
fn running(step_count: u64) -> State {
    let contact = Contact::of_node(WORKER);
    let credential = Credential {
        role: AccessRole::Worker,
        name: contact.name.clone(),
        key: Digest([0; 32]),
        token: None,
        issued_at_s: 0,
        expires_at_s: u64::MAX,
        is_ephemeral: false,
        is_revoked: false,
    };
    let mut state = State::new(ClusterId(7)).with_credentials([(WORKER, credential)]);
    let spec = Arc::new(spec(step_count));
    let resources = Resources {
        memory: Bytes(1 << 30),
        speed_permille: 1000,
        class: zbelastic_consensus::class::DeviceClass::Processors,
    };
    let admit =
        MemberChange::Admit { node: WORKER, boot: 1, role: Role::Worker, resources, contact };
    let holder = Holder { node: WORKER, incarnation: Incarnation(2) };
    let generation = Generation(1);
    let layers = vec![(LayerId(0), Digest([1; 32]))];
    let ready = ReadyRecord { generation, holder, layers, copies: Vec::new() };
    let entries = [
        Entry::Job(JobChange::Start(spec)),
        Entry::Members(vec![admit]),
        Entry::Adopt(Box::new(plan(holder))),
        Entry::Ready(ready),
        Entry::Resume { generation },
    ];
    for entry in entries {
        state.apply(state.applied() + 1, entry).expect("it fits");
    }
    state
}

fn spec(step_count: u64) -> JobSpec {
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
        document: Vec::new(),
        layer_tensors: vec![1],
        layer_bytes: Vec::new(),
        microbatch_count: 1,
        step_count,
        policy,
        window: WindowPolicy::Fixed(Window::One),
        copies: 0,
        checkpoint_every: 0,
        checkpoint_ticks: 0,
        checkpoints_kept: 1,
        attest_every: 0,
        device: zbelastic_consensus::class::DeviceKind::Processors,
        stages_max: 1,
        workers_min: 1,
        lost_after_ticks: 100,
        settle_ticks: 10,
    }
}

fn plan(holder: Holder) -> PlanRecord {
    let compute = generate(ScheduleKind::OneFOneB, 1, 1).expect("the size is legal");
    let options = LowerOptions { window: Window::One, early_head_weights: false };
    PlanRecord {
        generation: Generation(1),
        stages: vec![holder],
        copies: vec![Vec::new()],
        promise: Promise::Off(PromiseOff::Configured),
        chunks: vec![LayerRange::new(0, 1)],
        program: lower(&compute, options),
        from_step: zbelastic_types::Step(0),
        sources: vec![LayerSource::Initial],
        expected: vec![None],
        op_ticks_max: 1,
        reason: PlanReason::First,
    }
}

fn main() {
    let seals: u64 =
        std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(100_000);
    let mut group = VoterGroup::new(4 * seals);
    let leader = group.elect();
    for in_flight in [1, 64] {
        let start = Instant::now();
        group.run(leader, seals, in_flight);
        let seconds = start.elapsed().as_secs_f64();
        let rate = seals as f64 / seconds;
        println!("{seals} seals, {in_flight} in flight: {seconds:.2} s, {rate:.0} seals a second");
    }
    group.deliver();
    assert!(group.states.windows(2).all(|pair| pair[0].history() == pair[1].history()));
}
