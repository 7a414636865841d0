//! Names and bytes for tests of stores.

use zbelastic_checkpoint::{CheckpointId, Manifest, PieceName};
use zbelastic_types::{Digest, LayerId, RunId, Step};

pub use zbelastic_checkpoint::conformance::noise;

/// A version of the first run.
pub fn at(version: u64) -> CheckpointId {
    CheckpointId { run: RunId(1), version: Step(version) }
}

pub fn name(version: u64, layer: u32) -> PieceName {
    PieceName { version: at(version), layer: LayerId(layer), digest: Digest([3; 32]) }
}

pub fn manifest(version: u64, layers: u32) -> Manifest {
    Manifest {
        version: at(version),
        layers: (0..layers).map(|layer| name(version, layer)).collect(),
        document: b"steps = 1".to_vec(),
        data: Digest([7; 32]),
        program: "0.1.0".to_owned(),
        seed: 1,
    }
}
