//! The order of each schedule's passes as its paper gives it, stage by stage.
//!
//! One file a family. An order is made of counts, not of times: which order is best for given times is
//! the solver's question, and what is copied while given passes run that of [`crate::offload`].
//! Every one lets a chunk's weight gradients run in microbatch order, because the sum of a
//! gradient must not depend on the schedule.

mod bidirectional;
mod breadth_first;
mod dual_pipe_v;
mod grid;
mod grouped;
mod interleaved;
mod one_f_one_b;
mod one_f_one_b_v;
mod seq_one_f_one_b;
mod size;
mod v_pattern;
mod vee;
mod zb_v;
mod zero_bubble;

pub(crate) use one_f_one_b::run as one_f_one_b_run;
pub use size::{GenerateError, PipelineSize, check_size};

use crate::kind::ScheduleKind;
use crate::op::{Compute, Op, Pass};

/// The operations of each stage of a pipeline of this size; `None` for ZB auto, whose order no paper
/// gives: it is solved.
///
/// # Errors
/// As [`check_size`].
pub(crate) fn ops(
    kind: ScheduleKind,
    size: PipelineSize,
) -> Result<Option<Vec<Vec<Op>>>, GenerateError> {
    check_size(kind, size)?;
    let stage_count = size.stage_count;
    let each = |stage_ops: &dyn Fn(u32) -> Vec<Op>| (0..stage_count).map(stage_ops).collect();
    let stages = match kind {
        ScheduleKind::GPipe | ScheduleKind::LoopedBfs => {
            each(&|stage| breadth_first::stage_ops(size, stage))
        }
        ScheduleKind::OneFOneB => each(&|stage| one_f_one_b::stage_ops(size, stage)),
        ScheduleKind::Interleaved => each(&|stage| interleaved::stage_ops(size, stage)),
        ScheduleKind::ZbH1 => each(&|stage| zero_bubble::stage_ops(size, stage, 1)),
        ScheduleKind::ZbH2 => each(&|stage| zero_bubble::stage_ops(size, stage, 2)),
        ScheduleKind::ZbAuto => return Ok(None),
        ScheduleKind::ZbV => each(&|stage| zb_v::stage_ops(size, stage)),
        ScheduleKind::Gis => each(&|stage| grouped::stage_ops(size, stage, stage_count)),
        ScheduleKind::GisH => {
            each(&|stage| grouped::stage_ops(size, stage, stage_count.div_ceil(2)))
        }
        ScheduleKind::Po
        | ScheduleKind::PoHalf
        | ScheduleKind::PoFull
        | ScheduleKind::PoSelective => each(&|stage| grouped::stage_ops(size, stage, 1)),
        ScheduleKind::VHalf => v_pattern::program_ops(size, v_pattern::half),
        ScheduleKind::VMin => v_pattern::program_ops(size, v_pattern::min),
        ScheduleKind::OneFOneBV => one_f_one_b_v::program_ops(size),
        ScheduleKind::DualPipeV => each(&|stage| dual_pipe_v::stage_ops(size, stage)),
        ScheduleKind::Gems => each(&|stage| bidirectional::gems(size, stage)),
        ScheduleKind::Chimera => each(&|stage| bidirectional::chimera(size, stage)),
        ScheduleKind::Seq1F1B => each(&|stage| seq_one_f_one_b::stage_ops(size, stage)),
    };
    Ok(Some(stages))
}

pub(crate) fn compute(compute: Compute, chunk: u32, microbatch: u32) -> Op {
    Op::Compute(compute, Pass::new(chunk, microbatch))
}
