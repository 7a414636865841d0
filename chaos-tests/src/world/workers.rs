//! The machines of workers: session and runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbelastic_consensus::contact::Contact;
use zbelastic_consensus::member::Resources;
use zbelastic_consensus::message::Envelope;
use zbelastic_consensus::pre_copy::PreCopyPlan;
use zbelastic_consensus::session::{
    SessionInput, SessionOutput, SessionSetup, SessionTiming, WorkerCommand, WorkerEvent,
    WorkerSession,
};
use zbelastic_consensus::validation::Verdict;
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::{GRADIENT_FRAME_LIMITS, StageFactory};
use zbelastic_trainer::runtime::{RuntimeInput, RuntimeSetup, WorkerRuntime};
use zbelastic_types::{Bytes, NodeId};

use super::machines::{WorkerMachine, WorkerProcess};
use super::surroundings::{CrashedWorker, Surroundings};
use super::{LifeSetup, SimulatedPacket, WorldEvent};
use crate::bug::{self, Bug};
use crate::crash_points::CrashPoint;
use crate::network::NetworkLane;
use crate::queue::VirtualTime;

/// Until a process that was ended is started again.
const RESPAWN_US: u64 = 400_000;
const SEAT_TIMING: SessionTiming = SessionTiming { beat_ticks: 4, resend_ticks: 5 };

/// All workers of a life.
pub(super) struct Workers<M: StageFactory, S> {
    pub(super) machines: BTreeMap<NodeId, WorkerMachine<M, S>>,
    pub(super) setup: LifeSetup<M, S>,
}

impl<M: StageFactory, S: BatchSource + Clone> Workers<M, S> {
    pub(super) fn new(setup: LifeSetup<M, S>) -> Self {
        Self { machines: BTreeMap::new(), setup }
    }

    /// A machine that was not there before.
    pub(super) fn add_worker(&mut self, env: &mut Surroundings<'_>, controllers: Vec<NodeId>) {
        let node = env.numbers.new_node();
        let tick_us = env.draw_tick_us();
        let machine = WorkerMachine {
            life: 0,
            boot: 0,
            process: None,
            paused_until: VirtualTime(0),
            tick_us,
            slow_factor: 1,
            slow_until: VirtualTime(0),
            hangs_next: false,
            faults: crate::numeric_faults::NumericFaults::default(),
            is_gone: false,
            down_since: env.now,
        };
        self.machines.insert(node, machine);
        let is_first = env.now == VirtualTime(0);
        env.choose_program(node, is_first);
        self.restart_worker(env, node, controllers);
    }

    pub(super) fn restart_worker(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        controllers: Vec<NodeId>,
    ) {
        let boot = env.numbers.new_boot();
        let setup = SessionSetup {
            cluster: env.cluster,
            node,
            boot,
            resources: Resources {
                memory: Bytes(1 << 30),
                speed_permille: 1000,
                class: zbelastic_consensus::class::DeviceClass::Processors,
            },
            contact: Contact::of_node(node),
            controllers,
            timing: SEAT_TIMING,
        };
        let host_setup = RuntimeSetup {
            stage: self.setup.stage.clone(),
            gradient_limits: GRADIENT_FRAME_LIMITS,
        };
        let machine = self.machines.get_mut(&node).expect("a worker");
        if machine.process.is_some() || machine.is_gone {
            return;
        }
        let model = (self.setup.model)(&machine.faults);
        let starts_again = machine.life > 0;
        machine.life += 1;
        machine.boot = boot;
        machine.process = Some(WorkerProcess {
            session: WorkerSession::new(setup),
            runtime: WorkerRuntime::new(host_setup, model, self.setup.source.clone()),
            busy: None,
            backlog: Vec::new(),
            op_number: 0,
            pass_times: super::planning::PassTimes::default(),
            is_hung: false,
            done: 0,
            transfers: 0,
            reported_inventory: None,
            checked: None,
            flipped_layers: BTreeSet::new(),
            inventories_due: BTreeSet::new(),
            last_program: None,
        });
        let life = machine.life;
        let tick_us = machine.tick_us;
        env.queue.push(env.now.after(tick_us), WorldEvent::Tick(node, life));
        if starts_again {
            env.choose_program(node, false);
        }
        env.note(|| format!("w{node} starts"));
    }

