//! Requests: one request and its answer, on a stream of their own, or one after another on a socket of
//! the same host, without the byte that names the kind of stream.
//!
//! ```text
//!   requester  stream kind u8 | length u32 | the request           ->
//!              <- outcome u8: 0 answer, 1 busy, 2 unanswered | length u32 | the answer
//! ```
//!
//! Lengths are little endian, checked before anything is allocated, and memory grows as bytes
//! arrive. A requester that goes away stops the stream, which `RequestReply::cancelled` reports to
//! the other side.

mod send;
mod wire;

pub(crate) use send::{exchange, send_request};
pub(crate) use wire::{REQUEST_STREAM, RequestOutcome, read_growing};

use std::time::Duration;

use thiserror::Error;

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// No connection to that node.
    #[error("no connection to the node")]
    NoPath,
    /// The request is longer than may be sent.
    #[error("a request of {bytes} bytes, at most {limit} may be sent")]
    TooLong {
        /// Length of the request in bytes.
        bytes: usize,
        /// The most bytes of a request.
        limit: usize,
    },
    /// The answer is longer than may be read.
    #[error("an answer of {bytes} bytes, at most {limit} are read")]
    AnswerTooLong {
        /// Length of the answer in bytes, as the peer announced it.
        bytes: usize,
        /// The most bytes of an answer.
        limit: usize,
    },
    /// No answer in time.
    #[error("no answer within {} ms", within.as_millis())]
    Deadline {
        /// How long was waited.
        within: Duration,
    },
    /// The peer has too much to do.
    #[error("the peer is busy")]
    Busy,
    /// The peer dropped the request without an answer, or its answer was longer than may be sent.
    #[error("the peer did not answer")]
    Unanswered,
    /// The role of this process may not send requests.
    #[error("the peer does not allow requests from this role")]
    Forbidden,
    /// The connection broke before the answer was complete.
    #[error("the connection broke before the answer came")]
    Broken,
}
