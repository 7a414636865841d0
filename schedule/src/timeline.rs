//! A simulated program: every operation with its times, and the two bubble rates.

use zbelastic_types::StageIndex;

use crate::appearance::TimelineOp;
use crate::op::Op;
use crate::placement::Placement;

/// One operation in time, in the unit of the costs it was simulated with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimelineSlice<O = Op> {
    /// The operation that was simulated.
    pub op: O,
    /// The step it belongs to, counted from 0.
    pub step: u32,
    /// When it begins, after all it waited for.
    pub start: f64,
    /// When it ends; the same as `start` for an operation without a duration.
    pub end: f64,
}

impl<O> TimelineSlice<O> {
    /// Its duration.
    #[must_use]
    pub fn duration(&self) -> f64 {
        self.end - self.start
    }
}

/// Every operation of every stage in time.
///
/// There are two bubble rates because there are two ways to end a step. If each stage begins its
/// next step when it has finished its own share, the measure is the longest span of any one stage
/// ([`Timeline::bubble_span`], the zero-bubble paper's rate). If the optimizer is a barrier for
/// all, the measure is the time from the first start anywhere to the last end anywhere
/// ([`Timeline::bubble_sync`]).
///
/// A program without steps is simulated as a whole, and all of it counts as one step here.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline<O = Op> {
    pub(crate) name: &'static str,
    pub(crate) extent: TimelineExtent,
    pub(crate) placement: Placement,
    pub(crate) microbatch_count: u32,
    pub(crate) slice_count: u32,
    /// By stage, in list order, one step after the other.
    pub(crate) slices: Vec<Vec<TimelineSlice<O>>>,
}

/// The extent of a timeline: steps, or a whole program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimelineExtent {
    /// So many steps, one after the other.
    Steps(u32),
    /// A whole program without steps, over so many minibatches of so many pipelines in turn.
    Segment {
        /// Minibatches that were simulated, over all pipelines.
        minibatch_count: u32,
        /// Pipelines side by side.
        replica_count: u32,
    },
}

impl<O: TimelineOp> Timeline<O> {
    /// The name of the schedule that was simulated.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Which steps were simulated, or the whole program.
    #[must_use]
    pub fn extent(&self) -> TimelineExtent {
        self.extent
    }

    /// Which stage holds which chunk.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Microbatches in a step or a minibatch.
    #[must_use]
    pub fn microbatch_count(&self) -> u32 {
        self.microbatch_count
    }

    /// Slices of each microbatch.
    #[must_use]
    pub fn slice_count(&self) -> u32 {
        self.slice_count
    }

    /// Steps simulated; one where there are none.
    #[must_use]
    pub fn step_count(&self) -> u32 {
        match self.extent {
            TimelineExtent::Steps(count) => count,
            TimelineExtent::Segment { .. } => 1,
        }
    }

    /// The stages, from the one that reads the tokens.
    pub fn stages(&self) -> impl Iterator<Item = StageIndex> + use<O> {
        (0..self.placement.stage_count()).map(StageIndex)
    }

    /// All slices of `stage`, in the order in which it ran them.
    ///
    /// # Panics
    /// If there is no such stage.
    #[must_use]
    pub fn slices(&self, stage: StageIndex) -> &[TimelineSlice<O>] {
        &self.slices[stage.index()]
    }

    /// The slices of all stages, stage by stage.
    pub fn all_slices(&self) -> impl Iterator<Item = &TimelineSlice<O>> {
        self.slices.iter().flatten()
    }

    /// From the start of the stage's first pass in `step` to the end of its last.
    #[must_use]
    pub fn span(&self, stage: StageIndex, step: u32) -> f64 {
        let (start, end) = first_and_last(self.passes(stage, step));
        (end - start).max(0.0)
    }

    /// The time in which the stage computes during `step`.
    #[must_use]
    pub fn work(&self, stage: StageIndex, step: u32) -> f64 {
        self.passes(stage, step).map(TimelineSlice::duration).sum()
    }

    /// The longest span of any stage in `step`: the cost of a step if no stage waits for others to
    /// finish theirs.
    #[must_use]
    pub fn cost(&self, step: u32) -> f64 {
        self.stages().map(|stage| self.span(stage, step)).fold(0.0, f64::max)
    }

    /// From the first start to the last end of any pass of `step`: the cost of a step if the
    /// optimizer waits for all.
    #[must_use]
    pub fn makespan(&self, step: u32) -> f64 {
        let (start, end) = first_and_last(self.stages().flat_map(|stage| self.passes(stage, step)));
        (end - start).max(0.0)
    }

    /// The share of [`Timeline::cost`] in which the busiest stage does not compute.
    #[must_use]
    pub fn bubble_span(&self, step: u32) -> f64 {
        self.idle_share(step, self.cost(step))
    }

    /// The share of [`Timeline::makespan`] in which the busiest stage does not compute.
    #[must_use]
    pub fn bubble_sync(&self, step: u32) -> f64 {
        self.idle_share(step, self.makespan(step))
    }

    fn idle_share(&self, step: u32, total: f64) -> f64 {
        let work = self.stages().map(|stage| self.work(stage, step)).fold(0.0, f64::max);
        if total == 0.0 { 0.0 } else { (total - work) / total }
    }

    fn passes(&self, stage: StageIndex, step: u32) -> impl Iterator<Item = &TimelineSlice<O>> {
        let step_count = self.step_count();
        assert!(step < step_count, "step {step} of {step_count} was not simulated");
        let slices = self.slices(stage);
        let ops = slices.len() / step_count as usize;
        let of_step = &slices[step as usize * ops..][..ops];
        of_step.iter().filter(|slice| slice.op.computed().is_some())
    }
}

fn first_and_last<'a, O: 'a>(slices: impl Iterator<Item = &'a TimelineSlice<O>>) -> (f64, f64) {
    let nothing = (f64::INFINITY, f64::NEG_INFINITY);
    slices.fold(nothing, |(start, end), slice| (start.min(slice.start), end.max(slice.end)))
}
