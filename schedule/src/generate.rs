//! Makes the program of a schedule, arithmetic only, in the order its paper gives.
//!
//! One file a family. A generator knows counts, no times: which order is best for given times is
//! the solver's question. Every generator lets a chunk's weight gradients run in microbatch order,
//! because the sum of a gradient must not depend on the schedule.

mod gpipe;
mod interleaved;
mod one_f_one_b;
mod zb_v;
mod zero_bubble;

pub(crate) use one_f_one_b::run as one_f_one_b_run;

use crate::kind::ScheduleKind;
use crate::op::{Compute, Op, Pass};
use crate::program::{PASS_COUNT_MAX, Program, TEXT_COUNT_MAX};
use crate::solve::{Problem, StageCosts, solve};

/// Why a schedule has no program of that size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// No stage, or more than a program text may name.
    #[error("{kind} needs 1 to {max} stages, found {found}")]
    StageCount {
        /// The schedule asked for.
        kind: ScheduleKind,
        /// The most stages it can have.
        max: u32,
        /// The stages asked for.
        found: u32,
    },
    /// No microbatch, or more than a program text may name.
    #[error("a step needs 1 to {TEXT_COUNT_MAX} microbatches, found {found}")]
    MicrobatchCount {
        /// The microbatches asked for.
        found: u32,
    },
    /// More passes than any reader of a program accepts.
    #[error(
        "a program has at most {PASS_COUNT_MAX} passes (chunks times microbatches), found {found}"
    )]
    PassCount {
        /// The passes the generator would run through.
        found: u64,
    },
    /// Interleaved deals microbatches in groups of one a stage.
    #[error(
        "interleaved with {stage_count} stages needs a multiple of {stage_count} microbatches, \
         found {microbatch_count}"
    )]
    UnevenGroups {
        /// The stages asked for.
        stage_count: u32,
        /// The microbatches asked for.
        microbatch_count: u32,
    },
}

/// The size of a pipeline: what a generator needs to know beside the stage it writes for.
#[derive(Clone, Copy)]
struct Size {
    stage_count: u32,
    microbatch_count: u32,
}

/// The program of `kind` over `stage_count` stages and `microbatch_count` microbatches, without
/// transfers and updates ([`crate::lower`] adds them).
///
/// # Errors
/// If there is no stage, no microbatch or too many of them, or if `kind` is interleaved and the
/// microbatches do not form whole groups of one a stage.
pub fn generate(
    kind: ScheduleKind,
    stage_count: u32,
    microbatch_count: u32,
) -> Result<Program, GenerateError> {
    check_size(kind, stage_count, microbatch_count)?;
    let size = Size { stage_count, microbatch_count };
    if kind == ScheduleKind::ZbAuto {
        return Ok(auto(size));
    }
    let stage_ops = |stage| match kind {
        ScheduleKind::GPipe => gpipe::stage_ops(size, stage),
        ScheduleKind::OneFOneB => one_f_one_b::stage_ops(size, stage),
        ScheduleKind::Interleaved => interleaved::stage_ops(size, stage),
        ScheduleKind::ZbH1 => zero_bubble::stage_ops(size, stage, 1),
        ScheduleKind::ZbH2 => zero_bubble::stage_ops(size, stage, 2),
        ScheduleKind::ZbV => zb_v::stage_ops(size, stage),
        ScheduleKind::ZbAuto => unreachable!("it was solved above"),
    };
    Ok(Program {
        kind,
        placement: kind.placement(stage_count),
        microbatch_count,
        window: None,
        stages: (0..stage_count).map(stage_ops).collect(),
    })
}

/// Whether a schedule has a program of that size.
///
/// # Errors
/// As [`generate`].
pub fn check_size(
    kind: ScheduleKind,
    stage_count: u32,
    microbatch_count: u32,
) -> Result<(), GenerateError> {
    let size = Size { stage_count, microbatch_count };
    let max = TEXT_COUNT_MAX / kind.chunks_per_stage();
    if !(1..=max).contains(&stage_count) {
        return Err(GenerateError::StageCount { kind, max, found: stage_count });
    }
    if !(1..=TEXT_COUNT_MAX).contains(&microbatch_count) {
        return Err(GenerateError::MicrobatchCount { found: microbatch_count });
    }
    let run_through = match kind {
        ScheduleKind::ZbV => zb_v::microbatches_run_through(size),
        ScheduleKind::GPipe
        | ScheduleKind::OneFOneB
        | ScheduleKind::Interleaved
        | ScheduleKind::ZbH1
        | ScheduleKind::ZbH2
        | ScheduleKind::ZbAuto => microbatch_count,
    };
    let found = u64::from(stage_count * kind.chunks_per_stage()) * u64::from(run_through);
    if found > PASS_COUNT_MAX {
        return Err(GenerateError::PassCount { found });
    }
    if kind == ScheduleKind::Interleaved && !microbatch_count.is_multiple_of(stage_count) {
        return Err(GenerateError::UnevenGroups { stage_count, microbatch_count });
    }
    Ok(())
}

