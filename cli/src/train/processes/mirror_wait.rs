//! A run's last checkpoint on its way into its mirror. The processes of a run end with it, the one that
//! writes the mirror too, and where the machine is taken away its disk goes as well.

use std::time::{Duration, Instant};

use zbelastic_api::client::ApiClient;
use zbelastic_checkpoint::CheckpointId;
use zbelastic_mirror::MirrorError;
use zbelastic_types::{RunId, Step};
use zbelastic_wording::{CommandFailure, FailureCode, print_error_line};

use super::ClusterRunEvent;
use super::children::ChildProcesses;
use super::follow::RunObserver;
use super::stall::{STALL_TIMEOUT, StallTimer};
use crate::commands::mirror::open_mirror;
use crate::commands::mirror_failure::cannot_mirror;

/// Between two lists of what is in the mirror. A list of a bucket has 1,000 names in an answer, and
/// clouds charge for answers.
const LIST_PAUSE: Duration = Duration::from_secs(2);

/// Waits until the checkpoint of this step of the newest run is in the mirror at `place`, and prints
/// that, or why it is not there: the run has ended well in any case.
pub(super) fn await_mirror(
    place: &str,
    step: u64,
    (children, client): (&mut ChildProcesses, &mut ApiClient<'_>),
    observe: RunObserver<'_>,
) {
    // A failure to print shows again with the end of the run.
    let _ = observe(ClusterRunEvent::Activity(format!("checkpoint {step} is copied to {place}")));
    let note = match wait(place, step, (children, client)) {
        Ok(()) => format!("checkpoint {step} is in {place}"),
        Err(failure) => {
            let own = children.run_folder().display();
            format!("checkpoint {step} is in {own} and not in {place}: {}", failure.what)
        }
    };
    print_error_line(format_args!("note: {note}"));
}

fn wait(
    place: &str,
    step: u64,
    (children, client): (&mut ChildProcesses, &mut ApiClient<'_>),
) -> Result<(), CommandFailure> {
    let run = client.runs()?.pop().map(|run| run.run).ok_or_else(|| {
        CommandFailure::new(FailureCode::Internal, "the cluster has no run any more")
    })?;
    let id = CheckpointId { run: RunId(run), version: Step(step) };
    let mirror = open_mirror(place)?;
    let wrong = |error: MirrorError| cannot_mirror(place, &error);
    let mut stall = StallTimer::begin(Instant::now());
    while !mirror.checkpoints().map_err(wrong)?.contains(&id) {
        let written = mirror.chunks().map_err(wrong)?.len();
        if stall.observe(written, Instant::now()) > STALL_TIMEOUT {
            let seconds = STALL_TIMEOUT.as_secs();
            let what = format!("nothing was written there for {seconds} s");
            return Err(CommandFailure::new(FailureCode::Unreachable, what));
        }
        children.attend(LIST_PAUSE)?;
    }
    Ok(())
}
