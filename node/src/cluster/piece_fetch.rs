//! A piece of a checkpoint that another node has, fetched into the store here and checked.

use std::io;
use std::sync::Arc;

use zbelastic_checkpoint::{CheckpointStore, SledStore};
use zbelastic_machine::background_thread::CheckpointTime;
use zbelastic_policy::piece_sink::{PieceError, PieceSink};
use zbelastic_policy::piece_sources::PieceSources;
use zbelastic_trainer::elastic::ChainingValue;
use zbelastic_transport::{BulkError, BulkFetch, ChunkSink, Transport};
use zbelastic_types::{Bytes, NodeId};
use zbelastic_wire::{self as wire, BulkKey, PieceRef};

use super::checkpoint_thread::{CheckpointThread, check_disk_space};
use super::disk_space::DiskSpaceShortage;
use super::keep_queue::BegunPiece;
use zbelastic_policy::WorkCounter;

/// Why a piece is not kept.
#[derive(Debug, thiserror::Error)]
pub enum PieceFetchError {
    /// The store cannot be opened.
    #[error("there is no store")]
    NoStore,
    /// The disk is low.
    #[error(transparent)]
    Room(#[from] DiskSpaceShortage),
    /// The holder does not give it, or the store does not accept it.
    #[error("it was not received: {0}")]
    Fetch(#[from] BulkError),
    /// The bytes that arrived are another piece, or the store does not accept it.
    #[error(transparent)]
    Piece(#[from] PieceError),
    /// The thread that wrote it panicked.
    #[error("the thread that checked it ended")]
    Interrupted,
}

/// Fetches a piece from a node into the store here, and checks it. Yields the chaining values of
/// its moments; none if it was here already.
///
/// # Errors
/// If it does not arrive, is another one, or the store does not accept it.
pub async fn fetch_piece(
    transport: &Transport,
    checkpoint_thread: &CheckpointThread,
    begun: &BegunPiece,
) -> Result<Vec<ChainingValue>, PieceFetchError> {
    let BegunPiece { piece, requested_by, ref arrived, needed } = *begun;
    if is_here(checkpoint_thread, piece) {
        return Ok(Vec::new());
    }
    let parts = (transport, checkpoint_thread);
    refetch_piece(parts, (piece, needed), vec![requested_by], arrived.clone()).await
}

fn is_here(checkpoint_thread: &CheckpointThread, piece: PieceRef) -> bool {
    let has = |store: Arc<SledStore>| matches!(store.record(piece.name()), Ok(Some(_)));
    checkpoint_thread.store().is_some_and(has)
}

/// Fetches a piece into the store here from all of these nodes at once that serve it.
///
/// # Errors
/// Why the last of them do not serve it.
pub async fn fetch_piece_of_any(
    (transport, checkpoint_thread): (&Transport, &CheckpointThread),
    piece: PieceRef,
    holders: &[NodeId],
) -> Result<(), String> {
    if is_here(checkpoint_thread, piece) {
        return Ok(());
    }
    let progress = WorkCounter::default();
    refetch_piece_of_any((transport, checkpoint_thread), piece, holders, &progress).await
}

/// The same for a piece of which something is here already: its damaged chunks are replaced. If what
/// several nodes sent together is another piece, each is requested by itself.
///
/// # Errors
/// Why the last of them do not serve it.
pub async fn refetch_piece_of_any(
    (transport, checkpoint_thread): (&Transport, &CheckpointThread),
    piece: PieceRef,
    holders: &[NodeId],
    progress: &WorkCounter,
) -> Result<(), String> {
    let mut missing = "no other node is there".to_owned();
    let mut sources = PieceSources::new(holders);
    while let Some(nodes) = sources.poll() {
        let needed = Bytes(piece.length);
        let parts = (transport, checkpoint_thread);
        let fetched = refetch_piece(parts, (piece, needed), nodes.clone(), progress.clone()).await;
        let Err(error) = fetched else { return Ok(()) };
        if !matches!(error, PieceFetchError::Fetch(BulkError::NoHolderLeft { .. })) {
            sources.split(&nodes);
        }
        missing = match nodes[..] {
            [node] => format!("node {node}: {error}"),
            _ => error.to_string(),
        };
    }
    Err(missing)
}

/// The same as [`fetch_piece`] for a piece of which something is here already: its damaged chunks are
/// replaced. The disk has to take `needed` bytes.
///
/// # Errors
/// As [`fetch_piece`].
async fn refetch_piece(
    (transport, checkpoint_thread): (&Transport, &CheckpointThread),
    (piece, needed): (PieceRef, Bytes),
    holders: Vec<NodeId>,
    progress: WorkCounter,
) -> Result<Vec<ChainingValue>, PieceFetchError> {
    let store = checkpoint_thread.store().ok_or(PieceFetchError::NoStore)?;
    let disk = store.clone();
    let space = tokio::task::spawn_blocking(move || check_disk_space(&disk, needed.0)).await;
    space.map_err(|_| PieceFetchError::Interrupted)??;
    let sink = PieceSink::new(store, piece, checkpoint_thread.moved().clone());
    let time = checkpoint_thread.time().clone();
    let sink = MeteredSink { sink, time: time.clone() };
    let key = wire::encode(&BulkKey::Piece(piece));
    let progress = Some(progress.shared());
    let fetch = BulkFetch { holders, key, length: piece.length, progress };
    let MeteredSink { sink, .. } = transport.fetch_bulk_into(fetch, sink).await?;
    let finished = tokio::task::spawn_blocking(move || time.meter(|| sink.finish())).await;
    Ok(finished.map_err(|_| PieceFetchError::Interrupted)??)
}

/// A sink that counts its processor time.
struct MeteredSink<S> {
    sink: S,
    time: CheckpointTime,
}

impl<S: ChunkSink> ChunkSink for MeteredSink<S> {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let Self { sink, time } = self;
        time.meter(|| sink.write(offset, bytes))
    }
}
