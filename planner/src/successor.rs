//! Which of the plans that there are after a change of the workers is the next one: the plan in force on those
//! that stay, the same with free workers at places of their own, or one that is cut anew.

use std::fmt;

use zbelastic_trainer::plan::GAIN_MIN;

/// Whether workers leave the plan in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// None does.
    Nobody,
    /// One was lost: the run stands still until the next plan begins.
    Lost,
    /// One is about to go: training goes on with it until then, but nobody knows for how long.
    Draining,
}

/// A plan that follows the one in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanSuccessor {
    /// The plan in force on the workers that stay of it: others of the same places do what those that
    /// leave did, and no layer moves between stages.
    Kept,
    /// The same with free workers at some of the places: the layers of those are sent to them, and the
    /// others keep what they have.
    Refilled,
    /// Layers are dealt to stages again.
    CutAnew,
}

/// The step of each plan that there is, in the unit of the pace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SuccessorPeriods {
    pub(crate) kept: Option<f64>,
    pub(crate) refilled: Option<f64>,
    pub(crate) cut_anew: Option<f64>,
}

/// The plan that was chosen, and the steps of all that it was chosen from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SuccessorChoice {
    /// The plan that was chosen.
    pub chosen: PlanSuccessor,
    /// The step of the plan in force on those that stay, if it fits. In the unit of the pace, like all steps.
    pub kept: Option<f64>,
    /// That of the plan with free workers at places of their own, if there are free ones and such places.
    pub refilled: Option<f64>,
    /// That of the plan that is cut anew, if there is one.
    pub cut_anew: Option<f64>,
}

impl SuccessorPeriods {
    /// The plan to follow the one in force. After a loss that is the plan which moves no layer, if it fits,
    /// and for a worker that is about to go unless another is free; then the fastest, of which one
    /// that is cut anew has to be faster by [`GAIN_MIN`].
    pub(crate) fn choose(self, departure: Departure) -> SuccessorChoice {
        let Self { kept, refilled, cut_anew } = self;
        let is_beaten = |period: f64| cut_anew.is_some_and(|other| is_shorter(other, period));
        let is_kept_at_once = match departure {
            Departure::Nobody => false,
            Departure::Lost => true,
            Departure::Draining => refilled.is_none_or(is_beaten),
        };
        let first = refilled.map(|period| (PlanSuccessor::Refilled, period));
        let second = kept.map(|period| (PlanSuccessor::Kept, period));
        let fastest = match (first, second) {
            (Some(refilled), Some(kept)) if kept.1 < refilled.1 => Some(kept),
            (first, second) => first.or(second),
        };
        let chosen = match fastest {
            Some(_) if is_kept_at_once && kept.is_some() => PlanSuccessor::Kept,
            Some((plan, period)) if !is_beaten(period) => plan,
            Some(_) | None => PlanSuccessor::CutAnew,
        };
        SuccessorChoice { chosen, kept, refilled, cut_anew }
    }
}

/// Whether the step of another plan is shorter by the share that a change has to gain.
pub(crate) fn is_shorter(other: f64, kept: f64) -> bool {
    other < kept * (1.0 - GAIN_MIN)
}

