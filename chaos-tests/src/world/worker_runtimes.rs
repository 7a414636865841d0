//! Worker runtimes: operations that need time, frames, layers read and written.

use std::collections::BTreeSet;

use zbelastic_consensus::message::HeldLayer;
use zbelastic_consensus::session::{WorkerCommand, WorkerEvent};
use zbelastic_schedule::{Op, Reduction, TreeExchange};
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::{LayerCopy, LoadedLayer, StageFactory, layer_digest};
use zbelastic_trainer::runtime::{PeerBody, PeerFrame, RuntimeInput, RuntimeOutput};
use zbelastic_trainer::stage::{EngineActivity, EngineProgress, SealedState, WaitReason};
use zbelastic_types::{Generation, NodeId, Step};

use super::WorldEvent;
use super::machines::WorkerProcess;
use super::surroundings::Surroundings;
use super::workers::Workers;
use crate::bug::{self, Bug};
use crate::crash_points::CrashPoint;
use crate::failure::Invariant;
use crate::markers::Marker;
use crate::store::{PieceKey, PieceReach, SimulatedStore};
use crate::work_durations::LongWork;

impl<M: StageFactory, S: BatchSource + Clone> Workers<M, S> {
    pub(super) fn peer_frame(&mut self, env: &mut Surroundings<'_>, to: NodeId, frame: PeerFrame) {
        let point = match &frame.body {
            PeerBody::Layer(_) => Some(CrashPoint::TransferHalf),
            PeerBody::StandbyLayer { .. } => Some(CrashPoint::AheadHalf),
            PeerBody::StandbyRequest { .. } => Some(CrashPoint::AskedAhead),
            PeerBody::Frame(_)
            | PeerBody::Prefix(_)
            | PeerBody::Partial(_)
            | PeerBody::Gradients { .. }
            | PeerBody::Fetch { .. }
            | PeerBody::StandbyUpdate { .. } => None,
        };
        if point.is_some_and(|point| env.hits(point)) {
            self.crash_here(env, to);
            return;
        }
        let Some(machine) = self.machines.get(&to) else { return };
        let life = machine.life;
        self.runtime_input(env, to, life, RuntimeInput::Peer(frame));
    }

    /// Passes an input to a runtime, now or when its operation is over.
    pub(super) fn runtime_input(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        life: u64,
        input: RuntimeInput,
    ) {
        let Some(machine) = self.machines.get_mut(&node) else { return };
        if machine.life != life {
            return;
        }
        let Some(process) = &mut machine.process else { return };
        if process.busy.is_some() {
            process.backlog.push(input);
            return;
        }
        self.apply_runtime_input(env, node, input);
        self.run_runtime(env, node);
    }

    fn apply_runtime_input(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        input: RuntimeInput,
    ) {
        let moves = match &input {
            RuntimeInput::Peer(frame) => {
                matches!(frame.body, PeerBody::Layer(_) | PeerBody::StandbyLayer { .. })
            }
            RuntimeInput::Tick
            | RuntimeInput::Command(_)
            | RuntimeInput::Read { .. }
            | RuntimeInput::Exported { .. }
            | RuntimeInput::Published { .. }
            | RuntimeInput::Outer(_)
            | RuntimeInput::Written { .. } => false,
        };
        let frame = match &input {
            RuntimeInput::Peer(frame) => {
                Some((frame.generation, frame.sender, is_work(&frame.body)))
            }
            RuntimeInput::Tick
            | RuntimeInput::Command(_)
            | RuntimeInput::Read { .. }
            | RuntimeInput::Exported { .. }
            | RuntimeInput::Published { .. }
            | RuntimeInput::Outer(_)
            | RuntimeInput::Written { .. } => None,
        };
        let ends_life = matches!(&input, RuntimeInput::Command(WorkerCommand::EndLife));
        let is_command = matches!(&input, RuntimeInput::Command(_));
        let Some(machine) = self.machines.get_mut(&node) else { return };
        let starts = machine.starts_plan(&input);
        let Some(process) = &mut machine.process else { return };
        let plan = process.runtime.active_stage().map(|active| active.plan());
        let plan = plan.map(|plan| (plan.generation, plan.stages.clone()));
        let taken = process.runtime.handle(input);
        process.done += u64::from(moves && taken.is_ok());
        if ends_life {
            let is_member = process.is_of(env.cluster);
            let idle_layers = process.runtime.idle_layers().values();
            idle_layers.for_each(|image| env.checker.keeps(node, image.version, is_member));
        }
        if let Some((generation, sender, true)) = frame {
            match taken {
                Ok(()) => env.checker.processed(generation, sender, plan),
                Err(_) => {
                    let is_old = plan.is_some_and(|(now, _)| generation.0 + 2 <= now.0);
                    if is_old {
                        env.mark(Marker::FrameTwoGenerationsOld);
                    }
                }
            }
        }
        if starts {
            machine.forget_flipped();
        } else if is_command {
            machine.retain_flipped();
        }
        self.drive_runtime(env, node);
        self.check_runtime(env, node);
        self.check_standby_layers(env, node);
    }

