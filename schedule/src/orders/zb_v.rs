//! ZB-V as the paper's known schedule (Qi et al., arXiv 2401.10241 v1, section 6).
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
    let mut writer = PassWriter::new(size, stage);
    warm_up(&mut writer, stage, from_here);
    steady(&mut writer, microbatches_run_through(size));
    cool_down(&mut writer, stage, from_here);
    writer.into_ops()
}

fn warm_up(writer: &mut PassWriter, stage: u32, from_here: u32) {
    for _ in 0..2 * from_here - 1 {
        writer.f(Leg::Down);
    }
    for _ in 0..stage {
        writer.f(Leg::Up);
        writer.f(Leg::Down);
    }
    for _ in 0..from_here {
        writer.f(Leg::Up);
        writer.b(Leg::Up);
        writer.w(Leg::Up);
    }
}

fn steady(writer: &mut PassWriter, all: u32) {
    while writer.forwards(Leg::Up) < all {
        if writer.forwards(Leg::Down) < all {
            writer.f(Leg::Down);
        }
        writer.b(Leg::Down);
        writer.w(Leg::Down);
        writer.f(Leg::Up);
        writer.b(Leg::Up);
        writer.w(Leg::Up);
    }
}

fn cool_down(writer: &mut PassWriter, stage: u32, from_here: u32) {
    for _ in 0..stage {
        writer.b(Leg::Down);
        writer.b(Leg::Up);
    }
    for _ in 0..from_here {
        writer.b(Leg::Down);
        writer.w(Leg::Down);
    }
    for leg in [Leg::Up, Leg::Down] {
        while writer.owes_w(leg) {
            writer.w(leg);
        }
    }
}
