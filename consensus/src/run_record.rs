//! Runs that ended, and the record that is kept of each: another run never changes it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_types::RunId;

use crate::checkpoint::CheckpointRecord;
use crate::class::DeviceClass;
use crate::job::{JobPhase, JobSpec};

/// A run that ended with a checkpoint, kept until a person removes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Configuration of the run, as it began.
    pub spec: Arc<JobSpec>,
    /// Phase in which it ended: done or stopped.
    pub phase: JobPhase,
    /// Class of devices that it computed on; none if that is not known.
    pub class: Option<DeviceClass>,
    /// The last checkpoint that the run wrote.
    pub checkpoint: CheckpointRecord,
}

impl RunRecord {
    /// Number of the run in the cluster.
    #[must_use]
    pub fn run(&self) -> RunId {
        self.spec.run
    }
}
