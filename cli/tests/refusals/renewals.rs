//! Certificates that ended, or will soon: what renews them, and which are not renewed.

use std::fs;
use std::path::Path;

use zbelastic_identity::{ClusterAuthority, Credentials, UnixSeconds};

use crate::site::{ControllerSite, SiteNode, refused, wait_until};

const DAY: u64 = 24 * 3600;

/// A cluster whose authority is a month old: what it made is never older than itself.
pub fn old_site() -> ControllerSite {
    let mut site = ControllerSite::new();
    site.controller.child.kill().expect("it runs");
    site.controller.ended();
    let folder = site.controller.folder.join("identity/authority");
    let cluster = ClusterAuthority::load(&folder, None).expect("it is there").cluster();
    fs::remove_dir_all(&folder).expect("writable");
    let old = ClusterAuthority::create(cluster, UnixSeconds::now().minus(30 * DAY));
    old.expect("it is made").save(&folder).expect("writable");
    start_again(&mut site);
    site
}

pub fn start_again(site: &mut ControllerSite) {
    site.controller = SiteNode::start(&site.controller.folder.clone(), &["init"]);
    wait_until("a leader", || {
        site.try_json(&["status", "--json"]).is_some_and(|status| !status["leader"].is_null())
    });
}

/// Puts a certificate into a folder that was made so many days ago, for the same key.
pub fn age(site: &ControllerSite, identity: &Path, days: u64) {
    let folder = site.controller.folder.join("identity/authority");
    let authority = ClusterAuthority::load(&folder, None).expect("a controller has it");
    let own = Credentials::load_ended(identity, None).expect("it has one");
    let peer = own.identity();
    let then = UnixSeconds::now().minus(days * DAY);
    let issued = authority.issue(&own.key().requested(), peer.role, peer.node, then);
    let aged = own.renewed(issued.expect("it is made").chain).expect("they belong together");
    aged.save(identity).expect("writable");
}

/// Whether the certificate in a folder was made today.
fn is_new(identity: &Path) -> bool {
    let window = Credentials::load_ended(identity, None).expect("it has one").window();
    window.not_before > UnixSeconds::now().minus(DAY)
}

#[test]
fn a_worker_that_was_off_for_days_comes_back_with_the_same_command() {
    let site = old_site();
    let mut worker = site.worker("w");
    let before = site.member("w").expect("waited for");
    worker.child.kill().expect("it runs");
    worker.ended();
    let folder = worker.folder.clone();
    let identity = worker.folder.join("identity");
    age(&site, &identity, 3);
    let mut again = SiteNode::start(&folder, &["join", "--spot", "none"]);
    wait_until("its return", || {
        site.member("w").is_some_and(|member| {
            member["standing"]["state"] == "present"
                && member["incarnation"] != before["incarnation"]
        })
    });
    assert_eq!(site.member("w").expect("waited for")["id"], before["id"]);
    assert!(is_new(&identity));
    site.controller.wait_for_log("its certificate had ended");

    again.child.kill().expect("it runs");
    again.ended();
    wait_until("its loss", || {
        site.member("w").is_some_and(|member| member["standing"]["state"] == "lost")
    });
    site.stdout_of(&["node", "remove", "w", "--yes"]);
    age(&site, &identity, 3);
    let stderr = refused(&folder, &["join", "--spot", "none"], 4);
    assert!(stderr.contains("E2014") && stderr.contains("a new token"), "{stderr}");
}

#[test]
fn a_command_renews_its_certificate_before_it_ends_and_the_controller_renews_one_that_has() {
    let mut site = old_site();
    let admin = site.controller.folder.join("admin");
    age(&site, &admin, 5);
    assert!(!is_new(&admin));
    site.stdout_of(&["status"]);
    assert!(is_new(&admin), "it was renewed by whoever used it");

    age(&site, &admin, 8);
    let stderr = site.refused(&["status"], 4);
    assert!(stderr.contains("E2010") && stderr.contains("its controller renews"), "{stderr}");
    site.controller.child.kill().expect("it runs");
    site.controller.ended();
    start_again(&mut site);
    assert!(is_new(&admin), "its controller renewed it");
}
