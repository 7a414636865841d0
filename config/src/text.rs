//! Gathers the text to train on: files, folders and globs become one run of bytes.
//!
//! The same entries over the same files give the same bytes on every machine: files come entry by
//! entry, within an entry in the order of their paths, and each file once. Between two files stands
//! a newline if the first does not end with one.

pub mod builtin;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use glob::MatchOptions;
use zbelastic_types::Bytes;

use zbelastic_wording::FailureDetail;

/// Most text of one run. All of it is kept in memory; a larger one is a mistake in a path more
/// often than not.
pub const TEXT_BYTES_MAX: Bytes = Bytes(4 << 30);

/// Text and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainingText {
    /// The files' bytes, one after the other.
    pub bytes: Vec<u8>,
    /// The files, in the order of their bytes.
    pub files: Vec<TextFile>,
    /// Files of folders and globs that were left out because they are not UTF-8.
    pub skipped: Vec<PathBuf>,
    /// BLAKE3 of the bytes.
    pub hash: blake3::Hash,
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFile {
    /// Path of the file, as it was named or found.
    pub path: PathBuf,
    /// Bytes read from it.
    pub size: Bytes,
    /// How the file is read, where a reader may expect something else.
    pub note: Option<&'static str>,
}

/// Forms that have more in them than the text they carry, by the end of a name.
const FORMS: [&str; 4] = ["jsonl", "json", "csv", "tsv"];

/// A warning about a file that was named, if there is a reason for one. Of folders and globs, only
/// text is read.
fn note_on(path: &Path, content: &[u8]) -> Option<&'static str> {
    let extension =
        path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    if str::from_utf8(content).is_err() {
        Some("is not UTF-8: its bytes are trained on as they are, not unpacked and not decoded")
    } else if extension.is_some_and(|extension| FORMS.contains(&&*extension)) {
        Some("is trained on as it stands, names of fields and marks included")
    } else {
        None
    }
}

/// Why an entry gives no text.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// There is no such file or folder, and it is no glob.
    #[error("{entry} does not exist")]
    NotFound {
        /// The entry of the list of texts, as it was typed.
        entry: String,
    },
    /// It lies on another machine, and bytes are read from this one's files.
    #[error("{entry} is an address, and data.tokenizer = \"bytes\" reads files of this machine")]
    Remote {
        /// The entry of the list of texts, as it was typed.
        entry: String,
    },
    /// A file or folder cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// It is no glob either.
    #[error("{entry} is no glob: {}", source.msg)]
    Glob {
        /// The entry of the list of texts, as it was typed.
        entry: String,
        /// Why it is no glob pattern.
        source: glob::PatternError,
    },
    /// A folder or glob has no file of text.
    #[error("{entry} has no file of text")]
    NothingMatched {
        /// The entry of the list of texts, as it was typed.
        entry: String,
    },
    /// All that was found has no bytes.
    #[error("{entry} is empty")]
    Empty {
        /// The entry of the list of texts, as it was typed.
        entry: String,
    },
    /// There is too much.
    #[error("the text is larger than {max}")]
    TooLarge {
        /// The most bytes that a text may have.
        max: Bytes,
    },
}

impl TextError {
    /// The error as it is printed; `place` is where the entries were named.
    #[must_use]
    pub fn detail(&self, place: &str) -> FailureDetail {
        let detail = FailureDetail::new(format!("data.text: {self}")).at(place);
        match self {
            Self::NotFound { .. } => {
                detail.hint("a path seen from the working folder, or a glob such as 'docs/**/*.md'")
            }
            Self::Remote { entry } => detail
                .why("text that is read as bytes is kept in memory; a token store may come from anywhere")
                .hint(format!(
                    "`zbelastic data prepare '{entry}' --tokenizer bytes --to STORE`, then --tokens STORE; \
                     or name a tokenizer, and the run makes the store"
                )),
            Self::Unreadable { .. } => {
                detail.hint("a file that this user may read, or leave it out")
            }
            Self::Glob { .. } => detail.hint("* for any name, ** for any folders, ? for a letter"),
            Self::NothingMatched { .. } => detail
                .why("hidden files and files that are not UTF-8 are left out of folders and globs")
                .hint("name a file itself, or another folder"),
            Self::Empty { .. } => {
                detail.why("there is nothing in it to learn").hint("a text of some thousand bytes")
            }
            Self::TooLarge { .. } => detail
                .why("a run keeps its text in memory")
                .hint("fewer files; `zbelastic config show` prints the entries"),
        }
    }
}

/// Gathers the text of `entries`, which are files, folders or globs. A file that is named may hold
/// any bytes; of folders and globs only UTF-8 is read.
///
/// # Errors
/// With everything that is wrong, entry by entry.
pub fn gather(entries: &[String]) -> Result<TrainingText, Vec<TextError>> {
    gather_within(entries, TEXT_BYTES_MAX)
}

