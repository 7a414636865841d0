//! A holder's stream, piecewise: requests go out and the bytes that arrive are sorted. Both may be
//! left half-way and resumed, so that one task does both at once.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::ops::Range;

use bytes::BufMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use super::error::HolderError;
use super::sink::VerifiedChunk;
use super::spare::SpareChunks;
use super::wire::{ANSWER_BYTES, CHECKSUM_BYTES, ChunkAnswer, ChunkRequest, chunk_bytes};

/// Bytes that are read ahead of answers and checksums. The bytes of chunks pass it by.
const READ_AHEAD_BYTES: usize = 4096;

/// Requests on their way out.
pub(super) struct RequestWriter<W> {
    writer: W,
    bytes: Vec<u8>,
    sent: usize,
}

/// Chunks on their way in.
pub(super) struct ChunkReader<R> {
    reader: BufReader<R>,
    /// The length of the whole, which an answer has to confirm.
    length: u64,
    /// The ranges that were requested and did not arrive, in the order in which they arrive.
    pending: VecDeque<PendingRange>,
    stage: ReadStage,
    /// The bytes of an answer, or of a checksum.
    head: [u8; ANSWER_BYTES],
    /// Number of bytes of the current answer, checksum or chunk that were read.
    filled: usize,
    /// The checksum of the bytes that came: computed while they are in the cache.
    checksum: crc32fast::Hasher,
    /// The bytes that came of the chunk that is read, in memory for all of it.
    bytes: Vec<u8>,
    /// Where that memory comes from.
    spare: SpareChunks,
}

/// The chunks of a request that did not arrive yet.
struct PendingRange {
    chunks: Range<u64>,
    /// Whether its answer comes first.
    has_answer: bool,
}

/// The next part to read. Follows from the requests only after a chunk was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadStage {
    /// An answer, or the checksum of a chunk that has none.
    Begin,
    Checksum,
    Bytes,
}

impl<W> RequestWriter<W> {
    pub(super) fn new(writer: W) -> Self {
        Self { writer, bytes: Vec::new(), sent: 0 }
    }

    pub(super) fn push(&mut self, request: &ChunkRequest) {
        self.bytes.extend_from_slice(&request.encode());
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.bytes.is_empty()
    }
}

impl<W: AsyncWrite + Unpin> RequestWriter<W> {
    /// Sends some of the bytes that wait. May be dropped half-way.
    pub(super) async fn send(&mut self) -> io::Result<()> {
        if self.sent < self.bytes.len() {
            let sent = self.writer.write(&self.bytes[self.sent..]).await?;
            self.sent += sent;
            return if sent == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) };
        }
        self.writer.flush().await?;
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }
}

impl<R: AsyncRead + Unpin> ChunkReader<R> {
    pub(super) fn new(reader: R, length: u64, spare: SpareChunks) -> Self {
        let reader = BufReader::with_capacity(READ_AHEAD_BYTES, reader);
        Self {
            reader,
            length,
            pending: VecDeque::new(),
            stage: ReadStage::Begin,
            head: [0; ANSWER_BYTES],
            filled: 0,
            checksum: crc32fast::Hasher::new(),
            bytes: Vec::new(),
            spare,
        }
    }

    /// Reads some of the bytes that arrived, and gives a chunk when it is complete and verified.
    /// May be dropped half-way.
    ///
    /// # Errors
    /// If the stream fails, the answer is another one, or a chunk does not match its checksum.
    /// Nothing can be read behind an error.
    pub(super) async fn read(&mut self) -> Result<Option<VerifiedChunk>, HolderError> {
        let requested = self.pending.front().expect("something was requested");
        if self.stage == ReadStage::Begin && !requested.has_answer {
            self.stage = ReadStage::Checksum;
        }
        let expected = match self.stage {
            ReadStage::Begin => ANSWER_BYTES,
            ReadStage::Checksum => CHECKSUM_BYTES,
            ReadStage::Bytes => chunk_bytes(self.length, requested.chunks.start),
        };
        let read = if self.stage == ReadStage::Bytes {
            let rest = expected - self.bytes.len();
            self.reader.read_buf(&mut (&mut self.bytes).limit(rest)).await
        } else {
            self.reader.read(&mut self.head[self.filled..expected]).await
        };
        let read = read.map_err(HolderError::Stream)?;
        if read == 0 {
            return Err(HolderError::Stream(io::ErrorKind::UnexpectedEof.into()));
        }
        if self.stage == ReadStage::Bytes {
            self.checksum.update(&self.bytes[self.filled..]);
        }
        self.filled += read;
        if self.filled < expected {
            return Ok(None);
        }
        self.filled = 0;
        self.finish_stage()
    }

    fn finish_stage(&mut self) -> Result<Option<VerifiedChunk>, HolderError> {
        let requested = self.pending.front_mut().expect("something was read");
        match self.stage {
            ReadStage::Begin => {
                requested.has_answer = false;
                self.stage = ReadStage::Checksum;
                self.check_answer()?;
                Ok(None)
            }
            ReadStage::Checksum => {
                self.stage = ReadStage::Bytes;
                self.bytes = self.spare.take(chunk_bytes(self.length, requested.chunks.start));
                Ok(None)
            }
            ReadStage::Bytes => {
                self.stage = ReadStage::Begin;
                let chunk = requested.chunks.start;
                requested.chunks.start += 1;
                if requested.chunks.is_empty() {
                    self.pending.pop_front();
                }
                let found = mem::take(&mut self.checksum).finalize().to_le_bytes();
                if found[..] != self.head[..CHECKSUM_BYTES] {
                    return Err(HolderError::Damaged { chunk });
                }
                Ok(Some(VerifiedChunk { chunk, bytes: mem::take(&mut self.bytes) }))
            }
        }
    }

    fn check_answer(&self) -> Result<(), HolderError> {
        let mut bytes = [0; ANSWER_BYTES];
        bytes.copy_from_slice(&self.head[..ANSWER_BYTES]);
        let answer =
            ChunkAnswer::decode(bytes).map_err(|status| HolderError::NoAnswer { status })?;
        let expected = self.length;
        match answer {
            ChunkAnswer::Here { length: found } | ChunkAnswer::NoSuchRange { length: found }
                if found != expected =>
            {
                Err(HolderError::WrongLength { expected, found })
            }
            ChunkAnswer::Here { .. } => Ok(()),
            ChunkAnswer::NoSuchRange { .. } => Err(HolderError::RangeRefused),
            ChunkAnswer::UnknownKey => Err(HolderError::UnknownKey),
        }
    }
}

impl<R> ChunkReader<R> {
    /// Whether something was requested and is not there.
    pub(super) fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// From now on these chunks come as well, after an answer.
    pub(super) fn expect(&mut self, chunks: Range<u64>) {
        self.pending.push_back(PendingRange { chunks, has_answer: true });
    }
}
