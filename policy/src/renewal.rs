//! When a member requests another certificate, and where: long before its own ends, over a connection that it
//! vouches for; and if it ended or is not believed any more, at the door, where its key is known.

use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_transport::identity::{UnixSeconds, ValidityWindow};

/// Ticks between two attempts of a member to renew its certificate: a minute.
pub const RENEWAL_TICKS: u32 = 6_000;
/// The same while another authority issues than the one that made the certificate: three seconds.
pub const RETRY_TICKS: u32 = 300;

/// What a look at the own certificate sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateStatus {
    /// Time of this machine's clock.
    pub now: UnixSeconds,
    /// From when to when the certificate is good.
    pub window: ValidityWindow,
    /// Whether another authority issues than the one that made it.
    pub is_replaced: bool,
    /// Whether no controller believes the authority that made it.
    pub is_untrusted: bool,
}

/// What is to be done for the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalAction {
    /// Nothing is to be done at this tick.
    Wait,
    /// Request another certificate from a connected controller.
    RequestFromController,
    /// Request one from the controllers as a node without a certificate does.
    RequestAsJoiner,
}

/// A member's looks at its own certificate.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenewalWatch {
    ticks: u32,
}

impl RenewalWatch {
    /// A tick. Looks at the certificate, unless something was done for it lately, and yields what is to be done: a
    /// machine that was suspended does it when it wakes.
    pub fn handle_tick(&mut self, look: impl FnOnce() -> CertificateStatus) -> RenewalAction {
        if self.ticks > 0 {
            self.ticks -= 1;
            return RenewalAction::Wait;
        }
        let next = next(look());
        self.ticks = if next == RenewalAction::Wait { 0 } else { RENEWAL_TICKS };
        next
    }

    /// Has the next look come soon: the certificate is one of an authority that is being replaced.
    pub fn check_soon(&mut self) {
        self.ticks = self.ticks.min(RETRY_TICKS);
    }

    /// Has the next look come at once: nobody believes the certificate.
    pub fn check_now(&mut self) {
        self.ticks = 0;
    }
}

fn next(look: CertificateStatus) -> RenewalAction {
    let CertificateStatus { now, window, is_replaced, is_untrusted: is_shut_out } = look;
    if now < window.renew_after() && !is_replaced && !is_shut_out {
        return RenewalAction::Wait;
    }
    let is_over = now > window.not_after && !mutant::is(Mutant::M42NeverAtTheDoor);
    if is_over || is_shut_out {
        RenewalAction::RequestAsJoiner
    } else {
        RenewalAction::RequestFromController
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_and_at_the_door_after_its_end() {
        let window = ValidityWindow { not_before: UnixSeconds(0), not_after: UnixSeconds(300) };
        let look = |now| {
            let now = UnixSeconds(now);
            CertificateStatus { now, window, is_replaced: false, is_untrusted: false }
        };
        assert_eq!(next(look(199)), RenewalAction::Wait);
        assert_eq!(next(look(200)), RenewalAction::RequestFromController);
        assert_eq!(next(look(300)), RenewalAction::RequestFromController);
        assert_eq!(next(look(301)), RenewalAction::RequestAsJoiner);
        let replaced = CertificateStatus { is_replaced: true, ..look(1) };
        assert_eq!(next(replaced), RenewalAction::RequestFromController);
        let shut_out = CertificateStatus { is_untrusted: true, ..look(1) };
        assert_eq!(next(shut_out), RenewalAction::RequestAsJoiner);
    }

    #[test]
    fn an_attempt_comes_each_minute_and_at_once_if_it_must() {
        let window = ValidityWindow { not_before: UnixSeconds(0), not_after: UnixSeconds(300) };
        let look = || CertificateStatus {
            now: UnixSeconds(250),
            window,
            is_replaced: false,
            is_untrusted: false,
        };
        let mut watch = RenewalWatch::default();
        let looks = |watch: &mut RenewalWatch, ticks: u32| {
            (0..ticks).filter(|_| watch.handle_tick(look) != RenewalAction::Wait).count()
        };
        assert_eq!(looks(&mut watch, 1), 1);
        assert_eq!(looks(&mut watch, RENEWAL_TICKS), 0);
        assert_eq!(looks(&mut watch, 1), 1);
        watch.check_soon();
        assert_eq!(looks(&mut watch, RETRY_TICKS), 0);
        assert_eq!(looks(&mut watch, 1), 1);
        watch.check_now();
        assert_eq!(looks(&mut watch, 1), 1);
    }
}
