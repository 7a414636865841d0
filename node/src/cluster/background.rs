//! Work beside a node's event loop: work that waits for disks, for other nodes or for hashes. The
//! event loop receives a completion of each piece of work.

use std::future::Future;

use tokio::sync::mpsc;
use zbelastic_transport::Transport;

use super::checkpoint_thread::CheckpointThread;

/// Starts work beside the event loop. `C` are the completions that the loop receives.
pub struct BackgroundTasks<C> {
    transport: Transport,
    checkpoint_thread: CheckpointThread,
    completions: mpsc::Sender<C>,
}

impl<C: Send + 'static> BackgroundTasks<C> {
    /// Tasks that use these lanes and this store.
    #[must_use]
    pub const fn new(
        transport: Transport,
        checkpoint_thread: CheckpointThread,
        completions: mpsc::Sender<C>,
    ) -> Self {
        Self { transport, checkpoint_thread, completions }
    }

    /// The lanes to other nodes.
    #[must_use]
    pub const fn transport(&self) -> &Transport {
        &self.transport
    }

    /// The store of checkpoints and its thread.
    #[must_use]
    pub const fn checkpoint_thread(&self) -> &CheckpointThread {
        &self.checkpoint_thread
    }

    /// Starts work; the event loop receives its completion, if it has one.
    pub fn spawn<T: Into<Option<C>> + Send>(&self, work: impl Future<Output = T> + Send + 'static) {
        let completions = self.completions.clone();
        tokio::spawn(async move {
            let completion: Option<C> = work.await.into();
            if let Some(completion) = completion {
                // An event loop that has ended needs no completion.
                let _ = completions.send(completion).await;
            }
        });
    }
}
