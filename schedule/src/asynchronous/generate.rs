//! Makes the programs of asynchronous schedules, ready to run.
//!
//! In three passes over a stage's list. The *order* of F and BW is 1F1B without a flush, or the
//! order that a kind has instead. *Versions* are laid on it by counting updates as they come. Then
//! it is known which operation reads each version last, and the versions that must be *kept*: a
//! version that is read after the update which would destroy it is stashed before and freed after.
//! Transfers follow from the placement, as in synchronous programs.

mod order;
mod stashing;

use std::collections::BTreeMap;

use zbelastic_types::{ChunkIndex, StageIndex};

use super::kind::AsyncKind;
use super::op::{AsyncOp, DynamicOptions, VersionShift, WeightVersion};
use super::program::{ASYNC_PASS_COUNT_MAX, AsyncProgram};
use super::variant::AsyncVariant;
use super::versions::{VersionRead, backward_reads, forward_reads};
use crate::limits::TEXT_COUNT_MAX;
use crate::op::{Compute, Op, Pass};

/// The schedule and the size that a program is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncRequest {
    /// The schedule whose program is generated.
    pub kind: AsyncKind,
    /// Number of stages of a pipeline.
    pub stage_count: u32,
    /// Number of minibatches of the segment.
    pub minibatch_count: u32,
    /// Number of microbatches of each minibatch.
    pub microbatch_count: u32,
    /// Pipelines side by side (AvgPipe; others have one for every value here).
    pub replica_count: u32,
    /// The options of a region whose order is found while it runs (AMPNet).
    pub dynamic: DynamicOptions,
    /// How the schedule is run.
    pub variant: AsyncVariant,
}

/// Why a schedule has no program of that size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AsyncGenerateError {
    /// A count is zero, or more than a program text may name.
    #[error("{kind} needs 1 to {max} {name}, found {found}")]
    Count {
        /// The schedule that was requested.
        kind: AsyncKind,
        /// Name of the quantity that is counted, as the error text has it.
        name: &'static str,
        /// The most there may be.
        max: u64,
        /// The count that was requested.
        found: u32,
    },
    /// More passes than any reader of a program accepts.
    #[error(
        "an asynchronous program has at most {ASYNC_PASS_COUNT_MAX} passes (chunks times \
         microbatches of the whole run), found {found}"
    )]
    PassCount {
        /// Number of passes of the requested program.
        found: u64,
    },
    /// 2BW and WPipe accumulate over at least as many microbatches as there are stages, so that a
    /// version is complete before it is read.
    #[error(
        "{kind} with {stage_count} stages needs at least {stage_count} microbatches in a \
         minibatch, found {microbatch_count}"
    )]
    FewMicrobatches {
        /// The schedule that was requested.
        kind: AsyncKind,
        /// The requested number of stages.
        stage_count: u32,
        /// The requested number of microbatches per minibatch.
        microbatch_count: u32,
    },
    /// The schedule does not have that variant.
    #[error("{kind} has no{variant}")]
    Variant {
        /// The schedule that was requested.
        kind: AsyncKind,
        /// The variant that was requested.
        variant: AsyncVariant,
    },
    /// Minibatches are dealt round over the pipelines, and each gets as many.
    #[error("{minibatch_count} minibatches cannot be dealt evenly to {replica_count} pipelines")]
    UnevenPipelines {
        /// The requested number of minibatches.
        minibatch_count: u32,
        /// The requested number of pipelines side by side.
        replica_count: u32,
    },
}

