//! The frames that workers send each other, and how the runtime handles those that arrive.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_consensus::validation::{Prefix, Seal, Turn};
use zbelastic_kernels::DeviceFault;
use zbelastic_types::{Generation, LayerId, StageIndex, Step};

use super::{RuntimeOutput, RuntimePhase, WorkerRuntime};
use crate::data::BatchSource;
use crate::elastic::{GradientPart, LayerGradient, LayerImage, PendingImage, StageFactory};
use crate::stage::{EventRefusal, Frame, PartialGradient};

/// What one worker sends another.
#[derive(Clone, Debug)]
pub struct PeerFrame {
    /// The plan it belongs to.
    pub generation: Generation,
    /// The worker that sends it: its node and its life.
    pub sender: Holder,
    /// The content of the frame.
    pub body: PeerBody,
}

/// The content of a frame between workers.
#[derive(Clone, Debug)]
pub enum PeerBody {
    /// A boundary tensor between pipeline stages: an activation or its gradient.
    Frame(Frame),
    /// The sum of squares of the gradients of the stages before.
    Prefix(Prefix),
    /// Some of a stage's gradient, for every worker that keeps a copy.
    Gradients {
        /// Turn that the gradient was computed in.
        turn: Turn,
        /// Stage that the gradient belongs to.
        of: StageIndex,
        /// Which message of the gradient it is.
        number: MessageNumber,
        /// Floats of the gradient, each part with its layer.
        parts: Vec<GradientPart>,
    },
    /// Requests a layer at a version from a worker that may hold it.
    Fetch {
        /// Id of the layer in model order.
        layer: LayerId,
        /// Version of the layer that is requested.
        version: Step,
    },
    /// A layer that was requested by [`Self::Fetch`].
    Layer(Arc<LayerImage>),
    /// Requests a layer ahead of a planned change, and its updates from then on.
    StandbyRequest {
        /// Id of the layer in model order.
        layer: LayerId,
    },
    /// A layer that was requested by [`Self::StandbyRequest`], as it is sealed now.
    StandbyLayer {
        /// The turn whose seal it waits for.
        open: Turn,
        /// The layer's sealed state, which the sender's device may still copy.
        image: Arc<PendingImage>,
    },
    /// A gradient, for a worker that keeps the layers on standby.
    StandbyUpdate {
        /// Turn that the gradients were computed in.
        turn: Turn,
        /// The seal that led to it, if the plan has one.
        before: Option<Seal>,
        /// One for each layer that is on standby there.
        gradients: Vec<Arc<LayerGradient>>,
    },
    /// A chunk's gradient over the microbatches of its replica, for its twin.
    Partial(PartialGradient),
}

/// Which of the messages that a gradient is split into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageNumber {
    /// Index of the message among those of its gradient, from 0.
    pub index: u32,
    /// Number of messages that the gradient is split into.
    pub count: u32,
}