fn gather_within(entries: &[String], max: Bytes) -> Result<TrainingText, Vec<TextError>> {
    let mut collector = TextCollector { max, ..TextCollector::default() };
    let mut errors = Vec::new();
    for entry in entries {
        match collector.take_entry(entry) {
            Ok(()) => {}
            Err(error @ TextError::TooLarge { .. }) => {
                errors.push(error);
                break;
            }
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let TextCollector { bytes, files, skipped, .. } = collector;
    Ok(TrainingText { hash: blake3::hash(&bytes), bytes, files, skipped })
}

#[derive(Default)]
struct TextCollector {
    max: Bytes,
    bytes: Vec<u8>,
    files: Vec<TextFile>,
    skipped: Vec<PathBuf>,
    /// The files so far by canonical path. A file that was read twice could stand in the part to
    /// train on and in the part that is held out.
    known: BTreeMap<PathBuf, Bytes>,
}

/// How a file came to be read.
#[derive(Clone, Copy, PartialEq)]
enum FileSelection {
    Named,
    /// In a folder or by a glob.
    Matched,
}

impl TextCollector {
    fn take_entry(&mut self, entry: &str) -> Result<(), TextError> {
        let path = Path::new(entry);
        if path.is_dir() {
            let mut files = Vec::new();
            list_folder(path, &mut files)?;
            return self.take_matched(entry, files);
        }
        let exists = path.try_exists();
        let unreadable = |source| TextError::Unreadable { path: path.to_owned(), source };
        if exists.map_err(unreadable)? {
            let size = self.take_file(path.to_owned(), FileSelection::Named)?;
            return not_empty(entry, size);
        }
        if entry.contains(['*', '?', '[']) {
            return self.take_matched(entry, list_glob(entry)?);
        }
        let entry = entry.to_owned();
        Err(match entry.contains("://") {
            true => TextError::Remote { entry },
            false => TextError::NotFound { entry },
        })
    }

    fn take_matched(&mut self, entry: &str, mut files: Vec<PathBuf>) -> Result<(), TextError> {
        files.sort();
        let mut taken = 0;
        let mut total = Bytes(0);
        for path in files {
            let before = self.skipped.len();
            total += self.take_file(path, FileSelection::Matched)?;
            taken += usize::from(self.skipped.len() == before);
        }
        if taken == 0 {
            return Err(TextError::NothingMatched { entry: entry.to_owned() });
        }
        not_empty(entry, total)
    }

    /// The size of the file, as far as it is text.
    fn take_file(&mut self, path: PathBuf, found: FileSelection) -> Result<Bytes, TextError> {
        // A file without a canonical path, such as a pipe, is known by the path it has.
        let canonical = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        if let Some(size) = self.known.get(&canonical) {
            return Ok(*size);
        }
        let newline: &[u8] =
            if self.bytes.last().is_none_or(|b| *b == b'\n') { b"" } else { b"\n" };
        let space = self.max.0.saturating_sub((self.bytes.len() + newline.len()) as u64);
        let content = read_at_most(&path, space)
            .map_err(|source| TextError::Unreadable { path: path.clone(), source })?;
        let size = Bytes(content.len() as u64);
        if size.0 > space {
            return Err(TextError::TooLarge { max: self.max });
        }
        if found == FileSelection::Matched && str::from_utf8(&content).is_err() {
            self.skipped.push(path);
            return Ok(Bytes(0));
        }
        self.bytes.extend(newline.iter().chain(&content));
        self.known.insert(canonical, size);
        let note = if found == FileSelection::Named { note_on(&path, &content) } else { None };
        self.files.push(TextFile { path, size, note });
        Ok(size)
    }
}

fn not_empty(entry: &str, size: Bytes) -> Result<(), TextError> {
    if size == Bytes(0) { Err(TextError::Empty { entry: entry.to_owned() }) } else { Ok(()) }
}

/// Reads one byte more than `space`, so that a file that does not fit, or has no end, is noticed.
fn read_at_most(path: &Path, space: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(space + 1).read_to_end(&mut content)?;
    Ok(content)
}

/// Every file below `folder`, without hidden ones. Links to folders are not followed, so there is
/// no way round in a circle.
fn list_folder(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), TextError> {
    let unreadable = |source| TextError::Unreadable { path: folder.to_owned(), source };
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        if entry.file_type().map_err(unreadable)?.is_dir() {
            list_folder(&path, files)?;
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// The files that a glob matches; a wildcard matches no hidden name.
fn list_glob(pattern: &str) -> Result<Vec<PathBuf>, TextError> {
    let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::new() };
    let paths = glob::glob_with(pattern, options)
        .map_err(|source| TextError::Glob { entry: pattern.to_owned(), source })?;
    let mut files = Vec::new();
    for path in paths {
        let path = path.map_err(|error| TextError::Unreadable {
            path: error.path().to_owned(),
            source: error.into(),
        })?;
        if path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tempfile::TempDir;
    use zbelastic_types::Bytes;

    use super::{TextError, TrainingText, gather, gather_within};

    /// A folder with these files.
    fn folder(files: &[(&str, &[u8])]) -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, content) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("folders");
            fs::write(path, content).expect("a file");
        }
        folder
    }

    fn entries(folder: &TempDir, names: &[&str]) -> Vec<String> {
        names.iter().map(|name| folder.path().join(name).display().to_string()).collect()
    }

    fn gather_from(folder: &TempDir, names: &[&str]) -> Result<TrainingText, Vec<TextError>> {
        gather(&entries(folder, names))
    }

    /// The errors with paths relative to `folder`.
    fn check_wrong(folder: &TempDir, names: &[&str], expected: &[&str]) {
        let errors = gather_from(folder, names).expect_err("there is no text");
        let root = format!("{}/", folder.path().display());
        let found: Vec<String> =
            errors.iter().map(|error| error.to_string().replace(&root, "")).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn files_are_joined_by_newlines_in_a_fixed_order() {
        let files: [(&str, &[u8]); 5] = [
            ("b.txt", b"two"),
            ("a/z.txt", b"one\n"),
            ("c.txt", b"three"),
            ("a/empty.txt", b""),
            ("last.md", b"end"),
        ];
        let folder = folder(&files);
        let text = gather_from(&folder, &["last.md", "."]).expect("text");
        assert_eq!(text.bytes, b"end\none\ntwo\nthree");
        assert_eq!(text.hash, blake3::hash(&text.bytes));
        let sizes: Vec<_> = text.files.iter().map(|file| file.size.0).collect();
        assert_eq!(sizes, [3, 0, 4, 3, 5]);
        let matched = gather_from(&folder, &["*.txt"]).expect("text");
        assert_eq!(matched.bytes, b"two\nthree");
        assert_ne!(matched.hash, text.hash);
        let deep = gather_from(&folder, &["**/*.txt"]).expect("text");
        assert_eq!(deep.bytes, b"one\ntwo\nthree");
    }

    #[test]
    fn a_file_is_read_once() {
        let folder = folder(&[("a.txt", b"a\n"), ("b.txt", b"b\n")]);
        let text = gather_from(&folder, &["b.txt", ".", "*.txt", "a.txt"]).expect("text");
        assert_eq!(text.bytes, b"b\na\n");
        assert_eq!(text.files.len(), 2);
    }

    #[test]
    fn hidden_and_foreign_files_are_left_out_of_folders_but_not_when_named() {
        let files: [(&str, &[u8]); 4] = [
            ("a.txt", b"a"),
            (".hidden", b"h"),
            (".git/config", b"g"),
            ("picture.png", &[0x89, b'P', 0xff]),
        ];
        let folder = folder(&files);
        let text = gather_from(&folder, &["."]).expect("text");
        assert_eq!(text.bytes, b"a");
        assert_eq!(text.skipped, [folder.path().join("./picture.png")]);
        assert_eq!(gather_from(&folder, &["*"]).expect("text").bytes, b"a");
        assert!(text.files.iter().all(|file| file.note.is_none()));
        let named = gather_from(&folder, &["picture.png", ".hidden"]).expect("text");
        assert!(named.files[0].note.is_some_and(|note| note.starts_with("is not UTF-8")));
        assert_eq!(named.files[1].note, None);
        assert_eq!(named.bytes, [0x89, b'P', 0xff, b'\n', b'h']);
    }

    #[test]
    fn a_named_file_of_fields_is_read_as_it_stands_and_says_so() {
        let folder = folder(&[("a.JSONL", b"{}\n"), ("b.txt", b"b")]);
        let text = gather_from(&folder, &["a.JSONL", "b.txt"]).expect("text");
        let notes: Vec<bool> = text.files.iter().map(|file| file.note.is_some()).collect();
        assert_eq!(notes, [true, false]);
    }

    #[test]
    fn everything_wrong_is_reported_at_once() {
        let folder = folder(&[("empty.txt", b""), ("sub/.hidden", b"h"), ("x.bin", &[0xff])]);
        let names =
            ["missing.txt", "s3://b/c", "empty.txt", "sub", "*.md", "*.bin", "a[", "empty*"];
        check_wrong(
            &folder,
            &names,
            &[
                "missing.txt does not exist",
                "s3://b/c is an address, and data.tokenizer = \"bytes\" reads files of this machine",
                "empty.txt is empty",
                "sub has no file of text",
                "*.md has no file of text",
                "*.bin has no file of text",
                "a[ is no glob: invalid range pattern",
                "empty* is empty",
            ],
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_file_that_cannot_be_read_is_named() {
        // Not even root can read the first page of a process.
        let errors = gather(&["/proc/self/mem".to_owned()]).expect_err("unreadable");
        assert!(
            matches!(&errors[..], [TextError::Unreadable { path, .. }] if path == Path::new("/proc/self/mem"))
        );
    }

    #[test]
    fn there_is_a_limit() {
        let folder = folder(&[("a.txt", b"1234"), ("b.txt", b"5678")]);
        let gather = |max| gather_within(&entries(&folder, &["."]), Bytes(max));
        assert_eq!(gather(9).expect("a newline between them").bytes, b"1234\n5678");
        assert!(matches!(gather(8).expect_err("one less")[..], [TextError::TooLarge { .. }]));
        let endless = gather_within(&["/dev/zero".to_owned()], Bytes(100)).expect_err("no end");
        assert!(matches!(endless[..], [TextError::TooLarge { .. }]));
    }
}
