//! The binary as a person meets it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use chaos_tests::case::LifeCase;
use chaos_tests::options::ComputeModelKind;

fn chaos(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_chaos")).args(arguments).output().expect("it runs")
}

/// What it prints when it ends with `code`.
fn printed(arguments: &[&str], code: i32) -> String {
    let output = chaos(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Runs the program with arguments that it refuses, and returns its error text.
fn refused(arguments: &[&str]) -> String {
    let output = chaos(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).expect("UTF-8")
}

fn digest(printed: &str) -> &str {
    printed.lines().find_map(|line| line.strip_prefix("digest ")).expect("a digest")
}

fn replay(case: &LifeCase, code: i32) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("case.json");
    case.save(&path).expect("written");
    printed(&["--replay", &path.display().to_string()], code)
}

#[test]
fn a_seed_prints_its_options_and_a_line_for_every_change() {
    let text = printed(&["--seed", "1"], 0);
    let options = LifeCase::draw(1, ComputeModelKind::Digest).options;
    assert!(text.starts_with(&format!("seed 1\n{options}\n")), "{text}");
    assert!(text.contains(" leads in term "), "{text}");
    assert!(text.contains("generation 1 from step 0"), "{text}");
    assert!(text.contains(" fault "), "{text}");
    assert_eq!(text.lines().last(), Some("passed"));
}

#[test]
fn a_seed_is_the_same_life_in_every_process() {
    for arguments in [["--seed", "1", "--model", "digest"], ["--seed", "1", "--model", "float"]] {
        let first = printed(&arguments, 0);
        let second = printed(&arguments, 0);
        println!("{arguments:?}: digest {}", digest(&first));
        assert_eq!(first, second);
    }
    assert_ne!(digest(&printed(&["--seed", "1"], 0)), digest(&printed(&["--seed", "2"], 0)));
}

#[test]
fn a_file_is_the_life_of_its_seed() {
    for (seed, name, model) in
        [(7, "digest", ComputeModelKind::Digest), (8, "float", ComputeModelKind::Float)]
    {
        let lived = printed(&["--seed", &seed.to_string(), "--model", name], 0);
        assert_eq!(replay(&LifeCase::draw(seed, model), 0), lived);
    }
}

#[test]
fn a_file_of_a_failure_fails_again() {
    let mut case = LifeCase::draw(1, ComputeModelKind::Digest);
    // Messages take longer than the life: whatever the code does, nothing can move.
    (case.options.network.delay_us_min, case.options.network.delay_us_max) = (1 << 40, 1 << 40);
    let text = replay(&case, 11);
    let last = text.lines().last().expect("lines");
    assert!(last.starts_with("FAILED Liveness L1: nothing moves after the storm"), "{last}");
    assert_eq!(replay(&case, 11), text);
}

#[test]
fn a_campaign_prints_its_markers() {
    let text = printed(&["--count", "3", "--from", "2", "--jobs", "2", "--twice"], 0);
    assert!(text.starts_with("markers\n"), "{text}");
    assert!(text.contains("  Clipped\n"), "{text}");
    assert!(text.contains("\ncrash points\n"), "{text}");
    assert!(text.contains("  BroadcastHalf\n"), "{text}");
    assert!(text.contains("  lives with fewer than 3\n"), "{text}");
    assert!(text.contains("3 lives in "), "{text}");
    assert_eq!(text.lines().last(), Some("passed: 3 lives"));
    let text = printed(&["--minutes", "0.001"], 0);
    assert!(text.lines().last().expect("lines").starts_with("passed: "), "{text}");
}

#[test]
fn wrong_usage_ends_with_2() {
    assert!(refused(&["--seed", "1", "--count", "2"]).contains("cannot be used with"));
    assert!(refused(&["--seed", "one"]).contains("invalid digit"));
    assert!(refused(&["--model", "hash"]).contains("digest, float, mixed"));
    for flag in ["--count", "--jobs"] {
        assert!(refused(&[flag, "0"]).contains("must be at least 1"), "{flag}");
    }
    assert!(refused(&["--minutes", "0"]).contains("must be more than 0 minutes"));
    let last = u64::MAX.to_string();
    assert!(refused(&["--from", &last, "--count", "3"]).contains("there are no 3 seeds from"));
    printed(&["--from", &last, "--count", "1"], 0);
}

#[test]
fn an_unwritable_folder_is_reported_before_lives_are_lived() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("writable");
    let said = refused(&["--count", "1", "--failures", &file.display().to_string()]);
    assert!(said.contains("no case can be written to"), "{said}");
    let new = folder.path().join("new");
    printed(&["--count", "1", "--failures", &new.display().to_string()], 0);
    assert!(!new.exists(), "nothing failed");
}

#[test]
fn a_file_that_holds_no_case_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let refuse = |name: &str, text: Option<&str>| {
        let path = folder.path().join(name);
        text.into_iter().for_each(|text| fs::write(&path, text).expect("writable"));
        let said = refused(&["--replay", &path.display().to_string()]);
        assert!(said.starts_with(&format!("error: {}: ", path.display())), "{said}");
        said
    };
    refuse("missing.json", None);
    assert!(refuse("text.json", Some("seed 7")).contains("not a case of a chaos run"));
    assert!(refuse("bare.json", Some("{\"format\": 1}")).contains("missing field"));
    // Whatever else a later format has.
    let said = refuse("later.json", Some("{\"format\": 2, \"lives\": []}"));
    assert!(said.contains("format 2, this program reads 1"), "{said}");
    let mut case = LifeCase::draw(7, ComputeModelKind::Digest);
    case.options.workers = 0;
    let text = serde_json::to_string(&case).expect("plain data");
    let said = refuse("empty.json", Some(&text));
    assert!(said.contains("`workers` of a life cannot be 0"), "{said}");
    assert!(!Path::new("failures").exists(), "nothing failed");
}
