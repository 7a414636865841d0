//! How a life may end, and the final checks.

use zbelastic_consensus::Entry;
use zbelastic_consensus::codec::{self, Format};
use zbelastic_consensus::core::Core;
use zbelastic_consensus::duty::RECOMPUTE_REPLAYS_MAX;
use zbelastic_consensus::job::HaltReason;
use zbelastic_consensus::raft::{ENTRY_BYTES_MAX, LogEntry, Payload, RaftRecord, decode_record};
use zbelastic_consensus::state::{PlanPhase, State};
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_trainer::stage::SealedState;
use zbelastic_types::{ClusterId, NodeId, Step};

use super::World;
use super::machines::ControllerMachine;
use crate::disk::MachineDisk;
use crate::failure::{Invariant, LifeFailure};
use crate::markers::Marker;

/// The index that a node begins with.
const INDEX_FIRST: u64 = 1;

impl<M: StageFactory, S: BatchSource + Clone> World<'_, M, S> {
    /// A run may be held only for something that a fault did.
    pub(super) fn check_halt(&mut self, reason: HaltReason) {
        self.env.mark(Marker::Halted);
        let is_excused = match reason {
            // It was looked at when it was applied: checkpoints under way may be complete since.
            HaltReason::NothingToRestore => true,
            HaltReason::Untrusted => self.env.checker.damage.is_contradicted(),
            HaltReason::DiffersFromLog { step } => {
                self.env.checker.damage.marks_of(step) >= RECOMPUTE_REPLAYS_MAX as usize
            }
        };
        if !is_excused {
            self.env.fail(LifeFailure::safety(Invariant::N1, format!("the run is held: {reason}")));
        }
    }

    /// Whether every voter has applied the end of the run, and every worker of the plan has its
    /// last version.
    pub(super) fn is_settled(&self) -> bool {
        let Some(newest) = self.controllers.newest_core(&self.env) else { return false };
        let state = newest.state();
        let cores = self.controllers.machines.values().filter_map(|machine| machine.core.as_ref());
        let members = newest.status().members;
        let voters = cores.filter(|core| members.voters.contains(&core.status().node));
        let all_applied = voters.clone().all(|core| core.state().applied() == state.applied());
        let is_whole = voters.count() == members.voters.len();
        if !all_applied || !is_whole {
            return false;
        }
        let Some(plan) = state.plan() else { return true };
        let end = Step(self.workers.setup.spec.step_count);
        let active_stages = self
            .workers
            .machines
            .values()
            .filter_map(|m| m.process.as_ref()?.runtime.active_stage());
        let is_of_plan = |holder| plan.record.stages.contains(&holder) && state.is_live(holder);
        let of_plan = active_stages.filter(|active| {
            active.plan().generation == plan.record.generation && is_of_plan(active.holder())
        });
        let all_done = of_plan.clone().all(|s| s.engine().executor().version() == end);
        let is_running = plan.phase == PlanPhase::Running && state.lost_holder().is_none();
        all_done && (!is_running || of_plan.count() == plan.record.stages.len())
    }

    /// At the end: every log, every checkpoint that it refers to, states compared.
    pub(super) fn audit(&mut self) {
        self.controllers.record.audit_checkpoints(&mut self.env);
        if let Some(core) = self.controllers.newest_core(&self.env) {
            let records = core.state().checkpoints().to_vec();
            let history: Vec<_> = core.state().history().seals().copied().collect();
            let base = core.state().history().base();
            self.env.checker.audit(base, &history);
            records.iter().for_each(|record| self.env.checker.checkpoint(&self.env.store, record));
        }
        self.audit_logs();
        if crate::bug::is(crate::bug::Bug::Canary) {
            self.env.fail(LifeFailure::safety(Invariant::Canary, "the canary sings"));
        }
        if let Some(failure) = self.env.checker.take_failure() {
            self.env.fail(failure);
        }
    }

    /// How everything stands, for the reader of a failure in which nothing moves.
    pub(super) fn describe(&self) -> String {
        let Some(core) = self.controllers.newest_core(&self.env) else {
            return "no controller is up".to_owned();
        };
        let state = core.state();
        let plan = state.plan().map(|plan| {
            let phase = match &plan.phase {
                PlanPhase::Loading(slots) => {
                    format!("loading, {} ready", slots.iter().flatten().count())
                }
                PlanPhase::Running => "running".to_owned(),
                PlanPhase::Closed => "closed".to_owned(),
            };
            format!("generation {} {phase}", plan.record.generation)
        });
        let leader = self.controllers.leader();
        let need = leader.and_then(|node| {
            let core = self.controllers.machines[&node].core.as_ref()?;
            let duties = core.duties()?;
            Some(format!("{:?}, {:?}", duties.need(core.state()), duties.withheld(core.state())))
        });
        let describe = |(node, machine): (&NodeId, &ControllerMachine)| match &machine.core {
            Some(core) => {
                let status = core.status();
                let applied = core.state().applied();
                let greets = status.is_greeting;
                format!("n{node} at {applied}, greeting {greets}, {:?}", status.members)
            }
            None => format!("n{node} is down, condemned {}", machine.is_condemned),
        };
        let controllers: Vec<_> = self.controllers.machines.iter().map(describe).collect();
        format!(
            "{}, {plan:?}, leader {leader:?}, {} live workers, {need:?}; {}",
            state.open_turn(),
            state.live_workers().count(),
            controllers.join("; ")
        )
    }

    /// S2: the entries that each controller has applied follow from those on its disk.
    fn audit_logs(&mut self) {
        let machines = self.controllers.machines.iter();
        let differs = |core: &Core, disk: &MachineDisk| {
            let state = core.state();
            let replayed = replay(disk, state.cluster(), state.applied());
            replayed.is_none_or(|replayed| replayed.encode() != state.encode())
        };
        let differing = machines.filter(|(_, machine)| {
            machine.core.as_ref().is_some_and(|core| differs(core, &machine.disk))
        });
        let differing: Vec<NodeId> = differing.map(|(node, _)| *node).collect();
        if let Some(node) = differing.first() {
            let message = format!("n{node} holds another state than its log leads to");
            self.env.fail(LifeFailure::safety(Invariant::S2, message));
        }
    }
}