    /// The operator of the cluster sends a worker an input; it arrives when the worker does not
    /// stand still.
    pub(super) fn send_operator_input(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        input: SessionInput,
    ) {
        let Some(machine) = self.machines.get(&node) else { return };
        let life = machine.life;
        match self.paused_until(env, node) {
            Some(until) => {
                env.queue.push(until, WorldEvent::Advice { node, life, input: Box::new(input) });
            }
            None => self.session_input(env, node, input),
        }
    }

    pub(super) fn handle_operator_input(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        life: u64,
        input: SessionInput,
    ) {
        if self.machines.get(&node).is_some_and(|machine| machine.life == life) {
            self.session_input(env, node, input);
        }
    }

    pub(super) fn tick_worker(&mut self, env: &mut Surroundings<'_>, node: NodeId, life: u64) {
        let Some(machine) = self.machines.get_mut(&node) else { return };
        if machine.life != life {
            return;
        }
        env.queue.push(env.now.after(machine.tick_us), WorldEvent::Tick(node, life));
        self.report_progress(env, node);
        self.session_input(env, node, SessionInput::Tick);
        self.runtime_input(env, node, life, RuntimeInput::Tick);
    }

    pub(super) fn session_message(
        &mut self,
        env: &mut Surroundings<'_>,
        from: NodeId,
        to: NodeId,
        message: Box<Envelope>,
    ) {
        self.session_input(env, to, SessionInput::Message { from, message });
    }

    pub(super) fn session_input(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        input: SessionInput,
    ) {
        let Some(machine) = self.machines.get_mut(&node) else { return };
        let Some(process) = &mut machine.process else { return };
        // A briefing that is refused changes nothing.
        let _ = process.session.handle(input);
        self.drive_session(env, node);
    }

    pub(super) fn report_to_session(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        event: WorkerEvent,
    ) {
        let point = match &event {
            WorkerEvent::Reported { .. } => Some(CrashPoint::BeforeReport),
            WorkerEvent::Saved { .. } => Some(CrashPoint::PiecesDoneBeforeTold),
            WorkerEvent::Following { .. } => Some(CrashPoint::FollowingBeforeTold),
            WorkerEvent::Busy { .. }
            | WorkerEvent::Progress { .. }
            | WorkerEvent::VerdictWaited { .. }
            | WorkerEvent::UpdateHeld(_)
            | WorkerEvent::Inventory { .. }
            | WorkerEvent::Loaded { .. }
            | WorkerEvent::LoadFailed { .. } => None,
        };
        if point.is_some_and(|point| env.hits(point)) {
            self.crash_here(env, node);
            return;
        }
        if let WorkerEvent::Inventory { index, layers } = &event {
            self.check_inventory(env, node, (*index, layers));
            if let Some(process) = self.process_mut(node) {
                process.inventories_due.remove(index);
                process.reported_inventory = Some((env.now, layers.clone()));
            }
        }
        self.session_input(env, node, SessionInput::Event(event));
    }

    fn drive_session(&mut self, env: &mut Surroundings<'_>, node: NodeId) {
        loop {
            let Some(machine) = self.machines.get_mut(&node) else { return };
            let life = machine.life;
            let Some(process) = &mut machine.process else { return };
            let Some(output) = process.session.poll_output() else { return };
            match output {
                SessionOutput::Send { to, message } => {
                    env.send(node, to, NetworkLane::Control, SimulatedPacket::Control(message));
                }
                SessionOutput::Command(command) => {
                    let is_settle = matches!(command, WorkerCommand::ApplySeal(_));
                    if is_settle && env.hits(CrashPoint::BeforeStageApply) {
                        self.crash_here(env, node);
                        return;
                    }
                    let is_run = matches!(command, WorkerCommand::Run { .. });
                    if is_run && env.hits(CrashPoint::BeforeStep) {
                        self.crash_here(env, node);
                        return;
                    }
                    let command = self.tampered(node, command);
                    self.note_command(env, node, &command);
                    let is_end = matches!(command, WorkerCommand::EndLife | WorkerCommand::Forget);
                    if is_end && self.process_mut(node).is_some_and(|process| process.is_hung) {
                        // Nothing ends an operation that hangs but the end of its process.
                        self.crash_within(env, (node, RESPAWN_US), false);
                        return;
                    }
                    self.runtime_input(env, node, life, RuntimeInput::Command(command));
                }
                SessionOutput::End(_) => {
                    self.crash_within(env, (node, RESPAWN_US), false);
                    return;
                }
            }
        }
    }

