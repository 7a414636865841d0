//! Files of text, document by document, long ones part by part.

use std::io::BufRead;

use super::{PART_BYTES_MAX, SourceError, SourceItem};
use crate::document::TextPart;

/// Bytes that are read at once. Large, so that the rest of a buffer is moved rarely.
const READ_BYTES: usize = 1 << 20;

/// Documents of a file, or parts of them.
///
/// A separator ends a document. The text after the last one is a document if it is not empty;
/// without a separator the whole file is one, even if it is empty.
pub(super) struct TextReader<R> {
    file: String,
    reader: R,
    separator: Option<Vec<u8>>,
    buffer: Vec<u8>,
    /// Where in the buffer the next part begins.
    begin: usize,
    /// Offset of the buffer in the file.
    buffer_offset: u64,
    /// Number of the line, from 1, in which the next part begins.
    line: u64,
    is_at_end: bool,
    is_first: bool,
    is_done: bool,
}

/// Where the next part ends.
enum PartEnd {
    /// The document goes on behind so many bytes.
    Cut(usize),
    /// The document has so many bytes more, and a separator stands behind them.
    Separator(usize),
    /// The document ends with the file.
    File,
    /// More has to be read to know.
    Unknown,
}

impl<R: BufRead> TextReader<R> {
    pub(super) fn new(
        file: String,
        reader: R,
        separator: Option<&str>,
    ) -> Result<Self, SourceError> {
        if separator.is_some_and(str::is_empty) {
            return Err(SourceError::EmptySeparator);
        }
        Ok(Self {
            file,
            reader,
            separator: separator.map(|text| text.as_bytes().to_vec()),
            buffer: Vec::new(),
            begin: 0,
            buffer_offset: 0,
            line: 1,
            is_at_end: false,
            is_first: true,
            is_done: false,
        })
    }

    fn part_end(&self) -> PartEnd {
        let rest = &self.buffer[self.begin..];
        let separator = self.separator.as_deref();
        let found = separator.and_then(|separator| find(rest, separator));
        // A separator that begins within the part lies within the rest as a whole.
        let needed = PART_BYTES_MAX + separator.map_or(1, <[u8]>::len);
        match found {
            Some(len) if len <= PART_BYTES_MAX => PartEnd::Separator(len),
            _ if rest.len() >= needed => PartEnd::Cut(cut(&rest[..PART_BYTES_MAX])),
            Some(_) | None if self.is_at_end && rest.len() <= PART_BYTES_MAX => PartEnd::File,
            Some(_) | None if self.is_at_end => PartEnd::Cut(cut(&rest[..PART_BYTES_MAX])),
            Some(_) | None => PartEnd::Unknown,
        }
    }

    fn fill(&mut self) -> Result<(), SourceError> {
        self.buffer.drain(..self.begin);
        self.buffer_offset += self.begin as u64;
        self.begin = 0;
        let target = self.buffer.len() + READ_BYTES;
        while self.buffer.len() < target && !self.is_at_end {
            let read = self.reader.fill_buf();
            let read =
                read.map_err(|source| SourceError::Io { file: self.file.clone(), source })?;
            let count = read.len();
            self.is_at_end = count == 0;
            self.buffer.extend_from_slice(read);
            self.reader.consume(count);
        }
        Ok(())
    }

    /// The next `len` bytes as a part, and `skipped` bytes behind them left out.
    fn part(
        &mut self,
        len: usize,
        skipped: usize,
        is_last: bool,
    ) -> Result<SourceItem, SourceError> {
        let bytes = &self.buffer[self.begin..self.begin + len];
        let text = str::from_utf8(bytes).map_err(|error| SourceError::NotUtf8 {
            file: self.file.clone(),
            offset: self.buffer_offset + (self.begin + error.valid_up_to()) as u64,
        })?;
        let part = TextPart { text: text.to_owned(), is_first: self.is_first, is_last };
        let item = SourceItem::Text { line: self.line, part };
        let passed = &self.buffer[self.begin..self.begin + len + skipped];
        self.line += passed.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.begin += len + skipped;
        self.is_first = is_last;
        Ok(item)
    }

    fn next_part(&mut self) -> Result<Option<SourceItem>, SourceError> {
        loop {
            match self.part_end() {
                PartEnd::Unknown => self.fill()?,
                PartEnd::Cut(len) => return self.part(len, 0, false).map(Some),
                PartEnd::Separator(len) => {
                    let skipped = self.separator.as_ref().map_or(0, Vec::len);
                    return self.part(len, skipped, true).map(Some);
                }
                PartEnd::File => {
                    self.is_done = true;
                    let len = self.buffer.len() - self.begin;
                    let is_nothing = len == 0 && self.is_first && self.separator.is_some();
                    return if is_nothing { Ok(None) } else { self.part(len, 0, true).map(Some) };
                }
            }
        }
    }
}

impl<R: BufRead> Iterator for TextReader<R> {
    type Item = Result<SourceItem, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let part = self.next_part();
        self.is_done |= part.is_err();
        part.transpose()
    }
}

