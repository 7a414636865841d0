//! The effects of a link on datagrams: pure, from one seed.
//!
//! A link decides about each datagram by the same number of draws under all conditions, so
//! the fate of the n-th datagram of a link follows from the seed, n and the conditions at its time.
//! The time is an input.
//!
//! A datagram keeps its place behind those that went before it, jitter or not, unless it is drawn
//! to be overtaken. So jitter and reordering are two things that can be tried apart.

use std::fmt;

use serde::{Deserialize, Serialize};

use chaos_tests::random::{DrawPurpose, Draws};

/// How long a datagram may wait for a narrow link, in microseconds; one that would wait longer is
/// lost, as with a router that has a full queue.
pub const RATE_WAIT_US_MAX: u64 = 500_000;
/// A datagram comes twice at most.
pub const COPIES_MAX: usize = 2;

/// The conditions of a directed link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkConditions {
    /// Whether every datagram is dropped.
    pub is_cut: bool,
    /// Microseconds that every datagram is under way at least.
    pub delay_us: u64,
    /// Microseconds by which a datagram is under way longer, at most.
    pub jitter_us: u64,
    /// The share of datagrams that is lost.
    pub loss: f64,
    /// The share that comes twice.
    pub duplication: f64,
    /// The share that later ones overtake.
    pub reordering: f64,
    /// How much later those come.
    pub reorder_us: u64,
    /// The share in which a bit is wrong.
    pub corruption: f64,
    /// Bytes a second; nothing limits them if it is 0.
    pub rate_bytes_s: u64,
}

impl LinkConditions {
    /// Everything passes at once.
    pub const CLEAR: Self = Self {
        is_cut: false,
        delay_us: 0,
        jitter_us: 0,
        loss: 0.0,
        duplication: 0.0,
        reordering: 0.0,
        reorder_us: 0,
        corruption: 0.0,
        rate_bytes_s: 0,
    };
    /// The conditions of a link through which nothing passes.
    pub const CUT: Self = Self { is_cut: true, ..Self::CLEAR };
}

impl fmt::Display for LinkConditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_cut {
            return f.write_str("cut");
        }
        if *self == Self::CLEAR {
            return f.write_str("clear");
        }
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let parts = [
            (self.delay_us > 0 || self.jitter_us > 0).then(|| {
                let ms = |us: u64| us as f64 / 1e3;
                format!("delay {}+{} ms", ms(self.delay_us), ms(self.jitter_us))
            }),
            (self.loss > 0.0).then(|| format!("loss {}", percent(self.loss))),
            (self.duplication > 0.0).then(|| format!("twice {}", percent(self.duplication))),
            (self.reordering > 0.0).then(|| format!("overtaken {}", percent(self.reordering))),
            (self.corruption > 0.0).then(|| format!("damaged {}", percent(self.corruption))),
            (self.rate_bytes_s > 0).then(|| format!("{} kB/s", self.rate_bytes_s / 1000)),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// The delivery of one copy of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramDelivery {
    /// The moment when it arrives, in microseconds.
    pub at_us: u64,
    /// Which bit is wrong, counted from the first.
    pub flipped_bit: Option<u64>,
}

/// The counts of a link so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkCounts {
    /// Datagrams that were sent.
    pub sent: u64,
    /// Those of which nothing came, by chance.
    pub lost: u64,
    /// Those that a cut link swallowed.
    pub cut: u64,
    /// Those that would have waited too long for a narrow link.
    pub over_rate: u64,
    /// Those that came twice.
    pub twice: u64,
    /// Those that later ones could overtake.
    pub overtaken: u64,
    /// Those that came with a wrong bit.
    pub damaged: u64,
}

/// A directed link, with its conditions and its random draws.
#[derive(Clone, Debug)]
pub struct ProxyLink {
    draws: Draws,
    conditions: LinkConditions,
    /// When the link is done with the datagrams that it has, as far as its rate goes.
    is_busy_until_us: u64,
    /// When the last datagram comes that keeps its place.
    last_us: u64,
    counts: LinkCounts,
}

/// The draws for a datagram.
struct DatagramDraw {
    is_lost: bool,
    is_twice: bool,
    is_overtaken: bool,
    is_damaged: bool,
    jitter_us: u64,
    bit: u64,
}

