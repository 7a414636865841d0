//! Boundary tensors that arrived and wait for their pass.

use std::collections::BTreeMap;

use zbelastic_consensus::validation::Turn;
use zbelastic_kernels::TensorHandle;
use zbelastic_schedule::{Flow, Pass};

use super::frame::{Frame, PassMode};

/// Why a frame was dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoundaryFrameRefusal {
    /// It was computed in a turn that is over or was dropped.
    #[error("a frame of {found}, the open turn is {expected}")]
    Stale {
        /// Turn that is open here.
        expected: Turn,
        /// Turn of the frame.
        found: Turn,
    },
    /// It is not as long as the plan predicts.
    #[error("a frame of {found} floats for {pass:?}, expected {expected}")]
    Length {
        /// The pass that reads it.
        pass: Pass,
        /// Floats the plan predicts.
        expected: usize,
        /// Number of floats that arrived.
        found: usize,
    },
    /// Its pass is not on this stage.
    #[error("a frame for {pass:?}, which is not on this stage")]
    Elsewhere {
        /// The pass that reads it.
        pass: Pass,
    },
    /// More frames wait than two steps have.
    #[error("more than {limit} frames wait")]
    Full {
        /// Frames that may wait.
        limit: usize,
    },
}

type FrameKey = (Turn, PassMode, Flow, Pass);

/// Frames by what they are for. Bounded: a neighbour runs ahead by a step at most.
pub(super) struct FrameInbox {
    frames: BTreeMap<FrameKey, TensorHandle>,
    limit: usize,
    /// Floats of a frame, by the slice that it is of.
    frame_lens: Vec<usize>,
}

impl FrameInbox {
    /// An inbox for at most `limit` frames, of so many floats by the slice that they are of.
    pub(super) fn new(frame_lens: Vec<usize>, limit: usize) -> Self {
        Self { frames: BTreeMap::new(), limit, frame_lens }
    }

    /// Stores a frame, if it belongs.
    pub(super) fn insert(&mut self, now: Turn, frame: Frame) -> Result<(), BoundaryFrameRefusal> {
        self.check(now, &frame)?;
        self.put(frame);
        Ok(())
    }

    /// Stores a frame that was checked.
    pub(super) fn put(&mut self, frame: Frame) {
        let Frame { turn, mode, flow, pass, tensor } = frame;
        self.frames.insert((turn, mode, flow, pass), tensor);
    }

    /// Whether a frame belongs.
    pub(super) fn check(&self, now: Turn, frame: &Frame) -> Result<(), BoundaryFrameRefusal> {
        let Frame { turn, mode, flow, pass, tensor } = frame;
        let turn = *turn;
        let pass = *pass;
        if turn < now {
            return Err(BoundaryFrameRefusal::Stale { expected: now, found: turn });
        }
        let frame_len = self.frame_lens.get(pass.slice.index());
        let frame_len = *frame_len.ok_or(BoundaryFrameRefusal::Elsewhere { pass })?;
        // Nothing flows back from held-out text but receipts, which are empty.
        let expected = match (mode, flow) {
            (PassMode::Evaluation, Flow::Backward) => 0,
            (PassMode::Evaluation, Flow::Forward) | (PassMode::Training, _) => frame_len,
        };
        if tensor.len() != expected {
            let found = tensor.len();
            return Err(BoundaryFrameRefusal::Length { pass, expected, found });
        }
        if self.frames.len() >= self.limit {
            return Err(BoundaryFrameRefusal::Full { limit: self.limit });
        }
        Ok(())
    }

    /// Whether a frame is there.
    pub(super) fn has(&self, turn: Turn, mode: PassMode, flow: Flow, pass: Pass) -> bool {
        self.frames.contains_key(&(turn, mode, flow, pass))
    }

    /// Removes a frame and returns it.
    pub(super) fn take(
        &mut self,
        turn: Turn,
        mode: PassMode,
        flow: Flow,
        pass: Pass,
    ) -> Option<TensorHandle> {
        self.frames.remove(&(turn, mode, flow, pass))
    }

    /// Drops everything of turns before `now`.
    pub(super) fn forget_before(&mut self, now: Turn) {
        self.frames.retain(|(turn, ..), _| *turn >= now);
    }
}
