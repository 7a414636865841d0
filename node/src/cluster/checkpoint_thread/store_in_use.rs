//! The store in use. One that has stopped, since a write failed or its index was found damaged, or that
//! could not be opened is opened again as [`zbelastic_policy::store_reopening`] decides.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use zbelastic_checkpoint::{CheckpointId, SledStore, aside_of};
use zbelastic_machine::disk_usage;
use zbelastic_policy::store_opening::StoreOpeningFault;
use zbelastic_policy::store_reopening::{StoreReopening, StoreReopeningAction};
use zbelastic_types::Bytes;

use super::aside_stores::AsideStores;
use super::{StoreEvent, StoreInUse};
use zbelastic_node_folder::stores::{OpenStores, StoreOpenError};

/// Handles of a store that nobody reads from: that of the open stores, and that of the store in use.
const OWN_HANDLES: usize = 2;

/// Opens the store in use, and opens it again once it is closed.
pub(super) struct StoreKeeper {
    stores: OpenStores,
    /// Where the store in use lies, or would.
    folder: PathBuf,
    in_use: watch::Sender<StoreInUse>,
    asides: AsideStores,
    reopening: StoreReopening,
    /// The damage of the store that was put aside, and where it lies, until another one is opened.
    put_aside: Option<(StoreOpenError, PathBuf)>,
    /// The moment from which the times of `reopening` count.
    begun: Instant,
}

impl StoreKeeper {
    /// Of a store that was opened, or of a folder with a store that could not be, which was reported.
    pub(super) fn new(
        stores: OpenStores,
        store: Result<Arc<SledStore>, (PathBuf, StoreOpeningFault)>,
        asides: AsideStores,
    ) -> (Self, watch::Receiver<StoreInUse>) {
        let (folder, store, reopening) = match store {
            Ok(store) => (store.folder().to_owned(), Some(store), StoreReopening::default()),
            Err((folder, fault)) => (folder, None, StoreReopening::of_closed(fault)),
        };
        let (in_use, receiver) = watch::channel(store);
        let begun = Instant::now();
        (Self { stores, folder, in_use, asides, reopening, put_aside: None, begun }, receiver)
    }

    /// The store in use.
    pub(super) fn store(&self) -> StoreInUse {
        self.in_use.borrow().clone()
    }

    /// Removes stores that were put aside beside the one in use, if they may go.
    pub(super) fn collect_asides(
        &mut self,
        referred: &[CheckpointId],
        reports: &mpsc::Sender<StoreEvent>,
    ) {
        if let Some(store) = self.store() {
            self.asides.collect(&store, referred, reports);
        }
    }

    /// Uses the store in this folder from now on. One that is closed is tried at once: somebody may have
    /// mounted its disk for the job that names it.
    pub(super) fn use_folder(&mut self, folder: PathBuf) -> Option<StoreEvent> {
        if folder == self.folder && self.in_use.borrow().is_some() {
            return None;
        }
        self.folder = folder;
        self.reopening = StoreReopening::default();
        self.open()
    }

    /// Opens the store in use again if it is closed, nobody reads from it, its disk has space and an
    /// attempt is due.
    pub(super) fn reopen(&mut self) -> Option<StoreEvent> {
        let is_closed = match &*self.in_use.borrow() {
            Some(store) => store.has_stopped() && Arc::strong_count(store) <= OWN_HANDLES,
            None => true,
        };
        let is_full = || disk_usage(&self.folder).is_ok_and(|space| space.check(Bytes(0)).is_err());
        if !is_closed || is_full() || !self.reopening.is_due(self.begun.elapsed()) {
            return None;
        }
        self.in_use.send_replace(None);
        self.stores.forget(&self.folder);
        self.open()
    }

    /// Opens the store, or begins another one if it is damaged.
    fn open(&mut self) -> Option<StoreEvent> {
        let error = match self.stores.get(&self.folder) {
            Ok(store) => return self.publish(store),
            Err(error) => error,
        };
        let is_taken = |number| aside_of(&self.folder, number).exists();
        match self.reopening.after_fault(error.opening_fault(), is_taken) {
            StoreReopeningAction::BeginAnew { aside } => self.begin_anew(error, aside),
            StoreReopeningAction::StayClosed { is_news } => {
                self.stay_closed(error.closing(&self.folder), is_news)
            }
        }
    }

    fn begin_anew(&mut self, damage: StoreOpenError, aside: u32) -> Option<StoreEvent> {
        let begun = self.stores.put_aside(&self.folder, aside).and_then(|aside| {
            // From now on pieces lie there, also if no other store can be opened.
            self.asides.note_begun();
            self.put_aside = Some((damage, aside));
            self.stores.get(&self.folder)
        });
        match begun {
            Ok(store) => self.publish(store),
            Err(error) => {
                let is_news = self.reopening.note_closed(error.opening_fault());
                self.stay_closed(error, is_news)
            }
        }
    }

