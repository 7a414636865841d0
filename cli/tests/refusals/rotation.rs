//! `cluster rotate-ca` in a cluster that trains: which nodes go on, come back, or are refused.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use zbelastic_identity::{ClusterAuthority, Credentials};

use crate::people::stdout_on;
use crate::renewals::{age, old_site, start_again};
use crate::site::{ControllerSite, SiteNode, refused, wait_until, wait_until_or, zbelastic};

impl ControllerSite {
    /// Null where the connection ended before the answer: a change of certificates closes those that
    /// are open.
    fn rotation(&self) -> Value {
        let info = self.try_json(&["cluster", "info", "--json"]);
        info.map_or(Value::Null, |info| info["rotation"].clone())
    }

    fn wait_for_phase(&self, phase: &str) {
        let shown = || {
            let info = zbelastic(&self.controller.folder, &["cluster", "info"]).output();
            format!("{info:#?}\n{}", self.controller.log_text())
        };
        wait_until_or(phase, || self.rotation()["progress"] == phase, shown);
    }

    fn wait_for_nobody(&self) {
        wait_until("all who are there to have other certificates", || {
            self.rotation()["waits_for"] == Value::Array(Vec::new())
        });
    }

    fn authority(&self) -> ClusterAuthority {
        let folder = self.controller.folder.join("identity/authority");
        ClusterAuthority::load(&folder, None).expect("a controller has it")
    }

    /// A controller that joins with this token.
    pub fn another_controller(&self, token: &str, name: &str) -> SiteNode {
        let join = [&self.join(token, name)[..], &["--role", "controller"]].concat();
        let node = SiteNode::start(&self.path(name), &join);
        self.wait_until_present(name);
        node
    }

    fn wait_until_present(&self, name: &str) {
        wait_until("it is there", || {
            self.member(name).is_some_and(|member| member["standing"]["state"] == "present")
        });
    }
}

/// A copy of the `admin` folder with an administrator's certificate and key.
fn copied(folder: &Path, to: PathBuf) -> PathBuf {
    fs::create_dir_all(&to).expect("a folder");
    let from = folder.join("admin");
    let admin = to.join("admin");
    let copied = std::process::Command::new("cp").arg("-a").args([from, admin]).status();
    assert!(copied.expect("there is a cp").success());
    to
}

fn is_by(folder: &Path, authority: &ClusterAuthority) -> bool {
    let own = Credentials::load_ended(folder, None).expect("it has one");
    own.is_by(authority.certificate()) && own.roots() == [authority.certificate().clone()]
}

#[test]
fn a_cluster_that_trains_gets_another_authority_and_nobody_who_is_there_is_cut_off() {
    let mut site = old_site();
    let second = site.another_controller(&site.token(&["--role", "controller"]), "second");
    let worker = site.worker("w");
    let mut away = site.worker("away");
    away.child.kill().expect("it runs");
    away.ended();
    age(&site, &away.folder.join("identity"), 3);
    site.run(1_000_000);
    site.wait_for_checkpoint();
    let before = site.member("w").expect("it is there");
    let old_token = site.token(&[]);
    let unused = site.token(&[]);
    let for_third = site.token(&["--role", "controller"]);
    let viewer = site.person("viewer");
    let idle = site.person("operator");
    let copy = copied(&site.controller.folder, site.path("copy"));
    let old = site.authority();

    let stdout = site.stdout_of(&["cluster", "rotate-ca", "--yes"]);
    assert!(
        stdout.contains("announced") && stdout.contains("tokens of the authority before"),
        "{stdout}"
    );
    site.wait_for_phase("issuing");
    site.wait_for_nobody();
    wait_until("until when people get others", || site.rotation()["people_until_ms"].is_u64());
    let stdout = site.stdout_of(&["cluster", "rotate-ca", "--yes"]);
    assert!(stdout.contains("is issuing"), "asked again, it says how far it is: {stdout}");
    let new = site.authority();
    assert_ne!(new.pin(), old.pin());
    // A token of before lets in for as long as it is good, and a person who uses a command keeps
    // access.
    let late = SiteNode::start(&site.path("late"), &site.join(&old_token, "late"));
    site.wait_until_present("late");
    let third = site.another_controller(&for_third, "third");
    stdout_on(&viewer, &["status"]);
    site.wait_for_nobody();

    site.stdout_of(&["cluster", "rotate-ca", "--force", "--yes"]);
    site.wait_for_phase("retired");
    for node in [&worker, &late, &site.controller, &second, &third] {
        let identity = node.folder.join("identity");
        wait_until("it believes the new one alone", || is_by(&identity, &new));
    }
    for node in [&second, &third] {
        let folder = node.folder.join("identity/authority");
        let held = ClusterAuthority::load(&folder, None).expect("a controller has it");
        assert_eq!((held.pin(), held.bridge()), (new.pin(), new.bridge()));
    }
    let now = site.member("w").expect("it is there");
    assert_eq!(now["incarnation"], before["incarnation"], "it was never lost");
    let step = site.wait_for_checkpoint();
    wait_until("training goes on", || site.wait_for_checkpoint() > step);
    stdout_on(&viewer, &["status"]);
    let stderr = refused(&idle, &["status"], 4);
    assert!(stderr.contains("E2015") && stderr.contains("another token"), "{stderr}");
    let stderr = refused(&copy, &["status"], 4);
    assert!(stderr.contains("E2015") && stderr.contains("takes its admin/ again"), "{stderr}");
    let stderr = site.join_refused(&site.join(&unused, "u"), 4);
    assert!(stderr.contains("E2003") && stderr.contains("token create"), "{stderr}");

    // Whoever was off all the time, and whose certificate ended, is known by its key.
    let _away = SiteNode::start(&site.path("away"), &["join", "--spot", "none"]);
    site.wait_until_present("away");
    let _new = site.worker("new");
    // The new authority is what the controller starts with.
    site.controller.child.kill().expect("it runs");
    site.controller.ended();
    crate::renewals::start_again(&mut site);
    for name in ["w", "late", "away", "new", "second", "third"] {
        site.wait_until_present(name);
    }
    let keys = fs::read_dir(site.controller.folder.join("identity/authority")).expect("a folder");
    assert_eq!(keys.count(), 2, "the old one's key is gone");
}

