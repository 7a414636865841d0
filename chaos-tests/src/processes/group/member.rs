//! One process of a group: started, signalled, and looked at.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use super::super::contract::{NodeSpec, end_of};
use super::super::events::{EVENTS_FILE, Event, EventKind, EventsError, Tail};
use super::super::system::Signal;

/// The exit code of a process that left in order.
const DRAINED: i32 = 75;
/// Bytes of a log that are looked at when its process ended by itself.
const LOG_BYTES_MAX: u64 = 4096;

/// How a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has no process and may get one.
    Down,
    /// Its process runs and is not to leave.
    Running,
    /// Its process stands still.
    Stopped,
    /// Its process was sent SIGTERM.
    Leaving,
    /// It has no process and gets none.
    Gone,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "down",
            Self::Running => "up",
            Self::Stopped => "stopped",
            Self::Leaving => "leaving",
            Self::Gone => "gone",
        })
    }
}

/// A process that ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surprise {
    /// Name of the member.
    pub name: String,
    /// The exit status, in words.
    pub status: String,
    /// Whether it panicked or died by a signal.
    pub is_crash: bool,
    /// The last that it printed.
    pub said: String,
}

impl fmt::Display for Surprise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ended by itself with {}: {}", self.name, self.status, self.said)
    }
}

/// A node of the group, with its process and its event file.
#[derive(Debug)]
pub struct Member {
    spec: NodeSpec,
    log: PathBuf,
    tail: Tail,
    events: Vec<Event>,
    process: Option<Child>,
    standing: Standing,
    /// Processes it has had.
    starts: usize,
    is_retired: bool,
    /// What happened to it that may have left a line half written.
    disturbances: u32,
}

impl Member {
    pub(super) fn new(spec: NodeSpec) -> Self {
        let tail = Tail::new(spec.data_dir.join(EVENTS_FILE));
        let log = spec.data_dir.with_extension("log");
        Self {
            spec,
            log,
            tail,
            events: Vec::new(),
            process: None,
            standing: Standing::Down,
            starts: 0,
            is_retired: false,
            disturbances: 0,
        }
    }

    pub(super) fn start(&mut self, mut command: Command) -> io::Result<()> {
        assert!(self.process.is_none(), "{} has a process", self.spec.name);
        let log = File::options().create(true).append(true).open(&self.log)?;
        command.stdout(log.try_clone()?).stderr(log);
        self.process = Some(command.spawn()?);
        self.starts += 1;
        self.standing = Standing::Running;
        Ok(())
    }

    /// A signal is about to be sent: what its process does then is no surprise.
    pub(super) fn expects(&mut self, signal: Signal) {
        self.disturbances += u32::from(signal == Signal::Kill);
        self.standing = match signal {
            Signal::Kill | Signal::Terminate => Standing::Leaving,
            Signal::Stop => Standing::Stopped,
            Signal::Continue if self.standing == Standing::Stopped => Standing::Running,
            Signal::Continue => self.standing,
        };
    }

    /// Waits until its process is gone.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        if let Some(mut process) = self.process.take() {
            process.wait()?;
        }
        self.standing = Standing::Down;
        Ok(())
    }

    pub(super) fn disturb(&mut self) {
        self.disturbances += 1;
    }

    pub(super) fn retire(&mut self) {
        self.is_retired = true;
    }

    /// Removes its data, but for its events.
    pub(super) fn clear(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.spec.data_dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                std::fs::remove_dir_all(entry.path())?;
            } else if entry.file_name() != EVENTS_FILE {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// What is new in its file.
    pub(super) fn read(&mut self) -> Result<Vec<Event>, EventsError> {
        let new = self.tail.poll()?;
        self.events.extend(new.iter().cloned());
        Ok(new)
    }

    /// Looks whether its process ended, and whether that is a surprise.
    pub(super) fn look(&mut self) -> io::Result<Option<Surprise>> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let Some(status) = process.try_wait()? else { return Ok(None) };
        let was_told = self.standing == Standing::Leaving;
        self.process = None;
        self.standing = Standing::Down;
        let is_expected = was_told
            && (status.code() == Some(DRAINED) || status.success() || self.ended_early(status));
        Ok((!is_expected).then(|| self.surprise(status)))
    }

    /// Whether it got SIGTERM before it could listen for it: then the system ends it.
    fn ended_early(&self, status: ExitStatus) -> bool {
        let is_start = |event: &&Event| matches!(event.kind, EventKind::Started { .. });
        status.signal() == Some(Signal::Terminate.number())
            && self.events.iter().filter(is_start).count() < self.starts
    }

    fn surprise(&self, status: ExitStatus) -> Surprise {
        /// A panic ends a node with the code of its own mistakes.
        const PANICKED: [i32; 2] = [1, 101];
        Surprise {
            name: self.spec.name.clone(),
            status: status.to_string(),
            is_crash: status.signal().is_some()
                || status.code().is_some_and(|code| PANICKED.contains(&code)),
            said: self.end_of_log().unwrap_or_else(|error| format!("its log: {error}")),
        }
    }

    fn end_of_log(&self) -> io::Result<String> {
        let mut file = File::open(&self.log)?;
        let from = file.metadata()?.len().saturating_sub(LOG_BYTES_MAX);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(end_of(&String::from_utf8_lossy(&bytes)))
    }

    /// What it was started as.
    #[must_use]
    pub const fn spec(&self) -> &NodeSpec {
        &self.spec
    }

    /// The number of its process, if it has one.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// How the member stands at present.
    #[must_use]
    pub fn standing(&self) -> Standing {
        if self.standing == Standing::Down && self.is_retired {
            return Standing::Gone;
        }
        self.standing
    }

    /// Every event that was read from its file so far.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// How often something happened to it that may have left a line half written.
    #[must_use]
    pub const fn disturbances(&self) -> u32 {
        self.disturbances
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // It may have ended in this moment.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
