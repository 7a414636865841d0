//! The times of a layer of each class, as stages have timed it: beside its counted times.
//!
//! The time between two layers of a pass belongs to none of them (an operand is copied in, a
//! result out), so the measured times of layers are stretched to the times of their stage's passes
//! as a whole.

use super::{LayerWork, StageTimes};
use crate::model::{LayerClass, LayerOp, LayerTimes};

/// The times of a layer on one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerCost {
    /// Its passes for a microbatch.
    pub work: LayerWork,
    /// Its update for a step.
    pub update: f64,
    /// R for a microbatch, if there was one.
    pub recompute: Option<f64>,
}

/// By class of layers: the times of one of them, if one was timed.
pub type ClassCosts = [Option<LayerCost>; LayerClass::COUNT];

/// The times of a stage's layers, in microseconds, where passes are over one of so many slices.
#[must_use]
pub fn class_costs(times: &LayerTimes, slice_count: u32) -> ClassCosts {
    LayerClass::ALL.map(|class| {
        let once = |part| times.spent(class, part).mean_us();
        let pass = |part| once(part).map(|us| us * f64::from(slice_count));
        let f = pass(LayerOp::Forward)?;
        let b = pass(LayerOp::InputGradient)?;
        let late = pass(LayerOp::WeightGradient)?;
        let w_early = pass(LayerOp::EarlyWeightGradient).unwrap_or(0.0);
        let halves = [LayerOp::Candidate, LayerOp::Commit].map(once);
        Some(LayerCost {
            work: LayerWork { f, b, w: late + w_early, w_early },
            update: halves.into_iter().flatten().sum(),
            recompute: pass(LayerOp::Recompute),
        })
    })
}

/// A stage's layers: how many of each class, and the times of one of them there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TimedLayers {
    pub(super) counts: [f64; LayerClass::COUNT],
    /// Each layer as the share of its W that runs.
    pub(super) trained: [f64; LayerClass::COUNT],
    pub(super) costs: [LayerCost; LayerClass::COUNT],
}

impl TimedLayers {
    /// The layers of a stage whose passes lasted so long, if all of them were timed.
    pub(super) fn new(
        counts: [f64; LayerClass::COUNT],
        trained: [f64; LayerClass::COUNT],
        times: &StageTimes,
    ) -> Option<Self> {
        let mut costs = [LayerCost::default(); LayerClass::COUNT];
        for class in 0..LayerClass::COUNT {
            if counts[class] > 0.0 {
                costs[class] = times.classes[class]?;
            }
        }
        let sum = |of: fn(&LayerWork) -> f64| -> f64 {
            counts.iter().zip(&costs).map(|(count, cost)| count * of(&cost.work)).sum()
        };
        let forward = sum(|work| work.f);
        let backward = sum(|work| work.b + work.w);
        if forward <= 0.0 || backward <= 0.0 {
            return None;
        }
        let f = times.f / forward;
        let b_and_w = (times.b + times.w + times.bw) / backward;
        for LayerCost { work, .. } in &mut costs {
            *work = LayerWork {
                f: work.f * f,
                b: work.b * b_and_w,
                w: work.w * b_and_w,
                w_early: work.w_early * b_and_w,
            };
        }
        Some(Self { counts, trained, costs })
    }

    /// All layers of each class, as columns: F, B and W of each.
    pub(super) fn columns(&self) -> (Vec<f64>, Vec<f64>) {
        let each = self.counts.iter().zip(&self.trained).zip(&self.costs);
        each.flat_map(|((count, trained), LayerCost { work, .. })| {
            let passes = [(count, work.f), (count, work.b), (trained, work.w)];
            passes.map(|(work, time)| (*work, count * time))
        })
        .unzip()
    }
}

