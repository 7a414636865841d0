//! `mirror`: checkpoints are copied out of the cluster as they come.

mod copier;

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use zbelastic_api::client::ApiClient;
use zbelastic_mirror::Mirror;
use zbelastic_node::cluster::threads::raise_niceness;
use zbelastic_remote::{Environment, ObjectFolder, RetryEvent, RetryPolicy};
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, FailureDetail};

use super::mirror_failure::cannot_mirror;
use crate::args::MirrorArgs;
use crate::command_connection::{exchange, request_addresses};
use crate::side_process::{end_with_lifeline, has_lifeline};
use copier::{CheckpointCopier, CopiedCheckpoint};

/// Between two requests whether there is another checkpoint.
const POLL_PAUSE: Duration = Duration::from_secs(1);
/// After a failure: longer each time, up to a minute.
const FAILURE_PAUSE_MAX: Duration = Duration::from_secs(60);

/// The mirror at `place`.
///
/// # Errors
/// If it is no place for one, or there are no credentials.
pub fn open_mirror(place: &str) -> Result<Mirror, CommandFailure> {
    let on_retry = |event: RetryEvent<'_>| {
        if let RetryEvent::Begins(notice) = event {
            eprintln!("note: {notice}");
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
    let mut pause = POLL_PAUSE;
    loop {
        match copier.copy_newest(&mut client) {
            Ok(copied) => {
                pause = POLL_PAUSE;
                if let Some(copied) = &copied {
                    print(copied, out)?;
                }
                if args.once && copied.is_none() && !copier.has_any() {
                    return Err(no_checkpoint().into());
                }
            }
            Err(failure) if args.once => return Err(failure.into()),
            Err(failure) => {
                let seconds = pause.as_secs();
                eprintln!("note: mirror: {}; tried again in {seconds} s", failure.what);
                thread::sleep(pause);
                pause = (pause * 2).min(FAILURE_PAUSE_MAX);
            }
        }
        if args.once {
            return Ok(());
        }
        thread::sleep(POLL_PAUSE);
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