/// The program of a schedule, with transfers and versions.
///
/// # Errors
/// If a count is out of range, or the schedule does not exist for this size.
pub fn generate_async(request: AsyncRequest) -> Result<AsyncProgram, AsyncGenerateError> {
    check_counts(request)?;
    let AsyncRequest { kind, variant, .. } = request;
    if !variant.is_of(kind) {
        return Err(AsyncGenerateError::Variant { kind, variant });
    }
    let mut program = empty(request);
    check_size(&program)?;
    let stages = (0..request.stage_count).map(StageIndex);
    program.stages = match request.kind {
        AsyncKind::AmpNet => stages
            .map(|stage| vec![AsyncOp::Dynamic(ChunkIndex(stage.0), request.dynamic)])
            .collect(),
        AsyncKind::PipeDream
        | AsyncKind::PipeDream2Bw
        | AsyncKind::PipeMare
        | AsyncKind::XPipe
        | AsyncKind::SpecTrain
        | AsyncKind::WPipe
        | AsyncKind::AvgPipe => order::orders(&program)
            .iter()
            .map(|order| stashing::with_stashes(&program, &with_versions(&program, order)))
            .collect(),
    };
    Ok(program)
}

fn check_counts(request: AsyncRequest) -> Result<(), AsyncGenerateError> {
    let AsyncRequest { kind, dynamic, .. } = request;
    let text = u64::from(TEXT_COUNT_MAX);
    let counts = [
        ("stages", text / u64::from(kind.chunks_per_stage()), request.stage_count),
        ("minibatches", ASYNC_PASS_COUNT_MAX, request.minibatch_count),
        ("microbatches", text, request.microbatch_count),
        ("pipelines", text, request.replica_count),
        ("microbatches under way", text, dynamic.cap),
        ("gradients an update", text, dynamic.update_every),
    ];
    match counts.into_iter().find(|(_, max, found)| *found == 0 || u64::from(*found) > *max) {
        Some((name, max, found)) => Err(AsyncGenerateError::Count { kind, name, max, found }),
        None => Ok(()),
    }
}

fn empty(request: AsyncRequest) -> AsyncProgram {
    let AsyncRequest { kind, stage_count, minibatch_count, microbatch_count, .. } = request;
    let replica_count = if kind == AsyncKind::AvgPipe { request.replica_count } else { 1 };
    let update_every = match kind {
        AsyncKind::PipeDream | AsyncKind::SpecTrain => 1,
        AsyncKind::AmpNet => request.dynamic.update_every,
        AsyncKind::PipeDream2Bw
        | AsyncKind::PipeMare
        | AsyncKind::XPipe
        | AsyncKind::WPipe
        | AsyncKind::AvgPipe => microbatch_count,
    };
    let placement = kind.placement(stage_count);
    // A warm-up of nothing is none.
    let variant = match request.variant {
        AsyncVariant::WarmUp(0) => AsyncVariant::Usual,
        variant @ (AsyncVariant::Usual | AsyncVariant::WarmUp(_) | AsyncVariant::VerticalSync) => {
            variant
        }
    };
    AsyncProgram {
        kind,
        placement,
        replica_count,
        minibatch_count,
        microbatch_count,
        update_every,
        variant,
        stages: Vec::new(),
    }
}

fn check_size(program: &AsyncProgram) -> Result<(), AsyncGenerateError> {
    let AsyncProgram { kind, microbatch_count, minibatch_count, replica_count, .. } = *program;
    let stage_count = program.placement.stage_count();
    let found = program.pass_count();
    if found > ASYNC_PASS_COUNT_MAX {
        return Err(AsyncGenerateError::PassCount { found });
    }
    let is_filled = match kind {
        AsyncKind::PipeDream2Bw | AsyncKind::WPipe => microbatch_count >= stage_count,
        AsyncKind::PipeDream
        | AsyncKind::PipeMare
        | AsyncKind::XPipe
        | AsyncKind::SpecTrain
        | AsyncKind::AvgPipe
        | AsyncKind::AmpNet => true,
    };
    if !is_filled {
        return Err(AsyncGenerateError::FewMicrobatches { kind, stage_count, microbatch_count });
    }
    if !minibatch_count.is_multiple_of(replica_count) {
        return Err(AsyncGenerateError::UnevenPipelines { minibatch_count, replica_count });
    }
    Ok(())
}

