//! Arguments that cannot be meant, refused before any request is sent.

use crate::common::refusal;
use crate::site::{refused, zbelastic};

fn check(arguments: &[&str], expected: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let stderr = refused(&data, arguments, 2);
    assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    assert!(!data.exists(), "{arguments:?} left something behind");
}

#[test]
fn addresses_of_a_cluster_are_explained_one_by_one() {
    let many: Vec<String> = (1..=100).map(|number| format!("10.0.0.{number}")).collect();
    let many = many.join(",");
    let cases = [
        ("", "there is no address"),
        ("a,,b", "address 2 of the list is empty"),
        ("::", "means every interface of this machine"),
        ("0.0.0.0:7000", "means every interface of this machine"),
        ("a:", "`` is no port"),
        ("a:0", "`0` is no port"),
        ("a:70000", "`70000` is no port"),
        ("a,b,a:7000", "a:7000 is in the list twice"),
        (many.as_str(), "100 addresses, at most 16"),
        ("https://a:7000", "is a link"),
        ("[::1", "is no host"),
        ("fe80::1%eth0", "has a zone"),
        ("a b", "is no host"),
    ];
    for (typed, expected) in cases {
        check(&["join", "--cluster", typed, "--token", "x"], expected);
        check(&["status", "--cluster", typed], expected);
    }
}

#[test]
fn names_are_plain_wherever_they_are_typed() {
    let long = "n".repeat(10_000);
    let wrong = ["", "w😀", "a\nb", "a\u{1b}[2J", "<script>", "o'k", "A", "a b", long.as_str()];
    for name in wrong {
        let option = format!("--name={name}");
        check(&["init", &option], "of the characters a-z, 0-9 and -");
        check(&["join", "--cluster", "a", &option], "of the characters a-z, 0-9 and -");
    }
    check(&["init", "--name", "7"], "would be read as a node's number");
}

#[test]
fn times_and_numbers_out_of_range_are_refused() {
    check(&["leave", "--deadline", "0s"], "expected more than no time at all");
    check(&["leave", "--deadline=-1s"], "expected a duration");
    check(&["leave", "--deadline", "11000d"], "longer than ten years");
    check(&["leave", "--deadline", "5"], "5 of what?");
    check(&["token", "create", "--ttl", "0s"], "expected more than no time at all");
    check(&["token", "create", "--ttl", "4000d"], "longer than ten years");
    check(&["token", "create", "--uses", "0"], "0 is not in");
    check(&["join", "--cluster", "a", "--device", "cuda:x"], "expected cuda:N");
    let controller = ["join", "--cluster", "a", "--role", "controller", "--device", "cuda:0"];
    check(&controller, "controllers compute nothing");
    check(&["ckpt", "restore", "-1", "--yes"], "-1");
}

#[test]
fn addresses_of_the_environment_are_read_by_join() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = zbelastic(folder.path(), &["join", "--token", "zbt"]);
    let stderr = refusal(command.env("ZBELASTIC_CLUSTER", "::"), 2);
    assert!(stderr.contains("ZBELASTIC_CLUSTER"), "{stderr}");
}

#[test]
fn kernels_that_the_machine_lacks_are_refused_with_those_it_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let absent = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    for (name, expected) in [
        ("AVX2", "ZBELASTIC_CPU: found `AVX2`, expected one of portable, avx2, avx512, neon"),
        (absent, "kernels for this processor; this machine has "),
    ] {
        let mut command = zbelastic(folder.path(), &["plan"]);
        let stderr = refusal(command.env("ZBELASTIC_CPU", name), 2);
        assert!(stderr.contains(expected), "{name}: {stderr}");
        assert!(stderr.contains("portable"), "every machine has those: {stderr}");
    }
}
