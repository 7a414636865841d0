//! Controllers and workers with a network of one queue. Disks are quick and never lose anything.

use std::collections::{BTreeMap, BTreeSet};

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use zbelastic_types::NodeId;

use super::super::{
    Core, CoreRefusal, CoreSetup, CoreStart, Event, FatalCause, Input, Output, StartError,
};
use super::fake_runtime::FakeRuntime;
use crate::access::AccessRole;
use crate::codec::Format;
use crate::duty::{DutyTiming, SolveRequest};
use crate::fixture::{CLUSTER, RESOURCES, contact, credential, solution};
use crate::message::Envelope;
use crate::raft::{
    HardVote, LogEntry, Members, RaftRecord, RaftSetup, RecoveredLog, SnapshotImage, encode_record,
};
use crate::session::{
    SessionInput, SessionOutput, SessionSetup, SessionTiming, WorkerCommand, WorkerSession,
};
use crate::state::State;

pub const TIMING: DutyTiming =
    DutyTiming { lost_after_ticks: 20, progress_ticks: 100, inventory_ticks: 10 };

/// Controllers are numbered from here on, workers from 1.
pub const CONTROLLER: u64 = 101;

pub fn n(node: u64) -> NodeId {
    NodeId(node)
}

pub fn setup(node: NodeId) -> CoreSetup {
    let raft = RaftSetup::new(node, node.0, 10 + 4 * (node.0 - CONTROLLER) as u32);
    CoreSetup {
        cluster: CLUSTER,
        contact: contact(node.0),
        raft,
        timing: TIMING,
        newest_format: Format::NEWEST,
    }
}

/// What is on the disk of a controller that was one of `voters` and has applied `state`; entries
/// that are committed, but not part of it, follow.
pub fn disk(node: NodeId, voters: &[NodeId], state: Vec<u8>, later: &[Vec<u8>]) -> RecoveredLog {
    const INDEX: u64 = 1000;
    let members = Members::first(voters);
    let image = SnapshotImage { index: INDEX, term: 1, members, data: state };
    let entry = |(index, data): (u64, &Vec<u8>)| {
        let payload = crate::raft::Payload::Data(data.clone());
        LogEntry { index, term: 1, payload }
    };
    let entries: Vec<_> = (INDEX + 1..).zip(later).map(entry).collect();
    let commit = INDEX + entries.len() as u64;
    let records = [
        RaftRecord::Snapshot(image),
        RaftRecord::Append(entries),
        RaftRecord::HardState(HardVote { term: 1, vote: None, commit }),
        RaftRecord::Boot { node, boot: 1 },
    ];
    let bytes: Vec<_> = records.iter().map(encode_record).collect();
    RecoveredLog::from_records(bytes.iter().map(Vec::as_slice)).expect("the records add up")
}

/// A controller that was alone and had applied `state`.
pub fn recovered(state: &State) -> Result<Core, StartError> {
    let node = n(CONTROLLER);
    let state = state.clone().with_controllers(crate::fixture::controllers(&[node]));
    let log = disk(node, &[node], state.encode(), &[]);
    Core::new(setup(node), recover(log))
}

/// A controller that was a voter and starts again.
pub fn recover(log: RecoveredLog) -> CoreStart {
    CoreStart::Recover { log: Box::new(log), controllers: Vec::new(), boot: 1 }
}

/// The same, and it leads.
pub fn leader(state: &State) -> Core {
    let mut core = recovered(state).expect("the disk is usable");
    while core.duties().is_none() {
        persist(&mut core);
        core.handle(Input::Tick).expect("a tick is taken");
    }
    persist(&mut core);
    core
}

/// Takes all outputs; what is to be persisted is. One input leads to so much and no more.
pub fn persist(core: &mut Core) -> Vec<Output> {
    const OUTPUTS_MAX: usize = 2_000;
    let mut outputs = Vec::new();
    while let Some(output) = core.poll_output() {
        assert!(outputs.len() < OUTPUTS_MAX, "no end of it: {:#?}", &outputs[..40]);
        if let Output::Persist { token, .. } = &output {
            core.on_persisted(*token);
        }
        outputs.push(output);
    }
    outputs
}

