//! A change of authority as every member follows it: the authorities that it trusts, the progress that it reports, and
//! what is agreed on of the authority that follows.

use zbelastic_consensus::access::{AuthorityReport, Rotation, RotationPhase, Succession};
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_identity::{ClusterAuthority, Credentials, CredentialsFault};
use zbelastic_types::Digest;

/// The authorities of a change that a member trusts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustedAuthorities {
    /// The one before and the one that follows.
    Both,
    /// The one that follows alone.
    New,
}

/// The authorities that a member trusts in a phase of the change. It always trusts the authority of
/// its own certificate: a folder that did not would be of no use. `is_certified`: whether that is
/// the one that follows.
#[must_use]
pub fn trusted_authorities(phase: RotationPhase, is_certified: bool) -> TrustedAuthorities {
    let is_forgotten = match phase {
        RotationPhase::Announced | RotationPhase::Issuing { .. } => {
            mutant::is(Mutant::M50AuthorityForgotten)
        }
        RotationPhase::Retired => true,
    };
    if is_certified && is_forgotten { TrustedAuthorities::New } else { TrustedAuthorities::Both }
}

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

/// What a controller knows of the key of the authority that follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyKnowledge {
    /// Whether the key is here, and in use or in memory.
    pub is_here: bool,
    /// Whether the authority of this controller is the one before. If not, the log is read from an
    /// earlier change on.
    pub follows: bool,
    /// Whether this disk was searched for it.
    pub is_searched: bool,
    /// Whether another controller that is up has it.
    pub has_other: bool,
    /// Whether files of an authority are being read or written.
    pub is_at_work: bool,
}

impl KeyKnowledge {
    /// Whether to search for the key now: on this disk once, and with another controller that has it.
    /// A key that is nowhere keeps nobody at work, since another authority has to be made then.
    #[must_use]
    pub const fn searches(self) -> bool {
        let is_wanted = !self.is_here && self.follows;
        is_wanted && !self.is_at_work && (!self.is_searched || self.has_other)
    }

    /// Whether it is known if the key is here. A controller that says no before its disk was searched
    /// has a key replaced that is not lost.
    #[must_use]
    pub const fn is_complete(self) -> bool {
        self.is_here || !self.follows || self.is_searched
    }
}

/// What becomes of a request to change the authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationRequest {
    /// An authority is to be made, which is announced then.
    Make,
    /// A client's request made one already, which is not announced yet.
    Making,
    /// The change under way is to be forced.
    Force {
        /// The key of the authority that follows.
        key: Digest,
    },
    /// A change is under way: it is answered how far that is.
    UnderWay,
    /// Other files of an authority are read or written.
    Busy,
}

impl RotationRequest {
    /// Of a request to a leader, by the last change and what is being written.
    #[must_use]
    pub fn new(last: Option<&Rotation>, force: bool, is_making: bool, is_at_work: bool) -> Self {
        match last.filter(|last| last.is_under_way()) {
            Some(last) if force && !last.is_forced => Self::Force { key: last.succession.key },
            Some(_) => Self::UnderWay,
            None if is_making => Self::Making,
            None if is_at_work => Self::Busy,
            None => Self::Make,
        }
    }
}

/// What the group agrees on of an authority that follows another; nothing if it follows none.
#[must_use]
pub fn succession(next: &ClusterAuthority) -> Option<Succession> {
    let [bridge, old] = next.bridge() else { return None };
    Some(Succession {
        key: Digest(next.pin().0),
        certificate: next.certificate().to_vec(),
        bridge: bridge.to_vec(),
        old: old.to_vec(),
    })
}

/// An authority with the certificates that lead from it to the one before.
#[must_use]
pub fn bridged(authority: ClusterAuthority, succession: &Succession) -> ClusterAuthority {
    let Succession { bridge, old, .. } = succession.clone();
    authority.with_bridge(vec![bridge.into(), old.into()])
}

#[cfg(test)]
mod tests {
    use zbelastic_identity::{PeerRole, UnixSeconds};
    use zbelastic_types::{ClusterId, NodeId};

    use super::*;

    const NOW: UnixSeconds = UnixSeconds(1_700_000_000);

