//! What the schedules over a V-shaped placement share: its two legs, and a writer of passes in
//! microbatch order.

use super::{PipelineSize, compute};
use crate::op::{Compute, Op};

/// A stage's two chunks: the one of the leg down, and the one of the leg up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leg {
    Down,
    Up,
}

impl Leg {
    /// The chunk of this leg on `stage`.
    pub(super) fn chunk(self, size: PipelineSize, stage: u32) -> u32 {
        match self {
            Self::Down => stage,
            Self::Up => 2 * size.stage_count - 1 - stage,
        }
    }
}

/// Writes passes in microbatch order, one counter for each kind of pass and leg. What goes beyond
/// the last microbatch is counted and left out.
pub(super) struct PassWriter {
    stage: u32,
    size: PipelineSize,
    forwards: [u32; 2],
    backwards: [u32; 2],
    weights: [u32; 2],
    ops: Vec<Op>,
}

impl PassWriter {
    pub(super) fn new(size: PipelineSize, stage: u32) -> Self {
        Self { stage, size, forwards: [0; 2], backwards: [0; 2], weights: [0; 2], ops: Vec::new() }
    }

    pub(super) fn f(&mut self, leg: Leg) {
        let microbatch = count_up(&mut self.forwards[leg as usize]);
        self.push(Compute::F, leg, microbatch);
    }

    pub(super) fn b(&mut self, leg: Leg) {
        let microbatch = count_up(&mut self.backwards[leg as usize]);
        self.push(Compute::B, leg, microbatch);
    }

    pub(super) fn w(&mut self, leg: Leg) {
        let microbatch = count_up(&mut self.weights[leg as usize]);
        self.push(Compute::W, leg, microbatch);
    }

    pub(super) fn bw(&mut self, leg: Leg) {
        let microbatch = count_up(&mut self.backwards[leg as usize]);
        assert_eq!(count_up(&mut self.weights[leg as usize]), microbatch, "no W is held back");
        self.push(Compute::BW, leg, microbatch);
    }

    pub(super) fn forwards(&self, leg: Leg) -> u32 {
        self.forwards[leg as usize]
    }

    /// Whether a B of this leg has no W yet.
    pub(super) fn owes_w(&self, leg: Leg) -> bool {
        self.weights[leg as usize] < self.backwards[leg as usize]
    }

    pub(super) fn into_ops(self) -> Vec<Op> {
        self.ops
    }

    fn push(&mut self, pass: Compute, leg: Leg, microbatch: u32) {
        if microbatch < self.size.microbatch_count {
            self.ops.push(compute(pass, leg.chunk(self.size, self.stage), microbatch));
        }
    }
}

/// Adds one to `count`, and returns what it was before.
fn count_up(count: &mut u32) -> u32 {
    *count += 1;
    *count - 1
}
