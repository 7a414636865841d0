//! Lives of clusters beside the protocol: what members keep on their disks and for whom, what they
//! believe of each other, and what they do about damage, full disks and moved clocks.
//!
//! What decides is the product's code ([`zbelastic_policy`], the state of members and tokens of
//! `zbelastic_consensus`, the store and the retention of `zbelastic_checkpoint`, the choice of
//! schedules of `zbelastic_trainer`). What is made up are disks, connections, clocks, and one
//! member that means harm. Training itself is not lived here: a checkpoint is due now and then, and
//! layers are numbers.

mod agreed;
mod campaign;
mod certificates;
mod check;
mod cluster;
mod disk;
mod fault_injection;
mod hostile;
mod keeping;
mod logs;
mod member;
mod net;
mod options;
mod pieces;
mod plans;
mod rotation;
mod stores;
mod surroundings;
mod texts;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::failure::LifeFailure;
use crate::log::EventLog;
use crate::quiet::quietly;

pub use campaign::{HousekeepingReport, LIVES_FOR_SEEN, campaign};
pub use check::{HousekeepingMarker, HousekeepingMarkerCounts};
pub use options::{HousekeepingFault, HousekeepingOptions};

/// What a life came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HousekeepingOutcome {
    /// Why it failed, if it did.
    pub failure: Option<LifeFailure>,
    /// Counts of what the life came to.
    pub markers: HousekeepingMarkerCounts,
    /// Checkpoints that came about.
    pub checkpoints: u64,
    /// Length of the life in microseconds of virtual time.
    pub virtual_us: u64,
}

/// Lives the life of a seed. A panic of the code under test is a failure like others.
pub fn live(seed: u64, log: &mut EventLog) -> HousekeepingOutcome {
    let options = HousekeepingOptions::draw(seed);
    let lived =
        catch_unwind(AssertUnwindSafe(|| world::HousekeepingWorld::new(seed, options, log).run()));
    lived.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let failure = LifeFailure::panic(text.unwrap_or_else(|| "no message".to_owned()));
        let seen = HousekeepingMarkerCounts::default();
        HousekeepingOutcome { failure: Some(failure), markers: seen, checkpoints: 0, virtual_us: 0 }
    })
}

/// The same without a word, with the digest of the life.
#[must_use]
pub fn live_quietly(seed: u64) -> (HousekeepingOutcome, u64) {
    let mut log = EventLog::quiet();
    let outcome = quietly(|| live(seed, &mut log));
    (outcome, log.digest())
}
