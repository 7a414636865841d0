//! Why an address gives no bytes.

use std::error::Error;
use std::io;
use std::time::Duration;

use crate::address::{AddressProblem, Scheme};

/// Why an address cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// It is no address.
    #[error("{problem}")]
    Address {
        /// The problem of the entry.
        problem: AddressProblem,
    },
    /// A web server has no way to list its files.
    #[error("a web server lists no files, so an https:// address is that of one file")]
    NoListing,
    /// There is no such object, no folder of that name, or no such bucket.
    #[error("{place} has {missing}")]
    NotFound {
        /// The bucket.
        place: String,
        /// What it has not.
        missing: Missing,
    },
    /// There are no credentials, or the service that gives them refuses.
    #[error("no credentials: {reason}")]
    Credentials {
        /// Whose credentials.
        scheme: Scheme,
        /// What failed.
        reason: String,
    },
    /// The credentials are not allowed to read it.
    #[error("the server refuses: {reason}")]
    Denied {
        /// Whose credentials.
        scheme: Scheme,
        /// The status, and the server's code if it sent one.
        reason: String,
    },
    /// The server did not answer within all attempts.
    #[error("{host} is not available: {reason}, {attempts} times in {} s", waited.as_secs())]
    Unavailable {
        /// The host that was asked.
        host: String,
        /// The last failure.
        reason: String,
        /// How often it was asked.
        attempts: u32,
        /// The time waited between attempts.
        waited: Duration,
    },
    /// The object is not the one that was listed.
    #[error("it changed while it was read: was {expected}, is {found}")]
    Changed {
        /// Length and version as they were listed.
        expected: String,
        /// What the server has now.
        found: String,
    },
    /// The server sent another number of bytes than was asked for.
    #[error("{found} bytes came of a range of {expected}")]
    Short {
        /// Length of the range.
        expected: u64,
        /// Bytes that came.
        found: u64,
    },
    /// The server sends whole files only.
    #[error("{host} sends no parts of files")]
    NoRanges {
        /// The host that was asked.
        host: String,
    },
    /// There are too many objects for one entry.
    #[error("has more than {max} files of a known format")]
    TooMany {
        /// Most files of an entry.
        max: usize,
    },
    /// Anything else that a server or its configuration says.
    #[error("{reason}")]
    Other {
        /// The error in its own words.
        reason: String,
    },
    /// The caller stopped the wait for a server.
    #[error("stopped while waiting for the server")]
    Stopped,
}

/// What a place does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// An object that was named.
    #[error("no object of this name, and no folder")]
    Key,
    /// An object that was there when it was listed.
    #[error("lost the object since it was listed")]
    Gone,
    /// The bucket itself.
    #[error("no such bucket")]
    Bucket,
    /// A file of a web server.
    #[error("no such file")]
    File,
}

impl Missing {
    /// Whether the place is there, and has no such file.
    #[must_use]
    pub const fn is_of_file(self) -> bool {
        match self {
            Self::Key | Self::File => true,
            Self::Gone | Self::Bucket => false,
        }
    }
}

impl RemoteError {
    /// The error of this package within an error of a reader, if that is its cause.
    #[must_use]
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            // The source of an `io::Error` is that of the error it holds.
            let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            let held = held.map(|held| held as &(dyn Error + 'static));
            let found = [Some(error), held].into_iter().flatten();
            if let Some(found) = found.filter_map(|error| error.downcast_ref()).next() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }
}
