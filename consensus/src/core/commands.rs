//! Commands of an operator. Each is checked here before it is proposed, so that the reason for a
//! refusal is returned at once; a proposal is checked again when it is applied.

use zbelastic_types::{NodeId, Step};

use super::{Core, CoreRefusal};
use crate::access::AccessChange;
use crate::entry::{Entry, RewindReason};
use crate::job::JobChange;
use crate::member::{LossReason, MemberChange, MembershipStatus, Role};
use crate::training_status::TrainingStatus;

/// Ticks for which a leader may agree on nothing until its status says so: more than twice what a
/// single write of a slow disk may take (docs/waiting-times.md).
const UNAGREED_TICKS_MAX: u32 = 500;

/// A command of an operator. Only a leader accepts it.
#[derive(Clone, Debug)]
pub enum OperatorCommand {
    /// A change of the job, such as its start or a pause.
    Job(JobChange),
    /// A job that is held goes back to a checkpoint, or to its beginning, and is free from there:
    /// steps that were sealed since do not bind it.
    Restore {
        /// The version to go back to, as a number of sealed steps.
        to: Step,
    },
    /// A change of the tokens, credentials or authority by which nodes take part.
    Access(AccessChange),
    /// A worker is to go: plans do without it as soon as they can.
    Drain(NodeId),
    /// A node is to be counted on no more, and not to come back.
    Remove(NodeId),
    /// Another voter is to lead.
    TransferLeader(NodeId),
}

/// How a command that was accepted is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// It was proposed. When the entry of this index is applied, and was proposed in this term, it
    /// was this one. An event reports its change, or why it changed nothing.
    Proposed {
        /// Index of the proposed entry in the log.
        index: u64,
        /// Term in which the entry was proposed.
        term: u64,
    },
    /// It is noted, and proposed as soon as others of its kind that are under way are agreed on.
    Noted,
}

impl Core {
    /// Handles a command. The decision on it is returned at once; messages and writes for it follow
    /// by [`Core::poll_output`], as for every input.
    ///
    /// # Errors
    /// If it is refused: it is counted, and nothing changes.
    pub fn execute_command(
        &mut self,
        command: OperatorCommand,
    ) -> Result<CommandOutcome, CoreRefusal> {
        if self.is_stopped {
            return Err(CoreRefusal::Stopped);
        }
        let result = self.dispatch_command(command);
        if let Err(refusal) = &result {
            self.refusals.count(refusal.name());
        }
        self.advance();
        result
    }

    pub(super) fn dispatch_command(
        &mut self,
        command: OperatorCommand,
    ) -> Result<CommandOutcome, CoreRefusal> {
        let status = self.raft.status();
        if self.duties.is_none() {
            return Err(CoreRefusal::NotLeader { leader: status.leader });
        }
        match command {
            OperatorCommand::Job(change) => {
                self.state.training().check_job(&change)?;
                self.propose_command(Entry::Job(change))
            }
            OperatorCommand::Restore { to } => {
                self.state.training().runs().check_held()?;
                self.state.training().check_restore(to)?;
                let generation = self.state.generation();
                let reason = RewindReason::Ordered;
                self.propose_command(Entry::Rewind { generation, to, reason })
            }
            OperatorCommand::Access(change) => {
                self.state.membership().check_access(&change)?;
                self.propose_command(Entry::Access(change))
            }
            OperatorCommand::Drain(node) => self.drain(node),
            OperatorCommand::Remove(node) => self.remove(node),
            OperatorCommand::TransferLeader(node) => {
                if !status.members.is_voter(node) {
                    return Err(CoreRefusal::NotAVoter { node });
                }
                self.raft.transfer_leader(node);
                Ok(CommandOutcome::Noted)
            }
        }
    }

    fn propose_command(&mut self, entry: Entry) -> Result<CommandOutcome, CoreRefusal> {
        self.propose(&entry)?;
        let status = self.raft.status();
        Ok(CommandOutcome::Proposed { index: status.last_index, term: status.term })
    }

    fn drain(&mut self, node: NodeId) -> Result<CommandOutcome, CoreRefusal> {
        let holder = self.state.holder_of(node).ok_or(CoreRefusal::UnknownNode { node })?;
        let member = &self.state.members()[&node];
        match (member.role, member.status) {
            (Role::Controller, _) => Err(CoreRefusal::NotAWorker { node }),
            (Role::Worker, MembershipStatus::Draining) => Err(CoreRefusal::Draining { node }),
            (Role::Worker, MembershipStatus::Present | MembershipStatus::Lost(_)) => {
                self.note_change(MemberChange::Drain { holder })
            }
        }
    }

    fn remove(&mut self, node: NodeId) -> Result<CommandOutcome, CoreRefusal> {
        self.state.membership().check_not_last(node)?;
        match self.state.holder_of(node) {
            Some(holder) => {
                let reason = LossReason::Removed;
                self.note_change(MemberChange::Lost { holder, reason })
            }
            // A node that is lost already, or was admitted and never came, is banned from now on.
            None => match self.state.access().credential(node) {
                Some(_) => self.propose_command(Entry::Access(AccessChange::Revoked { node })),
                None => Err(CoreRefusal::UnknownNode { node }),
            },
        }
    }

    fn note_change(&mut self, change: MemberChange) -> Result<CommandOutcome, CoreRefusal> {
        let duties = self.duties.as_mut().expect("only a leader handles commands");
        duties.handle_change(&self.state, change)?;
        Ok(CommandOutcome::Noted)
    }

    /// Why the run goes on, or does not, as far as this node knows.
    #[must_use]
    pub fn training_status(&self) -> TrainingStatus {
        let status = self.raft.status();
        if status.leader.is_none() {
            return TrainingStatus::NoQuorum { ticks: self.leaderless_ticks };
        }
        if self.unagreed_ticks >= UNAGREED_TICKS_MAX {
            let voters = status.members.voters.iter().copied();
            let behind = voters.filter(|voter| status.behind(*voter) != Some(0)).collect();
            return TrainingStatus::NotAgreed { ticks: self.unagreed_ticks, behind };
        }
        let duties = self.duties.as_ref();
        let needed = duties.and(self.state.running_spec()).map_or(0, |spec| spec.workers_min);
        let status = TrainingStatus::of(&self.state, needed);
        let awaited = || duties.map_or_else(Vec::new, |duties| duties.awaited_members(&self.state));
        let returns = || duties.map_or_else(Vec::new, |duties| duties.awaited_returns(&self.state));
        match status {
            TrainingStatus::Running { generation, withheld: None } => {
                let withheld = duties.and_then(|duties| duties.withheld(&self.state));
                TrainingStatus::Running { generation, withheld }
            }
            TrainingStatus::Planning { .. } => match &self.no_plan {
                Some(none) => TrainingStatus::NoPlan(none.clone()),
                None => TrainingStatus::Planning { awaited: awaited(), returns: returns() },
            },
            TrainingStatus::Loading { generation, ready, stages, .. } => {
                TrainingStatus::Loading { generation, ready, stages, awaited: awaited() }
            }
            TrainingStatus::Running { .. }
            | TrainingStatus::NoPlan(_)
            | TrainingStatus::NoQuorum { .. }
            | TrainingStatus::NotAgreed { .. }
            | TrainingStatus::NoJob
            | TrainingStatus::Paused
            | TrainingStatus::Halted(_)
            | TrainingStatus::Saving { .. }
            | TrainingStatus::Done
            | TrainingStatus::Stopped
            | TrainingStatus::WaitingForWorkers { .. } => status,
        }
    }
}
