//! Commands that send requests to a cluster, where there is none.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{refusal, zbelastic};

/// Every command that sends requests to a cluster; those that destroy something have their `--yes`.
const ASKING: [&str; 21] = [
    "token create",
    "token list",
    "token revoke 7f3a --yes",
    "node list",
    "node show 1",
    "node drain 1",
    "node remove 1 --yes",
    "run --detach",
    "pause",
    "resume",
    "stop --yes",
    "status",
    "status --watch",
    "events",
    "logs",
    "ckpt list",
    "ckpt show 1",
    "ckpt verify",
    "ckpt restore 1 --yes",
    "ckpt gc --yes",
    "cluster info",
];

/// The command in `folder`, with none of its variables in the environment.
fn command(folder: &Path, line: &str) -> Command {
    let arguments: Vec<&str> = line.split(' ').collect();
    let mut command = zbelastic(&arguments);
    command.current_dir(folder);
    for name in ["ZBELASTIC_DATA_DIR", "ZBELASTIC_CLUSTER", "ZBELASTIC_TOKEN"] {
        command.env_remove(name);
    }
    command
}

/// A folder whose administrator knows a cluster at this address.
fn folder_with_admin(address: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let admin = folder.path().join(".zbelastic/admin");
    fs::create_dir_all(&admin).expect("folders");
    let file = format!("{{\"name\":\"a\",\"id\":\"b\",\"addresses\":[\"{address}\"]}}");
    fs::write(admin.join("cluster.json"), file).expect("a file");
    folder
}

#[test]
fn without_a_certificate_no_request_is_sent() {
    let folder = tempfile::tempdir().expect("a folder");
    for line in ASKING {
        let stderr = refusal(&mut command(folder.path(), line), 4);
        assert!(
            stderr.starts_with("error: .zbelastic has no administrator's certificate"),
            "{stderr}"
        );
        assert!(stderr.contains("try: "), "{stderr}");
    }
}

#[test]
fn the_folder_is_the_flags_or_the_environments() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut status = command(folder.path(), "status");
    let stderr = refusal(status.env("ZBELASTIC_DATA_DIR", "from-environment"), 4);
    assert!(stderr.starts_with("error: from-environment has no"), "{stderr}");
    let mut status = command(folder.path(), "status --data-dir from-flag");
    let stderr = refusal(status.env("ZBELASTIC_DATA_DIR", "from-environment"), 4);
    assert!(stderr.starts_with("error: from-flag has no"), "{stderr}");
}

#[test]
fn addresses_of_the_environment_are_checked_as_those_of_the_flag() {
    let folder = folder_with_admin("127.0.0.1:1");
    let mut status = command(folder.path(), "status");
    let stderr = refusal(status.env("ZBELASTIC_CLUSTER", "a:70000"), 2);
    assert!(stderr.contains("ZBELASTIC_CLUSTER: `70000` is no port"), "{stderr}");
    let stderr = refusal(&mut command(folder.path(), "status --cluster a:70000"), 2);
    assert!(stderr.contains("`70000` is no port"), "{stderr}");
}

#[test]
fn what_destroys_needs_a_yes_without_a_terminal() {
    let folder = folder_with_admin("127.0.0.1:1");
    let stderr = refusal(&mut command(folder.path(), "ckpt gc"), 2);
    assert!(stderr.contains("--yes"), "{stderr}");
    let stderr = refusal(&mut command(folder.path(), "stop"), 2);
    assert!(stderr.contains("the run ends for good"), "{stderr}");
    let line = "cluster recover --force-new-cluster --data-dir .zbelastic";
    let stderr = refusal(&mut command(folder.path(), line), 2);
    assert!(stderr.contains("strangers"), "{stderr}");
}

#[test]
fn a_folder_without_a_process_cannot_be_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let stderr = refusal(&mut command(folder.path(), "leave"), 6);
    assert!(stderr.starts_with("error: no process runs on .zbelastic"), "{stderr}");
}

#[test]
fn a_wrong_configuration_is_reported_before_any_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = "run --set checkpoint.every=2049 --set elastic.settle=5";
    let stderr = refusal(&mut command(folder.path(), line), 2);
    assert!(
        stderr.contains("checkpoint.every: expected a whole number from 0 to 2048"),
        "{stderr}"
    );
    assert!(stderr.contains("elastic.settle: expected a duration"), "{stderr}");
    let stderr = refusal(&mut command(folder.path(), "run --set elastic.min_node=2"), 2);
    assert!(stderr.contains("try: elastic.min_nodes"), "{stderr}");
}
