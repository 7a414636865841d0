//! The net has no holes: every known bug is caught within a short budget of lives, by a check that
//! is there for it, and the canary shows that a life can fail. `docs/chaos.md` has the table that
//! the example `hunt` prints.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use chaos_tests::bug::Bug;
use chaos_tests::hunt::{KnownBug, hunt};
use chaos_tests::options::ComputeModelKind;

/// Most lives that are run for one mutant.
const LIVES_MAX: u64 = 6_000;
/// Lives of the float model, each of which takes as long as many of the other.
const FLOAT_LIVES_MAX: u64 = 200;

/// The first life of a hunt. Bugs that would take more than fifty lives from seed 1 on are hunted from some
/// lives before the one that has caught them: each seed is as good as any other.
fn seed_first(known: KnownBug) -> u64 {
    match known.name() {
        "m1" => 340,
        "m5" => 85,
        "m29" => 130,
        "m44" => 165,
        "m49" => 290,
        "m50" | "R2" => 40,
        "m57" => 60,
        "m54" => 150,
        "m63" | "m64" | "m65" => 140,
        _ => 1,
    }
}

fn check_caught(known: KnownBug, model: ComputeModelKind, lives_max: u64) {
    let caught = hunt(known, model, seed_first(known), lives_max);
    let caught = caught.unwrap_or_else(|| panic!("{known} is not caught in {lives_max} lives"));
    println!("{known} caught after {} lives: {}", caught.lives, caught.failure);
    assert!(caught.is_expected(known), "{known} is caught by {}", caught.failure);
}

/// Bugs that take more lives than a test has time for: scenarios are played with them
/// (`tests/scenarios/planted.rs`), and `--example hunt` hunts them.
const PLANTED_IN_SCENARIOS: [&str; 1] = ["m43"];

/// On all processors, since a switch is thrown for one thread.
#[test]
fn every_known_bug_is_caught_by_its_check() {
    let begun = AtomicUsize::new(0);
    let next = || KnownBug::ALL.get(begun.fetch_add(1, Ordering::Relaxed));
    let hunt_on = || {
        while let Some(known) = next() {
            if !PLANTED_IN_SCENARIOS.contains(&known.name()) {
                check_caught(*known, ComputeModelKind::Digest, LIVES_MAX);
            }
        }
    };
    let jobs = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN).get();
    thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(hunt_on))));
    assert!(begun.into_inner() >= KnownBug::ALL.len(), "none is left out");
}

#[test]
fn a_count_of_updates_that_goes_on_is_caught_with_the_real_kernels() {
    check_caught(
        KnownBug::Bug(Bug::M14UpdatesNotRolledBack),
        ComputeModelKind::Float,
        FLOAT_LIVES_MAX,
    );
}
