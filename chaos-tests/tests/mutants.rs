//! The net has no holes: every known bug is caught within a short budget of lives, and the canary
//! shows that a life can fail. `docs/chaos.md` has the table that this prints.

#![cfg(feature = "mutants")]

use chaos_tests::hunt::{Known, hunt};

/// Lives for each.
const LIVES_MAX: u64 = 6_000;

#[test]
fn every_known_bug_is_caught() {
    let mut missed = Vec::new();
    for known in Known::ALL {
        match hunt(known, 1, LIVES_MAX) {
            Some(caught) => {
                let (lives, failure) = (caught.lives, caught.failure);
                println!("{known} caught after {lives} lives: {failure}");
            }
            None => missed.push(known.to_string()),
        }
    }
    assert!(missed.is_empty(), "not caught within {LIVES_MAX} lives: {missed:?}");
}
