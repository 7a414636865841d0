//! A log in sled, made durable by a sync of our own.
use std::path::Path;
use std::sync::Arc;

use crate::error::LogError;
use crate::files::Files;
use crate::log::RecordLog;

/// A log on a disk.
#[derive(Debug)]
pub struct SledLog {
    _private: (),
}

impl SledLog {
    /// Opens the log in `folder`, which is made if it is not there.
    ///
    /// # Errors
    /// If it is damaged, another's, or written by another version. Nothing is made anew.
    pub fn open(_files: Arc<dyn Files>, _folder: &Path) -> Result<Self, LogError> {
        Ok(Self { _private: () })
    }
}

impl RecordLog for SledLog {
    fn first(&self) -> u64 {
        0
    }
    fn next(&self) -> u64 {
        0
    }
    fn append(&mut self, _records: &[Vec<u8>]) -> Result<(), LogError> {
        unreachable!("follows")
    }
    fn trim(&mut self, _before: u64) -> Result<(), LogError> {
        unreachable!("follows")
    }
    fn cut_from(&mut self, _number: u64) -> Result<(), LogError> {
        unreachable!("follows")
    }
    fn read_all(&self) -> Result<Vec<(u64, Vec<u8>)>, LogError> {
        unreachable!("follows")
    }
}
