//! The machines of controllers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use zbelastic_consensus::contact::Contact;
use zbelastic_consensus::core::{
    Core, CoreSetup, CoreStart, Event, FatalCause, Input, Output, StartError,
};
use zbelastic_consensus::duty::DutyTiming;
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::message::{Envelope, Message};
use zbelastic_consensus::raft::{
    PersistToken, RaftMessage, RaftRecord, RaftSetup, RaftStartError, RecoveredLog, encode_record,
};
use zbelastic_consensus::state::{EntryRefusal, State, StateChange};
use zbelastic_consensus::validation::Turn;
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::{Generation, NodeId};

use super::applied::ChangeRecord;
use super::machines::ControllerMachine;
use super::storm::ArmedCrashPoint;
use super::surroundings::Surroundings;
use super::worker_facts::WorkerFacts;
use super::{SimulatedPacket, WorldEvent};
use crate::access::{contacts, credentials};
use crate::bug::{self, Bug};
use crate::crash_points::CrashPoint;
use crate::disk::MachineDisk;
use crate::failure::{Invariant, LifeFailure};
use crate::markers::Marker;
use crate::network::NetworkLane;
use crate::planning::LifePlanner;
use crate::queue::VirtualTime;
use crate::ticks::{LOST_AFTER_TICKS, TICK_US};

/// Ticks to an election of the first controller, and between those of two.
const ELECTION_TICKS_MIN: u32 = 10;
const ELECTION_TICKS_APART: u32 = 4;

/// The waiting times of a leader of a life.
const TIMING: DutyTiming = DutyTiming {
    lost_after_ticks: LOST_AFTER_TICKS,
    progress_ticks: PROGRESS_TICKS,
    inventory_ticks: 40,
};
const PROGRESS_TICKS: u32 = 200;
/// For so long, by a clock that is right, it waits for the disk of a member that was lost.
pub(super) const AWAITED_US: u64 = PROGRESS_TICKS as u64 * TICK_US;

/// All controllers of a life, and the entries that they agreed on.
pub(super) struct Controllers {
    pub(super) machines: BTreeMap<NodeId, ControllerMachine>,
    /// Controllers that lost their disks, to be removed by an operator.
    pub(super) dead: BTreeSet<NodeId>,
    pub(super) record: ChangeRecord,
    /// The setup of each stage, which plans depend on.
    stage: StageSetup,
}

impl Controllers {
    pub(super) fn new(stage: StageSetup) -> Self {
        let record = ChangeRecord::default();
        Self { machines: BTreeMap::new(), dead: BTreeSet::new(), record, stage }
    }

    /// The first controllers of a cluster, with nothing or with a state.
    pub(super) fn create_controllers(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        count: u32,
        state: Option<State>,
    ) {
        let nodes: Vec<NodeId> = (0..count).map(|_| env.numbers.new_controller()).collect();
        let first = u64::from(env.case.options.controllers);
        let state = state
            .unwrap_or_else(|| State::new(env.cluster))
            .in_format(env.first_format())
            .with_controllers(contacts(&nodes))
            .with_credentials(credentials(first, env.case.options.workers));
        for node in &nodes {
            self.add_controller_machine(env, *node);
            env.choose_program(*node, true);
            self.machines.get_mut(node).expect("added above").was_admitted = true;
            self.start_anew(env, workers, *node, nodes.clone(), state.clone());
        }
    }

    /// As one of the first voters. If the machine dies before anything of it is durable, the
    /// operator gives the same command again.
    fn start_anew(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
        voters: Vec<NodeId>,
        state: State,
    ) {
        let machine = self.machines.get_mut(&node).expect("a controller");
        machine.first = Some(Box::new((voters.clone(), state.clone())));
        self.start_core(env, workers, node, CoreStart::Create { voters, state: Box::new(state) });
    }

    /// Ticks to an election, other ones than any controller in use has: two with the same would
    /// stand against each other for ever.
    fn election_ticks(&self) -> u32 {
        let in_use = self.machines.values().filter(|machine| !machine.is_condemned);
        let taken: Vec<u32> = in_use.map(|machine| machine.election_ticks).collect();
        let mut ticks = (0..).map(|index| ELECTION_TICKS_MIN + ELECTION_TICKS_APART * index);
        ticks.find(|ticks| !taken.contains(ticks)).expect("there are enough numbers")
    }

