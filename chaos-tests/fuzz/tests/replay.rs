//! Every input of the corpora, every seed, and mutations of both, through their targets.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use zbelastic_fuzz::mutations::mutations;
use zbelastic_fuzz::{DecodeOutcome, Target};

/// Bytes of all corpora together at most: they are inputs to begin with, and no archive.
const CORPORA_BYTES_MAX: u64 = 300 << 10;

/// The inputs of a folder, in the order of their names.
fn inputs(folder: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("readable")).collect()
}

/// Checks one input; the bytes of one that fails are in the panic's message.
fn check(target: Target, bytes: &[u8]) -> DecodeOutcome {
    catch_unwind(|| target.check(bytes))
        .unwrap_or_else(|_| panic!("{}: {:02x?}", target.name(), &bytes[..bytes.len().min(4096)]))
}

#[test]
fn every_target_keeps_its_word_for_its_corpus_and_near_it() {
    for target in Target::ALL {
        let corpus = inputs(&target.corpus());
        assert!(!corpus.is_empty(), "{} has no corpus", target.name());
        let all = [corpus, target.seeds()].concat();
        for bytes in &all {
            check(target, bytes);
            for mutation in mutations(bytes, &all) {
                check(target, &mutation);
            }
        }
    }
}

#[test]
fn every_seed_is_accepted() {
    for target in Target::ALL {
        for (number, bytes) in target.seeds().iter().enumerate() {
            assert_eq!(
                check(target, bytes),
                DecodeOutcome::Accepted,
                "seed {number} of {}",
                target.name()
            );
        }
    }
}

#[test]
fn corpora_are_small_and_each_is_a_targets() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut bytes = 0;
    for entry in fs::read_dir(root).expect("there are corpora") {
        let folder = entry.expect("readable").path();
        let is_targets = Target::ALL.iter().any(|target| target.corpus() == folder);
        assert!(is_targets, "{} is the corpus of no target", folder.display());
        bytes += inputs(&folder).iter().map(|input| input.len() as u64).sum::<u64>();
    }
    assert!(bytes <= CORPORA_BYTES_MAX, "{bytes} bytes of corpora, at most {CORPORA_BYTES_MAX}");
}

#[test]
fn the_page_names_every_target_once() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/chaos.md");
    let page = fs::read_to_string(page).expect("the page is there");
    let rows = page.lines().skip_while(|line| *line != "| of | targets |");
    let rows: Vec<&str> = rows.take_while(|line| line.starts_with('|')).collect();
    for target in Target::ALL {
        let named = rows.concat().matches(&format!("`{}`", target.name())).count();
        assert_eq!(named, 1, "{} in the table of targets", target.name());
    }
}
