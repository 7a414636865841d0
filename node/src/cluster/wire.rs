//! What the processes of a cluster send each other, as bytes: the first byte of a control message
//! says what it is, and the class of a frame what it must be as long as.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::validation::{Prefix, Turn};
use zbelastic_schedule::{Flow, Pass};
use zbelastic_trainer::elastic::LayerGradient;
use zbelastic_trainer::host::{PeerBody, PeerFrame};
use zbelastic_trainer::model::{LayerSpec, ModelConfig, model_layers};
use zbelastic_trainer::plan::BatchShape;
use zbelastic_trainer::stage::{Frame, Lap};
use zbelastic_transport::frame::RuleError;
use zbelastic_transport::{FrameBody, FrameClass, FrameRules, OutgoingFrame, ReceivedFrame};
use zbelastic_types::{Digest, Generation, LayerId, NodeId, StageIndex, Step};

use super::document::DataName;

/// What a frame is. Its class names the plan as well: what is as long as under one plan is longer
/// under another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A boundary tensor.
    Boundary,
    /// Sums of the stages before; it has no floats.
    Prefix,
    /// A stage's gradient.
    Gradients(StageIndex),
}

/// Bits of a class that name the kind: there are at most 64 stages.
const KIND_BITS: u32 = 8;
/// The kind of the first stage's gradient.
const GRADIENTS: u32 = 64;

impl Kind {
    /// Its class under a plan. Plans whose numbers are 2^24 apart share classes.
    const fn of(self, generation: Generation) -> FrameClass {
        let kind = match self {
            Self::Boundary => 1,
            Self::Prefix => 2,
            Self::Gradients(of) => GRADIENTS + of.0,
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
    Prefix(Prefix),
    Gradients { turn: Turn, of: StageIndex, layers: Vec<LayerId> },
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
    /// A frame of the tensor lane.
    Frame(OutgoingFrame),
    /// A question for a layer.
    Fetch(LayerMessage),
    /// A layer, to be offered.
    Layer {
        /// The plan it is for.
        generation: Generation,
        /// Who has it.
        sender: Holder,
        /// The layer.
        image: Arc<zbelastic_trainer::elastic::LayerImage>,
    },
}

/// Sorts a worker's frame by how it travels.
#[must_use]
pub fn outgoing(frame: PeerFrame) -> Outgoing {
    let PeerFrame { generation, sender, body } = frame;
    let (class, body, floats) = match body {
        PeerBody::Frame(Frame { turn, lap, flow, pass, floats }) => {
            (Kind::Boundary, HeadBody::Frame { turn, lap, flow, pass }, Floats::One(floats))
        }
        PeerBody::Prefix(prefix) => (Kind::Prefix, HeadBody::Prefix(prefix), Floats::None),
        PeerBody::Gradients { turn, of, gradients } => {
            let layers = gradients.iter().map(|gradient| gradient.layer).collect();
            let body = HeadBody::Gradients { turn, of, layers };
            (Kind::Gradients(of), body, Floats::Layers(gradients))
        }
        PeerBody::Fetch { layer, version } => {
            return Outgoing::Fetch(LayerMessage::Fetch { generation, sender, layer, version });
        }
        PeerBody::Layer(image) => return Outgoing::Layer { generation, sender, image },
    };
    let head = Head { generation, sender, body };
    let meta = postcard::to_allocvec(&head).expect("a vector takes all bytes");
    let frame = OutgoingFrame::new(class.of(generation), meta, Arc::new(floats));
    Outgoing::Frame(frame.expect("a plan has no longer frames than the lane takes"))
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
        HeadBody::Prefix(prefix) => PeerBody::Prefix(prefix),
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

/// What the workers of a plan may send `me`: boundary tensors and sums from every stage, and from
/// each its own gradient. Longer or shorter frames close the connection before a byte is allocated.
///
/// # Errors
/// If a plan has longer frames than the lane takes.
pub fn frame_rules(
    plan: &PlanRecord,
    me: NodeId,
    model: &ModelConfig,
    batch: BatchShape,
) -> Result<FrameRules, RuleError> {
    let boundary = batch.microbatch.rows() * model.width as usize;
    let specs = model_layers(model);
    let mut rules = FrameRules::new();
    let now = plan.generation;
    for (holder, of) in plan.stages.iter().zip(plan.stage_indices()) {
        if holder.node == me {
            continue;
        }
        let lengths = plan.layers_of(of).map(|layer| specs[layer.index()].len()).collect();
        rules.allow(holder.node, Kind::Boundary.of(now), vec![boundary])?;
        rules.allow(holder.node, Kind::Prefix.of(now), Vec::new())?;
        rules.allow(holder.node, Kind::Gradients(of).of(now), lengths)?;
    }
    Ok(rules)
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
