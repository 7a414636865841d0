//! Text of others on a terminal: a sequence that would move the cursor is written, not executed.

use std::borrow::Cow;
use std::fmt::Write;

/// `text` with control characters written as `\u{1b}`, and characters that turn the direction of
/// writing or have no width written likewise. A name that a peer chose cannot clear a screen, forge
/// a line, or read backwards.
#[must_use]
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_treacherous) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        if is_treacherous(letter) {
            let _ = write!(escaped, "\\u{{{:x}}}", u32::from(letter));
        } else {
            escaped.push(letter);
        }
    }
    Cow::Owned(escaped)
}

fn is_treacherous(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn what_moves_a_cursor_or_hides_is_written() {
        let check = |text: &str, expected: &str| assert_eq!(escape(text), expected);
        check("node-b, Zürich ✔", "node-b, Zürich ✔");
        check("\u{1b}[2Jgone", "\\u{1b}[2Jgone");
        check("a\nb\r\tc\0", "a\\u{a}b\\u{d}\\u{9}c\\u{0}");
        check("\u{9b}31m", "\\u{9b}31m");
        check("a\u{202e}b\u{200b}c\u{feff}", "a\\u{202e}b\\u{200b}c\\u{feff}");
    }
}
