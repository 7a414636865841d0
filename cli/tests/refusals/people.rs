//! Users who were admitted with a token: the rights of an operator and of a viewer.

use serde_json::Value;

use crate::common::text;
use crate::site::{ControllerSite, refused, wait_until, zbelastic};

impl ControllerSite {
    /// A user who was admitted with a token of this role, by the folder's name.
    pub fn person(&self, role: &str) -> std::path::PathBuf {
        let token = self.token(&["--role", role]);
        let folder = self.path(role);
        let login = ["login", "--cluster", &self.address, "--token", &token, "--name", role];
        let stdout = stdout_on(&folder, &login);
        assert!(stdout.contains(&format!("{role} of cluster test")), "{stdout}");
        folder
    }
}

/// Standard output of a command that succeeds on a folder.
pub fn stdout_on(folder: &std::path::Path, arguments: &[&str]) -> String {
    let output = zbelastic(folder, arguments).output().expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn who_looks_on_reads_and_an_operator_runs_and_neither_lets_anybody_in() {
    let site = ControllerSite::new();
    let _worker = site.worker("w");
    let viewer = site.person("viewer");
    let operator = site.person("operator");
    let (config, words) = site.submission(5);
    let run = ["run", &config, "--text", &words, "--name", "theirs"];
    let denied = |folder, arguments: &[&str]| {
        let stderr = refused(folder, arguments, 4);
        assert!(stderr.contains("not authorised"), "{arguments:?}: {stderr}");
    };
    denied(&viewer, &run);
    stdout_on(&operator, &run);
    for folder in [&viewer, &operator] {
        assert!(
            stdout_on(folder, &["status"]).contains("theirs")
                || stdout_on(folder, &["runs", "list"]).contains("theirs")
        );
        stdout_on(folder, &["events"]);
        stdout_on(folder, &["ckpt", "list"]);
        denied(folder, &["token", "create"]);
        denied(folder, &["token", "list"]);
        denied(folder, &["node", "remove", "w", "--force", "--yes"]);
        denied(folder, &["node", "drain", "w"]);
    }
    let model = site.path("model").display().to_string();
    denied(&viewer, &["export", "theirs", "--to", &model]);
    denied(&viewer, &["runs", "remove", "theirs", "--yes"]);
    stdout_on(&operator, &["export", "theirs", "--to", &model]);
    stdout_on(&operator, &["runs", "remove", "theirs", "--yes"]);
    assert_eq!(site.status()["members"].as_array().expect("a list").len(), 2, "no member more");
}

/// A member's folder has no person's certificate; the member's own may read, and a controller that
/// joined knows what its cluster is called.
#[test]
fn the_folder_of_a_member_reads_and_commands_nothing() {
    let mut site = ControllerSite::new();
    let mut worker = site.worker("w");
    let token = site.token(&["--role", "controller"]);
    let mut second = site.another_controller(&token, "second");
    for name in ["w", "second"] {
        let folder = site.path(name);
        for command in [&["status"][..], &["runs", "list"], &["events"], &["cluster", "info"]] {
            stdout_on(&folder, command);
        }
        let commands =
            [&["node", "drain", "w"][..], &["pause"], &["token", "list"], &["logs", "w"]];
        for command in commands {
            let stderr = refused(&folder, command, 4);
            assert!(stderr.contains("not authorised: a certificate of the role "), "{stderr}");
        }
    }
    let member = site.member("second").expect("a member");
    let address = member["addresses"][0].as_str().expect("an address").to_owned();
    let name = || {
        let status = ["status", "--json", "--cluster", &address];
        let status: Value =
            serde_json::from_str(&stdout_on(&site.path("w"), &status)).expect("JSON");
        status["cluster"]["name"].clone()
    };
    wait_until("that it knows the name", || name() == "test");
    assert!(worker.is_running() && second.is_running() && site.controller.is_running());
}

#[test]
fn people_and_nodes_are_let_in_with_tokens_of_their_own() {
    let site = ControllerSite::new();
    let line = site.stdout_of(&["token", "create", "--role", "viewer", "--print-join"]);
    assert!(line.starts_with("zbelastic login --cluster ") && line.contains(".v."), "{line}");
    let for_node = site.token(&[]);
    let login = |token| ["login", "--cluster", &site.address, "--token", token];
    let folder = site.path("nobody");
    let stderr = refused(&folder, &login(&for_node), 4);
    assert!(
        stderr.contains("admits the role worker") && stderr.contains("zbelastic join"),
        "{stderr}"
    );
    let for_person = site.token(&["--role", "operator"]);
    let stderr = site.join_refused(&site.join(&for_person, "w"), 4);
    assert!(stderr.contains("E2006") && stderr.contains("zbelastic login"), "{stderr}");
    let stderr = refused(&site.controller.folder, &login(&for_person), 6);
    assert!(stderr.contains("has an identity already"), "{stderr}");

    // A token is spent, and what it made can be taken back.
    stdout_on(&folder, &login(&for_person));
    let stderr = refused(&site.path("second"), &login(&for_person), 4);
    assert!(stderr.contains("E2004"), "{stderr}");
    stdout_on(&folder, &["status"]);
    let another = site.token(&["--role", "viewer"]);
    refused(&folder, &login(&another), 6);
    site.refused(&["token", "create", "--ephemeral", "--role", "viewer"], 2);
    let id = for_person.split('.').nth(2).expect("an id");
    site.stdout_of(&["token", "revoke", id, "--with-nodes", "--yes"]);
    crate::site::wait_until("it is let in no more", || {
        !zbelastic(&folder, &["status"]).output().expect("it runs").status.success()
    });
}
