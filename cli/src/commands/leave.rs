//! `leave`: signals the process of a folder to leave, and waits until it has ended.

use std::io::Write;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use zbelastic_node_folder::NodeDataFolder;
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, FailureDetail, duration_word};

use crate::args::LeaveArgs;

/// How long to wait before looking again.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Runs `leave`.
///
/// # Errors
/// If nothing runs on the folder, if it may not be signalled, or if it does not go in time.
pub fn run(args: &LeaveArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let folder = NodeDataFolder::of(args.folder.data_dir.as_deref());
    let begin = Instant::now();
    let mut pause = || {
        thread::sleep(LOOK_PAUSE);
        let is_late = begin.elapsed() >= args.deadline;
        if is_late { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let mut terminate = |process| folder.terminate(process);
    let left = leave(&folder, &mut terminate, &mut pause)?;
    match left {
        Some(process) => writeln!(out, "process {process} is gone")?,
        None => {
            let within = duration_word(args.deadline);
            return Err(too_late(&within).into());
        }
    }
    Ok(())
}

/// The process that has ended, or none if `pause` breaks first.
fn leave(
    folder: &NodeDataFolder,
    terminate: &mut dyn FnMut(u32) -> Result<(), CommandFailure>,
    pause: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Option<u32>, CommandFailure> {
    let Some(process) = folder.holder()? else { return Err(nobody(folder)) };
    terminate(process)?;
    loop {
        // Another one may have begun on the folder in between.
        if folder.holder()? != Some(process) {
            return Ok(Some(process));
        }
        if pause().is_break() {
            return Ok(None);
        }
    }
}

fn nobody(folder: &NodeDataFolder) -> CommandFailure {
    let what = format!("no process runs on {}", folder.root().display());
    let mut failure = CommandFailure::new(FailureCode::WrongState, what);
    let detail = FailureDetail::new("a node that does not run has left already, or was killed");
    failure.details = vec![detail.hint(
        "--data-dir with the folder of a node that runs here; `zbelastic node remove` removes \
         one that does not come back",
    )];
    failure
}

fn too_late(within: &str) -> CommandFailure {
    let what = format!("it did not go within {within}");
    let mut failure = CommandFailure::new(FailureCode::WrongState, what);
    let detail = FailureDetail::new("it was signalled, and may still be handing over its layers");
    failure.details = vec![detail.hint("`zbelastic events -f`, or a longer --deadline")];
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never() -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    #[test]
    fn a_folder_without_a_process_cannot_be_left() {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = NodeDataFolder::new(parent.path().join("node"));
        let mut terminate = |_| panic!("no process to signal");
        let failure = leave(&folder, &mut terminate, &mut never).expect_err("nobody");
        assert_eq!(failure.code, FailureCode::WrongState);
    }

    #[test]
    fn the_process_is_signalled_and_waited_for() {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = NodeDataFolder::new(parent.path().join("node"));
        let mut hold = Some(folder.hold().expect("free"));
        let mut terminated = Vec::new();
        let mut terminate = |process| {
            terminated.push(process);
            Ok(())
        };
        assert_eq!(leave(&folder, &mut terminate, &mut never), Ok(None));
        let mut polls = 0;
        let mut pause = || {
            polls += 1;
            if polls == 3 {
                hold = None;
            }
            ControlFlow::Continue(())
        };
        let own = std::process::id();
        assert_eq!(leave(&folder, &mut terminate, &mut pause), Ok(Some(own)));
        assert_eq!((terminated, polls), (vec![own, own], 3));
    }
}
