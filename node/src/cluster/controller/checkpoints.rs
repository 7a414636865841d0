//! Checkpoints for clients: shown, verified, exported; the cluster backed up.

use std::sync::Arc;

use zbelastic_checkpoint::{CheckpointStoreError, SledStore};
use zbelastic_consensus::state::State;
use zbelastic_identity::{PeerIdentity, PeerRole};
use zbelastic_trainer::elastic::{ChainingValue, nth_moment_value};
use zbelastic_transport::{BulkBody, BulkError, BulkFetch, RequestReply, Transport};
use zbelastic_types::{Bytes, Digest, NodeId, Step};
use zbelastic_wire::{
    self as wire, BulkKey, CollectedSpace, NodeAnswer, NodeRequest, PieceRef, StoreReferences,
};

use super::answers::not_found;
use super::exports::Exports;
use super::ports::{ControllerPorts, holders};
use crate::cluster::checkpoint_thread::{self, CheckpointThread, StoreEvent, collect_now};
use crate::cluster::piece_fetch::{fetch_piece_of_any, refetch_piece_of_any};
use crate::cluster::requests;
use crate::cluster::run_log::RunLog;
use zbelastic_api::{
    ApiAnswer, ApiRefusal, BackupPiece, CopyState, HexDigest, LayerCopyStatus, LayerPiece,
    LayerVerified, PIECE_BYTES_MAX, ResourceKind, TracePiece, encode_answer,
};
use zbelastic_policy::WorkCounter;
use zbelastic_policy::copy_check::{CopyCheck, check_stored_copy};
use zbelastic_policy::piece_sink::PieceError;

/// Reads every copy of a layer there may be, and compares: off the loop, for disks are slow.
pub(super) fn verify(
    (step, layer): (u64, u32),
    piece: PieceRef,
    (ports, reply): (&ControllerPorts, RequestReply),
) {
    let store = ports.tasks.checkpoint_thread().store();
    let me = ports.me;
    let others = ports.other_holders();
    let transport = ports.tasks.transport().clone();
    tokio::spawn(async move {
        let mut copies =
            vec![LayerCopyStatus { node: me, state: local_copy_state(store, piece).await }];
        for node in others {
            let state = remote_copy_state(&transport, node, piece).await;
            copies.push(LayerCopyStatus { node, state });
        }
        // Not every node is to have one: that a copy is missing matters if there is no other.
        let is_there = |copy: &LayerCopyStatus| !matches!(copy.state, CopyState::Missing { .. });
        if copies.iter().any(is_there) {
            copies.retain(is_there);
        }
        let verified = LayerVerified { step, layer, copies };
        send(reply, &ApiAnswer::Verified(verified));
    });
}

/// A piece of a layer's image, wherever it lies. A piece that is not here is kept here from then
/// on: a client that requests one piece requests the others.
pub(super) fn export(
    piece: PieceRef,
    offset: u64,
    exports: &mut Exports,
    (ports, reply): (&ControllerPorts, RequestReply),
) {
    let find = || ports.tasks.checkpoint_thread().find(&BulkKey::Piece(piece));
    let body = exports.body(piece, find);
    let read = move |body: &dyn BulkBody| slice(body, offset).map(ApiAnswer::Layer);
    answer_from(piece, body, (ports, reply), read);
}

/// The chaining value of a subtree of the hash over a layer's image, behind its weights: the one
/// that was made when the piece arrived, or else out of the moments.
pub(super) fn export_subtree(
    (piece, subtree): (PieceRef, u32),
    known: Option<ChainingValue>,
    (ports, reply): (&ControllerPorts, RequestReply),
) {
    let answer = |value: ChainingValue| ApiAnswer::Subtree(HexDigest(Digest(value.0)));
    if let Some(value) = known {
        return requests::reply(reply, &answer(value));
    }
    // Not the body that the weights are read from, which keeps the chunk that was read last.
    let body = ports.tasks.checkpoint_thread().find(&BulkKey::Piece(piece));
    answer_from(piece, body, (ports, reply), move |body| {
        let value = nth_moment_value(subtree as usize, |offset, into| body.read(offset, into));
        let none = || not_found(ResourceKind::Layer, format!("subtree {subtree}"));
        value.map(|value| value.map_or_else(none, answer)).map_err(|error| error.to_string())
    });
}

