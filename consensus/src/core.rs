//! A controller: one voter's view of the log, the state that follows from it, and a leader's
//! duties.
//!
//! `handle` takes one thing that happened and never blocks; `poll_output` returns the next thing to
//! do, until there is none. Outputs come in the order in which they must be begun. A message that
//! must not leave before something is durable is held back here until the shell calls
//! [`Core::on_persisted`], so the shell may send whatever it is given.
//!
//! The same construction and the same inputs give the same outputs, bit for bit.

mod briefing;
mod commands;
mod formats;
mod input_effect;
mod logged;
mod presence;
mod refusal;
#[cfg(test)]
mod tests;
mod voters;
mod workers;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use zbelastic_types::{ClusterId, NodeId};

use crate::codec::{self, DecodeError, Format};
use crate::contact::{Contact, Contacts};
use crate::duty::{
    Duties, DutyTiming, LeaderAction, NoPlan, PlanMeasurement, PlanSolution, PlanUnsolvable,
    SolveRequest,
};
use crate::entry::Entry;
use crate::job::JobSpec;
use crate::message::{Envelope, Message};
use crate::mutant::{self, Mutant};
use crate::plan::PlanRecord;
use crate::pre_encoded::PreEncoded;
use crate::raft::{
    ENTRY_BYTES_MAX, FatalReason, PersistToken, ProposeRefusal, RaftNode, RaftOutput, RaftRecord,
    RaftSetup, RaftStartError, RaftStatus, RecordNumber, RecoveredLog, SNAPSHOT_BYTES_MAX,
};
use crate::state::{EntryRefusal, State, StateChange};

use input_effect::InputEffect;

pub use commands::{CommandOutcome, OperatorCommand};
pub use logged::logged_state;
pub use refusal::CoreRefusal;

/// What a controller is constructed with.
#[derive(Clone, Debug)]
pub struct CoreSetup {
    /// The cluster that this controller belongs to. Messages of other clusters are refused.
    pub cluster: ClusterId,
    /// Under which name and at which addresses this node is reached.
    pub contact: Contact,
    /// Setup of this node's Raft log: its id, timing and limits.
    pub raft: RaftSetup,
    /// How long this node waits for members when it leads.
    pub timing: DutyTiming,
    /// The newest format of entries and snapshots that this program reads.
    pub newest_format: Format,
}

/// How a controller begins.
#[derive(Debug)]
pub enum CoreStart {
    /// As one of the first voters of a new cluster, all with the same state.
    Create {
        /// Ids of all first voters, this node among them.
        voters: Vec<NodeId>,
        /// The state they begin with.
        state: Box<State>,
    },
    /// With nothing: it sends requests to be admitted to these controllers.
    Wait {
        /// The controllers that requests to be admitted are sent to.
        controllers: Vec<NodeId>,
        /// Grows with each start of the node.
        boot: u64,
    },
    /// From what it has on disk.
    Recover {
        /// The log recovered from the records on disk.
        log: Box<RecoveredLog>,
        /// The controllers that requests to be admitted are sent to, if the log has no voters.
        controllers: Vec<NodeId>,
        /// Grows with each start of the node.
        boot: u64,
    },
}

/// Why a controller does not begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The log is not usable.
    #[error(transparent)]
    Raft(#[from] RaftStartError),
    /// The snapshot in the log is not usable.
    #[error("the snapshot on disk: {0}")]
    Snapshot(DecodeError),
    /// The state to begin with is another cluster's.
    #[error("a state of cluster {found}, this is {expected}")]
    OtherCluster {
        /// The cluster that this node belongs to.
        expected: ClusterId,
        /// The cluster named in the state.
        found: ClusterId,
    },
}

/// One thing that happened, handled by [`Core::handle`].
#[derive(Clone, Debug)]
pub enum Input {
    /// A tick of the node's clock.
    Tick,
    /// A message arrived.
    Message {
        /// The node that sent it.
        from: NodeId,
        /// The message, and the cluster that it names.
        message: Box<Envelope>,
    },
    /// The solver's answer to an [`Output::Solve`].
    Solved {
        /// The number in the request that is answered.
        number: u64,
        /// The plan, or why there is none.
        solution: Box<Result<PlanSolution, PlanUnsolvable>>,
    },
    /// A node is connected.
    Connected {
        /// The connected node.
        node: NodeId,
        /// The newest format of entries and snapshots that its program reads.
        reads: Format,
    },
    /// The connection to a node closed.
    Closed {
        /// The node whose connection closed.
        node: NodeId,
    },
    /// What was measured of the plan in force. Only a leader accepts it.
    Measured(Box<PlanMeasurement>),
    /// A command of an operator.
    Command(OperatorCommand),
}

