//! Runs with names: what one made is kept until a person removes it, whatever is trained after it.

use std::fs;

use serde_json::Value;

use crate::site::{ControllerSite, SiteNode, wait_until};

/// Trains a run of so many steps to its end, under a name or without.
fn train(site: &ControllerSite, steps: u64, more: &[&str]) {
    let (config, words) = site.submission(steps);
    let line = ["run", &config, "--text", &words];
    site.stdout_of(&[&line[..], more].concat());
}

fn runs(site: &ControllerSite) -> Vec<(String, String, Vec<u64>)> {
    let listed = site.try_json(&["runs", "list", "--json"]).expect("listed");
    let steps = |run: &Value| {
        let steps = run["checkpoints"].as_array().expect("a list").iter();
        steps.map(|step| step.as_u64().expect("a number")).collect()
    };
    let word = |value: &Value| value.as_str().expect("a word").to_owned();
    let run = |run: &Value| (word(&run["name"]), word(&run["phase"]["state"]), steps(run));
    listed.as_array().expect("a list").iter().map(run).collect()
}

fn exported(site: &ControllerSite, run: &str, folder: &str) -> Vec<u8> {
    let path = site.path(folder);
    site.stdout_of(&["export", run, "--to", &path.display().to_string()]);
    fs::read(path.join("model.safetensors")).expect("written")
}

/// Bytes of a node's chunks of checkpoints.
fn chunk_bytes(data: &std::path::Path) -> u64 {
    let sum = |folder: std::path::PathBuf| -> u64 {
        let Ok(entries) = fs::read_dir(folder) else { return 0 };
        entries.flatten().map(|entry| entry.metadata().map_or(0, |found| found.len())).sum()
    };
    let chunks = data.join("store/chunks");
    let Ok(entries) = fs::read_dir(&chunks) else { return 0 };
    entries.flatten().map(|entry| sum(entry.path())).sum()
}

#[test]
fn a_new_run_takes_nothing_from_the_runs_before_it() {
    let site = ControllerSite::new();
    let worker = site.worker("w");
    assert_eq!(runs(&site), []);
    train(&site, 7, &["--name", "first"]);
    let made = exported(&site, "first", "out/first");
    train(&site, 5, &[]);
    let second = runs(&site)[1].0.clone();
    assert!(second.starts_with("gpt2-") || second.starts_with("llama-"), "{second}");
    let done = |name: &str, steps: u64| (name.to_owned(), "done".to_owned(), vec![steps]);
    assert_eq!(runs(&site)[0], done("first", 7));
    assert!(exported(&site, "first", "out/first-again") == made, "it is the model it was");
    assert!(exported(&site, &second, "out/second") != made);
    site.stdout_of(&["ckpt", "verify", "--run", "first"]);

    // The same submission is the run that ended, under its own name or without one.
    let (config, words) = site.submission(7);
    let line = ["run", &config, "--text", &words, "--detach"];
    let stderr = site.refused(&line, 6);
    assert!(
        stderr.contains("run first is this one and has ended")
            && stderr.contains("zbelastic export"),
        "{stderr}"
    );
    let stderr = site.refused(&[&line[..], &["--name", "first"]].concat(), 6);
    assert!(stderr.contains("there is a run called first already"), "{stderr}");
    let stderr = site.refused(&[&line[..], &["--name", "A b"]].concat(), 2);
    assert!(stderr.contains("expected 1 to 63 of a-z"), "{stderr}");

    let stderr = site.refused(&["export", "frist", "--to", "nowhere"], 5);
    assert!(stderr.contains("there is no run frist") && stderr.contains("runs list"), "{stderr}");
    let stderr = site.refused(&["runs", "remove", "first"], 2);
    assert!(stderr.contains("its checkpoint of step 7") && stderr.contains("--yes"), "{stderr}");
    assert_eq!(runs(&site).len(), 2, "nobody said yes");

    let before =
        [site.controller.folder.clone(), worker.folder.clone()].map(|data| chunk_bytes(&data));
    site.stdout_of(&["runs", "remove", "first", "--yes"]);
    assert_eq!(runs(&site).len(), 1);
    site.refused(&["export", "first", "--to", "nowhere"], 5);
    for (data, before) in [&site.controller.folder, &worker.folder].into_iter().zip(before) {
        wait_until("the checkpoint of the run that was removed goes", || {
            let after = chunk_bytes(data);
            after < before && after > 0
        });
    }
    site.stdout_of(&["runs", "remove", &second, "--yes"]);
    for data in [&site.controller.folder, &worker.folder] {
        wait_until("everything goes", || chunk_bytes(data) == 0);
    }
    // What a worker logged is read from the worker, by way of the controller.
    wait_until("its log", || site.stdout_of(&["logs", "w"]).contains("chunks removed"));
    train(&site, 7, &["--name", "first"]);
    assert!(exported(&site, "first", "out/anew") == made, "the same run has the same bits");
}

