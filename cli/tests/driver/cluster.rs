//! Workers that join a cluster with a device each, as processes.

use zbelastic_emulator::{EmulatedLibrary, EmulatorSettings, ExecutionOrder};
use zbelastic_machine::device_links::NCCL_VARIABLE;

use crate::harness::SpawnedCluster;
use crate::{DriverSetup, RUN, digest, toolkit};

const STEPS: u64 = 12;

fn variables(settings: EmulatorSettings) -> Vec<(&'static str, String)> {
    toolkit("whole", &EmulatedLibrary::ALL).variables(settings)
}

/// A text, and the digest of the run over it by one worker; none where there is no C++ compiler.
fn text_and_digest(toml: &str) -> Option<(Vec<u8>, String)> {
    let setup = DriverSetup::new()?;
    std::fs::write(setup.folder.path().join("run.toml"), toml).expect("writable");
    let one = digest(&mut setup.train(EmulatorSettings::DEFAULT, "--threads-only --workers 1"));
    let text = std::fs::read(setup.folder.path().join("text")).expect("written by the setup");
    Some((text, one))
}

/// A device that gives up takes its worker with it; the others go on to the bits of `train`.
#[test]
fn a_worker_whose_device_gives_up_leaves_and_no_bit_changes() {
    let toml = RUN.replace("steps = 4", &format!("steps = {STEPS}"));
    let Some((text, expected)) = text_and_digest(&toml) else { return };
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

/// What a worker has written on standard error.
fn log_of(cluster: &SpawnedCluster, name: &str) -> String {
    let path = cluster.root.path().join(format!("{name}.log"));
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Workers with a device each send tensors from device to device; one that is killed in the middle of
/// that takes nobody's state with it, and the links of the next plan carry the same bits.
#[test]
fn tensors_go_by_nccl_and_a_kill_changes_no_bit() {
    let toml = RUN.replace("steps = 4", "steps = 100");
    let Some((text, expected)) = text_and_digest(&toml) else { return };
    let mut cluster = SpawnedCluster::new();
    let lazy =
        EmulatorSettings { devices: 3, order: ExecutionOrder::Lazy, ..EmulatorSettings::DEFAULT };
    cluster.variables = variables(lazy);
    cluster.variables.push((NCCL_VARIABLE, "1".to_owned()));
    for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
        cluster.join_with(name, &["--device", &format!("cuda:{index}")]);
    }
    cluster.wait("all workers", |cluster| (cluster.status()?.members.len() == 4).then_some(()));
    cluster.submit(&toml, &text);
    let links = |cluster: &SpawnedCluster, name: &str| {
        log_of(cluster, name).matches("are sent by NCCL").count()
    };
    cluster.wait("tensors that are sent by NCCL", |cluster| {
        (links(cluster, "a") + links(cluster, "b") + links(cluster, "c") >= 2).then_some(())
    });
    let before = [links(&cluster, "a"), links(&cluster, "c")];
    let _killed = cluster.kill("b");
    cluster.wait("links of the plan without it", |cluster| {
        (links(cluster, "a") > before[0] || links(cluster, "c") > before[1]).then_some(())
    });
    assert_eq!(cluster.digest(100).to_string(), expected);
}
