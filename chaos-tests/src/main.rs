//! The binary `chaos`: clusters live through faults.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use chaos_tests::args::{EXIT_CODES, SimArgs};
use chaos_tests::command::{SimError, run};
use chaos_tests::report::CampaignEnding;
use clap::Parser;

/// Lives whole clusters in one process, each from one seed and under drawn faults.
#[derive(Debug, Parser)]
#[command(name = "chaos", version, after_help = EXIT_CODES)]
struct ChaosCli {
    #[command(flatten)]
    sim: SimArgs,
}

/// A value of the arguments cannot be used.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args = ChaosCli::parse().sim;
    let code = match run(&args, &mut io::stdout().lock(), &mut io::stderr()) {
        Ok(code) => code,
        // A reader that closed standard output (`| head`) has seen enough.
        Err(SimError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => 0,
        Err(error) => {
            // If standard error is closed, the exit code is all that can be reported.
            let _ = writeln!(io::stderr(), "error: {error}");
            match error {
                SimError::Case(_) | SimError::Seeds { .. } | SimError::Failures { .. } => USAGE,
                SimError::Output(_) => CampaignEnding::HARNESS,
            }
        }
    };
    ExitCode::from(code)
}
