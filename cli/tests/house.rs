//! The house: which package may depend on which, which crate has which owner, and a few rules about
//! files.
//!
//! The rules are functions of parsed data that yield the violations, each as a line. The first
//! tests hold the repository to them; the last ones plant a violation of each and expect it to be
//! found. `docs/architecture.md` explains the tables.

#[path = "house/arrows.rs"]
mod arrows;
#[path = "common/members.rs"]
mod members;
#[path = "house/modules.rs"]
mod modules;
#[path = "house/names.rs"]
mod names;
#[path = "house/output.rs"]
mod output;
#[path = "house/rows.rs"]
mod rows;
#[path = "house/tables.rs"]
mod tables;
#[path = "house/units.rs"]
mod units;
#[path = "house/waiting.rs"]
mod waiting;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use arrows::{APART, ARROWS, CHAOS_TESTS, FOR_TESTS, PURE};
use members::members;
use tables::FENCES;

/// Types and functions that every pure package's `clippy.toml` forbids.
const BANS: [&str; 7] = [
    "std::time::Instant::now",
    "std::time::SystemTime::now",
    "std::thread::spawn",
    "std::thread::sleep",
    "std::env::var",
    "std::collections::HashMap",
    "std::collections::HashSet",
];
const LINES_MAX: usize = 600;
/// A path out of the repository, which only tests with figures of other programs read.
const OUTSIDE: &str = concat!("../", "shared");
const READS_OUTSIDE: [&str; 1] = ["oracles/src/lib.rs"];

/// That one package names another.
struct PackageDependency {
    from: String,
    to: String,
    is_for_tests: bool,
    is_optional: bool,
}

/// A file by its path from the root.
struct SourceFile {
    path: String,
    text: String,
}

/// The package of ours that a crate is, if it is one.
fn ours(name: &str) -> Option<&str> {
    name.strip_prefix("zbelastic-").or((name == CHAOS_TESTS).then_some(name))
}

fn wrong_arrows(dependencies: &[PackageDependency]) -> Vec<String> {
    let allowed = |from: &str| ARROWS.iter().find(|(name, _)| *name == from).map(|row| row.1);
    let inner = dependencies.iter().filter_map(|dependency| {
        let to = ours(&dependency.to)?;
        let is_allowed = allowed(&dependency.from).is_some_and(|names| names.contains(&to));
        let mut for_tests = FOR_TESTS.iter().filter(|_| dependency.is_for_tests);
        let is_for_tests = for_tests
            .any(|(name, named_by)| *name == to && named_by.contains(&dependency.from.as_str()));
        (!is_allowed && !is_for_tests).then(|| format!("{} may not name {to}", dependency.from))
    });
    inner.collect()
}

/// Packages that the product is built without, named by one that it needs.
fn needed_beside_the_product(dependencies: &[PackageDependency]) -> Vec<String> {
    let needed = dependencies.iter().filter(|dependency| {
        let is_apart = |name: &str| APART.contains(&name);
        let to_apart = ours(&dependency.to).is_some_and(is_apart);
        to_apart && !is_apart(&dependency.from) && !dependency.is_for_tests
    });
    let needed = needed.filter(|dependency| !dependency.is_optional);
    needed.map(|PackageDependency { from, to, .. }| format!("{from} needs {to}")).collect()
}

fn wrong_owners(dependencies: &[PackageDependency]) -> Vec<String> {
    let outer = dependencies.iter().filter(|dependency| ours(&dependency.to).is_none());
    let wrong = |PackageDependency { from, to, is_for_tests, .. }: &PackageDependency| {
        let Some(fence) = FENCES.iter().find(|fence| fence.name == to) else {
            return Some(format!("{to}, which {from} names, has no owner"));
        };
        let is_owner = fence.packages.contains(&from.as_str())
            || *is_for_tests && fence.in_tests.contains(&from.as_str());
        (!is_owner).then(|| format!("{from} does not own {to}"))
    };
    outer.filter_map(wrong).collect()
}

/// Whether a line of code names a crate: as a path's first part, where a dash is written `_`.
fn names_crate(line: &str, name: &str) -> bool {
    let name = &name.replace('-', "_");
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let starts = line.match_indices(name).map(|(start, _)| line.split_at(start));
    let is_path = |(before, after): (&str, &str)| {
        let root = before.strip_suffix("::");
        let root = root.filter(|rest| !rest.ends_with(is_word) && !rest.ends_with('>'));
        !root.unwrap_or(before).ends_with(is_word) && after[name.len()..].starts_with("::")
    };
    !line.trim_start().starts_with("//") && { starts }.any(is_path)
}

