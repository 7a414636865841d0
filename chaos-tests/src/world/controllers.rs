//! The machines of controllers.

use std::collections::{BTreeSet, VecDeque};

use zbelastic_consensus::contact::Contact;
use zbelastic_consensus::core::{
    Core, CoreSetup, CoreStart, Event, FatalCause, Input, OperatorCommand, Output, StartError,
};
use zbelastic_consensus::duty::DutyTiming;
use zbelastic_consensus::job::JobChange;
use zbelastic_consensus::member::{Holder, MemberChange, Role};
use zbelastic_consensus::message::{Envelope, Message};
use zbelastic_consensus::raft::{
    PersistToken, RaftMessage, RaftRecord, RaftSetup, RaftStartError, RecoveredLog, encode_record,
};
use zbelastic_consensus::state::{EntryRefusal, PlanPhase, State, StateChange};
use zbelastic_consensus::validation::Turn;
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_types::{Generation, NodeId};

use super::storm::ArmedCrashPoint;
use super::{ControllerMachine, SimulatedPacket, SolutionResult, TICK_US, World, WorldEvent};
use crate::access::{contacts, credentials};
use crate::bug::{self, Bug};
use crate::crash_points::CrashPoint;
use crate::disk::MachineDisk;
use crate::failure::{Invariant, LifeFailure};
use crate::life::LOST_AFTER_TICKS;
use crate::markers::Marker;
use crate::network::NetworkLane;
use crate::planning::LifePlanner;
use crate::queue::VirtualTime;

/// Ticks to an election of the first controller, and between those of two.
const ELECTION_TICKS_MIN: u32 = 10;
const ELECTION_TICKS_APART: u32 = 4;

/// How long a leader of a life waits for what.
const TIMING: DutyTiming =
    DutyTiming { lost_after_ticks: LOST_AFTER_TICKS, progress_ticks: 200, inventory_ticks: 40 };