/// One thing to do, returned by [`Core::poll_output`].
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a message; it may be lost.
    Send {
        /// The node that it is sent to.
        to: NodeId,
        /// The message, and the cluster that it names.
        message: Box<Envelope>,
    },
    /// Make records durable, in this order, then call [`Core::on_persisted`].
    Persist {
        /// To be passed to [`Core::on_persisted`].
        token: PersistToken,
        /// The records to write, oldest first.
        records: Vec<RaftRecord>,
    },
    /// Records before this one are not needed any more.
    Trim {
        /// The first record that is needed.
        before: RecordNumber,
    },
    /// Find a plan; the answer is an [`Input::Solved`].
    Solve(SolveRequest),
    /// For logs, status and tests: what was agreed, or why not.
    Event(Event),
    /// This node must stop. The cause says whether, and as what, it may come back.
    Fatal(FatalCause),
}

/// An entry or snapshot that was applied, a plan that is given up, or a change of leader.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An entry was applied.
    Applied {
        /// Index of the entry in the log.
        index: u64,
        /// What the entry changed in the state.
        change: Box<StateChange>,
    },
    /// An entry changed nothing.
    Refused {
        /// Index of the entry in the log.
        index: u64,
        /// Name of the kind of entry.
        entry: &'static str,
        /// Why the entry changed nothing.
        refusal: EntryRefusal,
    },
    /// A plan that is needed is not proposed.
    NoPlan(NoPlan),
    /// A snapshot took the place of entries.
    Installed {
        /// Index of the last entry that the snapshot holds.
        index: u64,
    },
    /// Another leader, none, or another term.
    Leader {
        /// The leader, if this node knows one.
        leader: Option<NodeId>,
        /// The term that this node is in.
        term: u64,
    },
}

/// Why a node must stop.
#[derive(Clone, Debug, PartialEq)]
pub enum FatalCause {
    /// Its log cannot be that of the voter whose id it has. It may come back as a new one only.
    Log(FatalReason),
    /// An entry or snapshot that is agreed on and that this program cannot read: of another
    /// version, or not of the form that this program knows. It must not be left out, or this node
    /// would apply something else than the others. The log is intact: the node may come back with
    /// the program that wrote it, or with a newer one.
    Version(DecodeError),
    /// A snapshot of another cluster. What is on disk now is not this cluster's: the node may come
    /// back as a new one only.
    OtherCluster {
        /// The cluster that this node belongs to.
        expected: ClusterId,
        /// The cluster named in the snapshot.
        found: ClusterId,
    },
}

/// Requests to be admitted, which a controller sends while it is no voter.
#[derive(Debug)]
struct AdmissionRequests {
    controllers: Vec<NodeId>,
    boot: u64,
    tick: u64,
}

/// A controller: one node of the Raft log, the state at its last applied entry, and a leader's
/// duties.
pub struct Core {
    setup: CoreSetup,
    raft: RaftNode,
    state: State,
    duties: Option<Duties>,
    admission: Option<AdmissionRequests>,
    /// Index of the last entry that workers must be briefed about.
    briefing_due_index: u64,
    /// Whether something happened since the last look at whether a plan is needed.
    looks_at_plan: bool,
    /// Ticks in a row without a known leader.
    leaderless_ticks: u32,
    ticks: u64,
    /// Why the plan that was needed last is not there.
    no_plan: Option<NoPlan>,
    /// The members' contacts, as they are sent to workers.
    contacts: PreEncoded<Contacts>,
    /// The plan and the job's configuration, as they were last sent to workers.
    plan: Option<PreEncoded<PlanRecord>>,
    spec: Option<PreEncoded<JobSpec>>,
    /// The newest format that each node reads which is connected.
    formats: BTreeMap<NodeId, Format>,
    /// A node that must stop does nothing more.
    is_stopped: bool,
    refusals: BTreeMap<&'static str, u64>,
    outbox: VecDeque<Output>,
}

