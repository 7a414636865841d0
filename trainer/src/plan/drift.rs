//! Whether a plan still fits the times that are measured, and whether another one is worth it.
//!
//! A plan is made for a pace. The measured times of its stages differ from it, and mostly that
//! does not matter: all of them may have become slower alike, or one that waits anyway runs
//! longer. How much that may be is the plan's *slack*: the share by which a stage's times may grow
//! before the step is predicted to last longer. So the measured pace is simulated, with the plan as
//! it is. If a step lasts longer than it should, all stages being as the one that has kept its
//! times best, the drift is beyond the slack; and if the best plan for the measured pace needs so
//! much less time that it pays in the steps that are left, that one should run.
//!
//! Pure: times come in, a judgement with its reason comes out. How often it is called, and how
//! often it must come to the same before it is acted on, is the caller's.

use zbelastic_types::StageIndex;

use super::{Pace, Plan, plan_period};

/// The share by which a step may grow that counts as none: a simulation is not better than that.
pub const PERIOD_GROWTH: f64 = 0.02;
/// The share of a step that another plan must save. Halves of blocks are what moves from stage to
/// stage, and a change costs the step that ran ahead; below this it would be for nothing.
pub const GAIN_MIN: f64 = 0.05;
/// The share beyond which no slack is looked for.
pub const SLACK_MAX: f64 = 4.0;
/// Halvings in the search for a slack: it is known to a thousandth of [`SLACK_MAX`].
const HALVINGS: u32 = 10;

/// The steps and the cost that decide whether another plan still pays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplanStakes {
    /// Steps of the run.
    pub steps_left: u64,
    /// The time that a change of plans lasts, in the unit of the measured pace.
    pub change: f64,
}

/// The stage or link that needs another time than it was planned with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriftSource {
    /// The passes of this stage.
    Stage(StageIndex),
    /// The messages that boundary tensors travel in between stages.
    Link,
}

/// How far a plan is from the measured pace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// The stage or link that differs most.
    pub part: DriftSource,
    /// The time that was planned for it: of a stage for a microbatch, or of a message.
    pub expected: f64,
    /// The time that was measured, in the same unit.
    pub found: f64,
    /// The share by which it might have grown.
    pub slack: f64,
    /// The share of a step that the best plan for the measured pace saves.
    pub gain: f64,
}

/// The decision about a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DriftJudgement {
    /// Nothing: a step lasts as long as it was planned to.
    Within,
    /// Nothing: there is no plan that saves [`GAIN_MIN`] of a step.
    NoBetter(Drift),
    /// Nothing: the gain over the steps that are left is less than the time of a change.
    TooLate(Drift),
    /// Another plan should run.
    Replan(Drift),
}

impl DriftJudgement {
    /// The drift, if there is one.
    #[must_use]
    pub const fn drift(&self) -> Option<&Drift> {
        match self {
            Self::Within => None,
            Self::NoBetter(drift) | Self::TooLate(drift) | Self::Replan(drift) => Some(drift),
        }
    }
}

/// Judges a plan that was made for one pace by another, that was found. `best` is called for the
/// time of a step under the best plan for it, if it comes to that; `None` if there is none.
///
/// # Panics
/// If a pace is not of this plan's model, or has times that are none.
#[must_use]
pub fn judge(
    plan: &Plan,
    (planned, found): (&Pace, &Pace),
    stakes: ReplanStakes,
    best: impl FnOnce() -> Option<f64>,
) -> DriftJudgement {
    let Some(comparison) = PaceComparison::new(plan, planned, found) else {
        return DriftJudgement::Within;
    };
    let now = plan_period(plan, found);
    let should = plan_period(plan, &comparison.expected);
    if now <= should * (1.0 + PERIOD_GROWTH) {
        return DriftJudgement::Within;
    }
    let stages_alone = Pace {
        link: planned.link,
        occupancy: planned.occupancy,
        gradients: planned.gradients.clone(),
        ..found.clone()
    };
    // A machine that is slow is slow to receive messages, too: they are to blame for the delay that
    // stages alone do not explain.
    let is_link = plan_period(plan, &stages_alone) <= should * (1.0 + PERIOD_GROWTH);
    let mut drift = if is_link { comparison.of_link() } else { comparison.of_stages() };
    let period = best().unwrap_or(now).min(now);
    drift.gain = (now - period) / now;
    if drift.gain < GAIN_MIN {
        DriftJudgement::NoBetter(drift)
    } else if (now - period) * (stakes.steps_left as f64) < stakes.change {
        DriftJudgement::TooLate(drift)
    } else {
        DriftJudgement::Replan(drift)
    }
}

