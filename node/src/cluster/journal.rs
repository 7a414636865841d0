//! Reports of a node: events in `events.jsonl` and for clients that request them, lines for its own
//! log.
//!
//! Nothing here is needed to continue: a disk that accepts no more lines costs lines, and nothing
//! else.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use zbelastic_api::{ClusterEvent, EventKind, LogLine};
use zbelastic_whole_file::LineFile;

/// Events kept in memory for clients that request them.
const EVENTS_KEPT: usize = 8192;
/// Log lines kept in memory for clients that request them.
const LINES_KEPT: usize = 2048;
/// Lines that wait for the disk at once; beyond it they are left out of the file.
const LINES_WAITING_MAX: usize = 4096;
/// Bytes of the file at most, some hundred thousand steps; the file before it is kept once, beside
/// it.
const FILE_BYTES_MAX: u64 = 64 << 20;
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
    events: VecDeque<ClusterEvent>,
    next_event: u64,
    lines: VecDeque<LogLine>,
    next_line: u64,
    file: SyncSender<String>,
    echo: LogEcho,
}

impl Journal {
    /// Begins to write behind the lines of the file at `path`.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path, echo: LogEcho) -> io::Result<Self> {
        let file = LineFile::open(path, FILE_BYTES_MAX)?;
        let (lines, inbox) = sync_channel(LINES_WAITING_MAX);
        thread::Builder::new().name("journal".to_owned()).spawn(move || write_all(file, &inbox))?;
        Ok(Self {
            number: now_ms(),
            events: VecDeque::new(),
            next_event: 0,
            lines: VecDeque::new(),
            next_line: 0,
            file: lines,
            echo,
        })
    }

    /// Records an event, in memory and in the file.
    pub fn record(&mut self, kind: EventKind) {
        let event = ClusterEvent::new(self.next_event, now_ms(), kind);
        self.next_event += 1;
        if let Ok(line) = serde_json::to_string(&event) {
            let _ = self.file.try_send(line);
        }
        if !event.kind.is_step() {
            self.log(event.text.clone());
        }
        self.events.push_back(event);
        while self.events.len() > EVENTS_KEPT {
            self.events.pop_front();
        }
    }

    /// Records a warning that an operator should look at.
    pub fn warn(&mut self, what: String) {
        self.record(EventKind::Warning { what });
    }

    /// Adds a line to this node's log.
    pub fn log(&mut self, text: String) {
        if self.echo == LogEcho::Yes {
            let _ = writeln!(io::stderr(), "{}", zbelastic_api::escape(&text));
        }
        let line = LogLine { sequence: self.next_line, at_ms: now_ms(), text };
        self.next_line += 1;
        self.lines.push_back(line);
        while self.lines.len() > LINES_KEPT {
            self.lines.pop_front();
        }
    }

    /// Events from a sequence number on, with the oldest kept and the next one.
    pub fn events(&self, from: u64, max: usize) -> (u64, u64, Vec<ClusterEvent>) {
        let first = self.events.front().map_or(self.next_event, |event| event.sequence);
        let matching = self.events.iter().skip_while(|event| event.sequence < from);
        let events: Vec<ClusterEvent> = matching.take(max).cloned().collect();
        let next = events.last().map_or(from.max(first).min(self.next_event), |e| e.sequence + 1);
        (first, next, events)
    }

    /// Distinguishes this journal from that of another node or an earlier start.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The number of the next event.
    #[must_use]
    pub fn next_event(&self) -> u64 {
        self.next_event
    }

    /// Lines from a sequence number on, with the oldest kept and the next one.
    pub fn lines(&self, from: u64, max: usize) -> (u64, u64, Vec<LogLine>) {
        let first = self.lines.front().map_or(self.next_line, |line| line.sequence);
        let matching = self.lines.iter().skip_while(|line| line.sequence < from);
        let lines: Vec<LogLine> = matching.take(max).cloned().collect();
        let next = lines.last().map_or(from.max(first).min(self.next_line), |l| l.sequence + 1);
        (first, next, lines)
    }
}

fn write_all(mut file: LineFile, lines: &Receiver<String>) {
    while let Ok(line) = lines.recv() {
        // A line that cannot be written is lost; the next one may fit again.
        let _ = file.write(&line);
    }
}

/// The time of day, in milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// The time of day, in seconds since 1970.
#[must_use]
pub fn now_s() -> u64 {
    now_ms() / 1000
}
