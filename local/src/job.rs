//! The job of the threads of a run.

use std::sync::Arc;

use zbelastic_consensus::validation::GuardPolicy;
use zbelastic_data::training_data::TrainingData;
use zbelastic_islands::ExchangeSetup;
use zbelastic_trainer::stage::StageSetup;

use super::interrupt::Interrupt;

/// The job of the threads of a run.
pub struct TrainingJob {
    /// The setup of all stages.
    pub setup: Arc<StageSetup>,
    /// Which steps are accepted: the guard's policy.
    pub policy: GuardPolicy,
    /// Where batches come from.
    pub corpus: Arc<TrainingData>,
    /// Threads that compute, in each worker.
    pub threads: usize,
    /// How weights are exchanged with other islands, if the run is one of several.
    pub islands: Option<ExchangeSetup>,
    /// Whether the run should end with the step under way.
    pub interrupt: Interrupt,
}
