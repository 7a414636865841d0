//! The measured times of passes, as a pace: how fast each stage's machine is, and how long the work
//! lasts on a machine of speed 1.
//!
//! A stage reports the time of its passes as a whole, and the share of it that the layers of each
//! class needed. So a layer that is slower than it is counted (the head beside a large softmax, the
//! embedding, which is no product at all) is distinguished from a machine that is slow. Where
//! layers were not timed, speeds follow from the work of a stage as it is counted, and how F, B and
//! W compare is common to all: then such a layer makes its stage look slow, and the next plan gives
//! the stage less to do.

use std::cmp::Ordering;

use super::layer_costs::{TimedLayers, costs_at_speed_one};
use super::rates::{MachineSample, rates, speeds};
use super::work::trained_shares;
use super::{ClassCosts, LayerCost, LayerWork, Pace, layer_work};
use crate::model::{LayerClass, MicrobatchShape, ModelConfig, model_layers};
use zbelastic_types::LayerId;

/// The measured times of a stage, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageTimes {
    /// F of a microbatch through all chunks of the stage.
    pub f: f64,
    /// B of the same microbatch.
    pub b: f64,
    /// W of it, WE included.
    pub w: f64,
    /// B and W of it where they are one pass.
    pub bw: f64,
    /// The update of a step.
    pub update: f64,
    /// Times of a layer of each class, where layers were timed.
    pub classes: ClassCosts,
    /// Copies to the second store and back, all of a step.
    pub copies: f64,
}

impl StageTimes {
    /// All passes of a microbatch.
    #[must_use]
    pub fn passes(&self) -> f64 {
        self.f + self.b + self.w + self.bw
    }

    /// F, B and W; a pass that does both B and W is shared out as it is counted.
    fn split(&self, work: LayerWork) -> [f64; 3] {
        let share = work.b / (work.b + work.w).max(f64::MIN_POSITIVE);
        [self.f, self.b + self.bw * share, self.w + self.bw * (1.0 - share)]
    }
}

/// A stage that was timed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageSample {
    /// The work of its layers for a microbatch, as it is counted.
    pub work: LayerWork,
    /// Weights of its layers.
    pub weights: f64,
    /// Layers of each class.
    pub layers: [f64; LayerClass::COUNT],
    /// The same, each as the share of its W that runs: less where tensors are frozen.
    pub trained: [f64; LayerClass::COUNT],
    /// The counted time of its copies of a step ([`Pace::estimated`]).
    pub copied: f64,
    /// Speed that its machine reports of itself.
    pub reported_speed: f64,
    /// The measured times of its passes, update and copies.
    pub times: StageTimes,
}

impl StageSample {
    /// The sample of a stage with these layers.
    #[must_use]
    pub fn of_layers(
        model: &ModelConfig,
        shape: MicrobatchShape,
        layers: impl Iterator<Item = u32>,
        (reported_speed, times): (f64, StageTimes),
    ) -> Self {
        let works = layer_work(model, shape);
        let specs = model_layers(model);
        let work = LayerWork::default();
        let none = [0.0; LayerClass::COUNT];
        let mut sample = Self {
            work,
            weights: 0.0,
            layers: none,
            trained: none,
            copied: 0.0,
            reported_speed,
            times,
        };
        let shares = trained_shares(model);
        for layer in layers {
            let class = LayerClass::of(model.layer_kind(LayerId(layer))).index();
            let layer = layer as usize;
            sample.work = sample.work + works[layer];
            sample.weights += specs[layer].trained_floats() as f64;
            sample.layers[class] += 1.0;
            sample.trained[class] += shares[layer];
        }
        sample
    }

    /// The same where a microbatch runs through the layers of one replica of so many.
    #[must_use]
    pub fn per_replica(mut self, replica_count: u32) -> Self {
        let share = f64::from(replica_count).recip();
        let LayerWork { f, b, w, w_early } = &mut self.work;
        let counts = self.layers.iter_mut().chain(&mut self.trained);
        [f, b, w, w_early].into_iter().chain(counts).for_each(|each| *each *= share);
        self
    }