/// With a certificate that would be good for hours, and that no node accepts any more.
#[test]
fn a_worker_that_was_cut_off_meanwhile_is_let_in_by_its_key_while_its_certificate_is_good() {
    let site = ControllerSite::new();
    let mut worker = site.worker("w");
    worker.child.kill().expect("it runs");
    worker.ended();
    wait_until("its loss", || {
        site.member("w").is_some_and(|member| member["standing"]["state"] == "lost")
    });
    let before = site.member("w").expect("it is known");
    site.stdout_of(&["cluster", "rotate-ca", "--force", "--yes"]);
    site.wait_for_phase("retired");
    let again = SiteNode::start(&worker.folder, &["join", "--spot", "none"]);
    site.wait_until_present("w");
    assert_eq!(site.member("w").expect("it is there")["id"], before["id"]);
    let new = site.authority();
    wait_until("its certificate", || is_by(&again.folder.join("identity"), &new));
    // The next change begins where this one ended.
    let output = zbelastic(&site.controller.folder, &["cluster", "rotate-ca", "--yes"]).output();
    assert!(output.expect("it runs").status.success());
    wait_until("the next one issues", || {
        site.rotation()["progress"] == "issuing" && site.authority().pin() != new.pin()
    });
}

/// A cluster whose controller is gone while another authority is announced, with the pin of that one.
fn announced() -> (ControllerSite, String) {
    // A second is left from the announcement until the key takes its place: a slow machine may miss it.
    for _ in 0..5 {
        let mut site = old_site();
        site.stdout_of(&["cluster", "rotate-ca", "--yes"]);
        let announced = site.rotation()["authority"].as_str().map(str::to_owned);
        site.controller.child.kill().expect("it runs");
        site.controller.ended();
        let is_there = site.controller.folder.join(NEXT_KEY).exists();
        if let Some(announced) = announced.filter(|_| is_there) {
            return (site, announced);
        }
    }
    panic!("the key took its place five times within a moment");
}

const NEXT_KEY: &str = "identity/authority/ca-key-next.pem";

#[test]
fn an_announced_authority_is_replaced_if_its_key_is_lost_and_only_then() {
    for is_lost in [false, true] {
        let (mut site, announced) = announced();
        if is_lost {
            fs::remove_file(site.controller.folder.join(NEXT_KEY)).expect("it is there");
        }
        start_again(&mut site);
        site.wait_for_phase("issuing");
        let issues = site.rotation()["authority"].clone();
        assert_eq!(issues != announced.as_str(), is_lost, "{}", site.controller.log_text());
        let has_key = || site.authority().pin().to_string() == issues.as_str().expect("a key");
        wait_until("its key is in its place", has_key);
    }
}
