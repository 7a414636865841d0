//! The goals that a row of a measurement is held against. Pure: numbers in, verdicts and words out.

use std::fmt;

use serde::Serialize;

use super::durations::words;

/// How a number is compared with its goal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GoalBound {
    /// The number must not be greater.
    AtMost(f64),
    /// The number must not be less.
    AtLeast(f64),
}

impl GoalBound {
    const fn number(self) -> f64 {
        match self {
            Self::AtMost(number) | Self::AtLeast(number) => number,
        }
    }

    /// Whether a number keeps to it. A value that is no number does not.
    #[must_use]
    pub fn is_met(self, measured: f64) -> bool {
        match self {
            Self::AtMost(most) => measured <= most,
            Self::AtLeast(least) => measured >= least,
        }
    }
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GoalUnit {
    /// A time in milliseconds.
    Milliseconds,
    /// One number over another.
    Ratio,
    /// A number of things.
    Count,
}

impl GoalUnit {
    fn words(self, number: f64) -> String {
        match self {
            Self::Milliseconds => words(number),
            Self::Ratio => format!("{number:.3}"),
            Self::Count => format!("{number:.0}"),
        }
    }
}

/// A goal, the measured number, and whether it is met.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GoalResult {
    /// The quantity that is measured against the goal, in words.
    pub what: String,
    /// The bound that is to be met.
    pub goal: GoalBound,
    /// The unit of both numbers.
    pub unit: GoalUnit,
    /// The measured number; nothing if it could not be.
    pub measured: Option<f64>,
    /// Whether it is met. A goal without a measured number is not.
    pub is_met: bool,
}

impl GoalResult {
    /// Holds a number against its goal.
    #[must_use]
    pub fn new(
        what: impl Into<String>,
        goal: GoalBound,
        unit: GoalUnit,
        measured: impl Into<Option<f64>>,
    ) -> Self {
        let measured = measured.into();
        let is_met = measured.is_some_and(|measured| goal.is_met(measured));
        Self { what: what.into(), goal, unit, measured, is_met }
    }

    /// The goal for an event that must not happen.
    #[must_use]
    pub fn none_of(what: impl Into<String>, count: u64) -> Self {
        Self::new(what, GoalBound::AtMost(0.0), GoalUnit::Count, count as f64)
    }

    /// The goal for an event that must happen to all of so many.
    #[must_use]
    pub fn all_of(what: impl Into<String>, count: u64, all: u64) -> Self {
        Self::new(what, GoalBound::AtLeast(all as f64), GoalUnit::Count, count as f64)
    }
}

impl fmt::Display for GoalResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.goal {
            GoalBound::AtMost(_) => "<=",
            GoalBound::AtLeast(_) => ">=",
        };
        let goal = self.unit.words(self.goal.number());
        let measured = self.measured.map_or("nothing".to_owned(), |found| self.unit.words(found));
        let verdict = if self.is_met { "met" } else { "MISSED" };
        write!(f, "    {:<46} goal {sign} {goal:<9} measured {measured:<9} {verdict}", self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::{GoalBound, GoalResult, GoalUnit};

    #[test]
    fn a_number_meets_its_goal_or_misses_it() {
        let check = |goal: GoalBound, measured: Option<f64>, expected: bool| {
            let mark = GoalResult::new("x", goal, GoalUnit::Ratio, measured);
            assert_eq!(mark.is_met, expected, "{mark}");
        };
        check(GoalBound::AtMost(1.15), Some(1.15), true);
        check(GoalBound::AtMost(1.15), Some(1.151), false);
        check(GoalBound::AtLeast(0.95), Some(0.95), true);
        check(GoalBound::AtLeast(0.95), Some(0.949), false);
        check(GoalBound::AtLeast(0.95), None, false);
        check(GoalBound::AtMost(1.0), Some(f64::NAN), false);
        assert!(GoalResult::none_of("x", 0).is_met && !GoalResult::none_of("x", 1).is_met);
        assert!(GoalResult::all_of("x", 3, 3).is_met && !GoalResult::all_of("x", 2, 3).is_met);
    }

    #[test]
    fn a_line_says_goal_measured_and_verdict() {
        let mark =
            GoalResult::new("p50", GoalBound::AtMost(1500.0), GoalUnit::Milliseconds, 1620.0);
        let words: Vec<_> = mark.to_string().split_whitespace().map(str::to_owned).collect();
        assert_eq!(words.join(" "), "p50 goal <= 1.50 s measured 1.62 s MISSED");
        let json = serde_json::to_value(&mark).expect("data");
        assert_eq!(json["goal"]["at_most"], 1500.0);
        let none =
            GoalResult::new("p50", GoalBound::AtLeast(0.9), GoalUnit::Ratio, None).to_string();
        assert!(none.contains("measured nothing") && none.ends_with("MISSED"), "{none}");
    }
}