impl ProxyLink {
    /// The link between two sites, under these conditions.
    #[must_use]
    pub fn new(seed: u64, from: u32, to: u32, conditions: LinkConditions) -> Self {
        let place = (u64::from(from) << 32 | u64::from(to)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let draws = Draws::new(seed ^ place, DrawPurpose::Network);
        let counts = LinkCounts::default();
        Self { draws, conditions, is_busy_until_us: 0, last_us: 0, counts }
    }

    /// Sets the conditions from now on. Datagrams in flight arrive as they would have.
    pub fn set(&mut self, conditions: LinkConditions) {
        self.conditions = conditions;
    }

    /// The present conditions of the link.
    #[must_use]
    pub const fn conditions(&self) -> LinkConditions {
        self.conditions
    }

    /// The counts so far.
    #[must_use]
    pub const fn counts(&self) -> LinkCounts {
        self.counts
    }

    /// A datagram of so many bytes is sent at this moment; returns its deliveries.
    pub fn send(&mut self, now_us: u64, bytes: usize) -> [Option<DatagramDelivery>; COPIES_MAX] {
        let draw = self.draw(bytes);
        self.counts.sent += 1;
        if self.conditions.is_cut {
            self.counts.cut += 1;
            return [None; COPIES_MAX];
        }
        if draw.is_lost {
            self.counts.lost += 1;
            return [None; COPIES_MAX];
        }
        let Some(through_us) = self.queue(now_us, bytes) else {
            self.counts.over_rate += 1;
            return [None; COPIES_MAX];
        };
        let at_us = self.place(through_us + self.conditions.delay_us + draw.jitter_us, &draw);
        self.counts.damaged += u64::from(draw.is_damaged);
        let first = DatagramDelivery { at_us, flipped_bit: draw.is_damaged.then_some(draw.bit) };
        self.counts.twice += u64::from(draw.is_twice);
        // The second copy is whole: it is the network that doubled it, before it was damaged.
        let second = DatagramDelivery { at_us: at_us + draw.jitter_us, flipped_bit: None };
        [Some(first), draw.is_twice.then_some(second)]
    }

    fn draw(&mut self, bytes: usize) -> DatagramDraw {
        let conditions = self.conditions;
        // A share is drawn even if nothing depends on it, see the head of this file.
        let mut happens = |probability: f64| self.draws.share() < probability;
        let is_lost = happens(conditions.loss);
        let is_twice = happens(conditions.duplication);
        let is_overtaken = happens(conditions.reordering);
        let is_damaged = happens(conditions.corruption) && bytes > 0;
        let jitter_us = (self.draws.share() * conditions.jitter_us as f64) as u64;
        let bit = self.draws.below((bytes as u64 * 8).max(1));
        DatagramDraw { is_lost, is_twice, is_overtaken, is_damaged, jitter_us, bit }
    }

    /// When a narrow link is done with a datagram, unless that is too late.
    fn queue(&mut self, now_us: u64, bytes: usize) -> Option<u64> {
        let rate = self.conditions.rate_bytes_s;
        if rate == 0 {
            return Some(now_us);
        }
        let begin_us = self.is_busy_until_us.max(now_us);
        if begin_us - now_us > RATE_WAIT_US_MAX {
            return None;
        }
        self.is_busy_until_us = begin_us + (bytes as u64).saturating_mul(1_000_000) / rate;
        Some(self.is_busy_until_us)
    }

    /// Behind those before it, unless it is overtaken.
    fn place(&mut self, at_us: u64, draw: &DatagramDraw) -> u64 {
        if draw.is_overtaken {
            self.counts.overtaken += 1;
            return at_us + self.conditions.reorder_us;
        }
        self.last_us = self.last_us.max(at_us);
        self.last_us
    }
}

#[cfg(test)]
mod tests {
    use super::{LinkConditions, ProxyLink, RATE_WAIT_US_MAX};

    const MANY: u64 = 100_000;

    fn link(conditions: LinkConditions) -> ProxyLink {
        ProxyLink::new(7, 1, 2, conditions)
    }

    /// Datagrams of 100 bytes, one each microsecond: when their first copies come.
    fn arrivals(link: &mut ProxyLink) -> Vec<Option<u64>> {
        (0..MANY).map(|now_us| link.send(now_us, 100)[0].map(|first| first.at_us)).collect()
    }

    /// Five standard deviations around what is expected of `MANY` draws.
    fn check_share(found: u64, share: f64) {
        let many = MANY as f64;
        let expected = many * share;
        let spread = 5.0 * (many * share * (1.0 - share)).sqrt();
        assert!((found as f64 - expected).abs() <= spread, "{found} of {MANY}, not {share}");
    }

    #[test]
    fn a_clear_link_passes_everything_at_once() {
        let mut link = link(LinkConditions::CLEAR);
        assert!(arrivals(&mut link).into_iter().eq((0..MANY).map(Some)));
    }

    #[test]
    fn a_cut_link_passes_nothing() {
        let mut link = link(LinkConditions::CUT);
        assert!(arrivals(&mut link).into_iter().all(|at| at.is_none()));
        assert_eq!(link.counts().cut, MANY);
    }

