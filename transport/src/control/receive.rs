//! Control messages from a stream.

use std::io;

use bytes::{Bytes, BytesMut};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, BufReader};

use super::wire::{ControlFrameHeader, ControlFrameKind, ControlHeaderFault, HEADER_BYTES};

/// Size in bytes of the read buffer, so that several short messages come with one read.
const READ_AHEAD_BYTES: usize = 16 << 10;
/// The steps in which memory grows for bytes that were announced.
const GROWTH_BYTES: usize = 64 << 10;

/// The receiving end of a control stream.
pub struct ControlReader<R> {
    stream: BufReader<R>,
    long: Option<MessageAssembly>,
}

/// A long message of which some has come.
struct MessageAssembly {
    bytes: BytesMut,
    length: usize,
}

/// Why no more messages come from a stream.
#[derive(Debug, Error)]
pub enum ControlFault {
    /// A frame of nothing, or above the limit of its kind.
    #[error("a control frame of {found} bytes")]
    Length {
        /// The bytes it announces.
        found: u64,
    },
    /// A kind that does not exist, or a piece of nothing.
    #[error("a control frame that makes no sense here")]
    Malformed,
    /// Reading from the stream failed.
    #[error("the control stream broke")]
    Stream(#[source] io::Error),
}

impl From<io::Error> for ControlFault {
    fn from(error: io::Error) -> Self {
        Self::Stream(error)
    }
}

impl From<ControlHeaderFault> for ControlFault {
    fn from(fault: ControlHeaderFault) -> Self {
        match fault {
            ControlHeaderFault::Kind { .. } => Self::Malformed,
            ControlHeaderFault::Length { found } => Self::Length { found },
        }
    }
}

impl<R: AsyncRead + Unpin> ControlReader<R> {
    /// Reads the messages that a peer sends on `stream`.
    #[must_use]
    pub fn new(stream: R) -> Self {
        Self { stream: BufReader::with_capacity(READ_AHEAD_BYTES, stream), long: None }
    }

