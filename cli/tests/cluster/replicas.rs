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

/// The workers of the plan in force, and its pipelines.
fn grid(cluster: &SpawnedCluster) -> Option<(usize, u32)> {
    let plan = cluster.status()?.plan?;
    let workers: BTreeSet<_> = plan.stages.iter().collect();
    Some((workers.len(), plan.replicas))
}

/// Two pipelines of two stages. When a worker is lost the other one at its stage takes over, and a faster
/// plan of three workers follows; with the fourth there are two pipelines again, or it is left as a spare:
/// measured on processors that others use too, three workers may be faster than four. No layer is read from
/// a checkpoint.
#[test]
fn killed_workers_of_two_pipelines_change_no_bit() {
    let (mut cluster, run) = begun("--replicas 2 --set elastic.replan=never");
    cluster.wait("two pipelines", |cluster| grid(cluster).filter(|found| *found == (4, 2)));
    for (at, name) in [(20, "a"), (110, "d"), (200, "b")] {
        cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= at));
        let node = cluster.kill(name);
        cluster.wait("it goes on", |cluster| {
            let is_under_way = cluster.status()?.job.as_ref()?.step >= at + 3;
            grid(cluster).filter(|(workers, _)| is_under_way && *workers <= 3)
        });
        cluster.restart(node, &["join", "--spot", "none"]);
        cluster.wait("all four, or a spare", |cluster| {
            let is_spare = cluster.step()? >= at + 60;
            grid(cluster).filter(|found| *found == (4, 2) || is_spare)
        });
    }
    let found = cluster.digest(STEPS);
    let status = cluster.wait("the last status", SpawnedCluster::status);
    assert_eq!(status.counters.get("rewinds"), Some(&0), "{status:#?}");
    assert_eq!(run["digest"], found.to_string());
}

/// Without copies nothing at all moves when a worker of two pipelines is lost: the event says that others
/// took over. What follows is cut anew, as a planned change.
#[test]
fn a_lost_worker_of_two_pipelines_is_rerouted() {
    let (mut cluster, run) = begun("--replicas 2 --set elastic.copies=0");
    cluster.wait("two pipelines", |cluster| grid(cluster).filter(|found| *found == (4, 2)));
    cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= 20));
    cluster.kill("c");
    let failure = cluster.wait("what it cost", |cluster| {
        let failures = cluster.status()?.failures;
        failures.into_iter().find(|failure| failure.name == "c" && failure.next_seal_ms.is_some())
    });
    assert_eq!((failure.layers_moved, failure.steps_lost), (0, 0), "{failure:#?}");
    assert_eq!(failure.bytes_moved.0, 0, "{failure:#?}");
    let found = cluster.digest(STEPS);
    let plans = events(&cluster, "plan");
    let rerouted: Vec<_> = plans.iter().filter(|plan| plan["rerouted"] == true).collect();
    let [plan] = &rerouted[..] else { panic!("{plans:#?}") };
    assert_eq!(workers_of_two_pipelines(plan), 3, "{plan}");
    assert_eq!(run["digest"], found.to_string());
}

/// A worker of two pipelines drains: the other one at its stage takes over while training goes on, without a
/// layer moved or a sealed step lost, and its process ends. No plan for pace is copied ahead meanwhile: what is
/// there already counts where a plan is cut anew.
#[test]
fn a_drained_worker_of_two_pipelines_is_rerouted() {
    let (mut cluster, run) = begun(
        "--replicas 2 --set elastic.copies=0 --set elastic.settle=60s --set elastic.replan=never",
    );
    cluster.wait("two pipelines", |cluster| grid(cluster).filter(|found| *found == (4, 2)));
    cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= 20));
    let drained = zbelastic(&cluster.nodes[0].folder).args(["node", "drain", "c"]).output();
    let drained = drained.expect("it runs");
    assert!(drained.status.success(), "{drained:?}");
    assert_eq!(cluster.ended("c"), Some(0), "it ends as drained");
    assert!(super::drain_reason(&cluster, "c").contains("node drain"));
    let found = cluster.digest(STEPS);
    let status = cluster.wait("the last status", SpawnedCluster::status);
    assert_eq!(status.counters.get("rewinds"), Some(&0), "{status:#?}");
    let plans = events(&cluster, "plan");
    let draining: Vec<_> =
        plans.iter().filter(|plan| plan["reason"] == "1 node about to go").collect();
    let [plan] = &draining[..] else { panic!("{plans:#?}") };
    assert!(plan["rerouted"] == true, "{plan}");
    assert_eq!(workers_of_two_pipelines(plan), 3, "{plan}");
    let running = events(&cluster, "running");
    let running = running.iter().find(|event| event["generation"] == plan["generation"]);
    let running = running.expect("it ran");
    assert!(running["layers_moved"] == 0 && running["bytes_moved"] == 0, "{running}");
    assert_eq!(run["digest"], found.to_string());
}

/// The workers of a plan that two pipelines of two stages were rerouted to: in two columns, or in more of
/// them if that was faster by what steps took.
fn workers_of_two_pipelines(plan: &serde_json::Value) -> usize {
    let stages = plan["stages"].as_array().expect("nodes");
    assert!(stages.len().is_multiple_of(4), "{plan}");
    stages.iter().filter_map(serde_json::Value::as_u64).collect::<BTreeSet<_>>().len()
}

/// The events of a kind, in order.
fn events(cluster: &SpawnedCluster, kind: &str) -> Vec<serde_json::Value> {
    let events = zbelastic(&cluster.nodes[0].folder).args(["events", "--json"]).output();
    let events = String::from_utf8(events.expect("it runs").stdout).expect("text");
    let events = events.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    events.filter(|event: &serde_json::Value| event["event"] == kind).collect()
}

fn note_plan(cluster: &SpawnedCluster, seen: &mut BTreeSet<(String, usize)>) {
    let plan = cluster.wait("a plan", |cluster| cluster.status()?.plan);
    seen.insert((plan.schedule, plan.stages.len()));
}
