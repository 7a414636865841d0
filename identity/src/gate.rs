//! How failed joins are slowed down: a pure table of the addresses that failed. The time is an
//! argument.
//!
//! Only failures count, and only failures are delayed: a joiner that proves to hold a token is
//! accepted whatever others did from the same address. An address that fails waits twice as long
//! after each failure, and all addresses together have a number of failures in a minute; a failure
//! that comes earlier is answered with the time to wait instead of the reason. Counted are attempts
//! that got as far as a handshake, so their addresses are not forged. A token's 256 random bits
//! need none of this: it keeps noise off the log and answers a misconfigured machine with a time to
//! wait.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// The failures of all addresses in a minute that are answered with their reason.
pub const FAILURES_MAX: usize = 100;
/// The window they are counted in.
const WINDOW: Duration = Duration::from_secs(60);
/// The wait after the first failure; it doubles with each that follows.
const DELAY_FIRST: Duration = Duration::from_secs(1);
/// The longest wait after a failure.
const DELAY_MAX: Duration = Duration::from_secs(64);
/// After how long without a failure that counted an address is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// The most addresses remembered: all that [`FAILURES_MAX`] lets count before the first is
/// forgotten. Were there more, the one that was quiet for longest would be forgotten early.
const ADDRESSES_REMEMBERED_MAX: usize = FAILURES_MAX * 10;

/// Why an address that failed has to wait, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinDelay {
    /// All addresses together failed too often.
    Everyone {
        /// Time to wait from now on.
        wait: Duration,
    },
    /// This address failed before, and has not waited long enough since.
    Address {
        /// Time to wait from now on.
        wait: Duration,
    },
}

impl JoinDelay {
    /// The wait in whole seconds, at least one.
    #[must_use]
    pub fn seconds(self) -> u64 {
        let (Self::Everyone { wait } | Self::Address { wait }) = self;
        wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
    }
}

/// The addresses that failed, with the time of the last failure and of the end of the wait.
#[derive(Clone, Debug, Default)]
pub struct JoinGate {
    addresses: BTreeMap<IpAddr, FailedAddress>,
    failures: VecDeque<Instant>,
}

#[derive(Clone, Debug)]
struct FailedAddress {
    last: Instant,
    failures: u32,
    blocked_until: Instant,
}

impl JoinGate {
    /// An attempt of a joiner at `address` failed by its own fault. If the reason may be sent to
    /// it, the failure is counted. One that came too early is not, so more frequent attempts do not
    /// make any joiner wait for longer.
    ///
    /// # Errors
    /// If it came too early, with how long to wait.
    pub fn failed(&mut self, address: IpAddr, now: Instant) -> Result<(), JoinDelay> {
        self.forget(now);
        let address = network_of(address);
        let known = self.addresses.get(&address);
        if let Some(entry) = known.filter(|entry| now < entry.blocked_until) {
            return Err(JoinDelay::Address { wait: entry.blocked_until - now });
        }
        if let Some(first) = self.failures.front().filter(|_| self.failures.len() >= FAILURES_MAX) {
            let wait = WINDOW.saturating_sub(now.duration_since(*first));
            return Err(JoinDelay::Everyone { wait });
        }
        self.failures.push_back(now);
        let entry = self.entry(address, now);
        let doublings = entry.failures.min(DELAY_MAX.as_secs().ilog2());
        entry.failures = entry.failures.saturating_add(1);
        entry.last = now;
        entry.blocked_until = now + (DELAY_FIRST * (1 << doublings)).min(DELAY_MAX);
        Ok(())
    }

    /// The attempt of a joiner at `address` led to a certificate: earlier failures were mistakes.
    pub fn succeeded(&mut self, address: IpAddr) {
        self.addresses.remove(&network_of(address));
    }

    /// Number of addresses that are remembered.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.addresses.len()
    }

    fn entry(&mut self, address: IpAddr, now: Instant) -> &mut FailedAddress {
        if !self.addresses.contains_key(&address)
            && self.addresses.len() >= ADDRESSES_REMEMBERED_MAX
        {
            let quietest = self.addresses.iter().min_by_key(|(_, entry)| entry.last);
            let quietest = quietest.map(|(address, _)| *address).expect("the table is full");
            self.addresses.remove(&quietest);
        }
        let none = FailedAddress { last: now, failures: 0, blocked_until: now };
        self.addresses.entry(address).or_insert(none)
    }

    fn forget(&mut self, now: Instant) {
        self.addresses.retain(|_, entry| now.duration_since(entry.last) < FORGET_AFTER);
        while self.failures.front().is_some_and(|first| now.duration_since(*first) >= WINDOW) {
            self.failures.pop_front();
        }
    }
}

/// What counts as one address: one of IPv4, and of IPv6 a network of 64 bits, which is the least
/// that anyone is given.
#[must_use]
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number))
    }

    #[test]
    fn everyone_together_has_a_hundred_failures_a_minute() {
        let mut gate = JoinGate::default();
        let start = Instant::now();
        for number in 0..100 {
            assert_eq!(gate.failed(address(number), start), Ok(()));
        }
        let late = start + MINUTE - Duration::from_nanos(1);
        let delay = JoinDelay::Everyone { wait: Duration::from_nanos(1) };
        assert_eq!(gate.failed(address(100), late), Err(delay));
        assert_eq!(delay.seconds(), 1);
        assert_eq!(gate.failed(address(100), start + MINUTE), Ok(()));
    }

    #[test]
    fn each_failure_doubles_the_wait_up_to_a_minute() {
        let mut gate = JoinGate::default();
        let mut now = Instant::now();
        for seconds in [1, 2, 4, 8, 16, 32, 64, 64, 64] {
            assert_eq!(gate.failed(address(1), now), Ok(()));
            let wait = Duration::from_secs(seconds);
            // An attempt that comes too early does not prolong the wait.
            for _ in 0..3 {
                assert_eq!(gate.failed(address(1), now), Err(JoinDelay::Address { wait }));
            }
            now += wait;
        }
        gate.succeeded(address(1));
        assert_eq!(gate.failed(address(1), now), Ok(()));
        let wait = Duration::from_secs(1);
        assert_eq!(gate.failed(address(1), now), Err(JoinDelay::Address { wait }));
    }

    #[test]
    fn the_addresses_of_one_network_count_as_one() {
        let mut gate = JoinGate::default();
        let now = Instant::now();
        let mut failed = |text: &str| gate.failed(text.parse().unwrap(), now);
        assert_eq!(failed("2001:db8:1:2::1"), Ok(()));
        let wait = Duration::from_secs(1);
        assert_eq!(failed("2001:db8:1:2:ffff::1"), Err(JoinDelay::Address { wait }));
        assert_eq!(failed("2001:db8:1:3::1"), Ok(()));
        assert_eq!(failed("10.0.0.1"), Ok(()));
        assert_eq!(failed("::ffff:10.0.0.1"), Err(JoinDelay::Address { wait }));
    }

    #[test]
    fn the_table_is_bounded_and_quiet_addresses_leave_it() {
        let mut gate = JoinGate::default();
        let mut now = Instant::now();
        for number in 0..20_000 {
            let _ = gate.failed(address(number), now);
            now += Duration::from_millis(500);
            assert!(gate.remembered() <= ADDRESSES_REMEMBERED_MAX);
        }
        assert!(gate.remembered() > FAILURES_MAX);
        assert_eq!(gate.failed(address(1), now + FORGET_AFTER), Ok(()));
        assert_eq!(gate.remembered(), 1);
    }
}
