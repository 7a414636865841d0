//! Frames between the two ends of a link from device to device. They have no floats: those go another
//! way.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::validation::Turn;
use zbelastic_kernels::TensorHandle;
use zbelastic_schedule::{Flow, Pass};
use zbelastic_trainer::runtime::{PeerBody, PeerFrame};
use zbelastic_trainer::stage::{Frame, PassMode};
use zbelastic_transport::OutgoingFrame;
use zbelastic_types::Generation;

use super::{FrameFloats, TensorFrameHeader, TensorFrameHeaderBody, TensorFrameKind};
use crate::messages::encode;

/// A boundary tensor that a worker sends from device to device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AnnouncedTensor {
    turn: Turn,
    mode: PassMode,
    flow: Flow,
    pass: Pass,
}

impl AnnouncedTensor {
    /// The announcement of a worker's frame, and the handle of its tensor; none if it is no boundary
    /// tensor.
    #[must_use]
    pub fn of(frame: &PeerFrame) -> Option<(Self, &TensorHandle)> {
        let PeerBody::Frame(Frame { turn, mode, flow, pass, tensor }) = &frame.body else {
            return None;
        };
        Some((Self { turn: *turn, mode: *mode, flow: *flow, pass: *pass }, tensor))
    }

    /// The frame of a worker with the tensor that arrived.
    #[must_use]
    pub fn arrived(
        self,
        (generation, sender): (Generation, Holder),
        tensor: TensorHandle,
    ) -> PeerFrame {
        let Self { turn, mode, flow, pass } = self;
        let body = PeerBody::Frame(Frame { turn, mode, flow, pass, tensor });
        PeerFrame { generation, sender, body }
    }
}

/// What one end of a link sends the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LinkBody {
    /// From the receiver: the sender is to begin its end, with this id of a communicator.
    Invite(Vec<u8>),
    /// From the sender: this tensor is sent now.
    Announced {
        /// Its number among those of the link.
        number: u32,
        /// Its length in numbers.
        len: u32,
        /// The pass that it is for.
        tensor: AnnouncedTensor,
    },
    /// From the receiver: the tensor of this number has come.
    Received(u32),
    /// From the sender: the link is over.
    SenderEnded,
    /// From the receiver: the link is over.
    ReceiverEnded,
}

/// A frame between the ends of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkFrame {
    /// The plan that the link is of.
    pub generation: Generation,
    /// The worker that sends the frame.
    pub sender: Holder,
    /// Its content.
    pub body: LinkBody,
}

impl LinkFrame {
    /// The frame as the tensor lane carries it.
    #[must_use]
    pub fn frame(self) -> OutgoingFrame {
        let Self { generation, sender, body } = self;
        let body = TensorFrameHeaderBody::Link(body);
        let header = encode(&TensorFrameHeader { generation, sender, body });
        let class = TensorFrameKind::Link.of(generation);
        OutgoingFrame::new(class, header, Arc::new(FrameFloats::None)).expect("it has no floats")
    }
}