fn climbed_fences(sources: &[SourceFile]) -> Vec<String> {
    let mut found = Vec::new();
    for SourceFile { path, text } in sources {
        for fence in FENCES {
            let is_inside = fence.files.iter().any(|prefix| path.starts_with(prefix));
            let line = text.lines().position(|line| !is_inside && names_crate(line, fence.name));
            found.extend(line.map(|line| format!("{path}:{}: names {}", line + 1, fence.name)));
        }
    }
    found
}

/// `clippy` holds the text of each pure package's `clippy.toml`.
fn missing_bans(clippy: &[SourceFile]) -> Vec<String> {
    let missing = clippy.iter().flat_map(|SourceFile { path, text }| {
        let is_missing = |ban: &&str| !text.contains(&format!("\"{ban}\""));
        BANS.into_iter().filter(is_missing).map(move |ban| format!("{path}: does not forbid {ban}"))
    });
    missing.collect()
}

fn long_files(sources: &[SourceFile]) -> Vec<String> {
    let counts = sources.iter().map(|page| (&page.path, page.text.lines().count()));
    let long = counts.filter(|(_, count)| *count > LINES_MAX);
    long.map(|(path, count)| format!("{path}: {count} lines")).collect()
}

fn outside_paths(pages: &[SourceFile]) -> Vec<String> {
    let mine = pages.iter().filter(|page| !READS_OUTSIDE.contains(&page.path.as_str()));
    let wrong = mine.filter(|page| page.text.contains(OUTSIDE));
    wrong.map(|page| format!("{}: names {OUTSIDE}", page.path)).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in a folder")
}

/// The dependencies in the manifests.
fn dependencies() -> Vec<PackageDependency> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--format-version", "1", "--offline"]);
    let output = command.current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    parse_metadata(&serde_json::from_slice(&output.stdout).expect("JSON"))
}

fn parse_metadata(metadata: &Value) -> Vec<PackageDependency> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let mut dependencies = Vec::new();
    for package in list(&metadata["packages"]) {
        let name = text(&package["name"]);
        let from = ours(&name).unwrap_or(&name).to_owned();
        dependencies.extend(list(&package["dependencies"]).iter().map(|dependency| {
            PackageDependency {
                from: from.clone(),
                to: text(&dependency["name"]),
                is_for_tests: dependency["kind"] == "dev",
                is_optional: dependency["optional"] == true,
            }
        }));
    }
    dependencies
}

fn read(path: &Path) -> SourceFile {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let path = path.strip_prefix(root()).expect("below the root");
    SourceFile { path: path.display().to_string(), text }
}

