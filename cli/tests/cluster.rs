//! Clusters of real processes on this machine.

#[path = "cluster/harness.rs"]
mod harness;
#[path = "cluster/replicas.rs"]
mod replicas;
#[path = "cluster/storage.rs"]
mod storage;
#[path = "cluster/stores.rs"]
mod stores;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use zbelastic_api::{HexDigest, PromiseStatus, TokenRequest, TokenRole};

use harness::{NodeProcess, SpawnedCluster, zbelastic};
use storage::files;

const STEPS: u64 = 120;
/// So many that a machine with other work has not done them all before what is to happen has happened.
const MANY_STEPS: u64 = 3 * STEPS;

fn undisturbed() -> HexDigest {
    undisturbed_for(STEPS)
}

/// The digest of so many steps in a cluster to which nothing happens. Many tests compare with it, so a
/// cluster trains each number of steps once.
fn undisturbed_for(steps: u64) -> HexDigest {
    static DIGESTS: Mutex<BTreeMap<u64, HexDigest>> = Mutex::new(BTreeMap::new());
    let mut digests = DIGESTS.lock().unwrap_or_else(PoisonError::into_inner);
    let train = || {
        let mut cluster = SpawnedCluster::new();
        cluster.begin(&["a", "b", "c"], steps);
        cluster.digest(steps)
    };
    *digests.entry(steps).or_insert_with(train)
}

#[test]
fn killed_workers_change_no_bit() {
    let mut cluster = SpawnedCluster::new();
    cluster.begin(&["a", "b", "c"], STEPS);
    for (at, name) in [(15, "a"), (40, "c"), (70, "b")] {
        cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= at));
        let node = cluster.kill(name);
        cluster.restart(node, &["join", "--spot", "none"]);
        cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= at + 3));
    }
    let found = cluster.digest(STEPS);
    eprintln!("{:#?}", cluster.status().map(|status| status.failures));
    drop(cluster);
    assert_eq!(found, undisturbed());
}

/// A stage and the first node that keeps a copy of it: the second one has what is sealed.
#[test]
fn two_workers_killed_at_once_lose_no_sealed_step_where_there_are_two_copies() {
    let mut cluster = SpawnedCluster::new();
    cluster.join_all(&["a", "b", "c", "d"], 5);
    cluster.run_with_copies(STEPS, 2);
    let status = cluster.wait("steps of four stages", |cluster| {
        let status = cluster.status()?;
        let is_under_way = status.job.as_ref()?.step >= 18;
        (is_under_way && status.plan.as_ref()?.stages.len() == 4).then_some(status)
    });
    assert_eq!(status.promise, Some(PromiseStatus::Kept { copies: 2 }));
    let named = |stage: u32| {
        let found = status.members.iter().find(|member| member.stage == Some(stage));
        found.expect("somebody stands there")
    };
    let owner = named(0);
    let holder = named(1);
    assert!(holder.copies_stages.contains(&0), "{status:#?}");
    [owner, holder].iter().for_each(|member| cluster.signal(&member.name, "KILL"));
    let nodes = [owner, holder].map(|member| cluster.kill(&member.name));
    cluster.wait("two stages that go on", |cluster| {
        let after = cluster.status()?;
        let is_under_way = after.job.as_ref()?.step > status.job.as_ref()?.step + 2;
        (is_under_way && after.plan.as_ref()?.stages.len() == 2).then_some(())
    });
    nodes.into_iter().for_each(|node| cluster.restart(node, &["join", "--spot", "none"]));
    let found = cluster.digest(STEPS);
    let end = cluster.wait("the last status", SpawnedCluster::status);
    assert_eq!(end.counters.get("rewinds"), Some(&0), "no way back to a checkpoint: {end:#?}");
    drop(cluster);
    assert_eq!(found, undisturbed());
}

