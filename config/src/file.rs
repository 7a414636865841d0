//! Reads a configuration file: which keys it sets, in which lines.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use zbelastic_types::Bytes;

use super::assignment::{Assignment, Setting, SettingOrigin};
use super::find_key::{find_in_section, nearest_key};
use super::key::{Key, SECTIONS};
use super::nearest::nearest;
use super::problem::ConfigProblem;
use super::value::ConfigValue;

/// Bytes of a configuration at most. A longer file is not read any further.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The contents of a file, in the order of its lines: keys it sets, and problems.
pub type FileAssignments = Vec<Result<Assignment, ConfigProblem>>;

/// Reads `path`.
///
/// # Errors
/// If there is no such file, or if it is not TOML.
pub fn read_file(path: &Path) -> Result<FileAssignments, ConfigProblem> {
    let text = read_bounded(path)
        .map_err(|error| ConfigProblem::Unreadable { file: path.to_owned(), error })?;
    read_text(&path.display().to_string(), &text)
}

/// The text of a file that is not longer than any configuration.
pub fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let what = format!("more than {}, which no configuration has", Bytes(FILE_BYTES_MAX));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(text)
}

/// Reads `text`, which is called `file`.
pub fn read_text(file: &str, text: &str) -> Result<FileAssignments, ConfigProblem> {
    let lines = LineFinder { file, text };
    let table = DeTable::parse(text).map_err(|error| ConfigProblem::Syntax {
        at: lines.origin(error.span().unwrap_or(0..0)),
        message: error.message().to_owned(),
    })?;
    let mut assignments = Vec::new();
    for (section, content) in table.get_ref() {
        read_section(&lines, section.get_ref(), &section.span(), content, &mut assignments);
    }
    assignments.sort_by_key(|(offset, _)| *offset);
    Ok(assignments.into_iter().map(|(_, assignment)| assignment).collect())
}

struct LineFinder<'a> {
    file: &'a str,
    text: &'a str,
}

impl LineFinder<'_> {
    fn origin(&self, span: Range<usize>) -> SettingOrigin {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        SettingOrigin::File { file: self.file.to_owned(), line }
    }
}

/// Each with where it stands, to be put in order.
type PositionedAssignments = Vec<(usize, Result<Assignment, ConfigProblem>)>;

fn read_section(
    lines: &LineFinder<'_>,
    section: &str,
    span: &Range<usize>,
    content: &Spanned<DeValue<'_>>,
    assignments: &mut PositionedAssignments,
) {
    let at = lines.origin(span.clone());
    let is_known = SECTIONS.iter().any(|(name, _)| *name == section);
    let problem = match content.get_ref() {
        DeValue::Table(entries) if is_known => {
            for (key, value) in entries {
                let at = lines.origin(key.span());
                let value = ConfigValue::of(value.get_ref());
                let found = find_in_section(section, key.get_ref(), at.clone());
                let assign = |key| Assignment { key, setting: Setting { value, origin: at } };
                assignments.push((key.span().start, found.map(assign)));
            }
            return;
        }
        DeValue::Table(_) => {
            let nearest = nearest(section, SECTIONS.map(|(name, _)| name));
            ConfigProblem::UnknownSection { at, found: section.to_owned(), nearest }
        }
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_) => {
            let nearest = nearest_key(section, Key::ALL.iter().copied());
            ConfigProblem::NoSection { at, found: section.to_owned(), nearest }
        }
    };
    assignments.push((span.start, Err(problem)));
}
