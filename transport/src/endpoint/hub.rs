//! The same-host socket: one task owns it, admits peers, and hands on the connections that came.

use std::collections::BTreeMap;
use std::path::Path;

use tokio::sync::{mpsc, oneshot};
use zbelastic_types::NodeId;

use crate::local::{
    HostIdentity, LocalAdmission, LocalAdmissionId, LocalArrival, LocalBindError, LocalListener,
};

/// Admission requests that wait for the task. Beyond it their senders wait.
const ADMISSION_REQUESTS_MAX: usize = 64;
/// Connections of one peer that wait to be taken. More are closed.
const ARRIVALS_MAX: usize = 16;

/// Handle with which the tasks of connections reach the owner of the socket.
#[derive(Clone, Debug)]
pub(crate) struct LocalHub {
    requests: mpsc::Sender<AdmissionRequest>,
    host: HostIdentity,
}

/// The admission of one peer, and where the connections appear that came by it.
#[derive(Debug)]
pub(crate) struct AdmissionHandle {
    pub(crate) admission: LocalAdmission,
    pub(crate) arrivals: mpsc::Receiver<LocalArrival>,
}

struct AdmissionRequest {
    peer: NodeId,
    answer: oneshot::Sender<AdmissionHandle>,
}

impl LocalHub {
    pub(crate) async fn bind(folder: &Path) -> Result<Self, LocalBindError> {
        let listener = LocalListener::bind(folder, &std::env::temp_dir()).await?;
        let host = listener.host().clone();
        let (sender, requests) = mpsc::channel(ADMISSION_REQUESTS_MAX);
        tokio::spawn(run_listener(listener, requests));
        Ok(Self { requests: sender, host })
    }

    /// The host this process is on.
    pub(crate) const fn host(&self) -> &HostIdentity {
        &self.host
    }

    /// Admits a peer. None if the socket is no more, or the system gives no secret.
    pub(crate) async fn admit(&self, peer: NodeId) -> Option<AdmissionHandle> {
        let (answer, admission) = oneshot::channel();
        self.requests.send(AdmissionRequest { peer, answer }).await.ok()?;
        admission.await.ok()
    }
}

/// Ends when the last [`LocalHub`] is dropped.
async fn run_listener(mut listener: LocalListener, mut requests: mpsc::Receiver<AdmissionRequest>) {
    let mut arrival_senders: BTreeMap<LocalAdmissionId, mpsc::Sender<LocalArrival>> =
        BTreeMap::new();
    loop {
        tokio::select! {
            request = requests.recv() => {
                let Some(AdmissionRequest { peer, answer }) = request else { return };
                arrival_senders.retain(|_, arrivals| !arrivals.is_closed());
                let Ok(admission) = listener.admit(peer) else { continue };
                let (sender, arrivals) = mpsc::channel(ARRIVALS_MAX);
                arrival_senders.insert(admission.id(), sender);
                let _ = answer.send(AdmissionHandle { admission, arrivals });
            }
            arrival = listener.arrival() => {
                if let Some(arrivals) = arrival_senders.get(&arrival.admission) {
                    let _ = arrivals.try_send(arrival);
                }
            }
        }
    }
}
