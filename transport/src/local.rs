//! The same-host path: Unix sockets between processes that authenticated each other over another
//! path.
//!
//! ```text
//!   dialer                                   listener
//!     |      <- offer: host, path, secret       |    over the authenticated connection
//!     |  lane u8 | secret 32 ->                 |    over the socket
//!     |      <- proof 32                        |
//!     |  ...the lane...                         |
//! ```
//!
//! A connection is the peer's if it shows the secret which was sent only to that peer, and if the
//! same user runs both processes. The listener's proof shows the dialer that it reached the process
//! that made the offer: in a container the same path may be another's. The end of a process ends
//! its connections, which the other side reads as the end of the stream, at once.
//!
//! It promises no secrecy from the same user or from root, and decides nothing about paths.

mod acceptor;
mod dial;
mod folder;
mod listener;
mod offer;

pub use acceptor::{GREETING_DEADLINE, UNAUTHENTICATED_MAX};
pub use dial::{DIAL_DEADLINE, LocalDialError, dial};
pub use folder::{LocalFolderError, SOCKET_PATH_BYTES_MAX};
pub use listener::{LocalAdmission, LocalAdmissionId, LocalArrival, LocalBindError, LocalListener};
pub use offer::{BOOT_ID_BYTES_MAX, HostIdentity, LocalLane, LocalOffer, OfferFault};
