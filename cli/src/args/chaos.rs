//! The command line of `chaos`, as typed: the flags that a simulated cluster and one of processes
//! read are theirs.

use chaos_tests::args::{EXIT_CODES, SimArgs};
use clap::{Args, Subcommand};
use zbelastic_chaos_processes::args::{
    DEMO_EXIT_CODES, DemoArgs, MeasureArgs, ProcessRunArgs, RUN_EXIT_CODES, ReplayArgs,
    SOAK_EXIT_CODES, SoakArgs,
};

use super::ui::PageAddress;

/// `chaos`.
#[derive(Debug, Subcommand)]
pub enum ChaosCommand {
    /// Live whole clusters in this process, each from one seed and under drawn faults.
    #[command(after_help = sim_help())]
    Sim(SimArgs),
    /// Kill processes of a real run on this machine, again and again, and compare its weights with
    /// those of a run that nothing disturbed.
    #[command(after_help = run_help())]
    Run(ProcessRunArgs),
    /// Measure a real cluster against its goals: undisturbed, its speed, and how long a run takes
    /// to go on after each kind of fault.
    #[command(after_help = MEASURE_EXAMPLES)]
    Measure(MeasureArgs),
    /// Train while workers come and go as those of a recorded fleet of spot machines did.
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(ReplayArgs),
    /// Write thousands of checkpoints, undisturbed or while workers are lost and join, and see that
    /// no node's disk fills and no process grows.
    #[command(after_help = soak_help())]
    Soak(SoakArgs),
    /// Watch a run whose processes are killed end with the same weights as one that is left alone.
    #[command(after_help = demo_help())]
    Demo(WatchedDemoArgs),
}

/// Arguments of `chaos demo`.
#[derive(Args, Clone, Debug)]
pub struct WatchedDemoArgs {
    /// The demonstration.
    #[command(flatten)]
    pub demo: DemoArgs,
    /// The page of the run whose processes are killed.
    #[command(flatten)]
    pub page: PageAddress,
}

const MEASURE_EXAMPLES: &str = "\
Examples:
  zbelastic chaos measure --config tiny.toml
  zbelastic chaos measure --preset gpt2-124m --set train.global_batch=4 --workers 3 \\
      --controllers 1 --rows worker-killed,controller-killed --times 3 --report recovery.json
  zbelastic chaos measure --preset tiny --undisturbed 20
  zbelastic chaos measure --preset tiny --rows speed --steps 120
  zbelastic chaos measure --preset tiny --rows mass --workers 64 --controllers 3

Rows: undisturbed, speed, worker-killed, controller-killed, stopped-0.3s, stopped-3s, stopped-30s,
joins, drains, power-cycle, two-killed, mass.";

const REPLAY_EXAMPLES: &str = "\
Example, in the sources of this program:
  zbelastic chaos replay --trace chaos-tests/traces/aws_p3_2021.csv --window 5.5h..6.5h --speed 60 \\
      --workers-max 6 --preset tiny --report replay.json";

fn demo_help() -> String {
    format!(
        "\
Examples:
  zbelastic chaos demo
  zbelastic chaos demo --ui                                  with a live page of the run whose
                                                             processes are killed
  zbelastic chaos demo --seconds 300 --workers 6

{DEMO_EXIT_CODES}"
    )
}

fn soak_help() -> String {
    format!(
        "\
Examples:
  zbelastic chaos soak --preset tiny --plot soak.svg          2,000 checkpoints, and a picture
  zbelastic chaos soak --preset tiny --checkpoints 100 --every 2 --workers 2 --controllers 1
  zbelastic chaos soak --preset tiny --churn 10 --report soak.json   workers are lost, and others join

{SOAK_EXIT_CODES}"
    )
}

fn run_help() -> String {
    format!(
        "\
Examples:
  zbelastic chaos run --config tiny.toml                     thirty faults
  zbelastic chaos run --config tiny.toml --kills 400 --power-cycles 20 --report report.json
  zbelastic chaos run --config tiny.toml --faults isolate,storm,replay
  zbelastic chaos run --config tiny.toml --seed 7 --list     what would strike

{RUN_EXIT_CODES}"
    )
}

fn sim_help() -> String {
    format!(
        "\
Examples:
  zbelastic chaos sim                          a hundred lives, in a few seconds
  zbelastic chaos sim --seed 7                 one life, line by line
  zbelastic chaos sim --minutes 10 --twice
  zbelastic chaos sim --replay failures/seed-7-digest.json

{EXIT_CODES}"
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::ui::UI_ADDRESS;

    #[derive(Debug, Parser)]
    struct ChaosCommandLine {
        #[command(subcommand)]
        command: ChaosCommand,
    }

    /// As `zbelastic ui --listen` reads it: one parser for both.
    #[test]
    fn a_demonstration_has_its_page_where_every_other_page_may_be() {
        let page = |line: &str| {
            let words = ["chaos", "demo"].into_iter().chain(line.split_whitespace());
            let parsed =
                ChaosCommandLine::try_parse_from(words).map_err(|error| error.to_string())?;
            let ChaosCommand::Demo(WatchedDemoArgs { page, .. }) = parsed.command else {
                return Err(format!("{:?}", parsed.command));
            };
            Ok(page.ui.map(|it| it.to_string()))
        };
        let check = |line: &str, expected: Option<&str>| {
            assert_eq!(page(line), Ok(expected.map(str::to_owned)), "{line}");
        };
        check("--seconds 9", None);
        check("--ui", Some(UI_ADDRESS));
        check("--ui 0", Some("127.0.0.1:0"));
        check("--ui [::1]:9", Some("[::1]:9"));
        check("--ui 0.0.0.0", Some("0.0.0.0:8088"));
        assert!(page("--ui 70000").is_err());
    }
}
