//! Requests to a metadata service, and their answers and faults.

use std::io;
use std::time::Duration;

use thiserror::Error;

/// The longest answer. Real ones have hundreds of bytes.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A request, but for the place it goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetadataRequest {
    pub(super) method: HttpMethod,
    /// From the first slash on, with the query.
    pub(super) path: String,
    pub(super) headers: Vec<(&'static str, String)>,
    /// How long the answer is waited for.
    pub(super) patience: Duration,
}

/// The HTTP method, with its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HttpMethod {
    Get,
    /// With an empty body.
    Put,
    /// With this JSON as its body.
    Post(String),
}

impl MetadataRequest {
    pub(super) fn get(path: impl Into<String>, patience: Duration) -> Self {
        Self { method: HttpMethod::Get, path: path.into(), headers: Vec::new(), patience }
    }

    pub(super) fn put(path: impl Into<String>, patience: Duration) -> Self {
        Self { method: HttpMethod::Put, ..Self::get(path, patience) }
    }

    pub(super) fn post(path: impl Into<String>, json: String, patience: Duration) -> Self {
        Self { method: HttpMethod::Post(json), ..Self::get(path, patience) }
    }

    pub(super) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// A response, as far as its parts are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MetadataResponse {
    pub(super) status: u16,
    pub(super) body: String,
    pub(super) tag: Option<String>,
    pub(super) flavor: Option<String>,
}

/// Refuses every status but success, for a resource that has to be there.
pub(super) fn check_status(found: u16) -> Result<(), MetadataFault> {
    match found {
        200..=299 => Ok(()),
        _ => Err(MetadataFault::Status { found }),
    }
}

/// Why there is no answer to work with.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MetadataFault {
    /// No connection, or it broke.
    #[error("the metadata service cannot be reached: {kind}")]
    Unreachable {
        /// The system's kind of error.
        kind: io::ErrorKind,
    },
    /// It lasts too long.
    #[error("the metadata service did not answer within {} ms", within.as_millis())]
    TooSlow {
        /// How long was waited.
        within: Duration,
    },
    /// It is too long.
    #[error("the metadata service answered more than {ANSWER_BYTES_MAX} bytes")]
    TooLong,
    /// It is no HTTP.
    #[error("the metadata service answered what is no HTTP")]
    NoHttp,
    /// It is a refusal, or something of which this version knows nothing.
    #[error("the metadata service answered with status {found}")]
    Status {
        /// HTTP status of the response.
        found: u16,
    },
    /// The answer does not have the expected form.
    #[error("the metadata service answered something else than {expected}")]
    Senseless {
        /// The form that was expected.
        expected: &'static str,
    },
    /// The system gives no thread to send requests on.
    #[error("no thread for requests to the metadata service: {kind}")]
    NoThread {
        /// The system's kind of error.
        kind: io::ErrorKind,
    },
}
