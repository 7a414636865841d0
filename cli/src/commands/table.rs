//! Tables of text, with aligned columns.

use std::fmt::Write;

use zbelastic_api::escape;

/// Where the text of a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnAlign {
    /// At the left, for words.
    Left,
    /// At the right, for numbers.
    Right,
}

/// Rows below titles. Cells are escaped.
#[derive(Clone, Debug)]
pub struct TextTable {
    columns: Vec<(&'static str, ColumnAlign)>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table without rows.
    #[must_use]
    pub fn new(columns: &[(&'static str, ColumnAlign)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has more or fewer cells than there are columns.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.rows.push(cells.iter().map(|cell| escape(cell).into_owned()).collect());
    }

    /// The table as text, no line longer than `width`.
    #[must_use]
    pub fn render(&self, width: usize) -> String {
        let titles: Vec<String> = self.columns.iter().map(|(title, _)| (*title).into()).collect();
        let all = || std::iter::once(&titles).chain(&self.rows);
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| all().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for row in all() {
            let mut line = String::new();
            for ((cell, (_, align)), width) in row.iter().zip(&self.columns).zip(&widths) {
                let gap = if line.is_empty() { "" } else { "  " };
                let _ = match align {
                    ColumnAlign::Left => write!(line, "{gap}{cell:<width$}"),
                    ColumnAlign::Right => write!(line, "{gap}{cell:>width$}"),
                };
            }
            text.push_str(&fit(line.trim_end(), width));
            text.push('\n');
        }
        text
    }
}

/// A line; if it is longer than `width` letters, it is cut to that many, of which the last is `…`.
#[must_use]
pub fn fit(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let kept = line.chars().take(width.saturating_sub(1));
    kept.chain(std::iter::once('…')).collect()
}

#[cfg(test)]
mod tests {
    use super::{ColumnAlign, TextTable, fit};

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let mut table = TextTable::new(&[
            ("id", ColumnAlign::Right),
            ("name", ColumnAlign::Left),
            ("n", ColumnAlign::Left),
        ]);
        table.row(vec!["7".into(), "a".into(), "x".into()]);
        table.row(vec!["1024".into(), "long\u{1b}".into(), String::new()]);
        let expected = "  id  name        n\n   7  a           x\n1024  long\\u{1b}\n";
        assert_eq!(table.render(80), expected);
        assert_eq!(table.render(10).lines().next(), Some("  id  nam…"));
    }

    #[test]
    fn a_line_is_cut_only_if_it_is_too_long() {
        assert_eq!(fit("abc", 3), "abc");
        assert_eq!(fit("abcd", 3), "ab…");
    }
}