    /// Whether the sample can be used: the stage was given work, and its passes have a duration.
    fn is_informative(&self) -> bool {
        let times =
            [self.times.passes(), self.times.update, self.times.copies, self.reported_speed];
        let are_times = times.iter().all(|time| time.is_finite() && *time >= 0.0);
        // The embedding is no product, so it is counted as no work; it may have been timed.
        let has_work = self.work.total() > 0.0 || self.by_class().is_some();
        are_times && self.times.passes() > 0.0 && has_work && self.reported_speed > 0.0
    }

    fn as_counted(&self) -> MachineSample {
        let work = vec![self.work.f, self.work.b, self.work.w];
        MachineSample {
            reported_speed: self.reported_speed,
            work,
            times: self.times.split(self.work).to_vec(),
        }
    }

    fn by_class(&self) -> Option<(MachineSample, TimedLayers)> {
        let layers = TimedLayers::new(self.layers, self.trained, &self.times)?;
        let (work, times) = layers.columns();
        Some((MachineSample { reported_speed: self.reported_speed, work, times }, layers))
    }
}

/// The times of work on a machine of speed 1, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// A floating-point operation of F, as it is counted.
    pub f_us: f64,
    /// A floating-point operation of B.
    pub b_us: f64,
    /// A floating-point operation of W.
    pub w_us: f64,
    /// The update of a weight.
    pub update_us: f64,
    /// The measured time of copies over their counted time, if there were any.
    pub copies_us: Option<f64>,
    /// The time of a layer; where that is not known, counted work lasts as long as the fields
    /// above give.
    pub classes: ClassCosts,
}

/// The times of work, and by stage the speed it was done at: `None` for a stage whose sample cannot
/// be used. Of stages as fast as they report, half are above speed and half below; a machine's
/// speed is given in the unit in which machines report theirs. `None` if no sample can be used.
#[must_use]
pub fn calibrate(stages: &[StageSample]) -> Option<(Calibration, Vec<Option<f64>>)> {
    let informative: Vec<&StageSample> =
        stages.iter().filter(|stage| stage.is_informative()).collect();
    let counted: Vec<MachineSample> = informative.iter().map(|stage| stage.as_counted()).collect();
    let timed: Option<Vec<_>> = informative.iter().map(|stage| stage.by_class()).collect();
    let (columns, layers): (Vec<MachineSample>, Vec<TimedLayers>) = match timed {
        Some(timed) => timed.into_iter().unzip(),
        None => (counted.clone(), Vec::new()),
    };
    let mut found = speeds(&columns);
    let ratios = informative.iter().zip(&found).map(|(stage, speed)| speed / stage.reported_speed);
    let middle = median(ratios, f64::total_cmp)?;
    found.iter_mut().for_each(|speed| *speed /= middle);
    let updates = informative.iter().zip(&found);
    let update =
        |(stage, speed): (&&StageSample, &f64)| stage.times.update * speed / stage.weights.max(1.0);
    let update_us = median(updates.map(update), f64::total_cmp)?;
    let [f_us, b_us, w_us] = rates(&counted, &found)[..] else { return None };
    let copies_us = copies_us(informative.iter().copied().zip(found.iter().copied()));
    let layers: Vec<(TimedLayers, f64)> = layers.into_iter().zip(found.iter().copied()).collect();
    let classes = costs_at_speed_one(&layers);
    let mut found = found.into_iter();
    let speeds = stages.iter().map(|stage| stage.is_informative().then(|| found.next()).flatten());
    let calibration = Calibration { f_us, b_us, w_us, update_us, copies_us, classes };
    Some((calibration, speeds.collect()))
}

/// The measured time of copies over their counted time.
fn copies_us<'a>(stages: impl Iterator<Item = (&'a StageSample, f64)>) -> Option<f64> {
    let copying = stages.filter(|(stage, _)| stage.copied > 0.0);
    let (counted, measured) = copying.fold((0.0, 0.0), |(counted, measured), (stage, speed)| {
        (counted + stage.copied, measured + stage.times.copies * speed)
    });
    (counted > 0.0).then(|| measured / counted)
}

