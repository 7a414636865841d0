//! Layers with a flipped bit in their state: which processes hold one. A layer is compared with the
//! reference by whoever holds it, but for these; a process does not hold one any more once it gave
//! the layer up, or runs a plan that begins with a state that all who hold the layer have reported.

use std::collections::BTreeSet;

use zbelastic_consensus::session::WorkerCommand;
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_trainer::runtime::{PeerBody, PeerFrame, RuntimeInput};
use zbelastic_types::LayerId;

use super::machines::WorkerMachine;

impl<M: StageFactory, S: BatchSource + Clone> WorkerMachine<M, S> {
    /// Whether its process may hold a layer with a flipped bit: its own, or one that it was sent.
    pub(super) fn is_flipped(&self, layer: LayerId) -> bool {
        let sent = self.process.as_ref().map(|process| &process.flipped_layers);
        self.faults.borrow().flipped() == Some(layer)
            || sent.is_some_and(|sent| sent.contains(&layer))
    }

    /// Whether a frame that it sends has a layer that it may hold with a flipped bit.
    pub(super) fn has_flipped_layer(&self, frame: &PeerFrame) -> bool {
        layer_of(frame).is_some_and(|layer| self.is_flipped(layer))
    }

    /// A frame arrives, perhaps with a layer that has a flipped bit.
    pub(super) fn note_arrival(&mut self, frame: &PeerFrame, is_flipped: bool) {
        if let (Some(process), Some(layer), true) = (&mut self.process, layer_of(frame), is_flipped)
        {
            process.flipped_layers.insert(layer);
        }
    }

    /// Whether a plan that its process has loaded begins to run with this input.
    pub(super) fn starts_plan(&self, input: &RuntimeInput) -> bool {
        let RuntimeInput::Command(WorkerCommand::Run { generation }) = input else { return false };
        let loaded = self.process.as_ref().and_then(|process| process.runtime.active_stage());
        loaded.is_some_and(|stage| stage.plan().generation == *generation && !stage.is_running())
    }

    /// Its process runs a plan: its states were compared, and it keeps no others.
    pub(super) fn forget_flipped(&mut self) {
        self.faults.borrow_mut().forget_flip();
        if let Some(process) = &mut self.process {
            process.flipped_layers.clear();
        }
    }

    /// Its process may have given up layers. One that others wait for may be among its inputs.
    pub(super) fn retain_flipped(&mut self) {
        let Some(process) = self.process.as_mut().filter(|it| it.backlog.is_empty()) else {
            return;
        };
        let own = self.faults.borrow().flipped();
        if own.is_none() && process.flipped_layers.is_empty() {
            return;
        }
        let held: BTreeSet<LayerId> =
            process.runtime.inventory().into_iter().map(|held| held.layer).collect();
        process.flipped_layers.retain(|layer| held.contains(layer));
        if own.is_some_and(|layer| !held.contains(&layer)) {
            self.faults.borrow_mut().forget_flip();
        }
    }
}

/// The layer that a frame has a state of.
fn layer_of(frame: &PeerFrame) -> Option<LayerId> {
    match &frame.body {
        PeerBody::Layer(image) => Some(image.layer),
        PeerBody::StandbyLayer { image, .. } => Some(image.layer()),
        PeerBody::Frame(_)
        | PeerBody::Prefix(_)
        | PeerBody::Partial(_)
        | PeerBody::Gradients { .. }
        | PeerBody::Fetch { .. }
        | PeerBody::StandbyRequest { .. }
        | PeerBody::StandbyUpdate { .. } => None,
    }
}