#[test]
fn a_run_under_way_is_not_removed_and_one_that_is_stopped_is_kept() {
    let site = ControllerSite::new();
    let _worker = site.worker("w");
    site.run(100_000);
    site.wait_for_checkpoint();
    let name = runs(&site)[0].0.clone();
    let stderr = site.refused(&["runs", "remove", &name, "--yes"], 6);
    assert!(stderr.contains("is under way") && stderr.contains("zbelastic stop"), "{stderr}");
    site.stdout_of(&["stop", "--yes"]);
    train(&site, 5, &["--name", "next"]);
    let kept = runs(&site);
    assert_eq!((kept[0].0.as_str(), kept[0].1.as_str()), (name.as_str(), "stopped"));
    assert_eq!(kept[0].2.len(), 1, "its last checkpoint");
    exported(&site, &name, "out/stopped");
}

/// Nobody has the device that it names.
#[test]
fn a_run_that_cannot_begin_says_why_and_is_given_up_with_nothing_of_others() {
    let site = ControllerSite::new();
    let _worker = site.worker("w");
    train(&site, 5, &["--name", "first"]);
    let made = exported(&site, "first", "out/first");
    let (config, words) = site.submission(5);
    let line = ["run", &config, "--text", &words, "--detach", "--name", "far"];
    site.stdout_of(&[&line[..], &["--set", "train.device=cuda"]].concat());
    let reason = |status: &Value| status["job"]["phase"]["reason"].as_str().map(str::to_owned);
    wait_until("the reason", || {
        reason(&site.status()).is_some_and(|why| why.contains("other bits"))
    });
    site.stdout_of(&["stop", "--yes"]);
    assert!(exported(&site, "first", "out/again") == made);
    train(&site, 7, &["--name", "next"]);
    let ended: Vec<_> = runs(&site).into_iter().map(|run| (run.0, run.1)).collect();
    let named = |name: &str, phase: &str| (name.to_owned(), phase.to_owned());
    assert_eq!((&ended[0], ended.last()), (&named("first", "done"), Some(&named("next", "done"))));
}

/// What lies on other nodes as well is not worth a voter, and what is not written again is fetched
/// back.
#[test]
fn a_controller_with_a_damaged_index_starts_and_gets_the_runs_that_ended_back() {
    let mut site = ControllerSite::new();
    let mut worker = site.worker("w");
    train(&site, 5, &["--name", "first"]);
    let made = exported(&site, "first", "out/first");
    let folder = site.controller.folder.clone();
    site.controller.child.kill().expect("it runs");
    site.controller.ended();
    let index = folder.join("store/index/db");
    let mut bytes = fs::read(&index).expect("there is an index");
    let middle = bytes.len() / 2;
    bytes[..middle].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(&index, bytes).expect("writable");

    site.controller = SiteNode::start(&folder, &["init"]);
    site.controller.wait_for_log("put aside in");
    assert!(folder.join("store.damaged/chunks").is_dir());
    wait_until("a leader", || {
        site.try_json(&["status", "--json"]).is_some_and(|status| !status["leader"].is_null())
    });
    site.controller.wait_for_log("layers of checkpoints fetched");
    // Nothing was trained since: a person may still want what could not be read.
    let collected: serde_json::Value =
        serde_json::from_str(&site.stdout_of(&["ckpt", "gc", "--yes", "--json"])).expect("JSON");
    let kept = |node: usize| collected[node]["aside_bytes_kept"].as_u64().expect("a number");
    assert!(kept(0) > 0, "{collected}");
    assert_eq!((kept(1), &collected[1]["error"]), (0, &serde_json::Value::Null), "{collected}");
    worker.child.kill().expect("it runs");
    worker.ended();
    assert!(exported(&site, "first", "out/again") == made, "it is all here");
}

