//! Certificates good and bad, given to the check and shown to TLS on real connections.

pub(super) mod bench;
mod handshakes;
mod peers;
mod readers;
mod succession;