/// Answers from a body, which is fetched first if it is not here, or again if it is damaged: beside
/// the loop, for disks are slow.
fn answer_from(
    piece: PieceRef,
    body: Option<Arc<dyn BulkBody>>,
    (ports, reply): (&ControllerPorts, RequestReply),
    read: impl Fn(&dyn BulkBody) -> Result<ApiAnswer, String> + Copy + Send + 'static,
) {
    let checkpoint_thread = ports.tasks.checkpoint_thread().clone();
    let transport = ports.tasks.transport().clone();
    let others = ports.other_holders();
    tokio::spawn(async move {
        let parts = (&transport, &checkpoint_thread);
        let found = match body {
            Some(body) => Some(read_beside(body, read).await),
            None => None,
        };
        let fetched = match found {
            Some(Ok(answer)) => return send(reply, &answer),
            Some(Err(why)) => mend(parts, piece, (&others, why)).await,
            None => fetch_piece_of_any(parts, piece, &others).await,
        };
        let answer = match fetched {
            Ok(()) => read_stored(&checkpoint_thread, piece, read).await,
            Err(why) => Err(why),
        };
        let refused = |what| ApiAnswer::Refused(ApiRefusal::OutOfResource { what });
        send(reply, &answer.unwrap_or_else(refused));
    });
}

/// Removes pieces that no checkpoint needs, here and on every node that can be reached, and answers
/// with the chunks and bytes that each removed. Only the leader has all that is referred to.
pub(super) fn collect_all(ports: &ControllerPorts, reply: RequestReply) {
    let referred = ports.runs().references();
    let me = ports.me;
    let nodes = holders(ports.state());
    let checkpoint_thread = ports.tasks.checkpoint_thread().clone();
    let transport = ports.tasks.transport().clone();
    tokio::spawn(async move {
        let mut collected = Vec::new();
        for node in nodes {
            let outcome = if node == me {
                collect_now(checkpoint_thread.clone(), referred.clone()).await
            } else {
                collect_on(&transport, node, referred.clone()).await
            };
            collected.push(wire::collection_report(node, outcome));
        }
        send(reply, &ApiAnswer::Collected(collected));
    });
}

/// Another controller requests that this node remove pieces that no checkpoint needs.
pub(super) fn answer_collect(
    from: PeerIdentity,
    request: NodeRequest,
    checkpoint_thread: CheckpointThread,
    reply: RequestReply,
) {
    if from.role != PeerRole::Controller {
        let why = format!("a {} may not request this", from.role);
        reply.answer(wire::encode(&NodeAnswer::Refused { why }));
        return;
    }
    if let Some(collection) = request.collection() {
        checkpoint_thread::answer_collect(checkpoint_thread, collection, reply);
    }
}

/// The backup that a new cluster can be begun from, by force: the job and its newest checkpoint's
/// record.
pub(super) fn backup(state: &State, digest: Option<HexDigest>, offset: u64) -> ApiAnswer {
    let bytes = state.encode();
    let found = HexDigest(Digest(*blake3::hash(&bytes).as_bytes()));
    if let Some(digest) = digest.filter(|expected| *expected != found) {
        return not_found(ResourceKind::Backup, digest.to_string());
    }
    let total = bytes.len() as u64;
    let bytes = piece_at(&bytes, offset).to_vec();
    ApiAnswer::Backup(BackupPiece { digest: found, total, offset, bytes })
}

/// The trace of the last steps while it is read: rendered with its first piece, so that the others are of
/// the same text. Another reader's first piece makes it another text, which has another length as a rule.
#[derive(Debug, Default)]
pub(super) struct TraceText(String);

impl TraceText {
    /// A piece of the trace from step number `from` on, counted from 1; 0 for all steps.
    pub(super) fn piece(&mut self, run_log: &RunLog, offset: u64, from: u64) -> ApiAnswer {
        if offset == 0 || self.0.is_empty() {
            let from = from.checked_sub(1).map(Step);
            self.0 = run_log.timings().trace(from).unwrap_or_default();
        }
        let total = self.0.len() as u64;
        let bytes = piece_at(self.0.as_bytes(), offset).to_vec();
        if offset + bytes.len() as u64 >= total {
            self.0 = String::new();
        }
        ApiAnswer::Trace(TracePiece { total, offset, bytes })
    }
}