/// The share by which the times of a stage may grow before a step of the plan lasts longer.
///
/// # Panics
/// If the pace is not of this plan's model, or has times that are none.
#[must_use]
pub fn slack(plan: &Plan, pace: &Pace, stage: StageIndex) -> f64 {
    let speeds = |growth: f64| {
        let speed = |other: StageIndex| match other == stage {
            true => pace.speed(other) / (1.0 + growth),
            false => pace.speed(other),
        };
        let speeds = (0..plan.placement().stage_count()).map(StageIndex).map(speed).collect();
        Pace { speeds, ..pace.clone() }
    };
    most(plan, pace, speeds)
}

/// The same for a message, as a share of the slowest stage's time for a microbatch.
fn link_slack(plan: &Plan, pace: &Pace) -> f64 {
    let slowest = stage_times(plan, pace).into_iter().fold(0.0, f64::max);
    most(plan, pace, |growth| Pace { link: pace.link + growth * slowest, ..pace.clone() })
}

/// The most that something may grow without a step that lasts longer.
fn most(plan: &Plan, pace: &Pace, grown: impl Fn(f64) -> Pace) -> f64 {
    let limit = plan_period(plan, pace) * (1.0 + PERIOD_GROWTH);
    let fits = |growth: f64| plan_period(plan, &grown(growth)) <= limit;
    if fits(SLACK_MAX) {
        return SLACK_MAX;
    }
    let mut fitting = 0.0;
    let mut beyond = SLACK_MAX;
    for _ in 0..HALVINGS {
        let middle = (fitting + beyond) / 2.0;
        if fits(middle) {
            fitting = middle;
        } else {
            beyond = middle;
        }
    }
    fitting
}

/// The time of each stage for a microbatch, all passes together.
fn stage_times(plan: &Plan, pace: &Pace) -> Vec<f64> {
    // Each replica runs its share of the microbatches.
    let replicas = f64::from(plan.placement().replica_count());
    let time = |stage: StageIndex| {
        let layers = plan.chunks_of(stage).flat_map(|(_, layers)| layers.ids());
        let total: f64 = layers.map(|layer| pace.layers[layer as usize].total()).sum();
        total / replicas / pace.speed(stage)
    };
    (0..plan.placement().stage_count()).map(StageIndex).map(time).collect()
}

/// A plan with the pace it was made for and the measured pace.
struct PaceComparison<'a> {
    plan: &'a Plan,
    /// The pace it was made for, in the unit of the measured one, all stages being as the one that
    /// has kept its times best.
    expected: Pace,
    found: &'a Pace,
    /// By stage: found over planned, and the planned time; nothing where nothing is done.
    ratios: Vec<(StageIndex, f64, f64)>,
}

impl<'a> PaceComparison<'a> {
    fn new(plan: &'a Plan, planned: &Pace, found: &'a Pace) -> Option<Self> {
        let times = stage_times(plan, planned).into_iter().zip(stage_times(plan, found));
        let ratio = |(stage, (planned, found)): (u32, (f64, f64))| {
            (planned > 0.0).then(|| (StageIndex(stage), found / planned, planned))
        };
        let ratios: Vec<_> = (0..).zip(times).filter_map(ratio).collect();
        let least = ratios.iter().map(|(_, ratio, _)| *ratio).fold(f64::INFINITY, f64::min);
        if !least.is_finite() || least <= 0.0 {
            return None;
        }
        let expected = Pace {
            layers: planned.layers.iter().map(|work| work.scaled(least)).collect(),
            // The time of an update, R, a copy or a verdict is the same whichever stage holds the
            // layers: it does not drift.
            updates: found.updates.clone(),
            recomputes: found.recomputes.clone(),
            copies: found.copies.clone(),
            verdict: found.verdict,
            ..planned.clone()
        };
        Some(Self { plan, expected, found, ratios })
    }

    /// The stage that is furthest from the ratio of the others.
    fn of_stages(&self) -> Drift {
        let mut sorted: Vec<f64> = self.ratios.iter().map(|(_, ratio, _)| *ratio).collect();
        sorted.sort_by(f64::total_cmp);
        // Of two stages the slower one drifted, as when speeds are measured.
        let usual = sorted[(sorted.len() - 1) / 2];
        let far = |ratio: f64| (ratio / usual).ln().abs();
        let furthest = self.ratios.iter().max_by(|a, b| far(a.1).total_cmp(&far(b.1)));
        let (stage, ratio, planned) = *furthest.expect("a comparison has a stage");
        Drift {
            part: DriftSource::Stage(stage),
            expected: planned * usual,
            found: planned * ratio,
            slack: slack(self.plan, &self.expected, stage),
            gain: 0.0,
        }
    }

    fn of_link(&self) -> Drift {
        Drift {
            part: DriftSource::Link,
            expected: self.expected.link + self.expected.occupancy,
            found: self.found.link + self.found.occupancy,
            slack: link_slack(self.plan, &self.expected),
            gain: 0.0,
        }
    }
}
