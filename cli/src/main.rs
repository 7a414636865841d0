//! Entry point of the binary `zbelastic`.

use std::env;
use std::error::Error;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use zbelastic_cli::args::{Cli, CliCommand};
use zbelastic_cli::{commands, membership, panics, train};
use zbelastic_kernels::InstructionSet;
use zbelastic_machine::device_links;
use zbelastic_wording::{CommandError, CommandFailure, FailureDetail};

fn main() -> ExitCode {
    let cli = Cli::of_words(env::args_os()).unwrap_or_else(|error| error.exit());
    match run(&cli) {
        Ok(code) => code,
        Err(stop) => stop.report(),
    }
}

/// Checks `ZBELASTIC_CPU` and `ZBELASTIC_NCCL` before anything computes.
fn check_environment() -> Result<(), CommandFailure> {
    let wrong = |error: &dyn Error| {
        CommandFailure::usage("the environment", vec![FailureDetail::new(error.to_string())])
    };
    InstructionSet::of_environment().map_err(|error| wrong(&error))?;
    device_links::are_enabled().map(drop).map_err(|error| wrong(&error))
}

fn run(cli: &Cli) -> Result<ExitCode, CommandError> {
    check_environment()?;
    let mut out = BufWriter::new(io::stdout().lock());
    match &cli.command {
        CliCommand::Schedule(command) => commands::schedule::run(command, &mut out)?,
        CliCommand::Plan(args) => commands::plan::run(args, &mut out)?,
        CliCommand::Tokenizer(command) => commands::tokenizer::run(command, &mut out)?,
        CliCommand::Data(command) => commands::data::run(command, &mut out)?,
        CliCommand::Config(command) => commands::config::run(command, &mut out)?,
        CliCommand::Train(args) => {
            panics::end_the_process();
            return train::run(args, &mut out);
        }
        #[cfg(feature = "bench")]
        CliCommand::Bench(command) => zbelastic_bench::run(command, &mut out)?,
        // A node prints its lines while it runs, so they are not held back.
        CliCommand::Init(args) => {
            drop(out);
            panics::end_the_process();
            return membership::init(args);
        }
        CliCommand::Join(args) => {
            drop(out);
            panics::end_the_process();
            return membership::join(args);
        }
        CliCommand::Login(args) => membership::login(args, &mut out)?,
        CliCommand::Doctor(args) => return commands::doctor::doctor(args, &mut out),
        CliCommand::Leave(args) => commands::leave::run(args, &mut out)?,
        CliCommand::Token(command) => commands::token::run(command, &mut out)?,
        CliCommand::Node(command) => commands::node::run(command, &mut out)?,
        CliCommand::Run(args) => commands::run::run(args, &mut out)?,
        CliCommand::Pause(args) => commands::job::pause(args, &mut out)?,
        CliCommand::Resume(args) => commands::job::resume(args, &mut out)?,
        CliCommand::Stop(args) => commands::stop::stop(args, &mut out)?,
        CliCommand::Status(args) => commands::status::run(args, &mut out)?,
        CliCommand::Ui(args) => commands::ui::run(args, &mut out)?,
        CliCommand::Top(args) => commands::top::run(args, &mut out)?,
        CliCommand::Completions { shell } => commands::shell::completions(*shell, &mut out)?,
        CliCommand::Man(args) => commands::shell::manual(args.to.as_deref(), &mut out)?,
        CliCommand::Events(args) => commands::events::run_events(args, &mut out)?,
        CliCommand::Logs(args) => commands::events::run_logs(args, &mut out)?,
        CliCommand::Runs(command) => commands::runs::run(command, &mut out)?,
        CliCommand::Export(args) => commands::export::run(args, &mut out)?,
        CliCommand::Generate(args) => commands::generate::run(args, &mut out)?,
        CliCommand::Eval(args) => commands::eval::run(args, &mut out)?,
        CliCommand::Ckpt(command) => commands::ckpt::run(command, &mut out)?,
        CliCommand::Cluster(command) => commands::cluster::run(command, &mut out)?,
        CliCommand::Mirror(args) => commands::mirror::run(args, &mut out)?,
        CliCommand::Recover(args) => commands::recover::run(args, &mut out)?,
        // A simulated life is printed step by step, so its lines are not held back.
        #[cfg(feature = "chaos")]
        CliCommand::Chaos(command) => {
            drop(out);
            return commands::chaos::run(command, &mut io::stdout().lock());
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
