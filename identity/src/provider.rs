//! The cryptography that TLS is run with.

use rustls::crypto::CryptoProvider;

/// The arithmetic behind TLS. Only version 1.3's.
pub(super) fn provider() -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.retain(|suite| suite.tls13().is_some());
    provider
}
