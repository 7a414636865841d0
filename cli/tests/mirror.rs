//! A run that is recovered from a bucket after every machine is gone, with a real S3 server.

#[expect(dead_code, reason = "the tests of a cluster use more of it")]
#[path = "cluster/harness.rs"]
mod harness;
#[path = "common/mirrored.rs"]
mod mirrored;
#[expect(dead_code, reason = "the tests of `remote` use more of it")]
#[path = "../../remote/tests/s3_server/mod.rs"]
mod s3_server;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use harness::{NodeProcess, SpawnedCluster, free_address, spawn, zbelastic};
use mirrored::mirrored;
use s3_server::{S3Server, SECRET};
use zbelastic_api::{ApiRequest, HexDigest};

const STEPS: u64 = 240;
const PLACE: &str = "s3://backups/wiki";

/// A cluster whose controllers find the server's credentials in their environment.
fn founded(folder: &Path, address: &str, server: &S3Server) -> NodeProcess {
    let mut command = zbelastic(folder);
    command.args(["init", "--bind", address, "--advertise", address]);
    if !folder.join("identity").exists() {
        command.args(["--name", "test"]);
    }
    spawn(with_credentials(command, server), folder)
}

fn with_credentials(mut command: Command, server: &S3Server) -> Command {
    for (name, value) in server.variables(SECRET) {
        command.env(name, value);
    }
    command
}

fn recover(folder: &Path, server: &S3Server, more: &[&str]) -> Output {
    let mut command = zbelastic(folder);
    command.args(["recover", "--from", PLACE]).args(more);
    with_credentials(command, server).output().expect("the binary runs")
}

fn undisturbed() -> HexDigest {
    let mut cluster = SpawnedCluster::new();
    cluster.begin(&["u", "v"], STEPS);
    cluster.digest(STEPS)
}

fn text(output: &Output) -> String {
    let all = [output.stdout.clone(), output.stderr.clone()].concat();
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn a_run_goes_on_from_a_bucket_when_every_machine_is_gone() {
    let store = tempfile::tempdir().expect("a folder");
    let bucket = store.path().join("backups");
    fs::create_dir(&bucket).expect("a bucket");
    let server = S3Server::start(store.path(), true);
    let root = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let controller = founded(&root.path().join("controller"), &address, &server);
    let addresses = vec![address];
    let mut cluster =
        SpawnedCluster { root, addresses, nodes: vec![controller], variables: Vec::new() };
    cluster.join_all(&["a", "b"], 3);
    cluster.run_with(STEPS, &format!("mirror = \"{PLACE}\"\nevery_time = \"0ms\"\n"));
    cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= 10));
    // Held, so that it has not come to its end when the mirror has caught up.
    cluster
        .query(|client| client.change_job(ApiRequest::Pause))
        .expect("it is held before its end");
    let newest = cluster.wait("the newest checkpoint in the bucket", |cluster| {
        let newest = cluster.status()?.checkpoints.last()?.step;
        (mirrored(&bucket.join("wiki")).last() == Some(&newest)).then_some(newest)
    });
    assert!((5..STEPS).contains(&newest), "{newest}");
    // Every process is killed, and every disk is gone.
    drop(cluster);

    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("controller");
    let listed = recover(&folder, &server, &["--list"]);
    assert!(text(&listed).contains(&format!("step {newest}")), "{}", text(&listed));
    assert!(!folder.exists(), "a list changes nothing");
    let address = free_address();
    let place = ["--bind", address.as_str(), "--advertise", address.as_str()];
    // All but one: a single one may be of another checkpoint that is kept.
    let read = |path: PathBuf| fs::read(&path).map(|bytes| (path, bytes)).expect("a chunk");
    let sound: Vec<_> = chunks(&bucket.join("wiki/chunks")).into_iter().skip(1).map(read).collect();
    assert!(!sound.is_empty());
    sound.iter().for_each(|(path, _)| fs::write(path, b"damaged").expect("written"));
    let refused = recover(&folder, &server, &place);
    assert_eq!(refused.status.code(), Some(8), "{}", text(&refused));
    sound.iter().for_each(|(path, bytes)| fs::write(path, bytes).expect("written"));
    let recovered = recover(&folder, &server, &place);
    assert!(recovered.status.success(), "{}", text(&recovered));
    let again = recover(&folder, &server, &place);
    assert_eq!(again.status.code(), Some(8), "a node is never written over: {}", text(&again));

    let controller = founded(&folder, &address, &server);
    let addresses = vec![address];
    let mut cluster =
        SpawnedCluster { root, addresses, nodes: vec![controller], variables: Vec::new() };
    let at = cluster.wait("the new cluster", SpawnedCluster::step);
    assert_eq!(at, newest, "it begins behind the checkpoint");
    ["c", "d"].into_iter().for_each(|name| cluster.join(name));
    let found = cluster.digest(STEPS);
    // The new cluster writes the mirror from now on.
    cluster.wait("the last checkpoint", |_| {
        (mirrored(&bucket.join("wiki")).last() == Some(&STEPS)).then_some(())
    });
    drop(cluster);
    assert_eq!(found, undisturbed());
}