/// The state that the records of a disk lead to, if they reach that far.
fn replay(disk: &MachineDisk, cluster: ClusterId, applied: u64) -> Option<State> {
    let mut state = State::new(cluster);
    let mut from = 0;
    let mut entries: Vec<LogEntry> = Vec::new();
    for record in disk.records() {
        match decode_record(record).ok()? {
            RaftRecord::Append(appended) => appended.into_iter().for_each(|entry| {
                entries.retain(|before| before.index < entry.index);
                entries.push(entry);
            }),
            // The first one is where a node begins, before anything is applied.
            RaftRecord::Snapshot(image) if image.index <= applied.max(INDEX_FIRST) => {
                state = State::decode(Format::NEWEST, &image.data).ok()?;
                from = image.index;
            }
            RaftRecord::Snapshot(_)
            | RaftRecord::HardState(_)
            | RaftRecord::Boot { .. }
            | RaftRecord::PeerBoot { .. } => {}
        }
    }
    for LogEntry { index, payload, .. } in entries {
        if index <= from || index > applied {
            continue;
        }
        match payload {
            Payload::Data(data) if data.is_empty() => state.pass(index),
            Payload::Data(data) => {
                let entry: Entry = codec::decode(&data, ENTRY_BYTES_MAX).ok()?;
                // One that does not fit changes nothing.
                let _ = state.apply(index, entry);
            }
            Payload::Change(_) => {}
        }
    }
    if state.applied() < applied {
        state.pass(applied);
    }
    Some(state)
}
