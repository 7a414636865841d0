//! The inputs of each target, by the package that reads it.

pub mod certificates;
pub mod chaos;
pub mod checkpoint;
pub mod consensus;
pub mod data;
pub mod node;
pub mod page;
pub mod schedule;
pub mod tokenizer;
pub mod trainer;
pub mod transport;

use std::fmt::{Debug, Display};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tempfile::TempDir;

use crate::DecodeOutcome;

/// A text that is read as a `T` is written as one that is read as the same.
fn check_text<T: FromStr + Display + PartialEq + Debug>(text: &str) -> DecodeOutcome
where
    T::Err: Debug,
{
    let Ok(read) = text.parse::<T>() else { return DecodeOutcome::Refused };
    assert_eq!(read.to_string().parse::<T>().expect("it reads what it wrote"), read);
    DecodeOutcome::Accepted
}

/// The outcome of the first of `outcomes` that is not a refusal.
fn any<const N: usize>(outcomes: [DecodeOutcome; N]) -> DecodeOutcome {
    DecodeOutcome::of(outcomes.contains(&DecodeOutcome::Accepted))
}

thread_local! {
    static FOLDER: TempDir = tempfile::tempdir().expect("there is a folder for temporary files");
}

/// A folder of this thread, for readers of files.
fn folder() -> PathBuf {
    FOLDER.with(|folder| folder.path().to_owned())
}

/// A file of this thread's folder with these bytes.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder().join(name);
    write(&path, bytes);
    path
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("the folder can be written");
}
