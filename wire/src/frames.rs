//! Floats between workers: which frames there are, how long each is, and what they become.
//!
//! Both ends know a frame's length from the plan, before it arrives. What is too long for one frame
//! is cut where both ends cut alike. Gradients for copies are used part by part as they arrive;
//! what else was cut is joined again ([`assembly`]).

mod assembly;
mod class_name;
mod links;
mod rules;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::validation::{Prefix, Seal, Turn};
use zbelastic_kernels::{DeviceFault, HostFloats, HostTensor, TensorHandle};
use zbelastic_schedule::{Flow, Pass, TreeLevel};
use zbelastic_trainer::elastic::{
    FrameLimits, GRADIENT_FRAME_LIMITS, GradientFloats, GradientPart, LayerGradient, LayerImage,
};
use zbelastic_trainer::plan::SLICES_OF_EQUAL_TIME_MAX;
use zbelastic_trainer::runtime::{MessageNumber, PeerBody, PeerFrame};
use zbelastic_trainer::stage::{Frame, PartialExchange, PartialGradient, PassMode};
use zbelastic_transport::frame::FrameTooLarge;
use zbelastic_transport::{
    FrameBody, FrameClass, FramePart, OutgoingFrame, ReceivedFrame, Urgency,
};
use zbelastic_types::{ChunkIndex, Generation, LayerId, NodeId, SliceIndex, StageIndex};

use crate::messages::{LayerMessage, decode, encode};
use assembly::{AssembledFrame, PieceHeader};
pub use assembly::{FrameAssembly, FramePiece};
pub use class_name::FrameClassName;
pub use links::{AnnouncedTensor, LinkBody, LinkFrame};
pub use rules::FrameExpectations;

/// What a frame is. Its class names the plan as well: what is as long as under one plan is longer
/// under another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TensorFrameKind {
    /// A boundary tensor of a slice: each slice may have a length of its own.
    Boundary(SliceIndex),
    /// Sums of the stages before; it has no floats.
    Prefix,
    /// That the last chunk is done with held-out text; it has no floats.
    Receipt,
    /// A frame of the gradient of the sender's stage: a node has one.
    Gradients(u32),
    /// A piece of a layer's gradient, for a worker that follows it.
    Update(LayerId, u32),
    /// A piece of what this chunk gets of another's gradient in an exchange: of its sibling's, or of the
    /// other end's of a tied model. Exchanges with one sender differ in length.
    Partial(ChunkIndex, PartialExchange, u32),
    /// A boundary tensor of a slice in bfloat16, two numbers a float.
    Halves(SliceIndex),
    /// Between the ends of a link from device to device; it has no floats.
    Link,
}

/// Bits of a class that name the kind.
const KIND_BITS: u32 = 24;
/// Pieces that the gradient of a layer that is followed has at most: 16 MiB each, and longer ones
/// for a layer of more than 2^30 floats.
const LAYER_PIECES_MAX: u32 = 256;
/// Slices whose boundary tensors have a kind of their own; those behind share these kinds. Of
/// slices that may be unequally long there are no more.
const BOUNDARIES_MAX: u32 = SLICES_OF_EQUAL_TIME_MAX;
/// Before the kind of the boundary tensors of slice 1.
const BOUNDARIES: u32 = 3;
/// Behind those of the last slice.
const BOUNDARIES_END: u32 = BOUNDARIES + BOUNDARIES_MAX;
/// The kind of the first slice's boundary tensors in bfloat16, behind which those of the others
/// come.
const HALVES: u32 = 1 << 12;
/// Behind those of the last slice.
const HALVES_END: u32 = HALVES + BOUNDARIES_MAX;
/// The kind of frames between the ends of a link.
const LINK: u32 = 1 << 13;
/// Behind it.
const LINK_END: u32 = LINK + 1;
/// Pieces that a chunk's gradient has at most on its way to its sibling: 16 MiB each, and longer ones
/// for a chunk of more than 2^32 floats.
const PARTIAL_PIECES_MAX: u32 = 1024;
/// The kind of the first piece of the first exchange for the first chunk. There are 2^23.
const PARTIALS: u32 = 1 << 23;
/// Exchanges of a chunk: those with its siblings, and one between the ends of a tied model.
const PARTIAL_EXCHANGES: u32 = (2 * TreeLevel::COUNT_MAX as u32).next_power_of_two();
/// Chunks whose gradients have a kind of their own; those behind share these kinds. Chunks of one
/// stage are at most twice as many stages apart as a pipeline has, and those have 256 at most.
const PARTIAL_CHUNKS: u32 = 512;
/// The kind of the first layer's update. There are 2^18: at most 1024 layers.
const UPDATES: u32 = 1 << 18;
/// Frames that a stage's gradient has at most: half a tebibyte of them, each of 16 MiB.
const GRADIENT_FRAMES_MAX: u32 = 1 << 15;
/// The kind of the first frame of a stage's gradient.
const GRADIENTS: u32 = 1 << 15;
/// Behind that of the last.
const GRADIENTS_END: u32 = GRADIENTS + GRADIENT_FRAMES_MAX;

