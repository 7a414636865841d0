//! Frames from a stream. Lengths are looked at before anything is allocated.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, BufReader, ReadBuf};
use tokio::sync::watch;
use zbelastic_identity::PeerIdentity;

use super::header::{FrameAdmission, FrameHeader, FrameRejection, HEADER_BYTES};
use super::message::ReceivedFrame;
use super::pool::{FramePart, PartPool};
use super::rules::{FrameClass, FrameRules};

/// Bytes that are read ahead of a frame: its header and meta come with one read of the stream, and
/// longer parts pass the buffer by.
const READ_AHEAD_BYTES: usize = 8192;
/// The piece in which a frame without rule is read past.
const SCRATCH_BYTES: usize = 64 * 1024;

/// The receiving end of a tensor lane, for one task.
pub struct FrameReader<R> {
    stream: BufReader<R>,
    from: PeerIdentity,
    rules: watch::Receiver<Arc<FrameRules>>,
    pool: PartPool,
}

/// One frame from a stream, read or skipped.
#[derive(Clone, Debug, PartialEq)]
pub enum FrameArrival {
    /// A frame that matches its rule.
    Frame(ReceivedFrame),
    /// A frame that no rule names, which was read past.
    Skipped {
        /// The class it named.
        class: FrameClass,
        /// The bytes of meta and body that were read past.
        bytes: u64,
    },
}

/// Why no more frames can come from a stream.
#[derive(Debug, Error)]
pub enum ReadFrameError {
    /// The peer announced a frame that it must not send.
    #[error(transparent)]
    Refused(#[from] FrameRejection),
    /// The stream ended within a frame.
    #[error("the stream ended within a frame")]
    Cut,
    /// Reading from the stream failed.
    #[error("the stream failed")]
    Stream(#[source] io::Error),
}

impl From<io::Error> for ReadFrameError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Cut } else { Self::Stream(error) }
    }
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads the frames that `from` sends on `stream`. Each frame is held to the rules of the
    /// moment in which its header came. Memory for parts is `pool`'s.
    #[must_use]
    pub fn new(
        stream: R,
        from: PeerIdentity,
        rules: watch::Receiver<Arc<FrameRules>>,
        pool: PartPool,
    ) -> Self {
        Self { stream: BufReader::with_capacity(READ_AHEAD_BYTES, stream), from, rules, pool }
    }

    /// The next frame, or `None` if the peer ended the stream between two frames. Not to be dropped
    /// half-way, and not to be called again after an error.
    ///
    /// # Errors
    /// If the peer announces a frame that it must not send, or the stream breaks.
    pub async fn read(&mut self) -> Result<Option<FrameArrival>, ReadFrameError> {
        let Some(header) = self.read_header().await? else {
            return Ok(None);
        };
        let rules = Arc::clone(&self.rules.borrow_and_update());
        let rule = rules.parts(self.from.node, header.class);
        match (header.check(rule)?, rule) {
            (FrameAdmission::Take, Some(lengths)) => {
                self.read_frame(header, lengths).await.map(Some)
            }
            (FrameAdmission::Take, None) | (FrameAdmission::Skip, _) => {
                self.skip(header).await.map(Some)
            }
        }
    }

    async fn read_header(&mut self) -> Result<Option<FrameHeader>, ReadFrameError> {
        let mut bytes = [0; HEADER_BYTES];
        let first = self.stream.read(&mut bytes).await?;
        if first == 0 {
            return Ok(None);
        }
        self.stream.read_exact(&mut bytes[first..]).await?;
        Ok(Some(FrameHeader::decode(bytes)))
    }

    async fn read_frame(
        &mut self,
        header: FrameHeader,
        lengths: &[usize],
    ) -> Result<FrameArrival, ReadFrameError> {
        let mut meta = vec![0; header.meta_bytes as usize];
        self.stream.read_exact(&mut meta).await?;
        let mut parts = Vec::with_capacity(lengths.len());
        for &floats in lengths {
            parts.push(read_part(&mut self.stream, floats, &self.pool).await?);
        }
        let frame = ReceivedFrame { from: self.from, class: header.class, meta, parts };
        Ok(FrameArrival::Frame(frame))
    }

    async fn skip(&mut self, header: FrameHeader) -> Result<FrameArrival, ReadFrameError> {
        let bytes = u64::from(header.meta_bytes) + header.body_bytes;
        let mut scratch = vec![0; SCRATCH_BYTES];
        let mut rest = bytes;
        while rest > 0 {
            let piece = usize::try_from(rest).map_or(SCRATCH_BYTES, |rest| rest.min(SCRATCH_BYTES));
            self.stream.read_exact(&mut scratch[..piece]).await?;
            rest -= piece as u64;
        }
        Ok(FrameArrival::Skipped { class: header.class, bytes })
    }
}

/// So many floats from a stream, least significant byte first, into memory of the pool that nothing
/// was written to before: these parts are most of the bytes that a stage reads, and zeros in it
/// would be written for nothing.
async fn read_part<R: AsyncRead + Unpin>(
    stream: &mut R,
    count: usize,
    pool: &PartPool,
) -> io::Result<FramePart> {
    let mut part = pool.take(count);
    let floats = part.memory();
    let spare = &mut floats.spare_capacity_mut()[..count];
    // SAFETY: the same memory, as bytes: each may be uninitialised, and a byte is aligned anywhere.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(
            spare.as_mut_ptr().cast::<MaybeUninit<u8>>(),
            size_of_val(spare),
        )
    };
    let mut unfilled = ReadBuf::uninit(bytes);
    while unfilled.remaining() > 0 {
        let before = unfilled.remaining();
        poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, &mut unfilled)).await?;
        if unfilled.remaining() == before {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let filled = unfilled.filled().as_ptr();
    assert!(std::ptr::eq(filled, floats.as_ptr().cast()), "a stream fills what it is given");
    // SAFETY: all of this memory is filled: `unfilled` counts only bytes that were written, and
    // there is no space left in it. Any four bytes are a float.
    unsafe { floats.set_len(count) };
    Ok(part)
}
