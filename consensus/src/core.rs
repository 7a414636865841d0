//! A controller: one voter's view of the log, the state that follows from it, and a leader's
//! duties.
//!
//! `handle` accepts one input and never blocks; `poll_output` returns the next thing to do, until
//! there is none. Outputs come in the order in which they must be begun. A message that must not
//! leave before something is durable is held back here until the shell calls
//! [`Core::on_persisted`], so the shell may send every message that it is given.
//!
//! The same construction and the same inputs give the same outputs, bit for bit.

mod admission;
mod briefing;
mod commands;
mod formats;
mod input;
mod input_effect;
mod logged;
mod output;
mod refusal;
#[cfg(test)]
mod tests;
mod voters;
mod workers;

use std::collections::BTreeMap;

use zbelastic_types::{ClusterId, NodeId};

use admission::AdmissionRequests;
use briefing::{BriefingOmissions, BriefingParts};
use formats::ReadFormats;
use input_effect::InputEffect;
use output::Outbox;
use voters::{VoterStep, next_voter_step};

use crate::codec::{self, DecodeError, Format};
use crate::contact::Contact;
use crate::duty::{Duties, DutyTiming, LeaderAction, NoPlan};
use crate::entry::Entry;
use crate::member::MemberChange;
use crate::message::Message;
use crate::mutant::{self, Mutant};
use crate::raft::{
    ENTRY_BYTES_MAX, PersistToken, ProposeRefusal, RaftNode, RaftOutput, RaftSetup, RaftStartError,
    RaftStatus, RecoveredLog, SNAPSHOT_BYTES_MAX,
};
use crate::state::State;

pub use commands::{CommandOutcome, OperatorCommand};
pub use input::{ConnectionEnd, Input};
pub use logged::logged_state;
pub use output::{Event, FatalCause, Output};
pub use refusal::CoreRefusal;

/// The parameters that a controller is constructed with.
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
    /// From the records that it has on disk.
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

/// Ticks between two requests of a controller that waits to be admitted, or has moved.
const REQUEST_TICKS: u64 = 10;

/// A controller: one node of the Raft log, the state at its last applied entry, and a leader's
/// duties.
pub struct Core {
    setup: CoreSetup,
    raft: RaftNode,
    state: State,
    duties: Option<Duties>,
    admission: Option<AdmissionRequests>,
    briefings: BriefingParts,
    /// Whether something happened since the last look at whether a plan is needed.
    looks_at_plan: bool,
    /// Ticks in a row without a known leader.
    leaderless_ticks: u32,
    /// Ticks in a row in which this node led and agreed on nothing of what it had proposed.
    unagreed_ticks: u32,
    /// The last index that was committed at the tick before.
    commit: u64,
    ticks: u64,
    /// Why the plan that was needed last is not there.
    no_plan: Option<NoPlan>,
    formats: ReadFormats,
    /// A node that must stop does nothing more.
    is_stopped: bool,
    refusals: RefusalCounts,
    outbox: Outbox,
}

