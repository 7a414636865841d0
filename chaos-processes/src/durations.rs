//! Durations: sorted, and reported by quantiles.

use serde::Serialize;

/// Times in milliseconds, sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SortedDurations {
    sorted_ms: Vec<f64>,
}

/// The quantiles of some times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DurationQuantiles {
    /// Number of durations that were measured.
    pub count: usize,
    /// Half of them are at most this.
    pub p50_ms: f64,
    /// Ninety-nine of a hundred are at most this.
    pub p99_ms: f64,
    /// The longest of them.
    pub max_ms: f64,
}

impl SortedDurations {
    /// Adds a time, in milliseconds.
    pub fn add(&mut self, ms: f64) {
        let place = self.sorted_ms.partition_point(|other| *other < ms);
        self.sorted_ms.insert(place, ms);
    }

    /// The quantiles of the times; nothing if there are none.
    #[must_use]
    pub fn quantiles(&self) -> Option<DurationQuantiles> {
        let max_ms = *self.sorted_ms.last()?;
        let p50_ms = self.at(50);
        let p99_ms = self.at(99);
        Some(DurationQuantiles { count: self.sorted_ms.len(), p50_ms, p99_ms, max_ms })
    }

    /// The smallest time that so many of a hundred do not exceed.
    fn at(&self, hundredth: usize) -> f64 {
        let rank = (self.sorted_ms.len() * hundredth).div_ceil(100);
        self.sorted_ms[rank.max(1) - 1]
    }
}

impl Extend<f64> for SortedDurations {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, times: I) {
        times.into_iter().for_each(|ms| self.add(ms));
    }
}

impl FromIterator<f64> for SortedDurations {
    fn from_iter<I: IntoIterator<Item = f64>>(times: I) -> Self {
        let mut all = Self::default();
        all.extend(times);
        all
    }
}

/// A time as a person reads it.
#[must_use]
pub fn words(ms: f64) -> String {
    if ms < 1000.0 { format!("{ms:.0} ms") } else { format!("{:.2} s", ms / 1000.0) }
}

#[cfg(test)]
mod tests {
    use super::{SortedDurations, words};

    #[test]
    fn quantiles_are_times_that_were_there() {
        let check = |times: &[f64], expected: Option<(f64, f64, f64)>| {
            let found = times.iter().copied().collect::<SortedDurations>().quantiles();
            assert_eq!(found.map(|found| (found.p50_ms, found.p99_ms, found.max_ms)), expected);
        };
        check(&[], None);
        check(&[7.0], Some((7.0, 7.0, 7.0)));
        check(&[3.0, 1.0], Some((1.0, 3.0, 3.0)));
        check(&[3.0, 1.0, 2.0], Some((2.0, 3.0, 3.0)));
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        check(&hundred, Some((50.0, 99.0, 100.0)));
        let more: Vec<f64> = (1..=101).map(f64::from).collect();
        check(&more, Some((51.0, 100.0, 101.0)));
    }

    #[test]
    fn long_times_are_printed_in_seconds() {
        assert_eq!(words(999.4), "999 ms");
        assert_eq!(words(1000.0), "1.00 s");
    }
}
