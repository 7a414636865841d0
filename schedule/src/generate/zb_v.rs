//! ZB-V as written by hand (Qi et al., arXiv 2401.10241 v1, section 6).
//!
//! Two chunks a stage, down the stages and up again, so that the loss is where the input is and
//! the first stage need not wait for a message to cross the whole pipeline. Every stage holds the
//! activations of at most `p` whole microbatches, and nothing waits when F, B and W take equally
//! long. The pattern needs `2p - 1` microbatches to unfold: for fewer it is written for that many
//! and the surplus is left out.

use super::PipelineSize;
use super::vee::{Leg, PassWriter};
use crate::op::Op;

/// Microbatches the pattern runs through.
pub(super) fn microbatches_run_through(size: PipelineSize) -> u32 {
    size.microbatch_count.max(2 * size.stage_count - 1)
}

pub(super) fn stage_ops(size: PipelineSize, stage: u32) -> Vec<Op> {
    let from_here = size.stage_count - stage;
    let mut hand = PassWriter::new(size, stage);
    warm_up(&mut hand, stage, from_here);
    steady(&mut hand, microbatches_run_through(size));
    cool_down(&mut hand, stage, from_here);
    hand.into_ops()
}

fn warm_up(hand: &mut PassWriter, stage: u32, from_here: u32) {
    for _ in 0..2 * from_here - 1 {
        hand.f(Leg::Down);
    }
    for _ in 0..stage {
        hand.f(Leg::Up);
        hand.f(Leg::Down);
    }
    for _ in 0..from_here {
        hand.f(Leg::Up);
        hand.b(Leg::Up);
        hand.w(Leg::Up);
    }
}

fn steady(hand: &mut PassWriter, all: u32) {
    while hand.forwards(Leg::Up) < all {
        if hand.forwards(Leg::Down) < all {
            hand.f(Leg::Down);
        }
        hand.b(Leg::Down);
        hand.w(Leg::Down);
        hand.f(Leg::Up);
        hand.b(Leg::Up);
        hand.w(Leg::Up);
    }
}

fn cool_down(hand: &mut PassWriter, stage: u32, from_here: u32) {
    for _ in 0..stage {
        hand.b(Leg::Down);
        hand.b(Leg::Up);
    }
    for _ in 0..from_here {
        hand.b(Leg::Down);
        hand.w(Leg::Down);
    }
    for leg in [Leg::Up, Leg::Down] {
        while hand.owes_w(leg) {
            hand.w(leg);
        }
    }
}
