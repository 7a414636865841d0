//! The bytes of a request and its answer.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The first byte of a stream that carries a request.
pub(crate) const REQUEST_STREAM: u8 = 0x20;
/// The steps in which memory grows for bytes that were announced.
const GROWTH_BYTES: usize = 64 << 10;

/// The outcome of a request, as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    Answer,
    Busy,
    Unanswered,
}

impl RequestOutcome {
    pub(crate) const fn byte(self) -> u8 {
        match self {
            Self::Answer => 0,
            Self::Busy => 1,
            Self::Unanswered => 2,
        }
    }

    pub(crate) const fn of(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Answer),
            1 => Some(Self::Busy),
            2 => Some(Self::Unanswered),
            _ => None,
        }
    }
}

/// Reads so many bytes; memory grows as they arrive.
pub(crate) async fn read_growing<R: AsyncRead + Unpin>(
    receive: &mut R,
    length: usize,
) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let from = bytes.len();
        bytes.resize(from + (length - from).min(GROWTH_BYTES), 0);
        receive.read_exact(&mut bytes[from..]).await?;
    }
    Ok(bytes)
}
