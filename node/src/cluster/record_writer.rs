//! The thread that writes a controller's records. Records that wait while a write is under way are
//! written with the next one, so that a busy controller pays for one synchronisation, not for many.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use tokio::sync::mpsc;
use zbelastic_checkpoint::{LogError, RecordLog};
use zbelastic_consensus::raft::{PersistToken, RaftRecord, RecordNumber, encode_record};

/// Writes that wait at once: more than a controller has under way before it steps down.
const WRITES_MAX: usize = 1024;

/// A command to the thread.
enum RecordCommand {
    Persist { token: PersistToken, records: Vec<RaftRecord> },
    Trim { before: RecordNumber },
}

/// The outcome of a write to the log.
#[derive(Debug)]
pub enum RecordWriteReport {
    /// The records are durable, and those before them.
    Durable(PersistToken),
    /// The log accepts no more. Records that were not reported are not durable.
    Failed(LogError),
}

/// The records of a controller.
pub struct RecordWriter {
    commands: SyncSender<RecordCommand>,
}

/// Too many writes wait: the disk does not keep up.
#[derive(Debug, thiserror::Error)]
#[error("{WRITES_MAX} writes to the log wait for the disk")]
pub struct RecordWriterBusy;

impl RecordWriter {
    /// Starts the thread that writes records.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(
        log: impl RecordLog + 'static,
    ) -> std::io::Result<(Self, mpsc::Receiver<RecordWriteReport>)> {
        let (commands, inbox) = sync_channel(WRITES_MAX);
        let (reports, outbox) = mpsc::channel(WRITES_MAX);
        // The core counts from the oldest record it was given, the log from the first ever written.
        let base = log.first();
        let work = move || run_writer(log, base, &inbox, &reports);
        thread::Builder::new().name("log".to_owned()).spawn(work)?;
        Ok((Self { commands }, outbox))
    }

    /// Makes records durable, behind those before.
    ///
    /// # Errors
    /// If too many wait.
    pub fn persist(
        &self,
        token: PersistToken,
        records: Vec<RaftRecord>,
    ) -> Result<(), RecordWriterBusy> {
        self.send(RecordCommand::Persist { token, records })
    }

    /// Removes records before this one.
    ///
    /// # Errors
    /// If too many wait.
    pub fn trim(&self, before: RecordNumber) -> Result<(), RecordWriterBusy> {
        self.send(RecordCommand::Trim { before })
    }

    fn send(&self, command: RecordCommand) -> Result<(), RecordWriterBusy> {
        match self.commands.try_send(command) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(RecordWriterBusy),
        }
    }
}

fn run_writer(
    mut log: impl RecordLog,
    base: u64,
    commands: &Receiver<RecordCommand>,
    reports: &mpsc::Sender<RecordWriteReport>,
) {
    while let Ok(first) = commands.recv() {
        let mut tokens = Vec::new();
        let mut bytes = Vec::new();
        let mut trim = None;
        for command in std::iter::once(first).chain(commands.try_iter()) {
            match command {
                RecordCommand::Persist { token, records } => {
                    tokens.push(token);
                    bytes.extend(records.iter().map(encode_record));
                }
                RecordCommand::Trim { before } => trim = Some(before),
            }
        }
        let written = if bytes.is_empty() { Ok(()) } else { log.append(&bytes) };
        let written =
            written.and_then(|()| trim.map_or(Ok(()), |before| log.trim(base + before.0)));
        let reports_due = match written {
            Ok(()) => tokens.into_iter().map(RecordWriteReport::Durable).collect(),
            Err(error) => vec![RecordWriteReport::Failed(error)],
        };
        let is_over = matches!(reports_due.first(), Some(RecordWriteReport::Failed(_)));
        for report in reports_due {
            if reports.blocking_send(report).is_err() {
                return;
            }
        }
        if is_over {
            return;
        }
    }
}