/// A chunk's weights in one pipeline.
type ReplicaChunk = (ChunkIndex, u32);

/// The versions of a chunk's weights in one pipeline so far, and the gradients since the newest.
#[derive(Default)]
struct VersionProgress {
    newest: u32,
    accumulated: u32,
    /// The versions that F and B read of the minibatch's first microbatch.
    first: [Option<WeightVersion>; 2],
}

/// Gives every pass its version, and puts updates where gradients are complete.
fn with_versions(program: &AsyncProgram, order: &[Op]) -> Vec<AsyncOp> {
    let mut progress_of: BTreeMap<ReplicaChunk, VersionProgress> = BTreeMap::new();
    let mut read_forward: BTreeMap<Pass, WeightVersion> = BTreeMap::new();
    let mut ops = Vec::with_capacity(2 * order.len());
    for op in order {
        let Op::Compute(compute, pass) = *op else { unreachable!("an order is of passes") };
        let replica = program.replica_of(pass.microbatch);
        let progress = progress_of.entry((pass.chunk, replica)).or_default();
        let (read, side) = match compute {
            Compute::F => (forward_reads(program, pass.chunk, pass.microbatch), 0),
            Compute::B | Compute::W | Compute::WE | Compute::BW | Compute::R => {
                (backward_reads(program, pass.chunk, pass.microbatch), 1)
            }
        };
        let number = |base, shift| WeightVersion { replica, base, shift };
        let version = match read {
            VersionRead::Newest(shift) => number(progress.newest, shift),
            VersionRead::Number(base) => number(base, VersionShift::None),
            VersionRead::AsFirst => progress.first[side].expect("the first microbatch comes first"),
            VersionRead::AsForward => read_forward.remove(&pass).expect("F comes before B"),
        };
        if pass.microbatch.0.is_multiple_of(program.microbatch_count) {
            progress.first[side] = Some(version);
        }
        ops.push(AsyncOp::Compute(compute, pass, version));
        if compute == Compute::F {
            read_forward.insert(pass, version);
            continue;
        }
        progress.accumulated += 1;
        if progress.accumulated == program.update_every {
            (progress.accumulated, progress.newest) = (0, progress.newest + 1);
            ops.push(AsyncOp::Step(pass.chunk, number(progress.newest, VersionShift::None)));
            if program.kind == AsyncKind::AvgPipe {
                ops.push(AsyncOp::Average(pass.chunk, number(progress.newest, VersionShift::None)));
            }
        }
    }
    ops
}

#[cfg(test)]
mod tests {
    use super::{AsyncGenerateError, AsyncRequest, generate_async};
    use crate::asynchronous::check::check_async;
    use crate::asynchronous::kind::AsyncKind;
    use crate::asynchronous::op::{DynamicOptions, DynamicRule};
    use crate::asynchronous::program::AsyncProgram;
    use crate::asynchronous::variant::AsyncVariant;

    fn request(kind: AsyncKind, stages: u32, minibatches: u32, microbatches: u32) -> AsyncRequest {
        AsyncRequest {
            kind,
            stage_count: stages,
            minibatch_count: minibatches,
            microbatch_count: microbatches,
            replica_count: 2,
            dynamic: DynamicOptions { rule: DynamicRule::Newest, cap: 3, update_every: 2 },
            variant: AsyncVariant::Usual,
        }
    }

    fn lines(request: AsyncRequest) -> Vec<String> {
        let program = generate_async(request).expect("the size is legal");
        program.to_string().lines().skip(1).map(str::to_owned).collect()
    }

