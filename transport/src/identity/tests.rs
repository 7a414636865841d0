//! Certificates good and bad, held against the check and shown to TLS on real connections.

pub(super) mod bench;
mod handshakes;
mod peers;
mod readers;
mod succession;
