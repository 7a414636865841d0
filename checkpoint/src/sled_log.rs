//! A log in sled. The code that makes it durable is in `sled_database`.
//!
//! The record with number n has the key `r n`, the oldest number that is kept the key `b`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::DatabaseFault;
use crate::files::FileSystem;
use crate::index::{Index, IndexChange};
use crate::log::{LogError, RecordLog, check_lengths, check_number};
use crate::sled_database::SledDatabase;
use crate::sled_rows::bad_row;

const RECORD_PREFIX: &[u8] = b"r";
const FIRST_KEY: &[u8] = b"b";

/// A log on a disk.
#[derive(Debug)]
pub struct SledLog {
    folder: PathBuf,
    database: SledDatabase,
    first: u64,
    next: u64,
}

impl SledLog {
    /// Whether a log was ever made in `folder`. A caller that knows that there must be one checks
    /// this before it opens the log, and so does not mistake an empty disk for a new one.
    ///
    /// # Errors
    /// If the files fail.
    pub fn is_there(files: &dyn FileSystem, folder: &Path) -> Result<bool, LogError> {
        let failed = |fault| LogError::Database { folder: folder.to_owned(), fault };
        SledDatabase::is_there(files, folder).map_err(failed)
    }

    /// Opens the log in `folder`, which is made if it is not there. Its parent must be there.
    ///
    /// # Errors
    /// If it is damaged, has lost something, is another's or of another version. Nothing is made
    /// anew in the place of something.
    pub fn open(files: Arc<dyn FileSystem>, folder: &Path) -> Result<Self, LogError> {
        let failed = |fault| LogError::Database { folder: folder.to_owned(), fault };
        let database = SledDatabase::open(files, folder).map_err(failed)?;
        let (first, next) = bounds(&database).map_err(failed)?;
        Ok(Self { folder: folder.to_owned(), database, first, next })
    }

    fn failed(&self, fault: DatabaseFault) -> LogError {
        LogError::Database { folder: self.folder.clone(), fault }
    }
}

impl RecordLog for SledLog {
    fn first(&self) -> u64 {
        self.first
    }

    fn next(&self) -> u64 {
        self.next
    }

    fn append(&mut self, records: &[Vec<u8>]) -> Result<(), LogError> {
        check_lengths(records)?;
        if records.is_empty() {
            return Ok(());
        }
        let numbered = (self.next..).zip(records);
        let changes: Vec<IndexChange> = numbered
            .map(|(n, value)| IndexChange::Put { key: key(n), value: value.clone() })
            .collect();
        self.database.commit(&changes).map_err(|fault| self.failed(fault))?;
        self.next += records.len() as u64;
        Ok(())
    }

    fn trim(&mut self, before: u64) -> Result<(), LogError> {
        check_number(before, self.first, self.next + 1)?;
        if before == self.first {
            return Ok(());
        }
        let removals = (self.first..before).map(|number| IndexChange::Remove { key: key(number) });
        let value = before.to_le_bytes().to_vec();
        let first = IndexChange::Put { key: FIRST_KEY.to_vec(), value };
        let changes: Vec<IndexChange> = removals.chain([first]).collect();
        self.database.change_later(&changes).map_err(|fault| self.failed(fault))?;
        self.first = before;
        Ok(())
    }

    fn cut_from(&mut self, number: u64) -> Result<(), LogError> {
        check_number(number, self.first, self.next)?;
        let changes: Vec<IndexChange> =
            (number..self.next).map(|number| IndexChange::Remove { key: key(number) }).collect();
        self.database.commit(&changes).map_err(|fault| self.failed(fault))?;
        self.next = number;
        Ok(())
    }

    fn read_all(&self) -> Result<Vec<(u64, Vec<u8>)>, LogError> {
        let rows = self.database.rows(RECORD_PREFIX).map_err(|fault| self.failed(fault))?;
        let mut records = Vec::with_capacity(rows.len());
        for ((key, value), expected) in rows.into_iter().zip(self.first..) {
            let found = number(&key).map_err(|fault| self.failed(fault))?;
            if found != expected {
                return Err(LogError::Gap { expected, found });
            }
            records.push((found, value));
        }
        let found = self.first + records.len() as u64;
        if found != self.next {
            return Err(LogError::Gap { expected: found, found: self.next });
        }
        Ok(records)
    }
}

fn bounds(database: &SledDatabase) -> Result<(u64, u64), DatabaseFault> {
    let first = match database.value(FIRST_KEY)? {
        Some(value) => {
            let bytes = value.try_into();
            u64::from_le_bytes(bytes.map_err(|_| bad_row(FIRST_KEY, "it is no number"))?)
        }
        None => 0,
    };
    let last = database.last_key(RECORD_PREFIX)?.map(|last| number(&last)).transpose()?;
    Ok((first, last.map_or(first, |last| last + 1)))
}

fn key(number: u64) -> Vec<u8> {
    [RECORD_PREFIX, &number.to_be_bytes()].concat()
}

fn number(key: &[u8]) -> Result<u64, DatabaseFault> {
    let bytes = key[RECORD_PREFIX.len()..].try_into();
    Ok(u64::from_be_bytes(bytes.map_err(|_| bad_row(key, "its key is no number"))?))
}