pub struct InProcessWorker {
    pub session: WorkerSession,
    pub runtime: FakeRuntime,
    /// All commands of the session so far, oldest first.
    pub commands: Vec<WorkerCommand>,
}

/// A cluster in one thread.
pub struct InProcessCluster {
    pub controllers: BTreeMap<NodeId, Core>,
    pub workers: BTreeMap<NodeId, InProcessWorker>,
    pub network: Vec<(NodeId, NodeId, Envelope)>,
    /// Nodes nothing reaches, and from which nothing comes.
    pub cut: BTreeSet<NodeId>,
    /// Messages in a thousand that are lost.
    pub loss_permille: u64,
    pub events: Vec<(NodeId, Event)>,
    pub fatal: BTreeMap<NodeId, FatalCause>,
    /// All outputs of controllers, in their order.
    pub trace: Vec<String>,
    pub inputs: u64,
    draws: SplitMix64,
}

impl InProcessCluster {
    pub fn new(controllers: u64, workers: u64) -> Self {
        Self::in_format(Format::NEWEST, controllers, workers)
    }

    /// A cluster that begins with this format.
    pub fn in_format(format: Format, controllers: u64, workers: u64) -> Self {
        let nodes: Vec<NodeId> = (0..controllers).map(|index| n(CONTROLLER + index)).collect();
        let nodes_of_workers = (1..=20).map(|node| credential(node, AccessRole::Worker));
        let voters = (101..=110).map(|node| credential(node, AccessRole::Controller));
        let state = State::new(CLUSTER)
            .in_format(format)
            .with_controllers(crate::fixture::controllers(&nodes))
            .with_credentials(nodes_of_workers.chain(voters));
        let mut cluster = Self {
            controllers: BTreeMap::new(),
            workers: BTreeMap::new(),
            network: Vec::new(),
            cut: BTreeSet::new(),
            loss_permille: 0,
            events: Vec::new(),
            fatal: BTreeMap::new(),
            trace: Vec::new(),
            inputs: 0,
            draws: SplitMix64::seed_from_u64(1),
        };
        for node in &nodes {
            let start = CoreStart::Create { voters: nodes.clone(), state: Box::new(state.clone()) };
            cluster.start(*node, start);
        }
        (1..=workers).for_each(|worker| cluster.add_worker(worker));
        cluster
    }

    pub fn start(&mut self, node: NodeId, start: CoreStart) {
        let core = Core::new(setup(node), start).expect("the start is usable");
        self.controllers.insert(node, core);
        self.drain(node);
    }

    pub fn add_worker(&mut self, worker: u64) {
        let (node, controllers) = (n(worker), self.controllers.keys().copied().collect());
        let timing = SessionTiming { beat_ticks: 2, resend_ticks: 5 };
        let (cluster, resources, boot) = (CLUSTER, RESOURCES, 10);
        let contact = contact(worker);
        let setup = SessionSetup { cluster, node, boot, resources, contact, controllers, timing };
        let worker = InProcessWorker {
            session: WorkerSession::new(setup),
            runtime: FakeRuntime::default(),
            commands: Vec::new(),
        };
        self.workers.insert(node, worker);
    }

    /// The controller that leads and knows it.
    pub fn leader(&self) -> Option<NodeId> {
        let leads = |(_, core): &(&NodeId, &Core)| core.duties().is_some();
        let leaders = self.controllers.iter().filter(|(node, _)| !self.cut.contains(node));
        leaders.filter(leads).max_by_key(|(_, core)| core.status().term).map(|(node, _)| *node)
    }

    pub fn core(&self) -> &Core {
        &self.controllers[&self.leader().expect("somebody leads")]
    }

    pub fn state(&self) -> &State {
        self.core().state()
    }

