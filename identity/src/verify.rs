//! Whether a peer's certificates are trusted. A pure function of them, the roots and the time.
//!
//! In this order, so that the reason which is reported is the one that helps: size, form, cluster,
//! clock, signatures, and last whether it is a peer that the dialler expects.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use thiserror::Error;
use zbelastic_types::{ClusterId, NodeId};

use super::certificate::{CertificateFault, check_chain_size, read_member};
use super::clock::{ClockFault, UnixSeconds};
use super::peer::{PeerIdentity, cluster_text};
use super::provider::provider;
use super::role::PeerRole;

/// The peers that a dialler accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedPeer {
    /// Any member that serves.
    AnyMember,
    /// Any member with this role.
    Role(PeerRole),
    /// The member with this node id.
    Node(NodeId),
}

/// Why a peer's connection is refused.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PeerIdentityRefusal {
    /// The certificate that it presented is not that of a member.
    #[error(transparent)]
    Certificate(#[from] CertificateFault),
    /// It is of another cluster.
    #[error(
        "a certificate of cluster {}, this is cluster {}",
        cluster_text(*found),
        cluster_text(*expected)
    )]
    OtherCluster {
        /// The cluster that is expected.
        expected: ClusterId,
        /// The cluster that the peer's certificate names.
        found: ClusterId,
    },
    /// The clocks do not agree, or the certificate is too old.
    #[error(transparent)]
    Clock(#[from] ClockFault),
    /// No root of ours vouches for it.
    #[error("E2015 the certificate does not lead to this cluster's authority: {0}")]
    Untrusted(rustls::Error),
    /// It is a member, and none that others dial.
    #[error("dialled {found}, which accepts no connections")]
    ServesNobody {
        /// Identity of the peer that was met.
        found: PeerIdentity,
    },
    /// It is a member, and another one.
    #[error("dialled {expected:?} and reached {found}")]
    OtherPeer {
        /// The peers that the dialler expects.
        expected: ExpectedPeer,
        /// Identity of the peer that was met.
        found: PeerIdentity,
    },
}

/// The cluster and the roots that peers are checked against.
#[derive(Clone, Debug)]
pub(super) struct PeerCheck {
    cluster: ClusterId,
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PeerCheck {
    pub(super) fn new(
        cluster: ClusterId,
        roots: &[CertificateDer<'static>],
    ) -> Result<Self, rustls::Error> {
        let mut store = RootCertStore::empty();
        for root in roots {
            store.add(root.clone())?;
        }
        let algorithms = provider().signature_verification_algorithms;
        Ok(Self { cluster, roots: Arc::new(store), algorithms })
    }

    pub(super) fn algorithms(&self) -> &WebPkiSupportedAlgorithms {
        &self.algorithms
    }

    /// The identity of the peer that presented these certificates, if they are trusted at `now`.
    pub(super) fn check(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixSeconds,
    ) -> Result<PeerIdentity, PeerIdentityRefusal> {
        let chain: Vec<CertificateDer<'_>> =
            std::iter::once(own).chain(others).map(|part| part.as_ref().into()).collect();
        check_chain_size(&chain)?;
        let member = read_member(own)?;
        let expected = self.cluster;
        let found = member.identity.cluster;
        if expected != found {
            return Err(PeerIdentityRefusal::OtherCluster { expected, found });
        }
        let judged = member.window.tolerated(now)?;
        self.check_signatures(own, others, judged).map_err(PeerIdentityRefusal::Untrusted)?;
        Ok(member.identity)
    }

    /// The same for a peer that was dialled.
    pub(super) fn check_dialled(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixSeconds,
        expected: ExpectedPeer,
    ) -> Result<PeerIdentity, PeerIdentityRefusal> {
        let found = self.check(own, others, now)?;
        if !found.role.serves() {
            return Err(PeerIdentityRefusal::ServesNobody { found });
        }
        let is_expected = match expected {
            ExpectedPeer::AnyMember => true,
            ExpectedPeer::Role(role) => found.role == role,
            ExpectedPeer::Node(node) => found.node == node,
        };
        if is_expected {
            Ok(found)
        } else {
            Err(PeerIdentityRefusal::OtherPeer { expected, found })
        }
    }

    fn check_signatures(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        judged: UnixSeconds,
    ) -> Result<(), rustls::Error> {
        let own = ParsedCertificate::try_from(own)?;
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(judged.0));
        let algorithms = self.algorithms.all;
        // Every certificate of ours may be used at either end of a connection, so one way of
        // following signatures serves both; the rights of a role are not encoded in such usages.
        verify_server_cert_signed_by_trust_anchor(&own, &self.roots, others, now, algorithms)
    }
}
