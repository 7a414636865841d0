//! The times of a step, stage by stage and from stage to stage.

use std::collections::BTreeMap;

use zbelastic_trainer::plan::StageTimes;
use zbelastic_types::StageIndex;

/// The measured times of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepMeasurement {
    /// Times of the stages, by stage.
    pub stages: Vec<StageTimes>,
    /// Of a boundary tensor between two stages, the lower one first, in microseconds. Pairs of
    /// which one never waited for the other are left out.
    pub hops: BTreeMap<(StageIndex, StageIndex), f64>,
    /// The part of that in which the boundary tensors of a microbatch occupy the link, where
    /// messages of several lengths showed it.
    pub occupied: BTreeMap<(StageIndex, StageIndex), f64>,
    /// From the last report of the step before to its verdict, if that was waited for.
    pub verdict: Option<f64>,
}
