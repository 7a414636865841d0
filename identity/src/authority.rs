//! The cluster's own certificate authority, which vouches for members.
//!
//! Each cluster makes one of its own, and it signs for that cluster only. Its key is with every
//! controller, so that whichever leads can admit a worker; no other role has it.

use std::fmt;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyUsagePurpose, SanType, date_time_ymd,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zbelastic_types::{ClusterId, NodeId};

use super::certificate::{
    AuthorityCertificate, CertificateFault, SerialNumber, SpkiPin, read_authority,
};
use super::clock::{CLOCK_TOLERANCE_SECONDS, UnixSeconds, ValidityWindow};
use super::credentials::{Credentials, CredentialsFault};
use super::key::{NodeKey, RequestedKey};
use super::peer::{PeerIdentity, SCHEME, cluster_text};
use super::role::PeerRole;

const HOUR_SECONDS: u64 = 60 * 60;
const DAY_SECONDS: u64 = 24 * HOUR_SECONDS;
/// Days for which an authority is valid: longer than any cluster is expected to live.
const AUTHORITY_DAYS: u64 = 3650;
/// The length of the serial numbers we give: 128 random bits never meet again.
const SERIAL_BYTES: usize = 16;

/// The time in seconds for which certificates of a role are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateLife(pub u64);

impl CertificateLife {
    /// The validity for a role: the easier a machine is to lose, the shorter.
    #[must_use]
    pub const fn of(role: PeerRole) -> Self {
        match role {
            PeerRole::Worker => Self(DAY_SECONDS),
            PeerRole::Controller => Self(30 * DAY_SECONDS),
            PeerRole::Admin | PeerRole::Operator | PeerRole::Viewer => Self(7 * DAY_SECONDS),
        }
    }
}

/// A cluster's authority, with its key.
#[derive(Clone)]
pub struct ClusterAuthority {
    certificate: CertificateDer<'static>,
    /// The path from it to the authority before it, for members that trust only that one: the
    /// certificate that the earlier one made for this one's key, and the earlier one's own. Empty
    /// for a cluster's first.
    bridge: Vec<CertificateDer<'static>>,
    read: AuthorityCertificate,
    key: NodeKey,
}

/// The authority as it travels to a controller that joins, over the connection that proved it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthoritySecret {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// Prints the name of the type, and nothing of the secret.
impl fmt::Debug for AuthoritySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthoritySecret(..)")
    }
}

/// A certificate that was made for a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The chain that the member shows: its certificate, then the authority's, then the path to the
    /// authority before.
    pub chain: Vec<CertificateDer<'static>>,
    /// Serial number of the certificate.
    pub serial: SerialNumber,
    /// From when to when it is good.
    pub window: ValidityWindow,
}