    fn add_controller_machine(&mut self, env: &mut Surroundings<'_>, node: NodeId) {
        let election_ticks = self.election_ticks();
        let tick_us = env.draw_tick_us();
        let machine = ControllerMachine {
            life: 0,
            core: None,
            planner: LifePlanner::new(&env.case.options, &self.stage),
            plan_steps: (Generation(0), 0),
            disk: MachineDisk::default(),
            paused_until: VirtualTime(0),
            tick_us,
            sync_begins_at: VirtualTime(0),
            synced_at: VirtualTime(0),
            reports: None,
            unsent_seal: None,
            unsynced: VecDeque::new(),
            started_at: VirtualTime(0),
            first: None,
            sync_us_extra: 0,
            election_ticks,
            is_condemned: false,
            is_retiring: false,
            was_admitted: false,
        };
        self.machines.insert(node, machine);
    }

    fn start_core(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
        start: CoreStart,
    ) {
        let boot = env.numbers.new_boot();
        if self.machines[&node].life > 0 {
            env.choose_program(node, false);
        }
        let newest_format = env.reads(node);
        let machine = self.machines.get_mut(&node).expect("a controller");
        machine.life += 1;
        let mut raft = RaftSetup::new(node, boot, machine.election_ticks);
        raft.compact_after = env.case.options.compact_after;
        raft.tail_entries = 8;
        let contact = Contact::of_node(node);
        let setup =
            CoreSetup { cluster: env.cluster, contact, raft, timing: TIMING, newest_format };
        match Core::new(setup, start) {
            Ok(core) => machine.core = Some(core),
            Err(StartError::Raft(RaftStartError::NeverStarted)) if machine.first.is_some() => {
                machine.disk = MachineDisk::default();
                let (voters, state) = *machine.first.take().expect("looked at above");
                return self.start_anew(env, workers, node, voters, state);
            }
            Err(error) => {
                env.note(|| format!("n{node} does not start: {error}"));
                if let StartError::Snapshot(error) = &error {
                    env.fail(LifeFailure::safety(Invariant::F1, format!("n{node}: {error}")));
                }
                self.condemn(env, workers, node);
                return;
            }
        }
        let life = machine.life;
        let tick_us = machine.tick_us;
        (machine.sync_begins_at, machine.synced_at) = (env.now, env.now);
        machine.started_at = env.now;
        machine.planner = LifePlanner::new(&env.case.options, &self.stage);
        machine.plan_steps = (Generation(0), 0);
        machine.unsynced.clear();
        (machine.reports, machine.unsent_seal) = (None, None);
        env.queue.push(env.now.after(tick_us), WorldEvent::Tick(node, life));
        self.drive_controller(env, workers, node);
    }

    /// Starts a controller from its disk.
    pub(super) fn restart_controller(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
    ) {
        let machine = self.machines.get_mut(&node).expect("a controller");
        if machine.core.is_some() || machine.is_condemned {
            return;
        }
        let recovered = RecoveredLog::from_records(machine.disk.records());
        match recovered {
            Ok(recovered) => {
                if recovered.torn {
                    machine.disk.cut_last();
                    env.mark(Marker::TornTailCut);
                }
                machine.disk.renumber();
                env.note(|| format!("n{node} starts again"));
                let others = self.machines.keys().copied().filter(|other| *other != node);
                let log = Box::new(recovered);
                let controllers = others.collect();
                let boot = env.numbers.new_boot();
                self.start_core(env, workers, node, CoreStart::Recover { log, controllers, boot });
            }
            Err(error) => {
                env.note(|| format!("n{node} cannot use its disk: {error}"));
                env.mark(Marker::DamagedDiskRefused);
                self.condemn(env, workers, node);
            }
        }
    }

    /// A controller with a disk that is not to be used comes back as another node.
    pub(super) fn condemn(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
    ) {
        let Some(machine) = self.machines.get_mut(&node) else { return };
        if std::mem::replace(&mut machine.is_condemned, true) {
            return;
        }
        machine.core = None;
        machine.life += 1;
        self.dead.insert(node);
        env.note(|| format!("n{node} is given up"));
        let _ = self.add_controller(env, workers, &[node]);
    }

    /// A controller that was not there before requests from all others but these to be admitted.
    pub(super) fn add_controller(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        gone: &[NodeId],
    ) -> NodeId {
        let new = env.numbers.new_controller();
        let controllers: Vec<NodeId> = self.machines.keys().copied().collect();
        let controllers = controllers.into_iter().filter(|node| !gone.contains(node)).collect();
        self.add_controller_machine(env, new);
        env.note(|| format!("n{new} is to become a controller"));
        let boot = env.numbers.new_boot();
        self.start_core(env, workers, new, CoreStart::Wait { controllers, boot });
        env.announcements += 1;
        new
    }

    pub(super) fn tick_controller(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
        life: u64,
    ) {
        let machine = self.machines.get_mut(&node).expect("a controller");
        if machine.life != life {
            return;
        }
        env.queue.push(env.now.after(machine.tick_us), WorldEvent::Tick(node, life));
        self.controller_input(env, workers, node, Input::Tick);
        self.send_estimate(env, workers, node);
    }

