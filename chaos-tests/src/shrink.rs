//! The smallest case that still fails in the same way.
//!
//! First whole classes of faults go, then faults one by one by delta debugging (Zeller and
//! Hildebrandt, TSE 2002), then machines and steps. Faults name machines by draws and have a stream
//! of draws of their own, so a removed part leaves the rest as it is.

use crate::case::LifeCase;
use crate::failure::LifeFailure;
use crate::faults::SimulatedFault;
use crate::options::{FaultClass, LifeOptions};
use crate::report::FailedLife;

/// Lives that a shrink may need: at some 30 ms each, a dozen seconds.
pub const LIVES_MAX: u32 = 400;
/// Steps below which a run is not worth making shorter.
const STEPS_MIN: u64 = 2;

/// A case that was made smaller.
#[derive(Clone, Debug, PartialEq)]
pub struct ShrunkCase {
    /// The case after it was made smaller.
    pub case: LifeCase,
    /// How the smaller case fails.
    pub failure: LifeFailure,
    /// Number of lives that were lived for it.
    pub lives: u32,
}

impl ShrunkCase {
    /// A case that failed, as its seed drew it.
    #[must_use]
    pub fn as_drawn(life: &FailedLife) -> Self {
        Self { case: life.ticket.case(), failure: life.failure.clone(), lives: 0 }
    }
}

/// Makes a case that fails smaller, as long as it fails with the same kind and invariant. `fails`
/// returns how a case fails, if it does, and is called at most [`LIVES_MAX`] times.
pub fn shrink(
    drawn: ShrunkCase,
    fails: impl FnMut(&LifeCase) -> Option<LifeFailure>,
) -> ShrunkCase {
    let mut search = ShrinkSearch { smallest: drawn, fails };
    while search.drop_classes() | search.drop_faults() | search.lessen() {}
    search.smallest
}

struct ShrinkSearch<F> {
    smallest: ShrunkCase,
    fails: F,
}

impl<F: FnMut(&LifeCase) -> Option<LifeFailure>> ShrinkSearch<F> {
    /// Whether this case replaces the smallest.
    fn try_case(&mut self, case: LifeCase) -> bool {
        if self.smallest.lives == LIVES_MAX {
            return false;
        }
        self.smallest.lives += 1;
        let failure = (self.fails)(&case).filter(|found| found.is_like(&self.smallest.failure));
        let Some(failure) = failure else { return false };
        self.smallest = ShrunkCase { case, failure, lives: self.smallest.lives };
        true
    }

    fn drop_classes(&mut self) -> bool {
        let mut is_smaller = false;
        for class in FaultClass::ALL {
            let case = &self.smallest.case;
            let mut without = LifeCase { options: case.options.without(class), ..case.clone() };
            without.faults.retain(|timed| class_of(&timed.fault) != class);
            if without != *case {
                is_smaller |= self.try_case(without);
            }
        }
        is_smaller
    }

    /// Delta debugging without its first half: halves alone rarely fail, and are found anyway as
    /// complements of each other.
    fn drop_faults(&mut self) -> bool {
        let count_before = self.smallest.case.faults.len();
        let mut chunk = count_before.div_ceil(2);
        while chunk > 0 {
            let mut from = 0;
            while from < self.smallest.case.faults.len() {
                let mut without = self.smallest.case.clone();
                let end = without.faults.len().min(from + chunk);
                without.faults.drain(from..end);
                if !self.try_case(without) {
                    from += chunk;
                }
            }
            chunk /= 2;
        }
        self.smallest.case.faults.len() < count_before
    }

    fn lessen(&mut self) -> bool {
        let workers = |options: &mut LifeOptions, count| options.workers = count;
        let controllers = |options: &mut LifeOptions, count| options.controllers = count;
        let now = &self.smallest.case.options;
        let workers_now = now.workers;
        let controllers_now = now.controllers;
        self.lessen_machines(1..workers_now, workers)
            // As many as clusters have: an odd number.
            | self.lessen_machines((1..controllers_now).step_by(2), controllers)
            | self.lessen_steps()
            | self.drop_pace()
            | self.drop_drift()
            | self.drop_keepers()
            | self.drop_arithmetic()
    }

