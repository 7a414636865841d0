//! Sizes of units: how many methods a type or a trait has, and over how many files its methods are cut.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{is_test, package_of, production};
use super::{SourceFile, code};

/// Methods of a type beyond which it is more than one thing.
const METHODS_MAX: usize = 40;
/// Files that a type's inherent methods may stand in.
const FILES_MAX: usize = 3;
/// Traits that many implement, and how many methods each may have.
const SMALL_TRAITS: [(&str, &str, usize); 2] =
    [("kernels", "Backend", 25), ("trainer", "StageExecutor", 20)];

/// The inherent methods of a type or the methods of a trait, and the files that they stand in.
#[derive(Default)]
struct MethodCount<'a> {
    methods: usize,
    files: BTreeSet<&'a str>,
}

/// The name that a line at the margin begins a block of methods for: `impl Name` or `trait Name`.
fn block_of(line: &str) -> Option<&str> {
    let line = line.split_once('{').map_or(line, |(before, _)| before);
    let is_trait_impl = line.contains(" for ");
    let line = line.strip_prefix("pub").map_or(line, |rest| {
        let rest = rest.split_once(')').filter(|_| rest.starts_with('(')).map_or(rest, |it| it.1);
        rest.trim_start()
    });
    let rest = match line.strip_prefix("impl") {
        Some(_) if is_trait_impl => return None,
        Some(rest) => after_parameters(rest)?,
        None => line.strip_prefix("trait ")?,
    };
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

/// The text behind the generic parameters that it begins with, if it does.
fn after_parameters(text: &str) -> Option<&str> {
    if !text.starts_with('<') {
        return text.starts_with(' ').then_some(text);
    }
    let mut depth = 0_usize;
    for (index, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if text[..index].ends_with('-') => {}
            '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&text[index + 1..]);
        }
    }
    None
}

/// Whether a line of a block, which is indented once, begins a method.
fn begins_method(line: &str) -> bool {
    let Some(line) = line.strip_prefix("    ").filter(|rest| !rest.starts_with([' ', '/'])) else {
        return false;
    };
    let before = line.split_once('(').map_or(line, |(before, _)| before);
    // `pub(crate) fn` has a bracket before its own.
    let before = if before == "pub" { line } else { before };
    before.split_whitespace().any(|word| word == "fn")
}

fn methods(sources: &[SourceFile]) -> BTreeMap<(&str, &str), MethodCount<'_>> {
    let mut counts: BTreeMap<(&str, &str), MethodCount<'_>> = BTreeMap::new();
    for file in sources.iter().filter(|file| !is_test(&file.path)) {
        let mut block = None;
        for line in production(file).lines() {
            if !line.starts_with([' ', '}', ')']) && !line.is_empty() {
                block = block_of(line);
            }
            if let Some(name) = block.filter(|_| begins_method(line)) {
                let count = counts.entry((package_of(&file.path), name)).or_default();
                count.methods += 1;
                count.files.insert(&file.path);
            }
        }
    }
    counts
}

fn large_units(sources: &[SourceFile]) -> Vec<String> {
    let mut found = Vec::new();
    for ((package, name), MethodCount { methods, files }) in methods(sources) {
        let small = SMALL_TRAITS.iter().find(|row| (row.0, row.1) == (package, name));
        let methods_max = small.map_or(METHODS_MAX, |row| row.2);
        if methods > methods_max {
            found.push(format!("{package}: {name} has {methods} methods, at most {methods_max}"));
        }
        if files.len() > FILES_MAX {
            found.push(format!("{package}: {name} is cut over {} files", files.len()));
        }
    }
    found
}

#[test]
fn a_type_has_few_methods_in_few_files() {
    assert_eq!(large_units(&code("src")), Vec::<String>::new());
}

#[test]
fn types_with_many_methods_or_files_are_found() {
    let method = |index: usize| format!("    pub(crate) fn m{index}(&self) {{}}\n");
    let many: String = (0..41).map(method).collect();
    let file = |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
    let one = "impl<T: Fn() -> u8> Cut<T> {\n    const fn m() {\n        fn inner() {}\n    }\n}\n";
    let sources = [
        file(
            "node/src/a.rs",
            &format!("impl Many {{\n{many}}}\nimpl Clone for Cut {{\n{many}}}\n"),
        ),
        file("node/src/b.rs", one),
        file("node/src/c.rs", one),
        file("node/src/d.rs", one),
        file("node/src/e.rs", one),
        file("node/src/e/tests.rs", &format!("impl Tested {{\n{many}}}\n")),
    ];
    let expected = ["node: Cut is cut over 4 files", "node: Many has 41 methods, at most 40"];
    assert_eq!(large_units(&sources), expected);
}
