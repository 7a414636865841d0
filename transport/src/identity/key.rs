//! A member's own key, and what others are shown of it: a signing request.
//!
//! Of a request only the key is taken. One that asks for more, such as a name or the right to sign
//! others, is refused instead of being read generously.

use std::fmt;
use std::sync::Arc;

use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PublicKeyData as _, SubjectPublicKeyInfo,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

use super::certificate::pin;

/// The longest request that is looked at. Ours have about 200 bytes.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;

/// The SHA-256 of a public key: by it the same request, sent again, is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyDigest(pub [u8; 32]);

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A member's private key. It never leaves the machine. Cheap to clone.
#[derive(Clone)]
pub struct NodeKey {
    pair: Arc<KeyPair>,
}

/// Why bytes are no private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the bytes are no private key")]
pub struct KeyFault;

impl NodeKey {
    /// A new key: ECDSA on P-256.
    ///
    /// # Panics
    /// If the machine has no source of random numbers.
    #[must_use]
    pub fn generate() -> Self {
        let pair = KeyPair::generate().expect("the machine has random numbers");
        Self { pair: Arc::new(pair) }
    }

    pub(super) fn from_pkcs8(bytes: &[u8]) -> Result<Self, KeyFault> {
        let pair = KeyPair::try_from(bytes).map_err(|_| KeyFault)?;
        Ok(Self { pair: Arc::new(pair) })
    }

    pub(super) fn pair(&self) -> &KeyPair {
        &self.pair
    }

    pub(super) fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.pair.serialize_der()).into()
    }

    /// The digest of the public half.
    #[must_use]
    pub fn digest(&self) -> KeyDigest {
        KeyDigest(pin(&self.pair.subject_public_key_info()).0)
    }

    /// A request for a certificate for this key. It names nobody.
    #[must_use]
    pub fn signing_request(&self) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&*self.pair);
        request.expect("a key that was checked signs").der().to_vec()
    }

    /// The key as its own request, for whoever holds the authority and issues to itself.
    #[must_use]
    pub fn requested(&self) -> RequestedKey {
        RequestedKey::read(&self.pair.subject_public_key_info()).expect("a key of a kind we take")
    }
}

/// Shows the public half.
impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeKey").field("digest", &self.digest()).finish_non_exhaustive()
    }
}

/// A public key that someone proved to hold the private half of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedKey {
    spki: SubjectPublicKeyInfo,
    digest: KeyDigest,
}

/// Why a signing request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum RequestFault {
    /// Longer than any of ours.
    #[error("a signing request of {found} bytes, at most {REQUEST_BYTES_MAX} are looked at")]
    TooLong {
        /// How long it is.
        found: usize,
    },
    /// The bytes are no signing request, or more than one.
    #[error("the bytes are no signing request")]
    Damaged,
    /// It asks for names, rights or anything else than a certificate for its key.
    #[error("the signing request asks for more than a certificate for its key")]
    AsksForMore,
    /// Its key is of a kind that is too weak, or that nobody here uses.
    #[error("the key is neither ECDSA on P-256 or P-384 nor Ed25519")]
    UnusualKey,
    /// It is not signed by the key it is for.
    #[error("the signing request is not signed by its own key")]
    WrongSignature,
}

impl RequestedKey {
    /// The key that a signing request is for.
    ///
    /// # Errors
    /// If it is not a request for a certificate for a good key, and for nothing else.
    pub fn from_request(bytes: &[u8]) -> Result<Self, RequestFault> {
        if bytes.len() > REQUEST_BYTES_MAX {
            return Err(RequestFault::TooLong { found: bytes.len() });
        }
        let request = match X509CertificationRequest::from_der(bytes) {
            Ok(([], request)) => request,
            Ok((_, _)) | Err(_) => return Err(RequestFault::Damaged),
        };
        let info = &request.certification_request_info;
        if !info.attributes().is_empty() {
            return Err(RequestFault::AsksForMore);
        }
        let key = Self::read(info.subject_pki.raw)?;
        request.verify_signature().map_err(|_| RequestFault::WrongSignature)?;
        Ok(key)
    }

    fn read(spki: &[u8]) -> Result<Self, RequestFault> {
        let usual =
            [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519];
        let read = SubjectPublicKeyInfo::from_der(spki).map_err(|_| RequestFault::UnusualKey)?;
        if !usual.contains(&read.algorithm()) {
            return Err(RequestFault::UnusualKey);
        }
        Ok(Self { digest: KeyDigest(pin(spki).0), spki: read })
    }

    /// The digest of the key.
    #[must_use]
    pub fn digest(&self) -> KeyDigest {
        self.digest
    }

    pub(super) fn spki(&self) -> &SubjectPublicKeyInfo {
        &self.spki
    }
}