/// The times of a layer of each class on a machine of speed 1, by stages and the speed of each.
pub(super) fn costs_at_speed_one(stages: &[(TimedLayers, f64)]) -> ClassCosts {
    LayerClass::ALL.map(|class| {
        let of_class = |(layers, speed): &(TimedLayers, f64)| {
            let class = class.index();
            let count = layers.counts[class];
            let cost = layers.costs[class];
            (count > 0.0).then_some(((count, layers.trained[class]), cost, *speed))
        };
        let timed: Vec<((f64, f64), LayerCost, f64)> = stages.iter().filter_map(of_class).collect();
        let mean = |of: &dyn Fn(&LayerCost) -> Option<f64>| {
            let known = timed.iter();
            let known = known.filter_map(|((n, _), cost, speed)| Some((*n, of(cost)? * speed)));
            let (count, sum) = known.fold((0.0, 0.0), |(n, sum), (m, us)| (n + m, sum + m * us));
            (count > 0.0).then(|| sum / count)
        };
        // Of layers that are trained only in part, W is that of as many whole ones.
        let whole = |of: fn(&LayerWork) -> f64| {
            let sums = timed
                .iter()
                .map(|((n, trained), cost, speed)| (*trained, n * of(&cost.work) * speed));
            let (trained, sum) = sums.fold((0.0, 0.0), |(n, sum), (m, us)| (n + m, sum + us));
            if trained > 0.0 { sum / trained } else { 0.0 }
        };
        Some(LayerCost {
            work: LayerWork {
                f: mean(&|cost| Some(cost.work.f))?,
                b: mean(&|cost| Some(cost.work.b))?,
                w: whole(|work| work.w),
                w_early: whole(|work| work.w_early),
            },
            update: mean(&|cost| Some(cost.update))?,
            recompute: mean(&|cost| cost.recompute),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layers_cost_is_the_mean_of_what_was_spent_on_it() {
        let mut times = LayerTimes::default();
        let spent = [
            (LayerOp::Forward, 2.0),
            (LayerOp::Forward, 4.0),
            (LayerOp::InputGradient, 5.0),
            (LayerOp::WeightGradient, 1.0),
            (LayerOp::EarlyWeightGradient, 6.0),
            (LayerOp::Candidate, 10.0),
            (LayerOp::Commit, 20.0),
        ];
        for (part, us) in spent {
            times.add(LayerClass::Head, part, us);
        }
        times.add(LayerClass::Mlp, LayerOp::Forward, 1.0);
        let costs = class_costs(&times, 2);
        let work = LayerWork { f: 6.0, b: 10.0, w: 14.0, w_early: 12.0 };
        let head = LayerCost { work, update: 30.0, recompute: None };
        assert_eq!(costs, [None, None, None, Some(head)], "an MLP's B and W are not known");
        times.add(LayerClass::Head, LayerOp::Recompute, 3.0);
        let head = class_costs(&times, 1)[LayerClass::Head.index()].expect("it was timed");
        assert_eq!((head.work.f, head.recompute), (3.0, Some(3.0)));
    }

    #[test]
    fn layers_share_what_passes_took_as_a_whole() {
        let work = LayerWork { f: 1.0, b: 2.0, w: 1.0, w_early: 0.5 };
        let cost = LayerCost { work, ..LayerCost::default() };
        let classes = [None, Some(cost), Some(cost), None];
        let times = StageTimes { f: 6.0, bw: 24.0, classes, ..StageTimes::default() };
        let layers = TimedLayers::new([0.0, 1.0, 3.0, 0.0], [0.0, 1.0, 1.5, 0.0], &times)
            .expect("all were timed");
        let (counts, took) = layers.columns();
        assert_eq!(counts, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 3.0, 3.0, 1.5, 0.0, 0.0, 0.0]);
        assert_eq!(took[3..9], [1.5, 4.0, 2.0, 4.5, 12.0, 6.0]);
        assert_eq!(layers.costs[1].work.w_early, 1.0);
        let found = TimedLayers::new([1.0, 1.0, 3.0, 0.0], [1.0; 4], &times);
        assert_eq!(found, None, "one was not");
        let costs = costs_at_speed_one(&[(layers, 2.0)]);
        let w = |class: usize| costs[class].expect("it was timed").work.w;
        assert_eq!((w(1), w(2)), (4.0, 8.0), "half of the MLPs' W is that of half of them");
    }
}
