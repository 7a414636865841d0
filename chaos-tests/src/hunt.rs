//! Known bugs, hunted: a life after the other with a switch thrown, until one fails.
//!
//! Seeds are those of every other life, and nothing shows a life what to look for. What is caught
//! here is therefore what a campaign would catch if the bug came back.

mod known;

use zbelastic_consensus::mutant;

use crate::bug;
use crate::case::Case;
use crate::failure::Failure;
use crate::housekeeping;
use crate::life::live;
use crate::log::EventLog;
use crate::options::Model;

pub use known::Known;

/// A bug that was caught.
#[derive(Clone, Debug)]
pub struct Catch {
    /// Number of lives until it was caught.
    pub lives: u64,
    /// The seed of the last one.
    pub seed: u64,
    /// The failure of the life in which it was caught.
    pub failure: Failure,
}

impl Catch {
    /// Whether it was caught by a check that is there for it, and not by accident.
    #[must_use]
    pub fn is_expected(&self, known: Known) -> bool {
        self.failure.invariant.is_some_and(|found| known.expected().contains(&found))
    }
}

/// Lives one life after the other with a known bug, from `seed_first` on, until one fails.
#[must_use]
pub fn hunt(known: Known, model: Model, seed_first: u64, lives_max: u64) -> Option<Catch> {
    throw(known, true);
    let caught = (0..lives_max).find_map(|index| {
        let seed = seed_first + index;
        let log = &mut EventLog::quiet();
        let failure = if known.is_of_housekeeping() {
            housekeeping::live(seed, log).failure
        } else {
            live(&Case::draw(seed, model), log).failure
        };
        failure.map(|failure| Catch { lives: index + 1, seed, failure })
    });
    throw(known, false);
    caught
}

fn throw(known: Known, is_on: bool) {
    match known {
        Known::Mutant(mutant) => mutant::set(is_on.then_some(mutant)),
        Known::Bug(bug) => bug::set(is_on.then_some(bug)),
    }
}
