//! Workers that join a cluster with a device each, as processes.

use zbelastic_emulator::{EmulatedLibrary, EmulatorSettings, ExecutionOrder};

use crate::harness::SpawnedCluster;
use crate::{DriverSetup, RUN, digest, toolkit};

const STEPS: u64 = 12;

fn variables(settings: EmulatorSettings) -> Vec<(&'static str, String)> {
    toolkit("whole", &EmulatedLibrary::ALL).variables(settings)
}

/// A device that gives up takes its worker with it; the others go on to the bits of `train`.
#[test]
fn a_worker_whose_device_gives_up_leaves_and_no_bit_changes() {
    let toml = RUN.replace("steps = 4", &format!("steps = {STEPS}"));
    let Some(setup) = DriverSetup::new() else { return };
    std::fs::write(setup.folder.path().join("run.toml"), &toml).expect("writable");
    let expected =
        digest(&mut setup.train(EmulatorSettings::DEFAULT, "--threads-only --workers 1"));
    let text = std::fs::read(setup.folder.path().join("text")).expect("written above");
    let mut cluster = SpawnedCluster::new();
    let lazy = EmulatorSettings { order: ExecutionOrder::Lazy, ..EmulatorSettings::DEFAULT };
    let broken = EmulatorSettings { faulty_launch: Some(400), ..lazy };
    for (name, settings) in [("a", lazy), ("b", broken), ("c", lazy)] {
        cluster.variables = variables(settings);
        cluster.join_with(name, &["--device", "cuda:0"]);
    }
    cluster.wait("all workers", |cluster| (cluster.status()?.members.len() == 4).then_some(()));
    cluster.submit(&toml, &text);
    let found = cluster.digest(STEPS);
    assert_eq!(found.to_string(), expected);
    let status = cluster.status().expect("an answer");
    assert_eq!(status.failures.iter().filter(|failure| failure.name == "b").count(), 1);
    assert_eq!(cluster.ended("b"), Some(7), "it says that a resource is missing");
}