    fn stay_closed(&self, error: StoreOpenError, is_news: bool) -> Option<StoreEvent> {
        self.in_use.send_replace(None);
        is_news.then(|| StoreEvent::Failed { failure: error.into() })
    }

    /// Has the store used. Yields the damage of the one before, if it was put aside for this one.
    fn publish(&mut self, store: Arc<SledStore>) -> Option<StoreEvent> {
        self.reopening.note_open(self.begun.elapsed());
        self.in_use.send_replace(Some(store));
        let (damage, aside) = self.put_aside.take()?;
        Some(StoreEvent::Replaced { damage, aside })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use zbelastic_checkpoint::{CheckpointStore, PieceName};
    use zbelastic_node_folder::NodeDataFolder;
    use zbelastic_policy::aside::AsideRetention;
    use zbelastic_policy::store_opening::ASIDE_MAX;
    use zbelastic_policy::store_reopening::REOPEN_PAUSE_MAX;
    use zbelastic_types::{Digest, LayerId, RunId, Step};

    use super::*;
    use crate::cluster::checkpoint_thread::StoreWriteError;
    use zbelastic_node_folder::stores::StoreLocations;

    fn version(version: u64) -> CheckpointId {
        CheckpointId { run: RunId(1), version: Step(version) }
    }

    fn name(layer: u32) -> PieceName {
        let digest = Digest([layer as u8; 32]);
        PieceName { version: version(4), layer: LayerId(layer), digest }
    }

    /// The keeper of a store in a data folder, what it knows of those that lie aside, and its store.
    fn keeper(
        data: &Path,
    ) -> (StoreKeeper, watch::Receiver<AsideRetention>, watch::Receiver<StoreInUse>) {
        let locations = StoreLocations::new(NodeDataFolder::new(data.to_owned()));
        let mut stores = OpenStores::new(locations);
        let store = stores.get(&data.join("store")).expect("made");
        let (retention, asides) = watch::channel(AsideRetention::default());
        let (kept, in_use) = StoreKeeper::new(stores, Ok(store), AsideStores::new(retention));
        (kept, asides, in_use)
    }

    /// The index in `folder` is damaged, and the store in use fails a write.
    fn damage(kept: &StoreKeeper, folder: &Path) {
        let store = kept.store().expect("in use");
        // A commit looks into this folder, and the index makes it as it is opened.
        fs::remove_dir_all(folder.join("index/blobs")).expect("it is there");
        fs::write(folder.join("index/MARK"), [0; 528]).expect("writable");
        store.put(name(9), &[9; 10]).expect_err("it stops");
    }

    /// Makes an attempt as if the pause were over.
    fn reopen(kept: &mut StoreKeeper) -> Option<StoreEvent> {
        kept.begun -= REOPEN_PAUSE_MAX;
        kept.reopen()
    }

    #[test]
    fn a_store_that_is_found_damaged_is_put_aside_and_another_one_takes_pieces() {
        let data = tempfile::tempdir().expect("a folder");
        let folder = data.path().join("store");
        let (mut kept, asides, in_use) = keeper(data.path());
        kept.store().expect("in use").put(name(0), &[1; 10]).expect("room");
        let sound = kept.store().expect("in use").inventory().expect("readable");
        let may_go = |versions: &[u64]| {
            let versions: Vec<_> = versions.iter().map(|of| version(*of)).collect();
            let mut known = asides.borrow().clone();
            known.may_go(&versions, &sound)
        };
        fs::create_dir(aside_of(&folder, 1)).expect("writable");
        let (reports, _events) = mpsc::channel(4);
        kept.collect_asides(&[version(4)], &reports);
        assert!(may_go(&[8]), "it is newer than what there was at the start");
        assert!(kept.reopen().is_none() && kept.store().is_some(), "it is sound");
        damage(&kept, &folder);
        let reader = kept.store();
        assert!(reopen(&mut kept).is_none() && in_use.borrow().is_some(), "somebody reads from it");
        drop(reader);
        let aside = aside_of(&folder, 2);
        match reopen(&mut kept) {
            Some(StoreEvent::Replaced { damage, aside: found }) => {
                assert_eq!(found, aside);
                let text = damage.put_aside_text(&found);
                assert!(
                    text.contains("MARK holds no number") && text.contains("put aside in"),
                    "{text}"
                );
            }
            other => panic!("it is put aside, got {other:?}"),
        }
        assert!(aside.join("chunks").is_dir());
        let begun = in_use.borrow().clone().expect("another one");
        assert_eq!(begun.names().expect("readable"), []);
        begun.put(name(1), &[2; 10]).expect("room");
        assert!(!may_go(&[8]), "what is newer than the store that was begun is not known yet");
    }

    #[test]
    fn a_disk_that_damages_each_store_leaves_a_node_without_one_until_there_is_room_aside() {
        let data = tempfile::tempdir().expect("a folder");
        let folder = data.path().join("store");
        let (mut kept, _asides, in_use) = keeper(data.path());
        for number in 1..=ASIDE_MAX {
            damage(&kept, &folder);
            let event = reopen(&mut kept);
            assert!(matches!(event, Some(StoreEvent::Replaced { .. })), "{number}: {event:?}");
        }
        damage(&kept, &folder);
        match reopen(&mut kept) {
            Some(StoreEvent::Failed { failure: StoreWriteError::Place(failure) }) => {
                assert!(
                    failure.to_string().starts_with("3 damaged stores lie beside"),
                    "{failure}"
                );
            }
            other => panic!("it stays closed, got {other:?}"),
        }
        assert!(in_use.borrow().is_none());
        assert!(kept.reopen().is_none(), "it is reported once, and not tried again at once");
        fs::remove_dir_all(aside_of(&folder, 2)).expect("somebody makes room");
        assert!(matches!(reopen(&mut kept), Some(StoreEvent::Replaced { .. })));
        assert!(in_use.borrow().is_some());
    }

    /// The store is moved, and none can be opened in its place yet: that it lies aside is not forgotten.
    #[test]
    fn a_store_that_was_put_aside_is_reported_once_another_one_is_opened() {
        for is_named_again in [false, true] {
            check_that_it_is_reported_later(is_named_again);
        }
    }

    /// The other one is opened by an attempt, or because a job names the folder again.
    fn check_that_it_is_reported_later(is_named_again: bool) {
        let data = tempfile::tempdir().expect("a folder");
        let (mut kept, asides, in_use) = keeper(data.path());
        let folder = data.path().join("disk/one");
        assert!(kept.use_folder(folder.clone()).is_none());
        let other = AsideRetention::default();
        fs::create_dir(aside_of(&folder, 1)).expect("writable");
        kept.collect_asides(&[version(4)], &mpsc::channel(4).0);
        assert_ne!(*asides.borrow(), other);
        damage(&kept, &folder);
        kept.in_use.send_replace(None);
        kept.stores.forget(&folder);
        let found = kept.stores.get(&folder).expect_err("it is damaged");
        // Where the last store was cannot be read for a while.
        let note = data.path().join("store.json");
        fs::rename(&note, data.path().join("away")).expect("it is there");
        fs::create_dir(&note).expect("writable");
        let event = kept.begin_anew(found, 2);
        assert!(matches!(event, Some(StoreEvent::Failed { .. })), "{event:?}");
        assert!(aside_of(&folder, 2).is_dir() && in_use.borrow().is_none());
        assert_eq!(*asides.borrow(), other, "nothing that lies there may go");
        fs::remove_dir(&note).expect("it is there");
        fs::rename(data.path().join("away"), &note).expect("it is there");
        let event = if is_named_again { kept.use_folder(folder) } else { reopen(&mut kept) };
        assert!(matches!(event, Some(StoreEvent::Replaced { .. })), "{event:?}");
        assert!(in_use.borrow().is_some() && reopen(&mut kept).is_none());
    }

    #[test]
    fn another_store_is_put_aside_as_well_and_one_that_is_not_there_is_tried_again() {
        let data = tempfile::tempdir().expect("a folder");
        let (mut kept, _asides, in_use) = keeper(data.path());
        let other = data.path().join("disk/one");
        assert!(kept.use_folder(other.clone()).is_none() && in_use.borrow().is_some());
        damage(&kept, &other);
        assert!(kept.use_folder(data.path().join("store")).is_none());
        kept.stores.forget(&other);
        assert!(matches!(kept.use_folder(other), Some(StoreEvent::Replaced { .. })));
        let blocked = data.path().join("file/one");
        fs::write(data.path().join("file"), "in the way").expect("writable");
        let event = kept.use_folder(blocked.clone());
        assert!(matches!(event, Some(StoreEvent::Failed { .. })), "{event:?}");
        fs::remove_file(data.path().join("file")).expect("it is there");
        assert!(reopen(&mut kept).is_none());
        assert_eq!(in_use.borrow().as_ref().expect("opened").folder(), blocked);
        // It is closed again, and the next attempt is not due, when another job names it.
        kept.in_use.send_replace(None);
        kept.stores.forget(&blocked);
        assert!(kept.reopen().is_none() && in_use.borrow().is_none(), "the pause is not over");
        assert!(kept.use_folder(blocked).is_none() && in_use.borrow().is_some());
    }
}