    #[test]
    fn the_one_before_is_trusted_until_it_is_retired_and_the_own_certificate_is_by_the_other() {
        let early = [RotationPhase::Announced, RotationPhase::Issuing { until_s: 1 }];
        for phase in early {
            for is_certified in [false, true] {
                let trusted = trusted_authorities(phase, is_certified);
                assert_eq!(trusted, TrustedAuthorities::Both, "{phase}");
            }
        }
        let retired = |is_certified| trusted_authorities(RotationPhase::Retired, is_certified);
        assert_eq!(
            [retired(false), retired(true)],
            [TrustedAuthorities::Both, TrustedAuthorities::New]
        );
    }

    #[test]
    fn what_is_agreed_on_leads_to_the_authority_before() {
        let first = ClusterAuthority::create(ClusterId(3), NOW).expect("made");
        assert_eq!(succession(&first), None, "it follows none");
        let next = first.successor(NOW).expect("made");
        let agreed = succession(&next).expect("it follows the first");
        let received = ClusterAuthority::from_secret(&next.secret()).expect("its key");
        assert!(received.bridge().is_empty(), "a key comes without");
        let received = bridged(received, &agreed);
        assert_eq!(succession(&received), Some(agreed));
    }

    fn rotation(new: &ClusterAuthority, phase: RotationPhase) -> Rotation {
        let succession = succession(new).expect("it follows another");
        Rotation { succession, phase, is_forced: false }
    }

    /// A member by this authority trusts these, in this order, once it followed.
    fn check(by: &ClusterAuthority, rotation: &Rotation, expected: &[&ClusterAuthority]) {
        let own = by.credentials(PeerRole::Worker, NodeId(3), NOW).expect("it is made");
        let new =
            updated_credentials(rotation, &own).map(|new| new.expect("they are of one cluster"));
        let followed_again =
            new.as_ref().is_some_and(|new| updated_credentials(rotation, new).is_some());
        assert!(!followed_again, "once is enough");
        let own = new.unwrap_or(own);
        let roots: Vec<_> = expected.iter().map(|by| by.certificate().clone()).collect();
        assert_eq!(own.roots(), roots);
        own.check_own(NOW).expect("others that believe the same believe it");
        let report_before = report(rotation, &own, false);
        assert_eq!(
            report_before.believes,
            roots.iter().any(|root| **root == rotation.succession.certificate)
        );
    }

    #[test]
    fn a_member_believes_both_until_the_old_one_is_retired_and_it_has_another_certificate() {
        let old = ClusterAuthority::create(ClusterId(7), NOW).expect("it is made");
        let new = old.successor(NOW).expect("it is made");
        let third = new.successor(NOW).expect("it is made");
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

    #[test]
    fn a_disk_is_searched_once_and_what_it_has_is_not_told_before() {
        let nowhere = KeyKnowledge { follows: true, ..KeyKnowledge::default() };
        assert!(nowhere.searches() && !nowhere.is_complete());
        assert!(!KeyKnowledge { is_at_work: true, ..nowhere }.searches());
        let searched = KeyKnowledge { is_searched: true, ..nowhere };
        assert!(!searched.searches() && searched.is_complete(), "it is replaced");
        assert!(KeyKnowledge { has_other: true, ..searched }.searches());
        let here = KeyKnowledge { is_here: true, ..nowhere };
        let further = KeyKnowledge { follows: false, ..nowhere };
        for known in [here, further] {
            assert!(!known.searches() && known.is_complete());
        }
    }

    #[test]
    fn one_authority_is_made_for_all_who_request_it() {
        let first = ClusterAuthority::create(ClusterId(3), NOW).expect("made");
        let next = first.successor(NOW).expect("made");
        let announced = rotation(&next, RotationPhase::Announced);
        let request = |force| RotationRequest::new(Some(&announced), force, false, true);
        assert_eq!(
            [request(false), request(true)],
            [RotationRequest::UnderWay, RotationRequest::Force { key: announced.succession.key }]
        );
        let over = rotation(&next, RotationPhase::Retired);
        for last in [None, Some(&over)] {
            let request =
                |is_making, is_at_work| RotationRequest::new(last, false, is_making, is_at_work);
            assert_eq!(request(false, false), RotationRequest::Make);
            assert_eq!(request(true, true), RotationRequest::Making);
            assert_eq!(request(false, true), RotationRequest::Busy);
        }
    }
}
