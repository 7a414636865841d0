//! What the program prints: never by a macro that panics where the reader has left.

use super::arrows::{EMULATOR, FUZZ_FOLDER, ORACLES};
use super::names::{is_test, package_of, production};
use super::{SourceFile, code};

/// Macros that panic where their stream is closed (`2>&1 | head`), and end the process with it.
const MACROS: [&str; 4] = ["print!", "println!", "eprint!", "eprintln!"];
/// What they are replaced by.
const INSTEAD: &str = "`print_error_line` of `wording`, or `writeln!` whose error is looked at";
/// Tests that other packages instantiate.
const TESTS_OF_OTHERS: &str = "kernels/src/conformance.rs";

fn is_in_the_program(path: &str) -> bool {
    let package = package_of(path);
    let is_apart = [EMULATOR, FUZZ_FOLDER, ORACLES].iter().any(|name| package.ends_with(name));
    !is_apart && !is_test(path) && path != TESTS_OF_OTHERS
}

/// Whether a line of code calls a macro of this name.
fn calls(line: &str, name: &str) -> bool {
    let mut before = line.match_indices(name).map(|(start, _)| &line[..start]);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    !line.trim_start().starts_with("//") && before.any(|before| !before.ends_with(is_word))
}

fn printing_macros(sources: &[SourceFile]) -> Vec<String> {
    let mut found = Vec::new();
    for file in sources.iter().filter(|file| is_in_the_program(&file.path)) {
        for (number, line) in (1..).zip(production(file).lines()) {
            let called = MACROS.into_iter().find(|name| calls(line, name));
            let path = &file.path;
            found.extend(called.map(|name| format!("{path}:{number}: {name} for {INSTEAD}")));
        }
    }
    found
}

#[test]
fn nothing_is_printed_by_a_macro_that_panics() {
    assert_eq!(printing_macros(&code("src")), Vec::<String>::new());
}

#[test]
fn macros_that_print_are_found() {
    let found = |path: &str, text: &str| {
        printing_macros(&[SourceFile { path: path.to_owned(), text: text.to_owned() }])
    };
    let text = "fn note() {\n    eprintln!(\"note\");\n}\n";
    let expected = format!("node/src/a.rs:2: eprintln! for {INSTEAD}");
    assert_eq!(found("node/src/a.rs", text), [expected]);
    let expected = format!("cli/src/a.rs:1: print! for {INSTEAD}");
    assert_eq!(found("cli/src/a.rs", "let show = |text| print!(\"{text}\");"), [expected]);
    for path in ["node/src/a/tests.rs", "kernels/emulator/src/a.rs", "oracles/src/lib.rs"] {
        assert_eq!(found(path, text), Vec::<String>::new());
    }
    let allowed = "// println!()\nwriteln!(out)?;\nblueprint!();\n";
    let tested = format!("{allowed}#[cfg(test)]\nmod tests {{\n    println!();\n}}\n");
    assert_eq!(found("node/src/a.rs", &tested), Vec::<String>::new());
}