impl TensorFrameKind {
    /// Its class under a plan. Plans whose numbers are 2^8 apart share classes.
    const fn of(self, generation: Generation) -> FrameClass {
        let kind = match self {
            Self::Boundary(slice) => match slice.0 % BOUNDARIES_MAX {
                0 => 1,
                slice => BOUNDARIES + slice,
            },
            Self::Halves(slice) => HALVES + slice.0 % BOUNDARIES_MAX,
            Self::Link => LINK,
            Self::Prefix => 2,
            Self::Receipt => 3,
            Self::Gradients(piece) => GRADIENTS.wrapping_add(piece),
            Self::Update(layer, piece) => {
                let before = layer.0.wrapping_mul(LAYER_PIECES_MAX);
                UPDATES.wrapping_add(before).wrapping_add(piece)
            }
            Self::Partial(chunk, exchange, piece) => {
                let before = (chunk.0 % PARTIAL_CHUNKS) * PARTIAL_EXCHANGES;
                let before = before + exchange.0 as u32 % PARTIAL_EXCHANGES;
                PARTIALS.wrapping_add(before * PARTIAL_PIECES_MAX).wrapping_add(piece)
            }
        };
        // What a peer names may be no layer and no piece of any plan. It has some class then, and
        // decoding it finds that out.
        FrameClass(((generation.0 as u32) << KIND_BITS) | (kind & ((1 << KIND_BITS) - 1)))
    }
}

/// What a frame carries beside its floats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct TensorFrameHeader {
    generation: Generation,
    sender: Holder,
    body: TensorFrameHeaderBody,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum TensorFrameHeaderBody {
    Frame {
        turn: Turn,
        lap: PassMode,
        flow: Flow,
        pass: Pass,
    },
    Receipt {
        turn: Turn,
        pass: Pass,
    },
    Prefix(Prefix),
    Gradients {
        turn: Turn,
        of: StageIndex,
        parts: Vec<PartHeader>,
        piece: MessageNumber,
    },
    Update {
        turn: Turn,
        before: Option<Seal>,
        layer: LayerId,
        piece: MessageNumber,
    },
    Partial {
        turn: Turn,
        chunk: ChunkIndex,
        losses: u32,
        piece: MessageNumber,
    },
    Halves {
        turn: Turn,
        lap: PassMode,
        flow: Flow,
        pass: Pass,
        len: u32,
    },
    /// A partial gradient of an exchange behind the first.
    Later {
        turn: Turn,
        chunk: ChunkIndex,
        exchange: PartialExchange,
        losses: u32,
        piece: MessageNumber,
    },
    /// Between the ends of a link. A worker of an earlier version drops it.
    Link(LinkBody),
}

/// The layer of a part of a gradient, and the index of its first float in the layer.
type PartHeader = (LayerId, u64);

