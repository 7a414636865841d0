//! Lives of clusters beside the protocol: what members keep on their disks and for whom, what they believe of
//! each other, and what they do about damage, full disks and moved clocks.
//!
//! What decides is the product's code ([`zbelastic_policy`], the state of members and tokens of
//! `zbelastic_consensus`, the store and the retention of `zbelastic_checkpoint`, the choice of schedules of
//! `zbelastic_trainer`). What is made up are disks, connections, clocks, and one member that means harm. Training
//! itself is not lived here: a checkpoint is due now and then, and layers are numbers.

mod agreed;
mod campaign;
mod check;
mod disk;
mod hostile;
mod member;
mod net;
mod options;
mod pieces;
mod plans;
mod strikes;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::failure::Failure;
use crate::log::EventLog;
use crate::quiet::quietly;

pub use campaign::{LIVES_FOR_SEEN, Report, campaign};
pub use check::{Seen, SeenCounts};
pub use options::{Fault, Options};

/// What a life came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
    /// Counts of what the life came to.
    pub seen: SeenCounts,
    /// Checkpoints that came about.
    pub checkpoints: u64,
    /// Length of the life in microseconds of virtual time.
    pub virtual_us: u64,
}

/// Lives the life of a seed. A panic of the code under test is a failure like others.
pub fn live(seed: u64, log: &mut EventLog) -> Outcome {
    let options = Options::draw(seed);
    let lived = catch_unwind(AssertUnwindSafe(|| world::World::new(seed, options, log).run()));
    lived.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let failure = Failure::panic(text.unwrap_or_else(|| "no message".to_owned()));
        let seen = SeenCounts::default();
        Outcome { failure: Some(failure), seen, checkpoints: 0, virtual_us: 0 }
    })
}

/// The same without a word, with the digest of the life.
#[must_use]
pub fn live_quietly(seed: u64) -> (Outcome, u64) {
    let mut log = EventLog::quiet();
    let outcome = quietly(|| live(seed, &mut log));
    (outcome, log.digest())
}