    pub(super) fn controller_message(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        from: NodeId,
        to: NodeId,
        message: Box<Envelope>,
    ) {
        let point = if let Message::Report { holder, report, .. } = &message.message {
            self.machines.get_mut(&to).expect("a controller").report_point(*holder, report.turn)
        } else if let Message::Raft(RaftMessage::Raft(_)) = &message.message {
            self.is_learner(env, to).then_some(CrashPoint::LearnerCatchingUp)
        } else {
            None
        };
        let is_up = self.machines[&to].core.is_some();
        if is_up && point.is_some_and(|point| env.hits(point)) {
            self.crash_here(env, to);
            return;
        }
        self.connect(env, workers, to, from);
        self.controller_input(env, workers, to, Input::Message { from, message });
    }

    /// Whether a controller gets the log and has no vote yet. This is only computed if a process is
    /// to die there, for there are very many messages.
    fn is_learner(&self, env: &Surroundings<'_>, node: NodeId) -> bool {
        let is_armed = |armed: &ArmedCrashPoint| armed.point == CrashPoint::LearnerCatchingUp;
        env.storm.armed.iter().any(is_armed)
            && self
                .newest_core(env)
                .is_some_and(|core| core.status().members.learners.contains(&node))
    }

    /// The operator of the cluster sends a controller an input; it arrives when the controller does
    /// not stand still.
    pub(super) fn command(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
        input: Input,
    ) {
        let life = self.machines[&node].life;
        match self.paused_until(env, node) {
            Some(until) => {
                env.queue.push(until, WorldEvent::Command { node, life, input: Box::new(input) });
            }
            None => self.controller_input(env, workers, node, input),
        }
    }

    /// An input for one life of a controller's process.
    pub(super) fn handle_command(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
        life: u64,
        input: Input,
    ) {
        if self.machines.get(&node).is_some_and(|machine| machine.life == life) {
            self.controller_input(env, workers, node, input);
        }
    }

    pub(super) fn controller_input(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
        input: Input,
    ) {
        let Some(machine) = self.machines.get_mut(&node) else { return };
        let Some(core) = &mut machine.core else { return };
        let sender = sender_of(&input).filter(|_| core.duties().is_some());
        let is_stranger = sender.is_some_and(|holder| !core.state().is_live(holder));
        match core.handle(input) {
            Ok(()) if is_stranger => env.checker.note_counted(sender),
            Ok(()) | Err(_) => {}
        }
        self.drive_controller(env, workers, node);
    }

    pub(super) fn handle_synced(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
        life: u64,
    ) {
        let Some(machine) = self.machines.get_mut(&node) else { return };
        if machine.life != life {
            return;
        }
        if machine.disk.fails {
            env.note(|| format!("n{node}: a sync failed, it stops"));
            self.condemn(env, workers, node);
            return;
        }
        let (token, end) = machine.unsynced.pop_front().expect("one for each event");
        machine.disk.sync(end);
        if env.hits(CrashPoint::AfterSyncBeforeSend) {
            self.crash_here(env, node);
            return;
        }
        if !bug::is(Bug::M1AckBeforeSync) {
            self.persisted(env, workers, node, token);
        }
    }

    /// Carries out the outputs of a controller. A core queues its messages to others before its
    /// events about itself, so the latter are looked at first: a process that dies right behind an
    /// entry has sent nothing of it.
    pub(super) fn drive_controller(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
    ) {
        let machine = self.machines.get_mut(&node).expect("a controller");
        let life = machine.life;
        let Some(core) = &mut machine.core else { return };
        let outputs: Vec<Output> = std::iter::from_fn(|| core.poll_output()).collect();
        let is_event = |output: &Output| matches!(output, Output::Event(_));
        let (events, others): (Vec<Output>, Vec<Output>) = outputs.into_iter().partition(is_event);
        for output in events.into_iter().chain(others) {
            self.perform_output(env, workers, node, output);
            if self.machines[&node].life != life {
                return;
            }
        }
    }

