//! How a controller goes on a signal: once no worker that drains needs it.

use zbelastic_consensus::controller_drain::{ControllerDrain, ControllerDrainEnd};
use zbelastic_consensus::core::Core;

use crate::cluster::process_exit::{NodeSignal, ProcessExit};
use zbelastic_policy::drain_cause::DrainCause;

/// Logged by a controller that was told to go, and stays for now.
pub(super) const WAITS_FOR_WORKERS: &str = "told to go: this controller stays until workers that drain have saved what \
                                            they hold; a second signal ends it at once";

/// Why a controller was told to go, and its wait for workers that drain, if it was.
#[derive(Default)]
pub(super) struct DrainWait {
    told: Option<(DrainCause, ControllerDrain)>,
}

impl DrainWait {
    /// Whether it was told to go.
    pub(super) const fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// A signal. Yields how the process ends, if it does now.
    pub(super) fn note_signal(&mut self, signal: NodeSignal) -> Option<ProcessExit> {
        match (signal, &self.told) {
            (NodeSignal::Drain(cause), None) => {
                self.told = Some((cause, ControllerDrain::default()));
                None
            }
            (NodeSignal::Drain(_), Some(_)) | (NodeSignal::Now, _) => Some(ProcessExit::Left),
        }
    }

    /// Yields how the process ends, if it was told to go and is not needed any more.
    pub(super) fn end(&mut self, core: &Core, is_majority_left: bool) -> Option<ProcessExit> {
        let (cause, drain) = self.told.as_mut()?;
        let end = drain.note(core.state(), &core.training_status(), is_majority_left)?;
        Some(match end {
            ControllerDrainEnd::Safe => ProcessExit::Drained(*cause),
            ControllerDrainEnd::Unsaved(step) => ProcessExit::Unsaved { step },
        })
    }
}
