//! DualPipeV (DeepSeek-AI, *DualPipe*, 2025, after Qi et al., arXiv 2405.15362; PyTorch's
//! `ScheduleDualPipeV`).
//!
//! The placement of ZB-V. In the steady part every forward pass of one leg is paired with a backward
//! pass of the other, of another microbatch, and a system with much communication within a layer
//! (all-to-all between experts) lets the two overlap: one computes while the other's messages are
//! under way. Here a pair runs in sequence, F and then BW; no operation of a program marks two as
//! overlapping. So this is the order, with the bubble it has without overlap, which is not below that
//! of ZB-V.
//!
//! B is split from W only where it shortens the way of a gradient: for the first microbatches that
//! come back and for the last ones. The pattern needs `2p` microbatches.

use std::collections::VecDeque;

use super::PipelineSize;
use super::vee::{Leg, PassWriter};
use crate::op::Op;

/// The fewest microbatches for which there is a steady part.
pub(super) fn microbatches_least(stage_count: u32) -> u32 {
    2 * stage_count
}

pub(super) fn stage_ops(size: PipelineSize, stage: u32) -> Vec<Op> {
    let before = stage + 1;
    let behind = size.stage_count - before;
    let mut hand = PassWriter::new(size, stage);
    for _ in 0..2 * behind {
        hand.f(Leg::Down);
    }
    for _ in 0..before {
        hand.f(Leg::Down);
        hand.f(Leg::Up);
    }
    for _ in 0..behind {
        hand.b(Leg::Up);
        hand.w(Leg::Up);
        hand.f(Leg::Up);
    }
    for _ in 0..size.microbatch_count - microbatches_least(size.stage_count) + before {
        hand.f(Leg::Down);
        hand.bw(Leg::Up);
        hand.f(Leg::Up);
        hand.bw(Leg::Down);
    }
    for _ in 0..behind {
        hand.bw(Leg::Up);
        hand.f(Leg::Up);
        hand.bw(Leg::Down);
    }
    drain(&mut hand, before, behind);
    hand.into_ops()
}

/// Nothing is left to go forward: from half of the way on W is held back, and runs where B would
/// have to wait.
fn drain(hand: &mut PassWriter, before: u32, behind: u32) {
    let legs = (0..before).flat_map(|_| [Leg::Up, Leg::Down]);
    let mut held = VecDeque::new();
    for (number, leg) in (0..).zip(legs) {
        if number < before {
            hand.bw(leg);
        } else {
            hand.b(leg);
            held.push_back(leg);
        }
    }
    for _ in 0..behind {
        hand.w(held.pop_front().expect("a stage is before this place: it is this one at least"));
        hand.b(Leg::Down);
        held.push_back(Leg::Down);
    }
    for leg in held {
        hand.w(leg);
    }
}
