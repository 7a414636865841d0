//! `docs/waiting-times.md` has all times that something waits for, and commands in pages name files
//! that are there.

use std::collections::BTreeMap;

use super::names::{is_test, production};
use super::{SourceFile, code, documents, nothing, pages, read, root};

/// Packages whose waits are listed.
const PACKAGES: [&str; 7] =
    ["cli", "consensus", "node", "policy", "remote", "trainer", "transport"];
/// Endings of constants that count time in ticks, or name a time otherwise.
const ENDINGS: [&str; 7] =
    ["_TICKS", "_TICKS_MAX", "_TICKS_MIN", "_WITHIN", "_PAUSE", "_DEADLINE", "_TIMEOUT"];
/// Durations that nothing waits for.
const NO_WAITS: [(&str, &str); 7] = [
    ("ROUND_TRIP_GUESS", "an assumption that the first measurement replaces"),
    ("EARLIEST", "a date that a clock is compared with"),
    ("LATEST", "a date that a clock is compared with"),
    ("DIFFERENCE_MAX", "a difference of clocks that `doctor` reports"),
    ("SYNC_AGE_MAX", "an age that `doctor` reports"),
    ("SYNC_UNREAL", "a measured time that `doctor` reports"),
    ("SYNC_SLOW", "a measured time that `doctor` reports"),
];

/// The constant that a line defines, if it is a time.
fn time_in(line: &str) -> Option<&str> {
    let (before, rest) = line.trim_start().split_once("const ")?;
    if !(before.is_empty() || before.starts_with("pub")) {
        return None;
    }
    let (name, rest) = rest.split_once(": ")?;
    let is_named = || ENDINGS.iter().any(|ending| format!("_{name}").ends_with(ending));
    (rest.starts_with("Duration =") || is_named()).then_some(name)
}

/// Constants that the page names less often than they are defined.
fn unlisted(page: &str, sources: &[SourceFile]) -> Vec<String> {
    let mut defined: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let is_listed = |path: &str| {
        let package = path.split_once("/src/").map(|(package, _)| package);
        package.is_some_and(|package| PACKAGES.contains(&package))
            && !is_test(path)
            && !path.ends_with("/fixture.rs")
    };
    for file in sources.iter().filter(|file| is_listed(&file.path)) {
        for name in production(file).lines().filter_map(time_in) {
            if NO_WAITS.iter().all(|(found, _)| *found != name) {
                defined.entry(name).or_default().push(&file.path);
            }
        }
    }
    let missing = defined
        .into_iter()
        .filter(|(name, paths)| page.matches(&format!("`{name}`")).count() < paths.len());
    missing.map(|(name, paths)| format!("{name} of {}", paths.join(", "))).collect()
}

/// Tables that commands read and that are not there. `text` has them behind `--trace`.
fn missing_tables(file: &SourceFile) -> Vec<String> {
    let behind = file.text.split("--trace ").skip(1);
    let named = behind.filter_map(|rest| rest.split_whitespace().next());
    let tables = named.filter(|name| name.ends_with(".csv") && !root().join(name).exists());
    tables.map(|name| format!("{}: {name} is not there", file.path)).collect()
}

#[test]
fn every_wait_is_listed() {
    let page = read(&root().join("docs/waiting-times.md"));
    let sources = code("src");
    assert!(sources.len() > 100, "the sources were read");
    nothing(&unlisted(&page.text, &sources));
    let all: Vec<&str> =
        sources.iter().flat_map(|file| file.text.lines()).filter_map(time_in).collect();
    let idle = NO_WAITS.iter().filter(|(name, _)| !all.contains(name));
    nothing(&idle.map(|(name, _)| format!("{name} is not defined")).collect::<Vec<_>>());
}

#[test]
fn commands_name_tables_that_are_there() {
    let help = pages("cli/src/args", "rs");
    nothing(&documents().iter().chain(&help).flat_map(missing_tables).collect::<Vec<_>>());
}

#[test]
fn planted_waits_and_tables_are_found() {
    let file = |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
    let text = "const A: Duration = X;\n    pub(super) const B_TICKS: u32 = 3;\nconst C: u32 = 3;\n\
                #[cfg(test)]\nmod tests {\n    const D: Duration = X;\n}";
    let sources = [file("node/src/a.rs", text), file("trainer/src/b.rs", "const A: Duration = X;")];
    let found = unlisted("| `A` | `B_TICKS` |", &sources);
    assert_eq!(found, ["A of node/src/a.rs, trainer/src/b.rs"]);
    nothing(&unlisted("`A`, `A`, `B_TICKS`", &sources));
    let command = file("docs/a.md", "chaos replay --trace a.csv --speed 3");
    assert_eq!(missing_tables(&command), ["docs/a.md: a.csv is not there"]);
    nothing(&missing_tables(&file("docs/a.md", "render --trace trace.json, --trace")));
}
