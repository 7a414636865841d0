//! Frames from a stream. Lengths are looked at before anything is allocated.

use std::io;
use std::sync::Arc;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, BufReader};
use tokio::sync::watch;

use super::header::{Admission, FrameRefusal, HEADER_BYTES, Header};
use super::message::ReceivedFrame;
use super::rules::{FrameClass, FrameRules};
use crate::identity::PeerIdentity;

/// What is read ahead of a frame: its header and meta come with one read of the stream, and longer
/// parts pass the buffer by.
const READ_AHEAD_BYTES: usize = 8192;
/// The piece in which a frame without rule is read past.
const SCRATCH_BYTES: usize = 64 * 1024;

/// The receiving end of a tensor lane, for one task.
pub struct FrameReader<R> {
    stream: BufReader<R>,
    from: PeerIdentity,
    rules: watch::Receiver<Arc<FrameRules>>,
}

/// What came.
#[derive(Clone, Debug, PartialEq)]
pub enum FrameArrival {
    /// A frame as its rule says.
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
    /// The peer announced what it must not send.
    #[error(transparent)]
    Refused(#[from] FrameRefusal),
    /// The stream ended within a frame.
    #[error("the stream ended within a frame")]
    Cut,
    /// The stream failed.
    #[error("the stream failed")]
    Stream(#[source] io::Error),
}

impl From<io::Error> for ReadFrameError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Cut } else { Self::Stream(error) }
    }
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads what `from` sends on `stream`. Each frame is held to the rules of the moment in which
    /// its header came.
    #[must_use]
    pub fn new(stream: R, from: PeerIdentity, rules: watch::Receiver<Arc<FrameRules>>) -> Self {
        Self { stream: BufReader::with_capacity(READ_AHEAD_BYTES, stream), from, rules }
    }

    /// The next frame, or `None` if the peer ended the stream between two frames. Not to be dropped
    /// half-way, and not to be called again after an error.
    ///
    /// # Errors
    /// If the peer announces what it must not send, or the stream breaks.
    pub async fn read(&mut self) -> Result<Option<FrameArrival>, ReadFrameError> {
        let Some(header) = self.read_header().await? else {
            return Ok(None);
        };
        let rules = Arc::clone(&self.rules.borrow_and_update());
        let rule = rules.parts(self.from.node, header.class);
        match (header.check(rule)?, rule) {
            (Admission::Take, Some(lengths)) => self.read_frame(header, lengths).await.map(Some),
            (Admission::Take, None) | (Admission::Skip, _) => self.skip(header).await.map(Some),
        }
    }

    async fn read_header(&mut self) -> Result<Option<Header>, ReadFrameError> {
        let mut bytes = [0; HEADER_BYTES];
        let first = self.stream.read(&mut bytes).await?;
        if first == 0 {
            return Ok(None);
        }
        self.stream.read_exact(&mut bytes[first..]).await?;
        Ok(Some(Header::decode(bytes)))
    }

    async fn read_frame(
        &mut self,
        header: Header,
        lengths: &[usize],
    ) -> Result<FrameArrival, ReadFrameError> {
        let mut meta = vec![0; header.meta_bytes as usize];
        self.stream.read_exact(&mut meta).await?;
        let mut parts = Vec::with_capacity(lengths.len());
        for &floats in lengths {
            let mut part = vec![0.0_f32; floats];
            self.stream.read_exact(bytemuck::cast_slice_mut(&mut part)).await?;
            parts.push(part);
        }
        let frame = ReceivedFrame { from: self.from, class: header.class, meta, parts };
        Ok(FrameArrival::Frame(frame))
    }

    async fn skip(&mut self, header: Header) -> Result<FrameArrival, ReadFrameError> {
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
