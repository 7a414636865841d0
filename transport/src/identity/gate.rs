//! How often strangers may knock: a pure table of who did when. The time is an argument.
//!
//! Counted are attempts that got as far as a handshake, so their addresses are not forged. Two
//! windows of a minute hold an address and everyone together; on top of that an address that fails
//! waits twice as long after each failure. A token's 256 random bits need none of this: it keeps
//! noise off the log and off Raft.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// The attempts of one address in a minute.
pub const ATTEMPTS_PER_ADDRESS_MAX: usize = 10;
/// The attempts of all addresses in a minute.
pub const ATTEMPTS_MAX: usize = 100;
/// The window both are counted in.
const WINDOW: Duration = Duration::from_secs(60);
/// The wait after the first failure; it doubles with each that follows.
const DELAY_FIRST: Duration = Duration::from_secs(1);
/// The longest wait after a failure.
const DELAY_MAX: Duration = Duration::from_secs(64);
/// After how long without an attempt an address is forgotten, failures and all.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// The most addresses remembered: all that [`ATTEMPTS_MAX`] lets in before the first is forgotten.
/// Were there more, the one that was quiet for longest would be forgotten early.
const ADDRESSES_REMEMBERED_MAX: usize = ATTEMPTS_MAX * 10;

/// Why someone has to wait, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinDelay {
    /// This address came too often.
    Address {
        /// How much longer.
        wait: Duration,
    },
    /// Everyone together did.
    Everyone {
        /// How much longer.
        wait: Duration,
    },
    /// This address failed, and has not waited long enough since.
    Failures {
        /// How much longer.
        wait: Duration,
    },
}

impl JoinDelay {
    /// How many whole seconds to wait, at least one.
    #[must_use]
    pub fn seconds(self) -> u64 {
        let (Self::Address { wait } | Self::Everyone { wait } | Self::Failures { wait }) = self;
        wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
    }
}

/// Who knocked when.
#[derive(Clone, Debug, Default)]
pub struct JoinGate {
    visitors: BTreeMap<IpAddr, Visitor>,
    attempts: VecDeque<Instant>,
}

#[derive(Clone, Debug)]
struct Visitor {
    attempts: VecDeque<Instant>,
    last: Instant,
    failures: u32,
    blocked_until: Instant,
}

impl JoinGate {
    /// Whether someone at `address` may try at `now`. If so the attempt is counted. Who is sent
    /// away is not counted, so knocking harder does not keep anyone out for longer.
    ///
    /// # Errors
    /// If not, with how long to wait.
    pub fn admit(&mut self, address: IpAddr, now: Instant) -> Result<(), JoinDelay> {
        self.forget(now);
        drop_old(&mut self.attempts, now);
        let address = counted(address);
        if let Some(visitor) = self.visitors.get_mut(&address) {
            drop_old(&mut visitor.attempts, now);
            if now < visitor.blocked_until {
                return Err(JoinDelay::Failures { wait: visitor.blocked_until - now });
            }
            if let Some(wait) = full(&visitor.attempts, ATTEMPTS_PER_ADDRESS_MAX, now) {
                return Err(JoinDelay::Address { wait });
            }
        }
        if let Some(wait) = full(&self.attempts, ATTEMPTS_MAX, now) {
            return Err(JoinDelay::Everyone { wait });
        }
        self.attempts.push_back(now);
        let visitor = self.visitor(address, now);
        visitor.attempts.push_back(now);
        visitor.last = now;
        Ok(())
    }

    /// The attempt of someone at `address` came to nothing by its own fault.
    pub fn failed(&mut self, address: IpAddr, now: Instant) {
        let visitor = self.visitor(counted(address), now);
        let doublings = visitor.failures.min(DELAY_MAX.as_secs().ilog2());
        visitor.failures = visitor.failures.saturating_add(1);
        visitor.blocked_until = now + (DELAY_FIRST * (1 << doublings)).min(DELAY_MAX);
    }

    /// The attempt of someone at `address` led to a certificate: earlier failures were mistakes.
    pub fn succeeded(&mut self, address: IpAddr) {
        if let Some(visitor) = self.visitors.get_mut(&counted(address)) {
            visitor.failures = 0;
        }
    }

    /// How many addresses are remembered.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.visitors.len()
    }

    fn visitor(&mut self, address: IpAddr, now: Instant) -> &mut Visitor {
        if !self.visitors.contains_key(&address) && self.visitors.len() >= ADDRESSES_REMEMBERED_MAX
        {
            let quietest = self.visitors.iter().min_by_key(|(_, visitor)| visitor.last);
            let quietest = quietest.map(|(address, _)| *address).expect("the table is full");
            self.visitors.remove(&quietest);
        }
        self.visitors.entry(address).or_insert_with(|| Visitor {
            attempts: VecDeque::new(),
            last: now,
            failures: 0,
            blocked_until: now,
        })
    }

    fn forget(&mut self, now: Instant) {
        self.visitors.retain(|_, visitor| now.duration_since(visitor.last) < FORGET_AFTER);
    }
}

