//! How many lives it takes to catch a known bug, from one first seed after the other:
//!
//! ```text
//! cargo run --release -p chaos-tests --features mutants --example hunt -- M11 20000 1
//! ```

use chaos_tests::hunt::{Known, hunt};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let name = args.first().map_or("", String::as_str);
    let number =
        |index: usize, usual| args.get(index).map_or(usual, |arg| arg.parse().expect("a number"));
    let (lives_max, seed_first) = (number(1, 1_500), number(2, 1));
    for known in Known::ALL.into_iter().filter(|known| known.to_string().starts_with(name)) {
        match hunt(known, seed_first, lives_max) {
            Some(caught) => {
                println!(
                    "{known}: {} lives, seed {}, {}",
                    caught.lives, caught.seed, caught.failure
                );
            }
            None => println!("{known}: not caught in {lives_max} lives"),
        }
    }
}
