//! Folders that cannot be used, or that are not what they were.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::site::{ControllerSite, SiteNode, free_address, refused, wait_until};

const INIT: [&str; 3] = ["init", "--bind", "127.0.0.1:0"];

fn copy(from: &Path, to: &Path) -> PathBuf {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().expect("there is a cp");
    assert!(copied.success());
    to.to_owned()
}

/// Every file in a folder with what is in it, but for the lock.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else if !path.ends_with("LOCK") && path.is_file() && !path.is_symlink() {
            found.push((path.clone(), fs::read(&path).expect("readable")));
        }
    }
    found.sort();
    found
}

#[test]
fn paths_that_lead_to_no_folder_are_distinguished() {
    let root = tempfile::tempdir().expect("a folder");
    let path = |name: &str| root.path().join(name);
    fs::write(path("file"), "").expect("written");
    fs::create_dir(path("other")).expect("made");
    fs::write(path("other/thesis.tex"), "").expect("written");
    symlink(path("other"), path("link")).expect("linked");
    let cases = [
        ("file", 2, "is a file, not a folder"),
        ("link", 2, "is a link, not a folder"),
        ("other", 2, "is no data folder, and holds thesis.tex"),
        ("file/below", 7, "file/below"),
    ];
    for (name, code, expected) in cases {
        let stderr = refused(&path(name), &INIT, code);
        assert!(stderr.contains(expected) && stderr.contains("nothing was changed"), "{stderr}");
    }
    assert_eq!(contents(&path("other")).len(), 1);
}

#[test]
fn folder_that_may_not_be_written_is_reported_with_its_owner() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("locked");
    fs::create_dir(&folder).expect("made");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o500)).expect("they are ours");
    if fs::write(folder.join("probe"), "").is_ok() {
        return eprintln!("skipped: this user may write everywhere");
    }
    let stderr = refused(&folder, &INIT, 7);
    assert!(stderr.contains("may not be written by this user"), "{stderr}");
}

#[test]
fn empty_lock_is_no_harm() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("node");
    fs::create_dir(&folder).expect("made");
    fs::write(folder.join("LOCK"), "").expect("written");
    let node = SiteNode::start(&folder, &INIT);
    node.wait_for_log("running");
}

/// A name, what is done to a copy of a controller's folder, the exit code, and a part of the error.
type DamageCase = (&'static str, fn(&Path), i32, &'static str);

const DAMAGE: [DamageCase; 11] = [
    (
        "a newer folder",
        |folder| {
            let text = "zbelastic-data 9 7.0.0 7.0.0";
            let check = &blake3::hash(text.as_bytes()).to_hex()[..8];
            fs::write(folder.join("VERSION"), format!("{text} {check}\n")).unwrap();
        },
        6,
        "needs >= 7.0.0; the data is untouched",
    ),
    (
        "a version with a flipped digit",
        |folder| {
            let version = fs::read_to_string(folder.join("VERSION")).unwrap();
            fs::write(folder.join("VERSION"), version.replacen("data 1", "data 3", 1)).unwrap();
        },
        6,
        "has no readable version: it is damaged",
    ),
    (
        "an empty version",
        |folder| fs::write(folder.join("VERSION"), "").unwrap(),
        6,
        "has no readable version: it is empty",
    ),
    (
        "a newer node.json",
        |folder| {
            let path = folder.join("identity/node.json");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
        },
        6,
        "node.json is of version 2",
    ),
    (
        "a digit of node.json",
        |folder| {
            let path = folder.join("identity/node.json");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, text.replace("127.0.0.1:", "127.0.0.1:1")).unwrap();
        },
        8,
        "node.json is damaged: its check is",
    ),
    (
        "half a node.json",
        |folder| fs::write(folder.join("identity/node.json"), "{").unwrap(),
        8,
        "node.json cannot be read",
    ),
    (
        "no node.json",
        |folder| fs::remove_file(folder.join("identity/node.json")).unwrap(),
        8,
        "and does not say of which",
    ),
    (
        "no identity",
        |folder| {
            fs::remove_dir_all(folder.join("identity")).unwrap();
            fs::remove_dir_all(folder.join("admin")).unwrap();
        },
        8,
        "holds log of a node, and does not say of which",
    ),
    (
        "no log",
        |folder| fs::remove_dir_all(folder.join("log")).unwrap(),
        8,
        "the log of this controller is gone",
    ),
    (
        "a log of other bytes",
        |folder| fs::write(folder.join("log/FORMAT"), "\u{1b}[2J\u{7}").unwrap(),
        8,
        "nothing was created in its place",
    ),
    (
        "a key for everybody",
        |folder| {
            let path = folder.join("identity/key.pem");
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        },
        4,
        "has permissions 0644, at most 0600 are safe",
    ),
];