    /// Runs operations until one needs time or none can run.
    pub(super) fn run_runtime(&mut self, env: &mut Surroundings<'_>, node: NodeId) {
        loop {
            let Some(machine) = self.machines.get_mut(&node) else { return };
            let Some(process) = &mut machine.process else { return };
            if process.busy.is_some() {
                return;
            }
            let activity = match process.runtime.run_next() {
                Some(EngineProgress::Ran(activity)) => activity,
                Some(EngineProgress::Failed(error)) => panic!("memory does not fail: {error}"),
                Some(EngineProgress::Faulted(fault)) => {
                    panic!("processors do not give up: {fault}")
                }
                Some(EngineProgress::Blocked(WaitReason::Outer { .. })) => {
                    // To look whether another island has answered is progress.
                    process.done += 1;
                    return;
                }
                Some(EngineProgress::Blocked(_) | EngineProgress::Finished) | None => return,
            };
            process.done += 1;
            let takes_time = match activity {
                EngineActivity::Op { op: Op::Reduce(Reduction::ReceiveTied, _), .. } => {
                    env.mark(Marker::TiedAcrossStages);
                    false
                }
                EngineActivity::Op {
                    op: Op::Reduce(Reduction::Merge(TreeExchange::Gather(_)), _),
                    ..
                } => {
                    env.mark(Marker::SumsGathered);
                    false
                }
                EngineActivity::Op {
                    op: Op::Reduce(Reduction::Merge(TreeExchange::GatherCandidates(_)), _),
                    ..
                } => {
                    env.mark(Marker::CandidatesGathered);
                    let engine = process.runtime.active_stage().map(|active| active.engine());
                    if engine.is_some_and(|engine| engine.is_committing()) {
                        env.mark(Marker::ClippedCandidatesGathered);
                    }
                    false
                }
                EngineActivity::Op {
                    op: Op::Reduce(Reduction::Merge(TreeExchange::Reduce(_)), _),
                    ..
                } => {
                    let plan = process.runtime.active_stage().map(|active| active.plan());
                    let columns = plan.map_or(1, |plan| plan.program.placement.column_count());
                    if columns > 1 {
                        env.mark(Marker::PipelinesAdded);
                    }
                    false
                }
                EngineActivity::Op { op, .. } => matches!(op, Op::Compute(..)),
                EngineActivity::Evaluation { .. } => true,
                EngineActivity::Settled { .. } => false,
            };
            if takes_time {
                self.begin_op(env, node, activity);
                return;
            }
            self.drive_runtime(env, node);
            self.check_runtime(env, node);
        }
    }

