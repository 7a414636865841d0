//! Names of types, and what else the house counts of its language: each type name once a package and once in the
//! glossary, no private words in types, and the figures that docs/hacking.md shows.

use std::collections::BTreeMap;

use super::members::members;
use super::{SourceFile, code, nothing, read, root};

/// Names that may be there more than once in a package, because the module says whose they are.
const SHARED_NAMES: [&str; 4] = ["Args", "Error", "Event", "Output"];
/// Words that say nothing to somebody who knows the field; each has a better one (docs/glossary.md).
const STOP_WORDS: [&str; 23] = [
    "Asked",
    "Breaches",
    "Chronicle",
    "Courier",
    "Found",
    "Heard",
    "Kept",
    "Lap",
    "News",
    "Outfit",
    "Parcel",
    "Rehearsal",
    "Relief",
    "Resort",
    "Road",
    "Seat",
    "Sheet",
    "Shelf",
    "Standing",
    "Station",
    "Told",
    "Wanted",
    "Wishes",
];
/// Words that stand for the exact noun or verb in a comment.
const VAGUE_WORDS: [&str; 21] = [
    "who", "whom", "whose", "whoever", "what", "whatever", "tell", "tells", "told", "telling",
    "take", "takes", "taken", "took", "taking", "ask", "asks", "asked", "asking", "hear", "heard",
];
/// Where the tests of a file begin.
const TESTS_BEGIN: &str = "#[cfg(test)]
mod tests {";
const KEYWORDS: [&str; 4] = ["struct", "enum", "trait", "union"];

/// A type by its name, and where it is defined.
#[derive(Debug, PartialEq, Eq)]
struct TypeDefinition<'a> {
    package: &'a str,
    path: &'a str,
    line: usize,
    name: &'a str,
}

/// The package that a file belongs to, by the folder of its manifest.
pub fn package_of(path: &str) -> &str {
    let is_below = |folder: &&String| {
        path.strip_prefix(folder.as_str()).is_some_and(|rest| rest.starts_with('/'))
    };
    let lengths = members().iter().filter(is_below).map(String::len);
    &path[..lengths.max().unwrap_or_else(|| panic!("{path} is in no package"))]
}

pub fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs")
}

/// A file up to its tests.
pub fn production(file: &SourceFile) -> &str {
    file.text.split_once(TESTS_BEGIN).map_or(&file.text, |(before, _)| before)
}

/// The name that a line defines as a type, if it does.
fn defined(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line.strip_prefix("pub").map_or(line, |rest| {
        let rest = rest.split_once(')').filter(|_| rest.starts_with('(')).map_or(rest, |it| it.1);
        rest.trim_start()
    });
    let rest = KEYWORDS.into_iter().find_map(|word| rest.strip_prefix(word))?.strip_prefix(' ')?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

/// The types of production code.
fn types(sources: &[SourceFile]) -> Vec<TypeDefinition<'_>> {
    let mut types = Vec::new();
    for SourceFile { path, text } in sources.iter().filter(|file| !is_test(&file.path)) {
        let package = package_of(path);
        let names = (1..).zip(text.lines()).filter_map(|(line, text)| Some((line, defined(text)?)));
        types.extend(names.map(|(line, name)| TypeDefinition { package, path, line, name }));
    }
    types
}

/// Definitions whose name another one has, by what `key` gives.
fn shared<'a, K: Ord>(
    types: &'a [TypeDefinition<'a>],
    key: impl Fn(&TypeDefinition<'a>) -> K,
) -> Vec<&'a TypeDefinition<'a>> {
    let mut by_name: BTreeMap<K, Vec<&TypeDefinition<'_>>> = BTreeMap::new();
    for found in types.iter().filter(|found| !SHARED_NAMES.contains(&found.name)) {
        by_name.entry(key(found)).or_default().push(found);
    }
    by_name.into_values().filter(|found| found.len() > 1).flatten().collect()
}

fn names_twice_in_a_package(sources: &[SourceFile]) -> Vec<String> {
    let types = types(sources);
    let found = shared(&types, |found| (found.package, found.name));
    let text = |found: &&TypeDefinition<'_>| {
        let TypeDefinition { package, path, line, name } = found;
        format!("{path}:{line}: {package} has another {name}")
    };
    found.iter().map(text).collect()
}

fn stop_words(sources: &[SourceFile]) -> Vec<String> {
    let types = types(sources);
    let wrong = types.iter().filter(|found| STOP_WORDS.contains(&found.name));
    wrong.map(|found| format!("{}:{}: {}", found.path, found.line, found.name)).collect()
}

