//! The processes of a run: started, watched, started again, ended with the run.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use zbelastic_config::size_text;
use zbelastic_machine::DeviceSelector;
use zbelastic_node::cluster::signals::LIFELINE_VARIABLE;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_node_folder::node_record::NodeRecord;
use zbelastic_types::Bytes;
use zbelastic_whole_file as whole_file;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::poll_pace::POLL_PAUSE;
use crate::run_files::CLUSTER;

/// A process that ends by itself so often without a step sealed in between is not started again.
/// One that is killed always is: that is the purpose of a run in processes.
const DEATHS_MAX: u32 = 5;
/// The folder of the controller, and its name.
const CONTROLLER: &str = "controller";
/// Processes of a run that was killed let go of its port within this.
const PORT_WITHIN: Duration = Duration::from_secs(5);
/// How often they are checked for it.
const PORT_PAUSE: Duration = Duration::from_millis(50);
/// Lines of a log that a failure quotes.
const LAST_LINES: usize = 6;
/// Bytes of a log that are read for them: lines of up to 10 KiB.
const LAST_LINES_BYTES_MAX: u64 = 64 << 10;
/// Bytes of a process's log, some 100,000 lines. As many of those before lie beside it.
const LOG_BYTES_MAX: u64 = 16 << 20;

struct ChildProcess {
    child: Child,
    /// How often it ended by itself since a step was sealed.
    deaths: u32,
    program: LaunchSpec,
}

/// The arguments that a process is started with.
#[derive(Clone)]
struct LaunchSpec {
    arguments: Vec<String>,
    /// The token that it joins with.
    token: Option<String>,
}

fn worker_name(number: u32) -> String {
    format!("worker-{number}")
}

/// The devices that workers compute on.
pub struct WorkerDevices {
    /// Threads that compute, in each.
    pub threads: usize,
    /// NVIDIA devices, dealt out in turn; none for the CPU.
    pub devices: Vec<usize>,
    /// Memory that each may use of its device, for they do not know of each other.
    pub memory: Option<Bytes>,
    /// Token stores of the run, which they read where they lie.
    pub stores: Vec<PathBuf>,
}

impl WorkerDevices {
    /// Arguments that give the worker of this number, counted from 0, its device and its part of
    /// it.
    fn device_arguments(&self, number: usize) -> Vec<String> {
        if self.devices.is_empty() {
            return Vec::new();
        }
        let device = DeviceSelector::Cuda(self.devices[number % self.devices.len()]);
        let mut arguments = vec!["--device".to_owned(), device.to_string()];
        if let Some(memory) = self.memory {
            arguments.extend(["--memory".to_owned(), size_text(memory)]);
        }
        arguments
    }
}

/// The processes of a run.
pub struct ChildProcesses {
    program: PathBuf,
    folder: PathBuf,
    address: String,
    workers: WorkerDevices,
    processes: BTreeMap<String, ChildProcess>,
}

impl ChildProcesses {
    /// No processes yet; their folders will lie in `folder`.
    ///
    /// # Errors
    /// If there is no place or no port for them.
    pub fn new(folder: &Path, workers: WorkerDevices) -> Result<Self, CommandFailure> {
        let folder = folder.join(CLUSTER);
        let wrong =
            |error: io::Error| CommandFailure::new(FailureCode::OutOfResource, error.to_string());
        fs::create_dir_all(&folder).map_err(wrong)?;
        let program = std::env::current_exe().map_err(wrong)?;
        // Processes that were interrupted know their controller by the address it had.
        let held = NodeDataFolder::new(folder.join(CONTROLLER)).identity();
        let address = match NodeRecord::load(&held) {
            Ok(Some(node_record)) => await_port(node_record.bind)?,
            Ok(None) => UdpSocket::bind("127.0.0.1:0")
                .and_then(|socket| socket.local_addr())
                .map_err(wrong)?,
            Err(error) => {
                return Err(CommandFailure::new(FailureCode::WrongState, error.to_string()));
            }
        };
        let address = address.to_string();
        Ok(Self { program, folder, address, workers, processes: BTreeMap::new() })
    }

