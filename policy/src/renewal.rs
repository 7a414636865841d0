//! When a member requests another certificate, and where: long before its own ends, over a
//! connection that it vouches for; and if it ended or is not trusted any more, from the controllers
//! as a joiner, where its key is known.

use std::fmt::Display;

use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_identity::{UnixSeconds, ValidityWindow};

/// Ticks between two attempts of a member to renew its certificate: a minute.
pub const RENEWAL_TICKS: u32 = 6_000;
/// The same while another authority issues than the one that made the certificate: three seconds.
pub const RETRY_TICKS: u32 = 300;

/// Ticks between two checks of the administrator's certificate: a minute. A check reads the clock of
/// the machine, which jumps by days where it was suspended.
const ADMIN_CHECK_TICKS: u32 = 6_000;
/// The same after a renewal that failed: ten seconds. A command of the administrator may have written
/// its folder at the same time.
const ADMIN_RETRY_TICKS: u32 = 1_000;

/// When a controller checks the administrator's certificate in its folder, and renews it if that is
/// due. One check is under way at a time: two would write the same files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminRenewal {
    /// Ticks until the next check, while none is under way.
    ticks: u32,
    check: AdminCheck,
}

/// A check of the administrator's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdminCheck {
    /// None is under way.
    Due,
    /// One is under way.
    UnderWay,
    /// One is under way, and authorities changed meanwhile.
    Stale,
}

impl Default for AdminRenewal {
    fn default() -> Self {
        Self { ticks: ADMIN_CHECK_TICKS, check: AdminCheck::Due }
    }
}

impl AdminRenewal {
    /// A tick. Returns whether a check begins.
    pub fn handle_tick(&mut self) -> bool {
        match self.check {
            AdminCheck::UnderWay | AdminCheck::Stale => false,
            AdminCheck::Due => {
                self.ticks = self.ticks.saturating_sub(1);
                self.ticks == 0 && self.request()
            }
        }
    }

    /// A check is requested at once, because authorities changed. Returns whether it begins: behind one
    /// that is under way it does when that one ended.
    pub fn request(&mut self) -> bool {
        let before = self.check;
        self.check = match before {
            AdminCheck::Due => AdminCheck::UnderWay,
            AdminCheck::UnderWay | AdminCheck::Stale => AdminCheck::Stale,
        };
        before == AdminCheck::Due
    }

    /// The check that was under way ended. Returns whether another begins.
    pub fn end(&mut self, has_failed: bool) -> bool {
        self.ticks = if has_failed { ADMIN_RETRY_TICKS } else { ADMIN_CHECK_TICKS };
        let is_stale = self.check == AdminCheck::Stale;
        self.check = if is_stale { AdminCheck::UnderWay } else { AdminCheck::Due };
        is_stale
    }
}

/// The state of the node's own certificate, as a check found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateStatus {
    /// Time of this machine's clock.
    pub now: UnixSeconds,
    /// From when to when the certificate is good.
    pub window: ValidityWindow,
    /// Whether another authority issues than the one that made it.
    pub is_replaced: bool,
    /// Whether no controller trusts the authority that made it.
    pub is_untrusted: bool,
}

/// The next step for the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalAction {
    /// Nothing is to be done at this tick.
    Wait,
    /// Request another certificate from a connected controller.
    RequestFromController,
    /// Request one from the controllers as a node without a certificate does.
    RequestAsJoiner,
}

/// A member's checks of its own certificate.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenewalWatch {
    ticks: u32,
}

impl RenewalWatch {
    /// A tick. Checks the certificate, unless something was done for it lately, and returns the
    /// next action: a machine that was suspended does it when it wakes.
    pub fn handle_tick(&mut self, status: impl FnOnce() -> CertificateStatus) -> RenewalAction {
        if self.ticks > 0 {
            self.ticks -= 1;
            return RenewalAction::Wait;
        }
        let next = next(status());
        self.ticks = if next == RenewalAction::Wait { 0 } else { RENEWAL_TICKS };
        next
    }

    /// Makes the next check come soon: the certificate is one of an authority that is being
    /// replaced.
    pub fn check_soon(&mut self) {
        self.ticks = self.ticks.min(RETRY_TICKS);
    }

