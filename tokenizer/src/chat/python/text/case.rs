//! Upper and lower case, and titles.

use minijinja::Error;

use super::super::characters::{CASED, TITLECASE, casefold};

/// A method that changes the case of letters, if there is one of this name. `capitalize` is that of a word.
pub(super) fn cased(
    text: &str,
    name: &str,
    capitalize: impl FnMut(&str) -> Result<String, Error>,
) -> Result<Option<String>, Error> {
    Ok(Some(match name {
        "upper" => text.to_uppercase(),
        "lower" => text.to_lowercase(),
        "casefold" => casefold(text),
        "title" => titled(text, capitalize)?,
        "swapcase" => text.chars().map(swapped).collect(),
        _ => return Ok(None),
    }))
}

/// Runs of letters with a case, each of them capitalized.
fn titled(
    text: &str,
    mut capitalize: impl FnMut(&str) -> Result<String, Error>,
) -> Result<String, Error> {
    let mut title = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(|c| CASED.contains(c)) {
        let (before, letters) = rest.split_at(start);
        let end = letters.find(|c| !CASED.contains(c)).unwrap_or(letters.len());
        title.push_str(before);
        title.push_str(&capitalize(&letters[..end])?);
        rest = &letters[end..];
    }
    Ok(title + rest)
}

/// Whether upper case follows what has no case alone, and lower case what has one.
pub(super) fn is_title(text: &str) -> bool {
    let mut is_behind_letter = false;
    let mut has_letter = false;
    for c in text.chars() {
        let is_cased = CASED.contains(c);
        let is_begin = c.is_uppercase() || TITLECASE.contains(c);
        if is_cased && is_begin == is_behind_letter {
            return false;
        }
        (is_behind_letter, has_letter) = (is_cased, has_letter || is_cased);
    }
    has_letter
}

fn swapped(c: char) -> String {
    if c.is_uppercase() {
        c.to_lowercase().collect()
    } else if c.is_lowercase() {
        c.to_uppercase().collect()
    } else {
        c.to_string()
    }
}
