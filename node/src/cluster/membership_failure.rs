//! Failures of becoming and staying a member, with their exit codes and their remedies.

use zbelastic_identity::{JoinError, JoinRefusal};
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail, is_storage_full};

use zbelastic_node_folder::checked_json::CheckedError;
use zbelastic_node_folder::node_record::NodeRecordError;

/// A certificate that cannot be made.
pub fn cannot_certify(error: impl std::fmt::Display) -> CommandFailure {
    CommandFailure::new(FailureCode::Internal, format!("no certificate can be made: {error}"))
}

/// An identity that cannot be read or written.
pub fn cannot_keep(error: impl std::error::Error + 'static) -> CommandFailure {
    if !is_storage_full(&error) {
        return CommandFailure::new(FailureCode::NotAuthorised, error.to_string());
    }
    let mut failure = CommandFailure::new(FailureCode::OutOfResource, error.to_string());
    failure.details = vec![
        FailureDetail::new("what was there before is still there")
            .hint("free space on that disk, and run the same command again"),
    ];
    failure
}

/// A join that was refused, or that no node decided.
#[must_use]
pub fn cannot_join(error: JoinError) -> CommandFailure {
    let code = match &error {
        JoinError::NobodyDecided { .. } => FailureCode::Unreachable,
        JoinError::WrongServer { .. } => FailureCode::NotAuthorised,
        JoinError::Refused { refusal, .. } => refused_with(refusal).0,
        JoinError::Setup(_) | JoinError::WrongGrant { .. } => FailureCode::Internal,
    };
    let mut failure = CommandFailure::new(code, error.to_string());
    failure.details = match &error {
        JoinError::NobodyDecided { dials } => {
            let tried = dials.failed.iter();
            tried.map(|(address, why)| FailureDetail::new(format!("{address}: {why}"))).collect()
        }
        JoinError::Refused { refusal, .. } => {
            vec![FailureDetail::new("the cluster refused the join").hint(refused_with(refusal).1)]
        }
        JoinError::WrongServer { .. } => vec![
            FailureDetail::new("the server is not of the cluster that this token belongs to")
                .why("it could not show the authority that the token names; nothing was sent to it")
                .hint("--cluster with a controller of the cluster that made the token"),
        ],
        JoinError::Setup(_) | JoinError::WrongGrant { .. } => Vec::new(),
    };
    failure
}

/// The exit code of a refusal, and its remedy.
fn refused_with(refusal: &JoinRefusal) -> (FailureCode, &'static str) {
    let denied = FailureCode::NotAuthorised;
    match refusal {
        JoinRefusal::TokenExpired { .. }
        | JoinRefusal::TokenRevoked { .. }
        | JoinRefusal::TokenSpent { .. }
        | JoinRefusal::TokenUnknown { .. }
        | JoinRefusal::WrongProof { .. } => (denied, "`zbelastic token create` makes a token"),
        JoinRefusal::WrongRole { .. } => (
            denied,
            "the --role that the token is for (people: `zbelastic login`), or `zbelastic token create --role ROLE`",
        ),
        JoinRefusal::Clock(_) => (denied, "the right time on both machines, then the same again"),
        JoinRefusal::TooManyAttempts { .. } => {
            (FailureCode::WrongState, "the same again after that time; the token is still good")
        }
        JoinRefusal::NotLeader { .. } | JoinRefusal::NotReady => {
            (FailureCode::WrongState, "the same again in a moment; the token is still good")
        }
        JoinRefusal::NoMember => (
            denied,
            "join with a new token and an empty --data-dir: this node is no member any more",
        ),
        JoinRefusal::WrongName(_) => (FailureCode::Usage, "another --name"),
        JoinRefusal::WrongRequest(_) | JoinRefusal::Unreadable => {
            (FailureCode::WrongState, "the same version of the program on both machines")
        }
    }
}

/// The failure for a node's record that cannot be read.
#[must_use]
pub fn unreadable(error: &NodeRecordError) -> CommandFailure {
    let (code, hint) = match error {
        NodeRecordError::Version { .. } => {
            (FailureCode::WrongState, "the program that wrote it, or another --data-dir")
        }
        NodeRecordError::File(CheckedError::Form(_)) => (
            FailureCode::VerificationFailed,
            "the folder from a backup; else another --data-dir, and a new token",
        ),
        NodeRecordError::File(CheckedError::Check { .. }) => (
            FailureCode::VerificationFailed,
            "the file from a backup; or look at what it says, mend it, and remove its line \"check\"",
        ),
        NodeRecordError::File(CheckedError::File(_)) => {
            (FailureCode::OutOfResource, "free space and write permission for this user")
        }
    };
    let mut failure = CommandFailure::new(code, error.to_string());
    failure.details = vec![FailureDetail::new("the data is untouched").hint(hint)];
    failure
}