    fn begin_op(&mut self, env: &mut Surroundings<'_>, node: NodeId, activity: EngineActivity) {
        let drawn_us = env.draws_work.between(1_000, env.case.options.op_us_max);
        let process = self.machines.get(&node).and_then(|machine| machine.process.as_ref());
        let stage = &self.setup.stage;
        let pass_us = process.and_then(|process| process.pass_us(env, stage, (node, activity)));
        let op_us = pass_us.unwrap_or(drawn_us);
        let now = env.now;
        let long = env.long_us(LongWork::Op);
        if let Some(us) = long {
            env.note_long(LongWork::Op, us);
        }
        let machine = self.machines.get_mut(&node).expect("a worker");
        let life = machine.life;
        let factor = if machine.slow_until > now { machine.slow_factor } else { 1 };
        let hangs = std::mem::take(&mut machine.hangs_next);
        let process = machine.process.as_mut().expect("it runs");
        let outputs = std::iter::from_fn(|| process.runtime.poll_output()).collect();
        process.op_number += 1;
        let number = process.op_number;
        process.busy = Some((number, outputs));
        process.is_hung = hangs;
        if hangs {
            env.note(|| format!("w{node}: an operation hangs"));
        } else {
            let op_us = long.unwrap_or(op_us * factor);
            process.pass_times.add(activity, op_us);
            env.queue.push(now.after(op_us), WorldEvent::OpDone { node, life, number });
        }
        self.report_to_session(env, node, WorkerEvent::Busy { is_busy: true });
    }

    pub(super) fn handle_op_done(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        life: u64,
        number: u64,
    ) {
        let Some(machine) = self.machines.get_mut(&node) else { return };
        if machine.life != life {
            return;
        }
        let Some(process) = &mut machine.process else { return };
        if process.busy.as_ref().is_none_or(|(of, _)| *of != number) {
            return;
        }
        let (_, outputs) = process.busy.take().expect("looked at above");
        process.done += 1;
        self.report_to_session(env, node, WorkerEvent::Busy { is_busy: false });
        for output in outputs {
            self.perform_runtime_output(env, node, output);
        }
        self.check_runtime(env, node);
        loop {
            let Some(machine) = self.machines.get_mut(&node) else { return };
            let Some(process) = &mut machine.process else { return };
            if process.busy.is_some() || process.backlog.is_empty() {
                break;
            }
            let input = process.backlog.remove(0);
            self.apply_runtime_input(env, node, input);
        }
        self.run_runtime(env, node);
    }

    fn drive_runtime(&mut self, env: &mut Surroundings<'_>, node: NodeId) {
        loop {
            let Some(machine) = self.machines.get_mut(&node) else { return };
            let Some(process) = &mut machine.process else { return };
            if process.busy.is_some() {
                return;
            }
            let Some(output) = process.runtime.poll_output() else { return };
            match env.long_answer(&output) {
                Some(long) => self.begin_answer(env, node, output, long),
                None => self.perform_runtime_output(env, node, output),
            }
        }
    }

    fn perform_runtime_output(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        output: RuntimeOutput,
    ) {
        let Some(machine) = self.machines.get(&node) else { return };
        let Some(process) = &machine.process else { return };
        let life = machine.life;
        match output {
            RuntimeOutput::Event(event) => {
                if let WorkerEvent::Inventory { layers, .. } = &event {
                    assert_eq!(
                        *layers,
                        process.runtime.inventory(),
                        "it is hashed once, and not stale"
                    );
                }
                self.note_faults(env, node, &event);
                self.report_to_session(env, node, event);
            }
            RuntimeOutput::Peer { to, frame } => {
                self.send_frame(env, node, to, frame);
            }
            RuntimeOutput::Read { version, layer, digest } => {
                let usual_us = env.draws_store.between(1_000, 60_000);
                let at = self.transfer_ends(env, node, LongWork::Read, usual_us);
                env.queue
                    .push(at, WorldEvent::ReadDone { node, life, key: (version, layer, digest) });
            }
            RuntimeOutput::Write { image, generation } => {
                let key = (image.version, image.layer, layer_digest(&image));
                self.begin_write(env, (node, life), (key, generation), image.encode());
            }
            RuntimeOutput::Outer(request) => env.request_of_islands((node, life), request),
            RuntimeOutput::Evaluated { .. } => {}
        }
    }