    /// Makes the next check come at once: no controller trusts the certificate.
    pub fn check_now(&mut self) {
        self.ticks = 0;
    }
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

impl CredentialsChange {
    /// The warning that it did not happen. It is tried again: a renewal was begun long before the end,
    /// and authorities are looked at each second.
    #[must_use]
    pub fn failure(self, why: &dyn Display) -> String {
        match self {
            Self::Renewed => format!("the certificate is not renewed: {why}"),
            Self::Authorities { .. } => format!("another authority is not trusted: {why}"),
        }
    }
}

/// The write of a member's credentials, which is beside its event loop. There is one at a time, so that
/// none are made of credentials that are about to be replaced.
#[derive(Debug)]
pub struct CredentialsWrite<C> {
    is_under_way: bool,
    /// The last change that waits for it.
    postponed: Option<C>,
}

impl<C> Default for CredentialsWrite<C> {
    fn default() -> Self {
        Self { is_under_way: false, postponed: None }
    }
}

impl<C> CredentialsWrite<C> {
    /// Whether credentials are being written.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// The change, if credentials may be made and written now; else it is postponed in place of one before.
    pub fn admit(&mut self, change: C) -> Option<C> {
        if self.is_under_way {
            self.postponed = Some(change);
            return None;
        }
        Some(change)
    }

    /// Credentials are being written from now on.
    pub fn begin(&mut self) {
        self.is_under_way = true;
    }

    /// They are written, or could not be. Returns the change that waited.
    pub fn end(&mut self) -> Option<C> {
        self.is_under_way = false;
        self.postponed.take()
    }
}

fn next(status: CertificateStatus) -> RenewalAction {
    let CertificateStatus { now, window, is_replaced, is_untrusted } = status;
    if now < window.renew_after() && !is_replaced && !is_untrusted {
        return RenewalAction::Wait;
    }
    let is_over = now > window.not_after && !mutant::is(Mutant::M42NeverAtTheDoor);
    if is_over || is_untrusted {
        RenewalAction::RequestAsJoiner
    } else {
        RenewalAction::RequestFromController
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_of_the_administrator_come_one_after_the_other_and_again_after_a_fault() {
        let mut renewal = AdminRenewal::default();
        assert!((1..ADMIN_CHECK_TICKS).all(|_| !renewal.handle_tick()));
        assert!(renewal.handle_tick(), "a minute is over");
        assert!(!renewal.handle_tick(), "one is under way");
        assert!(!renewal.end(false));
        assert_eq!(renewal, AdminRenewal::default());
        assert!(renewal.request(), "authorities changed");
        assert!(!renewal.request(), "another would write the same files");
        assert!(renewal.end(true), "the last change is in nobody's files yet");
        assert!(!renewal.end(true));
        assert!((1..ADMIN_RETRY_TICKS).all(|_| !renewal.handle_tick()));
        assert!(renewal.handle_tick(), "what failed is tried again soon");
    }

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_and_as_a_joiner_after_its_end() {
        let window = ValidityWindow { not_before: UnixSeconds(0), not_after: UnixSeconds(300) };
        let status = |now| {
            let now = UnixSeconds(now);
            CertificateStatus { now, window, is_replaced: false, is_untrusted: false }
        };
        assert_eq!(next(status(199)), RenewalAction::Wait);
        assert_eq!(next(status(200)), RenewalAction::RequestFromController);
        assert_eq!(next(status(300)), RenewalAction::RequestFromController);
        assert_eq!(next(status(301)), RenewalAction::RequestAsJoiner);
        let replaced = CertificateStatus { is_replaced: true, ..status(1) };
        assert_eq!(next(replaced), RenewalAction::RequestFromController);
        let untrusted = CertificateStatus { is_untrusted: true, ..status(1) };
        assert_eq!(next(untrusted), RenewalAction::RequestAsJoiner);
    }

    #[test]
    fn an_attempt_comes_each_minute_and_at_once_if_it_must() {
        let window = ValidityWindow { not_before: UnixSeconds(0), not_after: UnixSeconds(300) };
        let status = || CertificateStatus {
            now: UnixSeconds(250),
            window,
            is_replaced: false,
            is_untrusted: false,
        };
        let mut watch = RenewalWatch::default();
        let checks = |watch: &mut RenewalWatch, ticks: u32| {
            (0..ticks).filter(|_| watch.handle_tick(status) != RenewalAction::Wait).count()
        };
        assert_eq!(checks(&mut watch, 1), 1);
        assert_eq!(checks(&mut watch, RENEWAL_TICKS), 0);
        assert_eq!(checks(&mut watch, 1), 1);
        watch.check_soon();
        assert_eq!(checks(&mut watch, RETRY_TICKS), 0);
        assert_eq!(checks(&mut watch, 1), 1);
        watch.check_now();
        assert_eq!(checks(&mut watch, 1), 1);
    }

    #[test]
    fn credentials_are_written_one_after_the_other() {
        let mut write = CredentialsWrite::default();
        assert_eq!(write.admit(1), Some(1));
        write.begin();
        assert!(write.is_under_way());
        assert_eq!((write.admit(2), write.admit(3)), (None, None));
        assert_eq!(write.end(), Some(3), "the newest is made of what is written");
        assert!(!write.is_under_way());
        assert_eq!((write.admit(4), write.end()), (Some(4), None));
    }
}
