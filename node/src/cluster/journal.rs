//! Reports of a node: events in `events.jsonl` and for clients that request them, lines for its own
//! log.
//!
//! Nothing here is needed to continue: a disk that accepts no more lines, or a terminal that was
//! stopped, costs lines, and nothing else.

use std::io;
use std::path::Path;

use zbelastic_api::{ClusterEvent, EventKind, LogLine, ReportedEntries};
use zbelastic_policy::recent::Recent;
use zbelastic_timing::unix_ms;
use zbelastic_whole_file::{LineWriter, RotatedLines, last_lines};

/// Events kept in memory for clients that request them.
const EVENTS_KEPT: usize = 8192;
/// Log lines kept in memory for clients that request them.
const LINES_KEPT: usize = 2048;
/// Bytes of the file at most, some hundred thousand steps; the file before it is kept once, beside
/// it.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Bytes at the end of the file that are read at the start, for [`EVENTS_KEPT`] events of 1 KiB.
const HISTORY_BYTES_MAX: u64 = 8 << 20;

/// Where log lines are shown, beside being kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEcho {
    /// Lines are shown on standard error too.
    Yes,
    /// They are only kept.
    No,
}

/// The journal of a node.
pub struct Journal {
    number: u64,
    events: Recent<ClusterEvent>,
    /// The entries of the cluster's log whose events are in the file.
    recorded: ReportedEntries,
    lines: Recent<LogLine>,
    file: LineWriter,
    /// Writes to standard error.
    echo: Option<LineWriter>,
}

impl Journal {
    /// Begins to write behind the lines of the file at `path`, whose last events it remembers.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path, echo: LogEcho) -> io::Result<Self> {
        let mut file = RotatedLines::open(path, FILE_BYTES_MAX)?;
        let file = LineWriter::start("journal", move |line| {
            // A line that cannot be written is lost; the next one may fit again.
            let _ = file.write(line);
        })?;
        let echo = match echo {
            LogEcho::Yes => Some(LineWriter::start("log", |line| {
                zbelastic_wording::print_error_line(zbelastic_api::escape(line));
            })?),
            LogEcho::No => None,
        };
        let mut journal = Self {
            number: unix_ms(),
            events: Recent::new(EVENTS_KEPT),
            recorded: ReportedEntries::default(),
            lines: Recent::new(LINES_KEPT),
            file,
            echo,
        };
        for line in last_lines(path, HISTORY_BYTES_MAX) {
            let Ok(event) = serde_json::from_slice::<ClusterEvent>(&line) else { continue };
            if let Some(index) = event.log_index {
                journal.forget_beyond(index);
                journal.recorded.note(index);
            }
            journal.remember(event);
        }
        Ok(journal)
    }

    /// The log of the cluster goes up to `last_index` as it is opened. Of its entries that were
    /// applied before, no event is recorded again.
    pub fn continue_log(&mut self, last_index: u64) {
        self.forget_beyond(last_index);
        self.recorded.restart();
    }

    /// Forgets the events before this entry if they are of another log: that of the cluster that this
    /// one was recovered from went further.
    fn forget_beyond(&mut self, index: u64) {
        if self.recorded.index() > Some(index) {
            self.recorded = ReportedEntries::default();
            self.events = Recent::new(EVENTS_KEPT);
        }
    }

    /// Records an event of an entry that was applied, unless the file has it.
    pub fn record_entry(&mut self, index: u64, kind: EventKind) {
        if self.recorded.admit(index) {
            self.append(kind, Some(index));
        }
    }

    /// Records an event, in memory and in the file.
    pub fn record(&mut self, kind: EventKind) {
        self.append(kind, None);
    }

    fn append(&mut self, kind: EventKind, log_index: Option<u64>) {
        let event = ClusterEvent::new(self.events.next(), unix_ms(), kind).of_entry(log_index);
        if let Ok(line) = serde_json::to_string(&event) {
            self.file.write(line);
        }
        if !event.kind.is_step() {
            self.log(event.text.clone());
        }
        self.remember(event);
    }

    fn remember(&mut self, event: ClusterEvent) {
        self.events.push(ClusterEvent { sequence: self.events.next(), ..event });
    }

    /// Records a warning that an operator should look at.
    pub fn warn(&mut self, what: String) {
        self.record(EventKind::Warning { what });
    }

    /// Adds a line to this node's log.
    pub fn log(&mut self, text: String) {
        if let Some(echo) = &self.echo {
            echo.write(text.clone());
        }
        self.lines.push(LogLine { sequence: self.lines.next(), at_ms: unix_ms(), text });
    }

    /// Events from a sequence number on, with the oldest kept and the next one.
    pub fn events(&self, from: u64, max: usize) -> (u64, u64, Vec<ClusterEvent>) {
        self.events.page(from, max)
    }

    /// Distinguishes this journal from that of another node or an earlier start.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The number of the next event.
    #[must_use]
    pub fn next_event(&self) -> u64 {
        self.events.next()
    }

    /// Lines from a sequence number on, with the oldest kept and the next one.
    pub fn lines(&self, from: u64, max: usize) -> (u64, u64, Vec<LogLine>) {
        self.lines.page(from, max)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The indexes of all events that are remembered, after a controller has applied the entries from
    /// its snapshot on.
    fn remembered(path: &Path, last_index: u64, applied: &[u64]) -> Vec<Option<u64>> {
        let mut journal = Journal::open(path, LogEcho::No).expect("room");
        journal.continue_log(last_index);
        journal.record(EventKind::QuorumHeld);
        for index in applied {
            journal.record_entry(*index, EventKind::QuorumLost);
        }
        let (_, _, events) = journal.events(0, usize::MAX);
        assert!(events.iter().zip(0..).all(|(event, number)| event.sequence == number));
        events.iter().map(|event| event.log_index).collect()
    }

    #[test]
    fn a_controller_that_starts_again_records_no_entry_twice() {
        let line = |index| {
            let event = ClusterEvent::new(7, 1000, EventKind::QuorumLost).of_entry(Some(index));
            serde_json::to_string(&event).expect("JSON") + "\n"
        };
        let expect = |lines: &[u64], last_index, expected: &[Option<u64>]| {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("events.jsonl");
            let lines: String = lines.iter().map(|index| line(*index)).collect();
            fs::write(&path, lines + "torn\n").expect("written");
            assert_eq!(remembered(&path, last_index, &[4, 6, 6, 6, 9]), expected);
        };
        let anew = [None, Some(4), Some(6), Some(6), Some(6), Some(9)];
        expect(&[4, 6, 6], 6, &[Some(4), Some(6), Some(6), None, Some(6), Some(9)]);
        // Of another cluster, which this one was recovered from: alone, and before its own.
        expect(&[4, 6, 6], 5, &anew);
        expect(&[70, 90, 4, 6], 9, &[Some(4), Some(6), None, Some(6), Some(6), Some(9)]);
    }
}