    /// Where the controller is reached.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// Data folder of the controller.
    #[must_use]
    pub fn controller(&self) -> NodeDataFolder {
        NodeDataFolder::new(self.folder.join(CONTROLLER))
    }

    /// The folder of the run.
    #[must_use]
    pub fn run_folder(&self) -> &Path {
        self.folder.parent().unwrap_or(&self.folder)
    }

    /// Starts the controller's process.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_controller(&mut self) -> Result<(), CommandFailure> {
        let address = self.address.clone();
        let arguments = ["init", "--name", "train", "--bind", &address, "--advertise", &address];
        let arguments = arguments.map(str::to_owned).to_vec();
        self.start(CONTROLLER, LaunchSpec { arguments, token: None })
    }

    /// Whether a worker has not joined yet, and needs a token.
    #[must_use]
    pub fn is_new(&self, number: u32) -> bool {
        let held = NodeDataFolder::new(self.folder.join(worker_name(number))).identity();
        !matches!(NodeRecord::load(&held), Ok(Some(_)))
    }

    /// Starts a worker, with a token if it is new. The token is the first line of its standard
    /// input, a pipe that no other process has; command lines all users of the machine can read.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_worker(
        &mut self,
        number: u32,
        token: Option<String>,
    ) -> Result<(), CommandFailure> {
        let address = self.address.clone();
        let threads = self.workers.threads.to_string();
        let name = worker_name(number);
        let arguments = [
            "join",
            "--cluster",
            &address,
            "--name",
            &name,
            "--threads",
            &threads,
            "--bind",
            "127.0.0.1:0",
            "--spot",
            "none",
        ];
        let mut arguments = arguments.map(str::to_owned).to_vec();
        arguments.extend(self.workers.device_arguments(number as usize - 1));
        for store in &self.workers.stores {
            arguments.extend(["--data-path".to_owned(), store.display().to_string()]);
        }
        if token.is_some() {
            arguments.extend(["--token-file", "-"].map(str::to_owned));
        }
        self.start(&name, LaunchSpec { arguments, token })
    }

    fn start(&mut self, name: &str, program: LaunchSpec) -> Result<(), CommandFailure> {
        let child = self.spawn(name, &program)?;
        let process = ChildProcess { child, deaths: 0, program };
        self.processes.insert(name.to_owned(), process);
        Ok(())
    }

    fn spawn(&self, name: &str, program: &LaunchSpec) -> Result<Child, CommandFailure> {
        let wrong = |error: io::Error| {
            let what = format!("cannot start the process of {name}: {error}");
            CommandFailure::new(FailureCode::OutOfResource, what)
        };
        let log = self.log_path(name);
        let log = whole_file::open_to_append(&log).map_err(wrong)?;
        let mut command = Command::new(&self.program);
        command
            .args(&program.arguments)
            .arg("--data-dir")
            .arg(self.folder.join(name))
            // It ends when this process does, however that ends: its standard input is closed then.
            .env(LIFELINE_VARIABLE, "stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            // Ctrl-C at the terminal is this process's to pass on.
            .process_group(0);
        let mut child = command.spawn().map_err(wrong)?;
        if let (Some(stdin), Some(token)) = (&mut child.stdin, &program.token) {
            // A process that has already ended is found by the next look at all of them.
            let _ = writeln!(stdin, "{token}");
        }
        Ok(child)
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// Starts again every process that has ended.
    ///
    /// # Errors
    /// If one ends again and again.
    pub fn restart_ended(&mut self) -> Result<(), CommandFailure> {
        let names: Vec<String> = self.processes.keys().cloned().collect();
        for name in names {
            // A log that cannot be bounded now is looked at again.
            let _ = whole_file::rotate_appended(&self.log_path(&name), LOG_BYTES_MAX);
            let process = self.processes.get_mut(&name).expect("it was listed");
            // A process with an unreadable state is as good as running.
            let Ok(Some(status)) = process.child.try_wait() else { continue };
            let deaths = process.deaths + u32::from(status.signal().is_none());
            if deaths > DEATHS_MAX {
                let mut failure = ends_again_and_again(&name, status);
                failure.details.extend(self.log_lines_of(&name));
                return Err(failure);
            }
            let program = process.program.clone();
            let child = self.spawn(&name, &program)?;
            self.processes.insert(name, ChildProcess { child, deaths, program });
        }
        Ok(())
    }

    /// Waits, and starts processes that end meanwhile again as soon as with the shortest pause.
    ///
    /// # Errors
    /// As [`Self::restart_ended`].
    pub fn attend(&mut self, pause: Duration) -> Result<(), CommandFailure> {
        let until = Instant::now() + pause;
        while let left = until.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            thread::sleep(left.min(POLL_PAUSE));
            self.restart_ended()?;
        }
        Ok(())
    }

    /// A step was sealed: a process that ends from now on does not end again and again.
    pub fn note_sealed(&mut self) {
        self.processes.values_mut().for_each(|process| process.deaths = 0);
    }

    /// The last log lines of the processes.
    #[must_use]
    pub fn last_log_lines(&self) -> Vec<FailureDetail> {
        self.processes.keys().flat_map(|name| self.log_lines_of(name)).collect()
    }

    fn log_lines_of(&self, name: &str) -> Vec<FailureDetail> {
        let lines: Vec<Vec<u8>> =
            whole_file::last_lines(&self.log_path(name), LAST_LINES_BYTES_MAX).collect();
        let last = lines.len().saturating_sub(LAST_LINES);
        let texts = lines[last..].iter().map(|line| String::from_utf8_lossy(line).into_owned());
        texts.map(|line| FailureDetail::new(line).at(name)).collect()
    }

    /// Ends all of them. The steps they have sealed are on their disks.
    pub fn end(&mut self) {
        for process in self.processes.values_mut() {
            // Their lifeline is cut, so they end; the kill is for a process that does not read it.
            drop(process.child.stdin.take());
            let _ = process.child.kill();
        }
        for (_, mut process) in std::mem::take(&mut self.processes) {
            let _ = process.child.wait();
        }
    }
}