#[test]
fn damaged_folder_is_refused_with_its_reason_and_left_as_it_is() {
    let mut site = ControllerSite::new();
    site.controller.child.kill().expect("it runs");
    site.controller.ended();
    for (index, (what, damage, code, expected)) in DAMAGE.into_iter().enumerate() {
        let folder = copy(&site.controller.folder, &site.path(&format!("copy-{index}")));
        damage(&folder);
        let before = contents(&folder);
        let stderr = refused(&folder, &["init"], code);
        assert!(stderr.contains(expected), "{what}: {stderr}");
        assert!(!stderr.contains(['\u{1b}', '\u{7}']), "{what}: {stderr:?}");
        assert!(!stderr.contains("running"), "{what}: {stderr}");
        // A start that is begun draws certificates and is counted; the log is what must not change.
        let log_files = |found: Vec<(PathBuf, Vec<u8>)>| -> Vec<(PathBuf, Vec<u8>)> {
            let is_log = |path: &Path| path.strip_prefix(&folder).unwrap().starts_with("log");
            found.into_iter().filter(|(path, _)| is_log(path)).collect()
        };
        assert_eq!(log_files(contents(&folder)), log_files(before), "{what}");
    }
}

#[test]
fn folder_serves_one_process() {
    let site = ControllerSite::new();
    let process = site.controller.child.id();
    for verb in ["init", "join"] {
        let stderr = refused(&site.controller.folder, &[verb], 6);
        assert!(stderr.contains(&format!("is in use by process {process}")), "{stderr}");
        assert!(stderr.contains("zbelastic leave"), "{stderr}");
    }
}

#[test]
fn copied_folder_is_found_out_when_both_run() {
    let site = ControllerSite::new();
    let mut original = site.worker("w");
    let folder = copy(&original.folder, &site.path("copy"));
    let mut copied = SiteNode::start(&folder, &["join", "--spot", "none"]);
    wait_until("one of them ends", || !original.is_running() || !copied.is_running());
    let (ended, other) = if copied.is_running() {
        (&mut original, &mut copied)
    } else {
        (&mut copied, &mut original)
    };
    assert_eq!(ended.ended(), Some(6), "{}", ended.log_text());
    let log_text = ended.log_text();
    assert!(
        log_text.contains("another process with this node's identity is running"),
        "{log_text}"
    );
    assert!(other.is_running());
}

#[test]
fn port_in_use_is_reported_and_another_one_can_be_given() {
    let site = ControllerSite::new();
    let folder = site.path("second");
    let init = ["init", "--bind", &site.address];
    let stderr = refused(&folder, &init, 6);
    assert!(stderr.contains(&format!("port in use: {}", site.address)), "{stderr}");
    assert!(stderr.contains("another --bind") && !stderr.contains("running"), "{stderr}");
    let other = free_address();
    let node = SiteNode::start(&folder, &["init", "--bind", &other]);
    node.wait_for_log("running");
    let output = crate::site::zbelastic(&folder, &["cluster", "info"]).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    drop(node);
    let stderr = refused(&folder, &["init", "--name", "else"], 6);
    assert!(stderr.contains("of cluster zbelastic, not else"), "{stderr}");
}