impl Core {
    /// A controller that begins as `start` describes.
    ///
    /// # Errors
    /// If what it has on disk cannot be used.
    pub fn new(setup: CoreSetup, start: CoreStart) -> Result<Self, StartError> {
        let cluster = setup.cluster;
        let newest = setup.newest_format;
        let (raft, state, admission) = match start {
            CoreStart::Create { voters, state } => {
                let raft = RaftNode::create(setup.raft.clone(), &voters, state.encode())?;
                (raft, *state, None)
            }
            CoreStart::Wait { controllers, boot } => {
                let state = State::new(cluster).in_format(newest);
                let raft = RaftNode::create(setup.raft.clone(), &[], state.encode())?;
                (raft, state, Some(AdmissionRequests { controllers, boot, tick: 0 }))
            }
            CoreStart::Recover { log, controllers, boot } => {
                let state = logged::snapshot_state(cluster, newest, &log);
                let state = state.map_err(StartError::Snapshot)?;
                let raft = RaftNode::recover(setup.raft.clone(), *log)?;
                let is_known = !raft.status().members.voters.is_empty();
                let admission =
                    (!is_known).then_some(AdmissionRequests { controllers, boot, tick: 0 });
                (raft, state, admission)
            }
        };
        let found = state.cluster();
        if found != cluster {
            return Err(StartError::OtherCluster { expected: cluster, found });
        }
        let mut core = Self {
            setup,
            raft,
            briefing_due_index: state.applied(),
            looks_at_plan: true,
            leaderless_ticks: 0,
            ticks: 0,
            no_plan: None,
            contacts: Arc::new(state.membership().contacts()).into(),
            plan: None,
            spec: None,
            formats: BTreeMap::new(),
            state,
            duties: None,
            admission,
            is_stopped: false,
            refusals: BTreeMap::new(),
            outbox: VecDeque::new(),
        };
        core.advance();
        Ok(core)
    }

    /// Handles one thing that happened.
    ///
    /// # Errors
    /// If it does not belong: it is dropped and counted, and nothing changes.
    pub fn handle(&mut self, input: Input) -> Result<(), CoreRefusal> {
        if self.is_stopped {
            return Err(CoreRefusal::Stopped);
        }
        let effect = InputEffect::of(&input);
        let result = self.dispatch(input);
        if let Err(refusal) = &result {
            self.count(refusal);
        }
        self.looks_at_plan |= effect == InputEffect::All;
        if effect != InputEffect::Nothing {
            self.advance();
        }
        result
    }

    fn count(&mut self, refusal: &CoreRefusal) {
        *self.refusals.entry(refusal.name()).or_default() += 1;
    }

    /// The records handed out with `token` are durable.
    pub fn on_persisted(&mut self, token: PersistToken) {
        if !self.is_stopped {
            self.raft.on_persisted(token);
            self.advance();
        }
    }

