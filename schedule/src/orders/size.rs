//! Which pipelines a schedule exists for.

use super::{dual_pipe_v, zb_v};
use crate::kind::{ChunkCounts, ScheduleKind};
use crate::limits::{PASS_COUNT_MAX, TEXT_COUNT_MAX};

/// How large a pipeline is: what a generator needs to know beside the stage it writes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineSize {
    /// Number of stages of the pipeline.
    pub stage_count: u32,
    /// Chunks that each stage holds.
    pub chunks_per_stage: u32,
    /// Microbatches of a step.
    pub microbatch_count: u32,
    /// Slices of a microbatch; 1 where they are not cut.
    pub slice_count: u32,
}

impl PipelineSize {
    /// A pipeline with as many chunks and slices as `kind` has by default.
    #[must_use]
    pub const fn of(kind: ScheduleKind, stage_count: u32, microbatch_count: u32) -> Self {
        let chunks_per_stage = kind.chunk_counts().least();
        let slice_count = kind.slice_count();
        Self { stage_count, chunks_per_stage, microbatch_count, slice_count }
    }
}

/// Why a schedule has no program of that size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// No stage, or more than a program text may name.
    #[error("{kind} needs 1 to {max} stages, found {found}")]
    StageCount {
        /// The schedule that was requested.
        kind: ScheduleKind,
        /// The most stages it can have.
        max: u32,
        /// The requested number of stages.
        found: u32,
    },
    /// A number of chunks that the schedule does not have.
    #[error("a stage of {kind} holds {expected} chunks, found {found}")]
    ChunkCount {
        /// The schedule that was requested.
        kind: ScheduleKind,
        /// The chunks its stages may hold.
        expected: ChunkCounts,
        /// The requested number of chunks per stage.
        found: u32,
    },
    /// No microbatch, or more than a program text may name.
    #[error("a step needs 1 to {TEXT_COUNT_MAX} microbatches, found {found}")]
    MicrobatchCount {
        /// The requested number of microbatches per step.
        found: u32,
    },
    /// More passes than any reader of a program accepts.
    #[error(
        "a program has at most {PASS_COUNT_MAX} passes (chunks times microbatches times slices), \
         found {found}"
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
        /// The requested number of stages.
        stage_count: u32,
        /// The requested number of microbatches per step.
        microbatch_count: u32,
    },
    /// The schedule has no steady part for so few microbatches.
    #[error("{kind} with {stage_count} stages needs {least} microbatches or more, found {found}")]
    FewMicrobatches {
        /// The schedule that was requested.
        kind: ScheduleKind,
        /// The requested number of stages.
        stage_count: u32,
        /// The fewest that will do.
        least: u32,
        /// The requested number of microbatches per step.
        found: u32,
    },
    /// On an odd number of stages the two directions would meet in one slot.
    #[error("{kind} needs an even number of stages, found {found}")]
    OddStages {
        /// The schedule that was requested.
        kind: ScheduleKind,
        /// The requested number of stages.
        found: u32,
    },
    /// Two directions run one half of a step's microbatches each.
    #[error("{kind} needs an even number of microbatches, found {found}")]
    OddMicrobatches {
        /// The schedule that was requested.
        kind: ScheduleKind,
        /// The requested number of microbatches per step.
        found: u32,
    },
    /// A number of slices that the schedule does not have.
    #[error("{kind} {}, found {found}", slices_text(*kind))]
    SliceCount {
        /// The schedule that was requested.
        kind: ScheduleKind,
        /// The requested number of slices per microbatch.
        found: u32,
    },
}

fn slices_text(kind: ScheduleKind) -> String {
    if kind.is_sliced() {
        format!("cuts a microbatch into 1 to {TEXT_COUNT_MAX} slices")
    } else {
        "does not cut microbatches into slices: expected 1 slice".to_owned()
    }
}

