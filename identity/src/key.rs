//! A member's own key, and the signing request that shows its public half to others.
//!
//! Only the key of a request is used. One that requests more, such as a name or the right to sign
//! others, is refused instead of being read generously.

use std::fmt;
use std::sync::Arc;

use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PublicKeyData as _, SubjectPublicKeyInfo,
};
use ring::hmac;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

use super::certificate::pin;

/// The longest request that is looked at. Ours have about 200 bytes.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;

/// The label with which a key for stateless resets is derived.
const RESET_LABEL: &[u8] = b"zbelastic stateless reset 1";

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

    /// The key that stateless reset tokens of QUIC are derived from: the same after each start, so
    /// that a process can end the connections of the one before it, and unknown to others.
    #[must_use]
    pub fn reset_key(&self) -> hmac::Key {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.pair.serialize_der());
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, RESET_LABEL).as_ref())
    }

    /// A request for a certificate for this key. It names no holder.
    #[must_use]
    pub fn signing_request(&self) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&*self.pair);
        request.expect("a key that was checked signs").der().to_vec()
    }

    /// The key as its own request, for a holder of the authority that issues a certificate to
    /// itself.
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
pub enum SigningRequestFault {
    /// Longer than any of ours.
    #[error("a signing request of {found} bytes, at most {REQUEST_BYTES_MAX} are looked at")]
    TooLong {
        /// How long it is.
        found: usize,
    },
    /// The bytes are no signing request, or more than one.
    #[error("the bytes are no signing request")]
    Damaged,
    /// It requests names, rights or anything else than a certificate for its key.
    #[error("the signing request requests more than a certificate for its key")]
    AsksForMore,
    /// Its key is of a kind that is too weak, or that this program does not use.
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
    pub fn from_request(bytes: &[u8]) -> Result<Self, SigningRequestFault> {
        if bytes.len() > REQUEST_BYTES_MAX {
            return Err(SigningRequestFault::TooLong { found: bytes.len() });
        }
        let request = match X509CertificationRequest::from_der(bytes) {
            Ok(([], request)) => request,
            Ok((_, _)) | Err(_) => return Err(SigningRequestFault::Damaged),
        };
        let info = &request.certification_request_info;
        if !info.attributes().is_empty() {
            return Err(SigningRequestFault::AsksForMore);
        }
        let key = Self::read(info.subject_pki.raw)?;
        request.verify_signature().map_err(|_| SigningRequestFault::WrongSignature)?;
        Ok(key)
    }