    #[test]
    fn shares_are_as_requested() {
        let mut link = link(LinkConditions {
            loss: 0.2,
            duplication: 0.1,
            reordering: 0.05,
            corruption: 0.02,
            ..LinkConditions::CLEAR
        });
        let arrived = arrivals(&mut link).into_iter().flatten().count() as u64;
        let counts = link.counts();
        assert_eq!(arrived + counts.lost, MANY);
        check_share(counts.lost, 0.2);
        check_share(counts.twice, 0.8 * 0.1);
        check_share(counts.overtaken, 0.8 * 0.05);
        check_share(counts.damaged, 0.8 * 0.02);
    }

    #[test]
    fn jitter_delays_and_keeps_the_order() {
        let mut link =
            link(LinkConditions { delay_us: 500, jitter_us: 300, ..LinkConditions::CLEAR });
        let arrivals: Vec<u64> = arrivals(&mut link).into_iter().flatten().collect();
        assert!(arrivals.is_sorted());
        let late = |(sent, came): (usize, &u64)| came - sent as u64;
        let delays: Vec<u64> = arrivals.iter().enumerate().map(late).collect();
        assert_eq!((delays.iter().min() >= Some(&500), delays.iter().max()), (true, Some(&799)));
    }

    #[test]
    fn those_overtaken_come_later_than_those_behind_them() {
        let mut link =
            link(LinkConditions { reordering: 0.5, reorder_us: 40, ..LinkConditions::CLEAR });
        let arrivals: Vec<u64> = arrivals(&mut link).into_iter().flatten().collect();
        let delays = arrivals.iter().enumerate().map(|(sent, came)| came - sent as u64);
        assert!(delays.clone().all(|late| late == 0 || late == 40));
        assert_eq!(delays.filter(|late| *late == 40).count() as u64, link.counts().overtaken);
    }

    #[test]
    fn a_narrow_link_passes_its_rate_and_loses_what_would_wait_too_long() {
        // A hundred bytes in ten microseconds, and they are sent in one.
        let mut link = link(LinkConditions { rate_bytes_s: 10_000_000, ..LinkConditions::CLEAR });
        let arrivals = arrivals(&mut link);
        let passed = arrivals.iter().flatten().count() as u64;
        assert_eq!(passed + link.counts().over_rate, MANY);
        assert_eq!(arrivals[..2], [Some(10), Some(20)]);
        let waits = arrivals.iter().enumerate().filter_map(|(sent, at)| Some((*at)? - sent as u64));
        assert!(waits.clone().max() <= Some(RATE_WAIT_US_MAX + 10));
        assert!(waits.max() > Some(RATE_WAIT_US_MAX - 10));
        let last_us = arrivals.iter().flatten().max().expect("some passed");
        assert_eq!(passed, last_us / 10);
    }

    #[test]
    fn a_seed_decides_and_the_weather_before_does_not_matter() {
        let conditions =
            LinkConditions { loss: 0.5, jitter_us: 90, corruption: 0.3, ..LinkConditions::CLEAR };
        let fates =
            |link: &mut ProxyLink| (0..1000).map(|n| link.send(n * 1000, 64)).collect::<Vec<_>>();
        let mut one = link(conditions);
        let mut same = link(conditions);
        assert_eq!(fates(&mut one), fates(&mut same));
        assert_ne!(fates(&mut link(conditions)), fates(&mut ProxyLink::new(8, 1, 2, conditions)));
        assert_ne!(fates(&mut link(conditions)), fates(&mut ProxyLink::new(7, 2, 1, conditions)));
        let mut one = link(LinkConditions::CUT);
        let mut other = link(LinkConditions::CLEAR);
        fates(&mut one);
        fates(&mut other);
        one.set(conditions);
        other.set(conditions);
        let later = |link: &mut ProxyLink| {
            (2000..3000).map(|n| link.send(n * 1000, 64)).collect::<Vec<_>>()
        };
        assert_eq!(later(&mut one), later(&mut other));
    }

    #[test]
    fn a_flipped_bit_is_within_the_datagram() {
        let mut link = link(LinkConditions { corruption: 1.0, ..LinkConditions::CLEAR });
        let bits = (0..MANY).filter_map(|now_us| link.send(now_us, 3)[0]?.flipped_bit);
        let bits: Vec<u64> = bits.collect();
        assert_eq!((bits.iter().min(), bits.iter().max()), (Some(&0), Some(&23)));
        assert_eq!(link.send(MANY, 0)[0].map(|first| first.flipped_bit), Some(None));
    }

    #[test]
    fn conditions_are_printed_in_words() {
        let check = |conditions: LinkConditions, expected: &str| {
            assert_eq!(conditions.to_string(), expected)
        };
        check(LinkConditions::CLEAR, "clear");
        check(LinkConditions::CUT, "cut");
        let conditions = LinkConditions { delay_us: 1500, loss: 0.25, ..LinkConditions::CLEAR };
        check(conditions, "delay 1.5+0 ms, loss 25.0 %");
        check(LinkConditions { rate_bytes_s: 125_000, ..LinkConditions::CLEAR }, "125 kB/s");
    }
}
