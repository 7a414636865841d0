//! The proof that a person can watch: the same training twice, undisturbed and while its processes
//! are killed, and both digests side by side.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use zbelastic_whole_file::TemporaryFolder;

use super::campaign::{self, ProcessCampaignSetup};
use super::campaign_report::{CampaignVerdict, ProcessCampaignReport};
use super::contract::{TestedBinary, TestedConfiguration};
use super::faults::{ProcessFaultKind, ProcessFaultMix};
use super::local_cluster::{LocalClusterError, LocalClusterSetup};
use super::process_network::NetworkKind;
use super::run_monitor::{RunMonitor, STANDSTILL};
use super::undisturbed::UndisturbedTraining;

/// The two digests are not equal: the exit code of a failed verification.
pub const DIFFERS: u8 = 8;
/// Steps from which the time of a step here is measured.
const TRIAL_STEPS: u64 = 40;
/// The share of the time that training would need by itself. The rest goes to recovering.
const TRAINING_SHARE: f64 = 0.6;
/// Time between two faults.
const APART: Duration = Duration::from_secs(4);
/// Processes that died come back within this time, in milliseconds.
const LONGEST_MS: u64 = 1500;
const STEPS_MIN: u64 = 40;
/// Between two lines about the step.
const PRINT_EVERY: Duration = Duration::from_secs(1);
/// The configuration of the training: small enough for any machine.
const CONFIG: &str = "\
[model]
preset = \"tiny\"

[train]
global_batch = 8
microbatch = 2
seq_len = 64
";

/// The setup of a demonstration.
#[derive(Clone, Debug)]
pub struct DemoSetup {
    /// The binary that is started.
    pub program: TestedBinary,
    /// The duration of the disturbed training, about.
    pub seconds: u64,
    /// Number of controllers of the cluster.
    pub controllers: u32,
    /// Number of workers at the beginning.
    pub workers: u32,
    /// Draws which process dies when.
    pub seed: u64,
    /// Where the run that is disturbed has a live page, if it has one.
    pub page: Option<SocketAddr>,
}

/// Shows it, and returns the exit code.
///
/// # Errors
/// If a cluster does not come up, or the output cannot be written.
pub fn run(demo: &DemoSetup, monitor: &mut RunMonitor<'_>) -> Result<u8, LocalClusterError> {
    let making =
        |source| LocalClusterError::System { doing: "cannot make a folder".to_owned(), source };
    if let Some(listen) = demo.page {
        check_is_free(listen)?;
    }
    let mut folder = TemporaryFolder::temporary("demo").map_err(making)?;
    let config = folder.path().join("demo.toml");
    std::fs::write(&config, CONFIG).map_err(making)?;
    let DemoSetup { program, workers, .. } = demo.clone();
    let config = TestedConfiguration::of(config);
    let training = UndisturbedTraining { program, config, steps: TRIAL_STEPS, workers };
    let cache = folder.path().join("undisturbed");
    monitor.print_line("How long does a step take here?")?;
    let trial = training.undisturbed(&cache, STANDSTILL, monitor)?;
    let (mix, steps) = plan(demo, trial.step_ms);
    let training = UndisturbedTraining { steps, ..training };
    monitor.print_line(&format!(
        "{:.0} ms. Now {steps} steps that nothing disturbs.",
        trial.step_ms
    ))?;
    let undisturbed = training.undisturbed(&cache, STANDSTILL, monitor)?;
    let faults = mix.count;
    monitor.print_line(&format!("The same {steps} steps, while {faults} processes are killed."))?;
    let setup = ProcessCampaignSetup {
        cluster: cluster(demo, folder.path().join("cluster")),
        training,
        every_steps: steps / (faults + 2),
        mix,
        standstill: STANDSTILL,
        print_every: Some(PRINT_EVERY),
        page: demo.page,
    };
    let report = campaign::run(&setup, &undisturbed, monitor)?;
    monitor.print_line(&format!("\n{report}"))?;
    if report.verdict != CampaignVerdict::Passed && report.verdict != CampaignVerdict::Interrupted {
        folder.keep();
        monitor.print_line(&format!("Logs and events are in {}.", folder.path().display()))?;
    }
    monitor.print_line(&last_line(&report))?;
    Ok(exit_code(&report))
}

/// Checks that the page can be where it is to be, before anybody waits for the undisturbed run.
fn check_is_free(listen: SocketAddr) -> Result<(), LocalClusterError> {
    let doing = format!("the page cannot be at {listen}");
    let bound = TcpListener::bind(listen);
    bound.map(drop).map_err(|source| LocalClusterError::System { doing, source })
}

fn cluster(demo: &DemoSetup, folder: PathBuf) -> LocalClusterSetup {
    let DemoSetup { program, controllers, workers, seed, .. } = demo.clone();
    let network = NetworkKind::Loopback;
    let small_disk_mib = None;
    LocalClusterSetup { program, folder, controllers, workers, seed, network, small_disk_mib }
}

/// The faults, and for how many steps the run goes on.
fn plan(demo: &DemoSetup, step_ms: f64) -> (ProcessFaultMix, u64) {
    let seconds = demo.seconds as f64;
    let steps = seconds * 1e3 * TRAINING_SHARE / step_ms.max(1.0);
    let steps = (steps as u64).max(STEPS_MIN);
    let count = (demo.seconds / APART.as_secs()).max(2);
    let kinds = vec![ProcessFaultKind::KillWorker, ProcessFaultKind::KillLeader];
    (ProcessFaultMix { count, kinds, power_cycles: 1, longest_ms: LONGEST_MS, together: 1 }, steps)
}

fn last_line(report: &ProcessCampaignReport) -> String {
    let kills: usize = report.strikes.iter().map(|injection| injection.victims.len()).sum();
    match report.verdict {
        CampaignVerdict::Passed => {
            format!("{kills} processes killed. The weights are the same, bit for bit.")
        }
        CampaignVerdict::Unsafe(_) => "The two runs differ.".to_owned(),
        CampaignVerdict::Stuck(_) | CampaignVerdict::Crashed(_) | CampaignVerdict::Harness(_) => {
            "The second run did not come to its end.".to_owned()
        }
        CampaignVerdict::Interrupted => "Ended before it was shown.".to_owned(),
    }
}

fn exit_code(report: &ProcessCampaignReport) -> u8 {
    match report.verdict {
        CampaignVerdict::Unsafe(_) => DIFFERS,
        CampaignVerdict::Passed
        | CampaignVerdict::Stuck(_)
        | CampaignVerdict::Crashed(_)
        | CampaignVerdict::Harness(_)
        | CampaignVerdict::Interrupted => report.verdict.exit_code(),
    }
}

#[cfg(test)]
mod tests {
    use super::{DemoSetup, STEPS_MIN, plan};
    use crate::contract::TestedBinary;

    #[test]
    fn a_demo_takes_about_as_long_as_it_is_to() {
        let program = TestedBinary::at("zbelastic".into());
        let demo =
            DemoSetup { program, seconds: 60, controllers: 3, workers: 4, seed: 1, page: None };
        let (mix, steps) = plan(&demo, 20.0);
        assert_eq!((mix.count, steps), (15, 1800));
        assert_eq!(plan(&demo, 60_000.0).1, STEPS_MIN);
        assert_eq!(plan(&DemoSetup { seconds: 1, ..demo }, 20.0).0.count, 2);
    }
}