/// Names of code that a glossary has an entry for more than once: each is bold there and nowhere else.
fn defined_twice(glossary: &SourceFile) -> Vec<String> {
    let mut lines: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, line) in (1..).zip(glossary.text.lines()) {
        let names = line.split("**`").skip(1).filter_map(|rest| rest.split_once("`**"));
        names.for_each(|(name, _)| lines.entry(name).or_default().push(number));
    }
    let twice = lines.into_iter().filter(|(_, lines)| lines.len() > 1);
    twice.map(|(name, lines)| format!("{}: {name} in lines {lines:?}", glossary.path)).collect()
}

/// Words of comments, and those of them that are vague.
fn comment_words(sources: &[&SourceFile]) -> (usize, usize) {
    let lines = sources.iter().flat_map(|file| production(file).lines());
    let comments = lines.filter_map(|line| line.trim_start().strip_prefix("//"));
    let words = comments.flat_map(|text| text.split(|c: char| !c.is_alphabetic()));
    let words: Vec<String> = words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
    let vague = words.iter().filter(|word| VAGUE_WORDS.contains(&word.as_str())).count();
    (words.len(), vague)
}

/// Whether a line takes a tuple apart where it stands.
fn is_tuple_let(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("let (") && line.contains(") = (") && line.ends_with(");")
}

#[test]
fn a_type_name_is_there_once_in_a_package() {
    assert_eq!(names_twice_in_a_package(&code("src")), Vec::<String>::new());
}

#[test]
fn the_glossary_has_one_entry_for_a_name() {
    nothing(&defined_twice(&read(&root().join("docs/glossary.md"))));
}

#[test]
fn names_with_two_entries_are_found() {
    let text = "- **`Plan`**: it. **`Gate`**, **`Lane`**: both.\n- **Plan**, `Gate`: words.\n- **`Lane`**: another.\n";
    let glossary = SourceFile { path: "docs/glossary.md".to_owned(), text: text.to_owned() };
    assert_eq!(defined_twice(&glossary), ["docs/glossary.md: Lane in lines [1, 3]"]);
}

#[test]
fn no_type_has_a_private_word_for_its_name() {
    assert_eq!(stop_words(&code("src")), Vec::<String>::new());
}

/// Figures of the language, for whoever wants to see them: `-- figures --nocapture`.
#[test]
fn figures_of_the_language() {
    let sources = code("src");
    let types = types(&sources);
    let percent = |part: usize, whole: usize| 100.0 * part as f64 / whole as f64;
    let files: Vec<&SourceFile> = sources.iter().filter(|it| !is_test(&it.path)).collect();
    let lines: usize = files.iter().map(|file| production(file).lines().count()).sum();
    let in_workspace = shared(&types, |found| found.name).len();
    let in_package = shared(&types, |found| (found.package, found.name)).len();
    let (words, vague) = comment_words(&files);
    let all_lines = sources.iter().flat_map(|it| it.text.lines());
    let tuples = all_lines.clone().filter(|line| is_tuple_let(line)).count();
    println!("production lines, without tests: {lines}");
    println!("types: {}", types.len());
    println!("that share their name in the workspace: {:.1} %", percent(in_workspace, types.len()));
    println!("that share it within a package: {:.1} %", percent(in_package, types.len()));
    println!("vague words in comments: {:.2} %", percent(vague, words));
    let thousands = all_lines.count() as f64 / 1000.0;
    println!("tuples taken apart at once: {:.2} a thousand lines", tuples as f64 / thousands);
    assert!(!types.is_empty() && words > 0, "there is something to count");
}

#[test]
fn names_that_are_there_twice_and_private_words_are_found() {
    let file = |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
    let sources = [
        file("node/src/a.rs", "pub struct Plan {\n    pub(crate) enum Event {"),
        file("node/src/b.rs", "    pub(super) struct Plan<T>(T);\nenum Event {}\nstruct Seat;"),
        file("node/src/b/tests.rs", "struct Plan;"),
        file("trainer/src/a.rs", "// struct Plan\ntrait Plan {}"),
    ];
    let expected =
        ["node/src/a.rs:1: node has another Plan", "node/src/b.rs:1: node has another Plan"];
    assert_eq!(names_twice_in_a_package(&sources), expected);
    assert_eq!(stop_words(&sources), ["node/src/b.rs:3: Seat"]);
    assert!(is_tuple_let("    let (a, b) = (x, y);") && !is_tuple_let("let (a, b) = pair;"));
}
