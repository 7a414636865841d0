//! The log of a life: its digest always, its lines if there is a reader.

use std::sync::mpsc::SyncSender;

/// The log of a life, with its digest.
#[derive(Debug, Default)]
pub struct EventLog {
    digest: u64,
    reader: Option<SyncSender<String>>,
}

impl EventLog {
    /// A log of which only the digest is kept.
    #[must_use]
    pub fn quiet() -> Self {
        Self::default()
    }

    /// A log that sends its lines to a reader as they come. Nothing more is sent to a reader that
    /// is gone, and the life is the same.
    #[must_use]
    pub fn with_reader(reader: SyncSender<String>) -> Self {
        Self { reader: Some(reader), ..Self::default() }
    }

    /// Adds a number to the digest.
    pub fn mix(&mut self, number: u64) {
        self.digest = crate::digest_model::mix(self.digest, number);
    }

    /// Adds a line. Its bytes are in the digest, with or without a reader.
    pub fn line(&mut self, line: impl FnOnce() -> String) {
        let line = line();
        for bytes in line.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.mix(u64::from_le_bytes(word));
        }
        self.reader.take_if(|reader| reader.send(line).is_err());
    }

    /// The digest of everything so far.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }
}