impl Core {
    /// A controller that begins as `start` describes.
    ///
    /// # Errors
    /// If the records on disk cannot be used.
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
                (raft, state, Some(AdmissionRequests::new(controllers, boot)))
            }
            CoreStart::Recover { log, controllers, boot } => {
                let state = logged::snapshot_state(cluster, newest, &log);
                let state = state.map_err(StartError::Snapshot)?;
                let raft = RaftNode::recover(setup.raft.clone(), *log)?;
                let is_known = !raft.status().members.voters.is_empty();
                let admission = (!is_known).then(|| AdmissionRequests::new(controllers, boot));
                (raft, state, admission)
            }
        };
        let found = state.cluster();
        if found != cluster {
            return Err(StartError::OtherCluster { expected: cluster, found });
        }
        let mut core = Self {
            raft,
            briefings: BriefingParts::new(&state),
            looks_at_plan: true,
            leaderless_ticks: 0,
            unagreed_ticks: 0,
            commit: 0,
            ticks: 0,
            no_plan: None,
            formats: ReadFormats::new(setup.raft.node, newest),
            state,
            duties: None,
            admission,
            is_stopped: false,
            refusals: RefusalCounts::default(),
            outbox: Outbox::new(cluster),
            setup,
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
            self.refusals.count(refusal.name());
        }
        self.looks_at_plan |= effect == InputEffect::All;
        if effect != InputEffect::Nothing {
            self.advance();
        }
        result
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
        self.outbox.pop()
    }

    /// The agreed state, as far as it is known here.
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
        self.refusals.by_reason()
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
                self.formats.note_connected(node, reads);
                Ok(())
            }
            Input::Closed { node, end } => {
                self.formats.note_closed(node);
                match (end, &mut self.duties) {
                    (ConnectionEnd::Closed, Some(duties)) => {
                        duties.handle_closed(&self.state, node)
                    }
                    // Heartbeats are monitored, and their silence has bounds of its own.
                    (ConnectionEnd::Closed | ConnectionEnd::Silent, _) => {}
                }
                Ok(())
            }
            Input::Measured(measured) => {
                let duties = leading(&mut self.duties, &self.raft)?;
                Ok(duties.handle_measured(&self.state, *measured)?)
            }
            Input::CheckpointUnplaced { version } => {
                leading(&mut self.duties, &self.raft)?.handle_unplaced(&self.state, version);
                Ok(())
            }
            Input::DiskAmple => {
                leading(&mut self.duties, &self.raft)?.handle_room(&self.state);
                Ok(())
            }
            Input::LogsFull { nodes } => {
                leading(&mut self.duties, &self.raft)?.handle_full_logs(nodes);
                Ok(())
            }
            Input::Command(command) => self.dispatch_command(command).map(|_| ()),
        }
    }

    /// Carries out the consequences, until there are none.
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
            RaftOutput::Send { to, message } => self.outbox.send(to, Message::Raft(message)),
            RaftOutput::Persist { token, records } => {
                self.outbox.push(Output::Persist { token, records });
            }
            RaftOutput::Trim { before } => self.outbox.push(Output::Trim { before }),
            RaftOutput::Committed(entry) => self.apply((entry.index, entry.term), &entry.data),
            RaftOutput::Installed { index, term: _, data } => self.install(index, &data),
            RaftOutput::RequestSnapshot => {
                // A snapshot that is too large leaves the log as it is; it is requested again.
                let data = self.state.encode();
                if data.len() <= SNAPSHOT_BYTES_MAX {
                    let _ = self.raft.compact(self.state.applied(), data);
                }
            }
            RaftOutput::LeaderChanged { leader, term } => {
                self.outbox.report(Event::Leader { leader, term });
            }
            RaftOutput::Fatal(reason) => self.stop(FatalCause::Log(reason)),
        }
    }

    fn stop(&mut self, cause: FatalCause) {
        self.is_stopped = true;
        self.duties = None;
        self.outbox.push(Output::Fatal(cause));
    }

    fn apply(&mut self, (index, term): (u64, u64), data: &[u8]) {
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
        self.briefings.refresh_contacts(&self.state);
        if let Some(duties) = &mut self.duties {
            let result = result.as_ref().map(|_| ());
            duties.on_applied(&self.state, index, &entry, result);
        }
        match result {
            Ok(change) => {
                self.brief_on_change(index, &change);
                let change = Box::new(change);
                self.outbox.report(Event::Applied { index, term, change });
            }
            Err(refusal) => {
                let entry = entry.name();
                let event = Event::Refused { index, term, entry, refusal };
                self.outbox.report(event);
            }
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
                self.briefings.refresh_contacts(&self.state);
                if self.state.applied() < index {
                    self.state.pass(index);
                }
                self.briefings.set_due(index);
                self.outbox.report(Event::Installed { index });
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
                self.brief_workers(BriefingOmissions::NOTHING);
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
                self.outbox.push(Output::Solve(request));
                true
            }
            Some(LeaderAction::RequestInventory) => {
                self.brief_workers(BriefingOmissions::NOTHING);
                true
            }
            Some(LeaderAction::SendPreCopy) => {
                self.brief_workers(BriefingOmissions::ALL);
                true
            }
            Some(LeaderAction::ReportNoPlan(none)) => {
                self.refusals.count(none.name());
                self.no_plan = Some(none.clone());
                self.outbox.report(Event::NoPlan(none));
                true
            }
            // Voters follow members, and workers' reports of a step do not change members either.
            None => std::mem::take(&mut self.looks_at_plan) && self.follow_members(),
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

    /// A tick: counts how long no leader is known, or a leader has agreed on nothing, requests to be
    /// admitted, and reports the contact.
    fn handle_tick(&mut self) {
        self.ticks += 1;
        let status = self.raft.status();
        let is_led = status.leader.is_some();
        self.leaderless_ticks = if is_led { 0 } else { self.leaderless_ticks.saturating_add(1) };
        let is_waiting = status.leads_applied && status.last_index > status.commit;
        let is_still = is_waiting && status.commit == self.commit;
        self.unagreed_ticks = if is_still { self.unagreed_ticks.saturating_add(1) } else { 0 };
        self.commit = status.commit;
        self.request_admission();
        self.report_contact();
    }

    fn request_admission(&mut self) {
        let Some(admission) = &mut self.admission else { return };
        let status = self.raft.status();
        if status.members.voters.contains(&status.node) {
            self.admission = None;
            return;
        }
        for to in admission.tick().to_vec() {
            self.outbox.send(to, admission.request(self.setup.contact.clone()));
        }
    }

    /// Reports where this node is reached, if something else is agreed on.
    fn report_contact(&mut self) {
        if self.ticks % REQUEST_TICKS != 1 {
            return;
        }
        let status = self.raft.status();
        let Some(holder) = self.state.holder_of(status.node) else { return };
        if self.state.members()[&status.node].contact == self.setup.contact {
            return;
        }
        let contact = self.setup.contact.clone();
        match (&mut self.duties, status.leader) {
            (Some(duties), _) => {
                // If there is no room for it now, it is reported again.
                let _ = duties.handle_change(&self.state, MemberChange::Moved { holder, contact });
            }
            (None, Some(leader)) => self.outbox.send(leader, Message::Moved { holder, contact }),
            (None, None) => {}
        }
    }

    /// Proposes the next step by which the voters and the format follow the members. Yields whether
    /// something was proposed.
    fn follow_members(&mut self) -> bool {
        match next_voter_step(&self.state, &self.raft.status()) {
            Some(VoterStep::Change(change)) if self.raft.change_voters(change).is_ok() => {
                return true;
            }
            Some(VoterStep::TransferLeader(node)) => self.raft.transfer_leader(node),
            Some(VoterStep::Change(_)) | None => {}
        }
        if self.duties.as_ref().is_none_or(Duties::is_raising_format) {
            return false;
        }
        let next = self.formats.next(&self.state, self.raft.status().members);
        next.is_some_and(|to| self.propose(&Entry::Format(to)).is_ok())
    }

    /// The newest format that a connected node reads.
    #[must_use]
    pub fn reads(&self, node: NodeId) -> Option<Format> {
        self.formats.of(node)
    }

    /// Voters, learners and workers counted on that keep the format as it is: they are not known to
    /// read a newer one than is agreed on. Empty if this program reads no newer one itself.
    pub fn holding_format_back(&self) -> impl Iterator<Item = NodeId> {
        self.formats.holding_back(&self.state, self.raft.status().members)
    }
}

/// The duties of a node that leads.
fn leading<'a>(
    duties: &'a mut Option<Duties>,
    raft: &RaftNode,
) -> Result<&'a mut Duties, CoreRefusal> {
    duties.as_mut().ok_or_else(|| CoreRefusal::NotLeader { leader: raft.status().leader })
}

/// Inputs dropped so far.
#[derive(Debug, Default)]
struct RefusalCounts {
    by_reason: BTreeMap<&'static str, u64>,
}

impl RefusalCounts {
    fn count(&mut self, reason: &'static str) {
        *self.by_reason.entry(reason).or_default() += 1;
    }

    fn by_reason(&self) -> &BTreeMap<&'static str, u64> {
        &self.by_reason
    }
}
