//! Lines of a file of JSON, which workers parse.

use std::io::{self, BufRead, Read};

use super::{BadDocument, LINE_BYTES_MAX, SourceError, SourceItem};

/// Lines that are not blank. A line ends with `\n` alone: texts may hold U+2028 and U+0085.
pub(super) struct LineReader<R> {
    file: String,
    reader: R,
    line_bytes_max: usize,
    lines_read: u64,
    is_done: bool,
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

impl<R: BufRead> LineReader<R> {
    pub(super) fn new(file: String, reader: R) -> Self {
        Self::with_bytes_max(file, reader, LINE_BYTES_MAX)
    }

    fn with_bytes_max(file: String, reader: R, line_bytes_max: usize) -> Self {
        Self { file, reader, line_bytes_max, lines_read: 0, is_done: false }
    }

    fn next_line(&mut self) -> io::Result<Option<SourceItem>> {
        loop {
            let mut bytes = Vec::new();
            let limit = self.line_bytes_max as u64 + 1;
            if self.reader.by_ref().take(limit).read_until(b'\n', &mut bytes)? == 0 {
                return Ok(None);
            }
            self.lines_read += 1;
            let number = self.lines_read;
            if bytes.last() == Some(&b'\n') {
                bytes.pop();
            } else if bytes.len() > self.line_bytes_max {
                self.reader.skip_until(b'\n')?;
                let document = Err(BadDocument::TooLong { max: self.line_bytes_max });
                return Ok(Some(SourceItem::Row { number, document }));
            }
            if number == 1 && bytes.starts_with(BYTE_ORDER_MARK) {
                bytes.drain(..BYTE_ORDER_MARK.len());
            }
            if !bytes.trim_ascii().is_empty() {
                return Ok(Some(SourceItem::Line { number, bytes }));
            }
        }
    }
}

impl<R: BufRead> Iterator for LineReader<R> {
    type Item = Result<SourceItem, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let line = self.next_line();
        self.is_done = !matches!(line, Ok(Some(_)));
        line.map_err(|source| SourceError::Io { file: self.file.clone(), source }).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::LineReader;
    use crate::source::{BadDocument, SourceItem};

    #[test]
    fn lines_are_numbered_blank_ones_left_out_and_long_ones_skipped() {
        let text = "\u{feff}{}\n\n \r\n1234567\n12345678\n\u{2028}\n12";
        let lines = LineReader::with_bytes_max("a.jsonl".to_owned(), text.as_bytes(), 7);
        let found = lines.map(|line| {
            let line = line.expect("readable");
            if let SourceItem::Row { number, document } = line {
                assert_eq!(document, Err(BadDocument::TooLong { max: 7 }));
                return (number, None);
            }
            let SourceItem::Line { number, bytes } = line else { panic!("a line or too long") };
            (number, String::from_utf8(bytes).ok())
        });
        let line = |number, text: &str| (number, Some(text.to_owned()));
        let expected =
            [line(1, "{}"), line(4, "1234567"), (5, None), line(6, "\u{2028}"), line(7, "12")];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }
}
