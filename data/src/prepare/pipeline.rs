//! The threads that read and encode, around the caller's, which writes.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, ScopedJoinHandle};

use super::encode_batch::{BatchEncoder, EncodedBatch};
use super::{IN_FLIGHT_BYTES_MAX, PrepareError};
use crate::encode::EncodeDocuments;
use crate::source::{
    Batch, BatchReader, SourceCursor, SourceError, SourceListing, SourceOptions, SourceStorage,
};

/// Batches that wait before an encoder, and behind it. Either blocks when there are more.
const QUEUE_BATCHES: usize = 1;

/// The job that the threads work on.
#[derive(Clone, Copy)]
pub(super) struct PipelineJob<'a> {
    pub(super) listing: &'a SourceListing,
    pub(super) storage: &'a dyn SourceStorage,
    pub(super) options: &'a SourceOptions,
    pub(super) encoder: &'a dyn EncodeDocuments,
    /// Where in the sources the first batch begins.
    pub(super) cursor: SourceCursor,
}

type BatchOrError = Result<Batch, SourceError>;
type EncodedOrError = Result<EncodedBatch, PrepareError>;

/// Reads and encodes all batches, and calls `write` with each in order.
pub(super) fn run(
    job: &PipelineJob<'_>,
    threads: usize,
    write: &mut dyn FnMut(EncodedBatch) -> Result<(), PrepareError>,
) -> Result<(), PrepareError> {
    thread::scope(|scope| {
        let mut to_encoders = Vec::new();
        let mut from_encoders = Vec::new();
        let mut handles = Vec::new();
        for _ in 0..threads {
            let (to_encoder, batches) = sync_channel(QUEUE_BATCHES);
            let (encoded, from_encoder) = sync_channel(QUEUE_BATCHES);
            to_encoders.push(to_encoder);
            from_encoders.push(from_encoder);
            handles.push(scope.spawn(move || encode_batches(job, &batches, &encoded)));
        }
        // Not bounded by itself: it holds a number for each batch in flight.
        let (written, bytes_written) = channel();
        handles.push(scope.spawn(move || read_batches(job, &to_encoders, &bytes_written)));
        // Both ends are dropped with it, so threads that wait for the writer end.
        let result = write_batches(from_encoders, written, write);
        let joined = join(handles);
        result.and(joined)
    })
}

/// Whether a thread ended because there is no more, or by a panic, looks the same to the others.
fn join(handles: Vec<ScopedJoinHandle<'_, ()>>) -> Result<(), PrepareError> {
    let panicked = handles.into_iter().map(|handle| handle.join().is_err());
    // All are joined before the first is judged.
    if panicked.fold(false, |any, one| any | one) { Err(PrepareError::Panicked) } else { Ok(()) }
}

/// Sends batches to the encoders in turn. Where the other side is gone, it failed, and there is
/// nobody to send to.
fn read_batches(
    job: &PipelineJob<'_>,
    to_encoders: &[SyncSender<BatchOrError>],
    bytes_written: &Receiver<usize>,
) {
    let PipelineJob { listing, storage, options, encoder, cursor } = *job;
    let (vocabulary, end) = (encoder.vocabulary(), encoder.end_of_text());
    let batches = BatchReader::new(listing, storage, options, vocabulary, end, cursor);
    let mut in_flight = 0;
    for (batch, to_encoder) in batches.zip(to_encoders.iter().cycle()) {
        let bytes = batch.as_ref().map_or(0, |batch| batch.bytes);
        in_flight -= bytes_written.try_iter().sum::<usize>();
        while in_flight > 0 && in_flight + bytes > IN_FLIGHT_BYTES_MAX {
            match bytes_written.recv() {
                Ok(bytes) => in_flight -= bytes,
                Err(_) => return,
            }
        }
        in_flight += bytes;
        let is_last = batch.is_err();
        if to_encoder.send(batch).is_err() || is_last {
            return;
        }
    }
}

fn encode_batches(
    job: &PipelineJob<'_>,
    batches: &Receiver<BatchOrError>,
    encoded: &SyncSender<EncodedOrError>,
) {
    let PipelineJob { listing, options, encoder, .. } = *job;
    let encoder = BatchEncoder { encoder, listing, options };
    for batch in batches {
        let batch = batch.map_err(PrepareError::from).and_then(|batch| encoder.encode(batch));
        let is_last = batch.is_err();
        if encoded.send(batch).is_err() || is_last {
            return;
        }
    }
}

/// Receives from the encoders in turn, until the next one has no more: then none has.
fn write_batches(
    from_encoders: Vec<Receiver<EncodedOrError>>,
    written: Sender<usize>,
    write: &mut dyn FnMut(EncodedBatch) -> Result<(), PrepareError>,
) -> Result<(), PrepareError> {
    for from_encoder in from_encoders.iter().cycle() {
        let Ok(batch) = from_encoder.recv() else { break };
        let batch = batch?;
        let bytes = batch.bytes;
        write(batch)?;
        // The reader may be done, and has no use for it then.
        let _ = written.send(bytes);
    }
    Ok(())
}
