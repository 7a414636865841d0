//! A small sample of what a release campaign does: real processes are struck, and the weights come
//! out as if nothing had happened.

#[expect(dead_code, reason = "the tests of the page use more of it")]
#[path = "page/http.rs"]
mod http;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Small enough that a minute is enough for all faults.
const CONFIG: &str = "[model]\npreset = \"tiny\"\n[checkpoint]\nevery = 20\n";

/// Runs a campaign to its end and gives its account.
fn campaign(folder: &Path, arguments: &[&str]) -> Value {
    let config = folder.join("config.toml");
    let report = folder.join("report.json");
    std::fs::write(&config, CONFIG).expect("a configuration");
    let mut command = Command::new(env!("CARGO_BIN_EXE_zbelastic"));
    command.args(["chaos", "run", "--every", "1", "--workers", "3"]).args(arguments);
    command.arg("--config").arg(&config).arg("--report").arg(&report).current_dir(folder);
    let ended = command.output().expect("the binary runs");
    let stdout = String::from_utf8_lossy(&ended.stdout);
    let why = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}\n{stdout}\n{why}", ended.status);
    let text = std::fs::read_to_string(report).expect("a report");
    serde_json::from_str(&text).expect("it is JSON")
}

#[test]
fn a_sample_of_a_release_campaign_passes() {
    let folder = tempfile::tempdir().expect("a folder");
    let faults = "kill-worker,kill-leader,pause-worker";
    let arguments = ["--kills", "6", "--power-cycles", "1", "--faults", faults];
    let account = campaign(folder.path(), &arguments);
    assert_eq!(account["verdict"], "passed");
    let strikes = account["strikes"].as_array().expect("strikes");
    assert_eq!(strikes.len(), 7);
    assert!(strikes.iter().any(|strike| strike["fault"].get("PowerCycle").is_some()));
    let calm = account["digest_undisturbed"].as_str().expect("a digest");
    let digests = account["findings"]["digests"].as_array().expect("digests");
    assert!(!digests.is_empty() && digests.iter().all(|digest| digest == calm), "{digests:?}");
    assert_eq!(account["findings"]["compared"], account["steps"]);
}

/// Files that nodes keep are damaged while they are down: members mend them, no run goes another
/// way, and nothing that a node holds grows with the length of the run.
#[test]
fn a_sample_with_damaged_disks_passes() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = ["--kills", "5", "--faults", "damage-disk,full-disk", "--seed", "2"];
    let account = campaign(folder.path(), &arguments);
    assert_eq!(account["verdict"], "passed");
    let strikes = account["strikes"].as_array().expect("strikes");
    let damaged = strikes.iter().filter(|strike| strike["fault"].get("DamageDisk").is_some());
    assert!(damaged.count() >= 2, "{strikes:?}");
    assert_eq!(account["findings"]["compared"], account["steps"]);
}

/// Stores obey retention on every node: what 60 checkpoints leave is what 30 left.
#[test]
fn a_sample_of_a_soak_is_flat_and_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_zbelastic"));
    command.args(["chaos", "soak", "--preset", "tiny", "--checkpoints", "60", "--every", "10"]);
    command.args(["--workers", "2", "--controllers", "1"]).current_dir(folder.path());
    command.arg("--plot").arg(path("soak.svg")).arg("--report").arg(path("soak.json"));
    let ended = command.output().expect("the binary runs");
    let stdout = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{}\n{stdout}", String::from_utf8_lossy(&ended.stderr));
    assert!(stdout.contains("flat on every node"), "{stdout}");
    let report = std::fs::read_to_string(path("soak.json")).expect("a report");
    let report: Value = serde_json::from_str(&report).expect("it is JSON");
    assert_eq!(report["nodes"].as_array().map(Vec::len), Some(3));
    let samples = report["samples"].as_array().expect("samples");
    assert!(samples.len() > 40, "{} samples", samples.len());
    let svg = std::fs::read_to_string(path("soak.svg")).expect("a picture");
    assert_eq!(svg.matches("<polyline").count(), 3);
}

