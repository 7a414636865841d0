//! The binary `zbelastic`.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::Parser;
use zbelastic_node::args::{Cli, Command};
use zbelastic_node::bench;
use zbelastic_node::cluster;
use zbelastic_node::commands;
use zbelastic_node::failure::Stop;
use zbelastic_node::panics;
use zbelastic_node::train;

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(stop) => stop.report(),
    }
}

fn run(cli: &Cli) -> Result<ExitCode, Stop> {
    let mut out = BufWriter::new(io::stdout().lock());
    match &cli.command {
        Command::Schedule(command) => commands::schedule::run(command, &mut out)?,
        Command::Plan(args) => commands::plan::run(args, &mut out)?,
        Command::Config(command) => commands::config::run(command, &mut out)?,
        Command::Train(args) => {
            panics::end_the_process();
            return train::run(args, &mut out);
        }
        Command::Bench(command) => bench::run(command, &mut out)?,
        // A node prints its lines while it runs, so they are not held back.
        Command::Init(args) => {
            drop(out);
            panics::end_the_process();
            return cluster::init(args);
        }
        Command::Join(args) => {
            drop(out);
            panics::end_the_process();
            return cluster::join(args);
        }
        Command::Login(args) => cluster::login(args, &mut out)?,
        Command::Doctor(args) => return cluster::doctor(args, &mut out),
        Command::Leave(args) => commands::leave::run(args, &mut out)?,
        Command::Token(command) => commands::token::run(command, &mut out)?,
        Command::Node(command) => commands::node::run(command, &mut out)?,
        Command::Run(args) => commands::run::run(args, &mut out)?,
        Command::Pause(args) => commands::job::pause(args, &mut out)?,
        Command::Resume(args) => commands::job::resume(args, &mut out)?,
        Command::Stop(args) => commands::job::stop(args, &mut out)?,
        Command::Status(args) => commands::status::run(args, &mut out)?,
        Command::Events(args) => commands::events::run_events(args, &mut out)?,
        Command::Logs(args) => commands::events::run_logs(args, &mut out)?,
        Command::Runs(command) => commands::runs::run(command, &mut out)?,
        Command::Export(args) => commands::ckpt::export_run(args, &mut out)?,
        Command::Ckpt(command) => commands::ckpt::run(command, &mut out)?,
        Command::Cluster(command) => commands::cluster::run(command, &mut out)?,
        // A simulated life is printed step by step, so its lines are not held back.
        Command::Chaos(command) => {
            drop(out);
            return commands::chaos::run(command, &mut io::stdout().lock());
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
