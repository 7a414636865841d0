//! Times of a step, stage by stage and from stage to stage.
//!
//! Times of one stage are compared with each other, and times of two stages never as they are:
//! their clocks may be those of two machines. The time of a message is seen where a stage waited
//! for it, as the time from the end of the pass that made it on the one clock to the begin of the
//! pass that waited on the other. That is wrong by the difference of the clocks, and by the same in
//! the other direction: forward and backward together it cancels out, so a hop is the mean of both.

use std::collections::BTreeMap;

use zbelastic_consensus::validation::Turn;
use zbelastic_planner::StepMeasurement;
use zbelastic_schedule::{Compute, Op, UpdateOp};
use zbelastic_trainer::plan::{ClassCosts, StageTimes};
use zbelastic_trainer::stage::EngineActivity;
use zbelastic_types::StageIndex;

use super::causes::{made, passes_of};
use super::{DurationSamples, MeasuredSlice, RunTiming, SliceActivity};

/// A stage waited if so long nothing was done. Between two operations that could both run lie a few
/// microseconds.
const WAITED_US_MIN: f64 = 50.0;

impl RunTiming {
    /// The times of the step that `turn` brought to its end, if every stage reported all its
    /// passes.
    pub fn measure(&self, turn: Turn) -> Option<StepMeasurement> {
        let stages = (0..self.slices.len() as u32).map(StageIndex);
        let stages = stages.map(|stage| self.stage_times(stage, turn)).collect::<Option<_>>()?;
        let hops = self.hops(turn);
        let occupied = self.occupied(turn);
        Some(StepMeasurement { stages, hops, occupied, verdict: self.verdict(turn) })
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
        let measured = |compute: &Compute| took.get(compute).map_or(0, |(count, _)| *count);
        let passes = [Compute::F, Compute::B, Compute::W, Compute::BW];
        if passes.iter().any(|compute| measured(compute) != planned(*compute)) {
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
            copies: self.copies_us(stage, turn),
        })
    }

    /// Time that a stage copied to its second store and back.
    fn copies_us(&self, stage: StageIndex, turn: Turn) -> f64 {
        let is_copy = |slice: &&MeasuredSlice| match slice.doing {
            SliceActivity::Ran(EngineActivity::Op { turn: of, op: Op::Memory(..) }) => of == turn,
            SliceActivity::Ran(_) | SliceActivity::Waited(_) => false,
        };
        self.slices[stage.index()].iter().filter(is_copy).map(MeasuredSlice::duration_us).sum()
    }

    /// From the last report of the step before `turn` to its verdict, as the stage saw it that
    /// reported last: between two moments of one clock. Which one that was no two clocks have to
    /// agree on: all get the verdict at about the same time, so it is the one that had it soonest
    /// after its own report. If that one did not wait, the verdict was there before, and it is
    /// unknown since when.
    pub(super) fn verdict(&self, turn: Turn) -> Option<f64> {
        let before = |slice: &MeasuredSlice| match slice.doing {
            SliceActivity::Ran(EngineActivity::Op {
                turn: of,
                op: Op::Update(UpdateOp::Report),
            }) => (of.step.next() == turn.step).then_some(of),
            SliceActivity::Ran(_) | SliceActivity::Waited(_) => None,
        };
        let reported = self.slices[0].iter().rev().find_map(before)?;
        let stages = (0..self.slices.len() as u32).map(StageIndex);
        let seen = stages.map(|stage| self.verdict_seen(stage, reported));
        let (found, has_waited) = seen.collect::<Option<Vec<_>>>()?.into_iter().reduce(
            |a, b| {
                if b.0 < a.0 { b } else { a }
            },
        )?;
        has_waited.then_some(found)
    }

    /// From a stage's report to the end of the gate that it waited for, or did not.
    fn verdict_seen(&self, stage: StageIndex, reported: Turn) -> Option<(f64, bool)> {
        let (_, end_us) = self.update_ended(stage, reported, UpdateOp::Report)?;
        let mut later = self.slices[stage.index()].iter().filter(|s| s.start_us >= end_us);
        let (gate, has_waited) = later.find_map(|slice| match slice.doing {
            SliceActivity::Waited(turn) => (turn == reported).then_some((slice, true)),
            SliceActivity::Ran(EngineActivity::Op { op: Op::Update(update), .. }) => match update {
                UpdateOp::GatePrevious | UpdateOp::GateThis => Some((slice, false)),
                UpdateOp::Report | UpdateOp::Step | UpdateOp::Commit => None,
            },
            SliceActivity::Ran(EngineActivity::Settled { .. }) => Some((slice, false)),
            SliceActivity::Ran(EngineActivity::Op { .. } | EngineActivity::Evaluation { .. }) => {
                None
            }
        })?;
        Some((gate.end_us - end_us, has_waited))
    }

    /// Medians of both directions, and their mean.
    fn hops(&self, turn: Turn) -> BTreeMap<(StageIndex, StageIndex), f64> {
        let lags = self.lags(turn);
        let both = |((from, to), there): (&(StageIndex, StageIndex), &DurationSamples)| {
            let back = lags.get(&(*to, *from)).filter(|_| from < to)?;
            // A remainder below nothing is the drift of clocks within a step.
            let hop = (there.median() + back.median()) / 2.0;
            Some(((*from, *to), hop.max(0.0)))
        };
        lags.iter().filter_map(both).collect()
    }

    /// By maker and reader: from the end of a pass to the begin of one that waited for it.
    fn lags(&self, turn: Turn) -> BTreeMap<(StageIndex, StageIndex), DurationSamples> {
        let placement = self.setup.plan.placement();
        let passes = passes_of(&self.slices, turn);
        let mut lags: BTreeMap<(StageIndex, StageIndex), DurationSamples> = BTreeMap::new();
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
fn waited(before: &MeasuredSlice, slice: &MeasuredSlice) -> bool {
    slice.start_us - before.end_us > WAITED_US_MIN
}