/// The median of measurements, if there are any: of an even number the upper of the middle two, so
/// that of two machines the slower one is slow and not the faster one fast.
#[must_use]
pub fn median<T: Copy>(
    measurements: impl IntoIterator<Item = T>,
    compare: impl FnMut(&T, &T) -> Ordering,
) -> Option<T> {
    let mut sorted: Vec<T> = measurements.into_iter().collect();
    sorted.sort_unstable_by(compare);
    sorted.get(sorted.len() / 2).copied()
}

/// Speeds closer than this share to what a machine reports count as that: measurements of a
/// machine that others use too varies by as much.
const REPORTED_SPEED_TOLERANCE: f64 = 0.15;
/// The share by which rounded speeds lie apart beyond.
const SPEEDS_APART: f64 = 0.1;

/// A speed without its noise, relative to what a machine reports of itself.
#[must_use]
pub fn rounded_speed(speed: f64) -> f64 {
    let far = speed.ln();
    let step = SPEEDS_APART.ln_1p();
    if far.abs() < REPORTED_SPEED_TOLERANCE.ln_1p() {
        1.0
    } else {
        ((far / step).round() * step).exp()
    }
}

impl Calibration {
    /// The time of counted work.
    fn of_counted(&self, work: LayerWork) -> LayerWork {
        LayerWork {
            f: work.f * self.f_us,
            b: work.b * self.b_us,
            w: work.w * self.w_us,
            w_early: work.w_early * self.w_us,
        }
    }

    /// The same, with classes of layers left as they were known before where their measured times
    /// differ from that by no more than machines vary: the times a plan is made with do not follow
    /// noise. All may have become slower alike, so a class is held against the halves of blocks.
    #[must_use]
    pub fn steadied(self, before: Option<&Self>) -> Self {
        let Some(before) = before else { return self };
        let blocks = |of: &Self| -> Option<f64> {
            let halves = [LayerClass::Attention, LayerClass::Mlp];
            halves.map(|class| Some(of.classes[class.index()]?.work.total())).into_iter().sum()
        };
        let Some((now, then)) = blocks(&self).zip(blocks(before)) else { return self };
        let scale = now / then.max(f64::MIN_POSITIVE);
        let steady = |(found, was): (&Option<LayerCost>, &Option<LayerCost>)| {
            let (found, was) = ((*found)?, was.or(*found)?);
            let share = found.work.total() / (was.work.total() * scale).max(f64::MIN_POSITIVE);
            let is_as_before = share.ln().abs() < REPORTED_SPEED_TOLERANCE.ln_1p();
            let work = if is_as_before { was.work.scaled(scale) } else { found.work };
            Some(LayerCost { work, ..found })
        };
        let mut each = self.classes.iter().zip(&before.classes).map(steady);
        Self { classes: self.classes.map(|_| each.next().flatten()), ..self }
    }
}

impl Pace {
    /// As it was measured, in microseconds.
    #[must_use]
    pub fn calibrated(
        model: &ModelConfig,
        shape: MicrobatchShape,
        calibration: &Calibration,
        (speeds, link): (Vec<f64>, f64),
    ) -> Self {
        let Calibration { f_us, update_us, classes, .. } = calibration;
        let specs = model_layers(model);
        let found = |layer: usize| classes[LayerClass::of(specs[layer].kind).index()];
        let counted = layer_work(model, shape).into_iter().enumerate();
        let shares = trained_shares(model);
        let time = |(layer, work): (usize, LayerWork)| match found(layer) {
            Some(LayerCost { work, .. }) => work.with_trained_share(shares[layer]),
            None => calibration.of_counted(work),
        };
        let update = |layer: usize| match found(layer) {
            Some(cost) => cost.update,
            None => specs[layer].trained_floats() as f64 * update_us,
        };
        let layers = counted.map(time).collect();
        let updates = (0..specs.len()).map(update).collect();
        let recomputes = (0..specs.len()).map(|layer| found(layer)?.recompute).collect();
        // Copies of a run that has none are as long beside F as they are counted to be.
        let copy_us = calibration.copies_us.unwrap_or(*f_us);
        let counted = Pace::estimated(model, shape);
        let copies = counted.copies.iter().map(|copy| copy * copy_us).collect();
        Self { layers, updates, copies, recomputes, speeds, link, ..counted }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Calibration, REPORTED_SPEED_TOLERANCE, StageSample, StageTimes, calibrate, median,
        rounded_speed,
    };
    use crate::plan::LayerWork;

