//! Lives with long work: from a tenth of a heartbeat to a thousand of them.
//!
//! In most lives work is quick beside heartbeats, as it is for a small model. In some it is not:
//! each kind of work has a length of its own there, and now and then a piece of it lasts that long.
//! Nothing that is agreed on may depend on it (rules R9 and R10).

use serde::{Deserialize, Serialize};

use crate::random::{DrawPurpose, Draws};

/// The heartbeat interval of a worker with an accurate clock, in microseconds.
pub const BEAT_US: u64 = 200_000;
/// Share of lives with long work.
const SHARE: f64 = 0.12;
/// The shortest and the longest work, in tenths of heartbeats, as powers of ten.
const TENTHS_EXPONENTS: (f64, f64) = (0.0, 4.0);
/// The most time that all the long work of a life needs together: a life is to end.
pub const LONG_US_MAX: u64 = 600_000_000;
/// Share of a kind of work that lasts as long as the options of the life demand: operations are
/// many.
const LONG_OPS: f64 = 0.01;
const LONG_TRANSFERS: f64 = 0.2;
const LONG_ANSWERS: f64 = 0.6;
/// Share of long answers that never come, because the process that owes them gets no further.
pub const STUCK_SHARE: f64 = 0.12;

/// Work that may last long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongWork {
    /// An operation of a stage.
    Op,
    /// Layers are hashed for an inventory.
    Hash,
    /// Layers that have come are brought to where they are used.
    Load,
    /// A layer is given to another node.
    Serve,
    /// A layer of a checkpoint is read.
    Read,
    /// A layer of a checkpoint is written.
    Write,
}

/// The durations of long work, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkDurations {
    /// The duration of an operation of a stage.
    pub op_us: u64,
    /// The time that hashing the layers of an inventory needs.
    pub hash_us: u64,
    /// The time that loading a plan needs.
    pub load_us: u64,
    /// A layer is sent from one node to another.
    pub serve_us: u64,
    /// The time that reading or writing a layer of a checkpoint needs.
    pub disk_us: u64,
}

impl WorkDurations {
    /// The pace of a seed, if its life has one.
    #[must_use]
    pub fn draw(seed: u64) -> Option<Self> {
        let mut draws = Draws::new(seed, DrawPurpose::Pace);
        if !draws.chance(SHARE) {
            return None;
        }
        let (low, high) = TENTHS_EXPONENTS;
        let mut us = || {
            let tenths = 10f64.powf(low + (high - low) * draws.share());
            (tenths * BEAT_US as f64 / 10.0) as u64
        };
        let op_us = us();
        let hash_us = us();
        let load_us = us();
        let serve_us = us();
        let disk_us = us();
        Some(Self { op_us, hash_us, load_us, serve_us, disk_us })
    }

    /// The duration of long work of a kind, and the share of its pieces that last so long.
    #[must_use]
    pub fn of(&self, work: LongWork) -> (u64, f64) {
        match work {
            LongWork::Op => (self.op_us, LONG_OPS),
            LongWork::Hash => (self.hash_us, LONG_ANSWERS),
            LongWork::Load => (self.load_us, LONG_ANSWERS),
            LongWork::Serve => (self.serve_us, LONG_TRANSFERS),
            LongWork::Read | LongWork::Write => (self.disk_us, LONG_TRANSFERS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BEAT_US, WorkDurations};

    #[test]
    fn work_takes_from_a_tenth_of_a_heartbeat_to_a_thousand() {
        let paces: Vec<WorkDurations> = (0..2_000).filter_map(WorkDurations::draw).collect();
        assert!((120..400).contains(&paces.len()), "{}", paces.len());
        let hashes: Vec<u64> = paces.iter().map(|pace| pace.hash_us).collect();
        assert!(hashes.iter().all(|us| (BEAT_US / 10..=1000 * BEAT_US).contains(us)));
        for (low, high) in [(BEAT_US / 10, BEAT_US), (BEAT_US, 100 * BEAT_US)] {
            assert!(hashes.iter().any(|us| (low..high).contains(us)));
        }
        assert!(hashes.iter().any(|us| *us > 900 * BEAT_US));
    }
}
