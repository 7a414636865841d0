//! Known bugs, hunted: a life after the other with a switch thrown, until one fails.
//!
//! Seeds are those of every other life, and nothing shows a life the bug to look for. A bug that is
//! caught here is therefore one that a campaign would catch if it came back.

mod known_bugs;

use zbelastic_consensus::mutant;

use crate::bug;
use crate::case::LifeCase;
use crate::failure::LifeFailure;
use crate::housekeeping;
use crate::life::live;
use crate::log::EventLog;
use crate::options::ComputeModelKind;

pub use known_bugs::KnownBug;

/// A bug that was caught.
#[derive(Clone, Debug)]
pub struct CaughtBug {
    /// Number of lives until it was caught.
    pub lives: u64,
    /// The seed of the last one.
    pub seed: u64,
    /// The failure of the life in which it was caught.
    pub failure: LifeFailure,
}

impl CaughtBug {
    /// Whether it was caught by a check that is there for it, and not by accident.
    #[must_use]
    pub fn is_expected(&self, known: KnownBug) -> bool {
        self.failure.invariant.is_some_and(|found| known.expected().contains(&found))
    }
}

/// Lives one life after the other with a known bug, from `seed_first` on, until one fails.
#[must_use]
pub fn hunt(
    known: KnownBug,
    model: ComputeModelKind,
    seed_first: u64,
    lives_max: u64,
) -> Option<CaughtBug> {
    throw(known, true);
    let caught = (0..lives_max).find_map(|index| {
        let seed = seed_first + index;
        let log = &mut EventLog::quiet();
        let failure = if known.is_of_housekeeping() {
            housekeeping::live(seed, log).failure
        } else {
            live(&LifeCase::draw(seed, model), log).failure
        };
        failure.map(|failure| CaughtBug { lives: index + 1, seed, failure })
    });
    throw(known, false);
    caught
}

fn throw(known: KnownBug, is_on: bool) {
    match known {
        KnownBug::Mutant(mutant) => mutant::set(is_on.then_some(mutant)),
        KnownBug::Bug(bug) => bug::set(is_on.then_some(bug)),
    }
}