/// Workers are killed with their disks and others come in their places: who comes holds no more than who was there.
#[test]
fn a_sample_of_a_soak_with_losses_and_joins_is_flat() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("soak.json");
    let soak = |workers: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zbelastic"));
        command.args(["chaos", "soak", "--preset", "tiny", "--checkpoints", "80", "--every", "10"]);
        command.args(["--churn", "1", "--workers", workers, "--controllers", "1"]);
        command.arg("--report").arg(&report).current_dir(folder.path());
        command.output().expect("the binary runs")
    };
    assert_eq!(soak("1").status.code(), Some(2), "the only worker has all that is in memory");
    let ended = soak("3");
    let stdout = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{}\n{stdout}", String::from_utf8_lossy(&ended.stderr));
    assert!(stdout.contains("flat on every node"), "{stdout}");
    let report: Value =
        serde_json::from_slice(&std::fs::read(report).expect("a report")).expect("it is JSON");
    let losses = report["losses"].as_u64().expect("a number");
    let joins = report["joins"].as_u64().expect("a number");
    assert!(losses >= 2 && (losses - 1..=losses).contains(&joins), "{losses} lost, {joins} joined");
    let nodes = report["nodes"].as_array().map(Vec::len);
    assert_eq!(nodes, Some(4), "who joins has the place of who was lost");
    let last = report["samples"].as_array().and_then(|samples| samples.last()).expect("samples");
    for resource in ["kept", "other", "descriptors", "threads", "resident"] {
        assert_eq!(last[resource].as_array().map(Vec::len), nodes, "{resource}");
    }
}

/// A campaign with a result is not run again, one that was interrupted is, and so is one with another command.
#[test]
fn campaigns_go_on_where_they_were_interrupted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    // It fails lives of housekeeping, and is interrupted in the first lives with floats.
    let program = "#!/bin/sh\necho \"$*\" >>calls\ncase $* in *housekeeping*) exit 10 ;; \
        *float*) [ -e again ] || { touch again; exit 130; } ;; esac\necho all is well\n"
        .replace("calls", &path("calls").display().to_string())
        .replace("again", &path("again").display().to_string());
    std::fs::write(path("program"), program).expect("written");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(path("program"), executable).expect("it is ours");
    let campaigns = |scale: &str| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../chaos-tests/campaigns");
        let mut command = Command::new(script);
        for name in ["digest-lives", "float-lives", "housekeeping"] {
            command.args(["--only", name]);
        }
        command.args(["--scale", scale]).arg("--program").arg(path("program"));
        let ended = command.arg("--out").arg(path("out")).output().expect("it runs");
        let calls = std::fs::read_to_string(path("calls")).expect("it was called");
        (ended.status.code(), calls.lines().count())
    };
    assert_eq!(campaigns("0"), (Some(130), 2), "interrupted in the second");
    assert_eq!(campaigns("0"), (Some(1), 4), "the second again, and the third fails");
    assert_eq!(campaigns("0"), (Some(1), 4), "each has a result");
    let summary = std::fs::read_to_string(path("out/summary")).expect("a summary");
    let words: Vec<_> =
        summary.lines().map(|line| line.split_whitespace().nth(1).unwrap_or_default()).collect();
    assert_eq!(words, ["ok", "ok", "FAILED"], "{summary}");
    assert_eq!(campaigns("1"), (Some(1), 7), "more lives are other commands");
}

#[test]
fn a_demonstration_shows_its_kills_on_a_live_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_zbelastic"));
    command.args(["chaos", "demo", "--ui", "0", "--seconds", "8", "--workers", "2"]);
    command.args(["--controllers", "1"]).current_dir(folder.path()).stdout(Stdio::piped());
    let mut demo = command.spawn().expect("the binary runs");
    let mut lines = BufReader::new(demo.stdout.take().expect("a pipe")).lines();
    let page = lines.by_ref().map(|line| line.expect("text")).find_map(|line| {
        Some(line.strip_prefix("page: http://")?.trim_end_matches('/').to_owned())
    });
    let page = page.expect("it prints where the page is");
    // A kill is seen while the run goes on, in the stream that a browser reads.
    let seen = http::events_until(&page, "", "\"kind\":\"lost\"").expect("a worker is killed");
    assert!(seen.contains("\"kind\":\"snapshot\""));
    let rest: Vec<String> = lines.map(|line| line.expect("text")).collect();
    assert!(demo.wait().expect("it ends").success(), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("The weights are the same")), "{rest:?}");
    assert!(http::get(&page, "/healthz", "").is_none(), "the page ends with it");
}