    fn work(size: f64) -> LayerWork {
        LayerWork { f: size, b: 2.0 * size, w: size, w_early: 0.0 }
    }

    /// So much work, F and B at a microsecond each, W at three, on a machine so fast.
    fn timed(size: f64, speed: f64) -> StageSample {
        let [f, b, w] = [size, 2.0 * size, 3.0 * size].map(|time| time / speed);
        let times = StageTimes { f, b, w, update: 5.0 * size / speed, ..ZERO };
        StageSample {
            work: work(size),
            weights: 10.0 * size,
            layers: [0.0; 4],
            trained: [0.0; 4],
            copied: 0.0,
            reported_speed: 1.0,
            times,
        }
    }

    #[test]
    fn the_median_of_an_even_number_is_the_upper_of_two() {
        let check = |measurements: &[f64], expected| {
            assert_eq!(median(measurements.iter().copied(), f64::total_cmp), expected);
        };
        check(&[], None);
        check(&[3.0, 1.0, 2.0], Some(2.0));
        check(&[4.0, 3.0, 1.0, 2.0], Some(3.0));
    }

    /// A stage that trains two chunks, each in half of the microbatches, is as fast as it is.
    #[test]
    fn replicas_share_the_microbatches_and_are_updated_both() {
        let both = StageSample { work: work(2.0), layers: [2.0; 4], ..timed(1.0, 1.0) };
        let found = both.per_replica(2);
        assert_eq!((found.work, found.weights), (work(1.0), both.weights));
        assert_eq!(found.layers, [1.0; 4], "a microbatch goes through one of two");
        assert_eq!(timed(3.0, 2.0).per_replica(1), timed(3.0, 2.0));
    }