/// Why a frame is not one of a worker's.
#[derive(Debug, thiserror::Error)]
pub enum FrameFault {
    /// The header of the frame cannot be decoded.
    #[error("a frame whose head cannot be read: {0}")]
    Head(#[from] postcard::Error),
    /// The frame does not have the parts that its header names.
    #[error("a frame of {found} parts, its head says {expected}")]
    Parts {
        /// Number of parts by the header.
        expected: usize,
        /// Number of parts that arrived.
        found: usize,
    },
    /// The frame does not have as many numbers as its header names.
    #[error("a frame of {found} pairs of numbers, its head says {expected}")]
    Halves {
        /// Number of pairs by the header.
        expected: usize,
        /// Number of pairs that arrived.
        found: usize,
    },
    /// It is another piece than its class names, so its length was checked by another's rule.
    #[error("a frame of {expected} is one of {found} by its head")]
    Class {
        /// The piece by its class.
        expected: FrameClassName,
        /// The piece by the header.
        found: FrameClassName,
    },
    /// It names another node as its sender than the one that sent it.
    #[error("sent by node {expected}, the frame speaks for node {found}")]
    Sender {
        /// The node that sent it.
        expected: NodeId,
        /// The node that it names.
        found: NodeId,
    },
}

/// The floats of a frame.
enum FrameFloats {
    None,
    One(Vec<f32>),
    Gradients(Vec<GradientFloats>),
}

impl FrameBody for FrameFloats {
    fn parts(&self) -> Vec<&[f32]> {
        match self {
            Self::None => Vec::new(),
            Self::One(floats) => vec![floats],
            Self::Gradients(parts) => parts.iter().map(|part| &**part).collect(),
        }
    }
}

/// Floats that arrived, in memory of the lane: it reads the next frame into it once they are
/// dropped.
struct LaneFloats(FramePart);

impl AsRef<[f32]> for LaneFloats {
    fn as_ref(&self) -> &[f32] {
        &self.0
    }
}

/// What a worker's frame becomes.
pub enum OutgoingMessage {
    /// Frames of the tensor lane.
    Frames(Vec<OutgoingFrame>),
    /// A request for a layer.
    Request(LayerMessage),
    /// A layer, to be offered.
    Layer(LayerOffer),
}

/// A layer that another worker requests.
pub struct LayerOffer {
    /// The plan it is for.
    pub generation: Generation,
    /// The worker that has it.
    pub sender: Holder,
    /// The layer's state, as it is fetched.
    pub image: Arc<LayerImage>,
    /// The turn whose seal it waits for, if it is requested ahead.
    pub open: Option<Turn>,
}

/// Why a worker's frame is not sent.
#[derive(Debug, thiserror::Error)]
pub enum OutgoingError {
    /// It is longer than the lane takes.
    #[error(transparent)]
    TooLong(#[from] FrameTooLarge),
    /// The device failed before it was read.
    #[error(transparent)]
    Fault(#[from] DeviceFault),
}

/// Sorts a worker's frame by how it travels. What a device still copies is waited for.
///
/// # Errors
/// If the device fails, or a boundary tensor is longer than the lane takes. No plan that was loaded
/// has one: [`FrameExpectations::rules`] refuses it.
pub fn outgoing(frame: PeerFrame) -> Result<OutgoingMessage, OutgoingError> {
    let PeerFrame { generation, sender, body } = frame;
    let one = |kind: TensorFrameKind, body: TensorFrameHeaderBody, floats: FrameFloats| {
        let header = TensorFrameHeader { generation, sender, body };
        OutgoingFrame::new(kind.of(generation), encode(&header), Arc::new(floats))
    };
    let frames = match body {
        PeerBody::Frame(Frame {
            turn,
            mode: PassMode::Evaluation,
            flow: Flow::Backward,
            pass,
            ..
        }) => vec![one(
            TensorFrameKind::Receipt,
            TensorFrameHeaderBody::Receipt { turn, pass },
            FrameFloats::None,
        )?],
        PeerBody::Frame(Frame { turn, mode, flow, pass, tensor }) => {
            let (kind, body, floats) = match tensor.into_host()? {
                HostTensor::Floats(floats) => {
                    let body = TensorFrameHeaderBody::Frame { turn, lap: mode, flow, pass };
                    (TensorFrameKind::Boundary(pass.slice), body, floats)
                }
                HostTensor::Halves(halves) => {
                    let len = halves.len() as u32;
                    let body = TensorFrameHeaderBody::Halves { turn, lap: mode, flow, pass, len };
                    (TensorFrameKind::Halves(pass.slice), body, paired(&halves))
                }
            };
            vec![one(kind, body, FrameFloats::One(floats))?]
        }
        PeerBody::Prefix(prefix) => {
            vec![one(
                TensorFrameKind::Prefix,
                TensorFrameHeaderBody::Prefix(prefix),
                FrameFloats::None,
            )?]
        }
        PeerBody::Gradients { turn, of, number, parts } => {
            let header = |part: &GradientPart| (part.layer(), part.first() as u64);
            let headers = parts.iter().map(header).collect();
            let piece = number;
            let body = TensorFrameHeaderBody::Gradients { turn, of, parts: headers, piece };
            let floats = gradient_floats(&parts)?;
            let frame = one(TensorFrameKind::Gradients(number.index), body, floats)?;
            vec![frame.with_urgency(Urgency::Background)]
        }
        // Which layers are followed changes from step to step, and a frame's length must not.
        PeerBody::StandbyUpdate { turn, before, gradients } => {
            let cut = gradients.iter().flat_map(|gradient| {
                let pieces = pieces(gradient.clone(), LAYER_PIECES_MAX);
                pieces.map(|(piece, parts)| (gradient.layer, piece, parts))
            });
            cut.map(|(layer, piece, parts)| {
                let body = TensorFrameHeaderBody::Update { turn, before, layer, piece };
                let floats = gradient_floats(&parts)?;
                let frame = one(TensorFrameKind::Update(layer, piece.index), body, floats)?;
                Ok(frame.with_urgency(Urgency::Background))
            })
            .collect::<Result<_, OutgoingError>>()?
        }
        PeerBody::Partial(partial) => {
            let PartialGradient { turn, chunk, exchange, .. } = partial;
            let losses = partial.losses.len() as u32;
            let run = Arc::new(LayerGradient { layer: RUN, turn, g: run_of(partial).into() });
            let cut = pieces(run, PARTIAL_PIECES_MAX).map(|(piece, parts)| {
                let body = match exchange {
                    PartialExchange::FIRST => {
                        TensorFrameHeaderBody::Partial { turn, chunk, losses, piece }
                    }
                    _ => TensorFrameHeaderBody::Later { turn, chunk, exchange, losses, piece },
                };
                let floats = gradient_floats(&parts)?;
                Ok(one(TensorFrameKind::Partial(chunk, exchange, piece.index), body, floats)?)
            });
            cut.collect::<Result<_, OutgoingError>>()?
        }
        PeerBody::Fetch { layer, version } => {
            return Ok(OutgoingMessage::Request(LayerMessage::Fetch {
                generation,
                sender,
                layer,
                version,
            }));
        }
        PeerBody::StandbyRequest { layer } => {
            return Ok(OutgoingMessage::Request(LayerMessage::Follow {
                generation,
                sender,
                layer,
            }));
        }
        PeerBody::Layer(image) => {
            return Ok(OutgoingMessage::Layer(LayerOffer {
                generation,
                sender,
                image,
                open: None,
            }));
        }
        PeerBody::StandbyLayer { open, image } => {
            return Ok(OutgoingMessage::Layer(LayerOffer {
                generation,
                sender,
                image: Arc::new(image.wait()?),
                open: Some(open),
            }));
        }
    };
    Ok(OutgoingMessage::Frames(frames))
}

/// The floats of parts of a gradient, which are waited for.
fn gradient_floats(parts: &[GradientPart]) -> Result<FrameFloats, DeviceFault> {
    let floats = parts.iter().map(GradientPart::wait);
    Ok(FrameFloats::Gradients(floats.collect::<Result<_, _>>()?))
}

/// The bits of two numbers in each float, the first one's below; behind an odd number of them
/// zeros.
fn paired(halves: &[u16]) -> Vec<f32> {
    let pair = |pair: &[u16]| {
        let second = pair.get(1).copied().unwrap_or(0);
        f32::from_bits(u32::from(pair[0]) | u32::from(second) << 16)
    };
    halves.chunks(2).map(pair).collect()
}

/// The `len` numbers of such pairs.
fn unpaired(floats: &[f32], len: usize) -> Vec<u16> {
    let mut halves = Vec::with_capacity(2 * floats.len());
    for float in floats {
        halves.extend([float.to_bits() as u16, (float.to_bits() >> 16) as u16]);
    }
    halves.truncate(len);
    halves
}

/// What fits into a piece of so many floats that are cut into this many pieces at most.
fn piece_limits(len: usize, pieces_max: u32) -> FrameLimits {
    let floats = GRADIENT_FRAME_LIMITS.floats.max(len.div_ceil(pieces_max as usize));
    FrameLimits { floats, ..GRADIENT_FRAME_LIMITS }
}

/// The pieces that a gradient travels in.
fn pieces(
    gradient: Arc<LayerGradient>,
    pieces_max: u32,
) -> impl Iterator<Item = (MessageNumber, Vec<GradientPart>)> {
    let limits = piece_limits(gradient.g.len(), pieces_max);
    let frames = GradientPart::messages(&[gradient], limits);
    let count = frames.len() as u32;
    (0..).zip(frames).map(move |(index, parts)| (MessageNumber { index, count }, parts))
}

/// The layer that stands for all floats of a partial gradient: they are a run, of whatever layers.
const RUN: LayerId = LayerId(u32::MAX);

/// A partial gradient as floats: behind it the bits of its losses, two floats each.
fn run_of(partial: PartialGradient) -> Vec<f32> {
    let PartialGradient { mut floats, losses, .. } = partial;
    for bits in losses.into_iter().map(f64::to_bits) {
        floats.extend([f32::from_bits(bits as u32), f32::from_bits((bits >> 32) as u32)]);
    }
    floats
}

/// The partial gradient of such floats. How many of them it must have is known to the receiver.
fn partial_of(
    (turn, chunk, exchange, losses): (Turn, ChunkIndex, PartialExchange, u32),
    mut floats: Vec<f32>,
) -> PartialGradient {
    let halves = floats.split_off(floats.len().saturating_sub(2 * losses as usize));
    let loss = |pair: &[f32]| {
        f64::from_bits(u64::from(pair[0].to_bits()) | u64::from(pair[1].to_bits()) << 32)
    };
    let losses = halves.chunks_exact(2).map(loss).collect();
    PartialGradient { turn, chunk, exchange, floats, losses }
}

/// The content of a received frame.
pub enum IncomingFrame {
    /// A complete frame of a worker.
    Whole(Box<PeerFrame>),
    /// A piece of a frame.
    Piece(Box<FramePiece>),
    /// A frame between the ends of a link.
    Link(Box<LinkFrame>),
}

/// Decodes a received frame of a worker, or a piece of one.
///
/// # Errors
/// If it is no frame of a worker.
pub fn incoming(frame: ReceivedFrame) -> Result<IncomingFrame, FrameFault> {
    let TensorFrameHeader { generation, sender, body } = decode(&frame.meta)?;
    let expected = frame.from.node;
    let found = sender.node;
    if expected != found {
        return Err(FrameFault::Sender { expected, found });
    }
    let class = frame.class;
    let found = frame.parts.len();
    let mut parts = frame.parts.into_iter();
    let mut next = || parts.next().ok_or(FrameFault::Parts { expected: 1, found });
    let piece_of = |kind, of, piece, floats: Result<FramePart, FrameFault>| {
        check_class(class, kind, generation)?;
        let floats = floats?;
        let header = PieceHeader { generation, sender, of };
        Ok(FramePiece { header, piece, floats }.whole_if_alone())
    };
    let body = match body {
        TensorFrameHeaderBody::Frame { turn, lap: mode, flow, pass } => {
            check_class(class, TensorFrameKind::Boundary(pass.slice), generation)?;
            let tensor = next()?.into_vec().into();
            PeerBody::Frame(Frame { turn, mode, flow, pass, tensor })
        }
        TensorFrameHeaderBody::Halves { turn, lap: mode, flow, pass, len } => {
            check_class(class, TensorFrameKind::Halves(pass.slice), generation)?;
            let floats = next()?;
            let expected = (len as usize).div_ceil(2);
            let found = floats.len();
            if expected != found {
                return Err(FrameFault::Halves { expected, found });
            }
            let tensor = TensorHandle::from(HostTensor::Halves(unpaired(&floats, len as usize)));
            PeerBody::Frame(Frame { turn, mode, flow, pass, tensor })
        }
        TensorFrameHeaderBody::Link(body) => {
            check_class(class, TensorFrameKind::Link, generation)?;
            return Ok(IncomingFrame::Link(Box::new(LinkFrame { generation, sender, body })));
        }
        TensorFrameHeaderBody::Receipt { turn, pass } => {
            let mode = PassMode::Evaluation;
            let flow = Flow::Backward;
            let tensor = Vec::new().into();
            PeerBody::Frame(Frame { turn, mode, flow, pass, tensor })
        }
        TensorFrameHeaderBody::Prefix(prefix) => PeerBody::Prefix(prefix),
        TensorFrameHeaderBody::Update { turn, before, layer, piece } => {
            let kind = TensorFrameKind::Update(layer, piece.index);
            let of = AssembledFrame::Update { turn, before, layer };
            return piece_of(kind, of, piece, next());
        }
        TensorFrameHeaderBody::Partial { turn, chunk, losses, piece } => {
            let exchange = PartialExchange::FIRST;
            let kind = TensorFrameKind::Partial(chunk, exchange, piece.index);
            let of = AssembledFrame::Partial { turn, chunk, exchange, losses };
            return piece_of(kind, of, piece, next());
        }
        TensorFrameHeaderBody::Later { turn, chunk, exchange, losses, piece } => {
            let kind = TensorFrameKind::Partial(chunk, exchange, piece.index);
            let of = AssembledFrame::Partial { turn, chunk, exchange, losses };
            return piece_of(kind, of, piece, next());
        }
        TensorFrameHeaderBody::Gradients { turn, of, parts: headers, piece } => {
            check_class(class, TensorFrameKind::Gradients(piece.index), generation)?;
            let expected = headers.len();
            if expected != found {
                return Err(FrameFault::Parts { expected, found });
            }
            let part = |((layer, first), floats): (PartHeader, FramePart)| {
                let floats = HostFloats::foreign(Arc::new(LaneFloats(floats)));
                GradientPart::arrived(layer, turn, first as usize, floats)
            };
            let parts = headers.into_iter().zip(parts).map(part).collect();
            PeerBody::Gradients { turn, of, number: piece, parts }
        }
    };
    Ok(IncomingFrame::Whole(Box::new(PeerFrame { generation, sender, body })))
}

/// Whether a frame was received under the rule for its content. Else a sender could send the same
/// piece under ever new numbers.
fn check_class(
    class: FrameClass,
    kind: TensorFrameKind,
    generation: Generation,
) -> Result<(), FrameFault> {
    let found = kind.of(generation);
    if class == found {
        return Ok(());
    }
    Err(FrameFault::Class { expected: FrameClassName(class), found: FrameClassName(found) })
}
