//! DualPipeV (DeepSeek-AI, *DualPipe*, 2025, after Qi et al., arXiv 2405.15362; PyTorch's
//! `ScheduleDualPipeV`).
//!
//! The placement of ZB-V. In the steady part every forward pass of one leg is paired with a
//! backward pass of the other, of another microbatch, and a system with much communication within a
//! layer (all-to-all between experts) lets the two overlap: one computes while the other's messages
//! are in flight. Here a pair runs in sequence, F and then BW; no operation of a program marks two
//! as overlapping. So this is the order, with the bubble it has without overlap, which is not below
//! that of ZB-V.
//!
//! B is split from W only where a gradient arrives earlier by it: for the first microbatches that
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
    let mut writer = PassWriter::new(size, stage);
    for _ in 0..2 * behind {
        writer.f(Leg::Down);
    }
    for _ in 0..before {
        writer.f(Leg::Down);
        writer.f(Leg::Up);
    }
    for _ in 0..behind {
        writer.b(Leg::Up);
        writer.w(Leg::Up);
        writer.f(Leg::Up);
    }
    for _ in 0..size.microbatch_count - microbatches_least(size.stage_count) + before {
        writer.f(Leg::Down);
        writer.bw(Leg::Up);
        writer.f(Leg::Up);
        writer.bw(Leg::Down);
    }
    for _ in 0..behind {
        writer.bw(Leg::Up);
        writer.f(Leg::Up);
        writer.bw(Leg::Down);
    }
    drain(&mut writer, before, behind);
    writer.into_ops()
}

/// Drains the pipeline when no F is left: from half of the passes on W is held back, and runs where
/// B would have to wait.
fn drain(writer: &mut PassWriter, before: u32, behind: u32) {
    let legs = (0..before).flat_map(|_| [Leg::Up, Leg::Down]);
    let mut held_back = VecDeque::new();
    for (number, leg) in (0..).zip(legs) {
        if number < before {
            writer.bw(leg);
        } else {
            writer.b(leg);
            held_back.push_back(leg);
        }
    }
    for _ in 0..behind {
        writer.w(held_back.pop_front().expect("at least one stage is before: this one"));
        writer.b(Leg::Down);
        held_back.push_back(Leg::Down);
    }
    for leg in held_back {
        writer.w(leg);
    }
}
