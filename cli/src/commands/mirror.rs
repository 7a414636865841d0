//! `mirror`: checkpoints are copied out of the cluster as they come.

mod copier;

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use zbelastic_api::client::ApiClient;
use zbelastic_machine::background_thread::raise_niceness;
use zbelastic_mirror::Mirror;
use zbelastic_remote::{Environment, ObjectFolder, RetryEvent, RetryPolicy};
use zbelastic_wording::{
    CommandError, CommandFailure, FailureCode, FailureDetail, print_error_line,
};

use super::mirror_failure::cannot_mirror;
use crate::args::MirrorArgs;
use crate::command_connection::{exchange, request_addresses};
use crate::side_process::{end_with_lifeline, has_lifeline};
use copier::{CheckpointCopier, CopiedCheckpoint, CopyError};

/// Between two requests whether there is another checkpoint.
const POLL_PAUSE: Duration = Duration::from_secs(1);
/// After a failure: longer each time, up to a minute, without an end.
const FAILURES: RetryPolicy = RetryPolicy {
    attempts_max: u32::MAX,
    wait_first: POLL_PAUSE,
    wait_max: Duration::from_secs(60),
};

/// The mirror at `place`.
///
/// # Errors
/// If it is no place for one, or there are no credentials.
pub fn open_mirror(place: &str) -> Result<Mirror, CommandFailure> {
    let on_retry = |event: RetryEvent<'_>| {
        if let RetryEvent::Begins(notice) = event {
            print_error_line(format_args!("note: {notice}"));
        }
        ControlFlow::Continue(())
    };
    let environment = Environment::of_process();
    let folder = ObjectFolder::open(place, &environment, RetryPolicy::STANDARD, Arc::new(on_retry));
    folder.map(Mirror::new).map_err(|error| cannot_mirror(place, &error.into()))
}

/// Runs `mirror`: with `--once` until the newest checkpoint is there, else until the process is ended.
///
/// # Errors
/// If the cluster does not answer, or the mirror cannot be written. Without `--once` a failure is
/// printed, and it is tried again.
pub fn run(args: &MirrorArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    if has_lifeline() {
        end_with_lifeline()?;
    }
    // Training comes first: this process gets what is left of the processors.
    raise_niceness();
    let (folder, addresses) = request_addresses(&args.client)?;
    let mut client = ApiClient::new(addresses, exchange(&folder)?);
    let mut copier = CheckpointCopier::new(args.place.clone(), args.texts.clone());
    let mut pace = MirrorPace::default();
    loop {
        let pause = match copier.copy_newest(&mut client) {
            Ok(copied) => {
                if let Some(copied) = &copied {
                    print(copied, out)?;
                }
                if args.once && copied.is_none() && !copier.has_any() {
                    return Err(no_checkpoint().into());
                }
                pace.pause_after_success()
            }
            Err(error @ (CopyError::Failed(_) | CopyError::Fetch { .. })) if !args.once => {
                let failure = CommandFailure::from(error);
                let pause = pace.pause_after_failure();
                let what = failure.what;
                let pause_s = pause.as_secs();
                print_error_line(format_args!("note: mirror: {what}; tried again in {pause_s} s"));
                pause
            }
            Err(
                error
                @ (CopyError::Failed(_) | CopyError::Fetch { .. } | CopyError::NoPlace { .. }),
            ) => return Err(CommandFailure::from(error).into()),
        };
        if args.once {
            return Ok(());
        }
        thread::sleep(pause);
    }
}

/// How long to wait before the next attempt.
#[derive(Debug, Default)]
struct MirrorPace {
    /// Attempts that failed since the last that did not.
    failures: u32,
}

impl MirrorPace {
    const fn pause_after_success(&mut self) -> Duration {
        self.failures = 0;
        POLL_PAUSE
    }

    /// Twice as long as the one before.
    fn pause_after_failure(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        FAILURES.wait(self.failures).unwrap_or(FAILURES.wait_max)
    }
}

fn print(copied: &CopiedCheckpoint, out: &mut dyn Write) -> Result<(), CommandError> {
    let CopiedCheckpoint { run, step, bytes, place, seconds } = copied;
    writeln!(out, "checkpoint {step} of run {run} is at {place}: {bytes} in {seconds:.1} s")?;
    Ok(out.flush()?)
}

fn no_checkpoint() -> CommandFailure {
    let mut failure = CommandFailure::new(FailureCode::NotFound, "there is no checkpoint yet");
    failure.details = vec![FailureDetail::new("a run writes one by `checkpoint.every`")];
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer_until_one_succeeds() {
        let mut pace = MirrorPace::default();
        let pauses = |pace: &mut MirrorPace, count: u32| -> Vec<u64> {
            (0..count).map(|_| pace.pause_after_failure().as_secs()).collect()
        };
        assert_eq!(pauses(&mut pace, 8), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses(&mut pace, 40).last(), Some(&60));
        assert_eq!(pace.pause_after_success(), POLL_PAUSE);
        assert_eq!(pauses(&mut pace, 2), [1, 2]);
    }
}