/// The files below `folder` with this extension.
fn pages(folder: &str, extension: &str) -> Vec<SourceFile> {
    let mut folders = vec![root().join(folder)];
    let mut paths: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn code(folder: &str) -> Vec<SourceFile> {
    members().iter().flat_map(|package| pages(&format!("{package}/{folder}"), "rs")).collect()
}

fn documents() -> Vec<SourceFile> {
    let top = fs::read_dir(root()).expect("the root is readable");
    let top = top.map(|entry| entry.expect("readable").path());
    let top = top.filter(|path| path.extension().is_some_and(|found| found == "md"));
    top.map(|path| read(&path)).chain(pages("docs", "md")).collect()
}

fn nothing(found: &[String]) {
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn packages_depend_only_on_those_they_may() {
    let dependencies = dependencies();
    let names = |package: &str| dependencies.iter().filter(move |d| d.from == package).count();
    assert!(names("trainer") > 8, "the manifests were read");
    nothing(&wrong_arrows(&dependencies));
    nothing(&needed_beside_the_product(&dependencies));
    nothing(&wrong_owners(&dependencies));
    nothing(&climbed_fences(&code("src")));
}

#[test]
fn pure_packages_forbid_clocks_threads_and_random_maps() {
    let clippy: Vec<_> =
        PURE.iter().map(|package| read(&root().join(package).join("clippy.toml"))).collect();
    nothing(&missing_bans(&clippy));
}

#[test]
fn files_are_short_and_point_at_nothing_outside() {
    let sources: Vec<SourceFile> = ["src", "tests"].into_iter().flat_map(code).collect();
    assert!(sources.len() > 100, "the sources were read");
    nothing(&long_files(&sources));
    nothing(&outside_paths(&sources));
    nothing(&outside_paths(&documents()));
}

fn dependency(from: &str, to: &str, kind: &str) -> Vec<PackageDependency> {
    let list = serde_json::json!([{
        "name": to,
        "kind": (kind == "dev").then_some("dev"),
        "optional": kind == "optional",
    }]);
    let name = format!("zbelastic-{from}");
    parse_metadata(&serde_json::json!({ "packages": [{ "name": name, "dependencies": list }] }))
}

fn page(path: &str, text: &str) -> Vec<SourceFile> {
    vec![SourceFile { path: path.to_owned(), text: text.to_owned() }]
}

#[test]
fn planted_dependencies_are_found() {
    let arrow = |from, to, kind| wrong_arrows(&dependency(from, to, kind));
    nothing(&arrow("trainer", "zbelastic-schedule", ""));
    assert_eq!(arrow("schedule", "zbelastic-kernels", ""), ["schedule may not name kernels"]);
    assert_eq!(arrow("types", "zbelastic-node", "dev"), ["types may not name node"]);
    nothing(&arrow("cli", CHAOS_TESTS, ""));
    assert_eq!(arrow("node", CHAOS_TESTS, ""), ["node may not name chaos-tests"]);
    assert_eq!(arrow("node", "zbelastic-cli", ""), ["node may not name cli"]);
    nothing(&arrow("kernels", "zbelastic-emulator", "dev"));
    assert_eq!(arrow("kernels", "zbelastic-emulator", ""), ["kernels may not name emulator"]);
    assert_eq!(arrow("schedule", "zbelastic-emulator", "dev"), ["schedule may not name emulator"]);
    nothing(&arrow("data", "zbelastic-oracles", "dev"));
    assert_eq!(arrow("data", "zbelastic-oracles", ""), ["data may not name oracles"]);
    assert_eq!(arrow("trainer", CHAOS_TESTS, ""), ["trainer may not name chaos-tests"]);
    assert_eq!(arrow("new", "zbelastic-types", ""), ["new may not name types"]);
    let needed = |from, to, kind| needed_beside_the_product(&dependency(from, to, kind));
    assert_eq!(needed("cli", CHAOS_TESTS, ""), ["cli needs chaos-tests"]);
    nothing(&needed("cli", "zbelastic-bench", "optional"));
    nothing(&needed("fuzz", CHAOS_TESTS, ""));
    nothing(&needed("cli", "zbelastic-node", ""));
    let owner = |from, to, kind| wrong_owners(&dependency(from, to, kind));
    nothing(&owner("schedule", "proptest", "dev"));
    assert_eq!(owner("schedule", "proptest", ""), ["schedule does not own proptest"]);
    assert_eq!(owner("consensus", "rayon", "dev"), ["consensus does not own rayon"]);
    assert_eq!(owner("node", "reqwest", ""), ["reqwest, which node names, has no owner"]);
}

#[test]
fn planted_lines_are_found() {
    let climbed = |path, text| climbed_fences(&page(path, text));
    nothing(&climbed("kernels/src/cpu/threads.rs", "use rayon::ThreadPool;"));
    let path = "tokenizer/src/chat/mask.rs";
    let text = "use regex_syntax::hir::Hir;";
    assert_eq!(climbed(path, text), [format!("{path}:1: names regex-syntax")]);
    nothing(&climbed("tokenizer/src/char_set.rs", text));
    nothing(&climbed("tokenizer/src/byte_level/split.rs", "use aho_corasick::AhoCorasick;"));
    nothing(&climbed("kernels/src/cpu/head.rs", "// rayon::join\nuse crayon::a;\nb::rayon::c();"));
    let path = "kernels/src/cpu/head.rs";
    assert_eq!(climbed(path, "\n    rayon::join(a, b);"), [format!("{path}:2: names rayon")]);
    assert_eq!(climbed(path, "use ::rayon::join;"), [format!("{path}:1: names rayon")]);
    nothing(&climbed(path, "<T as A>::rayon::join(a, b);"));
    assert_eq!(climbed("node/src/text.rs", "use toml::de;"), ["node/src/text.rs:1: names toml"]);
    let bans = BANS.map(|ban| format!("{{ path = \"{ban}\" }}")).join("\n");
    nothing(&missing_bans(&page("types/clippy.toml", &bans)));
    let fewer = bans.replace("\"std::thread::sleep\"", "");
    let expected = ["types/clippy.toml: does not forbid std::thread::sleep"];
    assert_eq!(missing_bans(&page("types/clippy.toml", &fewer)), expected);
    nothing(&long_files(&page("a.rs", &"\n".repeat(LINES_MAX))));
    assert_eq!(long_files(&page("a.rs", &"\n".repeat(LINES_MAX + 1))), ["a.rs: 601 lines"]);
    let text = format!("see {OUTSIDE}/figures");
    nothing(&outside_paths(&page(READS_OUTSIDE[0], &text)));
    assert_eq!(outside_paths(&page("README.md", &text)), [format!("README.md: names {OUTSIDE}")]);
}
