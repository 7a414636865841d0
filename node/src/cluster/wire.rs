//! What the processes of a cluster send each other, as bytes: the first byte of a control message
//! says what it is, and the class of a frame what it must be as long as.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::rehearsal::Rehearsal;
use zbelastic_consensus::validation::{Prefix, Seal, Turn};
use zbelastic_schedule::{Flow, Pass};
use zbelastic_trainer::elastic::{LayerGradient, LayerImage};
use zbelastic_trainer::host::{PeerBody, PeerFrame};
use zbelastic_trainer::model::{LayerSpec, ModelConfig, model_layers};
use zbelastic_trainer::plan::BatchShape;
use zbelastic_trainer::stage::{Frame, Lap};
use zbelastic_transport::frame::RuleError;
use zbelastic_transport::{FrameBody, FrameClass, FrameRules, OutgoingFrame, ReceivedFrame};
use zbelastic_types::{Digest, Generation, LayerId, NodeId, StageIndex, Step};

use super::document::DataName;
use crate::train::timing::Slice;

/// What a frame is. Its class names the plan as well: what is as long as under one plan is longer
/// under another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A boundary tensor.
    Boundary,
    /// Sums of the stages before; it has no floats.
    Prefix,
    /// That the last chunk is done with held-out text; it has no floats.
    Receipt,
    /// A stage's gradient.
    Gradients(StageIndex),
    /// A layer's gradient, for who follows it.
    Update(LayerId),
}

/// Bits of a class that name the kind: there are at most 64 stages and 1024 layers.
const KIND_BITS: u32 = 11;
/// The kind of the first stage's gradient.
const GRADIENTS: u32 = 64;
/// The kind of the first layer's update.
const UPDATES: u32 = 1024;

impl Kind {
    /// Its class under a plan. Plans whose numbers are 2^21 apart share classes.
    const fn of(self, generation: Generation) -> FrameClass {
        let kind = match self {
            Self::Boundary => 1,
            Self::Prefix => 2,
            Self::Receipt => 3,
            Self::Gradients(of) => GRADIENTS + of.0,
            Self::Update(layer) => UPDATES + layer.0,
        };
        FrameClass(((generation.0 as u32) << KIND_BITS) | kind)
    }
}

/// Layers on their way between workers. The bytes themselves travel as bulk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerMessage {
    /// A layer is wanted.
    Fetch {
        /// The plan it is for.
        generation: Generation,
        /// Who asks.
        sender: Holder,
        /// The layer.
        layer: LayerId,
        /// Its version.
        version: Step,
    },
    /// A layer is wanted ahead of a planned change, and its updates from then on.
    Follow {
        /// The plan in force.
        generation: Generation,
        /// Who asks.
        sender: Holder,
        /// The layer.
        layer: LayerId,
    },
    /// A layer that was wanted can be fetched.
    Offer {
        /// The plan it is for.
        generation: Generation,
        /// Who has it.
        sender: Holder,
        /// The layer.
        layer: LayerId,
        /// Its version.
        version: Step,
        /// The digest of its state.
        digest: Digest,
        /// The turn whose seal it waits for, if it is wanted ahead.
        open: Option<Turn>,
    },
}

/// What is said of a frame beside its floats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    generation: Generation,
    sender: Holder,
    body: HeadBody,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum HeadBody {
    Frame { turn: Turn, lap: Lap, flow: Flow, pass: Pass },
    Receipt { turn: Turn, pass: Pass },
    Prefix(Prefix),
    Gradients { turn: Turn, of: StageIndex, layers: Vec<LayerId> },
    Update { turn: Turn, before: Option<Seal>, layer: LayerId },
}

