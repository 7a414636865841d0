//! A row of a Parquet file as JSON, with the columns and the fields of a struct in the file's order.
//!
//! The crate's own conversion sorts the keys of a struct. A chat template that prints a message or a
//! tool would write another text then than for the same record in a file of JSON lines.

use parquet::record::{Field, Row};

/// The row as a JSON object.
pub(super) fn record(row: &Row) -> String {
    let mut json = String::new();
    write_row(row, &mut json);
    json
}

fn write_row(row: &Row, to: &mut String) {
    write_list('{', '}', row.get_column_iter(), to, |(name, value), to| {
        write_pair(name, value, to);
    });
}

fn write_pair(name: &str, value: &Field, to: &mut String) {
    to.push_str(&serde_json::Value::from(name).to_string());
    to.push(':');
    write_value(value, to);
}

fn write_value(value: &Field, to: &mut String) {
    if let Field::Group(row) = value {
        write_row(row, to);
    } else if let Field::ListInternal(list) = value {
        write_list('[', ']', list.elements(), to, write_value);
    } else if let Field::MapInternal(map) = value {
        write_list('{', '}', map.entries(), to, |(key, value), to| {
            let json = key.to_json_value();
            let name = json.as_str().map_or_else(|| json.to_string(), str::to_owned);
            write_pair(&name, value, to);
        });
    } else {
        to.push_str(&value.to_json_value().to_string());
    }
}

fn write_list<T>(
    open: char,
    close: char,
    items: impl IntoIterator<Item = T>,
    to: &mut String,
    mut write: impl FnMut(T, &mut String),
) {
    to.push(open);
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            to.push(',');
        }
        write(item, to);
    }
    to.push(close);
}
