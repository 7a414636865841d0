//! Makes the program of a schedule, arithmetic only: in the order of its paper ([`crate::orders`]), or
//! in the solver's for equal times, with the copies of a schedule that offloads.

mod offloaded;

use crate::kind::ScheduleKind;
use crate::op::Op;
use crate::orders::{self, GenerateError, PipelineSize};
use crate::placement::Placement;
use crate::program::Program;
use crate::solve::{ChunkCosts, ScheduleProblem, StageCosts, solve};

/// The program of `kind` over `stage_count` stages and `microbatch_count` microbatches, with as
/// many chunks as the schedule has by default; without transfers and updates ([`crate::lower`] adds
/// them).
///
/// # Errors
/// As [`generate_sized`].
pub fn generate(
    kind: ScheduleKind,
    stage_count: u32,
    microbatch_count: u32,
) -> Result<Program, GenerateError> {
    generate_sized(kind, PipelineSize::of(kind, stage_count, microbatch_count))
}

/// The program of `kind` for a pipeline of this size, without transfers and updates.
///
/// # Errors
/// If there is no stage, no microbatch or too many of them, if a stage of `kind` does not hold so
/// many chunks, if `kind` does not cut microbatches into so many slices, if it is interleaved and
/// the microbatches do not form whole groups of one a stage, if it is DualPipeV and they are fewer
/// than two a stage, if it has two replicas and microbatches are not even in number, or if it is Chimera
/// and the stages are odd.
pub fn generate_sized(kind: ScheduleKind, size: PipelineSize) -> Result<Program, GenerateError> {
    let PipelineSize { stage_count, chunks_per_stage, microbatch_count, slice_count } = size;
    let stages = orders::ops(kind, size)?.unwrap_or_else(|| auto(size));
    let chunk_count = stage_count * chunks_per_stage;
    let program = Program {
        kind,
        placement: Placement::of_shape(kind.shape(), stage_count, chunk_count)
            .expect("the size was checked"),
        microbatch_count,
        slice_count,
        window: None,
        stages,
    };
    Ok(match kind.offload_chunks(chunks_per_stage) {
        Some(chunks) => offloaded::program(&program, chunks),
        None => program,
    })
}

/// The best order for equal times and the memory of 1F1B, whatever share of it B leaves to W. A
/// caller that knows times and limits passes them to [`solve`].
fn auto(size: PipelineSize) -> Vec<Vec<Op>> {
    let PipelineSize { stage_count, microbatch_count, .. } = size;
    let chunks =
        ChunkCosts { f: 1.0, b: 1.0, w: 1.0, after_forward: 1.0, after_input_gradient: 1.0 };
    let stages = vec![StageCosts { chunks, limit: f64::from(stage_count) }; stage_count as usize];
    let problem =
        ScheduleProblem::of_stages(Placement::line(stage_count), &stages, 0.0, microbatch_count);
    solve(&problem).expect("a stage's memory holds a microbatch").program.stages
}

#[cfg(test)]
mod tests {
    use super::generate;
    use crate::kind::ScheduleKind;

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
            ScheduleKind::LoopedBfs,
            (2, 2),
            [
                "stage 0: 0F0 0F1 2F0 2F1 2BW0 2BW1 0BW0 0BW1",
                "stage 1: 1F0 1F1 3F0 3F1 3BW0 3BW1 1BW0 1BW1",
            ],
        );
        check(
            ScheduleKind::DualPipeV,
            (2, 4),
            [
                "stage 0: 0F0 0F1 0F2 3F0 3B0 3W0 3F1 0F3 3BW1 3F2 0BW0 3BW2 3F3 0BW1 \
                 3BW3 0B2 0W2 0B3 0W3",
                "stage 1: 1F0 2F0 1F1 2F1 1F2 2BW0 2F2 1BW0 1F3 2BW1 2F3 1BW1 \
                 2BW2 1BW2 2B3 1B3 2W3 1W3",
            ],
        );
        check(
            ScheduleKind::Gems,
            (2, 4),
            [
                "stage 0: 0F0 0BW0 3F2 3BW2 0F1 0BW1 3F3 3BW3",
                "stage 1: 1F0 1BW0 2F2 2BW2 1F1 1BW1 2F3 2BW3",
            ],
        );
        check(
            ScheduleKind::Chimera,
            (4, 4),
            [
                "stage 0: 0F0 0F1 7F2 7BW2 7F3 7BW3 0BW0 0BW1",
                "stage 1: 1F0 6F2 1F1 6F3 6BW2 1BW0 6BW3 1BW1",
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
            ScheduleKind::Seq1F1B,
            (2, 2),
            [
                "stage 0: 0F0.0 0F0.1 0F1.0 0BW0.1 0F1.1 0BW0.0 0BW1.1 0BW1.0",
                "stage 1: 1F0.0 1F0.1 1BW0.1 1F1.0 1BW0.0 1F1.1 1BW1.1 1BW1.0",
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
