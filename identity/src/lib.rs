//! The identities of peers: certificates, tokens, and how a joiner becomes a member.
//!
//! ```text
//!   ClusterAuthority --issue--> Credentials --configs--> TLS 1.3, both sides certified
//!        ^                          ^
//!        | JoinAttempt              | request_certificate
//!        +------ zbe-join/1 --------+   (the only exchange without a certificate of one's own)
//! ```
//!
//! A certificate names its holder in one place, a URI: [`PeerIdentity`]. All other fields in it are
//! neither read nor trusted. The rights of a role are decided elsewhere; here is only decided which
//! peer it is. The whole is described in `docs/security.md`.

mod authority;
mod certificate;
mod clock;
mod credentials;
mod folder;
mod gate;
mod join;
mod key;
mod name;
mod peer;
mod provider;
mod role;
#[cfg(test)]
mod tests;
mod tls;
mod token;
mod verify;

pub use authority::{
    AuthorityFault, AuthoritySecret, CertificateLife, ClusterAuthority, IssuedCertificate,
    random_number,
};
pub use certificate::{
    CERTIFICATE_BYTES_MAX, CHAIN_CERTIFICATES_MAX, CertificateFault, SerialNumber, SpkiPin,
    peer_of, serial_of,
};
pub use clock::{CLOCK_TOLERANCE_SECONDS, ClockFault, UnixSeconds, ValidityWindow};
pub use credentials::{Credentials, CredentialsFault};
pub use folder::{IdentityFileDamage, IdentityFolderFault, check_permissions};
pub use gate::{FAILURES_MAX, JoinDelay, JoinGate, network_of};
pub use join::{
    ADDRESSES_MAX, BindingFault, CONTROLLERS_MAX, ChannelBinding, ControllerContact,
    DECISION_SECONDS_MAX, GrantFault, JOIN_ANSWER_BYTES_MAX, JOIN_REQUEST_BYTES_MAX, JoinAnswer,
    JoinAttempt, JoinDials, JoinError, JoinGrant, JoinMessageFault, JoinReadFault, JoinRefusal,
    JoinReply, JoinRequest, JoinServeFault, JoinServerFault, JoinSetup, JoinedMember, NameRefusal,
    READ_SECONDS_MAX, join_cluster, join_once, read_join, request_certificate, serve_join,
};
pub use key::{KeyDigest, NodeKey, REQUEST_BYTES_MAX, RequestedKey, SigningRequestFault};
pub use name::{NAME_CHARS_MAX, NodeName, NodeNameFault};
pub use peer::{IdentityFault, PeerIdentity};
pub use role::{PeerRole, UnknownRole};
pub use tls::{AcceptFault, AcceptedDiallers, AcceptedPeer, AlpnProtocol, shown_authority};
pub use token::{JoinToken, JoinTokenId, TOKEN_CHARS_MAX, TokenFault, TokenVerifier};
pub use verify::{ExpectedPeer, PeerIdentityRefusal};