    fn begin_write(
        &mut self,
        env: &mut Surroundings<'_>,
        (node, life): (NodeId, u64),
        (key, generation): (PieceKey, Generation),
        bytes: Vec<u8>,
    ) {
        let (version, layer, digest) = key;
        let running = self.machines.iter().filter(|(_, machine)| machine.process.is_some());
        let running = running.map(|(node, _)| *node).collect();
        let reach = draw_reach(env, node, running);
        env.store.put(key, bytes, node, reach);
        if env.hits(CrashPoint::PiecesHalf) {
            self.crash_here(env, node);
            return;
        }
        if bug::is(Bug::M18RemovedTooEarly) {
            env.store.versions().into_iter().filter(|old| *old < version).for_each(|old| {
                env.store.remove(old);
            });
        }
        let usual_us = env.draws_store.between(5_000, 900_000);
        let at = self.transfer_ends(env, node, LongWork::Write, usual_us);
        env.queue.push(at, WorldEvent::WriteDone { node, life, key, generation });
        if bug::is(Bug::M8ToldBeforeDurable) {
            let written =
                RuntimeInput::Written { version, layer, generation, durable: Some(digest) };
            let machine = self.machines.get_mut(&node).expect("a worker");
            if let Some(process) = &mut machine.process {
                process.backlog.push(written);
            }
        }
    }

    pub(super) fn handle_read_done(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        life: u64,
        key: PieceKey,
    ) {
        let fails = !env.is_calm && env.draws_store.chance(env.case.options.read_failures);
        let (version, layer, digest) = key;
        let is_running = |n: NodeId| self.machines.get(&n).is_some_and(|m| m.process.is_some());
        let is_away = !is_reached(&env.store, key, is_running);
        let bytes = if fails || is_away { None } else { env.store.get(key) };
        self.transfer_ended(node, life);
        if is_away {
            env.mark(Marker::KeepersAway);
        }
        if fails || is_away {
            env.store.note_unread(version, env.now);
            env.note(|| format!("w{node} cannot read layer {layer} of checkpoint {version}"));
        }
        let read = bytes.and_then(|bytes| LoadedLayer::decode(&bytes).ok()).map(Box::new);
        if self.machines.get(&node).is_some_and(|machine| machine.life == life) {
            let is_whole = read.as_ref().is_some_and(|read| read.digest == digest);
            env.checker.damage.reads.note(node, version, layer, is_whole);
        }
        self.runtime_input(env, node, life, RuntimeInput::Read { version, layer, read });
    }

    /// A layer was written, or the store did not take it. Yields the version that it fails then.
    pub(super) fn handle_write_done(
        &mut self,
        env: &mut Surroundings<'_>,
        (node, life): (NodeId, u64),
        (key, generation): (PieceKey, Generation),
    ) -> Option<Step> {
        if self.machines.get(&node).is_none_or(|machine| machine.life != life) {
            return None;
        }
        self.transfer_ended(node, life);
        let (version, layer, digest) = key;
        let durable = env.store.finish(key).then_some(digest);
        self.runtime_input(
            env,
            node,
            life,
            RuntimeInput::Written { version, layer, generation, durable },
        );
        durable.is_none().then_some(version)
    }

    /// Compares the standby layers of a runtime with the reference, but for those that it was sent
    /// with a flipped bit.
    fn check_standby_layers(&mut self, env: &mut Surroundings<'_>, node: NodeId) {
        let process = self.process_of(env, node);
        let copies = process.iter().flat_map(|process| process.runtime.standby_copies());
        let machine = &self.machines[&node];
        for copy in copies.filter(|copy| !machine.is_flipped(copy.layer())) {
            let layers = [(copy.layer(), copy.digest())];
            env.checker.holds(Invariant::N1, node, copy.version(), &layers);
        }
    }

    /// Compares the layers that a worker reports to hold with the reference, those that it kept of a
    /// life before among them, but for those that may have a flipped bit. An inventory that was
    /// requested before the run went back is not believed by any leader, and the session drops one
    /// that another cluster requested.
    pub(super) fn check_inventory(
        &self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        (index, layers): (u64, &[HeldLayer]),
    ) {
        let process = self.process_of(env, node).filter(|_| index >= env.rewound_at);
        if !process.is_some_and(|process| process.inventories_due.contains(&index)) {
            return;
        }
        let machine = &self.machines[&node];
        let sound = layers.iter().filter(|held| !machine.is_flipped(held.layer));
        for HeldLayer { layer, version, digest } in sound {
            env.checker.holds(Invariant::N1, node, *version, &[(*layer, *digest)]);
        }
    }