    /// The next message, or `None` at an end between two frames. Not to be dropped half-way.
    ///
    /// # Errors
    /// If the peer sends bytes that no message begins with, or the stream breaks. Not to be called
    /// again then.
    pub async fn read(&mut self) -> Result<Option<Bytes>, ControlFault> {
        loop {
            let Some(header) = self.read_header().await? else {
                return Ok(None);
            };
            match header.kind {
                ControlFrameKind::Whole => {
                    let mut bytes = BytesMut::new();
                    self.read_onto(&mut bytes, header.length).await?;
                    return Ok(Some(bytes.freeze()));
                }
                ControlFrameKind::Start => self.start(header.length)?,
                ControlFrameKind::Piece => {
                    if let Some(bytes) = self.read_piece(header.length).await? {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    async fn read_header(&mut self) -> Result<Option<ControlFrameHeader>, ControlFault> {
        let mut bytes = [0; HEADER_BYTES];
        let first = self.stream.read(&mut bytes).await?;
        if first == 0 {
            return Ok(None);
        }
        self.stream.read_exact(&mut bytes[first..]).await?;
        Ok(Some(ControlFrameHeader::decode(bytes)?))
    }

    fn start(&mut self, length: usize) -> Result<(), ControlFault> {
        if self.long.is_some() {
            return Err(ControlFault::Malformed);
        }
        self.long = Some(MessageAssembly { bytes: BytesMut::new(), length });
        Ok(())
    }

    async fn read_piece(&mut self, length: usize) -> Result<Option<Bytes>, ControlFault> {
        let mut assembly = self.long.take().ok_or(ControlFault::Malformed)?;
        if length > assembly.length - assembly.bytes.len() {
            return Err(ControlFault::Length { found: length as u64 });
        }
        self.read_onto(&mut assembly.bytes, length).await?;
        if assembly.bytes.len() == assembly.length {
            return Ok(Some(assembly.bytes.freeze()));
        }
        self.long = Some(assembly);
        Ok(None)
    }

    async fn read_onto(&mut self, bytes: &mut BytesMut, length: usize) -> io::Result<()> {
        let end = bytes.len() + length;
        while bytes.len() < end {
            let step = (end - bytes.len()).min(GROWTH_BYTES);
            let from = bytes.len();
            bytes.resize(from + step, 0);
            self.stream.read_exact(&mut bytes[from..]).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{ControlQueue, write_all_sizes, write_long, write_short};
    use crate::limits::{CONTROL_FRAME_BYTES_MAX, CONTROL_MESSAGE_BYTES_MAX};

    fn frame(kind: u8, length: u64, bytes: &[u8]) -> Vec<u8> {
        let mut frame = vec![kind];
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(bytes);
        frame
    }

    async fn read_all(bytes: &[u8]) -> (Vec<Bytes>, Result<(), ControlFault>) {
        let mut reader = ControlReader::new(bytes);
        let mut messages = Vec::new();
        loop {
            match reader.read().await {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => return (messages, Ok(())),
                Err(fault) => return (messages, Err(fault)),
            }
        }
    }

    #[tokio::test]
    async fn whole_and_cut_messages_arrive_between_each_other() {
        let bytes = [
            frame(1, 5, &[]),
            frame(2, 2, b"he"),
            frame(0, 3, b"now"),
            frame(2, 3, b"llo"),
            frame(0, 1, b"x"),
        ];
        let (messages, end) = read_all(&bytes.concat()).await;
        assert_eq!(messages, [&b"now"[..], b"hello", b"x"]);
        assert!(end.is_ok());
    }

    #[tokio::test]
    async fn what_makes_no_sense_ends_the_stream() {
        let no_start = read_all(&frame(2, 1, b"a")).await.1;
        assert!(matches!(no_start, Err(ControlFault::Malformed)));
        let two_starts = read_all(&[frame(1, 5, &[]), frame(1, 5, &[])].concat()).await.1;
        assert!(matches!(two_starts, Err(ControlFault::Malformed)));
        let above_start = read_all(&[frame(1, 2, &[]), frame(2, 3, b"abc")].concat()).await.1;
        assert!(matches!(above_start, Err(ControlFault::Length { found: 3 })));
        let unknown = read_all(&frame(9, 1, b"a")).await.1;
        assert!(matches!(unknown, Err(ControlFault::Malformed)));
        let huge = read_all(&frame(1, 1 << 63, &[])).await.1;
        assert!(matches!(huge, Err(ControlFault::Length { found }) if found == 1 << 63));
        let cut = read_all(&frame(0, 2, b"a")).await.1;
        assert!(matches!(cut, Err(ControlFault::Stream(_))));
    }

    async fn receive(stream: tokio::io::DuplexStream, count: usize) -> Vec<usize> {
        let mut reader = ControlReader::new(stream);
        let mut lengths = Vec::new();
        for _ in 0..count {
            lengths.push(reader.read().await.unwrap().unwrap().len());
        }
        lengths
    }

    #[tokio::test]
    async fn messages_of_every_length_pass_from_queue_to_reader() {
        let queue = ControlQueue::new(100, 1 << 20);
        let short = [1, 2, CONTROL_FRAME_BYTES_MAX - 1, CONTROL_FRAME_BYTES_MAX];
        let long = [CONTROL_FRAME_BYTES_MAX + 1, CONTROL_MESSAGE_BYTES_MAX];
        for length in short.iter().chain(&long) {
            queue.put(Bytes::from(vec![0; *length]));
        }
        let (mut near, far) = tokio::io::duplex(1 << 16);
        tokio::select! {
            _ = write_short(&queue, &mut near, |_, _| ()) => unreachable!("it goes on"),
            lengths = receive(far, 4) => assert_eq!(lengths, short),
        }
        let (mut near, far) = tokio::io::duplex(1 << 16);
        tokio::select! {
            _ = write_long(&queue, &mut near, |_, _| ()) => unreachable!("it goes on"),
            lengths = receive(far, 2) => assert_eq!(lengths, long),
        }
    }

    #[tokio::test]
    async fn a_short_message_overtakes_a_long_one_on_a_shared_stream() {
        let queue = ControlQueue::new(100, 1 << 20);
        queue.put(Bytes::from(vec![0; CONTROL_MESSAGE_BYTES_MAX]));
        let (mut near, far) = tokio::io::duplex(1 << 16);
        let mut reader = ControlReader::new(far);
        let read = async {
            queue.put(Bytes::from_static(b"now"));
            let first = reader.read().await.unwrap().unwrap().len();
            (first, reader.read().await.unwrap().unwrap().len())
        };
        tokio::select! {
            _ = write_all_sizes(&queue, &mut near, |_, _| ()) => unreachable!("it goes on"),
            lengths = read => assert_eq!(lengths, (3, CONTROL_MESSAGE_BYTES_MAX)),
        }
    }
}
