//! Tables of figures: a line of column names, then a line a row.

/// A table with a line of column names. Lines that begin with `#` are comments; no cell is quoted.
pub struct OracleTable<'a> {
    columns: Vec<&'a str>,
    rows: Vec<Vec<&'a str>>,
}

impl<'a> OracleTable<'a> {
    pub fn parse(text: &'a str) -> Self {
        let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let cells = |line: &'a str| line.split(',').map(str::trim).collect::<Vec<_>>();
        let columns = cells(lines.next().expect("a table has a line of names"));
        Self { columns, rows: lines.map(cells).collect() }
    }

    pub fn rows(&self) -> impl Iterator<Item = OracleRow<'_>> {
        self.rows.iter().map(|cells| OracleRow { columns: &self.columns, cells })
    }
}

#[derive(Debug)]
pub struct OracleRow<'a> {
    columns: &'a [&'a str],
    cells: &'a [&'a str],
}

impl OracleRow<'_> {
    pub fn text(&self, name: &str) -> &str {
        let column = self.columns.iter().position(|column| *column == name);
        self.cells[column.unwrap_or_else(|| panic!("no column {name} in {:?}", self.columns))]
    }

    pub fn number(&self, name: &str) -> f64 {
        let text = self.text(name);
        text.parse().unwrap_or_else(|_| panic!("{name}: expected a number, found `{text}`"))
    }

    /// A list with `;`, or one number for all `count`.
    pub fn numbers(&self, name: &str, count: usize) -> Vec<f64> {
        let parse = |text: &str| text.parse().unwrap_or_else(|_| panic!("{name}: `{text}`"));
        let found: Vec<f64> = self.text(name).split(';').map(parse).collect();
        if found.len() == 1 { vec![found[0]; count] } else { found }
    }

    /// The number in a cell, if it is not empty.
    pub fn number_if_any(&self, name: &str) -> Option<f64> {
        (!self.text(name).is_empty()).then(|| self.number(name))
    }

    pub fn count(&self, name: &str) -> u32 {
        let text = self.text(name);
        text.parse().unwrap_or_else(|_| panic!("{name}: expected a count, found `{text}`"))
    }
}