/// Why a frame is not one of a worker's.
#[derive(Debug, thiserror::Error)]
pub enum FrameFault {
    /// Its head cannot be read.
    #[error("a frame whose head cannot be read: {0}")]
    Head(#[from] postcard::Error),
    /// Its parts are not what its head says.
    #[error("a frame of {found} parts, its head says {expected}")]
    Parts {
        /// By its head.
        expected: usize,
        /// What came.
        found: usize,
    },
    /// It speaks for another node than who sent it.
    #[error("sent by node {expected}, the frame speaks for node {found}")]
    Sender {
        /// Who sent it.
        expected: NodeId,
        /// Whom it speaks for.
        found: NodeId,
    },
}

/// The floats of a frame.
enum Floats {
    None,
    One(Vec<f32>),
    Layers(Arc<Vec<LayerGradient>>),
}

impl FrameBody for Floats {
    fn parts(&self) -> Vec<&[f32]> {
        match self {
            Self::None => Vec::new(),
            Self::One(floats) => vec![floats],
            Self::Layers(layers) => layers.iter().map(|layer| layer.g.as_slice()).collect(),
        }
    }
}

/// What a worker's frame becomes.
pub enum Outgoing {
    /// Frames of the tensor lane.
    Frames(Vec<OutgoingFrame>),
    /// A question for a layer.
    Ask(LayerMessage),
    /// A layer, to be offered.
    Layer(LayerOffer),
}

/// A layer that another worker wants.
pub struct LayerOffer {
    /// The plan it is for.
    pub generation: Generation,
    /// Who has it.
    pub sender: Holder,
    /// The layer.
    pub image: Arc<LayerImage>,
    /// The turn whose seal it waits for, if it is wanted ahead.
    pub open: Option<Turn>,
}

/// Sorts a worker's frame by how it travels.
#[must_use]
pub fn outgoing(frame: PeerFrame) -> Outgoing {
    let PeerFrame { generation, sender, body } = frame;
    let one = |kind: Kind, body: HeadBody, floats: Floats| {
        let head = Head { generation, sender, body };
        let frame = OutgoingFrame::new(kind.of(generation), encode(&head), Arc::new(floats));
        frame.expect("a plan has no longer frames than the lane takes")
    };
    match body {
        PeerBody::Frame(Frame {
            turn, lap: Lap::Evaluation, flow: Flow::Backward, pass, ..
        }) => {
            let body = HeadBody::Receipt { turn, pass };
            Outgoing::Frames(vec![one(Kind::Receipt, body, Floats::None)])
        }
        PeerBody::Frame(Frame { turn, lap, flow, pass, floats }) => {
            let body = HeadBody::Frame { turn, lap, flow, pass };
            Outgoing::Frames(vec![one(Kind::Boundary, body, Floats::One(floats))])
        }
        PeerBody::Prefix(prefix) => {
            Outgoing::Frames(vec![one(Kind::Prefix, HeadBody::Prefix(prefix), Floats::None)])
        }
        PeerBody::Gradients { turn, of, gradients } => {
            let layers = gradients.iter().map(|gradient| gradient.layer).collect();
            let body = HeadBody::Gradients { turn, of, layers };
            Outgoing::Frames(vec![one(Kind::Gradients(of), body, Floats::Layers(gradients))])
        }
        // Which layers are followed changes from step to step, and a frame's length must not.
        PeerBody::Update { turn, before, gradients } => {
            let gradients = gradients.iter().map(|gradient| {
                let body = HeadBody::Update { turn, before, layer: gradient.layer };
                one(Kind::Update(gradient.layer), body, Floats::One(gradient.g.clone()))
            });
            Outgoing::Frames(gradients.collect())
        }
        PeerBody::Fetch { layer, version } => {
            Outgoing::Ask(LayerMessage::Fetch { generation, sender, layer, version })
        }
        PeerBody::Follow { layer } => {
            Outgoing::Ask(LayerMessage::Follow { generation, sender, layer })
        }
        PeerBody::Layer(image) => {
            Outgoing::Layer(LayerOffer { generation, sender, image, open: None })
        }
        PeerBody::Ahead { open, image } => {
            Outgoing::Layer(LayerOffer { generation, sender, image, open: Some(open) })
        }
    }
}

/// The worker's frame that came in.
///
/// # Errors
/// If it is none.
pub fn incoming(frame: ReceivedFrame) -> Result<PeerFrame, FrameFault> {
    let Head { generation, sender, body } = postcard::from_bytes(&frame.meta)?;
    let (expected, found) = (frame.from.node, sender.node);
    if expected != found {
        return Err(FrameFault::Sender { expected, found });
    }
    let found = frame.parts.len();
    let mut parts = frame.parts.into_iter();
    let body = match body {
        HeadBody::Frame { turn, lap, flow, pass } => {
            let floats = parts.next().ok_or(FrameFault::Parts { expected: 1, found })?;
            PeerBody::Frame(Frame { turn, lap, flow, pass, floats })
        }
        HeadBody::Receipt { turn, pass } => {
            let (lap, flow, floats) = (Lap::Evaluation, Flow::Backward, Vec::new());
            PeerBody::Frame(Frame { turn, lap, flow, pass, floats })
        }
        HeadBody::Prefix(prefix) => PeerBody::Prefix(prefix),
        HeadBody::Update { turn, before, layer } => {
            let g = parts.next().ok_or(FrameFault::Parts { expected: 1, found })?;
            let gradients = Arc::new(vec![LayerGradient { layer, turn, g }]);
            PeerBody::Update { turn, before, gradients }
        }
        HeadBody::Gradients { turn, of, layers } => {
            let expected = layers.len();
            if expected != found {
                return Err(FrameFault::Parts { expected, found });
            }
            let gradients = layers.into_iter().zip(parts);
            let gradients = gradients.map(|(layer, g)| LayerGradient { layer, turn, g }).collect();
            PeerBody::Gradients { turn, of, gradients: Arc::new(gradients) }
        }
    };
    Ok(PeerFrame { generation, sender, body })
}

/// What may be sent to a worker: by the others of its plan, and by those whose layers it follows.
/// Longer or shorter frames close the connection before a byte is allocated.
pub struct Expected<'a> {
    /// Who expects.
    pub me: NodeId,
    /// The model.
    pub model: &'a ModelConfig,
    /// The batch.
    pub batch: BatchShape,
    /// The plan that was loaded last.
    pub plan: Option<&'a PlanRecord>,
    /// What is copied ahead.
    pub rehearsal: Option<&'a Rehearsal>,
}