impl<M: StageFactory, S: BatchSource + Clone> World<'_, M, S> {
    /// The first controllers of a cluster, with nothing or with a state.
    pub(super) fn create_controllers(&mut self, count: u32, state: Option<State>) {
        let nodes: Vec<NodeId> = (0..count).map(|_| self.new_controller()).collect();
        let first = u64::from(self.case.options.controllers);
        let state = state
            .unwrap_or_else(|| State::new(self.cluster))
            .in_format(self.first_format())
            .with_controllers(contacts(&nodes))
            .with_credentials(credentials(first, self.case.options.workers));
        for node in &nodes {
            self.add_controller_machine(*node);
            self.choose_program(*node, true);
            self.controllers.get_mut(node).expect("added above").was_admitted = true;
            self.start_anew(*node, nodes.clone(), state.clone());
        }
    }

    /// As one of the first voters. If the machine dies before anything of it is durable, the
    /// operator gives the same command again.
    fn start_anew(&mut self, node: NodeId, voters: Vec<NodeId>, state: State) {
        let machine = self.controllers.get_mut(&node).expect("a controller");
        machine.first = Some(Box::new((voters.clone(), state.clone())));
        self.start_core(node, CoreStart::Create { voters, state: Box::new(state) });
    }

    /// Ticks to an election, other ones than any controller in use has: two with the same would
    /// stand against each other for ever.
    fn election_ticks(&self) -> u32 {
        let in_use = self.controllers.values().filter(|machine| !machine.is_condemned);
        let taken: Vec<u32> = in_use.map(|machine| machine.election_ticks).collect();
        let mut ticks = (0..).map(|index| ELECTION_TICKS_MIN + ELECTION_TICKS_APART * index);
        ticks.find(|ticks| !taken.contains(ticks)).expect("there are enough numbers")
    }

    fn add_controller_machine(&mut self, node: NodeId) {
        let election_ticks = self.election_ticks();
        let tick_us = self.draw_tick_us();
        let machine = ControllerMachine {
            life: 0,
            core: None,
            planner: LifePlanner::new(&self.case.options, &self.setup.stage),
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
        self.controllers.insert(node, machine);
    }

    pub(super) fn draw_tick_us(&mut self) -> u64 {
        let drift = self.case.options.clock_drift;
        let share = self.draws_work.share() * 2.0 - 1.0;
        (TICK_US as f64 * (1.0 + drift * share)) as u64
    }

    fn start_core(&mut self, node: NodeId, start: CoreStart) {
        let boot = self.new_boot();
        if self.controllers[&node].life > 0 {
            self.choose_program(node, false);
        }
        let newest_format = self.reads(node);
        let machine = self.controllers.get_mut(&node).expect("a controller");
        machine.life += 1;
        let mut raft = RaftSetup::new(node, boot, machine.election_ticks);
        raft.compact_after = self.case.options.compact_after;
        raft.tail_entries = 8;
        let contact = Contact::of_node(node);
        let setup =
            CoreSetup { cluster: self.cluster, contact, raft, timing: TIMING, newest_format };
        match Core::new(setup, start) {
            Ok(core) => machine.core = Some(core),
            Err(StartError::Raft(RaftStartError::NeverStarted)) if machine.first.is_some() => {
                machine.disk = MachineDisk::default();
                let (voters, state) = *machine.first.take().expect("looked at above");
                return self.start_anew(node, voters, state);
            }
            Err(error) => {
                self.note(|| format!("n{node} does not start: {error}"));
                if let StartError::Snapshot(error) = &error {
                    self.fail(LifeFailure::safety(Invariant::F1, format!("n{node}: {error}")));
                }
                self.condemn(node);
                return;
            }
        }
        let life = machine.life;
        let tick_us = machine.tick_us;
        (machine.sync_begins_at, machine.synced_at) = (self.now, self.now);
        machine.started_at = self.now;
        machine.planner = LifePlanner::new(&self.case.options, &self.setup.stage);
        machine.plan_steps = (Generation(0), 0);
        machine.unsynced.clear();
        (machine.reports, machine.unsent_seal) = (None, None);
        self.queue.push(self.now.after(tick_us), WorldEvent::Tick(node, life));
        self.drive_controller(node);
    }

    /// Starts a controller from its disk.
    pub(super) fn restart_controller(&mut self, node: NodeId) {
        let machine = self.controllers.get_mut(&node).expect("a controller");
        if machine.core.is_some() || machine.is_condemned {
            return;
        }
        let recovered = RecoveredLog::from_records(machine.disk.records());
        match recovered {
            Ok(recovered) => {
                if recovered.torn {
                    machine.disk.cut_last();
                    self.markers.hit(Marker::TornTailCut);
                }
                machine.disk.renumber();
                self.note(|| format!("n{node} starts again"));
                let others = self.controllers.keys().copied().filter(|other| *other != node);
                let log = Box::new(recovered);
                let controllers = others.collect();
                let boot = self.new_boot();
                self.start_core(node, CoreStart::Recover { log, controllers, boot });
            }
            Err(error) => {
                self.note(|| format!("n{node} cannot use its disk: {error}"));
                self.mark(Marker::DamagedDiskRefused);
                self.condemn(node);
            }
        }
    }

    /// A controller whose disk is not to be used comes back as another node.
    pub(super) fn condemn(&mut self, node: NodeId) {
        let Some(machine) = self.controllers.get_mut(&node) else { return };
        if std::mem::replace(&mut machine.is_condemned, true) {
            return;
        }
        machine.core = None;
        machine.life += 1;
        self.dead.insert(node);
        self.note(|| format!("n{node} is given up"));
        let _ = self.add_controller(&[node]);
    }

    /// A controller that was not there before requests from all others but these to be admitted.
    pub(super) fn add_controller(&mut self, gone: &[NodeId]) -> NodeId {
        let new = self.new_controller();
        let controllers: Vec<NodeId> = self.controllers.keys().copied().collect();
        let controllers = controllers.into_iter().filter(|node| !gone.contains(node)).collect();
        self.add_controller_machine(new);
        self.note(|| format!("n{new} is to become a controller"));
        let boot = self.new_boot();
        self.start_core(new, CoreStart::Wait { controllers, boot });
        self.send_controllers();
        new
    }

    pub(super) fn tick_controller(&mut self, node: NodeId, life: u64) {
        let machine = self.controllers.get_mut(&node).expect("a controller");
        if machine.life != life {
            return;
        }
        self.queue.push(self.now.after(machine.tick_us), WorldEvent::Tick(node, life));
        self.controller_input(node, Input::Tick);
        self.send_estimate(node);
    }

    pub(super) fn controller_message(&mut self, from: NodeId, to: NodeId, message: Box<Envelope>) {
        let point = if let Message::Report { holder, report, .. } = &message.message {
            self.report_point(to, *holder, report.turn)
        } else if let Message::Raft(RaftMessage::Raft(_)) = &message.message {
            self.is_learner(to).then_some(CrashPoint::LearnerCatchingUp)
        } else {
            None
        };
        let is_up = self.controllers[&to].core.is_some();
        if is_up && point.is_some_and(|point| self.hits(point)) {
            self.crash_here(to);
            return;
        }
        self.connect(to, from);
        self.controller_input(to, Input::Message { from, message });
    }

    /// Whether a controller gets the log and has no vote yet. This is only computed if a process is
    /// to die there, for there are very many messages.
    fn is_learner(&self, node: NodeId) -> bool {
        let is_armed = |armed: &ArmedCrashPoint| armed.point == CrashPoint::LearnerCatchingUp;
        self.storm.armed.iter().any(is_armed)
            && self.newest_core().is_some_and(|core| core.status().members.learners.contains(&node))
    }

    /// Whether a report, the first of its stage to this leader for the open turn, is one of several
    /// that came, or the last of all.
    fn report_point(&mut self, to: NodeId, holder: Holder, turn: Turn) -> Option<CrashPoint> {
        let machine = self.controllers.get_mut(&to).expect("a controller");
        let core = machine.core.as_ref().filter(|core| core.duties().is_some())?;
        let stages = &core.state().plan()?.record.stages;
        if core.state().open_turn() != turn || !stages.contains(&holder) {
            return None;
        }
        let reports = machine.reports.take_if(|(of, _)| *of == turn);
        let reports = reports.unwrap_or_else(|| (turn, BTreeSet::new()));
        let (_, holders) = machine.reports.insert(reports);
        if !holders.insert(holder) {
            return None;
        }
        let is_last = holders.len() == stages.len();
        Some(if is_last { CrashPoint::BeforePropose } else { CrashPoint::StatsPartial })
    }

    /// The operator of the cluster sends a controller an input; it arrives when the controller does
    /// not stand still.
    pub(super) fn command(&mut self, node: NodeId, input: Input) {
        let life = self.controllers[&node].life;
        match self.paused_until(node) {
            Some(until) => {
                self.queue.push(until, WorldEvent::Command { node, life, input: Box::new(input) });
            }
            None => self.controller_input(node, input),
        }
    }

    pub(super) fn handle_command(&mut self, node: NodeId, life: u64, input: Input) {
        if self.controllers.get(&node).is_some_and(|machine| machine.life == life) {
            self.controller_input(node, input);
        }
    }

    pub(super) fn controller_input(&mut self, node: NodeId, input: Input) {
        let Some(machine) = self.controllers.get_mut(&node) else { return };
        let Some(core) = &mut machine.core else { return };
        let sender = sender_of(&input).filter(|_| core.duties().is_some());
        let is_stranger = sender.is_some_and(|holder| !core.state().is_live(holder));
        match core.handle(input) {
            Ok(()) if is_stranger => self.checker.note_counted(sender),
            Ok(()) | Err(_) => {}
        }
        self.drive_controller(node);
    }

    pub(super) fn handle_synced(&mut self, node: NodeId, life: u64) {
        let Some(machine) = self.controllers.get_mut(&node) else { return };
        if machine.life != life {
            return;
        }
        if machine.disk.fails {
            self.note(|| format!("n{node}: a sync failed, it stops"));
            self.condemn(node);
            return;
        }
        let (token, end) = machine.unsynced.pop_front().expect("one for each event");
        machine.disk.sync(end);
        if self.hits(CrashPoint::AfterSyncBeforeSend) {
            self.crash_here(node);
            return;
        }
        if !bug::is(Bug::M1AckBeforeSync) {
            self.persisted(node, token);
        }
    }

    pub(super) fn handle_solved(
        &mut self,
        node: NodeId,
        life: u64,
        number: u64,
        solution: Box<SolutionResult>,
    ) {
        if self.controllers.get(&node).is_some_and(|machine| machine.life == life) {
            self.controller_input(node, Input::Solved { number, solution });
        }
    }

    /// Carries out the outputs of a controller. A core queues what it sends to others before its
    /// events about itself, so the latter are looked at first: a process that dies right behind an
    /// entry has sent nothing of it.
    pub(super) fn drive_controller(&mut self, node: NodeId) {
        let machine = self.controllers.get_mut(&node).expect("a controller");
        let life = machine.life;
        let Some(core) = &mut machine.core else { return };
        let outputs: Vec<Output> = std::iter::from_fn(|| core.poll_output()).collect();
        let is_event = |output: &Output| matches!(output, Output::Event(_));
        let (events, others): (Vec<Output>, Vec<Output>) = outputs.into_iter().partition(is_event);
        for output in events.into_iter().chain(others) {
            self.perform_output(node, output);
            if self.controllers[&node].life != life {
                return;
            }
        }
    }

    fn perform_output(&mut self, node: NodeId, output: Output) {
        match output {
            Output::Send { to, message } => {
                let briefed_turn = if let Message::Briefing(briefing) = &message.message {
                    briefing.seal.map(|seal| seal.turn)
                } else {
                    None
                };
                self.send(node, to, NetworkLane::Control, SimulatedPacket::Control(message));
                if briefed_turn.is_some_and(|turn| self.dies_in_broadcast(node, turn)) {
                    self.crash_here(node);
                }
            }
            Output::Persist { token, records } => self.persist(node, token, &records),
            Output::Trim { .. } if self.hits(CrashPoint::AfterSnapshotBeforeTruncate) => {
                self.crash_here(node);
            }
            Output::Trim { before } => {
                let machine = self.controllers.get_mut(&node).expect("a controller");
                machine.disk.trim(before.0);
            }
            Output::Solve(request) => {
                let (number, life) = (request.number, self.controllers[&node].life);
                let machine = self.controllers.get_mut(&node).expect("a controller");
                let solution = Box::new(machine.planner.solve(&request));
                let at = self.now.after(self.draws_work.between(1_000, 40_000));
                self.queue.push(at, WorldEvent::Solved { node, life, number, solution });
            }
            Output::Event(event) => self.controller_event(node, event),
            Output::Fatal(cause) => {
                self.note(|| format!("n{node} must stop: {cause:?}"));
                match cause {
                    FatalCause::Version(error) => {
                        self.fail(LifeFailure::safety(Invariant::F1, format!("n{node}: {error}")));
                    }
                    FatalCause::Log(_) | FatalCause::OtherCluster { .. } => {
                        self.mark(Marker::StaleDiskRefused);
                    }
                }
                self.condemn(node);
            }
        }
    }

    /// Whether a leader that has just sent a seal to one worker dies now, with others that do not
    /// have it.
    fn dies_in_broadcast(&mut self, node: NodeId, turn: Turn) -> bool {
        let machine = self.controllers.get_mut(&node).expect("a controller");
        let Some(core) = &machine.core else { return false };
        let are_others = core.state().live_workers().count() > 1;
        machine.unsent_seal.take_if(|of| *of == turn).is_some()
            && are_others
            && self.hits(CrashPoint::BroadcastHalf)
    }

    fn persist(&mut self, node: NodeId, token: PersistToken, records: &[RaftRecord]) {
        let has_snapshot = records.iter().any(|record| matches!(record, RaftRecord::Snapshot(_)));
        if self.hits(CrashPoint::BeforeAppend)
            || has_snapshot && self.hits(CrashPoint::BeforeSnapshotWrite)
        {
            self.crash_here(node);
            return;
        }
        let sync_us = self.draws_disk.between(200, self.case.options.sync_us_max);
        let machine = self.controllers.get_mut(&node).expect("a controller");
        let end = machine.disk.append(records.iter().map(encode_record));
        let at = machine.sync_end(self.now, sync_us);
        let life = machine.life;
        machine.unsynced.push_back((token, end));
        if self.hits(CrashPoint::AfterAppendBeforeSync) {
            self.crash_here(node);
            return;
        }
        self.queue.push(at, WorldEvent::Synced { node, life });
        if bug::is(Bug::M1AckBeforeSync) {
            self.persisted(node, token);
        }
    }

    fn persisted(&mut self, node: NodeId, token: PersistToken) {
        let machine = self.controllers.get_mut(&node).expect("a controller");
        if let Some(core) = &mut machine.core {
            core.on_persisted(token);
            self.drive_controller(node);
        }
    }

    fn controller_event(&mut self, node: NodeId, event: Event) {
        match event {
            Event::Applied { index, change } => {
                self.note_pace(node, &change);
                self.applied(node, index, &change);
                if let StateChange::Sealed { seal, .. } = &*change {
                    self.log.mix(seal.square_sum_bits);
                    self.log.mix(seal.loss_sum_bits);
                }
                self.die_when_applied(node, &change);
            }
            Event::Refused { index, entry, refusal } => {
                self.note(|| format!("n{node} #{index} {entry} changes nothing: {refusal}"));
                let core = self.controllers[&node].core.as_ref().expect("it applied something");
                if core.state().cluster() == self.cluster {
                    self.checker.refused(index, &format!("{entry} refused: {refusal:?}"));
                }
                if let EntryRefusal::OtherGeneration { .. } | EntryRefusal::Seal(_) = refusal {
                    self.mark(Marker::LateEntryIgnored);
                }
            }
            Event::NoPlan(none) => self.note(|| format!("n{node} has no plan: {none}")),
            Event::Installed { index } => {
                self.note(|| format!("n{node} has a snapshot up to #{index}"));
                self.mark(Marker::SnapshotInstalled);
                if !self.is_calm {
                    self.cut_newcomer(node);
                }
                if self.hits(CrashPoint::AfterInstall) {
                    self.crash_here(node);
                }
            }
            Event::Leader { leader, term } => {
                if leader == Some(node) {
                    self.note(|| format!("n{node} leads in term {term}"));
                    self.checker.leads(node, term);
                }
            }
        }
    }

    /// The crash points that lie right behind an applied entry.
    fn die_when_applied(&mut self, node: NodeId, change: &StateChange) {
        let leads = self.leader() == Some(node);
        let sealed =
            if let StateChange::Sealed { seal, .. } = change { Some(seal.turn) } else { None };
        let point = match change {
            StateChange::Sealed { .. } => Some(CrashPoint::AfterCommitBeforeBroadcast),
            StateChange::Adopted(_) => Some(CrashPoint::PlanCommittedBeforeLoad),
            StateChange::Ready(_) => self.is_half_ready(node).then_some(CrashPoint::BarrierHalf),
            StateChange::Members(changes) => {
                changes.iter().any(admits_worker).then_some(CrashPoint::AdmittedBeforePlan)
            }
            StateChange::Planned(_)
            | StateChange::Resumed(_)
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Checkpoint { .. }
            | StateChange::Rewound { .. }
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Access(_)
            | StateChange::Format(_) => None,
        };
        let dies = point.is_some_and(|point| leads && self.hits(point))
            || self.hits(CrashPoint::AfterApply);
        if dies {
            if leads && sealed.is_some() {
                self.mark(Marker::LeaderLostBeforeBroadcast);
            }
            self.crash_here(node);
        } else if leads && sealed.is_some() {
            self.controllers.get_mut(&node).expect("a controller").unsent_seal = sealed;
        }
    }

    /// Whether some holders of a plan are ready and others are not.
    fn is_half_ready(&self, node: NodeId) -> bool {
        let core = self.controllers[&node].core.as_ref();
        match core.and_then(|core| core.state().plan()).map(|plan| &plan.phase) {
            Some(PlanPhase::Loading(slots)) => {
                slots.iter().any(Option::is_some) && slots.iter().any(Option::is_none)
            }
            Some(PlanPhase::Running | PlanPhase::Closed) | None => false,
        }
    }

    /// Starts the job once there is a leader; removes controllers that are gone for good.
    pub(super) fn administer(&mut self) {
        self.queue.push(self.now.after(super::ADMIN_US), WorldEvent::Admin);
        self.audit_checkpoints();
        let Some(leader) = self.leader() else { return };
        let core = self.controllers[&leader].core.as_ref().expect("it leads");
        let has_job = core.state().job().is_some();
        let is_member = |node: &&NodeId| core.state().membership().is_controller(**node);
        let dead = self.dead.iter().find(is_member).copied();
        if !has_job {
            let spec = self.setup.spec.clone();
            let command = OperatorCommand::Job(JobChange::Start(spec));
            self.command(leader, Input::Command(command));
        } else if let Some(dead) = dead {
            self.command(leader, Input::Command(OperatorCommand::Remove(dead)));
        }
    }
}

fn admits_worker(change: &MemberChange) -> bool {
    match change {
        MemberChange::Admit { role, .. } => *role == Role::Worker,
        MemberChange::Lost { .. } | MemberChange::Drain { .. } | MemberChange::Moved { .. } => {
            false
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