    fn read(spki: &[u8]) -> Result<Self, SigningRequestFault> {
        let usual =
            [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519];
        let read =
            SubjectPublicKeyInfo::from_der(spki).map_err(|_| SigningRequestFault::UnusualKey)?;
        if !usual.contains(&read.algorithm()) {
            return Err(SigningRequestFault::UnusualKey);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{BasicConstraints, IsCa, SanType};

    use super::*;

    fn request_with(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let mut params = CertificateParams::default();
        change(&mut params);
        params.serialize_request(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn fault(bytes: &[u8]) -> SigningRequestFault {
        RequestedKey::from_request(bytes).unwrap_err()
    }

    #[test]
    fn a_request_is_recognised_by_its_key() {
        let key = NodeKey::generate();
        let first = key.signing_request();
        let second = key.signing_request();
        let digest = RequestedKey::from_request(&first).unwrap().digest();
        assert_eq!(digest, RequestedKey::from_request(&second).unwrap().digest());
        assert_eq!(digest, key.digest());
        assert_eq!(digest, key.requested().digest());
        assert_ne!(digest, NodeKey::generate().digest());
    }

    #[test]
    fn a_request_with_a_name_of_its_own_is_refused() {
        let name = "zbe://00000000000000000000000000000007/admin/1";
        let request = request_with(|params| {
            params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
        });
        assert_eq!(fault(&request), SigningRequestFault::AsksForMore);
        let request = request_with(|params| {
            params.subject_alt_names = vec![SanType::DnsName("localhost".try_into().unwrap())];
        });
        assert_eq!(fault(&request), SigningRequestFault::AsksForMore);
    }

    #[test]
    fn a_request_to_be_an_authority_is_refused() {
        for rights in [IsCa::Ca(BasicConstraints::Unconstrained), IsCa::ExplicitNoCa] {
            let request = request_with(|params| params.is_ca = rights);
            assert_eq!(fault(&request), SigningRequestFault::AsksForMore);
        }
    }

    #[test]
    fn a_subject_is_ignored() {
        let request = request_with(|params| {
            params.distinguished_name.push(rcgen::DnType::CommonName, "root");
        });
        assert!(RequestedKey::from_request(&request).is_ok());
    }

    #[test]
    fn keys_of_the_usual_kinds_are_taken() {
        let usual =
            [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519];
        for kind in usual {
            let pair = KeyPair::generate_for(kind).unwrap();
            let request = CertificateParams::default().serialize_request(&pair).unwrap();
            assert!(RequestedKey::from_request(request.der()).is_ok());
        }
    }

    #[test]
    fn a_weak_key_is_refused() {
        // A request for an RSA key of 1024 bits, made and signed by another program.
        let request = data_encoding::BASE64.decode(WEAK_REQUEST.as_bytes()).unwrap();
        assert_eq!(fault(&request), SigningRequestFault::UnusualKey);
    }

    #[test]
    fn a_long_request_is_refused_unread() {
        let mut request = NodeKey::generate().signing_request();
        for length in [REQUEST_BYTES_MAX + 1, 1 << 20] {
            request.resize(length, 0);
            assert_eq!(fault(&request), SigningRequestFault::TooLong { found: length });
        }
        request.truncate(REQUEST_BYTES_MAX);
        assert_eq!(fault(&request), SigningRequestFault::Damaged);
    }

    #[test]
    fn a_request_that_another_key_signed_is_refused() {
        let mut request = NodeKey::generate().signing_request();
        let other = NodeKey::generate().pair.subject_public_key_info();
        let own = 91;
        let index = request.windows(2).position(|part| part == [0x30, 0x59]).unwrap();
        assert_eq!(other.len(), own);
        request[index..index + own].copy_from_slice(&other);
        assert_eq!(fault(&request), SigningRequestFault::WrongSignature);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(RequestedKey::from_request(&bytes).is_err());
        }

        // Not every bit of the wrapping is looked at, but the key is signed: there is no other.
        #[test]
        fn no_damage_to_a_request_leads_to_another_key(
            index in any::<prop::sample::Index>(),
            change in 1_u8..,
        ) {
            let key = NodeKey::generate();
            let mut bytes = key.signing_request();
            let index = index.index(bytes.len());
            prop_assert!(RequestedKey::from_request(&bytes[..index]).is_err());
            bytes[index] ^= change;
            if let Ok(read) = RequestedKey::from_request(&bytes) {
                prop_assert_eq!(read.digest(), key.digest());
            }
        }
    }

    const WEAK_REQUEST: &str = "\
        MIIBPzCBqQIBADAAMIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDkzwq68BAL1Nwnn/+4foJWCdcA\
        4u0WODa4iC+xL7nvY9qgNg35XQclZQy5lb28cpFBHAel3+Ss/aru7cUdS5J0hUip/0P66LyXpkgXm4KD\
        asIdJizN1NKc11Kn/NcxCfEGf2Iigzlk7DD2DZoyLGYdwtu5SUTVWcL7hYXSUtlzEwIDAQABoAAwDQYJ\
        KoZIhvcNAQELBQADgYEAq+Lz9bpS2xYVMAEkqaEz6rdjbU83IhRptKz4nrynsYk/DwhsDgfbs6j16xfj\
        G1rHR/2MpWhUb89WLucjeKPY5XM57usgLonkVVOtttFsr5MkM+Jg1Gh8KBpuXA/niLZ8GtARqyC67Dy2\
        zJraKIsWri4Ecd6R4dNb5ARhpu3E1FM=";
}