/// What counts as one address: one of IPv4, and of IPv6 a network of 64 bits, which is the least
/// that anyone is given.
pub(crate) fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

fn drop_old(attempts: &mut VecDeque<Instant>, now: Instant) {
    while attempts.front().is_some_and(|first| now.duration_since(*first) >= WINDOW) {
        attempts.pop_front();
    }
}

/// If there are as many as may be: how long until the first of them leaves the window.
fn full(attempts: &VecDeque<Instant>, maximum: usize, now: Instant) -> Option<Duration> {
    let first = attempts.front().filter(|_| attempts.len() >= maximum)?;
    Some(WINDOW.saturating_sub(now.duration_since(*first)))
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
    fn an_address_has_ten_attempts_a_minute() {
        let (mut gate, start) = (JoinGate::default(), Instant::now());
        for second in 0..10 {
            assert_eq!(gate.admit(address(1), start + Duration::from_secs(second)), Ok(()));
        }
        let late = start + MINUTE - Duration::from_nanos(1);
        let wait = Duration::from_nanos(1);
        assert_eq!(gate.admit(address(1), late), Err(JoinDelay::Address { wait }));
        assert_eq!(JoinDelay::Address { wait }.seconds(), 1);
        assert_eq!(gate.admit(address(2), late), Ok(()));
        assert_eq!(gate.admit(address(1), start + MINUTE), Ok(()));
    }

    #[test]
    fn everyone_together_has_a_hundred_attempts_a_minute() {
        let (mut gate, start) = (JoinGate::default(), Instant::now());
        for number in 0..100 {
            assert_eq!(gate.admit(address(number), start), Ok(()));
        }
        let delay = JoinDelay::Everyone { wait: MINUTE };
        assert_eq!(gate.admit(address(100), start), Err(delay));
        assert_eq!(delay.seconds(), 60);
        assert_eq!(gate.admit(address(100), start + MINUTE), Ok(()));
    }

    #[test]
    fn each_failure_doubles_the_wait_up_to_a_minute() {
        let (mut gate, mut now) = (JoinGate::default(), Instant::now());
        for seconds in [1, 2, 4, 8, 16, 32, 64, 64, 64] {
            assert_eq!(gate.admit(address(1), now), Ok(()));
            gate.failed(address(1), now);
            let wait = Duration::from_secs(seconds);
            assert_eq!(gate.admit(address(1), now), Err(JoinDelay::Failures { wait }));
            now += wait;
        }
        gate.succeeded(address(1));
        gate.failed(address(1), now);
        let wait = Duration::from_secs(1);
        assert_eq!(gate.admit(address(1), now), Err(JoinDelay::Failures { wait }));
    }

    #[test]
    fn who_is_sent_away_is_not_kept_out_for_longer() {
        let (mut gate, start) = (JoinGate::default(), Instant::now());
        (0..10).for_each(|_| assert_eq!(gate.admit(address(1), start), Ok(())));
        for second in 0..60 {
            assert!(gate.admit(address(1), start + Duration::from_secs(second)).is_err());
        }
        assert_eq!(gate.admit(address(1), start + MINUTE), Ok(()));
    }

    #[test]
    fn the_addresses_of_one_network_count_as_one() {
        let (mut gate, now) = (JoinGate::default(), Instant::now());
        for host in 0..10 {
            let host: IpAddr = format!("2001:db8:1:2::{host}").parse().unwrap();
            assert_eq!(gate.admit(host, now), Ok(()));
        }
        let same: IpAddr = "2001:db8:1:2:ffff::1".parse().unwrap();
        assert_eq!(gate.admit(same, now), Err(JoinDelay::Address { wait: MINUTE }));
        let other: IpAddr = "2001:db8:1:3::1".parse().unwrap();
        assert_eq!(gate.admit(other, now), Ok(()));
        gate.failed("10.0.0.1".parse().unwrap(), now);
        assert!(gate.admit("::ffff:10.0.0.1".parse().unwrap(), now).is_err());
    }

    #[test]
    fn the_table_is_bounded_and_quiet_addresses_leave_it() {
        let (mut gate, start) = (JoinGate::default(), Instant::now());
        for number in 0..20_000 {
            gate.failed(address(number), start);
            assert!(gate.remembered() <= ADDRESSES_REMEMBERED_MAX);
        }
        assert_eq!(gate.remembered(), ADDRESSES_REMEMBERED_MAX);
        let late = start + FORGET_AFTER;
        assert_eq!(gate.admit(address(1), late), Ok(()));
        assert_eq!(gate.remembered(), 1);
    }
}
