//! How a run may be called, and how many that ended are kept.

/// Ended runs kept at most. Each has its document and the digests of its layers in every snapshot:
/// a quarter of the largest, if all are as large as can be.
pub const RUNS_MAX: usize = 32;
/// Bytes of a run's name at most.
pub const RUN_NAME_BYTES_MAX: usize = 63;

/// The rule for the name of a run: 1 to 63 of `a-z`, `0-9`, `-`, `_` and `.`, the first a letter or
/// a digit. It is safe in a path and on a command line.
#[must_use]
pub fn is_run_name(name: &str) -> bool {
    let is_first = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_legal = |byte: &u8| is_first(byte) || b"-_.".contains(byte);
    let bytes = name.as_bytes();
    bytes.len() <= RUN_NAME_BYTES_MAX
        && bytes.first().is_some_and(is_first)
        && bytes.iter().all(is_legal)
}

/// The name of a run that is named after something else, as a file: characters that cannot stand in
/// a name become dashes.
#[must_use]
pub fn run_name_of(text: &str) -> String {
    let legal = |letter: char| match letter.to_ascii_lowercase() {
        letter if letter.is_ascii_alphanumeric() || "-_.".contains(letter) => letter,
        _ => '-',
    };
    let name: String = text.chars().map(legal).collect();
    let name = name.trim_matches(|letter: char| !letter.is_ascii_alphanumeric());
    let name: String = name.chars().take(RUN_NAME_BYTES_MAX).collect();
    if is_run_name(&name) { name } else { "run".to_owned() }
}
