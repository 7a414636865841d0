//! Keys of authorities on this node's disk: read, made and written beside the event loop, since disks are slow.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zbelastic_consensus::access::Rotation;
use zbelastic_identity::{AuthoritySecret, ClusterAuthority, UnixSeconds};
use zbelastic_policy::authority::bridged;
use zbelastic_transport::{RequestReply, Transport};
use zbelastic_types::{Digest, NodeId};
use zbelastic_wire::{self as wire, NodeAnswer, NodeRequest};

/// What became of the files of an authority.
pub(super) enum AuthorityFileResult {
    /// This disk was searched for the key of the authority that follows: it is here, or nowhere yet,
    /// or did not arrive.
    Next { key: Digest, found: Result<Option<Arc<ClusterAuthority>>, String> },
    /// Another authority was made, and its key written, for a client that requested it or in place
    /// of one that ended.
    Made(AuthorityMade),
    /// The authority that follows has taken the place of this node's, or why it could not.
    Succeeded { next: Arc<ClusterAuthority>, outcome: Result<(), String> },
    /// The certificates that lead to the authority before were written.
    Bridged(Result<Arc<ClusterAuthority>, String>),
}

/// An authority that was made to be announced.
pub(super) struct AuthorityMade {
    pub(super) made: Result<Arc<ClusterAuthority>, String>,
    pub(super) is_forced: bool,
    /// The client that requested it.
    pub(super) reply: Option<RequestReply>,
}

/// The authority that follows: the one on this disk, or else the one whose key another controller sends.
pub(super) async fn find_next(
    transport: Transport,
    other: Option<NodeId>,
    rotation: Rotation,
    folder: PathBuf,
) -> Result<Option<Arc<ClusterAuthority>>, String> {
    let key = rotation.succession.key;
    let own = folder.clone();
    let loaded = beside(move || Ok(ClusterAuthority::load_next(&own, None).ok())).await?;
    if let Some(next) = loaded.filter(|next| next.pin().0 == key.0) {
        return Ok(Some(Arc::new(next)));
    }
    let Some(other) = other else { return Ok(None) };
    let secret = request_key(&transport, other, key).await?;
    beside(move || write_next(&secret, &rotation, &folder)).await.map(Some)
}

async fn request_key(
    transport: &Transport,
    other: NodeId,
    key: Digest,
) -> Result<AuthoritySecret, String> {
    let answer = transport.request(other, NodeRequest::AuthorityKey { key }.encode()).await;
    let answer = answer.map_err(|error| error.to_string())?;
    match wire::decode(&answer).map_err(|error| error.to_string())? {
        NodeAnswer::AuthorityKey(secret) => Ok(secret),
        NodeAnswer::Refused { why } => Err(why),
        NodeAnswer::Renewed { .. }
        | NodeAnswer::Collected(_)
        | NodeAnswer::CollectedWithAsides(_) => Err("it answered something else".to_owned()),
    }
}

/// The authority with the key that another controller sent, written to `folder`.
fn write_next(
    secret: &AuthoritySecret,
    rotation: &Rotation,
    folder: &Path,
) -> Result<Arc<ClusterAuthority>, String> {
    let next = ClusterAuthority::from_secret(secret).map_err(|error| error.to_string())?;
    if next.pin().0 != rotation.succession.key.0 {
        return Err("it is of another authority than the one announced".to_owned());
    }
    let next = bridged(next, &rotation.succession);
    next.save_next(folder).map_err(|error| error.to_string())?;
    Ok(Arc::new(next))
}

/// Makes another authority. Its key is on this disk before it is announced.
pub(super) async fn make(
    authority: ClusterAuthority,
    folder: PathBuf,
    (is_forced, reply): (bool, Option<RequestReply>),
) -> AuthorityFileResult {
    let made = beside(move || {
        let next = authority.successor(UnixSeconds::now()).map_err(|error| error.to_string())?;
        next.save_next(&folder).map_err(|error| error.to_string())?;
        Ok(Arc::new(next))
    });
    AuthorityFileResult::Made(AuthorityMade { made: made.await, is_forced, reply })
}

/// The authority that follows takes the place of the one in `folder`.
pub(super) async fn succeed(next: Arc<ClusterAuthority>, folder: PathBuf) -> AuthorityFileResult {
    let succeed = move || ClusterAuthority::succeed(&folder).map_err(|error| error.to_string());
    AuthorityFileResult::Succeeded { next, outcome: beside(succeed).await }
}

/// Writes an authority with the certificates that lead to the one before.
pub(super) async fn bridge(
    authority: ClusterAuthority,
    rotation: Rotation,
    folder: PathBuf,
) -> AuthorityFileResult {
    let write = move || {
        let authority = bridged(authority, &rotation.succession);
        authority.save(&folder).map_err(|error| error.to_string())?;
        Ok(Arc::new(authority))
    };
    AuthorityFileResult::Bridged(beside(write).await)
}

/// Runs what waits for a disk on a thread that may block.
async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string()))
}