    /// Lets no work be long.
    fn drop_pace(&mut self) -> bool {
        let mut case = self.smallest.case.clone();
        case.options.pace.take().is_some() && self.try_case(case)
    }

    /// Lets machines be alike.
    fn drop_drift(&mut self) -> bool {
        let mut case = self.smallest.case.clone();
        case.options.drift.take().is_some() && self.try_case(case)
    }

    /// Lets all nodes reach the pieces of checkpoints.
    fn drop_keepers(&mut self) -> bool {
        let mut case = self.smallest.case.clone();
        std::mem::take(&mut case.options.piece_copies) > 0 && self.try_case(case)
    }

    /// Lets the arithmetic be the usual one.
    fn drop_arithmetic(&mut self) -> bool {
        let mut case = self.smallest.case.clone();
        case.options.arithmetic.take().is_some() && self.try_case(case)
    }

    /// The first of these numbers of machines with which the case still fails.
    fn lessen_machines(
        &mut self,
        mut counts: impl Iterator<Item = u32>,
        set: fn(&mut LifeOptions, u32),
    ) -> bool {
        counts.any(|count| {
            let mut case = self.smallest.case.clone();
            set(&mut case.options, count);
            self.try_case(case)
        })
    }

    fn lessen_steps(&mut self) -> bool {
        let steps_before = self.smallest.case.options.steps;
        let mut less = steps_before / 2;
        while less > 0 {
            let steps = self.smallest.case.options.steps.saturating_sub(less);
            let mut case = self.smallest.case.clone();
            case.options.steps = steps;
            if steps < STEPS_MIN || !self.try_case(case) {
                less /= 2;
            }
        }
        self.smallest.case.options.steps < steps_before
    }
}

/// The class that a fault is removed with.
fn class_of(fault: &SimulatedFault) -> FaultClass {
    match fault {
        SimulatedFault::CrashWorkers { count: 1, .. }
        | SimulatedFault::CrashController { .. }
        | SimulatedFault::CrashLeader { .. }
        | SimulatedFault::Transfer { .. } => FaultClass::Crashes,
        SimulatedFault::CrashWorkers { .. }
        | SimulatedFault::AllButOne { .. }
        | SimulatedFault::PowerCycle { .. } => FaultClass::Mass,
        SimulatedFault::CrashAt { .. } => FaultClass::CrashPoints,
        SimulatedFault::Pause { .. } => FaultClass::Pauses,
        SimulatedFault::Partition { .. } => FaultClass::Partitions,
        SimulatedFault::Slow { .. }
        | SimulatedFault::Hang { .. }
        | SimulatedFault::Close { .. } => FaultClass::SlowWork,
        SimulatedFault::SlowDisk { .. }
        | SimulatedFault::FailDisk { .. }
        | SimulatedFault::StaleDisk { .. }
        | SimulatedFault::LostDisk { .. }
        | SimulatedFault::FlipDisk { .. } => FaultClass::Disks,
        SimulatedFault::FailStore { .. } | SimulatedFault::FlipStore => FaultClass::Store,
        SimulatedFault::Mark { .. } => FaultClass::Numbers,
        SimulatedFault::WrongSum { .. }
        | SimulatedFault::FlipState { .. }
        | SimulatedFault::AlwaysWrong { .. } => FaultClass::SilentErrors,
        SimulatedFault::Join { .. }
        | SimulatedFault::Drain { .. }
        | SimulatedFault::Retire { .. } => FaultClass::Churn,
        SimulatedFault::LoseMajority { .. } => FaultClass::MajorityLost,
    }
}

#[cfg(test)]
mod tests {
    use super::{LIVES_MAX, ShrunkCase, class_of, shrink};
    use crate::case::LifeCase;
    use crate::failure::{Invariant, LifeFailure};
    use crate::faults::{SimulatedFault, TimedFault};
    use crate::options::{ComputeModelKind, FaultClass};

