//! Texts and weights on a controller: served to the others, fetched from them, repaired.

use std::fs;
use std::time::SystemTime;

use zbelastic_api::HexDigest;
use zbelastic_types::NodeId;

use super::{ControllerCompletion, ControllerNode};
use crate::cluster::data::{DamagedCopy, damaged_text, fetch_data, read_if_same};
use crate::cluster::document::{DataName, JobDocument};
use crate::cluster::wire::NodeMessage;

/// A text was fetched, or not.
pub(super) struct DataFetchResult {
    name: DataName,
    damaged: Vec<DamagedCopy>,
    failure: Option<String>,
}

impl ControllerNode {
    /// Whether it is here. A run is about to begin with it, or has: it counts as new for what
    /// removes files that no run refers to.
    pub(super) fn has_data(&self, name: DataName) -> bool {
        let path = self.checkpoint_thread.data_path(name.hash);
        let is_here = fs::metadata(&path).is_ok_and(|found| found.len() == name.length);
        if is_here {
            // If that fails, the file is as old as it was.
            let _ = fs::File::options()
                .append(true)
                .open(&path)
                .and_then(|file| file.set_modified(SystemTime::now()));
        }
        is_here
    }

    /// The other controllers are to have it too.
    pub(super) fn replicate_data(&self, name: DataName) {
        let others = self.core.state().controllers().filter(|node| *node != self.setup.node);
        others.for_each(|node| self.send_node(node, &NodeMessage::KeepData(name)));
    }

    /// A job's data is to be here: a controller that missed its upload fetches it from the others.
    pub(super) fn ensure_data(&mut self, job: &JobDocument) {
        for name in job.data() {
            if !self.has_data(name) {
                self.fetch(name, self.other_holders());
            }
        }
    }

    pub(super) fn fetch(&self, name: DataName, holders: Vec<NodeId>) {
        let transport = self.transport.clone();
        let checkpoint_thread = self.checkpoint_thread.clone();
        let completions = self.completions.clone();
        tokio::spawn(async move {
            let fetched = fetch_data(name, &transport, &checkpoint_thread, holders).await;
            let (damaged, fetched) = match fetched {
                Ok(found) => (found.damaged, Ok(())),
                Err(error) => (Vec::new(), Err(error.to_string())),
            };
            let path = checkpoint_thread.data_path(name.hash);
            let is_kept = move || read_if_same(&path, name).is_some();
            let failure = match fetched {
                Ok(()) if tokio::task::spawn_blocking(is_kept).await.unwrap_or(false) => None,
                Ok(()) => Some("it cannot be written to the disk".to_owned()),
                Err(why) => Some(why),
            };
            let _ = completions
                .send(ControllerCompletion::Data(DataFetchResult { name, damaged, failure }))
                .await;
        });
    }

    pub(super) fn handle_data(&mut self, result: DataFetchResult) {
        let DataFetchResult { name, damaged, failure } = result;
        for DamagedCopy { node, name } in damaged {
            self.journal.warn(damaged_text(node, name));
            self.send_node(node, &NodeMessage::KeepData(name));
        }
        match failure {
            None => self.journal.log(format!("text {} is here", HexDigest(name.hash).short())),
            Some(why) => {
                self.journal
                    .log(format!("text {} is not here: {why}", HexDigest(name.hash).short()));
            }
        }
    }
}
