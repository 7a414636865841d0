//! Replicas of the model, on machines that are lost: as in one process, to the bit, whatever number of
//! stages and replicas is left.

use std::collections::BTreeSet;

use super::{SpawnedCluster, zbelastic};

const STEPS: u64 = 400;

/// What both train, and from what text.
const SHAPE: &str = "--set model.preset=tiny --set train.seq_len=16 --set train.global_batch=8 \
    --set train.microbatch=1 --set train.lanes=4 --set checkpoint.every=5 --text text.txt --seed 5";

/// Goes on with another schedule and the same lanes where 3 nodes are there, and returns to `chimera`
/// with 4.
#[test]
fn killed_workers_of_two_replicas_change_no_bit() {
    let (mut cluster, run) = begun("--schedule chimera --replicas 1");
    let mut seen = BTreeSet::new();
    for (at, name) in [(20, "a"), (110, "c"), (200, "d")] {
        cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= at));
        note_plan(&cluster, &mut seen);
        let node = cluster.kill(name);
        cluster.wait("it goes on", |cluster| {
            let status = cluster.status()?;
            let is_under_way = status.job.as_ref()?.step >= at + 3;
            (is_under_way && status.plan.as_ref()?.stages.len() == 3).then_some(())
        });
        note_plan(&cluster, &mut seen);
        cluster.restart(node, &["join", "--spot", "none"]);
        cluster.wait("all four", |cluster| {
            (cluster.status()?.plan.as_ref()?.stages.len() == 4).then_some(())
        });
    }
    let found = cluster.digest(STEPS);
    let status = cluster.wait("the last status", SpawnedCluster::status);
    assert_eq!(status.counters.get("rewinds"), Some(&0), "{status:#?}");
    assert_eq!(run["digest"], found.to_string());
    let is_chimera = |(kind, _): &&(String, usize)| kind == "chimera";
    assert!(seen.iter().filter(is_chimera).all(|(_, stages)| *stages == 4), "{seen:?}");
    let stages: BTreeSet<usize> = seen.iter().map(|(_, stages)| *stages).collect();
    assert_eq!(stages, BTreeSet::from([3, 4]), "{seen:?}");
}

/// A cluster of four workers that has begun with these arguments, and what one worker alone ends with.
fn begun(more: &str) -> (SpawnedCluster, serde_json::Value) {
    let root = tempfile::tempdir().expect("a folder");
    let text = "she sells sea shells by the sea shore; ".repeat(4000);
    std::fs::write(root.path().join("text.txt"), text).expect("writable");
    let shape = format!("{SHAPE} --steps {STEPS}");
    let mut serial = zbelastic(&root.path().join("alone"));
    serial.current_dir(root.path()).args(["train", "--threads-only", "--out", "alone"]);
    serial.args(["--schedule", "1f1b", "--workers", "1"]).args(shape.split_whitespace());
    let ended = serial.output().expect("it runs");
    assert!(ended.status.success(), "{ended:?}");
    let run = std::fs::read(root.path().join("alone/run.json")).expect("it ended");
    let run: serde_json::Value = serde_json::from_slice(&run).expect("JSON");
    let mut cluster = SpawnedCluster::in_folder(root);
    cluster.join_all(&["a", "b", "c", "d"], 5);
    let mut submit = zbelastic(&cluster.nodes[0].folder);
    submit.current_dir(cluster.root.path()).args(["run", "--detach"]);
    submit.args(more.split_whitespace());
    let submitted = submit.args(shape.split_whitespace()).output().expect("it runs");
    assert!(submitted.status.success(), "{submitted:?}");
    (cluster, run)
}

/// Two pipelines of two stages. Of three workers each goes on as part of one pipeline of three stages; with
/// the fourth there are two pipelines again. No layer is read from a checkpoint, and nobody keeps a copy.
#[test]
fn killed_workers_of_two_pipelines_change_no_bit() {
    let (mut cluster, run) = begun("--replicas 2");
    let grid = |cluster: &SpawnedCluster| {
        let plan = cluster.status()?.plan?;
        Some((plan.stages.len(), plan.replicas))
    };
    cluster.wait("two pipelines", |cluster| grid(cluster).filter(|found| *found == (4, 2)));
    for (at, name) in [(20, "a"), (110, "d"), (200, "b")] {
        cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= at));
        let node = cluster.kill(name);
        cluster.wait("it goes on", |cluster| {
            let is_under_way = cluster.status()?.job.as_ref()?.step >= at + 3;
            grid(cluster).filter(|(stages, _)| is_under_way && *stages <= 3)
        });
        cluster.restart(node, &["join", "--spot", "none"]);
        cluster.wait("all four", |cluster| grid(cluster).filter(|found| *found == (4, 2)));
    }
    let found = cluster.digest(STEPS);
    let status = cluster.wait("the last status", SpawnedCluster::status);
    assert_eq!(status.counters.get("rewinds"), Some(&0), "{status:#?}");
    assert_eq!(run["digest"], found.to_string());
}

fn note_plan(cluster: &SpawnedCluster, seen: &mut BTreeSet<(String, usize)>) {
    let plan = cluster.wait("a plan", |cluster| cluster.status()?.plan);
    seen.insert((plan.schedule, plan.stages.len()));
}