/// Why an authority cannot be had, or cannot issue.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum AuthorityFault {
    /// The certificate is none of an authority.
    #[error("the authority's certificate: {0}")]
    Certificate(#[from] CertificateFault),
    /// The key is damaged.
    #[error("the authority's key is damaged")]
    DamagedKey,
    /// The key is not the one that the certificate is for.
    #[error("the authority's key is not the one its certificate is for")]
    OtherKey,
    /// The authority's own time is over, or has not come.
    #[error("the authority is good from {} to {}, and it is {now}", window.not_before, window.not_after)]
    NotGood {
        /// The time of this machine's clock.
        now: UnixSeconds,
        /// When the authority is valid.
        window: ValidityWindow,
    },
    /// The certificate library refused.
    #[error("no certificate was made: {0}")]
    Refused(String),
    /// The parts of the issued credentials do not fit together.
    #[error(transparent)]
    Credentials(#[from] CredentialsFault),
}

impl ClusterAuthority {
    /// A new authority for a new cluster.
    ///
    /// # Errors
    /// If the certificate library refuses.
    pub fn create(cluster: ClusterId, now: UnixSeconds) -> Result<Self, AuthorityFault> {
        let key = NodeKey::generate();
        let window = ValidityWindow {
            not_before: now.minus(CLOCK_TOLERANCE_SECONDS),
            not_after: now.plus(AUTHORITY_DAYS * DAY_SECONDS),
        };
        let params = authority_parameters(cluster, window)?;
        let certificate = params.self_signed(key.pair()).map_err(refused)?;
        Self::from_parts(certificate.der().clone(), key)
    }

    /// Another authority for the same cluster, with a key of its own. This one vouches for it, so a
    /// member that trusts only this one trusts the certificates of the other one as well.
    ///
    /// # Errors
    /// If this authority is not good now, or the certificate library refuses.
    pub fn successor(&self, now: UnixSeconds) -> Result<Self, AuthorityFault> {
        self.check_good(now)?;
        let next = Self::create(self.read.cluster, now)?;
        let not_after = next.read.window.not_after.min(self.read.window.not_after);
        let not_before = next.read.window.not_before.max(self.read.window.not_before);
        let window = ValidityWindow { not_before, not_after };
        let mut params = authority_parameters(self.read.cluster, window)?;
        params.serial_number = Some(random_serial().0.into());
        let issuer =
            Issuer::from_ca_cert_der(&self.certificate, self.key.pair()).map_err(refused)?;
        let vouched = params.signed_by(next.key.requested().spki(), &issuer).map_err(refused)?;
        Ok(next.with_bridge(vec![vouched.der().clone(), self.certificate.clone()]))
    }

    /// The same, with the path to the authority before it.
    #[must_use]
    pub fn with_bridge(self, bridge: Vec<CertificateDer<'static>>) -> Self {
        Self { bridge, ..self }
    }

    /// The path to the authority before it: the certificate that one made for this one, then that
    /// one's own.
    #[must_use]
    pub fn bridge(&self) -> &[CertificateDer<'static>] {
        &self.bridge
    }

    fn check_good(&self, now: UnixSeconds) -> Result<(), AuthorityFault> {
        let own = self.read.window;
        if now < own.not_before || now >= own.not_after {
            return Err(AuthorityFault::NotGood { now, window: own });
        }
        Ok(())
    }

    /// The certificates behind a member's own in the chain that it shows.
    pub(super) fn path(&self) -> impl Iterator<Item = CertificateDer<'static>> {
        std::iter::once(&self.certificate).chain(&self.bridge).cloned()
    }

    pub(super) fn from_parts(
        certificate: CertificateDer<'static>,
        key: NodeKey,
    ) -> Result<Self, AuthorityFault> {
        let read = read_authority(&certificate)?;
        if read.key.0 != key.digest().0 {
            return Err(AuthorityFault::OtherKey);
        }
        Ok(Self { certificate, bridge: Vec::new(), read, key })
    }

    /// The authority that another controller sent.
    ///
    /// # Errors
    /// If the bytes are no authority.
    pub fn from_secret(secret: &AuthoritySecret) -> Result<Self, AuthorityFault> {
        let key = NodeKey::from_pkcs8(&secret.key).map_err(|_| AuthorityFault::DamagedKey)?;
        Self::from_parts(CertificateDer::from(secret.certificate.clone()), key)
    }

    /// The authority as bytes, key and all. Only for a controller.
    #[must_use]
    pub fn secret(&self) -> AuthoritySecret {
        AuthoritySecret {
            certificate: self.certificate.to_vec(),
            key: self.key.pair().serialize_der(),
        }
    }

    /// The cluster it vouches for.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.read.cluster
    }

    /// Its certificate: the root that members trust.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The pin by which tokens name it.
    #[must_use]
    pub fn pin(&self) -> SpkiPin {
        self.read.key
    }

    pub(super) fn key(&self) -> &NodeKey {
        &self.key
    }

    /// Makes a certificate that names the holder of `key`, good from `now` on, for as long as the
    /// role gets, at most as long as the authority itself is good.
    ///
    /// # Errors
    /// If the authority is not good now.
    pub fn issue(
        &self,
        key: &RequestedKey,
        role: PeerRole,
        node: NodeId,
        now: UnixSeconds,
    ) -> Result<IssuedCertificate, AuthorityFault> {
        self.check_good(now)?;
        let not_after = now.plus(CertificateLife::of(role).0).min(self.read.window.not_after);
        let window = ValidityWindow { not_before: now, not_after };
        let identity = PeerIdentity { cluster: self.read.cluster, role, node };
        let serial = random_serial();
        let mut params = parameters(identity.to_string(), window)?;
        params.serial_number = Some(serial.0.clone().into());
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let issuer =
            Issuer::from_ca_cert_der(&self.certificate, self.key.pair()).map_err(refused)?;
        let certificate = params.signed_by(key.spki(), &issuer).map_err(refused)?;
        let chain = std::iter::once(certificate.der().clone()).chain(self.path()).collect();
        Ok(IssuedCertificate { chain, serial, window })
    }

    /// Credentials for a process or person on this machine, with a new key.
    ///
    /// # Errors
    /// As [`ClusterAuthority::issue`].
    pub fn credentials(
        &self,
        role: PeerRole,
        node: NodeId,
        now: UnixSeconds,
    ) -> Result<Credentials, AuthorityFault> {
        let key = NodeKey::generate();
        let issued = self.issue(&key.requested(), role, node, now)?;
        Ok(Credentials::new(issued.chain, key, vec![self.certificate.clone()])?)
    }
}

/// Prints the cluster and the pin, and nothing of the key.
impl fmt::Debug for ClusterAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterAuthority")
            .field("cluster", &self.read.cluster)
            .field("pin", &self.read.key)
            .finish_non_exhaustive()
    }
}

fn refused(error: rcgen::Error) -> AuthorityFault {
    AuthorityFault::Refused(error.to_string())
}

/// The parameters that all certificates of ours share: one name, a window, and nothing else.
fn parameters(name: String, window: ValidityWindow) -> Result<CertificateParams, AuthorityFault> {
    let epoch = date_time_ymd(1970, 1, 1);
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(name.try_into().map_err(refused)?)];
    params.not_before = epoch + Duration::from_secs(window.not_before.0);
    params.not_after = epoch + Duration::from_secs(window.not_after.0);
    Ok(params)
}

/// The parameters that all authorities share.
fn authority_parameters(
    cluster: ClusterId,
    window: ValidityWindow,
) -> Result<CertificateParams, AuthorityFault> {
    let name = cluster_text(cluster);
    let mut params = parameters(format!("{SCHEME}{name}"), window)?;
    params.distinguished_name.push(DnType::CommonName, format!("zbelastic authority {name}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// A number that cannot be guessed: for the id of a new cluster, and for the mark that
/// distinguishes a process from one with a copy of its folder.
///
/// # Panics
/// If the machine has no random numbers.
#[must_use]
pub fn random_number() -> u64 {
    let mut bytes = [0_u8; 8];
    SystemRandom::new().fill(&mut bytes).expect("the machine has random numbers");
    u64::from_le_bytes(bytes)
}

/// A number that no other certificate has: positive, and as long as it looks.
fn random_serial() -> SerialNumber {
    let mut bytes = vec![0_u8; SERIAL_BYTES];
    SystemRandom::new().fill(&mut bytes).expect("the machine has random numbers");
    bytes[0] = bytes[0] & 0x7f | 0x40;
    SerialNumber(bytes)
}