/// No node has the layers any more: the run goes back to its last checkpoint, and reports from
/// where.
#[test]
fn workers_killed_together_say_what_is_computed_again() {
    let mut cluster = SpawnedCluster::new();
    cluster.begin(&["a", "b"], STEPS);
    cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= 12));
    ["a", "b"].iter().for_each(|name| cluster.signal(name, "KILL"));
    let nodes = ["a", "b"].map(|name| cluster.kill(name));
    nodes.into_iter().for_each(|node| cluster.restart(node, &["join", "--spot", "none"]));
    let found = cluster.digest(STEPS);
    let status = cluster.wait("the last status", SpawnedCluster::status);
    let events = std::fs::read_to_string(cluster.nodes[0].folder.join("events.jsonl"));
    let events = events.expect("the controller tells");
    let events: Vec<serde_json::Value> =
        events.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let rewound = events.iter().position(|event| event["event"] == "rewound").expect("no copies");
    let sealed = events[..rewound].iter().rfind(|event| event["event"] == "step");
    let sealed = sealed.expect("steps were sealed")["step"].as_u64().expect("a number");
    let lost = sealed - events[rewound]["to_step"].as_u64().expect("a number");
    assert_eq!(status.failures.iter().map(|failure| failure.steps_lost).max(), Some(lost));
    drop(cluster);
    assert_eq!(found, undisturbed());
}

#[test]
fn power_cut_of_everything_needs_nobody_and_changes_no_bit() {
    let mut cluster = SpawnedCluster::new();
    cluster.begin(&["a", "b"], STEPS);
    cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= 42));
    let before = cluster.step();
    let nodes = ["controller", "a", "b"].map(|name| cluster.kill(name));
    let [controller, a, b] = nodes;
    cluster.restart(b, &["join"]);
    cluster.restart(controller, &["init"]);
    cluster.restart(a, &["join"]);
    // It may go back to its last checkpoint; what it computes again is what was sealed.
    cluster.wait("it goes on", |cluster| cluster.step().filter(|step| Some(*step) > before));
    let found = cluster.digest(STEPS);
    drop(cluster);
    assert_eq!(found, undisturbed());
}

/// Three nodes share a disk for checkpoints, and find it again after a power cut.
#[test]
fn checkpoints_lie_where_the_configuration_says_and_are_found_there_again() {
    let mut cluster = SpawnedCluster::new();
    let disk = cluster.root.path().join("disk/checkpoints");
    ["a", "b"].into_iter().for_each(|name| cluster.join(name));
    cluster.wait("all workers", |cluster| (cluster.status()?.members.len() == 3).then_some(()));
    cluster.run_with(STEPS, &format!("dir = {:?}\n", disk.display().to_string()));
    cluster.wait("a checkpoint", |cluster| {
        let status = cluster.status()?;
        status.checkpoints.last().filter(|found| found.step >= 10).map(|_| ())
    });
    let nodes = ["controller", "a", "b"].map(|name| cluster.kill(name));
    let stores: Vec<_> = std::fs::read_dir(&disk).expect("it was made").collect();
    assert_eq!(stores.len(), 3, "one for each node");
    for store in stores {
        assert!(files(&store.expect("readable").path().join("chunks")) > 0);
    }
    for node in &nodes {
        assert_eq!(files(&node.folder.join("store/chunks")), 0, "{}", node.folder.display());
    }
    let [controller, a, b] = nodes;
    cluster.restart(b, &["join"]);
    cluster.restart(controller, &["init"]);
    cluster.restart(a, &["join"]);
    let after = cluster.wait("it comes back", SpawnedCluster::step);
    assert!(after >= 10, "goes on from a checkpoint, not from {after}");
    let found = cluster.digest(STEPS);
    drop(cluster);
    assert_eq!(found, undisturbed());
}

/// What `train` makes of a folder's weights with threads, a cluster makes of them too.
#[test]
fn run_from_a_folder_of_weights_ends_like_train_with_threads() {
    let root = tempfile::tempdir().expect("a folder");
    let text = "she sells sea shells by the sea shore; ".repeat(4000);
    std::fs::write(root.path().join("text.txt"), text).expect("writable");
    let command = |line: &str| {
        let mut command = zbelastic(&root.path().join("controller"));
        command.current_dir(root.path()).args(line.split_whitespace());
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{line}: {output:?}");
        output
    };
    let keys = "--text text.txt --set train.seq_len=16 --set train.global_batch=8";
    let shape = "--set model.preset=tiny --steps 3 --seed 5";
    command(&format!("train --threads-only {shape} {keys} --out first"));
    let from = format!("--set model.from_hf=first/model {keys} --steps 12 --seed 6");
    command(&format!("train --threads-only --workers 2 {from} --out second"));
    let run = std::fs::read(root.path().join("second/run.json")).expect("it ended");
    let run: serde_json::Value = serde_json::from_slice(&run).expect("JSON");
    let mut cluster = SpawnedCluster::in_folder(root);
    ["a", "b", "c"].into_iter().for_each(|name| cluster.join(name));
    cluster.wait("all workers", |cluster| (cluster.status()?.members.len() == 4).then_some(()));
    let mut submit = zbelastic(&cluster.nodes[0].folder);
    submit.current_dir(cluster.root.path()).args(["run", "--detach"]);
    let submitted = submit.args(from.split_whitespace()).output().expect("it runs");
    assert!(submitted.status.success(), "{submitted:?}");
    let stderr = String::from_utf8_lossy(&submitted.stderr).into_owned();
    assert!(stderr.contains("of weights"), "{stderr}");
    assert_eq!(run["digest"], cluster.digest(12).to_string());
}

