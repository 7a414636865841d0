//! How many lives it takes to catch a known bug, from a first seed on, as rows of the table in
//! `docs/chaos.md`:
//!
//! ```text
//! cargo run --release -p chaos-tests --example hunt -- m11 20000 1
//! ```

use chaos_tests::hunt::{KnownBug, hunt};
use chaos_tests::options::ComputeModelKind;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let name = args.first().map_or("", String::as_str);
    let number =
        |index: usize, usual| args.get(index).map_or(usual, |arg| arg.parse().expect("a number"));
    let lives_max = number(1, 6_000);
    let seed_first = number(2, 1);
    println!("| mutant | what is broken | caught by | seeds needed |\n|---|---|---|---|");
    for known in KnownBug::ALL.into_iter().filter(|known| name.is_empty() || known.name() == name) {
        let caught = hunt(known, ComputeModelKind::Digest, seed_first, lives_max);
        let (by, lives) = match &caught {
            Some(caught) => {
                let invariant = caught.failure.invariant;
                let by = invariant.map_or("a panic".to_owned(), |found| format!("{found:?}"));
                (by.replace("Canary", "the canary"), caught.lives.to_string())
            }
            None => ("nothing".to_owned(), format!("more than {lives_max}")),
        };
        println!("| {known} | {} | {by} | {lives} |", known.about());
        if let Some(caught) = caught.filter(|caught| !caught.is_expected(known)) {
            eprintln!("{known}, seed {}: {}", caught.seed, caught.failure);
        }
    }
}
