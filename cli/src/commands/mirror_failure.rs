//! What a person reads when a mirror cannot be read or written.

use zbelastic_mirror::MirrorError;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use crate::remote_sources::failure_at;

/// The failure of a mirror.
pub fn cannot_mirror(place: &str, error: &MirrorError) -> CommandFailure {
    let (code, hint) = match error {
        MirrorError::Folder(error) => return failure_at("the mirror has an error", place, error),
        MirrorError::Owned { .. } => (
            FailureCode::WrongState,
            "another place for this cluster; `zbelastic recover` takes a mirror over",
        ),
        MirrorError::NoCheckpoint(_) => (FailureCode::NotFound, "`zbelastic recover --list`"),
        MirrorError::Owner
        | MirrorError::Checkpoint { .. }
        | MirrorError::NoChunk(_)
        | MirrorError::Damaged { .. } => {
            (FailureCode::VerificationFailed, "an older checkpoint: --step")
        }
    };
    let mut failure = CommandFailure::new(code, format!("the mirror at {place}: {error}"));
    failure.details = vec![FailureDetail::new("nothing else was changed").hint(hint)];
    failure
}