#[test]
fn leader_that_is_killed_is_replaced() {
    let mut cluster = SpawnedCluster::new();
    cluster.join_controller("second");
    cluster.join_controller("third");
    cluster
        .wait("three voters", |cluster| (cluster.status()?.quorum.voters.len() == 3).then_some(()));
    ["a", "b", "c"].into_iter().for_each(|name| cluster.join(name));
    cluster.wait("all workers", |cluster| (cluster.status()?.members.len() == 6).then_some(()));
    cluster.run(STEPS);
    cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= 5));
    let first = cluster.kill("controller");
    cluster.nodes.insert(
        0,
        NodeProcess {
            child: Command::new("true").spawn().expect("it runs"),
            folder: first.folder.clone(),
        },
    );
    let began = Instant::now();
    // A command that comes before the others have noticed waits for the next leader.
    let mut token = zbelastic(&first.folder);
    token.args(["token", "create", "--cluster", &cluster.addresses[1..].join(",")]);
    let token = token.output().expect("it runs");
    assert!(token.status.success(), "{token:?}");
    let at = cluster.wait("another leader", SpawnedCluster::step);
    eprintln!("leader after {:?} at {at}", began.elapsed());
    cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= at + 2));
    eprintln!("steps after {:?}", began.elapsed());
    let found = cluster.digest(STEPS);
    drop(cluster);
    assert_eq!(found, undisturbed());
}

