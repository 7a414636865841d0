//! A change of authority as every member follows it: the authorities that it trusts now, and the
//! progress that it reports.

use std::fmt::Display;
use std::path::PathBuf;

use zbelastic_consensus::access::{AuthorityReport, Rotation, Succession};
use zbelastic_identity::{Credentials, CredentialsFault};
use zbelastic_policy::authority::{TrustedAuthorities, trusted_authorities};
use zbelastic_policy::renewal::CredentialsWrite;
use zbelastic_transport::Transport;

use super::background::BackgroundTasks;
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

/// Credentials that were written, or why they could not be.
#[derive(Debug)]
pub struct CredentialsWritten {
    change: CredentialsChange,
    saved: Result<Credentials, String>,
}

/// The credentials of this node. Others are written beside the event loop, since a disk may take long to sync
/// them, and used once a start would find them. `C` is a change that may wait for that.
pub struct OwnCredentials<C> {
    used: Credentials,
    /// The folder of the certificate and the key.
    folder: PathBuf,
    write: CredentialsWrite<C>,
}

impl<C> OwnCredentials<C> {
    /// Credentials that lie in this folder.
    pub fn new(used: Credentials, folder: PathBuf) -> Self {
        Self { used, folder, write: CredentialsWrite::default() }
    }

    /// Those that are used now.
    pub const fn used(&self) -> &Credentials {
        &self.used
    }

    /// Whether others are being written.
    pub const fn is_writing(&self) -> bool {
        self.write.is_under_way()
    }

    /// As [`CredentialsWrite::admit`].
    pub fn admit(&mut self, change: C) -> Option<C> {
        self.write.admit(change)
    }

    /// Begins to write others.
    pub fn write<T: From<CredentialsWritten> + Send + 'static>(
        &mut self,
        credentials: Credentials,
        change: CredentialsChange,
        tasks: &BackgroundTasks<T>,
    ) {
        self.write.begin();
        let folder = self.folder.clone();
        tasks.spawn(async move {
            let save = move || credentials.save(&folder).map(|()| credentials);
            let saved = match tokio::task::spawn_blocking(save).await {
                Ok(saved) => saved.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            Some(T::from(CredentialsWritten { change, saved }))
        });
    }

    /// They were written, or could not be, which is logged: they are used from now on. Returns for which change,
    /// and the one that waited.
    pub fn handle_written(
        &mut self,
        written: CredentialsWritten,
        (transport, journal): (&Transport, &mut Journal),
    ) -> (Option<CredentialsChange>, Option<C>) {
        let CredentialsWritten { change, saved } = written;
        let postponed = self.write.end();
        let used = saved.and_then(|credentials| {
            let used = transport.set_credentials(credentials.clone());
            self.used = used.map(|()| credentials).map_err(|error| error.to_string())?;
            Ok(())
        });
        let used = used.inspect_err(|why| warn_of(change, why, journal));
        (used.ok().map(|()| change), postponed)
    }
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
