//! What every connection of a server uses, and the task that owns the sessions.

use std::time::Instant;

use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::access::{AccessPolicy, SessionTable};
use crate::deadlines::ClientDeadlines;
use crate::hub::HubSender;

/// Parts of the server that every connection uses.
pub struct SharedServer {
    pub hub: HubSender,
    pub policy: AccessPolicy,
    pub sessions: mpsc::Sender<SessionRequest>,
    /// Tokens that may be checked at once: one.
    pub token_checks: Semaphore,
    pub deadlines: ClientDeadlines,
}

/// A request to the task that owns the sessions.
pub enum SessionRequest {
    /// Whether a session of this key is open.
    IsOpen { key: String, now: Instant, reply: oneshot::Sender<bool> },
    /// Opens one for a browser.
    Open { now: Instant, reply: oneshot::Sender<String> },
    /// Opens one for the token of a scraper.
    OpenAs { key: String, now: Instant },
}

/// Answers requests about sessions, until nobody can send any.
pub async fn keep_sessions(mut requests: mpsc::Receiver<SessionRequest>) {
    let mut sessions = SessionTable::default();
    while let Some(request) = requests.recv().await {
        match request {
            SessionRequest::IsOpen { key, now, reply } => {
                let _ = reply.send(sessions.is_open(&key, now));
            }
            SessionRequest::Open { now, reply } => {
                let _ = reply.send(sessions.open(now));
            }
            SessionRequest::OpenAs { key, now } => sessions.open_as(key, now),
        }
    }
}
