//! Token stores in a cluster: who fetches shards, and what a kill on the way changes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use zbelastic_api::JobPhaseStatus;

use crate::harness::{PATIENCE, SpawnedCluster, zbelastic};

const STEPS: u64 = 40;

/// Files with this ending where a node keeps data by its hash.
fn kept(cluster: &SpawnedCluster, node: &str, ending: &str) -> usize {
    let folder = cluster.root.path().join(node).join("data");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|found| found == ending)).count()
}

/// Runs a command as an operator of the cluster, and yields what it prints.
fn printed(cluster: &SpawnedCluster, arguments: &[&str]) -> String {
    let mut command = zbelastic(&cluster.root.path().join("controller"));
    let output = command.args(arguments).current_dir(cluster.root.path()).output();
    let output = output.expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A store of so many bytes of text, and a configuration over it.
fn configured(cluster: &SpawnedCluster, bytes: usize) -> PathBuf {
    let line = |n: usize| format!("{n} times {} is {}\n", n % 7 + 2, n * (n % 7 + 2));
    let mut text = String::new();
    let mut n = 0;
    while text.len() < bytes {
        n += 1;
        text += &line(n);
    }
    fs::write(cluster.root.path().join("text.txt"), text).expect("writable");
    printed(cluster, &["data", "prepare", "text.txt", "--to", "store"]);
    let config = cluster.root.path().join("run.toml");
    let toml = format!(
        "[model]\npreset = \"tiny\"\n[data]\ntokens = [\"store\"]\n[train]\nsteps = {STEPS}\n\
         [schedule]\nkind = \"1f1b\"\n"
    );
    fs::write(&config, toml).expect("writable");
    config
}

/// The digest of the same run in threads of one process.
fn undisturbed(cluster: &SpawnedCluster) -> String {
    let command = ["train", "run.toml", "--threads-only", "--workers", "2", "--json"];
    let lines = printed(cluster, &command);
    let last = lines.lines().last().expect("a run ends");
    let done: Value = serde_json::from_str(last).expect("JSON");
    done["digest"].as_str().expect("a text").to_owned()
}

/// The node that holds a stage.
fn node_of(cluster: &SpawnedCluster, stage: u32) -> Option<String> {
    let status = cluster.status()?;
    status.plan.as_ref()?;
    let found = status.members.iter().find(|member| member.stage == Some(stage))?;
    Some(found.name.clone())
}

#[test]
fn only_the_ends_of_the_pipeline_fetch_shards() {
    let mut cluster = SpawnedCluster::new();
    cluster.join_all(&["a", "b", "c"], 4);
    configured(&cluster, 300_000);
    printed(&cluster, &["run", "run.toml", "--detach"]);
    let stages = cluster.wait("a plan of three stages", |cluster| {
        (0..3).map(|stage| node_of(cluster, stage)).collect::<Option<Vec<_>>>()
    });
    assert_eq!(cluster.digest(STEPS).to_string(), undisturbed(&cluster));
    let found: Vec<usize> = stages.iter().map(|node| kept(&cluster, node, "data")).collect();
    assert_eq!(found, [1, 0, 1], "{stages:?}");
}

/// The first stage's machine dies while it fetches: another one fetches, and the bits are the same. On
/// a machine that is busy with other things the fetch may end before it is seen; then the node dies
/// with its shard, and the rest holds as well.
#[test]
fn a_first_stage_that_is_killed_while_it_fetches_changes_no_bit() {
    let mut cluster = SpawnedCluster::new();
    cluster.join_all(&["a", "b", "c"], 4);
    configured(&cluster, 24 << 20);
    printed(&cluster, &["run", "run.toml", "--detach"]);
    let first = cluster.wait("a first stage", |cluster| node_of(cluster, 0));
    let began = std::time::Instant::now();
    while kept(&cluster, &first, "part") + kept(&cluster, &first, "data") == 0 {
        assert!(began.elapsed() < PATIENCE, "{first} fetches nothing");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let node = cluster.kill(&first);
    assert_eq!(kept(&cluster, &first, "part") + kept(&cluster, &first, "data"), 1);
    cluster.restart(node, &["join", "--spot", "none"]);
    assert_eq!(cluster.digest(STEPS).to_string(), undisturbed(&cluster));
}

/// The disks of workers take half of the shard, of which 40 steps read nearly all: chunks go and come
/// again.
#[test]
fn workers_that_keep_half_of_a_shard_train_the_same_bits() {
    let mut cluster = SpawnedCluster::new();
    let nodes = ["a", "b"];
    nodes.iter().for_each(|node| cluster.join_with(node, &["--data-cache", "24MiB"]));
    let config = configured(&cluster, 24 << 20);
    let toml = fs::read_to_string(&config).expect("written");
    let toml = toml.replace("[train]\n", "[train]\nglobal_batch = 8\nmicrobatch = 4\n");
    fs::write(&config, toml).expect("writable");
    printed(&cluster, &["run", "run.toml", "--detach"]);
    assert_eq!(cluster.digest(STEPS).to_string(), undisturbed(&cluster));
    for node in nodes {
        assert_eq!(kept(&cluster, node, "data"), 0, "no shard is whole");
        let folder = cluster.root.path().join(node).join("data");
        let files = fs::read_dir(folder).expect("there").flatten();
        let parts: Vec<_> =
            files.filter(|file| file.path().extension().is_some_and(|it| it == "part")).collect();
        assert_eq!(parts.len(), 1);
        let found = parts[0].metadata().expect("there");
        assert!(found.len() > 48 << 20, "{} bytes", found.len());
        // What the file system writes beside the chunks is far below a mebibyte.
        assert!(found.blocks() * 512 < 25 << 20, "{} bytes on the disk", found.blocks() * 512);
    }
}

/// A cluster has a run's tokens and the hash of what made them; the files lie where it was submitted.
#[test]
fn the_tokenizer_of_a_run_is_exported_with_it_and_no_other() {
    let mut cluster = SpawnedCluster::new();
    cluster.join_all(&["a", "b"], 3);
    let config = configured(&cluster, 100_000);
    let path = |name: &str| cluster.root.path().join(name);
    let line = |n: usize| format!("the {n}th of {} dogs has {} legs\n", n * n, 4 * n);
    fs::write(path("other.txt"), (1..=4000).map(line).collect::<String>()).expect("writable");
    for (text, folder) in [("text.txt", "tok"), ("other.txt", "other")] {
        let train = ["tokenizer", "train", "--vocab", "300", "--threads", "1"];
        printed(&cluster, &[&train[..], &["--text", text, "--to", folder]].concat());
    }
    printed(&cluster, &["data", "prepare", "text.txt", "--tokenizer", "tok", "--to", "ids"]);
    let toml = fs::read_to_string(&config).expect("written");
    let toml = toml.replace("[\"store\"]", "[\"ids\"]\ntokenizer = \"tok\"");
    fs::write(&config, toml).expect("writable");
    printed(&cluster, &["run", "run.toml", "--name", "words", "--detach"]);
    cluster.digest(STEPS);
    cluster.wait("the last checkpoint", |cluster| {
        let last = cluster.query(|client| client.checkpoints())?.last()?.step;
        (last == STEPS).then_some(())
    });

    let ids = |folder: &str| {
        let config = fs::read(path(folder).join("config.json")).expect("exported");
        let config: Value = serde_json::from_slice(&config).expect("JSON");
        ["bos_token_id", "eos_token_id"].map(|key| config[key].as_u64())
    };
    let tokenizer = |folder: &str| fs::read(path(folder).join("tokenizer.json")).ok();
    printed(&cluster, &["export", "words", "--to", "own"]);
    assert!(tokenizer("own").is_some() && tokenizer("own") == tokenizer("tok"));
    assert_eq!(ids("own"), [Some(0), Some(0)]);

    // As on another machine than that which submitted it.
    fs::remove_dir_all(path("runs/tokenizers")).expect("it was kept");
    let bare = printed(&cluster, &["export", "words", "--to", "bare"]);
    assert!(bare.contains("no tokenizer for its 300 tokens: --tokenizer DIR"), "{bare}");
    assert_eq!((tokenizer("bare"), ids("bare")), (None, [None, Some(0)]));
    printed(&cluster, &["export", "words", "--tokenizer", "tok", "--to", "named"]);
    assert_eq!(tokenizer("named"), tokenizer("tok"));
    let mut command = zbelastic(&path("controller"));
    command.args(["export", "words", "--tokenizer", "other", "--to", "none"]);
    let refused = command.current_dir(cluster.root.path()).output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("has hash") && stderr.contains("the run's is"), "{stderr}");
    assert!(!path("none").exists());
}

/// A shard that no node has any more holds the run, which says so; it goes on when the shard is sent again.
#[test]
fn a_shard_that_no_node_has_holds_the_run_until_it_is_there() {
    held_run(|shard| fs::remove_file(shard).expect("it is there"));
}

/// A file of the same length is there, and a chunk of it is sound nowhere.
#[test]
fn a_shard_that_rotted_holds_the_run_until_it_is_uploaded_again() {
    held_run(flip);
}

/// A run is not begun with a copy that nobody has compared since the controller's start.
#[test]
fn a_shard_that_rotted_before_a_start_is_sent_again_by_the_next_run() {
    let mut cluster = SpawnedCluster::new();
    configured(&cluster, 300_000);
    cluster.wait("the controller", |cluster| cluster.status());
    printed(&cluster, &["run", "run.toml", "--detach"]);
    let shard = sent_shard(&cluster);
    let sound = fs::read(&shard).expect("it is there");
    let controller = cluster.kill("controller");
    flip(&shard);
    cluster.restart(controller, &["init"]);
    cluster.wait("the controller", |cluster| cluster.status());
    printed(&cluster, &["run", "run.toml", "--detach"]);
    assert!(fs::read(&shard).expect("it is there") == sound, "it was sent again");
}

/// Changes a file of which neither the name nor the length changes.
fn flip(shard: &Path) {
    let mut bytes = fs::read(shard).expect("it is there");
    bytes[0] ^= 1;
    fs::write(shard, bytes).expect("writable");
}

/// The only shard that was sent to the controller.
fn sent_shard(cluster: &SpawnedCluster) -> PathBuf {
    let data = cluster.root.path().join("controller/data");
    let mut shards = fs::read_dir(data).expect("it keeps data").flatten().map(|entry| entry.path());
    let shard = shards.find(|path| path.extension().is_some_and(|found| found == "data"));
    shard.expect("the shard was sent")
}

/// A run whose only shard is lost in this way before a worker joins.
fn held_run(lose: impl FnOnce(&Path)) {
    let mut cluster = SpawnedCluster::new();
    configured(&cluster, 300_000);
    cluster.wait("the controller", |cluster| cluster.status());
    printed(&cluster, &["run", "run.toml", "--detach"]);
    let shard = sent_shard(&cluster);
    let hash = shard.file_stem().expect("a hash").to_string_lossy().into_owned();
    lose(&shard);
    cluster.join_all(&["a", "b"], 3);
    let held = format!("waits for data {hash}, which no node has");
    cluster.wait("a run that is held", |cluster| {
        let phase = cluster.status()?.job?.phase;
        matches!(phase, JobPhaseStatus::Waiting { reason } if reason.contains(&held)).then_some(())
    });
    printed(&cluster, &["run", "run.toml", "--detach"]);
    assert_eq!(cluster.digest(STEPS).to_string(), undisturbed(&cluster));
}