/// Nowhere to copy to: a person learns so at once, and not by a mirror that stays empty.
#[test]
fn a_mirror_without_a_place_is_refused_by_the_names_of_key_and_argument() {
    let mut cluster = SpawnedCluster::new();
    // A checkpoint each few milliseconds, and one of them kept: most are removed while they are copied.
    cluster.join_all(&["a"], 2);
    cluster.run_with(STEPS, "keep_last = 1\n");
    let folder = cluster.nodes[0].folder.clone();
    for more in [&[][..], &["--once"]] {
        let ended = zbelastic(&folder).arg("mirror").args(more).output().expect("the binary runs");
        assert_eq!(ended.status.code(), Some(2), "{more:?}: {}", text(&ended));
        let text = text(&ended);
        assert!(text.contains("run test has no checkpoint.mirror"), "{more:?}: {text}");
        assert!(text.contains("no PLACE was given"), "{more:?}: {text}");
    }
    // With one it is copied, the same run as well.
    cluster.wait("a checkpoint", |cluster| cluster.status()?.checkpoints.last().map(drop));
    let place = cluster.root.path().join("mirror");
    let copied = zbelastic(&folder).args(["mirror", "--once"]).arg(&place).output();
    let copied = copied.expect("the binary runs");
    assert!(copied.status.success(), "{}", text(&copied));
    assert!(place.join("checkpoints").exists());
}

/// Islands meet in buckets, with layers that are more than one request carries.
#[test]
fn islands_meet_in_buckets() {
    let store = tempfile::tempdir().expect("a folder");
    for bucket in ["zone-a", "zone-b"] {
        fs::create_dir(store.path().join(bucket)).expect("a bucket");
    }
    let server = S3Server::start(store.path(), true);
    let root = tempfile::tempdir().expect("a folder");
    let island = |island: u32| {
        let mut command = zbelastic(root.path());
        let settings = [
            "model.preset=tiny",
            "model.layers=1",
            "model.width=512",
            "model.heads=8",
            "train.seq_len=16",
            "train.global_batch=1",
            "train.microbatch=1",
            "train.steps=6",
            "data.held_out=0",
            "sync.every=4",
            "sync.overlap=1",
            "sync.folders=[\"s3://zone-a/run\",\"s3://zone-b/run\"]",
            &format!("sync.island={island}"),
        ]
        .map(str::to_owned);
        command.current_dir(root.path()).args(["train", "--threads-only", "--workers", "1"]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        command.args(["--out", &format!("island-{island}")]);
        let mut command = with_credentials(command, &server);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
    };
    let islands = [island(0), island(1)];
    // Of a server that is busy parts are requested again.
    server.be_busy(2);
    for child in islands {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", text(&output));
    }
    let model = |island: u32| {
        fs::read(root.path().join(format!("island-{island}/model/model.safetensors")))
    };
    assert!(model(0).expect("written") == model(1).expect("written"), "islands end alike");
    let largest = fs::read_dir(store.path().join("zone-b/run/outer/00002")).expect("a layer");
    let parts = largest.filter(|entry| {
        let name = entry.as_ref().expect("an entry").file_name();
        name.to_string_lossy().starts_with("00000000000000000006-")
    });
    assert!(parts.count() > 2, "a state of several parts");
}

/// The files below a folder.
fn chunks(folder: &Path) -> Vec<PathBuf> {
    let paths =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { chunks(&path) } else { vec![path] }).collect()
}