    /// The next thing to do, until there is none.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop_front()
    }

    /// What is agreed, as far as it is known here.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The state of the Raft log on this node: its term, leader, members and indices.
    #[must_use]
    pub fn status(&self) -> RaftStatus {
        self.raft.status()
    }

    /// The duties of a leader, while this node leads.
    #[must_use]
    pub fn duties(&self) -> Option<&Duties> {
        self.duties.as_ref()
    }

    /// Inputs dropped so far, by reason.
    #[must_use]
    pub fn refusals(&self) -> &BTreeMap<&'static str, u64> {
        &self.refusals
    }

    fn dispatch(&mut self, input: Input) -> Result<(), CoreRefusal> {
        match input {
            Input::Tick => {
                self.raft.tick();
                if let Some(duties) = &mut self.duties {
                    duties.handle_tick(&self.state);
                }
                self.handle_tick();
                Ok(())
            }
            Input::Message { from, message } => self.handle_message(from, *message),
            Input::Solved { number, solution } => {
                let duties = self.duties.as_mut();
                let is_wanted = duties.is_some_and(|d| d.handle_solution(number, *solution));
                if is_wanted { Ok(()) } else { Err(CoreRefusal::PlanNotRequested { number }) }
            }
            Input::Connected { node, reads } => {
                self.formats.insert(node, reads);
                Ok(())
            }
            Input::Closed { node } => {
                self.formats.remove(&node);
                if let Some(duties) = &mut self.duties {
                    duties.handle_closed(&self.state, node);
                }
                Ok(())
            }
            Input::Measured(measured) => {
                let leader = self.raft.status().leader;
                let duties = self.duties.as_mut().ok_or(CoreRefusal::NotLeader { leader })?;
                Ok(duties.handle_measured(&self.state, *measured)?)
            }
            Input::Command(command) => self.dispatch_command(command).map(|_| ()),
        }
    }

    fn send(&mut self, to: NodeId, message: Message) {
        let message = Box::new(Envelope { cluster: self.setup.cluster, message });
        self.outbox.push_back(Output::Send { to, message });
    }

    /// Carries out what follows, until nothing does.
    fn advance(&mut self) {
        while !self.is_stopped {
            if let Some(output) = self.raft.poll() {
                self.perform(output);
                continue;
            }
            self.follow_leadership();
            if !self.act() {
                return;
            }
        }
    }

    fn perform(&mut self, output: RaftOutput) {
        match output {
            RaftOutput::Send { to, message } => self.send(to, Message::Raft(message)),
            RaftOutput::Persist { token, records } => {
                self.outbox.push_back(Output::Persist { token, records });
            }
            RaftOutput::Trim { before } => self.outbox.push_back(Output::Trim { before }),
            RaftOutput::Committed(entry) => self.apply(entry.index, &entry.data),
            RaftOutput::Installed { index, term: _, data } => self.install(index, &data),
            RaftOutput::RequestSnapshot => {
                // A snapshot that is too large leaves the log as it is; it is requested again.
                let data = self.state.encode();
                if data.len() <= SNAPSHOT_BYTES_MAX {
                    let _ = self.raft.compact(self.state.applied(), data);
                }
            }
            RaftOutput::LeaderChanged { leader, term } => {
                self.outbox.push_back(Output::Event(Event::Leader { leader, term }));
            }
            RaftOutput::Fatal(reason) => self.stop(FatalCause::Log(reason)),
        }
    }

    fn stop(&mut self, cause: FatalCause) {
        self.is_stopped = true;
        self.duties = None;
        self.outbox.push_back(Output::Fatal(cause));
    }

    fn apply(&mut self, index: u64, data: &[u8]) {
        self.looks_at_plan = true;
        if data.is_empty() {
            self.state.pass(index);
            return;
        }
        let newest = self.setup.newest_format;
        let entry: Entry = match codec::decode_up_to(newest, data, ENTRY_BYTES_MAX) {
            Ok((_, entry)) => entry,
            Err(error) => return self.stop(FatalCause::Version(error)),
        };
        let result = self.state.apply(index, entry.clone());
        self.refresh_contacts();
        if let Some(duties) = &mut self.duties {
            let result = result.as_ref().map(|_| ());
            duties.on_applied(&self.state, index, &entry, result);
        }
        match result {
            Ok(change) => {
                self.brief_on_change(index, &change);
                let change = Box::new(change);
                self.outbox.push_back(Output::Event(Event::Applied { index, change }));
            }
            Err(refusal) => {
                let entry = entry.name();
                let event = Event::Refused { index, entry, refusal };
                self.outbox.push_back(Output::Event(event));
            }
        }
    }

    fn refresh_contacts(&mut self) {
        if self.contacts.index != self.state.membership().contacts_index() {
            self.contacts = Arc::new(self.state.membership().contacts()).into();
        }
    }

    fn install(&mut self, index: u64, data: &[u8]) {
        match State::decode(self.setup.newest_format, data) {
            Ok(state) if state.cluster() != self.setup.cluster => {
                let expected = self.setup.cluster;
                let found = state.cluster();
                self.stop(FatalCause::OtherCluster { expected, found });
            }
            Ok(state) => {
                self.state = state;
                self.refresh_contacts();
                if self.state.applied() < index {
                    self.state.pass(index);
                }
                self.briefing_due_index = index;
                self.outbox.push_back(Output::Event(Event::Installed { index }));
            }
            Err(error) => self.stop(FatalCause::Version(error)),
        }
    }

    /// Duties begin from nothing once everything before this leadership is applied, and end with
    /// it.
    fn follow_leadership(&mut self) {
        let leads = self.raft.status().leads_applied;
        if leads != self.duties.is_some() {
            self.looks_at_plan = true;
            self.no_plan = None;
            self.duties = leads.then(|| Duties::new(&self.state, self.setup.timing));
            if leads {
                self.brief_all();
            }
        }
    }

    /// Executes one action that is due. Yields whether there was one.
    fn act(&mut self) -> bool {
        let Some(duties) = &mut self.duties else { return false };
        let action = match self.looks_at_plan {
            true => duties.decide(&self.state),
            false => duties.decide_entry(&self.state),
        };
        match action {
            Some(LeaderAction::Propose(entry)) => self.propose(&entry).is_ok(),
            Some(LeaderAction::Solve(request)) => {
                self.no_plan = None;
                self.outbox.push_back(Output::Solve(request));
                true
            }
            Some(LeaderAction::RequestInventory) => {
                self.brief_all();
                true
            }
            Some(LeaderAction::SendPreCopy) => {
                self.brief_of_changes();
                true
            }
            Some(LeaderAction::ReportNoPlan(none)) => {
                *self.refusals.entry(none.name()).or_default() += 1;
                self.no_plan = Some(none.clone());
                self.outbox.push_back(Output::Event(Event::NoPlan(none)));
                true
            }
            // Voters follow members, and workers' reports of a step do not change members either.
            None => {
                std::mem::take(&mut self.looks_at_plan)
                    && (self.change_voters() || self.raise_format())
            }
        }
    }

    fn propose(&mut self, entry: &Entry) -> Result<(), ProposeRefusal> {
        self.raft.propose(entry.encode(self.state.format()))?;
        let index = self.raft.status().last_index;
        if let Some(duties) = &mut self.duties {
            duties.on_proposed(index, entry);
        }
        if let (Entry::Seal(seal), true) = (entry, mutant::is(Mutant::M24UndoFreedAtProposal)) {
            self.send_proposal(*seal);
        }
        Ok(())
    }
}
