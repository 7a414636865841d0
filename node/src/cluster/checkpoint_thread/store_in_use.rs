//! A store that has stopped: a write failed, for want of space as a rule, and it writes nothing more
//! until it is opened again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use zbelastic_machine::disk_usage;
use zbelastic_types::Bytes;

use super::{StoreEvent, StoreInUse};
use crate::cluster::stores::OpenStores;

/// From one attempt to open a store again to the next. Where somebody still reads from it, an attempt
/// waits some seconds for the lock.
const REOPEN_PAUSE: Duration = Duration::from_secs(10);

/// Opens a store again that has stopped, once its disk has space.
#[derive(Debug, Default)]
pub(super) struct StoppedStore {
    folder: Option<PathBuf>,
    tried: Option<Instant>,
}

impl StoppedStore {
    /// Opens the store in use again, if it has stopped. Returns the failure of an attempt.
    pub(super) fn reopen(
        &mut self,
        stores: &mut OpenStores,
        in_use: &watch::Sender<StoreInUse>,
    ) -> Option<StoreEvent> {
        if let Some(store) = &*in_use.borrow() {
            self.folder = store.has_stopped().then(|| store.folder().to_owned());
        }
        let folder = self.folder.as_ref()?;
        let is_early = self.tried.is_some_and(|at| at.elapsed() < REOPEN_PAUSE);
        let is_full = || disk_usage(folder).is_ok_and(|space| space.check(Bytes(0)).is_err());
        if is_early || is_full() {
            return None;
        }
        self.tried = Some(Instant::now());
        in_use.send_replace(None);
        stores.forget(folder);
        match stores.get(folder) {
            Ok(store) => {
                in_use.send_replace(Some(store));
                self.folder = None;
                None
            }
            Err(error) => Some(StoreEvent::Failed { failure: error.into() }),
        }
    }
}
