//! The documents agree with the program's own descriptions of itself.

#[path = "common/members.rs"]
mod members;
#[expect(dead_code, reason = "the tests of packages use more of it")]
#[path = "common/tools.rs"]
mod tools;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use members::members;
use tools::tool;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn printed(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_zbelastic")).args(arguments).output();
    String::from_utf8(output.expect("it runs").stdout).expect("UTF-8")
}

#[test]
fn the_page_of_keys_is_the_programs_schema() {
    let page = page("docs/config.md");
    let schema = printed(&["config", "schema"]);
    let block = format!("```text\n{schema}```\n");
    assert!(page.ends_with(&block), "docs/config.md ends with another schema than:\n{schema}");
}

/// Links of a page to other pages and to places in them, seen from the page's folder.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices("](").map(|(start, _)| &text[start + 2..]);
    let targets = starts.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

/// A link's path and its place, each of which may be empty.
fn link_parts(link: &str) -> (&str, &str) {
    link.split_once('#').unwrap_or((link, ""))
}

fn pages_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let below = |path: PathBuf| if path.is_dir() { pages_below(&path) } else { vec![path] };
    let mut pages: Vec<PathBuf> = paths.flat_map(below).collect();
    pages.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    pages
}

fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md"), root().join("CHANGELOG.md")];
    pages.extend(pages_below(&root().join("docs")));
    pages
}

/// The places of a page that links lead to, as GitHub and mdBook name those of its headings.
fn places(text: &str) -> Vec<String> {
    let mut is_code = false;
    let headings = text.lines().filter(|line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#')
    });
    let place = |heading: &str| -> String {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(place).collect()
}

/// Whether a link of a page leads to what the site has too, if the page is one of it.
fn is_on_the_site(page: &Path, target: &Path) -> bool {
    let docs = root().join("docs").canonicalize().expect("a folder");
    let is_below = |path: &Path| path.canonicalize().is_ok_and(|path| path.starts_with(&docs));
    !is_below(page) || is_below(target)
}

#[test]
fn links_out_of_the_site_are_found() {
    let docs = root().join("docs");
    let page = docs.join("chaos.md");
    assert!(is_on_the_site(&page, &docs.join("tutorials/../page.md")));
    assert!(!is_on_the_site(&page, &docs.join("../README.md")));
    assert!(is_on_the_site(&root().join("README.md"), &root().join("Cargo.toml")));
}

#[test]
fn links_lead_somewhere() {
    for path in pages() {
        let text = fs::read_to_string(&path).expect("readable");
        for link in links(&text) {
            let (file, place) = link_parts(link);
            let folder = path.parent().expect("a folder");
            let target = if file.is_empty() { path.clone() } else { folder.join(file) };
            assert!(target.exists(), "{}: {link} leads nowhere", path.display());
            assert!(
                is_on_the_site(&path, &target),
                "{}: {link} leads out of the site, which has docs/ alone",
                path.display()
            );
            let is_there = place.is_empty() || {
                let page = fs::read_to_string(&target).expect("a page");
                places(&page).iter().any(|found| found == place)
            };
            assert!(is_there, "{}: {link} leads to no heading", path.display());
        }
    }
}

#[test]
fn the_site_is_built() {
    let Some(mut mdbook) = tool("mdbook") else { return };
    let site = tempfile::tempdir().expect("a folder");
    let output = mdbook.arg("build").arg("--dest-dir").arg(site.path()).arg(root()).output();
    let output = output.expect("it runs");
    let printed = String::from_utf8_lossy(&output.stderr);
    let is_content = ["WARN", "ERROR"].iter().all(|word| !printed.contains(word));
    assert!(output.status.success() && is_content, "{printed}");
    for name in ["index.html", "tutorials/first-run.html", "deploy/slurm.html"] {
        assert!(site.path().join(name).is_file(), "{name}");
    }
}

#[test]
fn the_picture_of_a_schedule_is_as_it_is_drawn() {
    let words = "schedule render --kind zb-v --stages 4 --microbatches 8 --svg -";
    let drawn = printed(&words.split(' ').collect::<Vec<_>>());
    assert!(drawn == page("docs/zb-v.svg"), "zbelastic {words} > docs/zb-v.svg");
}

#[test]
fn the_sites_contents_have_every_page_once() {
    let summary = page("docs/SUMMARY.md");
    let mut listed: Vec<PathBuf> =
        links(&summary).map(|link| root().join("docs").join(link_parts(link).0)).collect();
    let in_docs = |path: &PathBuf| path.starts_with(root().join("docs"));
    let mut found: Vec<PathBuf> = pages().into_iter().filter(in_docs).collect();
    found.retain(|path| !path.ends_with("SUMMARY.md"));
    listed.sort();
    found.sort();
    assert_eq!(listed, found, "docs/SUMMARY.md, from which mdBook makes a site");
}

/// Paths in backticks that begin with one of our folders and name a file.
fn paths_named(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|quote| {
        let mut folders = members().iter().map(String::as_str).chain(["docs"]);
        let is_path = folders
            .any(|folder| quote.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')));
        is_path && !quote.contains(['*', ' ', '<', '{', ':', 'N'])
    })
}

#[test]
fn files_that_pages_name_exist() {
    for path in pages() {
        let text = fs::read_to_string(&path).expect("readable");
        for named in paths_named(&text) {
            assert!(root().join(named).exists(), "{}: there is no {named}", path.display());
        }
    }
}

/// The codes of this form in a text: `E20` and two digits.
fn identity_codes(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices("E20").filter_map(|(start, _)| text.get(start..start + 5));
    starts.filter(|code| code.bytes().skip(1).all(|byte| byte.is_ascii_digit()))
}

/// Source files of a package.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("readable").path());
    paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[test]
fn every_code_has_its_cause_and_cure() {
    let trouble = page("docs/trouble.md");
    let has_row = |code: &str| trouble.lines().any(|line| line.starts_with(&format!("| {code} |")));
    let texts = ["identity/src", "transport/src"].map(|folder| sources(&root().join(folder)));
    let texts: Vec<String> =
        texts.iter().flatten().map(|path| fs::read_to_string(path).expect("readable")).collect();
    let codes: Vec<&str> = texts.iter().flat_map(|text| identity_codes(text)).collect();
    assert!(codes.len() > 15, "{codes:?}");
    for code in codes {
        assert!(has_row(&format!("`{code}`")), "docs/trouble.md has no row for {code}");
    }
    let failure = page("wording/src/failure.rs");
    let exits = failure
        .lines()
        .filter_map(|line| line.trim().strip_suffix(',')?.split_once(" = ").map(|(_, code)| code));
    let exits: Vec<&str> = exits.filter(|code| code.parse::<u8>().is_ok()).collect();
    assert!(exits.len() > 10, "{exits:?}");
    for code in exits {
        assert!(has_row(code), "docs/trouble.md has no row for exit code {code}");
    }
}

#[test]
fn the_readme_names_every_flag_of_train() {
    let readme = page("README.md");
    let help = printed(&["train", "--help"]);
    let flags = help.lines().filter_map(|line| {
        let flag = line.trim_start().strip_prefix("--")?;
        flag.split([' ', ',']).next()
    });
    let flags: Vec<&str> = flags.collect();
    assert!(flags.len() > 8, "{help}");
    for flag in flags {
        assert!(readme.contains(&format!("--{flag}")), "README says nothing about --{flag}");
    }
}
