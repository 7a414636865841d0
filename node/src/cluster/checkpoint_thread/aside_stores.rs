//! Removes stores that were put aside, once nothing that the cluster refers to is older than the store
//! in their place.

use std::thread::{self, JoinHandle};

use tokio::sync::{mpsc, watch};
use zbelastic_checkpoint::{
    AsideFiles, CheckpointId, CheckpointStore, SledStore, aside_folders, remove_aside,
};
use zbelastic_machine::background_thread::raise_niceness;
use zbelastic_policy::aside::AsideRetention;
use zbelastic_policy::store_opening::ASIDE_MAX;
use zbelastic_wire::FreedSpace;

use super::StoreEvent;
use zbelastic_node_folder::stores::StoreOpenError;

/// Stores that were put aside beside the one in use.
pub(super) struct AsideStores {
    retention: watch::Sender<AsideRetention>,
    removing: Option<JoinHandle<()>>,
}

impl AsideStores {
    /// Publishes to `retention` what it knows of the time at which the store was begun.
    pub(super) const fn new(retention: watch::Sender<AsideRetention>) -> Self {
        Self { retention, removing: None }
    }

    /// Another store is begun: it is as old as what is referred to from now on.
    pub(super) fn note_begun(&self) {
        self.retention.send_replace(AsideRetention::default());
    }

    /// Removes them in a thread of its own, if they may go: thousands of files, and no piece waits.
    pub(super) fn collect(
        &mut self,
        store: &SledStore,
        referred: &[CheckpointId],
        reports: &mpsc::Sender<StoreEvent>,
    ) {
        let folders = aside_folders(store.folder(), ASIDE_MAX);
        if folders.is_empty() || self.removing.as_ref().is_some_and(|thread| !thread.is_finished())
        {
            return;
        }
        let Ok(inventory) = store.inventory() else { return };
        // Nobody waits for a change of it.
        if !self.retention.send_if_modified(|retention| retention.may_go(referred, &inventory)) {
            return;
        }
        let reports = reports.clone();
        let remove = move || {
            raise_niceness();
            for folder in folders {
                let event = match remove_aside(&folder) {
                    Ok(AsideFiles { files, bytes }) => {
                        StoreEvent::Collected(FreedSpace { chunks: files, bytes })
                    }
                    Err(source) => StoreEvent::Failed {
                        failure: StoreOpenError::Folder { folder, source }.into(),
                    },
                };
                // Without a receiver of reports the node ends.
                let _ = reports.blocking_send(event);
            }
        };
        // Without a thread it is tried again the next time.
        self.removing = thread::Builder::new().name("aside".to_owned()).spawn(remove).ok();
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_checkpoint::aside_of;
    use zbelastic_types::{RunId, Step};
    use zbelastic_wire::StoreReferences;

    use super::*;
    use crate::cluster::checkpoint_thread::{CheckpointThread, collect_now};
    use zbelastic_node_folder::NodeDataFolder;
    use zbelastic_node_folder::stores::{OpenStores, StoreLocations};

    #[test]
    fn a_store_that_was_put_aside_goes_when_newer_checkpoints_have_replaced_its_own() {
        let data = tempfile::tempdir().expect("a folder");
        let folder = data.path().join("store");
        let aside = aside_of(&folder, 1);
        std::fs::create_dir_all(aside.join("chunks/00")).expect("made");
        std::fs::write(aside.join("chunks/00/old"), [7; 5000]).expect("written");
        let locations = StoreLocations::new(NodeDataFolder::new(data.path().to_owned()));
        let mut stores = OpenStores::new(locations);
        let store = stores.get(&folder).expect("made");
        let (checkpoint_thread, mut events) =
            CheckpointThread::start(stores, Ok(store), data.path().to_owned()).expect("a thread");
        let collect = |versions: &[u64]| {
            let at = |version: &u64| CheckpointId { run: RunId(1), version: Step(*version) };
            let versions = versions.iter().map(at).collect();
            checkpoint_thread.collect(StoreReferences { versions, data: None }).expect("room");
        };
        let mut freed = || {
            let event = events.blocking_recv().expect("the thread lives");
            let StoreEvent::Collected(FreedSpace { bytes, .. }) = event else {
                panic!("{event:?}");
            };
            bytes
        };
        for versions in [&[0, 4][..], &[0, 4, 8]] {
            collect(versions);
            assert_eq!(freed(), 0);
            assert!(aside.exists());
        }
        collect(&[0, 8, 12]);
        // Of the store, and of the one beside it.
        assert_eq!(freed() + freed(), 5000);
        assert!(!aside.exists() && folder.exists());

        let collect_on_request = |versions: &[u64]| {
            let at = |version: &u64| CheckpointId { run: RunId(1), version: Step(*version) };
            let versions = versions.iter().map(at).collect();
            let referred = StoreReferences { versions, data: None };
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("made");
            runtime.block_on(collect_now(checkpoint_thread.clone(), referred)).expect("a store")
        };
        let put_aside = || {
            std::fs::create_dir_all(&aside).expect("made");
            std::fs::write(aside.join("old"), [7; 300]).expect("written");
        };
        let files = AsideFiles { files: 1, bytes: 300 };
        put_aside();
        // A checkpoint that is as old as the store in their place.
        let kept = collect_on_request(&[0, 4, 12]);
        assert_eq!((kept.asides.removed, kept.asides.kept), (AsideFiles::default(), files));
        assert!(aside.exists());
        let removed = collect_on_request(&[0, 8, 12]);
        assert_eq!((removed.asides.removed, removed.asides.kept), (files, AsideFiles::default()));
        assert!(!aside.exists() && removed.asides.fault.is_none());
    }
}
