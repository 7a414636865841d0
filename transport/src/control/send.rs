//! Control messages onto a stream. Messages that wait are written together and flushed at once.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::queue::{BATCH_BYTES_MAX, ControlQueue};
use super::wire::{ControlFrameHeader, ControlFrameKind, HEADER_BYTES};

/// The pieces in which a long message goes over a socket that short ones share. Short ones wait
/// for one such piece at most; the socket itself holds about as much.
const SHARED_PIECE_BYTES: usize = 64 << 10;
/// The pieces in which a long message goes over a stream of its own.
const OWN_PIECE_BYTES: usize = 256 << 10;

/// Writes short messages for as long as the stream holds.
pub(crate) async fn write_short<W: AsyncWrite + Unpin>(
    queue: &ControlQueue,
    stream: &mut W,
    mut on_written: impl FnMut(u64, u64),
) -> io::Result<()> {
    let mut batch = MessageBatch::default();
    loop {
        queue.short.take(&mut batch.messages).await;
        batch.write(stream, &mut on_written).await?;
    }
}

/// Writes long messages for as long as the stream holds.
pub(crate) async fn write_long<W: AsyncWrite + Unpin>(
    queue: &ControlQueue,
    stream: &mut W,
    mut on_written: impl FnMut(u64, u64),
) -> io::Result<()> {
    let mut taken = Vec::new();
    loop {
        queue.long.take(&mut taken).await;
        for message in taken.drain(..) {
            write_start(stream, &message).await?;
            for piece in message.chunks(OWN_PIECE_BYTES) {
                write_piece(stream, piece).await?;
            }
            on_written(1, message.len() as u64);
        }
    }
}

/// Writes both onto one stream, short messages between the pieces of long ones.
pub(crate) async fn write_all_sizes<W: AsyncWrite + Unpin>(
    queue: &ControlQueue,
    stream: &mut W,
    mut on_written: impl FnMut(u64, u64),
) -> io::Result<()> {
    let mut batch = MessageBatch::default();
    let mut long = Vec::new();
    loop {
        tokio::select! {
            biased;
            () = queue.short.take(&mut batch.messages) => {}
            () = queue.long.take(&mut long) => {}
        }
        batch.write(stream, &mut on_written).await?;
        for message in long.drain(..) {
            write_start(stream, &message).await?;
            for piece in message.chunks(SHARED_PIECE_BYTES) {
                write_piece(stream, piece).await?;
                queue.short.try_take(&mut batch.messages);
                batch.write(stream, &mut on_written).await?;
            }
            on_written(1, message.len() as u64);
        }
    }
}

/// Short messages on their way into one write. The buffer is kept from write to write.
#[derive(Default)]
struct MessageBatch {
    messages: Vec<Bytes>,
    buffer: Vec<u8>,
}

impl MessageBatch {
    async fn write<W: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut W,
        on_written: &mut impl FnMut(u64, u64),
    ) -> io::Result<()> {
        if self.messages.is_empty() {
            return Ok(());
        }
        let count = self.messages.len() as u64;
        self.buffer.clear();
        for message in self.messages.drain(..) {
            let header =
                ControlFrameHeader { kind: ControlFrameKind::Whole, length: message.len() };
            self.buffer.extend_from_slice(&header.encode());
            self.buffer.extend_from_slice(&message);
        }
        stream.write_all(&self.buffer).await?;
        stream.flush().await?;
        on_written(count, self.buffer.len() as u64);
        self.buffer.shrink_to(BATCH_BYTES_MAX + HEADER_BYTES);
        Ok(())
    }
}

async fn write_start<W: AsyncWrite + Unpin>(stream: &mut W, message: &Bytes) -> io::Result<()> {
    let header = ControlFrameHeader { kind: ControlFrameKind::Start, length: message.len() };
    stream.write_all(&header.encode()).await
}

async fn write_piece<W: AsyncWrite + Unpin>(stream: &mut W, piece: &[u8]) -> io::Result<()> {
    let header = ControlFrameHeader { kind: ControlFrameKind::Piece, length: piece.len() };
    stream.write_all(&header.encode()).await?;
    stream.write_all(piece).await?;
    stream.flush().await
}