    #[test]
    fn every_schedule_is_legal_at_every_size_and_reads_back() {
        for kind in AsyncKind::ALL {
            for (p, t, m) in
                (1..=5).flat_map(|p| (1..=4).flat_map(move |t| (1..=6).map(move |m| (p, 2 * t, m))))
            {
                match generate_async(request(kind, p, t, m)) {
                    Ok(program) => {
                        assert_eq!(check_async(&program), Ok(()), "{program}");
                        assert_eq!(program.to_string().parse::<AsyncProgram>(), Ok(program));
                    }
                    Err(AsyncGenerateError::FewMicrobatches { .. }) => assert!(m < p),
                    Err(error) => panic!("{kind} {p} {t} {m}: {error}"),
                }
            }
        }
    }

    #[test]
    fn pipedream_stashes_what_is_still_under_way() {
        assert_eq!(
            lines(request(AsyncKind::PipeDream, 2, 3, 1)),
            [
                "stage 0: 0F0@0 0SEND_F0 0F1@0 0SEND_F1 0RECV_B0 0BW0@0 0STASH0 0STEP1 \
                 0F2@1 0SEND_F2 0RECV_B1 0BW1@0 0FREE0 0STASH1 0STEP2 \
                 0RECV_B2 0BW2@1 0FREE1 0STEP3",
                "stage 1: 1RECV_F0 1F0@0 1BW0@0 1SEND_B0 1STEP1 1RECV_F1 1F1@1 1BW1@1 1SEND_B1 \
                 1STEP2 1RECV_F2 1F2@2 1BW2@2 1SEND_B2 1STEP3",
            ],
        );
    }

    #[test]
    fn with_vertical_sync_a_microbatch_reads_one_version_everywhere() {
        let usual = request(AsyncKind::PipeDream, 2, 3, 1);
        let all = lines(AsyncRequest { variant: AsyncVariant::VerticalSync, ..usual });
        assert_eq!(all[0], lines(usual)[0], "the first stage is the one that the others follow");
        assert_eq!(
            all[1],
            "stage 1: 1RECV_F0 1F0@0 1BW0@0 1SEND_B0 1STASH0 1STEP1 1RECV_F1 1F1@0 1BW1@0 1SEND_B1 \
             1FREE0 1STASH1 1STEP2 1RECV_F2 1F2@1 1BW2@1 1SEND_B2 1FREE1 1STEP3",
        );
    }

    #[test]
    fn a_warm_up_flushes_and_needs_no_correction() {
        let usual = request(AsyncKind::PipeMare, 2, 3, 1);
        assert_eq!(
            lines(AsyncRequest { variant: AsyncVariant::WarmUp(1), ..usual })[0],
            "stage 0: 0F0@0 0SEND_F0 0RECV_B0 0BW0@0 0STEP1 0F1@1 0SEND_F1 0F2@1 0SEND_F2 0RECV_B1 \
             0PREDICT_DELTA1-1 0BW1@1-1 0FREE1-1 0STEP2 0RECV_B2 0PREDICT_DELTA2-1 0BW2@2-1 0FREE2-1 \
             0STEP3",
        );
        let none = AsyncRequest { variant: AsyncVariant::WarmUp(0), ..usual };
        assert_eq!(generate_async(none), generate_async(usual));
    }

    #[test]
    fn two_buffers_delay_every_gradient_by_one_update() {
        assert_eq!(
            lines(request(AsyncKind::PipeDream2Bw, 1, 4, 1)),
            ["stage 0: 0F0@0 0BW0@0 0STASH0 0STEP1 0F1@0 0BW1@0 0FREE0 0STASH1 0STEP2 \
              0F2@1 0BW2@1 0FREE1 0STASH2 0STEP3 0F3@2 0BW3@2 0FREE2 0STEP4"],
        );
    }