/// Waits until the port that a run's processes know its controller by can be had.
fn await_port(address: SocketAddr) -> Result<SocketAddr, CommandFailure> {
    let began = Instant::now();
    loop {
        match UdpSocket::bind(address) {
            Ok(_) => return Ok(address),
            Err(error) if began.elapsed() > PORT_WITHIN => {
                let what = format!("the run cannot go on at {address}, where it was: {error}");
                let mut failure = CommandFailure::new(FailureCode::WrongState, what);
                let detail = FailureDetail::new("its processes know each other by that address");
                failure.details =
                    vec![detail.hint("end the process that has the port; or another --out")];
                return Err(failure);
            }
            Err(_) => thread::sleep(PORT_PAUSE),
        }
    }
}

impl Drop for ChildProcesses {
    fn drop(&mut self) {
        self.end();
    }
}

/// A process that ends whenever it is started. Its exit code says whether for want of disk or memory.
fn ends_again_and_again(name: &str, status: ExitStatus) -> CommandFailure {
    let lacks_resource = status.code() == Some(FailureCode::OutOfResource as i32);
    let what = format!("the process of {name} ends again and again ({status})");
    if !lacks_resource {
        return CommandFailure::new(FailureCode::Internal, what);
    }
    let mut failure = CommandFailure::new(FailureCode::OutOfResource, what);
    let advice = "free space on the disk of --out, or memory, and run the same command again";
    failure.details = vec![
        FailureDetail::new("the last checkpoint is on the disks: training goes on from it")
            .hint(advice),
    ];
    failure
}
