//! A change of authority as every member follows it: the authorities that it trusts now, and the
//! progress that it reports.

use std::fmt::Display;
use std::path::PathBuf;

use zbelastic_consensus::access::{AuthorityReport, Rotation, Succession};
use zbelastic_identity::{Credentials, CredentialsFault};
use zbelastic_policy::authority::{TrustedAuthorities, trusted_authorities};

use super::journal::Journal;

/// Ticks between two looks at the authorities to trust, and two reports of it: a second.
pub const LOOK_TICKS: u32 = 100;

/// Whether a member's certificate was issued by the authority that follows.
#[must_use]
pub fn is_certified(rotation: &Rotation, own: &Credentials) -> bool {
    own.is_by(&rotation.succession.certificate.clone().into())
}

/// The same member, if it is to trust other authorities.
///
/// # Errors
/// If the agreed certificates are no authorities of this cluster.
#[must_use]
pub fn updated_credentials(
    rotation: &Rotation,
    own: &Credentials,
) -> Option<Result<Credentials, CredentialsFault>> {
    let Succession { certificate, old, .. } = &rotation.succession;
    let both = vec![old.clone().into(), certificate.clone().into()];
    let is_certified = is_certified(rotation, own);
    // By neither: the log is read from an earlier change of authority on.
    if !is_certified && !own.is_by(&both[0]) {
        return None;
    }
    let roots = match trusted_authorities(rotation.phase, is_certified) {
        TrustedAuthorities::New => vec![certificate.clone().into()],
        TrustedAuthorities::Both => both,
    };
    (own.roots() != roots).then(|| own.with_roots(roots))
}

/// What new credentials are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialsChange {
    /// A certificate that is valid for longer, or by another authority.
    Renewed,
    /// Other authorities are trusted.
    Authorities {
        /// Whether the change of authority is over, and the one before is trusted no more.
        is_over: bool,
    },
}

/// It is tried again: a renewal was begun long before the end, and authorities are looked at each second.
pub fn warn_of(change: CredentialsChange, why: &dyn Display, journal: &mut Journal) {
    journal.warn(match change {
        CredentialsChange::Renewed => format!("the certificate is not renewed: {why}"),
        CredentialsChange::Authorities { .. } => format!("another authority is not trusted: {why}"),
    });
}

/// Writes credentials beside the event loop, since a disk may take long to sync them. Returns them.
///
/// # Errors
/// If they cannot be written.
pub async fn save_credentials(
    credentials: Credentials,
    folder: PathBuf,
) -> Result<Credentials, String> {
    let save = move || credentials.save(&folder).map(|()| credentials);
    let saved = tokio::task::spawn_blocking(save).await.map_err(|error| error.to_string())?;
    saved.map_err(|error| error.to_string())
}

/// How far a member is, as it reports it to controllers.
#[must_use]
pub fn report(rotation: &Rotation, own: &Credentials, has_key: bool) -> AuthorityReport {
    AuthorityReport {
        key: rotation.succession.key,
        believes: own.roots().contains(&rotation.succession.certificate.clone().into()),
        is_certified: is_certified(rotation, own),
        has_key,
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_consensus::access::RotationPhase;
    use zbelastic_identity::{ClusterAuthority, PeerRole, UnixSeconds};
    use zbelastic_types::{ClusterId, Digest, NodeId};

    use super::*;

    fn rotation(new: &ClusterAuthority, phase: RotationPhase) -> Rotation {
        let [bridge, old] = new.bridge() else { panic!("it follows another") };
        let succession = Succession {
            key: Digest(new.pin().0),
            certificate: new.certificate().to_vec(),
            bridge: bridge.to_vec(),
            old: old.to_vec(),
        };
        Rotation { succession, phase, is_forced: false }
    }

    /// A member by this authority trusts these, in this order, once it followed.
    fn check(by: &ClusterAuthority, rotation: &Rotation, expected: &[&ClusterAuthority]) {
        let now = UnixSeconds::now();
        let own = by.credentials(PeerRole::Worker, NodeId(3), now).expect("it is made");
        let new =
            updated_credentials(rotation, &own).map(|new| new.expect("they are of one cluster"));
        let followed_again =
            new.as_ref().is_some_and(|new| updated_credentials(rotation, new).is_some());
        assert!(!followed_again, "once is enough");
        let own = new.unwrap_or(own);
        let roots: Vec<_> = expected.iter().map(|by| by.certificate().clone()).collect();
        assert_eq!(own.roots(), roots);
        own.check_own(now).expect("others that believe the same believe it");
        let report_before = report(rotation, &own, false);
        assert_eq!(
            report_before.believes,
            roots.iter().any(|root| **root == rotation.succession.certificate)
        );
    }

    #[test]
    fn a_member_believes_both_until_the_old_one_is_retired_and_it_has_another_certificate() {
        let now = UnixSeconds::now();
        let old = ClusterAuthority::create(ClusterId(7), now).expect("it is made");
        let new = old.successor(now).expect("it is made");
        let third = new.successor(now).expect("it is made");
        let of = |phase| rotation(&new, phase);
        check(&old, &of(RotationPhase::Announced), &[&old, &new]);
        for by in [&old, &new] {
            check(by, &of(RotationPhase::Issuing { until_s: 1 }), &[&old, &new]);
        }
        check(&new, &of(RotationPhase::Retired), &[&new]);
        check(&old, &of(RotationPhase::Retired), &[&old, &new]);
        // An entry that is read again changes nothing at a member that is further.
        check(&third, &of(RotationPhase::Announced), &[&third]);
        check(&third, &of(RotationPhase::Retired), &[&third]);
    }
}