/// Whether a schedule has a program of that size.
///
/// # Errors
/// As [`generate_sized`](crate::generate_sized).
pub fn check_size(kind: ScheduleKind, size: PipelineSize) -> Result<(), GenerateError> {
    let PipelineSize { stage_count, chunks_per_stage, microbatch_count, slice_count } = size;
    let expected = kind.chunk_counts();
    if !expected.allow(chunks_per_stage) || chunks_per_stage > TEXT_COUNT_MAX {
        return Err(GenerateError::ChunkCount { kind, expected, found: chunks_per_stage });
    }
    let max = TEXT_COUNT_MAX / chunks_per_stage;
    if !(1..=max).contains(&stage_count) {
        return Err(GenerateError::StageCount { kind, max, found: stage_count });
    }
    if !(1..=TEXT_COUNT_MAX).contains(&microbatch_count) {
        return Err(GenerateError::MicrobatchCount { found: microbatch_count });
    }
    let slices_max = if kind.is_sliced() { TEXT_COUNT_MAX } else { 1 };
    if !(1..=slices_max).contains(&slice_count) {
        return Err(GenerateError::SliceCount { kind, found: slice_count });
    }
    let microbatches = microbatches_run_through(kind, size);
    let found = u64::from(stage_count * chunks_per_stage) * microbatches * u64::from(slice_count);
    if found > PASS_COUNT_MAX {
        return Err(GenerateError::PassCount { found });
    }
    if kind == ScheduleKind::Interleaved && !microbatch_count.is_multiple_of(stage_count) {
        return Err(GenerateError::UnevenGroups { stage_count, microbatch_count });
    }
    if kind == ScheduleKind::Chimera && !stage_count.is_multiple_of(2) {
        return Err(GenerateError::OddStages { kind, found: stage_count });
    }
    let least = microbatches_least(kind, stage_count);
    let found = microbatch_count;
    if found < least {
        return Err(GenerateError::FewMicrobatches { kind, stage_count, least, found });
    }
    if !found.is_multiple_of(kind.replica_count()) {
        return Err(GenerateError::OddMicrobatches { kind, found });
    }
    Ok(())
}

/// The fewest microbatches that a schedule exists for: each replica has one.
fn microbatches_least(kind: ScheduleKind, stage_count: u32) -> u32 {
    match kind {
        ScheduleKind::DualPipeV => dual_pipe_v::microbatches_least(stage_count),
        ScheduleKind::Gems | ScheduleKind::Chimera => 2,
        ScheduleKind::GPipe
        | ScheduleKind::OneFOneB
        | ScheduleKind::Interleaved
        | ScheduleKind::ZbH1
        | ScheduleKind::ZbH2
        | ScheduleKind::ZbAuto
        | ScheduleKind::ZbV
        | ScheduleKind::LoopedBfs
        | ScheduleKind::Gis
        | ScheduleKind::GisH
        | ScheduleKind::Po
        | ScheduleKind::VHalf
        | ScheduleKind::VMin
        | ScheduleKind::OneFOneBV
        | ScheduleKind::Seq1F1B
        | ScheduleKind::PoHalf
        | ScheduleKind::PoFull
        | ScheduleKind::PoSelective => 1,
    }
}

/// Microbatches that a generator goes through, those it leaves out again among them.
fn microbatches_run_through(kind: ScheduleKind, size: PipelineSize) -> u64 {
    let count = match kind {
        ScheduleKind::ZbV => zb_v::microbatches_run_through(size),
        // Before it is pulled together, the pattern is as long as two more microbatches a stage.
        ScheduleKind::VHalf | ScheduleKind::VMin | ScheduleKind::OneFOneBV => {
            size.microbatch_count + 2 * size.stage_count
        }
        ScheduleKind::GPipe
        | ScheduleKind::OneFOneB
        | ScheduleKind::Interleaved
        | ScheduleKind::ZbH1
        | ScheduleKind::ZbH2
        | ScheduleKind::ZbAuto
        | ScheduleKind::LoopedBfs
        | ScheduleKind::Gis
        | ScheduleKind::GisH
        | ScheduleKind::Po
        | ScheduleKind::DualPipeV
        | ScheduleKind::Gems
        | ScheduleKind::Chimera
        | ScheduleKind::Seq1F1B
        | ScheduleKind::PoHalf
        | ScheduleKind::PoFull
        | ScheduleKind::PoSelective => size.microbatch_count,
    };
    u64::from(count)
}

#[cfg(test)]
mod tests {
    use super::{GenerateError, PipelineSize};
    use crate::generate::generate_sized;
    use crate::kind::ScheduleKind;
    use crate::limits::{PASS_COUNT_MAX, TEXT_COUNT_MAX};

    fn check(kind: ScheduleKind, size: (u32, u32), expected: Result<(), GenerateError>) {
        check_sized(kind, PipelineSize::of(kind, size.0, size.1), expected);
    }

    fn check_sized(kind: ScheduleKind, size: PipelineSize, expected: Result<(), GenerateError>) {
        assert_eq!(generate_sized(kind, size).map(drop), expected, "{kind} {size:?}");
    }

    #[test]
    fn a_pipeline_has_stages_and_microbatches() {
        for kind in ScheduleKind::ALL {
            let max = TEXT_COUNT_MAX / kind.chunk_counts().least();
            let stages = |found| Err(GenerateError::StageCount { kind, max, found });
            check(kind, (0, 8), stages(0));
            check(kind, (max + 1, 1), stages(max + 1));
            check(kind, (2, 0), Err(GenerateError::MicrobatchCount { found: 0 }));
            let found = TEXT_COUNT_MAX + 1;
            check(kind, (1, found), Err(GenerateError::MicrobatchCount { found }));
            let few = GenerateError::FewMicrobatches { kind, stage_count: 1, least: 2, found: 1 };
            let expected = if kind == ScheduleKind::Chimera {
                Err(GenerateError::OddStages { kind, found: 1 })
            } else if [ScheduleKind::DualPipeV, ScheduleKind::Gems].contains(&kind) {
                Err(few)
            } else {
                Ok(())
            };
            check(kind, (1, 1), expected);
        }
    }

