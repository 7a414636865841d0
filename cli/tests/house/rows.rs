//! Rows of the tables that nothing is about any longer: an arrow that no manifest has, an owner that does
//! not name its crate, a prefix below which no source does. Such a row allows what nobody decided.

use super::arrows::{APART, ARROWS, FOR_TESTS, PURE};
use super::members::members;
use super::tables::{FENCES, Fence};
use super::{PackageDependency, SourceFile, code, dependencies, names_crate, nothing, ours};

/// The name of a package by its folder.
fn package_in(folder: &str) -> &str {
    folder.rsplit('/').next().expect("a path has a part")
}

fn idle_arrows(rows: &[(&str, &[&str])], dependencies: &[PackageDependency]) -> Vec<String> {
    let is_there = |from: &str, to: &str| {
        let named = dependencies.iter().filter(|dependency| dependency.from == from);
        named.map(|dependency| ours(&dependency.to)).any(|found| found == Some(to))
    };
    let arrows = rows.iter().flat_map(|(from, names)| names.iter().map(move |to| (from, to)));
    let idle = arrows.filter(|(from, to)| !is_there(from, to));
    idle.map(|(from, to)| format!("{from} does not name {to}")).collect()
}

fn idle_owners(fence: &Fence, dependencies: &[PackageDependency]) -> Vec<String> {
    let named = |from: &str, is_for_tests: bool| {
        let mut found = dependencies.iter().filter(|found| found.to == fence.name);
        found.any(|found| found.from == from && found.is_for_tests == is_for_tests)
    };
    let owners = fence.packages.iter().filter(|from| !named(from, false));
    let in_tests = fence.in_tests.iter().filter(|from| !named(from, true));
    let text = |from: &&str| format!("{from} does not name {}", fence.name);
    owners.map(text).chain(in_tests.map(|from| text(from) + " in tests")).collect()
}

fn idle_prefixes(fence: &Fence, sources: &[SourceFile]) -> Vec<String> {
    let named = |prefix: &str| {
        let mut below = sources.iter().filter(|file| file.path.starts_with(prefix));
        below.any(|file| file.text.lines().any(|line| names_crate(line, fence.name)))
    };
    let idle = fence.files.iter().filter(|prefix| !named(prefix));
    idle.map(|prefix| format!("{prefix}: does not name {}", fence.name)).collect()
}

/// Members of a list of packages that are none.
fn unknown_packages(list: &[&str]) -> Vec<String> {
    let is_package = |name: &str| members().iter().any(|folder| package_in(folder) == name);
    let unknown = list.iter().filter(|name| !is_package(name));
    unknown.map(|name| format!("there is no package {name}")).collect()
}

#[test]
fn every_row_of_the_tables_is_about_something() {
    let dependencies = dependencies();
    nothing(&idle_arrows(ARROWS, &dependencies));
    for (package, named_by) in FOR_TESTS {
        for from in named_by {
            nothing(&idle_arrows(&[(from, &[package])], &dependencies));
        }
    }
    let sources: Vec<SourceFile> = ["src", "tests"].into_iter().flat_map(code).collect();
    let idle = FENCES.iter().flat_map(|fence| {
        [idle_owners(fence, &dependencies), idle_prefixes(fence, &sources)].concat()
    });
    nothing(&idle.collect::<Vec<_>>());
    nothing(&unknown_packages(PURE));
    nothing(&unknown_packages(&APART));
    let rows: Vec<&str> = ARROWS.iter().map(|row| row.0).collect();
    nothing(&unknown_packages(&rows));
    let missing = members().iter().filter(|folder| !rows.contains(&package_in(folder)));
    nothing(&missing.map(|folder| format!("{folder} has no row")).collect::<Vec<_>>());
}

#[test]
fn planted_rows_are_found() {
    let dependencies = super::dependency("node", "x509-parser", "dev");
    let arrows: [(&str, &[&str]); 1] = [("node", &["types"])];
    assert_eq!(idle_arrows(&arrows, &dependencies), ["node does not name types"]);
    nothing(&idle_arrows(&arrows, &super::dependency("node", "zbelastic-types", "")));
    let fence =
        |packages, in_tests, files| Fence { name: "x509-parser", packages, in_tests, files };
    let owners = |packages, in_tests| idle_owners(&fence(packages, in_tests, &[]), &dependencies);
    nothing(&owners(&[], &["node"]));
    assert_eq!(owners(&["node"], &[]), ["node does not name x509-parser"]);
    assert_eq!(owners(&[], &["cli"]), ["cli does not name x509-parser in tests"]);
    let sources = super::page("node/src/a.rs", "use x509_parser::parse;");
    let prefixes = |files| idle_prefixes(&fence(&[], &[], files), &sources);
    nothing(&prefixes(&["node/src/"]));
    assert_eq!(prefixes(&["node/src/b.rs"]), ["node/src/b.rs: does not name x509-parser"]);
    assert_eq!(unknown_packages(&["node", "shed"]), ["there is no package shed"]);
}
