//! A log in memory, which ends with the process.

use std::collections::VecDeque;

use crate::log::{LogError, RecordLog, check_lengths, check_number};

/// A log in memory: for tests, and the model that others are compared with.
#[derive(Clone, Debug, Default)]
pub struct MemoryLog {
    first: u64,
    records: VecDeque<Vec<u8>>,
}

impl MemoryLog {
    /// A log without records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl RecordLog for MemoryLog {
    fn first(&self) -> u64 {
        self.first
    }

    fn next(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    fn append(&mut self, records: &[Vec<u8>]) -> Result<(), LogError> {
        check_lengths(records)?;
        self.records.extend(records.iter().cloned());
        Ok(())
    }

    fn trim(&mut self, before: u64) -> Result<(), LogError> {
        check_number(before, self.first, self.next() + 1)?;
        self.records.drain(..(before - self.first) as usize);
        self.first = before;
        Ok(())
    }

    fn cut_from(&mut self, number: u64) -> Result<(), LogError> {
        check_number(number, self.first, self.next())?;
        self.records.truncate((number - self.first) as usize);
        Ok(())
    }

    fn read_all(&self) -> Result<Vec<(u64, Vec<u8>)>, LogError> {
        Ok((self.first..).zip(self.records.iter().cloned()).collect())
    }
}
