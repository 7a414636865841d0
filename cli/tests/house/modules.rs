//! Modules of a package: none names another that leads back to it, and `node` stays a shell.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::members::members;
use super::names::{is_test, production};
use super::{SourceFile, code};

/// Packages whose top modules still name each other in circles. One that does no longer is taken off
/// the list.
const WITH_CYCLES: [&str; 1] = ["trainer"];
/// Most production lines of `node`: it moves events and outputs, and decides nothing.
const NODE_LINES_MAX: usize = 14_000;
/// The files of a package that all of its modules are below.
const ROOTS: [&str; 2] = ["lib", "main"];

/// Each top module of a package with the others that it names.
type ModuleNames<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// The part of a path below a package's `src`, if it is one.
fn below<'a>(package: &str, path: &'a str) -> Option<&'a str> {
    path.strip_prefix(package)?.strip_prefix("/src/")
}

/// The top module that a file below `src` is of.
fn top_module(path: &str) -> &str {
    path.split_once('/').map_or(path, |(folder, _)| folder).trim_end_matches(".rs")
}

/// The identifiers behind `crate::`: one, or the first of each item in braces.
fn first_identifiers(text: &str) -> Vec<&str> {
    let identifier =
        |text: &'_ str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let Some(list) = text.strip_prefix('{') else { return vec![&text[..identifier(text)]] };
    let mut names = Vec::new();
    let mut depth = 0;
    let mut starts = true;
    for (at, letter) in list.char_indices() {
        match letter {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' => starts = depth == 0,
            _ if starts && !letter.is_whitespace() => {
                names.push(&list[at..at + identifier(&list[at..])]);
                starts = false;
            }
            _ => {}
        }
    }
    names
}

/// The modules that a file names: with `crate::`, and with `super::` if it is at the top.
fn named(file: &SourceFile, is_at_top: bool) -> impl Iterator<Item = &str> {
    let text = production(file);
    let roots: &[&str] = if is_at_top { &["crate::", "super::"] } else { &["crate::"] };
    let paths = roots.iter().flat_map(move |root| {
        let starts = text.match_indices(*root);
        starts.map(move |(start, _)| (&text[..start], &text[start + root.len()..]))
    });
    let is_path = |before: &str| {
        let line = before.rsplit('\n').next().unwrap_or(before);
        let goes_on = before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
        !goes_on && !line.trim_start().starts_with("//")
    };
    let paths = paths.filter(move |(before, _)| is_path(before));
    paths.flat_map(|(_, after)| first_identifiers(after))
}

/// Who names whom among the top modules of a package, tests aside.
fn module_names<'a>(package: &str, sources: &'a [SourceFile]) -> ModuleNames<'a> {
    let files = sources.iter().filter(|file| !is_test(&file.path));
    let files = files.filter_map(|file| Some((below(package, &file.path)?, file)));
    let files: Vec<_> = files.filter(|(path, _)| !ROOTS.contains(&top_module(path))).collect();
    let mut names: ModuleNames<'_> =
        files.iter().map(|(path, _)| (top_module(path), BTreeSet::new())).collect();
    let modules: BTreeSet<&str> = names.keys().copied().collect();
    for (path, file) in files {
        let own = top_module(path);
        let others = named(file, !path.contains('/'));
        let others = others.filter(|other| *other != own && modules.contains(other));
        names.entry(own).or_default().extend(others);
    }
    names
}

/// The shortest way from a module over others back to itself.
fn cycle_through<'a>(names: &ModuleNames<'a>, start: &'a str) -> Option<Vec<&'a str>> {
    let mut ways = VecDeque::from([vec![start]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in &names[way.last().expect("a way has a begin")] {
            let longer = || way.iter().chain([next]).copied().collect();
            if *next == start {
                return Some(longer());
            }
            if seen.insert(*next) {
                ways.push_back(longer());
            }
        }
    }
    None
}

/// Each cycle once, as the modules that it leads through.
fn module_cycles(package: &str, sources: &[SourceFile]) -> Vec<String> {
    let names = module_names(package, sources);
    let mut reported = BTreeSet::new();
    let mut found = Vec::new();
    for start in names.keys() {
        let way = cycle_through(&names, start).filter(|way| !reported.contains(way[0]));
        if let Some(way) = way {
            found.push(format!("{package}: {}", way.join(" → ")));
            reported.extend(way);
        }
    }
    found
}

/// Cycles of packages that may have none, and packages that may have some and have none.
fn wrong_cycles<'a>(
    packages: impl Iterator<Item = &'a str>,
    sources: &[SourceFile],
) -> Vec<String> {
    let wrong = packages.flat_map(|package| {
        let found = module_cycles(package, sources);
        match (WITH_CYCLES.contains(&package), found.is_empty()) {
            (true, true) => vec![format!("{package}: has no cycle, and is listed with some")],
            (true, false) => Vec::new(),
            (false, _) => found,
        }
    });
    wrong.collect()
}

fn production_lines(package: &str, sources: &[SourceFile]) -> usize {
    let files = sources.iter().filter(|file| !is_test(&file.path));
    let files = files.filter(|file| below(package, &file.path).is_some());
    files.map(|file| production(file).lines().count()).sum()
}

fn too_long(package: &str, lines_max: usize, sources: &[SourceFile]) -> Vec<String> {
    let lines = production_lines(package, sources);
    let is_too_long = lines > lines_max;
    is_too_long.then(|| format!("{package}: {lines} production lines")).into_iter().collect()
}

#[test]
fn no_module_names_another_that_leads_back_to_it() {
    let sources = code("src");
    super::nothing(&wrong_cycles(members().iter().map(String::as_str), &sources));
}

#[test]
fn node_is_a_shell() {
    let sources = code("src");
    assert!(production_lines("node", &sources) > 5_000, "the sources were read");
    super::nothing(&too_long("node", NODE_LINES_MAX, &sources));
}

#[test]
fn planted_cycles_and_lines_are_found() {
    let file = |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
    let cycles = |text: &str| {
        let sources = [
            file("node/src/lib.rs", "use crate::a::A;"),
            file("node/src/a.rs", text),
            file("node/src/b/c.rs", "use crate::{\n    b::B,\n    d::{A, c},\n};"),
            file("node/src/d.rs", "use super::a::A;\nuse crate::d::D;"),
            file("node/src/a/tests.rs", "use crate::b::B;"),
            file("trainer/src/a.rs", "use crate::b::B;"),
        ];
        module_cycles("node", &sources)
    };
    assert_eq!(cycles("use crate::b::B;"), ["node: a → b → d → a"]);
    let tamed = wrong_cycles([WITH_CYCLES[0]].into_iter(), &[]);
    assert_eq!(tamed, ["trainer: has no cycle, and is listed with some"]);
    assert_eq!(cycles("fn f() { crate::d::g(); }"), ["node: a → d → a"]);
    super::nothing(&cycles("// crate::b\nuse other_crate::b;\nuse a::crate::d;"));
    super::nothing(&cycles("#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}"));
    let sources = [
        file("node/src/a.rs", "a\nb\n#[cfg(test)]\nmod tests {\n"),
        file("node/src/a/tests.rs", "a\nb\n"),
        file("cli/src/a.rs", "a\n"),
    ];
    super::nothing(&too_long("node", 2, &sources));
    assert_eq!(too_long("node", 1, &sources), ["node: 2 production lines"]);
}
