//! Orders that cannot be carried out: the refusal names the state that stands against them, and
//! nothing is changed.

use std::fs;

use crate::site::{ControllerSite, wait_until};

#[test]
fn nodes_that_cannot_go_stay_and_the_reason_is_printed() {
    let site = ControllerSite::new();
    let _one = site.worker("gpu-a");
    let _two = site.worker("gpu-b");
    let check = |arguments: &[&str], code: i32, expected: &str| {
        let stderr = site.refused(arguments, code);
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    };
    check(&["node", "remove", "1", "--yes"], 6, "node test-1 is live");
    check(&["node", "remove", "1", "--force", "--yes"], 6, "is a controller that cannot be missed");
    check(&["node", "drain", "1"], 6, "is a controller, and only workers are drained");
    check(&["node", "remove", "gpu", "--yes"], 2, "gpu could be 2 nodes\n  gpu-a (2), gpu-b (3)");
    check(&["node", "drain", "gpu"], 2, "more letters of it, or the number");
    check(&["node", "remove", "99", "--yes"], 5, "there is no node 99");
    check(&["node", "drain", "gpu-c"], 5, "try: gpu-");
    check(&["node", "remove", "gpu-a"], 2, "not confirmed");
    // The controller that was to be removed was not kept out of its own cluster.
    assert_eq!(site.status()["members"].as_array().expect("a list").len(), 3);
    assert!(site.status()["leader"] == 1);
}

#[test]
fn tokens_are_taken_back_once() {
    let site = ControllerSite::new();
    let token = site.token(&[]);
    let id = token.split('.').nth(2).expect("an id");
    site.stdout_of(&["token", "revoke", &id[..8], "--yes"]);
    let stderr = site.refused(&["token", "revoke", id, "--yes"], 6);
    assert!(stderr.contains(&format!("token {id} is revoked already")), "{stderr}");
    let stderr = site.refused(&["token", "revoke", "zz", "--yes"], 5);
    assert!(stderr.contains("there is no token zz"), "{stderr}");
}

#[test]
fn runs_and_checkpoints_are_not_mistaken_for_others() {
    let site = ControllerSite::new();
    let stderr = site.refused(&["ckpt", "restore", "5", "--yes"], 5);
    assert!(stderr.contains("there is none at all"), "{stderr}");
    for verb in ["pause", "resume"] {
        assert!(site.refused(&[verb], 6).contains("there is no run"));
    }
    let _worker = site.worker("w");
    site.run(100_000);
    let step = site.wait_for_checkpoint().to_string();
    let stderr = site.refused(&["ckpt", "restore", &step, "--yes"], 6);
    assert!(stderr.contains("the run is not paused"), "{stderr}");
    assert!(stderr.contains("paused first: `zbelastic pause`"), "{stderr}");
    for absent in ["3", "999999"] {
        let stderr = site.refused(&["ckpt", "restore", absent, "--yes"], 5);
        let expected = format!("there is no checkpoint of step {absent}: there are those of steps");
        assert!(stderr.contains(&expected), "{stderr}");
    }
    let config = site.path("run.toml");
    let words = site.path("text");
    let config = config.display().to_string();
    let words = words.display().to_string();
    // Another configuration, then another text: both are other runs.
    let run = ["run", &config, "--text", &words, "--detach"];
    let stderr = site.refused(&[&run[..], &["--set", "train.seed=7"]].concat(), 6);
    assert!(stderr.contains("another run is under way"), "{stderr}");
    fs::write(site.path("text"), "changed while it was read. ".repeat(3000)).expect("written");
    let stderr = site.refused(&run, 6);
    assert!(stderr.contains("another run is under way"), "{stderr}");
    wait_until("more steps", || site.status()["job"]["step"].as_u64() > Some(5));
    assert_eq!(site.status()["job"]["phase"]["state"], "running");
}

#[test]
fn configurations_are_refused_as_a_whole_with_their_places() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |content: &[u8], expected: &[&str]| {
        let file = folder.path().join("run.toml");
        fs::write(&file, content).expect("written");
        let file = file.display().to_string();
        let stderr = crate::site::refused(folder.path(), &["config", "check", &file], 2);
        for expected in expected {
            assert!(stderr.contains(expected), "{stderr}");
        }
    };
    check(
        b"[model]\npreset = \"tiny\"\nheadz = 2\n[train]\nsteps = -1\n",
        &["run.toml:3: unknown key `model.headz`", "run.toml:5: train.steps"],
    );
    check(b"[train]\nsteps = 1\nsteps = 2\n", &["run.toml:3", "duplicate key"]);
    check(b"[train]\nsteps = \"many\"\n", &["run.toml:2: train.steps"]);
    check(b"[train]\nglobal_batch = 10\nmicrobatch = 3\n", &["microbatch"]);
    check(b"\xff\xfe[train]\n", &["UTF-8"]);
    check(&vec![b'#'; 2 << 20], &["more than 1.00 MiB"]);
}