    /// The process of a worker that is of this cluster.
    fn process_of(&self, env: &Surroundings<'_>, node: NodeId) -> Option<&WorkerProcess<M, S>> {
        let process = self.machines.get(&node)?.process.as_ref()?;
        (process.session.cluster() == env.cluster).then_some(process)
    }

    /// Notes which faults are in a report: of numbers, or of reads.
    fn note_faults(&mut self, env: &mut Surroundings<'_>, node: NodeId, event: &WorkerEvent) {
        if let WorkerEvent::LoadFailed { generation, layer, .. } = event {
            env.checker.damage.reads.reported(node, *layer, *generation);
        }
        let WorkerEvent::Reported { report, .. } = event else { return };
        let faults = &self.machines[&node].faults;
        let flipped = faults.borrow().flipped();
        let effects = faults.borrow_mut().take_effects();
        if self.process_of(env, node).is_none() {
            return;
        }
        for fault in effects {
            env.checker.damage.spoiled((node, env.now), report.turn, fault, flipped);
        }
    }

    /// Compares the layers that a runtime holds with the reference, whenever that changed or a step
    /// is run again.
    fn check_runtime(&mut self, env: &mut Surroundings<'_>, node: NodeId) {
        let Some(machine) = self.machines.get_mut(&node) else { return };
        let Some(process) = &mut machine.process else { return };
        // A worker that does not know yet that there is a new cluster holds the steps that the old
        // one sealed.
        if !process.is_of(env.cluster) {
            return;
        }
        // A stage that was loaded and does not run yet is compared by the log itself.
        let active = process.runtime.active_stage().filter(|active| active.is_running());
        let Some(active) = active else { return };
        let executor = active.engine().executor();
        let open = active.engine().open_turn();
        let found = (open, executor.version());
        if process.checked == Some(found) {
            return;
        }
        let before = process.checked.replace(found);
        let before = before.filter(|(turn, _)| turn.generation == open.generation);
        let is_rolled_back = before.is_some_and(|(_, version)| version == executor.version());
        let invariant = if is_rolled_back { Invariant::N2 } else { Invariant::N1 };
        env.checker.holds(invariant, node, executor.version(), &executor.digests());
        env.checker.holds(invariant, node, executor.version(), &executor.twin_digests());
        for copy in active.copies() {
            let layers = [(copy.layer(), copy.digest())];
            env.checker.holds(invariant, node, copy.version(), &layers);
        }
        env.checker.runs(active.plan(), active.engine().plan());
        if before.is_some() && env.hits(CrashPoint::AfterStageApply) {
            self.crash_here(env, node);
        }
    }
}

/// Who will read a piece: if pieces lie on disks, its writer and others that run get it.
fn draw_reach(env: &mut Surroundings<'_>, writer: NodeId, mut running: Vec<NodeId>) -> PieceReach {
    let count = env.case.options.piece_copies as usize;
    if count == 0 {
        return PieceReach::All;
    }
    let mut keepers = BTreeSet::from([writer]);
    running.retain(|node| *node != writer);
    while keepers.len() < count && !running.is_empty() {
        let drawn = env.draws_keepers.below(running.len() as u64) as usize;
        keepers.insert(running.swap_remove(drawn));
    }
    PieceReach::Disks(keepers)
}

/// Whether a piece can be read: a process runs on a machine that keeps it, or all nodes reach it.
fn is_reached(store: &SimulatedStore, key: PieceKey, is_running: impl Fn(NodeId) -> bool) -> bool {
    store.keepers(key).is_none_or(|keepers| keepers.iter().any(|node| is_running(*node)))
}

/// Whether a frame is part of a step, and not of moving layers.
fn is_work(body: &PeerBody) -> bool {
    match body {
        PeerBody::Frame(_)
        | PeerBody::Prefix(_)
        | PeerBody::Partial(_)
        | PeerBody::Gradients { .. } => true,
        PeerBody::Fetch { .. }
        | PeerBody::Layer(_)
        | PeerBody::StandbyRequest { .. }
        | PeerBody::StandbyLayer { .. }
        | PeerBody::StandbyUpdate { .. } => false,
    }
}
