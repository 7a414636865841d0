//! A piece of a checkpoint that another node has, fetched into the store here and checked.

use std::io;
use std::sync::Arc;

use zbelastic_checkpoint::{SledStore, Store};
use zbelastic_policy::piece_sink::{PieceError, PieceSink};
use zbelastic_transport::{BulkError, BulkFetch, ChunkSink, Transport};
use zbelastic_types::NodeId;

use super::keeper::{Keeper, check_room};
use super::room::NoRoom;
use super::threads::CheckpointTime;
use super::wire::{self, BulkKey, PieceRef};
use super::work::WorkCount;

/// Why a piece is not kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The store cannot be opened.
    #[error("there is no store")]
    NoStore,
    /// The disk is low.
    #[error(transparent)]
    Room(#[from] NoRoom),
    /// The holder does not give it, or the store does not take it.
    #[error("it does not come: {0}")]
    Fetch(#[from] BulkError),
    /// What came is not it, or the store does not take it.
    #[error(transparent)]
    Piece(#[from] PieceError),
    /// The thread that wrote it panicked.
    #[error("the thread that checked it ended")]
    Interrupted,
}

/// Fetches a piece from a node into the store here, and checks it.
///
/// # Errors
/// If it does not come, is another one, or the store does not take it.
pub async fn keep(
    transport: &Transport,
    keeper: &Keeper,
    piece: PieceRef,
    holder: NodeId,
    progress: WorkCount,
) -> Result<(), KeepError> {
    let is_here = |store: Arc<SledStore>| matches!(store.record(piece.name()), Ok(Some(_)));
    if keeper.store().is_some_and(is_here) {
        return Ok(());
    }
    keep_anew(transport, keeper, piece, holder, progress).await
}

/// The same for a piece of which something is here already: what is damaged of it is replaced.
///
/// # Errors
/// As [`keep`].
pub async fn keep_anew(
    transport: &Transport,
    keeper: &Keeper,
    piece: PieceRef,
    holder: NodeId,
    progress: WorkCount,
) -> Result<(), KeepError> {
    let store = keeper.store().ok_or(KeepError::NoStore)?;
    let disk = store.clone();
    let room = tokio::task::spawn_blocking(move || check_room(&disk, piece.length)).await;
    room.map_err(|_| KeepError::Interrupted)??;
    let sink = PieceSink::new(store, piece, keeper.moved().clone());
    let (time, sink) = (keeper.time().clone(), Metered { sink, time: keeper.time().clone() });
    let key = wire::encode(&BulkKey::Piece(piece));
    let (holders, progress) = (vec![holder], Some(progress.shared()));
    let fetch = BulkFetch { holders, key, length: piece.length, progress };
    let Metered { sink, .. } = transport.fetch_bulk_into(fetch, sink).await?;
    let finished = tokio::task::spawn_blocking(move || time.meter(|| sink.finish())).await;
    Ok(finished.map_err(|_| KeepError::Interrupted)??)
}

/// A sink whose processor time is counted.
struct Metered<S> {
    sink: S,
    time: CheckpointTime,
}

impl<S: ChunkSink> ChunkSink for Metered<S> {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let Self { sink, time } = self;
        time.meter(|| sink.write(offset, bytes))
    }
}