impl fmt::Display for SuccessorChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { chosen, kept, refilled, cut_anew } = *self;
        let own = match chosen {
            PlanSuccessor::Kept => kept,
            PlanSuccessor::Refilled => refilled,
            PlanSuccessor::CutAnew => cut_anew,
        };
        f.write_str(match chosen {
            PlanSuccessor::Kept => "rerouted: no layer moves between stages",
            PlanSuccessor::Refilled => {
                "refilled: free workers get places of their own, and no other layer moves"
            }
            PlanSuccessor::CutAnew if kept.or(refilled).is_some() => {
                "cut anew: its step is shorter"
            }
            PlanSuccessor::CutAnew => {
                "cut anew: others at the places of those that are gone cannot take over"
            }
        })?;
        let others = [
            (PlanSuccessor::Kept, kept, "rerouted it has"),
            (PlanSuccessor::Refilled, refilled, "with free workers at places of their own it has"),
            (PlanSuccessor::CutAnew, cut_anew, "a plan cut anew has"),
        ];
        let others = others.into_iter().filter(|(plan, ..)| *plan != chosen);
        let mut others =
            others.filter_map(|(_, period, has)| Some((period? / own?, has))).peekable();
        if others.peek().is_none() && chosen != PlanSuccessor::CutAnew {
            return write!(f, "; there is no other plan");
        }
        others.try_for_each(|(times, has)| write!(f, "; {has} {times:.2} times the step"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(
        departure: Departure,
        [kept, refilled, cut_anew]: [Option<f64>; 3],
    ) -> (PlanSuccessor, String) {
        let choice = SuccessorPeriods { kept, refilled, cut_anew }.choose(departure);
        (choice.chosen, choice.to_string())
    }

    #[test]
    fn a_lost_place_is_shared_at_once_if_that_fits() {
        let check = |periods, expected, text: &str| {
            assert_eq!(chosen(Departure::Lost, periods), (expected, text.to_owned()));
        };
        check(
            [Some(2.0), None, Some(1.5)],
            PlanSuccessor::Kept,
            "rerouted: no layer moves between stages; a plan cut anew has 0.75 times the step",
        );
        check(
            [Some(2.0), None, None],
            PlanSuccessor::Kept,
            "rerouted: no layer moves between stages; there is no other plan",
        );
        check(
            [None, None, Some(1.0)],
            PlanSuccessor::CutAnew,
            "cut anew: others at the places of those that are gone cannot take over",
        );
        check(
            [None, Some(1.0), Some(0.96)],
            PlanSuccessor::Refilled,
            "refilled: free workers get places of their own, and no other layer moves; a plan cut \
             anew has 0.96 times the step",
        );
    }

    /// Who is about to go is replaced by a free worker where that is as good as another plan, as training
    /// goes on meanwhile; otherwise it is not waited for that layers move.
    #[test]
    fn who_drains_is_replaced_or_its_place_is_shared() {
        let check = |periods, expected| {
            assert_eq!(chosen(Departure::Draining, periods).0, expected, "{periods:?}");
        };
        check([Some(2.0), None, Some(1.0)], PlanSuccessor::Kept);
        check([Some(2.0), Some(1.0), Some(0.96)], PlanSuccessor::Refilled);
        check([Some(2.0), Some(1.0), Some(0.9)], PlanSuccessor::Kept);
        check([None, Some(1.0), Some(0.9)], PlanSuccessor::CutAnew);
        check([None, None, Some(1.0)], PlanSuccessor::CutAnew);
        check([Some(2.0), None, None], PlanSuccessor::Kept);
    }

    /// Where nobody leaves a plan is changed for a shorter step alone.
    #[test]
    fn layers_move_for_a_step_that_is_shorter_by_a_share() {
        let check = |periods, expected| {
            assert_eq!(chosen(Departure::Nobody, periods).0, expected, "{periods:?}");
        };
        check([Some(2.0), Some(1.0), Some(0.96)], PlanSuccessor::Refilled);
        check([Some(2.0), Some(1.0), Some(0.94)], PlanSuccessor::CutAnew);
        check([Some(1.0), None, Some(0.96)], PlanSuccessor::Kept);
        check([Some(1.0), None, Some(0.94)], PlanSuccessor::CutAnew);
        check([Some(1.0), Some(1.1), None], PlanSuccessor::Kept);
        let (_, text) = chosen(Departure::Nobody, [Some(2.0), Some(1.0), Some(0.5)]);
        let expected = "cut anew: its step is shorter; rerouted it has 4.00 times the step; with free \
            workers at places of their own it has 2.00 times the step";
        assert_eq!(text, expected);
    }
}