/// With a learning rate that does not depend on the number of steps a run that goes on is the
/// longer run.
#[test]
fn a_run_goes_on_from_another_with_more_steps() {
    const STEADY: [&str; 4] = ["--set", "optimizer.decay=constant", "--set", "optimizer.warmup=0"];
    let site = ControllerSite::new();
    let _worker = site.worker("w");
    let named = |more: &[&'static str]| [&STEADY[..], more].concat();
    train(&site, 12, &named(&["--name", "whole"]));
    train(&site, 7, &named(&["--name", "first"]));
    train(&site, 12, &named(&["--name", "longer", "--from", "first", "--schedule", "gpipe"]));
    assert!(exported(&site, "longer", "out/longer") == exported(&site, "whole", "out/whole"));
    let listed: Vec<Vec<u64>> = runs(&site).into_iter().map(|run| run.2).collect();
    assert_eq!(listed[..2], [vec![12], vec![7]], "what was kept is kept");
    let shown = site.stdout_of(&["runs", "show", "longer"]);
    assert!(shown.contains("from    first, behind step 7, digest "), "{shown}");

    // Without a configuration it is the other's, over the other's text.
    site.stdout_of(&["run", "--from", "first", "--steps", "12"]);
    assert!(exported(&site, "first-2", "out/same") == exported(&site, "whole", "out/whole-2"));
    let stderr = site.refused(&["run", "--from", "first", "--text", "words.txt"], 2);
    assert!(stderr.contains("data.text without a configuration"), "{stderr}");
    let stderr = site.refused(&["run", "--from", "first"], 6);
    assert!(stderr.contains("7 steps, and the run begins behind step 7"), "{stderr}");

    let (config, words) = site.submission(20);
    let line = ["run", &config, "--text", &words, "--detach"];
    let refused = |more: &[&str], code| site.refused(&[&line[..], more].concat(), code);
    let stderr = refused(&["--from", "frist"], 5);
    assert!(stderr.contains("there is no run frist"), "{stderr}");
    let stderr = refused(&["--from", "first", "--steps", "7"], 6);
    assert!(stderr.contains("7 steps, and the run begins behind step 7"), "{stderr}");
    let stderr = refused(&["--from", "first", "--set", "model.layers=3"], 6);
    assert!(
        stderr.contains("run first has another model") && stderr.contains("--from"),
        "{stderr}"
    );

    // A branch that has no checkpoint yet stands on its parent's.
    let far = ["--from", "first", "--steps", "100000", "--set", "checkpoint.every=2000"];
    let quiet = ["--name", "far", "--set", "checkpoint.every_time=0ms"];
    site.stdout_of(&[&line[..], &far, &quiet].concat());
    let stderr = site.refused(&["runs", "remove", "first", "--yes"], 6);
    assert!(stderr.contains("run far continues from it"), "{stderr}");
    let stderr = refused(&["--from", "far"], 6);
    assert!(
        stderr.contains("run far is under way") && stderr.contains("zbelastic stop"),
        "{stderr}"
    );
    site.stdout_of(&["stop", "--yes"]);
    site.stdout_of(&["runs", "remove", "first", "--yes"]);
    exported(&site, "longer", "out/longer-again");
}
