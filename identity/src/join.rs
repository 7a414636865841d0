//! How a joiner becomes a member.
//!
//! ```text
//!   joiner                                                     controller that leads
//!     | -- QUIC handshake, zbe-join/1, no certificate of its own ---> |
//!     | <-- chain: controller's certificate, authority's ------------ |
//!     |  authority's key = pin of the token? certificate of a         |
//!     |  controller of its cluster? else hang up: nothing was sent    |
//!     |                                                               |
//!     | -- JoinRequest: token's id, role, name, signing request,      |
//!     |    proof = HMAC(verifier, channel, request, role, name) ----> |
//!     |                                      JoinAttempt -> the node decides, by Raft
//!     | <-- JoinAnswer: certificate, node, controllers | refusal ---- |
//!     |  certificate for my key, of that cluster, by that authority?  |
//! ```
//!
//! The proof is bound to the channel by the key material that TLS exports for it (RFC 5705), so it
//! is worth nothing on another connection: neither repeated nor passed on. The token's secret never
//! travels.

mod dial;
mod message;
mod pinned;
mod proof;
mod requester;
mod serve;
#[cfg(test)]
mod tests;

pub use dial::{join_cluster, join_once};
pub use message::{
    ADDRESSES_MAX, CONTROLLERS_MAX, ControllerContact, JOIN_ANSWER_BYTES_MAX,
    JOIN_REQUEST_BYTES_MAX, JoinAnswer, JoinGrant, JoinMessageFault, JoinRefusal, JoinRequest,
    NameRefusal,
};
pub use pinned::JoinServerFault;
pub use proof::{BindingFault, ChannelBinding};
pub use requester::{
    GrantFault, JoinDials, JoinError, JoinSetup, JoinedMember, request_certificate,
};
pub use serve::{
    DECISION_SECONDS_MAX, JoinAttempt, JoinReadFault, JoinReply, JoinServeFault, READ_SECONDS_MAX,
    read_join, serve_join,
};
