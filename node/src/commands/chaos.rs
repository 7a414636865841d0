//! `chaos sim`: the command of the simulator, which has its own arguments and exit codes.

use std::io::{self, Write};
use std::process::ExitCode;

use chaos_tests::command::SimError;

use crate::args::ChaosCommand;
use crate::failure::{Failure, FailureCode, Stop};

/// Runs a `chaos` command. Lives that fail are no failure of the command: the exit code tells.
///
/// # Errors
/// If a file holds no case, or `out` cannot be written.
pub fn run(command: &ChaosCommand, out: &mut dyn Write) -> Result<ExitCode, Stop> {
    let ChaosCommand::Sim(args) = command;
    let code = chaos_tests::command::run(args, out, &mut io::stderr()).map_err(stop)?;
    out.flush()?;
    Ok(ExitCode::from(code))
}

fn stop(error: SimError) -> Stop {
    match error {
        SimError::Case(_) | SimError::Seeds { .. } | SimError::Failures { .. } => {
            Failure::new(FailureCode::Usage, error.to_string()).into()
        }
        SimError::Output(error) => Stop::Output(error),
    }
}