    fn perform_output(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
        output: Output,
    ) {
        match output {
            Output::Send { to, message } => {
                let briefed_turn = if let Message::Briefing(briefing) = &message.message {
                    briefing.seal.map(|seal| seal.turn)
                } else {
                    None
                };
                env.send(node, to, NetworkLane::Control, SimulatedPacket::Control(message));
                if briefed_turn.is_some_and(|turn| self.dies_in_broadcast(env, node, turn)) {
                    self.crash_here(env, node);
                }
            }
            Output::Persist { token, records } => self.persist(env, workers, node, token, &records),
            Output::Trim { .. } if env.hits(CrashPoint::AfterSnapshotBeforeTruncate) => {
                self.crash_here(env, node);
            }
            Output::Trim { before } => {
                let machine = self.machines.get_mut(&node).expect("a controller");
                machine.disk.trim(before.0);
            }
            Output::Solve(request) => {
                let (number, life) = (request.number, self.machines[&node].life);
                let machine = self.machines.get_mut(&node).expect("a controller");
                let solution = Box::new(machine.planner.solve(&request));
                let at = env.now.after(env.draws_work.between(1_000, 40_000));
                env.queue.push(at, WorldEvent::Solved { node, life, number, solution });
            }
            Output::Event(event) => self.controller_event(env, workers, node, event),
            Output::Fatal(cause) => {
                env.note(|| format!("n{node} must stop: {cause:?}"));
                match cause {
                    FatalCause::Version(error) => {
                        env.fail(LifeFailure::safety(Invariant::F1, format!("n{node}: {error}")));
                    }
                    FatalCause::Log(_) | FatalCause::OtherCluster { .. } => {
                        env.mark(Marker::StaleDiskRefused);
                    }
                }
                self.condemn(env, workers, node);
            }
        }
    }

    /// Whether a leader that has just sent a seal to one worker dies now, with others that do not
    /// have it.
    fn dies_in_broadcast(&mut self, env: &mut Surroundings<'_>, node: NodeId, turn: Turn) -> bool {
        let machine = self.machines.get_mut(&node).expect("a controller");
        let Some(core) = &machine.core else { return false };
        let are_others = core.state().live_workers().count() > 1;
        machine.unsent_seal.take_if(|of| *of == turn).is_some()
            && are_others
            && env.hits(CrashPoint::BroadcastHalf)
    }

    fn persist(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
        token: PersistToken,
        records: &[RaftRecord],
    ) {
        let has_snapshot = records.iter().any(|record| matches!(record, RaftRecord::Snapshot(_)));
        if env.hits(CrashPoint::BeforeAppend)
            || has_snapshot && env.hits(CrashPoint::BeforeSnapshotWrite)
        {
            self.crash_here(env, node);
            return;
        }
        let sync_us = env.draws_disk.between(200, env.case.options.sync_us_max);
        let machine = self.machines.get_mut(&node).expect("a controller");
        let end = machine.disk.append(records.iter().map(encode_record));
        let at = machine.sync_end(env.now, sync_us);
        let life = machine.life;
        machine.unsynced.push_back((token, end));
        if env.hits(CrashPoint::AfterAppendBeforeSync) {
            self.crash_here(env, node);
            return;
        }
        env.queue.push(at, WorldEvent::Synced { node, life });
        if bug::is(Bug::M1AckBeforeSync) {
            self.persisted(env, workers, node, token);
        }
    }

    fn persisted(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
        token: PersistToken,
    ) {
        let machine = self.machines.get_mut(&node).expect("a controller");
        if let Some(core) = &mut machine.core {
            core.on_persisted(token);
            self.drive_controller(env, workers, node);
        }
    }

    fn controller_event(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
        event: Event,
    ) {
        match event {
            Event::Applied { index, change, .. } => {
                self.note_pace(env, workers, node, &change);
                self.apply_change(env, workers, node, index, &change);
                if let StateChange::Sealed { seal, .. } = &*change {
                    env.log.mix(seal.square_sum_bits);
                    env.log.mix(seal.loss_sum_bits);
                }
                self.die_when_applied(env, node, &change);
            }
            Event::Refused { index, entry, refusal, .. } => {
                env.note(|| format!("n{node} #{index} {entry} changes nothing: {refusal}"));
                let core = self.machines[&node].core.as_ref().expect("it applied something");
                if core.state().cluster() == env.cluster {
                    env.checker.refused(index, &format!("{entry} refused: {refusal:?}"));
                }
                if let EntryRefusal::OtherGeneration { .. } | EntryRefusal::Seal(_) = refusal {
                    env.mark(Marker::LateEntryIgnored);
                }
            }
            Event::NoPlan(none) => env.note(|| format!("n{node} has no plan: {none}")),
            Event::Installed { index } => {
                env.note(|| format!("n{node} has a snapshot up to #{index}"));
                env.mark(Marker::SnapshotInstalled);
                if !env.is_calm {
                    self.cut_newcomer(env, node);
                }
                if env.hits(CrashPoint::AfterInstall) {
                    self.crash_here(env, node);
                }
            }
            Event::Leader { leader, term } => {
                if leader == Some(node) {
                    env.note(|| format!("n{node} leads in term {term}"));
                    env.checker.leads(node, term);
                }
            }
        }
    }
}

/// The sender of a message that a step is sealed by.
fn sender_of(input: &Input) -> Option<Holder> {
    let Input::Message { message, .. } = input else { return None };
    let (Message::Report { holder, .. } | Message::Held { holder, .. }) = &message.message else {
        return None;
    };
    Some(*holder)
}
