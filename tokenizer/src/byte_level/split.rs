//! The regular expressions by which byte-level BPE cuts text into pieces, as functions.
//!
//! Each matches at every place of a text, so pieces follow each other without gaps. An expression
//! that is none of these is left to the crate `tokenizers`.

use super::classes::{CharClass, char_classes};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A split pattern that is known by the name of the model that brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitPattern {
    /// A word with the space before it, a number with the space before it, a run of the rest.
    Gpt2,
    /// GPT-2's, after each digit was cut off; SmolLM's.
    Gpt2Digits,
    /// A word with any one character before it, up to three digits, newlines with the symbols before them.
    Llama3,
    /// Llama 3's with one digit a piece.
    Qwen2,
}

impl SplitPattern {
    /// The pattern that a regular expression is.
    pub(super) fn of_regex(regex: &str) -> Option<Self> {
        let known = [Self::Gpt2, Self::Llama3, Self::Qwen2];
        known.into_iter().find(|pattern| pattern.regex() == regex)
    }

    /// The regular expression, which for [`Self::Gpt2Digits`] is applied between digits.
    pub(crate) fn regex(self) -> &'static str {
        match self {
            Self::Gpt2 | Self::Gpt2Digits => GPT2,
            Self::Llama3 => LLAMA3,
            Self::Qwen2 => QWEN2,
        }
    }

    /// Calls `handle` with each piece of `text` in turn.
    pub(crate) fn for_each_piece<'a>(self, text: &'a str, mut handle: impl FnMut(&'a [u8])) {
        match self {
            Self::Gpt2 => pieces(text, ClassifiedText::gpt2_end, &mut handle),
            Self::Gpt2Digits => {
                for part in text.split_inclusive(char::is_numeric) {
                    let digit = part.char_indices().next_back().filter(|(_, c)| c.is_numeric());
                    let cut = digit.map_or(part.len(), |(start, _)| start);
                    pieces(&part[..cut], ClassifiedText::gpt2_end, &mut handle);
                    if cut < part.len() {
                        handle(&part.as_bytes()[cut..]);
                    }
                }
            }
            Self::Llama3 => pieces(text, |text, at| text.llama3_end(at, 3), &mut handle),
            Self::Qwen2 => pieces(text, |text, at| text.llama3_end(at, 1), &mut handle),
        }
    }
}

fn pieces<'a>(
    text: &'a str,
    end: impl Fn(&ClassifiedText<'a>, usize) -> usize,
    handle: &mut impl FnMut(&'a [u8]),
) {
    let text = ClassifiedText { text, classes: char_classes() };
    let mut start = 0;
    while start < text.text.len() {
        let end = end(&text, start);
        handle(&text.text.as_bytes()[start..end]);
        start = end;
    }
}

/// A character by its class, and where the next one begins.
#[derive(Clone, Copy)]
struct Classified {
    class: CharClass,
    end: usize,
}

struct ClassifiedText<'a> {
    text: &'a str,
    classes: &'static [CharClass],
}

