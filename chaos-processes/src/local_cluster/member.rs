//! One process of a cluster: started, signalled, and polled.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use super::super::contract::{ProcessSpec, end_of};
use super::super::events::{EVENTS_FILE, EventFileError, FileTail, NodeEvent, NodeEventKind};
use super::super::system::ProcessSignal;

/// The exit code of a process that left in order.
const DRAINED: i32 = 75;
/// Bytes of a log that are looked at when its process ended by itself.
const LOG_BYTES_MAX: u64 = 4096;

/// Whether a member's process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessStatus {
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

impl fmt::Display for ProcessStatus {
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
pub struct UnexpectedExit {
    /// Name of the member.
    pub name: String,
    /// The exit status, in words.
    pub status: String,
    /// Whether it panicked or died by a signal.
    pub is_crash: bool,
    /// The end of its output.
    pub output: String,
}

impl fmt::Display for UnexpectedExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ended by itself with {}: {}", self.name, self.status, self.output)
    }
}

/// A node of the cluster, with its process and its event file.
#[derive(Debug)]
pub struct ClusterMember {
    spec: ProcessSpec,
    log: PathBuf,
    tail: FileTail,
    events: Vec<NodeEvent>,
    process: Option<Child>,
    status: ProcessStatus,
    /// Processes it has had.
    starts: usize,
    is_retired: bool,
    /// Disturbances, such as a kill, that may have left a line half written.
    disturbances: u32,
}

impl ClusterMember {
    pub(super) fn new(spec: ProcessSpec) -> Self {
        let tail = FileTail::new(spec.data_dir.join(EVENTS_FILE));
        let log = spec.data_dir.with_extension("log");
        Self {
            spec,
            log,
            tail,
            events: Vec::new(),
            process: None,
            status: ProcessStatus::Down,
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
        self.status = ProcessStatus::Running;
        Ok(())
    }

    /// A signal is about to be sent: the reaction of its process is then expected.
    pub(super) fn expects(&mut self, signal: ProcessSignal) {
        self.disturbances += u32::from(signal == ProcessSignal::Kill);
        self.status = match signal {
            ProcessSignal::Kill | ProcessSignal::Terminate => ProcessStatus::Leaving,
            ProcessSignal::Stop => ProcessStatus::Stopped,
            ProcessSignal::Continue if self.status == ProcessStatus::Stopped => {
                ProcessStatus::Running
            }
            ProcessSignal::Continue => self.status,
        };
    }

    /// Waits until its process is gone.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        if let Some(mut process) = self.process.take() {
            process.wait()?;
        }
        self.status = ProcessStatus::Down;
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

    /// The new events in its file.
    pub(super) fn read(&mut self) -> Result<Vec<NodeEvent>, EventFileError> {
        let new = self.tail.poll()?;
        self.events.extend(new.iter().cloned());
        Ok(new)
    }

    /// Looks whether its process ended, and whether that is a surprise.
    pub(super) fn poll_exit(&mut self) -> io::Result<Option<UnexpectedExit>> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let Some(status) = process.try_wait()? else { return Ok(None) };
        let was_told = self.status == ProcessStatus::Leaving;
        self.process = None;
        self.status = ProcessStatus::Down;
        let is_expected = was_told
            && (status.code() == Some(DRAINED) || status.success() || self.ended_early(status));
        Ok((!is_expected).then(|| self.unexpected_exit(status)))
    }

    /// Whether it got SIGTERM before it could listen for it: then the system ends it.
    fn ended_early(&self, status: ExitStatus) -> bool {
        let is_start = |event: &&NodeEvent| matches!(event.kind, NodeEventKind::Started { .. });
        status.signal() == Some(ProcessSignal::Terminate.number())
            && self.events.iter().filter(is_start).count() < self.starts
    }

    fn unexpected_exit(&self, status: ExitStatus) -> UnexpectedExit {
        /// A panic ends a node with the code of its own mistakes.
        const PANICKED: [i32; 2] = [1, 101];
        UnexpectedExit {
            name: self.spec.name.clone(),
            status: status.to_string(),
            is_crash: status.signal().is_some()
                || status.code().is_some_and(|code| PANICKED.contains(&code)),
            output: self.end_of_log().unwrap_or_else(|error| format!("its log: {error}")),
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

    /// The specification that it was started with.
    #[must_use]
    pub const fn spec(&self) -> &ProcessSpec {
        &self.spec
    }

    /// The number of its process, if it has one.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// How the member stands at present.
    #[must_use]
    pub fn status(&self) -> ProcessStatus {
        if self.status == ProcessStatus::Down && self.is_retired {
            return ProcessStatus::Gone;
        }
        self.status
    }

    /// Every event that was read from its file so far.
    #[must_use]
    pub fn events(&self) -> &[NodeEvent] {
        &self.events
    }

    /// How often something happened to it that may have left a line half written.
    #[must_use]
    pub const fn disturbances(&self) -> u32 {
        self.disturbances
    }
}

impl Drop for ClusterMember {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // It may have ended in this moment.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
