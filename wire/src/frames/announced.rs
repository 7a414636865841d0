//! Boundary tensors that go from device to device: what announces them, and the frame they become.

use std::sync::Arc;

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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AnnouncedTensor {
    /// The plan it is of.
    pub generation: Generation,
    /// The worker that sends it.
    pub sender: Holder,
    pub(super) turn: Turn,
    pub(super) mode: PassMode,
    pub(super) flow: Flow,
    pub(super) pass: Pass,
    pub(super) len: u32,
}

impl AnnouncedTensor {
    /// The announcement of a worker's frame; none if it is no boundary tensor.
    #[must_use]
    pub fn of(frame: &PeerFrame) -> Option<Self> {
        let PeerFrame { generation, sender, body: PeerBody::Frame(tensor) } = frame else {
            return None;
        };
        let Frame { turn, mode, flow, pass, tensor } = tensor;
        let (generation, sender, len) = (*generation, *sender, tensor.len() as u32);
        Some(Self { generation, sender, turn: *turn, mode: *mode, flow: *flow, pass: *pass, len })
    }

    /// The numbers of the tensor.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it has no numbers.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The frame that announces it.
    #[must_use]
    pub fn frame(&self) -> OutgoingFrame {
        let Self { generation, sender, turn, mode: lap, flow, pass, len } = *self;
        let body = TensorFrameHeaderBody::Announced { turn, lap, flow, pass, len };
        let header = encode(&TensorFrameHeader { generation, sender, body });
        let class = TensorFrameKind::Announced(pass.slice).of(generation);
        OutgoingFrame::new(class, header, Arc::new(FrameFloats::None)).expect("it has no floats")
    }

    /// The worker's frame with the tensor that arrived.
    #[must_use]
    pub fn arrived(self, tensor: TensorHandle) -> PeerFrame {
        let Self { generation, sender, turn, mode, flow, pass, .. } = self;
        let body = PeerBody::Frame(Frame { turn, mode, flow, pass, tensor });
        PeerFrame { generation, sender, body }
    }
}
