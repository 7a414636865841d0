//! The fields that are read from a certificate: its key, its window, its serial number, and its
//! holder's identity.
//!
//! Reading proves nothing. A certificate is trusted after [`super::verify`] led it to a root.

use std::fmt;

use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use zbelastic_types::ClusterId;

use super::clock::{UnixSeconds, ValidityWindow};
use super::peer::{self, IdentityFault, PeerIdentity, SCHEME};

/// The longest certificate that is looked at. Ours have below 1 KiB.
pub const CERTIFICATE_BYTES_MAX: usize = 8 << 10;
/// The most certificates a peer may present: its own, the authority's, and two for a change of it.
pub const CHAIN_CERTIFICATES_MAX: usize = 4;
/// The longest serial number, as RFC 5280 (4.1.2.2) has it.
const SERIAL_BYTES_MAX: usize = 20;

/// The SHA-256 of an authority's public key, by which a joiner knows the cluster. It outlives the
/// authority's certificate, which may be made anew for the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SpkiPin(pub [u8; 32]);

impl fmt::Display for SpkiPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The number of one certificate, by which it is revoked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SerialNumber(pub Vec<u8>);

impl fmt::Display for SerialNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why nothing can be read from a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CertificateFault {
    /// No certificate was presented.
    #[error("no certificate")]
    Missing,
    /// More than may be presented.
    #[error("{found} certificates, at most {CHAIN_CERTIFICATES_MAX} are looked at")]
    TooMany {
        /// Number of certificates presented.
        found: usize,
    },
    /// One is longer than any of ours.
    #[error("a certificate of {found} bytes, at most {CERTIFICATE_BYTES_MAX} are looked at")]
    TooLong {
        /// Its length in bytes.
        found: usize,
    },
    /// The bytes are no certificate, or more than one.
    #[error("the bytes are no certificate")]
    Damaged,
    /// It does not name exactly one identity and nothing else.
    #[error("the certificate names {found} subjects, one identity is expected")]
    NotOneName {
        /// Number of names in the certificate.
        found: usize,
    },
    /// Its name is no identity.
    #[error("the certificate is not of a member: {0}")]
    WrongIdentity(#[from] IdentityFault),
    /// A time before 1970.
    #[error("the certificate has a time before 1970")]
    WrongTime,
    /// Its serial number is empty or longer than allowed.
    #[error("a serial number of {found} bytes, 1 to {SERIAL_BYTES_MAX} are expected")]
    WrongSerial {
        /// Its length in bytes.
        found: usize,
    },
}

/// A member's certificate, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemberCertificate {
    pub identity: PeerIdentity,
    pub window: ValidityWindow,
    pub serial: SerialNumber,
    pub key: SpkiPin,
}

/// An authority's certificate, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AuthorityCertificate {
    pub cluster: ClusterId,
    pub window: ValidityWindow,
    pub key: SpkiPin,
}

/// The identity of the peer that presented these certificates, its own first. They are trusted: the
/// handshake led them to the authority.
///
/// # Errors
/// If they are not those that a handshake lets through.
pub fn peer_of(certificates: &[CertificateDer<'_>]) -> Result<PeerIdentity, CertificateFault> {
    check_chain_size(certificates)?;
    read_member(&certificates[0]).map(|member| member.identity)
}

/// The number of the first of these certificates.
///
/// # Errors
/// As [`peer_of`].
pub fn serial_of(certificates: &[CertificateDer<'_>]) -> Result<SerialNumber, CertificateFault> {
    check_chain_size(certificates)?;
    read_member(&certificates[0]).map(|member| member.serial)
}

/// Whether there are some and not too many, none of them too long.
pub(super) fn check_chain_size(chain: &[CertificateDer<'_>]) -> Result<(), CertificateFault> {
    if chain.is_empty() {
        return Err(CertificateFault::Missing);
    }
    if chain.len() > CHAIN_CERTIFICATES_MAX {
        return Err(CertificateFault::TooMany { found: chain.len() });
    }
    chain.iter().try_for_each(|certificate| check_size(certificate))
}

fn check_size(certificate: &[u8]) -> Result<(), CertificateFault> {
    if certificate.len() > CERTIFICATE_BYTES_MAX {
        return Err(CertificateFault::TooLong { found: certificate.len() });
    }
    Ok(())
}

pub(super) fn read_member(bytes: &[u8]) -> Result<MemberCertificate, CertificateFault> {
    let certificate = parse(bytes)?;
    let identity = only_name(&certificate)?.parse()?;
    let serial = certificate.raw_serial();
    if serial.is_empty() || serial.len() > SERIAL_BYTES_MAX {
        return Err(CertificateFault::WrongSerial { found: serial.len() });
    }
    Ok(MemberCertificate {
        identity,
        window: window(&certificate)?,
        serial: SerialNumber(serial.to_vec()),
        key: pin(certificate.public_key().raw),
    })
}

pub(super) fn read_authority(bytes: &[u8]) -> Result<AuthorityCertificate, CertificateFault> {
    let certificate = parse(bytes)?;
    let name = only_name(&certificate)?;
    let cluster = name.strip_prefix(SCHEME).ok_or(IdentityFault::WrongForm)?;
    Ok(AuthorityCertificate {
        cluster: peer::cluster_from(cluster)?,
        window: window(&certificate)?,
        key: pin(certificate.public_key().raw),
    })
}

/// The digest of a public key's bytes, by which keys are distinguished.
pub(super) fn pin(spki: &[u8]) -> SpkiPin {
    let digest = digest(&SHA256, spki);
    SpkiPin(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
}

fn parse(bytes: &[u8]) -> Result<X509Certificate<'_>, CertificateFault> {
    check_size(bytes)?;
    match x509_parser::parse_x509_certificate(bytes) {
        Ok(([], certificate)) => Ok(certificate),
        Ok((_, _)) | Err(_) => Err(CertificateFault::Damaged),
    }
}

fn only_name<'a>(certificate: &'a X509Certificate<'_>) -> Result<&'a str, CertificateFault> {
    let extension =
        certificate.subject_alternative_name().map_err(|_| CertificateFault::Damaged)?;
    let names = extension.map_or(&[][..], |extension| &extension.value.general_names);
    match names {
        [GeneralName::URI(name)] => Ok(name),
        _ => Err(CertificateFault::NotOneName { found: names.len() }),
    }
}

fn window(certificate: &X509Certificate<'_>) -> Result<ValidityWindow, CertificateFault> {
    let seconds = |timestamp: i64| {
        u64::try_from(timestamp).map(UnixSeconds).map_err(|_| CertificateFault::WrongTime)
    };
    let validity = certificate.validity();
    Ok(ValidityWindow {
        not_before: seconds(validity.not_before.timestamp())?,
        not_after: seconds(validity.not_after.timestamp())?,
    })
}