async fn collect_on(
    transport: &Transport,
    node: NodeId,
    referred: StoreReferences,
) -> Result<CollectedSpace, String> {
    let request = NodeRequest::CollectWithAsides(referred);
    let answer = transport.request(node, request.encode()).await;
    let answer = answer.map_err(|error| error.to_string())?;
    match wire::decode(&answer).map_err(|error| error.to_string())? {
        NodeAnswer::CollectedWithAsides(space) => Ok(space),
        NodeAnswer::Refused { why } => Err(why),
        NodeAnswer::Collected(_) | NodeAnswer::Renewed { .. } | NodeAnswer::AuthorityKey(_) => {
            Err("it answered something else".to_owned())
        }
    }
}

fn send(reply: RequestReply, answer: &ApiAnswer) {
    if let Ok(bytes) = encode_answer(answer) {
        reply.answer(bytes);
    }
}

fn piece_at(bytes: &[u8], offset: u64) -> &[u8] {
    let start = (offset as usize).min(bytes.len());
    let end = (start + PIECE_BYTES_MAX).min(bytes.len());
    &bytes[start..end]
}

/// The bytes of a layer from `offset` on, as many as an answer holds.
fn slice(body: &dyn BulkBody, offset: u64) -> Result<LayerPiece, String> {
    let total = body.len();
    let count = total.saturating_sub(offset).min(PIECE_BYTES_MAX as u64);
    let mut bytes = vec![0; count as usize];
    body.read(offset, &mut bytes).map_err(|error| error.to_string())?;
    Ok(LayerPiece { total, offset, bytes })
}

/// The answer if no run has a checkpoint of this step, or the checkpoint no such layer.
pub(super) fn no_layer((step, layer): (u64, u32)) -> ApiRefusal {
    let name = format!("{layer} of {step}");
    ApiRefusal::NotFound { thing: ResourceKind::Layer, name }
}

/// Reads a body on a thread that may block.
async fn read_beside(
    body: Arc<dyn BulkBody>,
    read: impl FnOnce(&dyn BulkBody) -> Result<ApiAnswer, String> + Send + 'static,
) -> Result<ApiAnswer, String> {
    let read = tokio::task::spawn_blocking(move || read(&*body)).await;
    read.unwrap_or_else(|error| Err(error.to_string()))
}

/// Reads a piece that was just fetched.
async fn read_stored(
    checkpoint_thread: &CheckpointThread,
    piece: PieceRef,
    read: impl FnOnce(&dyn BulkBody) -> Result<ApiAnswer, String> + Send + 'static,
) -> Result<ApiAnswer, String> {
    match checkpoint_thread.find(&BulkKey::Piece(piece)) {
        Some(body) => read_beside(body, read).await,
        None => Err("it was removed before it could be read".to_owned()),
    }
}

/// Fetches a piece again that is damaged here, from the first of the nodes that serves it.
async fn mend(
    parts: (&Transport, &CheckpointThread),
    piece: PieceRef,
    (holders, why): (&[NodeId], String),
) -> Result<(), String> {
    let outcome = refetch_piece_of_any(parts, piece, holders, &WorkCounter::default()).await;
    let failed = outcome.clone().map_err(|missing| format!("{why}; {missing}"));
    parts.1.report(StoreEvent::Mended { piece, found: Some(why), outcome }).await;
    failed
}

async fn local_copy_state(store: Option<Arc<SledStore>>, piece: PieceRef) -> CopyState {
    let check = move || match store {
        Some(store) => check_stored_copy(&*store, piece),
        None => Err(CheckpointStoreError::NoPiece { name: piece.name() }.into()),
    };
    match tokio::task::spawn_blocking(check).await {
        Ok(checked) => copy_state(piece, checked),
        Err(error) => CopyState::Missing { what: error.to_string() },
    }
}

async fn remote_copy_state(transport: &Transport, node: NodeId, piece: PieceRef) -> CopyState {
    let key = wire::encode(&BulkKey::Piece(piece));
    let fetch = BulkFetch { holders: vec![node], key, length: piece.length, progress: None };
    match transport.fetch_bulk_into(fetch, CopyCheck::new(piece)).await {
        Ok(check) => copy_state(piece, check.finish()),
        Err(BulkError::Sink(error)) => CopyState::Damaged { what: error.to_string() },
        Err(error) => CopyState::Missing { what: error.to_string() },
    }
}

fn copy_state(piece: PieceRef, checked: Result<(), PieceError>) -> CopyState {
    match checked {
        Ok(()) => CopyState::Sound { bytes: Bytes(piece.length) },
        Err(PieceError::Store(error @ CheckpointStoreError::NoPiece { .. })) => {
            CopyState::Missing { what: error.to_string() }
        }
        Err(error) => CopyState::Damaged { what: error.to_string() },
    }
}
