//! `chaos`: the commands of the simulator and of clusters of real processes, which have their own
//! arguments and exit codes.

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use chaos_tests::command::SimError;
use zbelastic_chaos_processes::command as processes;
use zbelastic_chaos_processes::local_cluster::LocalClusterError;
use zbelastic_chaos_processes::run_monitor::RunMonitor;
use zbelastic_wording::{CommandError, CommandFailure, FailureCode};

use crate::args::{ChaosCommand, WatchedDemoArgs};

/// Whether Ctrl-C was pressed. Static, for a signal handler has no owner to pass it to.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Runs a `chaos` command. Runs that fail are no failure of the command: the exit code reports
/// them.
///
/// # Errors
/// If a file holds no case, a cluster does not come up, or `out` cannot be written.
pub fn run(command: &ChaosCommand, out: &mut dyn Write) -> Result<ExitCode, CommandError> {
    let code = match command {
        ChaosCommand::Sim(args) => {
            chaos_tests::command::run(args, out, &mut io::stderr()).map_err(stop_sim)?
        }
        ChaosCommand::Run(args) => {
            processes::run(args, &own()?, &mut watch(out)?).map_err(stop_group)?
        }
        ChaosCommand::Measure(args) => {
            processes::measure(args, &own()?, &mut watch(out)?).map_err(stop_group)?
        }
        ChaosCommand::Replay(args) => {
            processes::replay(args, &own()?, &mut watch(out)?).map_err(stop_group)?
        }
        ChaosCommand::Soak(args) => {
            processes::soak(args, &own()?, &mut watch(out)?).map_err(stop_group)?
        }
        ChaosCommand::Demo(args) => {
            let WatchedDemoArgs { demo, page } = args;
            processes::demo((demo, page.ui), &own()?, &mut watch(out)?).map_err(stop_group)?
        }
    };
    out.flush()?;
    Ok(ExitCode::from(code))
}

/// The path of this binary, which starts processes of itself.
fn own() -> Result<std::path::PathBuf, CommandFailure> {
    env::current_exe().map_err(|error| {
        CommandFailure::new(FailureCode::Internal, format!("cannot find this program: {error}"))
    })
}

fn watch(out: &mut dyn Write) -> Result<RunMonitor<'_>, CommandFailure> {
    // Once more ends this process at once; its children die with it.
    let on_signal = || {
        if IS_OVER.swap(true, Ordering::Relaxed) {
            std::process::exit(FailureCode::Interrupted as i32);
        }
    };
    ctrlc::set_handler(on_signal).map_err(|error| {
        CommandFailure::new(FailureCode::Internal, format!("cannot listen for Ctrl-C: {error}"))
    })?;
    Ok(RunMonitor::new(out, &IS_OVER))
}

fn stop_sim(error: SimError) -> CommandError {
    match error {
        SimError::Case(_) | SimError::Seeds { .. } | SimError::Failures { .. } => {
            CommandFailure::new(FailureCode::Usage, error.to_string()).into()
        }
        SimError::Output(error) => CommandError::Output(error),
    }
}

fn stop_group(error: LocalClusterError) -> CommandError {
    let code = match error {
        LocalClusterError::Output(error) => return CommandError::Output(error),
        LocalClusterError::Interrupted => FailureCode::Interrupted,
        LocalClusterError::System { .. }
        | LocalClusterError::Verb(_)
        | LocalClusterError::Events(_)
        | LocalClusterError::Surprise(_)
        | LocalClusterError::Late { .. }
        | LocalClusterError::Full
        | LocalClusterError::Halted { .. }
        | LocalClusterError::Undisturbed { .. } => FailureCode::Internal,
    };
    CommandFailure::new(code, error.to_string()).into()
}
