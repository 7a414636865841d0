//! The credentials of this node, and how others are written in a change of authority.

use std::path::PathBuf;

use zbelastic_identity::Credentials;
use zbelastic_policy::renewal::{CredentialsChange, CredentialsWrite};
use zbelastic_transport::Transport;

use super::background::BackgroundTasks;
use super::journal::Journal;

/// Ticks between two looks at the authorities to trust, and two reports of it: a second.
pub const LOOK_TICKS: u32 = 100;

/// Credentials that were written, or why they could not be.
#[derive(Debug)]
pub struct CredentialsWritten {
    change: CredentialsChange,
    saved: Result<Credentials, String>,
}

/// The credentials of this node. Others are written beside the event loop, since a disk may take long to sync
/// them, and used once a start would find them. `C` is a change that may wait for that.
pub struct OwnCredentials<C> {
    used: Credentials,
    /// The folder of the certificate and the key.
    folder: PathBuf,
    write: CredentialsWrite<C>,
}

impl<C> OwnCredentials<C> {
    /// Credentials that lie in this folder.
    pub fn new(used: Credentials, folder: PathBuf) -> Self {
        Self { used, folder, write: CredentialsWrite::default() }
    }

    /// Those that are used now.
    pub const fn used(&self) -> &Credentials {
        &self.used
    }

    /// Whether others are being written.
    pub const fn is_writing(&self) -> bool {
        self.write.is_under_way()
    }

    /// As [`CredentialsWrite::admit`].
    pub fn admit(&mut self, change: C) -> Option<C> {
        self.write.admit(change)
    }

    /// Begins to write others.
    pub fn write<T: From<CredentialsWritten> + Send + 'static>(
        &mut self,
        credentials: Credentials,
        change: CredentialsChange,
        tasks: &BackgroundTasks<T>,
    ) {
        self.write.begin();
        let folder = self.folder.clone();
        tasks.spawn(async move {
            let save = move || credentials.save(&folder).map(|()| credentials);
            let saved = match tokio::task::spawn_blocking(save).await {
                Ok(saved) => saved.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            Some(T::from(CredentialsWritten { change, saved }))
        });
    }

    /// They were written, or could not be, which is logged: they are used from now on. Returns for which change,
    /// and the one that waited.
    pub fn handle_written(
        &mut self,
        written: CredentialsWritten,
        (transport, journal): (&Transport, &mut Journal),
    ) -> (Option<CredentialsChange>, Option<C>) {
        let CredentialsWritten { change, saved } = written;
        let postponed = self.write.end();
        let used = saved.and_then(|credentials| {
            let used = transport.set_credentials(credentials.clone());
            self.used = used.map(|()| credentials).map_err(|error| error.to_string())?;
            Ok(())
        });
        let used = used.inspect_err(|why| journal.warn(change.failure(why)));
        (used.ok().map(|()| change), postponed)
    }
}
