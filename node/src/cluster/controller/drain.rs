//! How a controller goes on a signal: once no worker that drains needs it.

use zbelastic_consensus::controller_drain::{ControllerDrain, ControllerDrainEnd};
use zbelastic_policy::drain_cause::DrainCause;

use super::StatusView;
use crate::cluster::process_exit::{NodeSignal, ProcessExit};

/// Why a controller was told to go, and its wait for workers that drain, if it was.
#[derive(Default)]
pub(super) struct DrainWait(Option<(DrainCause, ControllerDrain)>);

impl DrainWait {
    /// A signal. Yields how the process ends, if it does now.
    pub(super) fn note_signal(&mut self, signal: NodeSignal) -> Option<ProcessExit> {
        if let (NodeSignal::Drain(cause), None) = (signal, &self.0) {
            self.0 = Some((cause, ControllerDrain::default()));
            return None;
        }
        Some(ProcessExit::Left)
    }

    /// Yields how the process ends, if it was told to go and is not needed any more.
    pub(super) fn end(&mut self, view: StatusView<'_>) -> Option<ProcessExit> {
        let (cause, drain) = self.0.as_mut()?;
        let is_majority_left = view.is_majority_without_me();
        match drain.note(view.state(), &view.core.training_status(), is_majority_left)? {
            ControllerDrainEnd::Safe => Some(ProcessExit::Drained(*cause)),
            ControllerDrainEnd::Unsaved(step) => Some(ProcessExit::Unsaved(step)),
        }
    }
}
