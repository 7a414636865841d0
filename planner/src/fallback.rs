//! The inputs of planning from a job, and the schedules that a run goes on with on so many nodes: the requested
//! schedule need not exist for every number of stages.

use zbelastic_kernels::DeviceSizes;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::model::ModelConfig;
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::plan::{
    AUTO_KINDS, BatchShape, ChooseRequest, Grid, GridLimits, HeldBeside, MemoryPolicy, Pace,
    PlanChoice, ReplicaCount, ScheduleRefusal, choose,
};
use zbelastic_types::Bytes;

/// The parts of a job's configuration that its plans depend on.
#[derive(Clone, Debug)]
pub struct PlannerJob {
    /// Shape of the model.
    pub model: ModelConfig,
    /// Shape of the microbatches, and how many a step has.
    pub batch: BatchShape,
    /// The optimizer, whose work counts until updates are timed.
    pub optimizer: OptimizerKind,
    /// The schedules to choose from, at least one.
    pub kinds: Vec<ScheduleKind>,
    /// Whether any schedule may be chosen, because none was requested.
    pub is_auto: bool,
    /// Chunks a stage holds; none for as many as each schedule has by itself.
    pub chunks_per_stage: Option<u32>,
    /// Pipelines side by side; none for a number that is chosen.
    pub replicas: Option<ReplicaCount>,
    /// Slices that sequences are cut into; none for as many as each schedule has by itself.
    pub slice_count: Option<u32>,
    /// The way in which passes keep less.
    pub memory: MemoryPolicy,
    /// Other nodes that hold each update before it is sealed.
    pub copies: u32,
    /// Whether the run exchanges weights with other islands.
    pub is_island: bool,
    /// Most memory of a stage, in bytes, if the configuration sets one.
    pub stage_bytes_max: Option<Bytes>,
    /// The kind of devices that it runs on, as far as bytes go.
    pub sizes: DeviceSizes,
}

/// A thing to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanFallback<'a> {
    /// Schedules to choose from.
    pub kinds: &'a [ScheduleKind],
    /// Chunks a stage, if the configuration sets a number.
    pub chunks_per_stage: Option<u32>,
    /// The pipelines.
    pub grid: Grid,
}

impl PlannerJob {
    /// The ways to deal workers to stages and replicas.
    #[must_use]
    pub fn grid_limits(&self) -> GridLimits {
        let (blocks, lanes) = (self.model.blocks, self.batch.lanes);
        GridLimits { blocks, lanes, requested: self.replicas }
    }

    /// The fallbacks to try for pipelines of at most so many stages, as many as `most` has, one after the
    /// other until one can be had. Every one trains to the same bits.
    ///
    /// A schedule gives way to any other before a node is left out. How slices add up is a part of the
    /// arithmetic, so these give way to none.
    #[must_use]
    pub fn fallbacks(&self, most: Grid) -> Vec<PlanFallback<'_>> {
        let (kinds, chunks_per_stage) = (self.kinds.as_slice(), self.chunks_per_stage);
        let is_free = self.is_auto && chunks_per_stage.is_none();
        let own = |grid| PlanFallback { kinds, chunks_per_stage, grid };
        let others = |kinds, grid| PlanFallback { kinds, chunks_per_stage: None, grid };
        let counts = (1..=most.stage_count).rev().map(|stage_count| Grid { stage_count, ..most });
        if is_free || kinds.iter().any(|kind| kind.is_sliced()) {
            return counts.map(own).collect();
        }
        counts.flat_map(|grid| [own(grid), others(&AUTO_KINDS, grid)]).collect()
    }

    /// The best plan for a fallback at a pace, with the memory limit of each stage.
    ///
    /// # Errors
    /// Why no schedule of the fallback can be had.
    pub(crate) fn choose(
        &self,
        fallback: PlanFallback<'_>,
        window: Window,
        limits: (&[Bytes], &Pace),
    ) -> Result<PlanChoice, String> {
        self.choose_or_refusals(fallback, window, limits).map_err(|refusals| {
            let reasons = refusals.iter().map(|(kind, refusal)| format!("{kind}: {refusal}"));
            reasons.collect::<Vec<_>>().join("; ")
        })
    }

    /// The same.
    ///
    /// # Errors
    /// Why each schedule of the fallback cannot be had.
    pub(crate) fn choose_or_refusals(
        &self,
        fallback: PlanFallback<'_>,
        window: Window,
        (stage_bytes_max, pace): (&[Bytes], &Pace),
    ) -> Result<PlanChoice, Vec<(ScheduleKind, ScheduleRefusal)>> {
        let PlanFallback { kinds, chunks_per_stage, grid } = fallback;
        let request = ChooseRequest {
            model: &self.model,
            optimizer: self.optimizer,
            batch: self.batch,
            kinds,
            chunks_per_stage,
            slice_count: self.slice_count,
            stage_count: grid.stage_count,
            replicas: grid.replicas,
            window,
            memory: self.memory,
            beside: HeldBeside { copies: grid.copies(self.copies), is_island: self.is_island },
            stage_bytes_max,
            pace,
        };
        choose(&self.sizes, request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::tests::job;

    fn pipeline(stage_count: u32) -> Grid {
        Grid { stage_count, replicas: ReplicaCount::ONE }
    }

    fn check(kind: ScheduleKind, most: u32, expected: &[(&[ScheduleKind], u32)]) {
        let job = PlannerJob { kinds: vec![kind], is_auto: false, ..job() };
        let found = job.fallbacks(pipeline(most));
        let found = found.iter().map(|found| (found.kinds, found.grid.stage_count));
        let found: Vec<_> = found.collect();
        assert_eq!(found, expected, "{kind}");
    }

    #[test]
    fn what_gives_way_to_what_keeps_the_order_of_sums() {
        use ScheduleKind::{Chimera, Seq1F1B, ZbV};
        let auto = PlannerJob { kinds: AUTO_KINDS.to_vec(), is_auto: true, ..job() };
        let own = |stage_count| PlanFallback {
            kinds: &AUTO_KINDS,
            chunks_per_stage: None,
            grid: pipeline(stage_count),
        };
        assert_eq!(auto.fallbacks(pipeline(2)), [own(2), own(1)]);
        check(ZbV, 2, &[(&[ZbV], 2), (&AUTO_KINDS, 2), (&[ZbV], 1), (&AUTO_KINDS, 1)]);
        check(Seq1F1B, 2, &[(&[Seq1F1B], 2), (&[Seq1F1B], 1)]);
        let others: &[ScheduleKind] = &AUTO_KINDS;
        check(Chimera, 2, &[(&[Chimera], 2), (others, 2), (&[Chimera], 1), (others, 1)]);
    }
}
