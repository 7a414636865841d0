//! Sources of documents in object stores and on web servers: `s3://`, `gs://`, `az://` and `https://`; and
//! folders of objects that are written ([`ObjectFolder`]).
//!
//! ```text
//!   RemoteStorage ──> RemoteStore ──> object_store ──> RetryingClient ──> ureq
//!     list, open       one a bucket,    signatures,      again while        sockets, TLS
//!                      one runtime      lists            a server is busy
//! ```
//!
//! Its promises:
//!
//! - Objects come in the order in which the same files would come from the local disk, so that a
//!   store made of them has the same bytes.
//! - An object that is not the one that was listed is an error, whenever it changed.
//! - Of an object, however long, no more is in memory than some ranges of 4 MiB (`windows.rs`).
//! - A server that is busy is asked again, and whoever calls learns of it; one that stays so is an
//!   error within minutes ([`RetryPolicy`]).
//!
//! Nothing but this package waits for futures, and only in `runtime.rs`. It writes what [`ObjectFolder`] is
//! given, and nothing else.

mod address;
mod environment;
mod error;
mod http_client;
mod listing;
mod object;
mod object_folder;
mod retry;
mod runtime;
mod storage;
mod store;
mod windows;

pub use address::{AddressProblem, Scheme, is_address};
pub use environment::Environment;
pub use error::{Missing, RemoteError};
pub use http_client::JsonPoster;
pub use object_folder::ObjectFolder;
pub use retry::{OnRetry, RetryEvent, RetryNotice, RetryPolicy};
pub use storage::RemoteStorage;