    #[test]
    fn temporary_versions_live_as_long_as_they_are_read() {
        assert_eq!(
            lines(request(AsyncKind::PipeMare, 2, 2, 1))[0],
            "stage 0: 0F0@0 0SEND_F0 0F1@0 0SEND_F1 0RECV_B0 0PREDICT_DELTA0-1 0BW0@0-1 0FREE0-1 \
             0STEP1 0RECV_B1 0PREDICT_DELTA1-1 0BW1@1-1 0FREE1-1 0STEP2",
        );
        assert_eq!(
            lines(request(AsyncKind::SpecTrain, 1, 2, 1))[0],
            "stage 0: 0F0@0 0BW0@0 0STEP1 0F1@1 0BW1@1 0STEP2",
        );
        assert_eq!(
            lines(request(AsyncKind::XPipe, 1, 2, 2))[0],
            "stage 0: 0PREDICT_ADAM0+1 0F0@0+1 0BW0@0+1 0F1@0+1 0BW1@0+1 0FREE0+1 0STEP1 \
             0PREDICT_ADAM1+1 0F2@1+1 0BW2@1+1 0F3@1+1 0BW3@1+1 0FREE1+1 0STEP2",
        );
    }

    #[test]
    fn groups_and_pipelines_have_lines_of_their_own() {
        assert_eq!(
            lines(request(AsyncKind::WPipe, 1, 2, 1))[0],
            "stage 0: 0F0@0 0LOCAL_F0 1F0@0 1BW0@0 1LOCAL_B0 1STEP1 0F1@0 0LOCAL_F1 \
             0BW0@0 0STASH0 0STEP1 1F1@1 1BW1@1 1LOCAL_B1 1STEP2 0BW1@0 0FREE0 0STEP2",
        );
        assert_eq!(
            lines(request(AsyncKind::AvgPipe, 1, 2, 1))[0],
            "stage 0: 0F0@0 0BW0@0 0STEP1 0AVERAGE1 0F1@0/1 0BW1@0/1 0STEP1/1 0AVERAGE1/1",
        );
        assert_eq!(lines(request(AsyncKind::AmpNet, 1, 2, 1))[0], "stage 0: 0DYNAMIC(newest,3,2)");
    }

    #[test]
    fn other_ways_of_running_are_legal_at_every_size_and_read_back() {
        let warm_up = AsyncVariant::WarmUp(3);
        let vertical = AsyncVariant::VerticalSync;
        for (kind, variant) in [(AsyncKind::PipeMare, warm_up), (AsyncKind::PipeDream, vertical)] {
            for (p, t, m) in
                (1..=5).flat_map(|p| (1..=6).flat_map(move |t| (1..=4).map(move |m| (p, t, m))))
            {
                let request = AsyncRequest { variant, ..request(kind, p, t, m) };
                let program = generate_async(request).expect("the size is legal");
                assert_eq!(check_async(&program), Ok(()), "{program}");
                assert_eq!(program.to_string().parse::<AsyncProgram>(), Ok(program));
            }
        }
        let kind = AsyncKind::XPipe;
        let variant = vertical;
        let request = AsyncRequest { variant, ..request(kind, 2, 2, 2) };
        assert_eq!(generate_async(request), Err(AsyncGenerateError::Variant { kind, variant }));
    }

    #[test]
    fn sizes_are_limited() {
        let check = |request, expected: AsyncGenerateError| {
            assert_eq!(generate_async(request), Err(expected));
        };
        let kind = AsyncKind::AvgPipe;
        let uneven = AsyncGenerateError::UnevenPipelines { minibatch_count: 3, replica_count: 2 };
        check(request(kind, 2, 3, 1), uneven);
        let none = AsyncGenerateError::Count { kind, name: "stages", max: 65_536, found: 0 };
        check(request(kind, 0, 2, 1), none);
        let few = AsyncGenerateError::FewMicrobatches {
            kind: AsyncKind::PipeDream2Bw,
            stage_count: 3,
            microbatch_count: 2,
        };
        check(request(AsyncKind::PipeDream2Bw, 3, 2, 2), few);
        let found = (1 << 20) + 2;
        let many = AsyncGenerateError::PassCount { found };
        check(request(AsyncKind::PipeDream, 2, (1 << 19) + 1, 1), many);
    }
}
