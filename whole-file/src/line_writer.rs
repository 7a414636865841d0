//! Lines that a thread writes, so that whoever has them never waits for a disk, or for the reader of
//! a pipe or a terminal that stands still.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Lines that wait at once; beyond it they are left out.
const LINES_WAITING_MAX: usize = 4096;
/// How long the last lines are waited for at the end: a reader that stands still does not keep a
/// process from ending.
const LAST_LINES_WITHIN: Duration = Duration::from_secs(1);

/// The thread that writes lines, and those that wait for it.
#[derive(Debug)]
pub struct LineWriter {
    /// Until the end.
    lines: Option<SyncSender<String>>,
    /// Its other end is dropped when everything is written.
    written: Receiver<()>,
}

impl LineWriter {
    /// Starts a thread that writes each line with `write`.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub fn start(name: &str, mut write: impl FnMut(&str) + Send + 'static) -> io::Result<Self> {
        let (lines, inbox) = sync_channel::<String>(LINES_WAITING_MAX);
        let (writing, written) = sync_channel::<()>(0);
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Ok(line) = inbox.recv() {
                write(&line);
            }
            drop(writing);
        })?;
        Ok(Self { lines: Some(lines), written })
    }

    /// Enqueues a line. It is left out if too many wait.
    pub fn write(&self, line: String) {
        let lines = self.lines.as_ref().expect("it is there until the end");
        let _ = lines.try_send(line);
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.lines = None;
        match self.written.recv_timeout(LAST_LINES_WITHIN) {
            Ok(()) | Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn all_lines_are_written_before_the_end() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let sink = written.clone();
        let writer = LineWriter::start("test", move |line: &str| {
            sink.lock().expect("no panic").push(line.to_owned());
        });
        let writer = writer.expect("a thread");
        let lines: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        lines.iter().for_each(|line| writer.write(line.clone()));
        drop(writer);
        assert_eq!(*written.lock().expect("no panic"), lines);
    }

    #[test]
    fn nobody_waits_for_a_reader_that_stands_still() {
        let (release, released) = sync_channel::<()>(0);
        let writer = LineWriter::start("test", move |_: &str| {
            let _ = released.recv();
        });
        let writer = writer.expect("a thread");
        for number in 0..2 * LINES_WAITING_MAX {
            writer.write(number.to_string());
        }
        drop(writer);
        drop(release);
    }
}
