//! Tokens that are no good, and nodes that come twice.

use std::net::UdpSocket;

use zbelastic_identity::{JoinToken, PeerRole, SpkiPin};

use crate::site::{ControllerSite, SiteNode, free_address, refused, wait_until};

fn some_token() -> String {
    JoinToken::create(PeerRole::Worker, SpkiPin([7; 32])).reveal()
}

#[test]
fn mistyped_token_is_reported_and_no_request_is_sent() {
    let folder = tempfile::tempdir().expect("a folder");
    let listener = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one").to_string();
    let token = some_token();
    let (all_but_last, last) = token.split_at(token.len() - 1);
    let wrong = format!("{all_but_last}{}", if last == "0" { "1" } else { "0" });
    for typed in [wrong.as_str(), all_but_last, "zbt1", "hunter2"] {
        let join = ["join", "--cluster", &address, "--token", typed];
        let stderr = refused(folder.path(), &join, 4);
        assert!(stderr.contains("E2001 token mistyped (checksum)"), "{stderr}");
        assert!(stderr.contains("nothing was sent"), "{stderr}");
    }
    listener.set_nonblocking(true).expect("a socket");
    assert!(listener.recv(&mut [0; 8]).is_err(), "something was sent");
}

#[test]
fn token_that_is_no_good_is_refused_with_its_reason_and_how_to_get_another() {
    let site = ControllerSite::new();
    let expired = site.token(&["--ttl", "1s"]);
    let id = |token: &str| token.split('.').nth(2).expect("an id").to_owned();
    let revoked = site.token(&[]);
    site.stdout_of(&["token", "revoke", &id(&revoked), "--yes"]);
    let spent = site.token(&["--uses", "1"]);
    let _worker = SiteNode::start(&site.path("first"), &site.join(&spent, "first"));
    wait_until("the worker", || site.member("first").is_some());
    let of_worker = site.token(&[]);
    let as_controller = [&site.join(&of_worker, "w")[..], &["--role", "controller"]].concat();
    let cases = [
        (as_controller.clone(), "E2006", id(&of_worker), "--role"),
        (site.join(&expired, "w"), "E2002", id(&expired), "token create"),
        (site.join(&revoked, "w"), "E2003", id(&revoked), "token create"),
        (site.join(&spent, "w"), "E2004", id(&spent), "token create"),
    ];
    for (join, code, id, hint) in cases {
        let stderr = site.join_refused(&join, 4);
        assert!(
            stderr.contains(&format!("{code} token {id}")) && stderr.contains(hint),
            "{stderr}"
        );
        assert!(!stderr.contains("1970"), "{stderr}");
        site.controller.wait_for_log(&format!("join refused: {code} token {id}"));
    }
    assert_eq!(site.status()["members"].as_array().expect("a list").len(), 2);
}

#[test]
fn token_of_another_cluster_is_shown_to_nobody() {
    let site = ControllerSite::new();
    let token = some_token();
    let stderr = site.join_refused(&site.join(&token, "w"), 4);
    assert!(
        stderr.contains("the server is not of the cluster that this token belongs to"),
        "{stderr}"
    );
    assert!(stderr.contains("nothing was sent to it"), "{stderr}");
}

#[test]
fn a_member_comes_back_as_itself_or_is_refused_with_what_differs() {
    let site = ControllerSite::new();
    let token = site.token(&[]);
    let folder = site.path("w");
    let mut worker = SiteNode::start(&folder, &site.join(&token, "w"));
    wait_until("the worker", || site.member("w").is_some());
    let before = site.member("w").expect("waited for");
    let stderr = refused(&folder, &site.join(&token, "w"), 6);
    let process = worker.child.id();
    assert!(stderr.contains(&format!("is in use by process {process}")), "{stderr}");
    worker.child.kill().expect("it runs");
    worker.ended();
    let other = some_token();
    let cases: [(&[&str], &str); 4] = [
        (&["join", "--name", "v"], "is the folder of worker w, not v's"),
        (&["join", "--role", "controller"], "is the folder of worker w, no controller's"),
        (&["join", "--token", &other], "of another cluster than the token"),
        (&["init"], "is the folder of worker w, no controller's"),
    ];
    for (arguments, expected) in cases {
        let stderr = refused(&folder, arguments, 6);
        assert!(stderr.contains(expected) && stderr.contains("nothing was changed"), "{stderr}");
    }
    // The same line again, although the token is spent.
    let mut worker = SiteNode::start(&folder, &site.join(&token, "w"));
    wait_until("a later life", || {
        let member = site.member("w").expect("a member");
        member["incarnation"] != before["incarnation"] && member["standing"]["state"] == "present"
    });
    assert_eq!(site.member("w").expect("a member")["id"], before["id"]);
    site.stdout_of(&["node", "remove", "w", "--force", "--yes"]);
    assert_eq!(worker.ended(), Some(4));
    assert!(
        worker.log_text().contains("does not admit this node any more"),
        "{}",
        worker.log_text()
    );
    let mut again = SiteNode::start(&folder, &["join", "--spot", "none"]);
    assert_eq!(again.ended(), Some(4));
    let log_text = again.log_text();
    assert!(log_text.contains("join with a new token and an empty folder"), "{log_text}");
}

#[test]
fn removed_node_stays_out_when_the_controller_starts_again() {
    let mut site = ControllerSite::new();
    let worker = site.worker("w");
    let folder = worker.folder.clone();
    drop(worker);
    wait_until("its loss", || {
        site.member("w").is_some_and(|member| member["standing"]["state"] == "lost")
    });
    site.stdout_of(&["node", "remove", "w", "--yes"]);
    site.controller.child.kill().expect("it runs");
    site.controller.ended();
    site.controller = SiteNode::start(&site.controller.folder.clone(), &["init"]);
    wait_until("a leader", || site.try_json(&["status", "--json"]).is_some());
    assert_eq!(SiteNode::start(&folder, &["join", "--spot", "none"]).ended(), Some(4));
}

/// Tokens of machines that come and go: their certificates hold for a day like others.
#[test]
fn ephemeral_node_that_is_removed_is_kept_out_by_every_member() {
    let mut site = ControllerSite::new();
    let other = site.worker("other");
    let mut worker = site.worker_with("spot", &["--ephemeral"]);
    let folder = worker.folder.clone();
    let node = site.member("spot").expect("waited for")["id"].to_string();
    site.stdout_of(&["node", "remove", "spot", "--force", "--yes"]);
    other.wait_for_log(&format!("node {node} was removed: no connection of it is accepted"));
    wait_until("its end", || !worker.is_running());
    assert_eq!(worker.ended(), Some(4));
    site.controller.child.kill().expect("it runs");
    site.controller.ended();
    site.controller = SiteNode::start(&site.controller.folder.clone(), &["init"]);
    wait_until("a leader", || site.try_json(&["status", "--json"]).is_some());
    assert_eq!(SiteNode::start(&folder, &["join", "--spot", "none"]).ended(), Some(4));
}

#[test]
fn nobody_at_the_address_is_reported_with_the_address() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let token = some_token();
    let join = ["join", "--cluster", &address, "--token", &token];
    let stderr = refused(folder.path(), &join, 3);
    assert!(stderr.contains(&address), "{stderr}");
    let join = ["join", "--cluster", "no-such-host.invalid", "--token", &token];
    let stderr = refused(folder.path(), &join, 3);
    assert!(stderr.contains("no such host: no-such-host.invalid:7000"), "{stderr}");
}
