//! One frame onto a stream: one write where the stream allows it, and no copy of floats.

use std::io::{self, IoSlice};

use thiserror::Error;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::header::{FrameHeader, HEADER_BYTES};
use super::message::OutgoingFrame;

/// Why a frame did not go. The stream is of no use any more.
#[derive(Debug, Error)]
pub enum WriteFrameError {
    /// Writing to the stream failed.
    #[error("a frame of class {class} cannot be written")]
    Stream {
        /// Number of the frame's class.
        class: u32,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// Writes `frame` and flushes. Gives the bytes that went. Not to be dropped half-way: the stream
/// would then hold half a frame.
///
/// # Errors
/// If the stream fails.
///
/// # Panics
/// If the body's parts are not those it had when the frame was made.
pub async fn write_frame<W>(writer: &mut W, frame: &OutgoingFrame) -> Result<u64, WriteFrameError>
where
    W: AsyncWrite + Unpin + ?Sized,
{
    let parts = frame.parts();
    let body_bytes = parts.iter().map(|part| size_of_val(*part) as u64).sum();
    assert_eq!(frame.body_bytes(), body_bytes, "a frame's body stays as long as it was");
    let meta_bytes = u32::try_from(frame.meta().len()).expect("checked when the frame was made");
    let header = FrameHeader { class: frame.class(), meta_bytes, body_bytes };
    let mut head = Vec::with_capacity(HEADER_BYTES + frame.meta().len());
    head.extend_from_slice(&header.encode());
    head.extend_from_slice(frame.meta());
    let mut slices = vec![IoSlice::new(&head)];
    slices.extend(parts.iter().map(|part| IoSlice::new(bytemuck::cast_slice(part))));
    let written = write_all(writer, &mut slices).await;
    written.map_err(|source| WriteFrameError::Stream { class: frame.class().0, source })?;
    Ok(head.len() as u64 + body_bytes)
}

async fn write_all<W>(writer: &mut W, mut slices: &mut [IoSlice<'_>]) -> io::Result<()>
where
    W: AsyncWrite + Unpin + ?Sized,
{
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let written = writer.write_vectored(slices).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut slices, written);
    }
    writer.flush().await
}
