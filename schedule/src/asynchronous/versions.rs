//! What each kind declares about versions: which weights a pass reads, and when there are new ones.
//!
//! The generator writes programs by these rules and `check` checks programs against them, so this
//! is the one place that defines what a kind means. Notation: stage s of p, microbatch k, M
//! microbatches a minibatch t.

use zbelastic_types::{ChunkIndex, MicrobatchIndex};

use super::kind::AsyncKind;
use super::op::{VersionShift, WeightPrediction};
use super::program::AsyncProgram;
use super::variant::AsyncVariant;

/// The weights that a pass reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionRead {
    /// The newest when it begins, moved by so much.
    Newest(VersionShift),
    /// Those that this kind of pass read of the minibatch's first microbatch.
    AsFirst,
    /// Those that its F read.
    AsForward,
    /// The version with this number.
    Number(u32),
}

/// The weights that F reads.
pub(super) fn forward_reads(
    program: &AsyncProgram,
    chunk: ChunkIndex,
    microbatch: MicrobatchIndex,
) -> VersionRead {
    let minibatch = program.minibatch_of(microbatch);
    let stage = chunk.0 % program.placement.stage_count();
    let stages = program.placement.stage_count();
    match program.kind {
        // The version that was the first stage's newest when it admitted the microbatch.
        AsyncKind::PipeDream if program.variant == AsyncVariant::VerticalSync => {
            VersionRead::Number(microbatch.0.saturating_sub(stages - 1))
        }
        AsyncKind::PipeDream | AsyncKind::PipeMare | AsyncKind::AvgPipe | AsyncKind::AmpNet => {
            VersionRead::Newest(VersionShift::None)
        }
        AsyncKind::PipeDream2Bw => VersionRead::Number(minibatch.saturating_sub(1)),
        AsyncKind::WPipe if is_front(program, chunk) => {
            VersionRead::Number(minibatch.saturating_sub(1))
        }
        AsyncKind::WPipe => VersionRead::Number(minibatch),
        // Updates until the microbatch has had its last backward pass (Chen et al., section 3.2).
        AsyncKind::SpecTrain => VersionRead::Newest(ahead(stage / 2 + stages - stage - 1)),
        AsyncKind::XPipe if is_first(program, microbatch) => {
            // The same for a whole minibatch, in updates: round((p + M - s/2 - 2) / M).
            let microbatches = program.microbatch_count;
            let halves = 2 * (stages + microbatches) - stage - 4;
            VersionRead::Newest(ahead(rounded(halves, 2 * microbatches)))
        }
        AsyncKind::XPipe => VersionRead::AsFirst,
    }
}

/// The weights that B reads.
pub(super) fn backward_reads(
    program: &AsyncProgram,
    chunk: ChunkIndex,
    microbatch: MicrobatchIndex,
) -> VersionRead {
    let stage = chunk.0 % program.placement.stage_count();
    match program.kind {
        AsyncKind::PipeDream | AsyncKind::PipeDream2Bw | AsyncKind::WPipe | AsyncKind::AvgPipe => {
            VersionRead::AsForward
        }
        AsyncKind::AmpNet => VersionRead::Newest(VersionShift::None),
        AsyncKind::PipeMare if program.is_warm_up(microbatch) => VersionRead::AsForward,
        // Its F read the version that was newest so many microbatches ago.
        AsyncKind::PipeMare => VersionRead::Newest(match program.ahead_of(chunk) {
            0 => VersionShift::None,
            microbatches => VersionShift::Back(microbatches),
        }),
        AsyncKind::SpecTrain => VersionRead::Newest(ahead(stage / 2)),
        AsyncKind::XPipe if is_first(program, microbatch) => {
            // round((M + floor(s/2) - 1) / M).
            let microbatches = program.microbatch_count;
            VersionRead::Newest(ahead(rounded(microbatches + stage / 2 - 1, microbatches)))
        }
        AsyncKind::XPipe => VersionRead::AsFirst,
    }
}

/// How the kind makes temporary versions, if it does.
pub(super) const fn prediction(kind: AsyncKind) -> Option<WeightPrediction> {
    match kind {
        AsyncKind::XPipe => Some(WeightPrediction::Adam),
        AsyncKind::SpecTrain => Some(WeightPrediction::Momentum),
        AsyncKind::PipeMare => Some(WeightPrediction::Delta),
        AsyncKind::PipeDream
        | AsyncKind::PipeDream2Bw
        | AsyncKind::WPipe
        | AsyncKind::AvgPipe
        | AsyncKind::AmpNet => None,
    }
}

/// Versions that a chunk keeps beside the newest, at most.
pub(super) fn kept_max(program: &AsyncProgram, chunk: ChunkIndex) -> usize {
    match program.kind {
        AsyncKind::PipeDream if program.variant == AsyncVariant::VerticalSync => {
            program.placement.stage_count() as usize - 1
        }
        AsyncKind::PipeDream => program.ahead_of(chunk) as usize,
        AsyncKind::PipeDream2Bw => 1,
        AsyncKind::WPipe => usize::from(is_front(program, chunk)),
        AsyncKind::PipeMare => usize::from(program.ahead_of(chunk) > 0),
        // One that F reads and one that B reads.
        AsyncKind::XPipe => 2,
        AsyncKind::SpecTrain => 1,
        AsyncKind::AvgPipe | AsyncKind::AmpNet => 0,
    }
}

/// Whether a chunk is of the group whose F of the next minibatch comes before its B.
pub(super) fn is_front(program: &AsyncProgram, chunk: ChunkIndex) -> bool {
    chunk.0 < program.placement.stage_count()
}

fn is_first(program: &AsyncProgram, microbatch: MicrobatchIndex) -> bool {
    microbatch.0.is_multiple_of(program.microbatch_count)
}

const fn ahead(updates: u32) -> VersionShift {
    if updates == 0 { VersionShift::None } else { VersionShift::Ahead(updates) }
}

/// To the nearest whole number, halves up.
const fn rounded(numerator: u32, denominator: u32) -> u32 {
    (2 * numerator + denominator) / (2 * denominator)
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn halves_are_rounded_up() {
        let check = |numerator, denominator, expected| {
            assert_eq!(rounded(numerator, denominator), expected, "{numerator}/{denominator}");
        };
        check(0, 4, 0);
        check(1, 4, 0);
        check(2, 4, 1);
        check(5, 4, 1);
        check(6, 4, 2);
    }
}
