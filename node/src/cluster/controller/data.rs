//! Texts and weights on a controller: served to the others, fetched from them, repaired.

use zbelastic_types::NodeId;
use zbelastic_wire::NodeMessage;
use zbelastic_wire::document::{DataName, JobDocument};

use super::ports::{ControllerCompletion, ControllerPorts};
use crate::cluster::checkpoint_thread::CheckpointThread;
use crate::cluster::data::{DamagedCopy, FetchError, damaged_text};
use crate::cluster::kept_data::{DataRoute, keep_data};
use zbelastic_api::HexDigest;
use zbelastic_machine::data_file::is_there;
use zbelastic_policy::WorkCounter;

/// A text was fetched, or not.
pub(super) struct DataFetchResult {
    name: DataName,
    damaged: Vec<DamagedCopy>,
    failure: Option<FetchError>,
}

impl DataFetchResult {
    /// Logs the result, and notifies nodes with a damaged copy that they are to fetch it again.
    pub(super) fn apply(self, ports: &mut ControllerPorts) {
        if let Some(holders) = ports.data_fetches.end(self.name, self.failure.is_none()) {
            fetch_data_of(self.name, holders, ports);
        }
        for DamagedCopy { node, name } in self.damaged {
            ports.journal.warn(damaged_text(node, name));
            ports.outbox.send(node, NodeMessage::KeepData(name));
        }
        let text = HexDigest(self.name.hash).short();
        ports.journal.log(match self.failure {
            None => format!("text {text} is here"),
            Some(why) => format!("text {text} is not here: {why}"),
        });
    }
}

/// Whether a text is here, or a file as long, which counts as new.
pub(super) fn has_data(checkpoint_thread: &CheckpointThread, name: DataName) -> bool {
    is_there(&checkpoint_thread.data_path(name.hash), name)
}

/// A job's data is to be here: a controller that missed its upload fetches it from the others.
pub(super) fn ensure_data(job: &JobDocument, ports: &mut ControllerPorts) {
    for name in job.data() {
        if !has_data(ports.tasks.checkpoint_thread(), name) {
            fetch_data_of(name, ports.other_holders(), ports);
        }
    }
}

/// Fetches a text from nodes that may have it, unless it is being fetched.
pub(super) fn fetch_data_of(name: DataName, holders: Vec<NodeId>, ports: &mut ControllerPorts) {
    if !ports.data_fetches.begin(name, &holders) {
        return;
    }
    let tasks = &ports.tasks;
    let route = DataRoute {
        transport: tasks.transport().clone(),
        checkpoint_thread: tasks.checkpoint_thread().clone(),
        holders,
        progress: WorkCounter::default(),
    };
    tasks.spawn(async move {
        let (damaged, failure) = match keep_data(name, &route).await {
            Ok(damaged) => (damaged, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        ControllerCompletion::Data(DataFetchResult { name, damaged, failure })
    });
}
