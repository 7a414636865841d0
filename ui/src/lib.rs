//! The server of the live page, of `/metrics` and of `/healthz`.
//!
//! It reads and never changes: what it shows was observed by its caller, who sends it
//! [`Observation`]s. One task owns the dashboard ([`hub`]); each connection sends it requests and
//! gets copies, so nothing is locked and no viewer is waited for:
//!
//! ```text
//!  caller ── Observation ──► hub (Dashboard) ── messages ──► a queue for each open page
//!                             ▲                                (full: the page is dropped)
//!                             └── HubRequest ── connections
//! ```
//!
//! On a loopback address nobody logs in, and only requests whose `Host` is this machine are answered,
//! so that no page of another site reaches it by a name of its own (DNS rebinding). On any other
//! address a session is needed ([`access`]). Everything has a limit: [`CONNECTIONS_MAX`],
//! [`VIEWERS_MAX`], [`REQUEST_BYTES_MAX`], [`access::SESSIONS_MAX`], [`ClientDeadlines`].
//!
//! [`Observation`]: zbelastic_view::Observation

pub mod access;
mod assets;
mod deadlines;
mod hub;
mod response;
mod routes;
mod server;
mod shared;

pub use access::{AccessPolicy, TokenCheck, TokenRefusal};
pub use assets::report_page;
pub use deadlines::ClientDeadlines;
pub use hub::VIEWERS_MAX;
pub use server::{CONNECTIONS_MAX, PageObserver, PageService, ServeError, UiServer, UiSettings};

/// Most bytes of a request's body: a token has at most 1,024 characters.
pub const REQUEST_BYTES_MAX: usize = 2048;