    pub fn input(&mut self, node: NodeId, input: Input) -> Result<(), CoreRefusal> {
        self.inputs += 1;
        let core = self.controllers.get_mut(&node).expect("a controller");
        let result = core.handle(input);
        if let Err(refusal) = &result {
            self.trace.push(format!("n{node} refuses: {refusal}"));
        }
        self.drain(node);
        result
    }

    /// Performs everything that is to be done at a controller.
    fn drain(&mut self, node: NodeId) {
        let mut solves = Vec::new();
        let core = self.controllers.get_mut(&node).expect("a controller");
        for output in persist(core) {
            self.trace.push(format!("n{node}: {output:?}"));
            match output {
                Output::Send { to, message } => self.network.push((node, to, *message)),
                Output::Solve(request) => solves.push(request),
                Output::Event(event) => self.events.push((node, event)),
                Output::Fatal(cause) => drop(self.fatal.insert(node, cause)),
                Output::Persist { .. } | Output::Trim { .. } => {}
            }
        }
        solves.into_iter().for_each(|request| self.solve(node, &request));
    }

    fn solve(&mut self, node: NodeId, request: &SolveRequest) {
        let stage_count = request.nodes.len() as u32;
        let solution = Box::new(Ok(solution(stage_count, request.window)));
        let input = Input::Solved { number: request.number, solution };
        self.input(node, input).expect("it was asked for just now");
    }

    fn draws_loss(&mut self) -> bool {
        self.draws.next_u64() % 1000 < self.loss_permille
    }

    /// Delivers what is under way. What follows from it is under way then.
    pub fn deliver(&mut self) {
        for (from, to, message) in std::mem::take(&mut self.network) {
            let is_lost = self.draws_loss() || self.cut.contains(&from) || self.cut.contains(&to);
            let message = Box::new(message);
            if is_lost {
                continue;
            } else if self.controllers.contains_key(&to) {
                // A refusal is counted and part of the trace.
                let _ = self.input(to, Input::Message { from, message });
            } else if self.workers.contains_key(&to) {
                self.worker_input(to, SessionInput::Message { from, message });
            }
        }
    }

    pub fn worker_input(&mut self, node: NodeId, input: SessionInput) {
        let worker = self.workers.get_mut(&node).expect("a worker");
        // A briefing that is old or for another node is dropped, as it is anywhere.
        let _ = worker.session.handle(input);
        while let Some(output) = worker.session.poll_output() {
            match output {
                SessionOutput::Send { to, message } => self.network.push((node, to, *message)),
                SessionOutput::Command(command) => {
                    worker.commands.push(command.clone());
                    for event in worker.runtime.carry_out(command) {
                        worker
                            .session
                            .handle(SessionInput::Event(event))
                            .expect("the event is accepted");
                    }
                }
                SessionOutput::End(refusal) => panic!("{node} is a member: {refusal:?}"),
            }
        }
    }

    /// A tick everywhere, and what was sent before arrives, again and again.
    pub fn rounds(&mut self, count: u32) {
        for _ in 0..count {
            let is_there = |node: &NodeId| !self.cut.contains(node);
            let controllers: Vec<_> = self.controllers.keys().copied().filter(is_there).collect();
            let workers: Vec<_> = self.workers.keys().copied().filter(is_there).collect();
            for node in controllers {
                // A controller that stopped takes nothing.
                let _ = self.input(node, Input::Tick);
            }
            workers.into_iter().for_each(|node| self.worker_input(node, SessionInput::Tick));
            self.deliver();
        }
    }

    /// Rounds until something holds. Panics with its name if it takes too long.
    pub fn until(&mut self, condition: &str, holds: impl Fn(&Self) -> bool) {
        const ROUNDS_MAX: u32 = 2_000;
        for _ in 0..ROUNDS_MAX {
            if holds(self) {
                return;
            }
            self.rounds(1);
        }
        panic!("not within {ROUNDS_MAX} rounds: {condition}");
    }

    pub fn command(&mut self, command: super::super::OperatorCommand) {
        self.until("somebody leads", |cluster| cluster.leader().is_some());
        let leader = self.leader().expect("somebody leads");
        self.input(leader, Input::Command(command)).expect("a leader takes commands");
    }
}
