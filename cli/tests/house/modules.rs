//! Modules of a package: none names another that leads back to it, and `node` stays a shell.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::members::members;
use super::names::{is_test, production};
use super::{SourceFile, code};

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

/// The names that a file has of the package's root: with `crate::`, and with as many `super::` as lead
/// there from its depth, which is 0 at the top.
fn named(file: &SourceFile, depth: usize) -> impl Iterator<Item = &str> {
    let text = production(file);
    let roots = ["crate::".to_owned(), "super::".repeat(depth + 1)];
    let paths = roots.into_iter().flat_map(move |root| {
        let starts = text.match_indices(&root).map(|(start, _)| start).collect::<Vec<_>>();
        starts.into_iter().map(move |start| (&text[..start], &text[start + root.len()..]))
    });
    let is_path = |before: &str| {
        let line = before.rsplit('\n').next().unwrap_or(before);
        let goes_on = before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
        !goes_on && !line.trim_start().starts_with("//")
    };
    let paths = paths.filter(move |(before, _)| is_path(before));
    paths.flat_map(|(_, after)| first_identifiers(after))
}

/// The names that a package's root has of its modules, each with its module.
fn exports<'a>(package: &str, sources: &'a [SourceFile]) -> BTreeMap<&'a str, &'a str> {
    let root = sources.iter().find(|file| below(package, &file.path) == Some("lib.rs"));
    let text = root.map_or("", production);
    let uses = text.match_indices("pub use ").map(|(start, words)| &text[start + words.len()..]);
    let paths = uses.filter_map(|path| path.trim_start_matches("self::").split_once("::"));
    let names = paths.flat_map(|(module, names)| {
        first_identifiers(names).into_iter().map(move |name| (name, module))
    });
    names.collect()
}

/// Who names whom among the top modules of a package, tests aside. A name that the root has of a module
/// is one of that module.
fn module_names<'a>(package: &str, sources: &'a [SourceFile]) -> ModuleNames<'a> {
    let files = sources.iter().filter(|file| !is_test(&file.path));
    let files = files.filter_map(|file| Some((below(package, &file.path)?, file)));
    let files: Vec<_> = files.filter(|(path, _)| !ROOTS.contains(&top_module(path))).collect();
    let mut names: ModuleNames<'_> =
        files.iter().map(|(path, _)| (top_module(path), BTreeSet::new())).collect();
    let modules: BTreeSet<&str> = names.keys().copied().collect();
    let exports = exports(package, sources);
    for (path, file) in files {
        let own = top_module(path);
        let others = named(file, path.matches('/').count());
        let module_of = |name| match modules.contains(name) {
            true => name,
            false => exports.get(name).copied().unwrap_or(name),
        };
        let others = others.map(module_of);
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
    let found = members().iter().flat_map(|package| module_cycles(package, &sources));
    super::nothing(&found.collect::<Vec<_>>());
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
            file("node/src/lib.rs", "use crate::a::A;\npub use self::b::{B, C};\npub use d::D;"),
            file("node/src/a.rs", text),
            file("node/src/b/c.rs", "use crate::{\n    b::B,\n    d::{A, c},\n};"),
            file("node/src/d.rs", "use crate::d::D;"),
            file("node/src/d/e/f.rs", "use super::super::super::a::A;\nuse super::super::b::B;"),
            file("node/src/a/tests.rs", "use crate::b::B;"),
            file("trainer/src/a.rs", "use crate::b::B;"),
        ];
        module_cycles("node", &sources)
    };
    assert_eq!(cycles("use crate::b::B;"), ["node: a → b → d → a"]);
    assert_eq!(cycles("fn f() { crate::d::g(); }"), ["node: a → d → a"]);
    assert_eq!(cycles("fn f() { crate::D::g(); }"), ["node: a → d → a"]);
    assert_eq!(cycles("use crate::{B, E};"), ["node: a → b → d → a"]);
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