    fn check(stages: &[StageSample], speeds: &[f64], calibration: Calibration) {
        let (found, found_speeds) = calibrate(stages).expect("the samples can be used");
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a}, expected {b}");
        for (found, speed) in found_speeds.iter().zip(speeds) {
            near(found.expect("the sample can be used"), *speed);
        }
        near(found.f_us, calibration.f_us);
        near(found.b_us, calibration.b_us);
        near(found.w_us, calibration.w_us);
        near(found.update_us, calibration.update_us);
    }

    const ALIKE: Calibration = Calibration {
        f_us: 1.0,
        b_us: 1.0,
        w_us: 3.0,
        update_us: 0.5,
        copies_us: None,
        classes: [None; 4],
    };

    #[test]
    fn machines_that_are_alike_have_the_same_speed_whatever_they_were_given() {
        check(&[timed(1.0, 1.0), timed(5.0, 1.0), timed(3.0, 1.0)], &[1.0; 3], ALIKE);
        check(&[timed(4.0, 1.0)], &[1.0], ALIKE);
    }

    #[test]
    fn a_slow_machine_is_distinguished_from_one_with_much_work() {
        let stages = [timed(6.0, 1.0), timed(2.0, 0.5), timed(4.0, 1.0)];
        let (_, speeds) = calibrate(&stages).expect("the samples can be used");
        let [one, slow, other] = speeds[..] else { panic!("three stages") };
        assert_eq!(one, other);
        let ratio = slow.expect("the sample can be used") / one.expect("the sample can be used");
        assert!((ratio - 0.5).abs() < 1e-9, "{ratio}");
        let stages = [timed(3.0, 1.0), timed(3.0, 0.25)];
        let (_, speeds) = calibrate(&stages).expect("the samples can be used");
        assert_eq!(speeds, [Some(1.0), Some(0.25)], "of two, the slower one is slow");
    }

    /// Stages that differ in what they have most of, as one with the head does, and in speed.
    #[test]
    fn speeds_and_costs_of_passes_are_distinguished() {
        let shaped = |work: [f64; 3], speed: f64| {
            let [f, b, w] = work;
            let times = StageTimes { f: f / speed, b: 2.0 * b / speed, w: 5.0 * w / speed, ..ZERO };
            let work = LayerWork { f, b, w, w_early: 0.0 };
            StageSample {
                work,
                weights: 1.0,
                layers: [0.0; 4],
                trained: [0.0; 4],
                copied: 0.0,
                reported_speed: 1.0,
                times,
            }
        };
        let stages = [
            shaped([1.0, 2.0, 0.5], 1.0),
            shaped([1.0, 1.5, 1.0], 0.3),
            shaped([2.0, 2.0, 3.0], 1.0),
        ];
        let (found, speeds) = calibrate(&stages).expect("the samples can be used");
        for (found, speed) in speeds.iter().zip([1.0, 0.3, 1.0]) {
            let found = found.expect("the sample can be used");
            assert!((found / speed - 1.0).abs() < 1e-3, "{found}, expected {speed}");
        }
        assert!((found.w_us / found.f_us / 5.0 - 1.0).abs() < 1e-3, "{found:?}");
    }

    const ZERO: StageTimes = StageTimes {
        f: 0.0,
        b: 0.0,
        w: 0.0,
        bw: 0.0,
        update: 0.0,
        classes: [None; 4],
        copies: 0.0,
    };

    #[test]
    fn a_machine_as_fast_as_it_reports_is_the_measure_of_others() {
        let reporting = |reported_speed, stage| StageSample { reported_speed, ..stage };
        let stages = [reporting(2.0, timed(4.0, 2.0)), reporting(1.0, timed(4.0, 1.0))];
        check(&stages, &[2.0, 1.0], ALIKE);
    }

    /// One pass for B and W does not show how they compare, and shows as much of speeds.
    #[test]
    fn a_fused_pass_is_shared_out_as_it_is_counted() {
        let fused = |stage: StageSample| {
            let StageTimes { f, b, w, update, .. } = stage.times;
            StageSample { times: StageTimes { f, bw: b + w, update, ..ZERO }, ..stage }
        };
        let stages = [fused(timed(3.0, 1.0)), fused(timed(3.0, 0.5))];
        let (found, speeds) = calibrate(&stages).expect("the samples can be used");
        assert_eq!(speeds, [Some(1.0), Some(0.5)]);
        assert!((found.b_us / found.w_us - 1.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn what_cannot_have_been_is_left_out() {
        let nothing = StageSample { times: StageTimes::default(), ..timed(1.0, 1.0) };
        let idle = StageSample { work: LayerWork::default(), ..timed(1.0, 1.0) };
        let mut wrong = timed(1.0, 1.0);
        wrong.times.f = f64::NAN;
        for stage in [nothing, idle, wrong] {
            assert_eq!(calibrate(&[stage]), None);
            let (found, speeds) =
                calibrate(&[stage, timed(2.0, 1.0)]).expect("one sample can be used");
            assert_eq!((found, speeds), (ALIKE, vec![None, Some(1.0)]));
        }
    }

    #[test]
    fn noise_is_rounded_away_and_nothing_else() {
        let check = |speed: f64, expected: f64| {
            let found = rounded_speed(speed);
            assert!((found - expected).abs() < 1e-9, "{speed}: {found}, expected {expected}");
        };
        check(1.0, 1.0);
        check(1.0 + 0.99 * REPORTED_SPEED_TOLERANCE, 1.0);
        check(1.0 / (1.0 + 0.99 * REPORTED_SPEED_TOLERANCE), 1.0);
        check(1.0 + 1.01 * REPORTED_SPEED_TOLERANCE, 1.1);
        check(0.5, 1.1_f64.powi(-7));
        check(2.0, 1.1_f64.powi(7));
        for speed in [0.1, 0.3, 0.7, 1.3, 4.0] {
            let off = rounded_speed(speed) / speed;
            assert!((off - 1.0).abs() < 0.06, "{speed} becomes {off} times as fast");
        }
    }
}
