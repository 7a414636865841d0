//! A process's own socket: which peers are admitted, and which connections came.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{self, JoinHandle};
use tokio::time::timeout;
use zbelastic_types::NodeId;

use super::acceptor::{ARRIVALS_MAX, LocalAcceptor};
use super::folder::{LocalFolderError, SocketLocation, own_user, prepare};
use super::offer::{HostIdentity, LocalLane, LocalOffer, LocalSecret};

/// Time within which an old socket must show that a process listens.
const STALE_DEADLINE: Duration = Duration::from_secs(1);

/// Number of an admission, which no other one of its listener has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalAdmissionId(u64);

/// The admission of one peer, as long as it is held.
#[derive(Debug)]
pub struct LocalAdmission {
    id: LocalAdmissionId,
    offer: LocalOffer,
    admitted: AdmittedSender,
}

/// A connection that showed the secret of an admission.
#[derive(Debug)]
pub struct LocalArrival {
    /// The admission of the secret that it showed.
    pub admission: LocalAdmissionId,
    /// The peer that the admission is for.
    pub peer: NodeId,
    /// The purpose of the connection.
    pub lane: LocalLane,
    /// The connection, from its first byte after the greeting on.
    pub stream: UnixStream,
}

/// Why there is no socket.
#[derive(Debug, Error)]
pub enum LocalBindError {
    /// There is no folder for it.
    #[error(transparent)]
    Folder(#[from] LocalFolderError),
    /// A living process listens there.
    #[error("{path}: another process listens there")]
    InUse {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The identity of this machine or the user of this process cannot be read.
    #[error("the identity of this machine or of the user cannot be read")]
    Unknown(#[source] io::Error),
    /// A system call on the socket failed.
    #[error("{path}: cannot listen")]
    Refused {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// A process's socket. When it is dropped, no peer can connect any more; connections that came
/// stay.
#[derive(Debug)]
pub struct LocalListener {
    location: SocketLocation,
    host: HostIdentity,
    admitted: AdmittedSender,
    admissions: AtomicU64,
    refused: Arc<AtomicU64>,
    arrivals: mpsc::Receiver<LocalArrival>,
    acceptor: JoinHandle<()>,
}

/// The peers that are admitted, and the secret of each.
pub(super) type AdmittedSecrets = BTreeMap<LocalAdmissionId, (NodeId, LocalSecret)>;

/// The listener and its admissions write it, the acceptor reads it.
type AdmittedSender = Arc<watch::Sender<AdmittedSecrets>>;

impl LocalListener {
    /// Listens in `folder`, which is made if it is not there, or if its path is too long for a
    /// socket, in a folder of its own below `temporary`. Sockets that a dead process left are
    /// removed.
    ///
    /// # Errors
    /// If no socket can be there.
    pub async fn bind(folder: &Path, temporary: &Path) -> Result<Self, LocalBindError> {
        let user = own_user().map_err(LocalBindError::Unknown)?;
        let host = HostIdentity::read().map_err(LocalBindError::Unknown)?;
        let location = prepare(folder, temporary, user)?;
        let path = location.socket.clone();
        remove_stale(&path).await?;
        let refused = |source| LocalBindError::Refused { path, source };
        let socket = UnixListener::bind(&location.socket).map_err(refused)?;
        let admitted = AdmittedSender::default();
        let (sender, arrivals) = mpsc::channel(ARRIVALS_MAX);
        let refused = Arc::new(AtomicU64::new(0));
        let acceptor = LocalAcceptor::new(user, admitted.subscribe(), sender, Arc::clone(&refused));
        let acceptor = task::spawn(acceptor.run(socket));
        let admissions = AtomicU64::new(0);
        Ok(Self { location, host, admitted, admissions, refused, arrivals, acceptor })
    }

    /// Path of the socket that it listens at.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.location.socket
    }

    /// The machine it is on.
    #[must_use]
    pub fn host(&self) -> &HostIdentity {
        &self.host
    }

    /// Admits `peer`, by a secret of its own, until the admission is dropped.
    ///
    /// # Errors
    /// If the system gives no random bytes.
    pub fn admit(&self, peer: NodeId) -> io::Result<LocalAdmission> {
        let secret = LocalSecret::generate()?;
        let id = LocalAdmissionId(self.admissions.fetch_add(1, Ordering::Relaxed));
        self.admitted.send_modify(|admitted| {
            admitted.insert(id, (peer, secret));
        });
        let offer =
            LocalOffer { host: self.host.clone(), path: self.location.socket.clone(), secret };
        Ok(LocalAdmission { id, offer, admitted: Arc::clone(&self.admitted) })
    }

    /// The next connection that showed a secret. May be dropped at any time.
    pub async fn arrival(&mut self) -> LocalArrival {
        self.arrivals.recv().await.expect("the acceptor lives as long as its listener")
    }

    /// How many connections were closed because they showed no secret of an admission.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Drop for LocalListener {
    /// A socket that cannot be removed is removed by the next process that listens there.
    fn drop(&mut self) {
        self.acceptor.abort();
        let _ = fs::remove_file(&self.location.socket);
        if let Some(folder) = &self.location.short_folder {
            let _ = fs::remove_dir(folder);
        }
    }
}

impl LocalAdmission {
    /// Number of this admission.
    #[must_use]
    pub fn id(&self) -> LocalAdmissionId {
        self.id
    }

    /// The offer to send to the peer.
    #[must_use]
    pub fn offer(&self) -> &LocalOffer {
        &self.offer
    }
}

impl Drop for LocalAdmission {
    fn drop(&mut self) {
        self.admitted.send_modify(|admitted| {
            admitted.remove(&self.id);
        });
    }
}

/// Removes a socket on which no process listens. Two processes that start in one folder at once are
/// kept apart by the lock of the data folder, not here.
async fn remove_stale(path: &Path) -> Result<(), LocalBindError> {
    let dialled = timeout(STALE_DEADLINE, UnixStream::connect(path)).await;
    match dialled {
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let refused = |source| LocalBindError::Refused { path: path.to_owned(), source };
            fs::remove_file(path).map_err(refused)
        }
        Ok(Err(source)) => Err(LocalBindError::Refused { path: path.to_owned(), source }),
        Ok(Ok(_)) | Err(_) => Err(LocalBindError::InUse { path: path.to_owned() }),
    }
}
