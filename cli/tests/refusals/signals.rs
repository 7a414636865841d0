//! Keys and signals: a node goes in order, goes at once, or goes on.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::site::{ControllerSite, SiteNode, wait_until, zbelastic};

/// The process of a folder that has an identity.
fn start_again(site: &ControllerSite, node: &SiteNode) -> SiteNode {
    let join = ["join", "--cluster", &site.address, "--bind", "127.0.0.1:0"];
    SiteNode::start(&node.folder, &[&join[..], &["--threads", "1", "--spot", "none"]].concat())
}

#[test]
fn standby_goes_when_it_is_drained() {
    let site = ControllerSite::new();
    for (name, signal, code) in [("by-system", "TERM", 75), ("by-person", "INT", 0)] {
        let mut worker = site.worker(name);
        worker.signal(signal);
        assert_eq!(worker.ended(), Some(code), "{}", worker.log_text());
        let standing = site.member(name).expect("it was one")["standing"].clone();
        assert_eq!(standing["state"], "lost");
    }
    let mut worker = site.worker("by-command");
    let left = zbelastic(&worker.folder, &["leave"]).output().expect("it runs");
    assert!(left.status.success());
    assert_eq!(worker.ended(), Some(0), "nothing starts it again: {}", worker.log_text());
    assert!(!worker.log_text().contains("taken away"), "{}", worker.log_text());
    let mut worker = site.worker("by-order");
    site.stdout_of(&["node", "drain", "by-order"]);
    assert_eq!(worker.ended(), Some(0), "nothing starts it again: {}", worker.log_text());
    let state = || site.member("by-order").expect("it was one")["standing"]["state"].clone();
    assert_eq!(state(), "lost");
    // Somebody starts it again: it is the node that it was.
    let again = start_again(&site, &worker);
    wait_until("that it is back", || state() == "present");
    drop(again);
}

/// The credential of an ephemeral node goes with it, and a folder without one is of no use.
#[test]
fn ephemeral_node_that_was_drained_says_what_it_needs_when_it_is_started_again() {
    let site = ControllerSite::new();
    let mut worker = site.worker_with("spot", &["--ephemeral"]);
    site.stdout_of(&["node", "drain", "spot"]);
    assert_eq!(worker.ended(), Some(0), "{}", worker.log_text());
    let mut again = start_again(&site, &worker);
    assert_eq!(again.ended(), Some(4), "{}", again.log_text());
    let log = again.log_text();
    assert!(log.contains("its token was for ephemeral nodes and it left"), "{log}");
    assert!(log.contains("join with a new token and an empty folder"), "{log}");
}

#[test]
fn closed_terminal_changes_nothing() {
    let mut site = ControllerSite::new();
    let mut worker = site.worker("w");
    worker.signal("HUP");
    site.controller.signal("HUP");
    worker.signal("HUP");
    let before = site.member("w").expect("a member");
    assert_eq!(before["standing"]["state"], "present");
    assert!(worker.is_running() && site.controller.is_running());
    worker.signal("INT");
    assert_eq!(worker.ended(), Some(0));
}

#[test]
fn the_only_worker_of_a_run_goes_at_once_when_it_is_signalled_twice() {
    let mut site = ControllerSite::new();
    let mut worker = site.worker("w");
    site.run(100_000);
    site.wait_for_checkpoint();
    worker.signal("INT");
    worker.wait_for_log("draining: by order; a second signal ends it at once");
    assert!(worker.is_running(), "nobody else has its layers");
    worker.signal("INT");
    assert_eq!(worker.ended(), Some(130));
    site.controller.signal("TERM");
    assert_eq!(site.controller.ended(), Some(75));
}

#[test]
fn reader_who_leaves_ends_a_command_quietly() {
    let site = ControllerSite::new();
    let mut command = zbelastic(&site.controller.folder, &["events", "--follow"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    assert!(!line.is_empty());
    drop(lines);
    // Each token is an event to print, so that the command notices.
    let mut status = None;
    wait_until("its end", || {
        site.token(&["--ttl", "1s"]);
        status = child.try_wait().expect("it is a child");
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0));
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("UTF-8");
    assert_eq!(stderr, "");
}