impl Expected<'_> {
    /// The rules of it: from every stage of the plan boundary tensors and sums, its own gradient
    /// if this node keeps a copy of it, from every owner that is followed the gradients of its layers.
    ///
    /// # Errors
    /// If a plan has longer frames than the lane takes.
    pub fn rules(&self) -> Result<FrameRules, RuleError> {
        let specs = model_layers(self.model);
        let boundary = self.batch.microbatch.rows() * self.model.width as usize;
        let mut rules = FrameRules::new();
        if let Some(plan) = self.plan {
            let now = plan.generation;
            let stages = plan.stages.iter().zip(plan.stage_indices());
            for (holder, of) in stages.filter(|(holder, _)| holder.node != self.me) {
                let lengths = plan.layers_of(of).map(|layer| specs[layer.index()].len()).collect();
                rules.allow(holder.node, Kind::Boundary.of(now), vec![boundary])?;
                rules.allow(holder.node, Kind::Prefix.of(now), Vec::new())?;
                rules.allow(holder.node, Kind::Receipt.of(now), Vec::new())?;
                if plan.copy_holders(of).any(|keeper| keeper.node == self.me) {
                    rules.allow(holder.node, Kind::Gradients(of).of(now), lengths)?;
                }
            }
        }
        if let Some(rehearsal) = self.rehearsal {
            let own = rehearsal.follows.iter().filter(|follow| follow.follower.node == self.me);
            for follow in own {
                let length = specs[follow.layer.index()].len();
                let class = Kind::Update(follow.layer).of(rehearsal.generation);
                rules.allow(follow.owner.node, class, vec![length])?;
            }
        }
        Ok(rules)
    }
}

