//! A store that has stopped: a write failed, for want of space as a rule, and it writes nothing more
//! until it is opened again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use zbelastic_machine::disk_usage;
use zbelastic_types::Bytes;

use super::{StoreEvent, StoreInUse};
use crate::cluster::stores::OpenStores;

/// From one attempt to open a store again to the next. Where somebody still reads from it, an attempt
/// waits some seconds for the lock.
pub(super) const REOPEN_PAUSE: Duration = Duration::from_secs(10);
/// Handles of a store that nobody reads from: that of the open stores, and that of the store in use.
const OWN_HANDLES: usize = 2;

/// Opens a store again that has stopped, once its disk has space and nobody reads from it.
#[derive(Debug, Default)]
pub(super) struct StoppedStore {
    /// The store that was closed and could not be opened yet.
    closed: Option<PathBuf>,
    tried: Option<Instant>,
}

impl StoppedStore {
    /// Of a store that could not be opened when its node was started, if there is one.
    pub(super) const fn of(closed: Option<PathBuf>) -> Self {
        Self { closed, tried: None }
    }

    /// Opens the store in use again, if it has stopped. Returns the failure of the first attempt: a
    /// store that is damaged stays closed until the node is started again, which puts it aside.
    pub(super) fn reopen(
        &mut self,
        stores: &mut OpenStores,
        in_use: &watch::Sender<StoreInUse>,
    ) -> Option<StoreEvent> {
        let stopped = match &*in_use.borrow() {
            Some(store) if !store.has_stopped() || Arc::strong_count(store) > OWN_HANDLES => None,
            Some(store) => Some(store.folder().to_owned()),
            None => self.closed.clone(),
        };
        let folder = stopped?;
        let is_early = self.tried.is_some_and(|at| at.elapsed() < REOPEN_PAUSE);
        let is_full = || disk_usage(&folder).is_ok_and(|space| space.check(Bytes(0)).is_err());
        if is_early || is_full() {
            return None;
        }
        self.tried = Some(Instant::now());
        in_use.send_replace(None);
        stores.forget(&folder);
        match stores.get(&folder) {
            Ok(store) => {
                in_use.send_replace(Some(store));
                self.closed = None;
                None
            }
            Err(error) => {
                let is_first = self.closed.replace(folder).is_none();
                is_first.then(|| StoreEvent::Failed { failure: error.into() })
            }
        }
    }
}