fn find(text: &[u8], separator: &[u8]) -> Option<usize> {
    let first = *separator.first()?;
    let mut from = 0;
    while let Some(at) = text[from..].iter().position(|byte| *byte == first) {
        let at = from + at;
        if text[at..].starts_with(separator) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

/// Where a text that goes on is cut: behind the last newline that no white space follows, or else
/// behind the last newline, before the last space, or between two characters.
fn cut(text: &[u8]) -> usize {
    let is_line_start = |at: &usize| text[at - 1] == b'\n' && !text[*at].is_ascii_whitespace();
    let line = (1..text.len()).rev().find(is_line_start);
    let newline = || text.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
    let space = || text.iter().rposition(|byte| *byte == b' ').filter(|at| *at > 0);
    let is_character_start = |at: &usize| text[*at] & 0xc0 != 0x80;
    let character = || {
        let first = text.len().saturating_sub(4).max(1);
        (first..text.len()).rev().find(is_character_start)
    };
    line.or_else(newline).or_else(space).or_else(character).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::{PART_BYTES_MAX, TextReader, cut};
    use crate::source::{SourceError, SourceItem};

    /// Parts as (text, is_first, is_last).
    fn parts(
        text: &[u8],
        separator: Option<&str>,
    ) -> Result<Vec<(String, bool, bool)>, SourceError> {
        // Small reads, so that separators lie across them.
        let reader = BufReader::with_capacity(7, text);
        let reader = TextReader::new("a.txt".to_owned(), reader, separator)?;
        let of = |item| {
            let SourceItem::Text { part, .. } = item else {
                panic!("a text reader yields {item:?}")
            };
            (part.text, part.is_first, part.is_last)
        };
        reader.map(|item| item.map(of)).collect()
    }

    #[test]
    fn a_separator_ends_a_document_and_a_file_does() {
        let check = |text: &str, separator, expected: &[&str]| {
            let found = parts(text.as_bytes(), separator).expect("UTF-8");
            assert!(found.iter().all(|(_, is_first, is_last)| *is_first && *is_last));
            let found: Vec<_> = found.into_iter().map(|(text, ..)| text).collect();
            assert_eq!(found, expected, "{text:?}");
        };
        check("", None, &[""]);
        check("a\n\nb\n", None, &["a\n\nb\n"]);
        check("", Some("<|e|>"), &[]);
        check("<|e|>", Some("<|e|>"), &[""]);
        check("a<|e|><|e|>\r\nb<|e|>", Some("<|e|>"), &["a", "", "\r\nb"]);
        check("a<|<|e|>b", Some("<|e|>"), &["a<|", "b"]);
    }

    #[test]
    fn a_part_knows_the_line_in_which_it_begins() {
        let reader = TextReader::new("a.txt".to_owned(), &b"a\nb%\n%\nc\n%\n%d"[..], Some("%\n%"));
        let line = |item| match item {
            Ok(SourceItem::Text { line, .. }) => line,
            other => panic!("a text reader yields {other:?}"),
        };
        let lines: Vec<_> = reader.expect("a separator").map(line).collect();
        assert_eq!(lines, [1, 3, 6]);
    }

    #[test]
    fn a_document_longer_than_a_part_is_cut_where_a_line_begins() {
        for separator in [None, Some("%%")] {
            let line = "0123456789 é\n";
            let long = line.repeat(2 * PART_BYTES_MAX / line.len() + 10);
            let found = parts(long.as_bytes(), separator).expect("UTF-8");
            let flags: Vec<_> = found.iter().map(|part| (part.1, part.2)).collect();
            assert_eq!(flags, [(true, false), (false, false), (false, true)]);
            assert!(found[..2].iter().all(|part| part.0.ends_with('\n')));
            assert!(found.iter().all(|part| part.0.len() <= PART_BYTES_MAX));
            assert_eq!(found.iter().map(|part| &*part.0).collect::<String>(), long);
        }
    }

    #[test]
    fn a_document_of_exactly_a_part_is_not_cut() {
        for (extra, count) in [(0, 1), (1, 2)] {
            let text = "a".repeat(PART_BYTES_MAX + extra);
            assert_eq!(parts(text.as_bytes(), None).expect("UTF-8").len(), count);
            let text = format!("{text}%%b");
            assert_eq!(parts(text.as_bytes(), Some("%%")).expect("UTF-8").len(), count + 1);
        }
    }

    #[test]
    fn cuts_prefer_lines_to_spaces_to_characters() {
        let check = |text: &str, expected| assert_eq!(cut(text.as_bytes()), expected, "{text:?}");
        check("ab\ncd\n\n ", 3);
        check("ab\n\n", 4);
        check("ab cd", 2);
        check(" ab", 2);
        check("aéé", 3);
        check("é", 2);
    }

    #[test]
    fn bytes_that_are_no_text_are_named_by_their_offset() {
        let error = parts(b"ab%%c\xffd", Some("%%")).expect_err("not UTF-8");
        assert!(matches!(error, SourceError::NotUtf8 { offset: 5, .. }), "{error}");
        assert!(matches!(parts(b"", Some("")), Err(SourceError::EmptySeparator)));
    }
}
