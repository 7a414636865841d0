//! What the environment sets. A process cannot change its own without risk to its other threads, so
//! each test here runs a test of this file's in a process of its own.

use std::env;
use std::process::Command;

use zbelastic_preemption::{METADATA_VARIABLE, NoticeSettings, NoticeSource};

use crate::mock::{MockReply, MockService};

/// The expectation of [`the_place_is_read`], in the process that was started for it.
const EXPECTED: &str = "ZBELASTIC_TEST_EXPECTED";

/// Whether the test of this name passes in an environment with these variables.
fn passes(test: &str, variables: &[(&str, &str)]) -> bool {
    let mut command = Command::new(env::current_exe().expect("a test has a file"));
    command.args(["--exact", test]).env_remove("NO_PROXY").env_remove("no_proxy");
    let output = command.envs(variables.iter().copied()).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("running 1 test"), "there is a test {test}: {text}");
    output.status.success()
}

#[test]
fn proxies_are_not_used() {
    let proxy = MockService::start(|_| MockReply::of(502, ""));
    let names =
        ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let variables = names.map(|name| (name, proxy.url.as_str()));
    assert!(passes("aws::a_marked_machine_is_reported_once", &variables));
    assert!(proxy.requests().is_empty());
}

/// Tests something only in the processes that the next test starts.
#[test]
fn the_place_is_read() {
    let Ok(expected) = env::var(EXPECTED) else { return };
    let found = match NoticeSettings::from_environment(NoticeSource::Auto) {
        Ok(settings) => format!("{:?}", settings.base),
        Err(fault) => fault.to_string(),
    };
    assert_eq!(found, expected);
}

#[test]
fn the_environment_names_a_place_or_none() {
    let check = |value: &str, expected: &str| {
        let variables = [(METADATA_VARIABLE, value), (EXPECTED, expected)];
        assert!(passes("environment::the_place_is_read", &variables), "{value}");
    };
    check("http://127.0.0.1:1338", "Some(MetadataUrl(\"http://127.0.0.1:1338\"))");
    check("", "None");
    let wrong = "expected a metadata URL such as http://127.0.0.1:1338, found `ftp://a`";
    check("ftp://a", wrong);
}