/// A terminal that was stopped with Ctrl-S, or a program that reads logs no longer.
#[test]
fn a_node_whose_output_nobody_reads_goes_on() {
    let (reader, mut filler) = std::io::pipe().expect("a pipe");
    let mut cluster = SpawnedCluster::new();
    cluster.wait("a leader", |cluster| cluster.status()?.leader);
    let NodeProcess { folder, .. } = &cluster.kill("controller");
    let mut command = zbelastic(folder);
    command.arg("init").stdout(Stdio::null()).stderr(filler.try_clone().expect("a pipe"));
    let child = command.spawn().expect("it runs");
    cluster.nodes.push(NodeProcess { child, folder: folder.clone() });
    // It has written its first lines by then.
    cluster.wait("a leader", |cluster| cluster.status()?.leader);
    // Until no byte more goes into it.
    let filled = Arc::new(AtomicU64::new(0));
    let bytes = filled.clone();
    thread::spawn(move || {
        while filler.write_all(b"\n").is_ok() {
            bytes.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut before = 0;
    cluster.wait("the pipe is full", |_| {
        let now = filled.load(Ordering::Relaxed);
        (std::mem::replace(&mut before, now) == now && now > 0).then_some(())
    });
    cluster.begin(&["a", "b"], STEPS);
    let found = cluster.digest(STEPS);
    drop(cluster);
    drop(reader);
    assert_eq!(found, undisturbed());
}

#[test]
fn majority_that_is_gone_is_replaced_by_force() {
    let mut cluster = SpawnedCluster::new();
    cluster.begin(&["a", "b"], MANY_STEPS);
    cluster.wait("a checkpoint", |cluster| {
        let status = cluster.status()?;
        status.checkpoints.last().filter(|found| found.step >= 10).map(|_| ())
    });
    let controller = cluster.kill("controller");
    let recover = zbelastic(&controller.folder)
        .args(["cluster", "recover", "--force-new-cluster", "--yes"])
        .output()
        .expect("it runs");
    assert!(recover.status.success(), "{recover:?}");
    cluster.restart(controller, &["init"]);
    // A member of the old cluster is a stranger to the new one.
    let at = cluster.wait("the new cluster", SpawnedCluster::step);
    assert!((10..MANY_STEPS).contains(&at), "goes on from a checkpoint, not from {at}");
    assert_eq!(cluster.status().expect("it answers").members.len(), 1);
    ["c", "d"].into_iter().for_each(|name| cluster.join(name));
    let found = cluster.digest(MANY_STEPS);
    drop(cluster);
    assert_eq!(found, undisturbed_for(MANY_STEPS));
}

/// Why a worker drained, as the leader reported it.
fn drain_reason(cluster: &SpawnedCluster, name: &str) -> String {
    let events = std::fs::read_to_string(cluster.nodes[0].folder.join("events.jsonl"));
    let events = events.expect("the controller tells");
    let mut events = events.lines().filter_map(|line| serde_json::from_str(line).ok());
    let is_it = |event: &serde_json::Value| event["event"] == "draining" && event["name"] == name;
    let event = events.find(is_it).expect("it drained");
    event["reason"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn worker_that_is_told_to_go_hands_over_and_says_that_it_may_be_started_again() {
    let mut cluster = SpawnedCluster::new();
    cluster.begin(&["a", "b", "c"], STEPS);
    cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= 15));
    cluster.signal("b", "TERM");
    assert_eq!(cluster.ended("b"), Some(75));
    let status = cluster.wait("a plan without it", |cluster| {
        let status = cluster.status()?;
        let plan = status.plan.as_ref()?;
        (plan.stages.len() == 2).then_some(status)
    });
    assert_eq!(status.failures, [], "nothing was lost: {status:#?}");
    assert!(drain_reason(&cluster, "b").contains("SIGTERM"));
    let found = cluster.digest(STEPS);
    drop(cluster);
    assert_eq!(found, undisturbed());
}

/// As when a machine that runs all of a cluster is shut down.
#[test]
fn worker_that_is_told_to_go_when_all_controllers_are_gone_goes() {
    let mut cluster = SpawnedCluster::new();
    cluster.begin(&["a", "b"], STEPS);
    cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= 3));
    let controller = cluster.kill("controller");
    ["a", "b"].iter().for_each(|name| cluster.signal(name, "TERM"));
    let nodes = ["a", "b"].map(|name| cluster.root.path().join(name));
    assert_eq!(["a", "b"].map(|name| cluster.ended(name)), [Some(75); 2]);
    cluster.restart(controller, &["init"]);
    for folder in nodes {
        cluster.again_at(&folder, &["join", "--spot", "none"]);
    }
    let found = cluster.digest(STEPS);
    drop(cluster);
    assert_eq!(found, undisturbed());
}

/// What the last workers of a run hold would end with them, and their disks go with their machines.
#[test]
fn the_last_workers_that_are_told_to_go_save_what_they_hold_and_others_go_on_from_it() {
    let mut cluster = SpawnedCluster::new();
    cluster.join_all(&["a", "b"], 3);
    cluster.run_with(STEPS, "every_time = \"0ms\"\n");
    cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= 3));
    ["a", "b"].iter().for_each(|name| cluster.signal(name, "TERM"));
    let folders = ["a", "b"].map(|name| cluster.root.path().join(name));
    assert_eq!(["a", "b"].map(|name| cluster.ended(name)), [Some(75); 2]);
    let sealed = cluster.wait("an answer", SpawnedCluster::step);
    let saved = cluster.wait("a checkpoint", |cluster| {
        cluster.query(|client| client.checkpoints())?.last().map(|last| last.step)
    });
    assert_eq!(saved, sealed, "the last sealed step is saved");
    for folder in &folders {
        let log = std::fs::read_to_string(folder.with_extension("log")).expect("a log");
        let place = format!("layers of version {saved} are in {}", folder.display());
        assert!(log.contains(&place), "{log}");
    }
    folders.iter().for_each(|folder| std::fs::remove_dir_all(folder).expect("it is there"));
    cluster.join("c");
    let found = cluster.digest(STEPS);
    drop(cluster);
    assert_eq!(found, undisturbed());
}

