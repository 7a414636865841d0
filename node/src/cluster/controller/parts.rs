//! The setup that a controller is started with, and the parts that it is made of.

use std::sync::Arc;

use tokio::sync::mpsc;
use zbelastic_consensus::core::Core;
use zbelastic_identity::{ClusterAuthority, Credentials};
use zbelastic_transport::{EventQueue, Transport};
use zbelastic_types::NodeId;

use crate::cluster::checkpoint_thread::{CheckpointThread, StoreEvent};
use crate::cluster::journal::Journal;
use crate::cluster::node_record::NodeRecordWriter;
use crate::cluster::process_exit::NodeSignal;
use crate::cluster::record_writer::{RecordWriteReport, RecordWriter};
use crate::cluster::solver::{SolverAnswer, SolverThread};
use zbelastic_node_folder::node_record::NodeRecord;
use zbelastic_node_folder::stores::StoreLocations;

/// The setup that a controller is started with.
pub struct ControllerSetup {
    /// This controller's number in the cluster.
    pub node: NodeId,
    /// Name of the cluster.
    pub cluster_name: String,
    /// When the cluster was founded, in milliseconds since 1970, if that is known here.
    pub founded_ms: Option<u64>,
    /// The record that this node keeps about itself between two starts.
    pub node_record: NodeRecord,
    /// Writes changes of that to disk.
    pub writer: NodeRecordWriter,
    /// Its certificate and key.
    pub credentials: Credentials,
    /// Where checkpoints are kept.
    pub store_locations: StoreLocations,
}

/// The parts that a controller is made of.
pub struct ControllerParts {
    /// The consensus core of this controller.
    pub core: Core,
    /// Writes the core's records to the log.
    pub record_writer: RecordWriter,
    /// Finds plans off the event loop.
    pub solver: SolverThread,
    /// Issues and renews certificates.
    pub authority: Arc<ClusterAuthority>,
    /// The lanes to the other nodes.
    pub transport: Transport,
    /// The store of checkpoints and its thread.
    pub checkpoint_thread: CheckpointThread,
    /// Events and log lines.
    pub journal: Journal,
}

/// The receivers of all events that a controller handles.
pub struct ControllerInbox {
    /// The outcomes of writing its records.
    pub write_reports: mpsc::Receiver<RecordWriteReport>,
    /// Plans that were found, and reviews of those in force.
    pub solver_answers: mpsc::Receiver<SolverAnswer>,
    /// Events of the lanes.
    pub events: EventQueue,
    /// Events of the store's thread.
    pub store_events: mpsc::Receiver<StoreEvent>,
    /// Signals of the system or of an operator to the process.
    pub signals: mpsc::Receiver<NodeSignal>,
}
