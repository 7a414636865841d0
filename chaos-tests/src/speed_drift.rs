//! Lives in which machines differ in speed, and change it: the reason why plans are measured and reviewed.
//!
//! In most lives an operation has any duration, so that orders vary. In these it lasts about as long as its layers need
//! on its machine: a controller measures that, and another plan is made when it pays.

use serde::{Deserialize, Serialize};
use zbelastic_types::NodeId;

use crate::queue::VirtualTime;
use crate::random::{DrawPurpose, Draws};

/// Share of lives in which speeds differ.
const SHARE: f64 = 0.1;
/// Steps of such a life, from and to: a plan is looked at after its first steps, three reviews must agree, and one
/// that was made for a drift is left alone for its steps.
const STEPS: (u64, u64) = (100, 130);
/// The factors, of which one is drawn, by which work lasts longer than on the fastest machine.
const SLOWNESS: [u64; 6] = [1, 1, 1, 2, 3, 4];
/// How far an operation is from its expected duration, as a share.
const NOISE: f64 = 0.05;

/// How speeds change in a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpeedDrift {
    /// The time that all passes of a step over all layers need on the fastest machine, in
    /// microseconds.
    pub work_us: u64,
    /// Every machine draws its speed anew after so long, in microseconds.
    pub period_us: u64,
    /// The seed of the speeds.
    pub seed: u64,
}

impl SpeedDrift {
    /// The drift of a seed, if its life has one, and the steps of that life, which last
    /// `training_us` together if `stages` share the work evenly and wait as long as they work.
    #[must_use]
    pub fn draw(seed: u64, training_us: u64, stages: u32) -> Option<(Self, u64)> {
        let mut draws = Draws::new(seed, DrawPurpose::Speed);
        if !draws.chance(SHARE) {
            return None;
        }
        let steps = draws.between(STEPS.0, STEPS.1);
        let step_us = training_us / steps;
        let work_us = (step_us * u64::from(stages) / 2).max(1);
        let period_us = (step_us * draws.between(20, 60)).max(1);
        Some((Self { work_us, period_us, seed: draws.number() }, steps))
    }

    /// The factor by which work lasts longer on this machine, now, than on the fastest one.
    #[must_use]
    pub fn slowness(&self, node: NodeId, now: VirtualTime) -> u64 {
        let period = now.0 / self.period_us;
        let of = self.seed ^ node.0.wrapping_mul(0x9E37_79B9) ^ (period << 32);
        *Draws::new(of, DrawPurpose::Speed).pick(&SLOWNESS)
    }

    /// The duration on a machine of a pass that is this share of a step's work, in microseconds;
    /// `noise` is in `[0, 1)`.
    #[must_use]
    pub fn pass_us(&self, share: f64, slowness: u64, noise: f64) -> u64 {
        let exact = self.work_us as f64 * share * slowness as f64;
        ((exact * (1.0 + NOISE * (2.0 * noise - 1.0))) as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_differ_and_change_and_a_seed_gives_the_same() {
        let drifts = (0..2_000).filter_map(|seed| SpeedDrift::draw(seed, 1_000_000, 3));
        let drifts: Vec<(SpeedDrift, u64)> = drifts.collect();
        assert!((120..280).contains(&drifts.len()), "{}", drifts.len());
        assert!(drifts.iter().any(|(_, steps)| *steps > 120), "{drifts:?}");
        let (drift, _) = drifts[0];
        let at = |node, period| drift.slowness(NodeId(node), VirtualTime(period * drift.period_us));
        assert!((1..20).any(|node| at(node, 0) != at(1, 0)), "machines differ");
        assert!((1..20).any(|period| at(1, period) != at(1, 0)), "one changes");
        assert!((0..20).all(|period| at(3, period) == at(3, period)));
        let exact = drift.pass_us(0.25, 2, 0.5);
        assert!(exact.abs_diff(drift.work_us / 2) <= 1, "{exact}");
    }
}
