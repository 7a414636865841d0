//! Which authorities a member trusts while one follows another.

use zbelastic_consensus::access::RotationPhase;
use zbelastic_consensus::mutant::{self, Mutant};

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
