//! The one place that waits for futures: `object_store` has no other interface.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// Drives one future at a time, on the thread that calls. No thread is started for it.
#[derive(Debug)]
pub(crate) struct RemoteRuntime(Runtime);

impl RemoteRuntime {
    pub(crate) fn new() -> io::Result<Self> {
        Builder::new_current_thread().enable_time().build().map(Self)
    }

    /// The output of a future. Never called within another future.
    pub(crate) fn wait_for<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(future)
    }
}
