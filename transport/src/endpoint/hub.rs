//! The same-host socket: one task owns it, gives leave to come, and hands on the connections that came.

use std::collections::BTreeMap;
use std::path::Path;

use tokio::sync::{mpsc, oneshot};
use zbelastic_types::NodeId;

use crate::local::{
    Admission, AdmissionId, HostIdentity, LocalArrival, LocalBindError, LocalListener,
};

/// Questions that wait for the task. Beyond it their senders wait.
const QUESTIONS_MAX: usize = 64;
/// Connections of one peer that wait to be taken. More are closed.
const ARRIVALS_MAX: usize = 16;

/// How the tasks of connections reach the owner of the socket.
#[derive(Clone, Debug)]
pub(crate) struct LocalHub {
    questions: mpsc::Sender<Question>,
    host: HostIdentity,
}

/// Leave for one peer to come, and where the connections appear that came by it.
#[derive(Debug)]
pub(crate) struct Leave {
    pub(crate) admission: Admission,
    pub(crate) arrivals: mpsc::Receiver<LocalArrival>,
}

struct Question {
    peer: NodeId,
    answer: oneshot::Sender<Leave>,
}

impl LocalHub {
    pub(crate) async fn bind(folder: &Path) -> Result<Self, LocalBindError> {
        let listener = LocalListener::bind(folder, &std::env::temp_dir()).await?;
        let host = listener.host().clone();
        let (questions, asked) = mpsc::channel(QUESTIONS_MAX);
        tokio::spawn(keep(listener, asked));
        Ok(Self { questions, host })
    }

    /// The host this process is on.
    pub(crate) const fn host(&self) -> &HostIdentity {
        &self.host
    }

    /// Leave for a peer to come. None if the socket is no more, or the system gives no secret.
    pub(crate) async fn leave(&self, peer: NodeId) -> Option<Leave> {
        let (answer, leave) = oneshot::channel();
        self.questions.send(Question { peer, answer }).await.ok()?;
        leave.await.ok()
    }
}

/// Ends when the last [`LocalHub`] is dropped.
async fn keep(mut listener: LocalListener, mut asked: mpsc::Receiver<Question>) {
    let mut waiting: BTreeMap<AdmissionId, mpsc::Sender<LocalArrival>> = BTreeMap::new();
    loop {
        tokio::select! {
            question = asked.recv() => {
                let Some(Question { peer, answer }) = question else { return };
                waiting.retain(|_, arrivals| !arrivals.is_closed());
                let Ok(admission) = listener.admit(peer) else { continue };
                let (sender, arrivals) = mpsc::channel(ARRIVALS_MAX);
                waiting.insert(admission.id(), sender);
                let _ = answer.send(Leave { admission, arrivals });
            }
            arrival = listener.arrival() => {
                if let Some(arrivals) = waiting.get(&arrival.admission) {
                    let _ = arrivals.try_send(arrival);
                }
            }
        }
    }
}