/// Why a frame was dropped. The runtime stays as it was.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PeerFrameRefusal {
    /// This worker runs no stage, or loads none.
    #[error("this worker runs no stage")]
    NoStage,
    /// It belongs to another plan (invariant S3).
    #[error("of generation {found}, generation {expected} runs here")]
    OtherGeneration {
        /// Generation of the plan that is in force here.
        expected: Generation,
        /// Generation that the frame carries.
        found: Generation,
    },
    /// Its sender has no part in the plan, or had it in an earlier life (invariant S3).
    #[error("{sender} has no part in the plan")]
    Stranger {
        /// The worker that sent the frame.
        sender: Holder,
    },
    /// The layer is not here at that version.
    #[error("layer {layer} of version {version} is not here")]
    Lacking {
        /// Id of the layer that was requested.
        layer: LayerId,
        /// Version that was requested, or that the stage here has.
        version: Step,
    },
    /// A layer that was not requested from this sender.
    #[error("layer {layer} of version {version} is not awaited from {sender}")]
    Unrequested {
        /// Id of the layer that was sent.
        layer: LayerId,
        /// Version of the layer that was sent.
        version: Step,
        /// The worker that sent it.
        sender: Holder,
    },
    /// A layer of another size than the model's.
    #[error("layer {layer} has another size in the model")]
    WrongShape {
        /// Id of the layer that was sent.
        layer: LayerId,
    },
    /// A gradient that no copy here waits for.
    #[error("no copy of stage {of} waits for {turn}")]
    Gradient {
        /// Stage that the gradient belongs to.
        of: StageIndex,
        /// Turn that the gradient was computed in.
        turn: Turn,
    },
    /// The device that it lies on failed before it was read.
    #[error("what was sent is lost: {0}")]
    Lost(#[from] DeviceFault),
    /// The engine refuses it.
    #[error(transparent)]
    Engine(#[from] EventRefusal),
}

impl<M: StageFactory, S: BatchSource + Clone> WorkerRuntime<M, S> {
    pub(super) fn handle_peer(&mut self, frame: PeerFrame) -> Result<(), PeerFrameRefusal> {
        match frame.body {
            PeerBody::StandbyLayer { open, ref image } => {
                let standby = self.standby.as_mut().ok_or(PeerFrameRefusal::NoStage)?;
                standby.handle_layer(&self.model, &frame, open, image)?;
                self.drive_standby();
                Ok(())
            }
            PeerBody::StandbyUpdate { turn, before, ref gradients } => {
                let standby = self.standby.as_mut().ok_or(PeerFrameRefusal::NoStage)?;
                standby.handle_update(&frame, (turn, before), gradients)?;
                self.await_standby();
                self.drive_standby();
                Ok(())
            }
            PeerBody::Fetch { layer, version } => self.answer_fetch(&frame, layer, version),
            PeerBody::Layer(image) => self.handle_layer((frame.generation, frame.sender), image),
            PeerBody::StandbyRequest { layer } => {
                let RuntimePhase::Active(active) = &mut self.phase else {
                    return Err(PeerFrameRefusal::NoStage);
                };
                active.admit_standby(frame.generation, frame.sender, layer)?;
                self.collect();
                Ok(())
            }
            PeerBody::Frame(_)
            | PeerBody::Prefix(_)
            | PeerBody::Partial(_)
            | PeerBody::Gradients { .. } => {
                let RuntimePhase::Active(active) = &mut self.phase else {
                    return Err(PeerFrameRefusal::NoStage);
                };
                check_sender(active.plan(), &frame)?;
                active.handle_peer(frame.body)?;
                self.collect();
                Ok(())
            }
        }
    }

    /// A layer came that a plan loads. With other bits than the plan expects it is requested again.
    fn handle_layer(
        &mut self,
        (generation, sender): (Generation, Holder),
        image: Arc<LayerImage>,
    ) -> Result<(), PeerFrameRefusal> {
        let RuntimePhase::Loading(loading) = &mut self.phase else {
            return Err(PeerFrameRefusal::NoStage);
        };
        loading.check_sent(generation, sender, &image)?;
        if !self.model.fits(&image) {
            return Err(PeerFrameRefusal::WrongShape { layer: image.layer });
        }
        let digest = self.model.digest(&image);
        if let Some(requests) = loading.request_alone(image.layer, digest) {
            self.outbox.extend(requests);
            return Ok(());
        }
        let progress = loading.handle_image(image, Some(digest));
        self.after_loading(progress);
        Ok(())
    }

    fn answer_fetch(
        &mut self,
        frame: &PeerFrame,
        layer: LayerId,
        version: Step,
    ) -> Result<(), PeerFrameRefusal> {
        let idle = || self.idle_layers.get(&layer).filter(|i| i.version == version).cloned();
        let found = match &self.phase {
            RuntimePhase::Idle | RuntimePhase::Active(_) => idle(),
            RuntimePhase::Loading(loading) => loading.offer(layer, version),
        };
        let (Some(image), Some(sender)) = (found, self.me) else {
            return Err(PeerFrameRefusal::Lacking { layer, version });
        };
        let generation = frame.generation;
        let frame_back = PeerFrame { generation, sender, body: PeerBody::Layer(image) };
        self.outbox.push_back(RuntimeOutput::Peer { to: frame.sender.node, frame: frame_back });
        Ok(())
    }
}

/// S3: only a frame of this plan, from a worker that has a part in it, is accepted.
fn check_sender(
    plan: &zbelastic_consensus::plan::PlanRecord,
    frame: &PeerFrame,
) -> Result<(), PeerFrameRefusal> {
    let expected = plan.generation;
    let found = frame.generation;
    if expected != found && !mutant::is(Mutant::M2TurnUnchecked) {
        return Err(PeerFrameRefusal::OtherGeneration { expected, found });
    }
    let is_known = plan.stages.contains(&frame.sender);
    if !is_known && !mutant::is(Mutant::M12FencedAccepted) && !mutant::is(Mutant::M2TurnUnchecked) {
        return Err(PeerFrameRefusal::Stranger { sender: frame.sender });
    }
    Ok(())
}