    fn process_mut(&mut self, node: NodeId) -> Option<&mut WorkerProcess<M, S>> {
        self.machines.get_mut(&node)?.process.as_mut()
    }

    /// The command as a machine with a known bug changes it.
    fn tampered(&mut self, node: NodeId, command: WorkerCommand) -> WorkerCommand {
        if let WorkerCommand::ApplySeal(seal) = &command {
            let is_replaying = seal.verdict == Verdict::Replay;
            self.machines[&node].faults.borrow_mut().is_replaying = is_replaying;
        }
        let WorkerCommand::Load(mut load) = command else { return command };
        let process = self.process_mut(node);
        let program = load.plan.program.clone();
        let before = process.and_then(|process| process.last_program.replace(program));
        if let Some(program) = before.filter(|before| {
            bug::is(Bug::M5OldProgram) && before.placement == load.plan.program.placement
        }) {
            let mut plan = (*load.plan).clone();
            plan.program = program;
            load.plan = Arc::new(plan);
        }
        WorkerCommand::Load(load)
    }

    fn note_command(&mut self, env: &mut Surroundings<'_>, node: NodeId, command: &WorkerCommand) {
        match command {
            WorkerCommand::ApplySeal(_) | WorkerCommand::Release => {}
            WorkerCommand::TakeInventory { index, .. } => {
                if let Some(process) = self.process_mut(node) {
                    process.inventories_due.insert(*index);
                }
            }
            WorkerCommand::EndLife => {
                env.note(|| format!("w{node} is fenced off and keeps what is sealed"));
            }
            WorkerCommand::Stop => env.note(|| format!("w{node} stops")),
            WorkerCommand::PreCopy { holder: me, pre_copy } => {
                env.pre_copy.clone_from(pre_copy);
                let followed = |r: &Arc<PreCopyPlan>| r.followed_by(*me).count();
                let count = pre_copy.as_ref().map_or(0, followed);
                env.note(|| format!("w{node} follows {count} layers"));
            }
            WorkerCommand::Rewind => {
                env.note(|| format!("w{node} goes back"));
            }
            WorkerCommand::Load(load) => {
                let generation = load.plan.generation;
                let stage = load.stage;
                env.note(|| format!("w{node} loads stage {stage} of generation {generation}"));
            }
            WorkerCommand::Run { generation } => {
                env.note(|| format!("w{node} runs generation {generation}"));
            }
            WorkerCommand::Save { version, .. } => {
                env.note(|| format!("w{node} is to write version {version}"));
            }
            WorkerCommand::Forget => {
                if let Some(process) = self.process_mut(node) {
                    process.inventories_due.clear();
                }
                env.note(|| format!("w{node} is of another cluster and forgets"));
            }
        }
    }

    /// Ends a process. Yields whether it ran.
    pub(super) fn crash_worker(&mut self, env: &mut Surroundings<'_>, node: NodeId) -> bool {
        let Some(machine) = self.machines.get_mut(&node) else { return false };
        if machine.process.take().is_none() {
            return false;
        }
        machine.life += 1;
        machine.down_since = env.now;
        machine.paused_until = VirtualTime(0);
        // Effects that it did not report are gone with it.
        machine.faults.borrow_mut().take_effects();
        machine.faults.borrow_mut().forget_flip();
        env.store.writer_crashed(node, &mut env.draws_store);
        env.note(|| format!("w{node} dies"));
        env.checker.damage.gone(node, env.now);
        true
    }

    /// Kills the process that has just come to a crash point, and disarms the point.
    pub(super) fn crash_here(&mut self, env: &mut Surroundings<'_>, node: NodeId) {
        let armed = env.disarm();
        self.crash_within(env, (node, armed.down_us), true);
    }

    /// Kills a process in the middle of its work. The closing of its connections, which others
    /// notice, comes behind it.
    fn crash_within(
        &mut self,
        env: &mut Surroundings<'_>,
        (node, down_us): (NodeId, u64),
        is_injected: bool,
    ) {
        let ran = self.crash_worker(env, node);
        env.crashed.push_back(CrashedWorker { node, down_us, is_injected, ran });
    }

    /// When a machine that stands still goes on.
    pub(super) fn paused_until(&self, env: &Surroundings<'_>, node: NodeId) -> Option<VirtualTime> {
        let until = self.machines.get(&node).map(|machine| machine.paused_until);
        until.filter(|until| *until > env.now)
    }
}
