//! How a command ends that does not succeed: the printed text, and the exit code for scripts.
//!
//! ```text
//! error: the configuration has 2 errors
//!   tiny.toml:4: unknown key `model.headz`
//!   why: an unknown key is refused, so that a misspelt one is not silently without effect
//!   try: heads
//!   tiny.toml:9: ...
//! ```

use std::error::Error;
use std::fmt;
use std::io;
use std::iter::successors;
use std::path::Path;
use std::process;

use crate::standard_error::print_error_line;

/// Why a command ends, as an exit code. The numbers are a contract with scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FailureCode {
    /// A mistake of ours, or of the machine.
    Internal = 1,
    /// Wrong arguments or a wrong configuration.
    Usage = 2,
    /// The cluster does not answer.
    Unreachable = 3,
    /// The certificate or the token is not accepted, or does not allow the request.
    NotAuthorised = 4,
    /// The named object does not exist.
    NotFound = 5,
    /// Not possible in the state things are in.
    WrongState = 6,
    /// Out of disk, memory or device.
    OutOfResource = 7,
    /// The object that was checked is not as it should be.
    VerificationFailed = 8,
    /// Too few members are there to decide.
    NoQuorum = 9,
    /// Drained: the process manager should start the command again.
    Drained = 75,
    /// Interrupted by a signal.
    Interrupted = 130,
}

impl From<FailureCode> for process::ExitCode {
    fn from(code: FailureCode) -> Self {
        Self::from(code as u8)
    }
}

/// The failure of a command: exit code, one line, and details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandFailure {
    /// Exit code, from which scripts learn the kind of failure.
    pub code: FailureCode,
    /// The failure, in one line.
    pub what: String,
    /// Everything that is wrong, in order.
    pub details: Vec<FailureDetail>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureDetail {
    /// Where: a file and line, or a flag.
    pub place: Option<String>,
    /// The problem, in one line.
    pub what: String,
    /// The reason, where the first line does not give it.
    pub why: Option<String>,
    /// The remedy, as a hint.
    pub hint: Option<String>,
}

impl FailureDetail {
    /// A detail without place, reason and hint.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self { place: None, what: what.into(), why: None, hint: None }
    }

    /// The same, with its place.
    #[must_use]
    pub fn at(self, place: impl Into<String>) -> Self {
        Self { place: Some(place.into()), ..self }
    }

    /// The same, with its reason.
    #[must_use]
    pub fn why(self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self }
    }

    /// The same, with the remedy.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl CommandFailure {
    /// A failure without details.
    #[must_use]
    pub fn new(code: FailureCode, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), details: Vec::new() }
    }

    /// The typed or configured values cannot be used. Counts the details for `what`, which is
    /// something that has errors.
    #[must_use]
    pub fn usage(what: &str, details: Vec<FailureDetail>) -> Self {
        let what = match details.len() {
            1 => format!("{what} has an error"),
            count => format!("{what} has {count} errors"),
        };
        Self { code: FailureCode::Usage, what, details }
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        self.details.iter().try_for_each(|detail| write!(f, "\n{detail}"))
    }
}

impl fmt::Display for FailureDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => write!(f, "  {place}: {}", self.what)?,
            None => write!(f, "  {}", self.what)?,
        }
        if let Some(why) = &self.why {
            write!(f, "\n  why: {why}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  try: {hint}")?;
        }
        Ok(())
    }
}

/// The error that ends a command early.
#[derive(Debug)]
pub enum CommandError {
    /// The command failed, for the reason given.
    Failed(CommandFailure),
    /// Standard output does not accept any more.
    Output(io::Error),
}

impl From<CommandFailure> for CommandError {
    fn from(failure: CommandFailure) -> Self {
        Self::Failed(failure)
    }
}

impl From<io::Error> for CommandError {
    /// For `?` behind a write to standard output; other files go through [`cannot_write`].
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl CommandError {
    /// Prints on standard error the failure, and returns the exit code. A reader who closed
    /// standard output (`| head`) has seen enough: that is no failure.
    #[must_use]
    pub fn report(self) -> process::ExitCode {
        let failure = match self {
            Self::Failed(failure) => failure,
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return process::ExitCode::SUCCESS;
            }
            Self::Output(error) => cannot_write(Path::new("standard output"), &error),
        };
        // If standard error is closed as well, the exit code is all that can be reported.
        print_error_line(&failure);
        failure.code.into()
    }
}

/// Whether an error has a full disk, or a used up share of one, among its causes.
#[must_use]
pub fn is_storage_full(error: &(dyn Error + 'static)) -> bool {
    let causes = successors(Some(error), |error: &&(dyn Error + 'static)| Error::source(*error));
    let mut kinds =
        causes.filter_map(|error| error.downcast_ref::<io::Error>().map(io::Error::kind));
    kinds.any(|kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
}

/// A file that cannot be written.
#[must_use]
pub fn cannot_write(path: &Path, error: &io::Error) -> CommandFailure {
    let code = if is_storage_full(error) { FailureCode::OutOfResource } else { FailureCode::Usage };
    CommandFailure::new(code, format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{CommandFailure, FailureCode, FailureDetail};

    #[test]
    fn a_failure_says_what_where_why_and_what_to_do() {
        let fit = FailureDetail::new("stage 1 on node b needs 13.1 GiB, limit is 10.0 GiB")
            .why("ZB-H2 keeps up to twice the activations of 1F1B")
            .hint("--set schedule.kind=\"zb-h1\", or add a node");
        let mut failure = CommandFailure::new(FailureCode::Usage, "stage memory does not fit");
        failure.details = vec![fit, FailureDetail::new("expected a number").at("tiny.toml:4")];
        let expected = "error: stage memory does not fit
  stage 1 on node b needs 13.1 GiB, limit is 10.0 GiB
  why: ZB-H2 keeps up to twice the activations of 1F1B
  try: --set schedule.kind=\"zb-h1\", or add a node
  tiny.toml:4: expected a number";
        assert_eq!(failure.to_string(), expected);
    }

    #[test]
    fn errors_are_counted() {
        let check = |count, expected: &str| {
            let details = vec![FailureDetail::new("wrong"); count];
            assert_eq!(CommandFailure::usage("the program", details).what, expected);
        };
        check(1, "the program has an error");
        check(3, "the program has 3 errors");
    }
}