/// The best order for equal times and the memory of 1F1B, whatever share of it B leaves to W: who
/// knows times and limits asks [`solve`] with them.
fn auto(size: Size) -> Program {
    let Size { stage_count, microbatch_count } = size;
    let limit = f64::from(stage_count);
    let costs =
        StageCosts { f: 1.0, b: 1.0, w: 1.0, after_forward: 1.0, after_input_gradient: 1.0, limit };
    let stages = vec![costs; stage_count as usize];
    let problem = Problem { stages, link: 0.0, microbatch_count };
    solve(&problem).expect("a stage's memory holds a microbatch").program
}

pub(crate) fn compute(compute: Compute, chunk: u32, microbatch: u32) -> Op {
    Op::Compute(compute, Pass::new(chunk, microbatch))
}

#[cfg(test)]
mod tests {
    use super::{GenerateError, generate};
    use crate::kind::ScheduleKind;
    use crate::program::{PASS_COUNT_MAX, TEXT_COUNT_MAX};

    fn check(kind: ScheduleKind, size: (u32, u32), expected: Result<(), GenerateError>) {
        assert_eq!(generate(kind, size.0, size.1).map(drop), expected, "{kind} {size:?}");
    }

    #[test]
    fn a_pipeline_has_stages_and_microbatches() {
        for kind in ScheduleKind::ALL {
            let max = TEXT_COUNT_MAX / kind.chunks_per_stage();
            let stages = |found| Err(GenerateError::StageCount { kind, max, found });
            check(kind, (0, 8), stages(0));
            check(kind, (max + 1, 1), stages(max + 1));
            check(kind, (2, 0), Err(GenerateError::MicrobatchCount { found: 0 }));
            let found = TEXT_COUNT_MAX + 1;
            check(kind, (1, found), Err(GenerateError::MicrobatchCount { found }));
            check(kind, (1, 1), Ok(()));
        }
    }

    #[test]
    fn passes_are_limited() {
        let most = u32::try_from(PASS_COUNT_MAX).expect("the limit fits") / 128;
        check(ScheduleKind::GPipe, (128, most), Ok(()));
        let found = PASS_COUNT_MAX + 128;
        check(ScheduleKind::GPipe, (128, most + 1), Err(GenerateError::PassCount { found }));
        // ZB-V runs through 2p - 1 microbatches even when asked for one.
        let found = 2 * 2048 * 4095;
        check(ScheduleKind::ZbV, (2048, 1), Err(GenerateError::PassCount { found }));
    }

    #[test]
    fn interleaved_needs_whole_groups() {
        let uneven = GenerateError::UnevenGroups { stage_count: 4, microbatch_count: 6 };
        check(ScheduleKind::Interleaved, (4, 6), Err(uneven));
        check(ScheduleKind::Interleaved, (4, 8), Ok(()));
        check(ScheduleKind::Interleaved, (1, 7), Ok(()));
    }

    /// The rows of stages 0 and 1 as the figures of the papers have them.
    #[test]
    fn orders_are_those_of_the_papers() {
        let check = |kind, size: (u32, u32), expected: [&str; 2]| {
            let program = generate(kind, size.0, size.1).expect("the size is legal");
            let text = program.to_string();
            let lines: Vec<&str> = text.lines().skip(1).take(2).collect();
            assert_eq!(lines, expected, "{kind}");
        };
        check(
            ScheduleKind::GPipe,
            (2, 2),
            ["stage 0: 0F0 0F1 0BW0 0BW1", "stage 1: 1F0 1F1 1BW0 1BW1"],
        );
        check(
            ScheduleKind::OneFOneB,
            (2, 3),
            ["stage 0: 0F0 0F1 0BW0 0F2 0BW1 0BW2", "stage 1: 1F0 1BW0 1F1 1BW1 1F2 1BW2"],
        );
        check(
            ScheduleKind::Interleaved,
            (2, 2),
            [
                "stage 0: 0F0 0F1 2F0 2F1 2BW0 2BW1 0BW0 0BW1",
                "stage 1: 1F0 1F1 3F0 3BW0 3F1 3BW1 1BW0 1BW1",
            ],
        );
        check(
            ScheduleKind::ZbH1,
            (2, 3),
            [
                "stage 0: 0F0 0F1 0B0 0W0 0F2 0B1 0W1 0B2 0W2",
                "stage 1: 1F0 1B0 1F1 1B1 1W0 1F2 1B2 1W1 1W2",
            ],
        );
        check(
            ScheduleKind::ZbH2,
            (2, 3),
            [
                "stage 0: 0F0 0F1 0F2 0B0 0W0 0B1 0W1 0B2 0W2",
                "stage 1: 1F0 1B0 1F1 1B1 1F2 1B2 1W0 1W1 1W2",
            ],
        );
        check(
            ScheduleKind::ZbV,
            (2, 3),
            [
                "stage 0: 0F0 0F1 0F2 3F0 3B0 3W0 3F1 3B1 3W1 0B0 0W0 3F2 3B2 3W2 \
                 0B1 0W1 0B2 0W2",
                "stage 1: 1F0 2F0 1F1 2F1 2B0 2W0 1F2 1B0 1W0 2F2 2B1 2W1 \
                 1B1 2B2 1B2 1W1 2W2 1W2",
            ],
        );
    }
}