/// The length of a layer as it travels.
#[must_use]
pub fn layer_bytes(spec: &LayerSpec) -> u64 {
    zbelastic_trainer::elastic::image_bytes(spec.len())
}

/// What one node tells another about bytes it holds, and about time. The protocol's own messages
/// are envelopes of `consensus`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeMessage {
    /// Between workers.
    Layer(LayerMessage),
    /// A piece of a checkpoint is to be kept by the receiver too: it fetches it as bulk.
    Keep(PieceRef),
    /// The receiver of [`Self::Keep`] has it, durably.
    Kept(PieceRef),
    /// It could not.
    NotKept(PieceRef),
    /// Pieces of older versions than all of these may go.
    Collect {
        /// Versions that are referred to, or may be.
        kept: Vec<Step>,
    },
    /// A text, or weights, that the receiver is to keep too.
    KeepData(DataName),
    /// From workers to the leader: how a stage spent a step.
    Took {
        /// The plan.
        generation: Generation,
        /// The stage.
        stage: StageIndex,
        /// Microseconds from the report before to this one.
        span_us: u64,
        /// Microseconds of it in passes and updates.
        busy_us: u64,
        /// Microseconds of it with nothing to run before a verdict.
        waited_us: u64,
        /// What it did when.
        slices: Vec<Slice>,
    },
    /// From workers to the leader: a layer arrived.
    Moved {
        /// The plan it is for.
        plan: Generation,
        /// Its bytes, as it travelled.
        bytes: u64,
        /// Microseconds from the question to the arrival.
        took_us: u64,
    },
    /// From the worker with the head to the leader: the loss on held-out text.
    Evaluated {
        /// After so many steps.
        steps_done: u64,
        /// The mean cross-entropy.
        loss: f64,
    },
}

/// What a member asks a controller, apart from what people ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRequest {
    /// A certificate that holds for longer, for the key that the member has.
    Renew {
        /// The signing request.
        request: Vec<u8>,
    },
}

/// What it is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeAnswer {
    /// The certificate, and those that it leads to.
    Renewed {
        /// The member's own first.
        chain: Vec<Vec<u8>>,
    },
    /// No.
    Refused {
        /// Why.
        why: String,
    },
}

/// What a member's request begins with; people's begin with another.
const NODE_REQUEST: &[u8; 4] = b"zben";

impl NodeRequest {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = NODE_REQUEST.to_vec();
        bytes.extend(encode(self));
        bytes
    }

    /// The request in `bytes`, if a member asks.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        decode(bytes.strip_prefix(NODE_REQUEST)?).ok()
    }
}

/// A piece of a checkpoint: a layer at a version, by its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PieceRef {
    /// The version.
    pub version: Step,
    /// The layer.
    pub layer: LayerId,
    /// The digest of its state.
    pub digest: Digest,
    /// Bytes of the layer as it travels.
    pub length: u64,
}

/// What is fetched over the bulk lane, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BulkKey {
    /// A layer that was offered for a plan.
    Layer {
        /// The plan.
        generation: Generation,
        /// The layer.
        layer: LayerId,
        /// Its version.
        version: Step,
    },
    /// A piece of a checkpoint.
    Piece(PieceRef),
    /// Text, or weights to begin with.
    Data(Digest),
}

/// Bytes of anything below as a vector.
///
/// # Panics
/// Never: a vector takes all bytes.
#[must_use]
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect("a vector takes all bytes")
}

/// The value in `bytes`, to the last byte.
///
/// # Errors
/// If they are none.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, postcard::Error> {
    match postcard::take_from_bytes(bytes)? {
        (value, []) => Ok(value),
        (_, _) => Err(postcard::Error::DeserializeBadEncoding),
    }
}
