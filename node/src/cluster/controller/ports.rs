//! The ports that the components of a controller work with: the agreed state and its log, messages
//! to other nodes, the journal, and work beside the event loop.

use std::time::Instant;

use zbelastic_consensus::core::{CommandOutcome, Core, CoreRefusal, OperatorCommand};
use zbelastic_consensus::member::Role;
use zbelastic_consensus::state::State;
use zbelastic_types::NodeId;

use super::authority_files::AuthorityFileResult;
use super::backfill::BackfillResult;
use super::data::DataFetchResult;
use super::runs::RunCatalog;
use super::uploads::UploadWriteResult;
use crate::cluster::authority::CredentialsWritten;
use crate::cluster::background::BackgroundTasks;
use crate::cluster::disk_space::NodeDisks;
use crate::cluster::journal::Journal;
use crate::cluster::outbox::Outbox;
use crate::cluster::piece_keeper::PieceFetchResult;
use zbelastic_policy::data_fetches::DataFetches;
use zbelastic_timing::commit_times::CommitTimes;

/// The result of work that was done beside the event loop.
pub(super) enum ControllerCompletion {
    /// A piece of a checkpoint, to be kept for another node.
    Piece(PieceFetchResult),
    /// The result of fetching a text.
    Data(DataFetchResult),
    /// The result of fetching pieces of runs that ended.
    Backfilled(BackfillResult),
    /// The result of writing a piece of an upload.
    Uploaded(UploadWriteResult),
    /// The space on the node's disks, as far as it is known.
    Disks(NodeDisks),
    /// Other credentials of this node were written, or why they could not be.
    Credentials(Box<CredentialsWritten>),
    /// The administrator's certificate was renewed if that was due, or why it could not be.
    AdminRenewal(Result<(), String>),
    /// Files of an authority were read or written, or could not be.
    AuthorityFiles(AuthorityFileResult),
}

impl From<CredentialsWritten> for ControllerCompletion {
    fn from(written: CredentialsWritten) -> Self {
        Self::Credentials(Box::new(written))
    }
}

impl From<PieceFetchResult> for ControllerCompletion {
    fn from(result: PieceFetchResult) -> Self {
        Self::Piece(result)
    }
}

/// Work beside the event loop of a controller.
pub(super) type ControllerTasks = BackgroundTasks<ControllerCompletion>;

/// The state that components of a controller read and write beside their own fields.
pub(super) struct ControllerPorts {
    /// The id of this node.
    pub(super) me: NodeId,
    pub(super) core: Core,
    /// Messages that are sent once the event is handled.
    pub(super) outbox: Outbox,
    pub(super) journal: Journal,
    pub(super) tasks: ControllerTasks,
    /// Texts and weights that are being fetched.
    pub(super) data_fetches: DataFetches,
    /// How long entries take that this node appends as the leader.
    pub(super) commit_times: CommitTimes,
}

impl ControllerPorts {
    pub(super) fn new(
        (me, core): (NodeId, Core),
        journal: Journal,
        tasks: ControllerTasks,
    ) -> Self {
        let outbox = Outbox::default();
        let data_fetches = DataFetches::default();
        let commit_times = CommitTimes::default();
        Self { me, core, outbox, journal, tasks, data_fetches, commit_times }
    }

    pub(super) fn state(&self) -> &State {
        self.core.state()
    }

    /// Whether this node leads and has applied all that was agreed before.
    pub(super) fn leads(&self) -> bool {
        self.core.status().leads_applied
    }

    /// Entries are to be written, or one was applied: only then has an input appended or committed some.
    pub(super) fn note_commits(&mut self) {
        let raft = self.core.status();
        if raft.is_leader {
            self.commit_times.note(raft.last_index, raft.commit, Instant::now());
        } else {
            self.commit_times.note_follower();
        }
    }

    pub(super) fn propose(
        &mut self,
        command: OperatorCommand,
    ) -> Result<CommandOutcome, CoreRefusal> {
        self.core.execute_command(command)
    }

    /// The runs that are kept.
    pub(super) fn runs(&self) -> RunCatalog<'_> {
        RunCatalog::of(self.core.state())
    }

    pub(super) fn other_controllers(&self) -> Vec<NodeId> {
        self.state().controllers().filter(|node| *node != self.me).collect()
    }

    /// Members beside this node that may hold pieces.
    pub(super) fn other_holders(&self) -> Vec<NodeId> {
        let mut holders = holders(self.state());
        holders.retain(|node| *node != self.me);
        holders
    }
}

/// Members that may hold pieces.
pub(super) fn holders(state: &State) -> Vec<NodeId> {
    let live = state.members().iter().filter(|(_, member)| member.is_live());
    let keeps = |role: Role| match role {
        Role::Controller | Role::Worker => true,
    };
    live.filter(|(_, member)| keeps(member.role)).map(|(node, _)| *node).collect()
}