/// As when the only machine of a cluster is shut down: the controller is told to go with its workers, and
/// what they save is a checkpoint only if it agrees.
#[test]
fn a_cluster_that_is_told_to_go_as_a_whole_saves_its_newest_step() {
    let mut cluster = SpawnedCluster::new();
    cluster.join_all(&["a", "b"], 3);
    cluster.run_with(STEPS, "every_time = \"0ms\"\n");
    let seen = cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= 5));
    let names = ["controller", "a", "b"];
    let folders = names.map(|name| cluster.root.path().join(name));
    names.iter().for_each(|name| cluster.signal(name, "TERM"));
    assert_eq!(names.map(|name| cluster.ended(name)), [Some(75); 3]);
    let log = |folder: &std::path::Path| {
        std::fs::read_to_string(folder.with_extension("log")).expect("a log")
    };
    folders.iter().for_each(|folder| {
        let log = log(folder);
        assert!(log.contains("nothing was lost"), "{log}");
    });
    cluster.again_at(&folders[0], &["init"]);
    let sealed = cluster.wait("an answer", SpawnedCluster::step);
    let saved = cluster.wait("a checkpoint", |cluster| {
        cluster.query(|client| client.checkpoints())?.last().map(|last| last.step)
    });
    assert_eq!(saved, sealed, "the newest sealed step is saved");
    assert!(sealed >= seen);
    folders[1..].iter().for_each(|folder| cluster.again_at(folder, &["join", "--spot", "none"]));
    let found = cluster.digest(STEPS);
    drop(cluster);
    assert_eq!(found, undisturbed());
}

#[test]
fn short_pause_changes_nothing_and_a_long_one_is_a_loss_that_heals() {
    let mut cluster = SpawnedCluster::new();
    cluster.join_all(&["a", "b", "c"], 4);
    // A plan that follows what is measured is another matter.
    cluster.run_with(MANY_STEPS, "[elastic]\nreplan = \"never\"\n");
    cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= 15));
    let before = cluster.generation();
    cluster.signal("a", "STOP");
    std::thread::sleep(Duration::from_millis(300));
    cluster.signal("a", "CONT");
    let at = cluster.wait("steps", SpawnedCluster::step);
    cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= at + 5));
    assert_eq!(cluster.generation(), before);
    cluster.signal("a", "STOP");
    cluster.wait("a plan without it", |cluster| {
        (cluster.status()?.plan?.stages.len() == 2).then_some(())
    });
    cluster.signal("a", "CONT");
    cluster.wait("a plan with it", |cluster| {
        (cluster.status()?.plan?.stages.len() == 3).then_some(())
    });
    let found = cluster.digest(MANY_STEPS);
    drop(cluster);
    assert_eq!(found, undisturbed_for(MANY_STEPS));
}

/// As the README has it: `init`, and `join` with the addresses in the token's line.
#[test]
fn nodes_that_are_not_told_where_they_are_reached_find_each_other() {
    let mut cluster = SpawnedCluster::everywhere();
    let request =
        TokenRequest { role: TokenRole::Worker, ttl_s: 60, uses: 1, ephemeral: false, note: None };
    let printed = cluster.wait("a token", |cluster| {
        cluster.query(|client| client.create_token(request.clone())).map(|token| token.addresses)
    });
    cluster.addresses = printed;
    cluster.join_as(TokenRole::Controller, "c2", &[]);
    ["a", "b", "c"].iter().for_each(|name| cluster.join_as(TokenRole::Worker, name, &[]));
    cluster.wait("all nodes", |cluster| (cluster.status()?.members.len() == 5).then_some(()));
    let members = cluster.wait("a status", SpawnedCluster::status).members;
    for address in members.iter().flat_map(|member| &member.addresses) {
        let address: SocketAddr = address.parse().expect("an address");
        assert!(!address.ip().is_unspecified() && address.port() != 0, "{members:#?}");
    }
    cluster.run(STEPS);
    cluster
        .wait("three stages", |cluster| (cluster.status()?.plan?.stages.len() == 3).then_some(()));
    let node = cluster.kill("b");
    cluster.restart(node, &["join", "--spot", "none"]);
    let found = cluster.digest(STEPS);
    drop(cluster);
    assert_eq!(found, undisturbed());
}

#[test]
fn without_a_majority_nothing_is_sealed_until_it_is_back() {
    let mut cluster = SpawnedCluster::new();
    cluster.join_controller("second");
    cluster.join_controller("third");
    cluster
        .wait("three voters", |cluster| (cluster.status()?.quorum.voters.len() == 3).then_some(()));
    cluster.begin_with(&["a", "b"], STEPS, 5);
    cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= 15));
    let second = cluster.kill("second");
    let third = cluster.kill("third");
    let status = cluster.wait("that nobody leads", |cluster| {
        cluster.status().filter(|status| status.leader.is_none())
    });
    let at = status.job.expect("it is known").step;
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(cluster.step(), Some(at), "nothing is sealed");
    cluster.restart(second, &["join"]);
    cluster.restart(third, &["join"]);
    let found = cluster.digest(STEPS);
    drop(cluster);
    assert_eq!(found, undisturbed());
}
