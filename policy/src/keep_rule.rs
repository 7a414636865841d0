//! Which pieces of checkpoints a node keeps for others. A certificate alone fills no disk: a piece
//! must be one of the job's layers, as long as that layer is, and of a version that can be under
//! way.

use zbelastic_consensus::job::CHECKPOINT_EVERY_MAX;
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_types::{LayerId, RunId, Step};

use crate::piece::PieceRef;

/// Most steps by which the version of a requested piece may be ahead of the newest version that the
/// node knows to be sealed. A node receives the message of a seal late by some messages, never by
/// as many steps: this is the number of steps that a run trains at most without a checkpoint.
pub const STEPS_AHEAD_MAX: u64 = CHECKPOINT_EVERY_MAX;

/// Why a piece is not kept for another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeepRefusal {
    /// There is no job here that it could be of.
    #[error("no job is loaded here")]
    NoJob,
    /// It is of another run.
    #[error("it is of run {found}, run {expected} is loaded here")]
    Run {
        /// The one that is loaded.
        expected: RunId,
        /// The run that the request names.
        found: RunId,
    },
    /// The job's model has no such layer.
    #[error("layer {found} of a model of {count} layers")]
    Layer {
        /// Layers of the model.
        count: usize,
        /// Index of the layer that the request names.
        found: LayerId,
    },
    /// The layer has another length.
    #[error("{found} bytes, the layer has {expected}")]
    Length {
        /// Bytes of the layer as it travels.
        expected: u64,
        /// Bytes that the request names.
        found: u64,
    },
    /// No such version can be under way.
    #[error("version {found} cannot be under way, at most {most}")]
    Version {
        /// The newest that may be.
        most: Step,
        /// The version that the request names.
        found: Step,
    },
}

/// Checks a piece that another node requests this node to keep. `job` is the loaded run, with the
/// bytes of each of its layers as it travels; `sealed` is the newest version this node knows of.
///
/// # Errors
/// If it is not to be kept.
pub fn check_keep(
    piece: PieceRef,
    job: Option<(RunId, &[u64])>,
    sealed: Step,
) -> Result<(), KeepRefusal> {
    let (expected, layer_bytes) = job.ok_or(KeepRefusal::NoJob)?;
    if piece.run != expected {
        return Err(KeepRefusal::Run { expected, found: piece.run });
    }
    if mutant::is(Mutant::M37KeepsAnything) {
        return Ok(());
    }
    let count = layer_bytes.len();
    let found = piece.layer;
    let expected = *layer_bytes.get(found.index()).ok_or(KeepRefusal::Layer { count, found })?;
    if piece.length != expected {
        return Err(KeepRefusal::Length { expected, found: piece.length });
    }
    let most = Step(sealed.0.saturating_add(STEPS_AHEAD_MAX));
    if piece.version > most {
        return Err(KeepRefusal::Version { most, found: piece.version });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use zbelastic_types::Digest;

    use super::*;

    #[test]
    fn only_a_layer_of_the_job_at_a_version_that_can_be_under_way_is_kept() {
        let piece = |version: u64, layer: u32, length: u64| {
            let version = Step(version);
            let layer = LayerId(layer);
            let digest = Digest::default();
            PieceRef { run: RunId(1), version, layer, digest, length }
        };
        let known = Some((RunId(1), &[100, 200][..]));
        let sealed = Step(10);
        let check = |piece| check_keep(piece, known, sealed);
        assert_eq!(check(piece(11, 1, 200)), Ok(()));
        assert_eq!(check(piece(10 + STEPS_AHEAD_MAX, 0, 100)), Ok(()));
        let most = Step(10 + STEPS_AHEAD_MAX);
        let found = Step(1 << 40);
        assert_eq!(check(piece(1 << 40, 0, 100)), Err(KeepRefusal::Version { most, found }));
        let expected = 100;
        let found = 64 << 30;
        assert_eq!(check(piece(11, 0, 64 << 30)), Err(KeepRefusal::Length { expected, found }));
        let found = LayerId(2);
        assert_eq!(check(piece(11, 2, 100)), Err(KeepRefusal::Layer { count: 2, found }));
        assert_eq!(check_keep(piece(1, 0, 100), None, sealed), Err(KeepRefusal::NoJob));
        let expected = RunId(1);
        let found = RunId(2);
        let other = PieceRef { run: found, ..piece(1, 0, 100) };
        assert_eq!(check(other), Err(KeepRefusal::Run { expected, found }));
    }
}