    #[test]
    fn chunks_are_those_that_the_placement_has_room_for() {
        let check = |kind: ScheduleKind, found: u32, is_legal: bool| {
            let expected = kind.chunk_counts();
            let wrong = GenerateError::ChunkCount { kind, expected, found };
            let size = PipelineSize { chunks_per_stage: found, ..PipelineSize::of(kind, 2, 4) };
            check_sized(kind, size, if is_legal { Ok(()) } else { Err(wrong) });
        };
        for (count, on_a_line, in_a_loop, in_a_vee) in
            [(0, false, false, false), (1, true, false, false), (2, false, true, true)]
        {
            check(ScheduleKind::ZbH1, count, on_a_line);
            check(ScheduleKind::Interleaved, count, in_a_loop);
            check(ScheduleKind::ZbV, count, in_a_vee);
        }
        check(ScheduleKind::Interleaved, 5, true);
        check(ScheduleKind::Interleaved, TEXT_COUNT_MAX / 2, true);
        check(ScheduleKind::Interleaved, TEXT_COUNT_MAX + 1, false);
        check(ScheduleKind::ZbV, 3, false);
    }

    #[test]
    fn passes_are_limited() {
        let most = u32::try_from(PASS_COUNT_MAX).expect("the limit fits") / 128;
        check(ScheduleKind::GPipe, (128, most), Ok(()));
        let found = PASS_COUNT_MAX + 128;
        check(ScheduleKind::GPipe, (128, most + 1), Err(GenerateError::PassCount { found }));
        // ZB-V runs through 2p - 1 microbatches even for a step of one.
        let found = 2 * 2048 * 4095;
        check(ScheduleKind::ZbV, (2048, 1), Err(GenerateError::PassCount { found }));
    }

    #[test]
    fn slices_are_for_schedules_that_have_them() {
        let check_slices = |kind, slice_count, expected| {
            let size = PipelineSize { slice_count, ..PipelineSize::of(kind, 2, 4) };
            check_sized(kind, size, expected);
        };
        let refused = |kind, found| Err(GenerateError::SliceCount { kind, found });
        let plain = ScheduleKind::OneFOneB;
        let sliced = ScheduleKind::Seq1F1B;
        check_slices(plain, 1, Ok(()));
        check_slices(plain, 2, refused(plain, 2));
        check_slices(sliced, 1, Ok(()));
        check_slices(sliced, 64, Ok(()));
        check_slices(sliced, 0, refused(sliced, 0));
        check_slices(sliced, TEXT_COUNT_MAX + 1, refused(sliced, TEXT_COUNT_MAX + 1));
        let size = PipelineSize { slice_count: 4097, ..PipelineSize::of(sliced, 2, 512) };
        let found = PASS_COUNT_MAX + 2 * 512;
        check_sized(sliced, size, Err(GenerateError::PassCount { found }));
    }

    #[test]
    fn interleaved_needs_whole_groups() {
        let uneven = GenerateError::UnevenGroups { stage_count: 4, microbatch_count: 6 };
        check(ScheduleKind::Interleaved, (4, 6), Err(uneven));
        check(ScheduleKind::Interleaved, (4, 8), Ok(()));
        check(ScheduleKind::Interleaved, (1, 7), Ok(()));
    }

    #[test]
    fn each_replica_needs_a_microbatch_and_chimera_pairs_of_stages() {
        for (kind, stage_count) in [(ScheduleKind::Gems, 3), (ScheduleKind::Chimera, 4)] {
            let few = GenerateError::FewMicrobatches { kind, stage_count, least: 2, found: 1 };
            check(kind, (stage_count, 1), Err(few));
            check(kind, (stage_count, 2), Ok(()));
            check(kind, (stage_count, 5), Err(GenerateError::OddMicrobatches { kind, found: 5 }));
        }
        let kind = ScheduleKind::Chimera;
        check(kind, (3, 4), Err(GenerateError::OddStages { kind, found: 3 }));
        check(ScheduleKind::Gems, (1, 2), Ok(()));
    }

    #[test]
    fn dual_pipe_needs_two_microbatches_a_stage() {
        let kind = ScheduleKind::DualPipeV;
        let few = GenerateError::FewMicrobatches { kind, stage_count: 3, least: 6, found: 5 };
        check(kind, (3, 5), Err(few));
        check(kind, (3, 6), Ok(()));
    }
}