impl ClassifiedText<'_> {
    #[inline]
    fn at(&self, start: usize) -> Option<Classified> {
        let byte = *self.text.as_bytes().get(start)?;
        if byte < 0x80 {
            return Some(Classified { class: self.classes[usize::from(byte)], end: start + 1 });
        }
        let c = self.text[start..].chars().next()?;
        Some(Classified { class: self.classes[c as usize], end: start + c.len_utf8() })
    }

    /// The end of the run of characters that `belongs` accepts.
    #[inline]
    fn run(&self, mut start: usize, belongs: impl Fn(CharClass) -> bool) -> usize {
        while let Some(found) = self.at(start).filter(|found| belongs(found.class)) {
            start = found.end;
        }
        start
    }

    fn run_of(&self, start: usize, class: CharClass) -> usize {
        self.run(start, |found| found == class)
    }

    /// The end of `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` or `'d`.
    fn contraction(&self, start: usize, ignores_case: bool) -> Option<usize> {
        let bytes = &self.text.as_bytes()[start..];
        if bytes.first() != Some(&b'\'') {
            return None;
        }
        let letter = |index: usize| {
            let byte = *bytes.get(index)?;
            Some(if ignores_case { byte.to_ascii_lowercase() } else { byte })
        };
        match (letter(1)?, letter(2)) {
            (b's' | b't' | b'm' | b'd', _) => Some(start + 2),
            (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(start + 3),
            // The long s, which is an s to a pattern that ignores case.
            (0xc5, Some(0xbf)) if ignores_case => Some(start + 3),
            _ => None,
        }
    }

    /// The end of `\s+(?!\S)|\s+` from a character of white space.
    fn space_end(&self, start: usize) -> usize {
        let end = self.run(start, CharClass::is_space);
        let is_last = end == self.text.len();
        let last = self.text[start..end].char_indices().next_back().map_or(0, |(index, _)| index);
        if is_last || last == 0 { end } else { start + last }
    }

    fn gpt2_end(&self, start: usize) -> usize {
        if let Some(end) = self.contraction(start, false) {
            return end;
        }
        let begin = start + usize::from(self.text.as_bytes()[start] == b' ');
        match self.at(begin).map(|found| found.class) {
            Some(class @ (CharClass::Letter | CharClass::Number | CharClass::Other)) => {
                self.run_of(begin, class)
            }
            Some(CharClass::Space | CharClass::Newline) | None => self.space_end(start),
        }
    }

    fn llama3_end(&self, start: usize, digits_max: usize) -> usize {
        if let Some(end) = self.contraction(start, true) {
            return end;
        }
        let Some(first) = self.at(start) else { return start };
        let is_letter = |at| self.at(at).is_some_and(|found| found.class == CharClass::Letter);
        match first.class {
            CharClass::Letter => return self.run_of(start, CharClass::Letter),
            CharClass::Number => return self.digits_end(start, digits_max),
            CharClass::Other | CharClass::Space if is_letter(first.end) => {
                return self.run_of(first.end, CharClass::Letter);
            }
            CharClass::Other | CharClass::Space | CharClass::Newline => {}
        }
        let begin = start + usize::from(self.text.as_bytes()[start] == b' ');
        let end = self.run_of(begin, CharClass::Other);
        if end > begin {
            return self.run_of(end, CharClass::Newline);
        }
        let spaces = &self.text[start..self.run(start, CharClass::is_space)];
        let newline = spaces.rfind(['\r', '\n']);
        newline.map_or_else(|| self.space_end(start), |newline| start + newline + 1)
    }

    fn digits_end(&self, start: usize, digits_max: usize) -> usize {
        (0..digits_max).fold(start, |at, _| {
            let digit = self.at(at).filter(|found| found.class == CharClass::Number);
            digit.map_or(at, |digit| digit.end)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: SplitPattern, text: &str, expected: &[&str]) {
        let mut found = Vec::new();
        pattern.for_each_piece(text, |piece| found.push(String::from_utf8_lossy(piece)));
        assert_eq!(found, expected, "{pattern:?} of {text:?}");
    }

    #[test]
    fn patterns_cut_where_their_expressions_do() {
        check(SplitPattern::Gpt2, "", &[]);
        check(SplitPattern::Gpt2, "We're  2 x\n", &["We", "'re", " ", " 2", " x", "\n"]);
        check(SplitPattern::Gpt2, "\t\tone 1234!!", &["\t", "\t", "one", " 1234", "!!"]);
        check(SplitPattern::Gpt2, " ' s'S", &[" '", " s", "'", "S"]);
        check(SplitPattern::Gpt2Digits, "a 12²b", &["a", " ", "1", "2", "²", "b"]);
        check(
            SplitPattern::Llama3,
            "We'RE \n\n 12345 (x)\n",
            &["We", "'RE", " \n\n", " ", "123", "45", " (", "x", ")\n"],
        );
        check(SplitPattern::Llama3, "'ſa\u{3000}b", &["'ſ", "a", "\u{3000}b"]);
        check(SplitPattern::Qwen2, "\t12\r\n  ", &["\t", "1", "2", "\r\n", "  "]);
    }
}
