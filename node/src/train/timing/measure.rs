//! What a step took, stage by stage and from stage to stage.
//!
//! Times of one stage are compared with each other, and times of two stages never as they are: their
//! clocks may be those of two machines. What a message takes is seen where a stage waited for it, as
//! the time from the end of the pass that made it on the one clock to the begin of the pass that
//! waited on the other. That is wrong by what the clocks differ, and by the same in the other
//! direction: forward and backward together it cancels out, so a hop is the mean of both.

use std::collections::BTreeMap;

use zbelastic_consensus::validation::Turn;
use zbelastic_schedule::{Compute, Op};
use zbelastic_trainer::plan::{ClassCosts, StageTimes};
use zbelastic_types::StageIndex;

use super::causes::{made, passes_of};
use super::{Samples, Slice, Timing};

/// A stage waited if so long nothing was done. Between two operations that could both run lie a few
/// microseconds.
const WAITED_US_MIN: f64 = 50.0;

/// What a step took.
#[derive(Clone, Debug, PartialEq)]
pub struct StepMeasure {
    /// By stage.
    pub stages: Vec<StageTimes>,
    /// Of a boundary tensor between two stages, the lower one first, in microseconds. Pairs of which
    /// one never waited for the other are left out.
    pub hops: BTreeMap<(StageIndex, StageIndex), f64>,
}

impl Timing {
    /// What the step that `turn` brought to its end took, if every stage told of all its passes.
    pub fn measure(&self, turn: Turn) -> Option<StepMeasure> {
        let stages = (0..self.slices.len() as u32).map(StageIndex);
        let stages = stages.map(|stage| self.stage_times(stage, turn)).collect::<Option<_>>()?;
        Some(StepMeasure { stages, hops: self.hops(turn) })
    }

    fn stage_times(&self, stage: StageIndex, turn: Turn) -> Option<StageTimes> {
        let program = &self.setup.plan.program;
        let mut took: BTreeMap<Compute, (usize, f64)> = BTreeMap::new();
        for slice in &self.slices[stage.index()] {
            if let Some((of, compute, _)) = slice.pass()
                && of == turn
            {
                let (count, sum) = took.entry(compute).or_default();
                (*count, *sum) = (*count + 1, *sum + slice.duration_us());
            }
        }
        let planned = |compute: Compute| {
            let is_it = |op: &&Op| matches!(op, Op::Compute(found, _) if *found == compute);
            program.stages[stage.index()].iter().filter(is_it).count()
        };
        let told = |compute: &Compute| took.get(compute).map_or(0, |(count, _)| *count);
        let passes = [Compute::F, Compute::B, Compute::W, Compute::BW];
        if passes.iter().any(|compute| told(compute) != planned(*compute)) {
            return None;
        }
        let of_microbatch = |compute: Compute| {
            took.get(&compute).map_or(0.0, |(_, sum)| sum / f64::from(program.microbatch_count))
        };
        Some(StageTimes {
            f: of_microbatch(Compute::F),
            b: of_microbatch(Compute::B),
            w: of_microbatch(Compute::W) + of_microbatch(Compute::WE),
            bw: of_microbatch(Compute::BW),
            update: self.steps.median() + self.commits.median(),
            classes: ClassCosts::default(),
        })
    }

    /// Medians of both directions, and their mean.
    fn hops(&self, turn: Turn) -> BTreeMap<(StageIndex, StageIndex), f64> {
        let lags = self.lags(turn);
        let both = |((from, to), there): (&(StageIndex, StageIndex), &Samples)| {
            let back = lags.get(&(*to, *from)).filter(|_| from < to)?;
            // What is left below nothing is what clocks drift within a step.
            let hop = (there.median() + back.median()) / 2.0;
            Some(((*from, *to), hop.max(0.0)))
        };
        lags.iter().filter_map(both).collect()
    }

    /// By maker and reader: from the end of a pass to the begin of one that waited for it.
    fn lags(&self, turn: Turn) -> BTreeMap<(StageIndex, StageIndex), Samples> {
        let placement = self.setup.plan.placement();
        let passes = passes_of(&self.slices, turn);
        let mut lags: BTreeMap<(StageIndex, StageIndex), Samples> = BTreeMap::new();
        for (reader, slices) in (0..).map(StageIndex).zip(&self.slices) {
            for (before, slice) in slices.iter().zip(slices.iter().skip(1)) {
                let Some((of, compute, pass)) = slice.pass() else { continue };
                if of != turn || !waited(before, slice) {
                    continue;
                }
                if let Some((maker, made_us)) = made(placement, &passes, (compute, pass), reader) {
                    lags.entry((maker, reader)).or_default().push(slice.start_us - made_us);
                }
            }
        }
        lags
    }
}

/// Whether a stage waited between two slices, by its own clock.
fn waited(before: &Slice, slice: &Slice) -> bool {
    slice.start_us - before.end_us > WAITED_US_MIN
}
