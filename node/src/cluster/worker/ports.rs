//! The ports that the components of a worker work with: its session, its device, messages to other
//! nodes, the journal, the log of its work, and work beside the event loop.

use zbelastic_consensus::session::{SessionInput, WorkerEvent, WorkerSession};
use zbelastic_policy::data_fetches::DataFetches;
use zbelastic_policy::roster::Roster;
use zbelastic_policy::work_log::WorkLog;
use zbelastic_trainer::runtime::RuntimeInput;
use zbelastic_types::NodeId;
use zbelastic_wire::NodeMessage;
use zbelastic_wire::document::DataName;

use super::layers::LayerFetchResult;
use super::pieces::PieceTaskResult;
use crate::cluster::authority::CredentialsWritten;
use crate::cluster::background::BackgroundTasks;
use crate::cluster::data::{FetchError, FetchedJob};
use crate::cluster::device::{DeviceHandle, DeviceInput};
use crate::cluster::disk_space::NodeDisks;
use crate::cluster::journal::Journal;
use crate::cluster::outbox::Outbox;
use crate::cluster::piece_keeper::PieceFetchResult;
use crate::cluster::process_exit::ProcessExit;
use crate::cluster::shard_fetch::ShardRound;

/// The result of work that was done beside the event loop.
pub(super) enum WorkerCompletion {
    /// A layer for a plan.
    Layer(LayerFetchResult),
    /// A piece of a checkpoint that this node writes or reads.
    Piece(PieceTaskResult),
    /// A piece of a checkpoint, to be kept for another node.
    Kept(PieceFetchResult),
    /// A certificate that is valid for longer, or why there is none.
    Certificate(Result<Vec<Vec<u8>>, String>),
    /// Other credentials were written, or why they could not be.
    Credentials(Box<CredentialsWritten>),
    /// The cluster has no member with this node's key any more.
    NoMember,
    /// The space on the node's disks, as far as it is known.
    Disks(NodeDisks),
    /// The text and weights that a job is built from.
    Job(Box<Result<FetchedJob, FetchError>>),
    /// It is time to request data again that no node had.
    RequestData,
    /// Data was fetched again, or not.
    FetchedAgain(DataName, bool),
    /// A round of a fetch of shards is over.
    Shards(Box<ShardRound>),
}

impl From<CredentialsWritten> for WorkerCompletion {
    fn from(written: CredentialsWritten) -> Self {
        Self::Credentials(Box::new(written))
    }
}

impl From<PieceFetchResult> for WorkerCompletion {
    fn from(result: PieceFetchResult) -> Self {
        Self::Kept(result)
    }
}

/// Work beside the event loop of a worker.
pub(super) type WorkerTasks = BackgroundTasks<WorkerCompletion>;

/// The state that components of a worker read and write beside their own fields.
pub(super) struct WorkerPorts {
    /// The id of this node.
    pub(super) me: NodeId,
    pub(super) session: WorkerSession,
    pub(super) device: DeviceHandle,
    /// Messages that are sent once the event is handled.
    pub(super) outbox: Outbox,
    pub(super) journal: Journal,
    pub(super) work_log: WorkLog,
    pub(super) tasks: WorkerTasks,
    /// Texts and weights that are being fetched again.
    pub(super) data_fetches: DataFetches,
    /// How the process ends, once there is a reason to.
    pub(super) exit: Option<ProcessExit>,
}

impl WorkerPorts {
    pub(super) fn send_to_session(&mut self, event: WorkerEvent) {
        let _ = self.session.handle(SessionInput::Event(event));
    }

    pub(super) fn send_to_device(&mut self, input: RuntimeInput) {
        self.enqueue(DeviceInput::Runtime(input));
    }

    /// Enqueues an input for the device. Without its device a worker ends. Yields whether the input
    /// was enqueued.
    pub(super) fn enqueue(&mut self, input: DeviceInput) -> bool {
        let sent = self.device.send(input);
        if let Err(error) = &sent {
            self.exit = Some(ProcessExit::Lost(error.to_string()));
        }
        sent.is_ok()
    }

    pub(super) fn send_to_controllers(&mut self, message: &NodeMessage) {
        self.outbox.send_to_all(self.session.controllers(), message);
    }

    /// Members that may hold pieces and texts.
    pub(super) fn holders(&self, roster: &Roster) -> Vec<NodeId> {
        roster.holders(self.session.contacts())
    }
}
