//! The net has no holes: every known bug is caught within a short budget of lives, by a check that
//! is there for it, and the canary shows that a life can fail. `docs/chaos.md` has the table that
//! the example `hunt` prints.

use chaos_tests::bug::Bug;
use chaos_tests::hunt::{KnownBug, hunt};
use chaos_tests::options::ComputeModelKind;

/// Most lives that are run for one mutant.
const LIVES_MAX: u64 = 6_000;
/// Lives of the float model, each of which takes as long as many of the other.
const FLOAT_LIVES_MAX: u64 = 200;

fn check_caught(known: KnownBug, model: ComputeModelKind, lives_max: u64) {
    let caught = hunt(known, model, 1, lives_max);
    let caught = caught.unwrap_or_else(|| panic!("{known} is not caught in {lives_max} lives"));
    println!("{known} caught after {} lives: {}", caught.lives, caught.failure);
    assert!(caught.is_expected(known), "{known} is caught by {}", caught.failure);
}

#[test]
fn every_known_bug_is_caught_by_its_check() {
    KnownBug::ALL
        .into_iter()
        .for_each(|known| check_caught(known, ComputeModelKind::Digest, LIVES_MAX));
}

#[test]
fn a_count_of_updates_that_goes_on_is_caught_with_the_real_kernels() {
    check_caught(
        KnownBug::Bug(Bug::M14UpdatesNotRolledBack),
        ComputeModelKind::Float,
        FLOAT_LIVES_MAX,
    );
}