    /// A case with a pause every second and everything else as seed 3 has it.
    fn case(pauses: u64) -> LifeCase {
        let mut case = LifeCase::draw(3, ComputeModelKind::Digest);
        case.options.classes = FaultClass::ALL.to_vec();
        (case.options.workers, case.options.controllers, case.options.steps) = (5, 5, 50);
        let pause = |second: u64| SimulatedFault::Pause { draw: second, us: 1 };
        let timed = |second| TimedFault { at_us: second * 1_000_000, fault: pause(second) };
        case.faults = (0..pauses).map(timed).collect();
        case.faults.push(TimedFault { at_us: 7, fault: SimulatedFault::FlipStore });
        case
    }

    fn n1(case: LifeCase) -> ShrunkCase {
        ShrunkCase { case, failure: broken(Invariant::N1), lives: 0 }
    }

    fn broken(invariant: Invariant) -> LifeFailure {
        LifeFailure::safety(invariant, "broken")
    }

    fn has_pause(case: &LifeCase, second: u64) -> bool {
        case.faults.iter().any(|timed| timed.at_us == second * 1_000_000)
    }

    #[test]
    fn what_the_failure_needs_is_left_and_nothing_else() {
        let fails = |case: &LifeCase| {
            let options = &case.options;
            let is_needed = has_pause(case, 3) && has_pause(case, 40);
            let is_needed = is_needed && options.has(FaultClass::Loss) && options.steps >= 17;
            (is_needed && options.workers >= 3).then(|| broken(Invariant::N1))
        };
        let shrunk = shrink(n1(case(64)), fails);
        let options = &shrunk.case.options;
        assert_eq!(options.classes, [FaultClass::Loss, FaultClass::Pauses]);
        let moments: Vec<u64> = shrunk.case.faults.iter().map(|timed| timed.at_us).collect();
        assert_eq!(moments, [3_000_000, 40_000_000]);
        assert_eq!((options.workers, options.controllers, options.steps), (3, 1, 17));
        assert!(fails(&shrunk.case).is_some(), "what is left fails");
    }

    #[test]
    fn a_case_that_fails_otherwise_is_not_accepted() {
        let fails = |case: &LifeCase| {
            let invariant = if has_pause(case, 5) { Invariant::N1 } else { Invariant::S1 };
            Some(broken(invariant))
        };
        let shrunk = shrink(n1(case(8)), fails);
        assert_eq!(shrunk.failure, broken(Invariant::N1));
        assert_eq!(shrunk.case.faults.len(), 1);
        let panics = |_: &LifeCase| Some(LifeFailure::panic("elsewhere"));
        assert_eq!(shrink(n1(case(8)), panics).case, case(8));
    }

    #[test]
    fn a_shrink_ends_after_its_share_of_lives() {
        let mut lives = 0;
        let shrunk = shrink(n1(case(2000)), |case| {
            lives += 1;
            // Every second pause is needed: too many for one shrink.
            let is_needed = (0..2000).step_by(2).all(|second| has_pause(case, second));
            is_needed.then(|| broken(Invariant::N1))
        });
        assert_eq!((shrunk.lives, lives), (LIVES_MAX, LIVES_MAX));
    }

    #[test]
    fn what_a_class_draws_goes_with_it() {
        for seed in 0..300 {
            let case = LifeCase::draw(seed, ComputeModelKind::Digest);
            let classes = &case.options.classes;
            for TimedFault { fault, .. } in &case.faults {
                let is_worker_crash = matches!(fault, SimulatedFault::CrashWorkers { .. });
                let also = [FaultClass::Mass, FaultClass::Churn, FaultClass::Crashes];
                let is_shared = is_worker_crash && also.iter().any(|class| classes.contains(class));
                let is_drawn = classes.contains(&class_of(fault)) || is_shared;
                // Where no class is injected at drawn times, crashes are.
                let is_default = class_of(fault) == FaultClass::Crashes;
                assert!(is_drawn || is_default, "seed {seed}: {fault:?} of {classes:?}");
            }
        }
    }
}
