//! Known bugs, hunted: a life after the other with a switch thrown, until one fails.
//!
//! Seeds are those of every other life, and nothing tells a life what to look for. What is caught
//! here is therefore what a campaign would catch if the bug came back.

use std::fmt;

use zbelastic_consensus::mutant::{self, Mutant};

use crate::bug::{self, Bug};
use crate::case::Case;
use crate::failure::Failure;
use crate::life::live;
use crate::log::EventLog;
use crate::options::Model;

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// In the product's code.
    Mutant(Mutant),
    /// In the simulated machines or the digest model.
    Bug(Bug),
}

impl Known {
    /// All of them, by their numbers.
    pub const ALL: [Self; 23] = [
        Self::Bug(Bug::M1AckBeforeSync),
        Self::Mutant(Mutant::M2TurnUnchecked),
        Self::Bug(Bug::M3MomentsNotRestored),
        Self::Bug(Bug::M4GradientsKept),
        Self::Bug(Bug::M5OldProgram),
        Self::Mutant(Mutant::M6AppliedTwice),
        Self::Mutant(Mutant::M7CursorMoves),
        Self::Bug(Bug::M8ToldBeforeDurable),
        Self::Mutant(Mutant::M10NanPasses),
        Self::Mutant(Mutant::M11NoJointConsensus),
        Self::Mutant(Mutant::M12FencedAccepted),
        Self::Bug(Bug::M13DrawsNotRolledBack),
        Self::Bug(Bug::M14UpdatesNotRolledBack),
        Self::Bug(Bug::M15OrderDependsOnSchedule),
        Self::Mutant(Mutant::M16NormByStage),
        Self::Bug(Bug::M18RemovedTooEarly),
        Self::Mutant(Mutant::M21WaitsForTheDead),
        Self::Mutant(Mutant::M24UndoFreedAtProposal),
        Self::Mutant(Mutant::M25RejectedCounted),
        Self::Mutant(Mutant::R2GenerationUnchecked),
        Self::Mutant(Mutant::R3SealedBeforeHeld),
        Self::Mutant(Mutant::R5CheckpointBeforeSeal),
        Self::Bug(Bug::Canary),
    ];

    fn throw(self, is_on: bool) {
        match self {
            Self::Mutant(mutant) => mutant::set(is_on.then_some(mutant)),
            Self::Bug(bug) => bug::set(is_on.then_some(bug)),
        }
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mutant(mutant) => write!(f, "{mutant:?}"),
            Self::Bug(bug) => write!(f, "{bug:?}"),
        }
    }
}

/// A bug that was caught.
#[derive(Clone, Debug)]
pub struct Catch {
    /// Lives it took.
    pub lives: u64,
    /// The seed of the last one.
    pub seed: u64,
    /// How it failed.
    pub failure: Failure,
}

/// Lives one life after the other with a known bug, from `seed_first` on, until one fails.
#[must_use]
pub fn hunt(known: Known, seed_first: u64, lives_max: u64) -> Option<Catch> {
    known.throw(true);
    let caught = (0..lives_max).find_map(|index| {
        let seed = seed_first + index;
        let outcome = live(&Case::draw(seed, Model::Digest), &mut EventLog::quiet());
        outcome.failure.map(|failure| Catch { lives: index + 1, seed, failure })
    });
    known.throw(false);
    caught
}
