//! The setup that a worker is started with, and the parts that it is made of.

use std::path::PathBuf;

use tokio::sync::mpsc;
use zbelastic_consensus::contact::Contact;
use zbelastic_consensus::member::Resources;
use zbelastic_identity::Credentials;
use zbelastic_machine::data_fetch::DataSettings;
use zbelastic_machine::peak_rates::PeakRatesByPrecision;
use zbelastic_preemption::NoticeWatch;
use zbelastic_transport::{EventQueue, Transport};
use zbelastic_types::{ClusterId, NodeId};

use crate::cluster::checkpoint_thread::{CheckpointThread, StoreEvent};
use crate::cluster::journal::Journal;
use crate::cluster::node_record::NodeRecordWriter;
use crate::cluster::process_exit::NodeSignal;
use zbelastic_node_folder::node_record::NodeRecord;
use zbelastic_node_folder::stores::StoreLocations;

/// The setup that a worker is started with.
pub struct WorkerSetup {
    /// Id of the cluster, as in its certificates.
    pub cluster: ClusterId,
    /// This worker's number in the cluster.
    pub node: NodeId,
    /// The number of this start: it grows with each.
    pub boot: u64,
    /// The name and the addresses of this worker.
    pub contact: Contact,
    /// Memory, speed and device that it offers.
    pub resources: Resources,
    /// What it multiplies and adds at best, if that was measured.
    pub peak: Option<PeakRatesByPrecision>,
    /// What was typed about data on this machine.
    pub data: DataSettings,
    /// The record that this node keeps about itself between two starts.
    pub node_record: NodeRecord,
    /// Writes changes of the node record to disk.
    pub writer: NodeRecordWriter,
    /// Its certificate and key.
    pub credentials: Credentials,
    /// The folder that holds the node record, the certificate and the key.
    pub identity: PathBuf,
    /// Where checkpoints are kept.
    pub store_locations: StoreLocations,
}

/// The parts that a worker is made of.
pub struct WorkerParts {
    /// The lanes to the other nodes.
    pub transport: Transport,
    /// Events of the lanes: connections and messages.
    pub events: EventQueue,
    /// The store of checkpoints and its thread.
    pub checkpoint_thread: CheckpointThread,
    /// Reports of the thread of the store.
    pub store_events: mpsc::Receiver<StoreEvent>,
    /// Events and log lines.
    pub journal: Journal,
    /// Signals of the system or of an operator to the process.
    pub signals: mpsc::Receiver<NodeSignal>,
    /// Notices of the cloud that the machine is withdrawn.
    pub notices: NoticeWatch,
}
