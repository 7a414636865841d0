//! Command lines of the binary, and its output. Nothing else of this package knows a
//! subcommand.

mod answers;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;

pub use self::answers::{
    ReportedBenchmark, ReportedJob, ReportedMember, ReportedPlan, ReportedSchedule, ReportedStatus,
    ReportedWork,
};
use super::namespaces::NetworkNamespace;
use super::system::tie;

/// Between two looks at a process that should end.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Bytes of a subcommand's output that are shown when it failed.
const OUTPUT_BYTES_MAX: usize = 2000;
/// Many processes share the cores of a machine.
const WORKER_THREADS: &str = "1";
/// How often the one token of a cluster may be used: more than processes ever join.
const TOKEN_USES: &str = "1000";

/// Why a subcommand failed.
#[derive(Debug, thiserror::Error)]
pub enum SubcommandError {
    /// It could not be started, or its output not be read.
    #[error("cannot run `{command_line}`: {source}")]
    Start {
        /// The command line of the subcommand.
        command_line: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The subcommand ran longer than its limit.
    #[error("`{command_line}` did not end within {limit:?}")]
    Late {
        /// The command line of the subcommand.
        command_line: String,
        /// The limit, after which it was ended.
        limit: Duration,
    },
    /// The subcommand ended with an error.
    #[error("`{command_line}` ended with {code}: {output}")]
    Failed {
        /// The command line of the subcommand.
        command_line: String,
        /// Its exit code, or signal.
        code: String,
        /// The end of its output.
        output: String,
    },
    /// Its output is not the JSON that was expected.
    #[error("`{command_line}` answered what cannot be read ({source}): {output}")]
    Answer {
        /// The command line of the subcommand.
        command_line: String,
        /// The error of the JSON parser.
        source: serde_json::Error,
        /// The end of its output.
        output: String,
    },
}

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessRole {
    /// A controller, which votes.
    Controller,
    /// A worker, which computes.
    Worker,
}

impl ProcessRole {
    /// Its word on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Worker => "worker",
        }
    }
}

/// A process of a cluster.
#[derive(Clone, Debug)]
pub struct ProcessSpec {
    /// The name of the node.
    pub name: String,
    /// Whether the node is a controller or a worker.
    pub role: ProcessRole,
    /// The port it binds.
    pub bind: SocketAddr,
    /// Where others are to send to.
    pub advertise: SocketAddr,
    /// The data folder of the node.
    pub data_dir: PathBuf,
}

/// How a node comes into a cluster.
#[derive(Clone, Copy, Debug)]
pub enum ClusterEntry<'a> {
    /// The node founds the cluster.
    Founds,
    /// The node joins the cluster.
    Joins {
        /// Addresses of the controllers that it may join at.
        cluster: &'a str,
        /// The token that lets it in.
        token: &'a str,
    },
}

/// The binary that is tested.
#[derive(Clone, Debug)]
pub struct TestedBinary {
    /// Path of the binary.
    pub path: PathBuf,
    /// The variables that its processes find in their environment besides ours.
    pub environment: Vec<(String, String)>,
    /// The network namespace in which subcommands run, if it is not this process's own.
    pub namespace: Option<NetworkNamespace>,
}

impl TestedBinary {
    /// A binary; its processes have the same environment as ours.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Self { path, environment: Vec::new(), namespace: None }
    }
}

/// The training: a configuration file, and keys that win over it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestedConfiguration {
    /// The file, if there is one; without it and without a preset, the binary has a default.
    pub file: Option<PathBuf>,
    /// `KEY=VALUE`, as they are typed behind `--set`; the last of several wins.
    pub set: Vec<String>,
}

impl TestedConfiguration {
    /// A configuration that is a file alone.
    #[must_use]
    pub const fn of(file: PathBuf) -> Self {
        Self { file: Some(file), set: Vec::new() }
    }

    /// The same with another key set.
    #[must_use]
    pub fn with(&self, key: &str, value: impl std::fmt::Display) -> Self {
        let mut set = self.set.clone();
        set.push(format!("{key}={value}"));
        Self { set, ..self.clone() }
    }

    fn add_arguments(&self, command: &mut Command) {
        command.args(&self.file);
        self.set.iter().for_each(|set| {
            command.arg("--set").arg(set);
        });
    }
}

/// The output of `token create --json`, as far as it matters here.
#[derive(Debug, Deserialize)]
struct ReportedToken {
    token: String,
    #[serde(default)]
    addresses: Vec<String>,
}

/// The texts that a node needs to join a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinTicket {
    /// The token that lets nodes in.
    pub token: String,
    /// Addresses that nodes may join at.
    pub addresses: Vec<String>,
}

impl TestedBinary {
    /// The command of a node's process, which stays in the foreground. Typed again, the node goes
    /// on with its stored state.
    #[must_use]
    pub fn node(&self, node: &ProcessSpec, entry: ClusterEntry<'_>) -> Command {
        let mut command = self.command();
        match entry {
            ClusterEntry::Founds => command.arg("init"),
            ClusterEntry::Joins { cluster, token } => {
                command.args(["join", "--cluster", cluster, "--token", token]);
                command.args(["--role", node.role.name()])
            }
        };
        if matches!(entry, ClusterEntry::Joins { .. }) && node.role == ProcessRole::Worker {
            command.args(["--threads", WORKER_THREADS]);
        }
        command.args(["--name", &node.name]);
        command.args(["--bind", &node.bind.to_string()]);
        command.args(["--advertise", &node.advertise.to_string()]);
        command.arg("--data-dir").arg(&node.data_dir);
        command
    }

    /// A token for nodes of this role.
    ///
    /// # Errors
    /// If there is none within the limit.
    pub fn token(
        &self,
        role: ProcessRole,
        admin: &Path,
        limit: Duration,
    ) -> Result<JoinTicket, SubcommandError> {
        let mut command = self.subcommand();
        command.args(["token", "create", "--role", role.name(), "--uses", TOKEN_USES, "--json"]);
        command.arg("--data-dir").arg(admin);
        let answer: ReportedToken = run_json(&mut command, Some(limit))?;
        Ok(JoinTicket { token: answer.token, addresses: answer.addresses })
    }

    /// Submits a configuration, for so many steps. It may last as long as its text is sent.
    ///
    /// # Errors
    /// If it is refused.
    pub fn run(
        &self,
        config: &TestedConfiguration,
        steps: u64,
        admin: &Path,
    ) -> Result<(), SubcommandError> {
        let mut command = self.subcommand();
        command.arg("run");
        config.with("train.steps", steps).add_arguments(&mut command);
        command.arg("--detach").arg("--data-dir").arg(admin);
        finish(&mut command, None).map(|_| ())
    }

    /// Trains without a cluster, as one stage on all cores, and returns the lines that it printed.
    /// It lasts as long as its steps do: nothing outside can distinguish a long one from none.
    ///
    /// # Errors
    /// If it does not come to its end.
    pub fn train(
        &self,
        config: &TestedConfiguration,
        steps: u64,
        out: &Path,
    ) -> Result<String, SubcommandError> {
        let mut command = self.subcommand();
        command.arg("train");
        config.with("train.steps", steps).add_arguments(&mut command);
        command.args(["--workers", "1", "--threads-only", "--json", "--out"]).arg(out);
        finish(&mut command, None)
    }

    /// The memory that stages of so many workers need.
    ///
    /// # Errors
    /// If nothing fits.
    pub fn plan(
        &self,
        config: &TestedConfiguration,
        workers: u32,
    ) -> Result<ReportedPlan, SubcommandError> {
        let mut command = self.subcommand();
        command.arg("plan");
        config.add_arguments(&mut command);
        command.args(["--nodes", &workers.to_string(), "--threads", WORKER_THREADS, "--json"]);
        run_json(&mut command, None)
    }

    /// Processes beside threads, steps beside steps with a checkpoint in progress, and the end of
    /// runs.
    ///
    /// # Errors
    /// If a run does not come to its end.
    pub fn bench_cluster(
        &self,
        config: &TestedConfiguration,
        (steps, workers, rounds): (u64, u32, u32),
    ) -> Result<ReportedBenchmark, SubcommandError> {
        let mut command = self.subcommand();
        command.args(["bench", "cluster"]);
        config.add_arguments(&mut command);
        command.args(["--steps", &steps.to_string(), "--workers", &workers.to_string()]);
        command.args(["--rounds", &rounds.to_string(), "--json"]);
        run_json(&mut command, None)
    }

    /// The state of the cluster, its members and its job.
    ///
    /// # Errors
    /// If no controller answers within the limit.
    pub fn status(&self, admin: &Path, limit: Duration) -> Result<ReportedStatus, SubcommandError> {
        let mut command = self.subcommand();
        command.args(["status", "--json"]).arg("--data-dir").arg(admin);
        run_json(&mut command, Some(limit))
    }

    /// The command of the live page at this address.
    #[must_use]
    pub fn page(&self, listen: SocketAddr, cluster: &str, admin: &Path) -> Command {
        let mut command = self.subcommand();
        command.args(["ui", "--listen", &listen.to_string(), "--cluster", cluster]);
        command.arg("--data-dir").arg(admin);
        command
    }

    /// Reads every copy of every checkpoint that is referred to, however long disks need for it.
    ///
    /// # Errors
    /// If one is damaged, or no controller answers.
    pub fn verify(&self, admin: &Path) -> Result<(), SubcommandError> {
        let mut command = self.subcommand();
        command.args(["ckpt", "verify", "--json"]).arg("--data-dir").arg(admin);
        finish(&mut command, None).map(|_| ())
    }

    /// The command that a person types beside the nodes.
    fn subcommand(&self) -> Command {
        let mut command = self.command();
        if let Some(place) = &self.namespace {
            place.hold(&mut command);
        }
        command
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.stdin(Stdio::null());
        command.envs(self.environment.iter().map(|(key, value)| (key, value)));
        tie(&mut command);
        command
    }
}

/// A command as a person would type it.
#[must_use]
pub fn line(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

fn run_json<T: DeserializeOwned>(
    command: &mut Command,
    limit: Option<Duration>,
) -> Result<T, SubcommandError> {
    let output = finish(command, limit)?;
    serde_json::from_str(&output).map_err(|source| SubcommandError::Answer {
        command_line: line(command),
        source,
        output: end_of(&output),
    })
}

/// Runs a subcommand to its end, and returns its standard output. Without a
/// limit it ends when it has done its work, or gives its cluster up by itself.
fn finish(command: &mut Command, limit: Option<Duration>) -> Result<String, SubcommandError> {
    let command_line = line(command);
    let start = |source| SubcommandError::Start { command_line: command_line.clone(), source };
    // Files, because a process blocks on a full pipe that is not read.
    let mut out = scratch().map_err(start)?;
    let mut err = scratch().map_err(start)?;
    command.stdout(out.try_clone().map_err(start)?).stderr(err.try_clone().map_err(start)?);
    let mut child = command.spawn().map_err(start)?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(start)? {
            break status;
        }
        if let Some(limit) = limit.filter(|limit| began.elapsed() > *limit) {
            child.kill().and_then(|()| child.wait()).map_err(start)?;
            return Err(SubcommandError::Late { command_line, limit });
        }
        std::thread::sleep(LOOK_EVERY);
    };
    let output = contents(&mut out).map_err(start)?;
    if status.success() {
        return Ok(output);
    }
    let output = end_of(&(output + &contents(&mut err).map_err(start)?));
    Err(SubcommandError::Failed { command_line, code: status.to_string(), output })
}

/// A file without a name.
pub(super) fn scratch() -> io::Result<File> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!(".zbelastic-chaos-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// All that was written into a file.
pub(super) fn contents(file: &mut File) -> io::Result<String> {
    use std::io::{Read, Seek};
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last bytes of an output.
#[must_use]
pub fn end_of(output: &str) -> String {
    let from = output.len().saturating_sub(OUTPUT_BYTES_MAX);
    let from = (from..=output.len()).find(|place| output.is_char_boundary(*place)).unwrap_or(from);
    output[from..].trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use super::{
        ClusterEntry, ProcessRole, ProcessSpec, SubcommandError, TestedBinary, end_of, line,
    };

    const PATIENCE: Duration = Duration::from_secs(60);

    fn program(path: &str) -> TestedBinary {
        TestedBinary::at(path.into())
    }

    /// A program that is a line of shell.
    ///
    /// A process of its own writes it: a file that is open for writing here, while another test
    /// forks, cannot be run.
    fn shell(folder: &Path, text: &str) -> TestedBinary {
        let path = folder.join("program");
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod +x \"$0\"";
        let mut command = std::process::Command::new("sh");
        let status = command.args(["-c", write]).arg(&path).arg(text).status();
        assert!(status.expect("sh starts").success());
        program(&path.display().to_string())
    }

    #[test]
    fn nodes_are_started_as_a_person_would() {
        let node = ProcessSpec {
            name: "w1".to_owned(),
            role: ProcessRole::Worker,
            bind: "127.0.0.1:7001".parse().expect("an address"),
            advertise: "127.0.0.1:9001".parse().expect("an address"),
            data_dir: PathBuf::from("w1"),
        };
        let program = program("/bin/zbelastic");
        assert_eq!(
            line(&program.node(&node, ClusterEntry::Joins { cluster: "a:1,b:2", token: "T" })),
            "zbelastic join --cluster a:1,b:2 --token T --role worker --threads 1 \
             --name w1 --bind 127.0.0.1:7001 --advertise 127.0.0.1:9001 --data-dir w1"
        );
        assert_eq!(
            line(&program.node(&node, ClusterEntry::Founds)),
            "zbelastic init --name w1 --bind 127.0.0.1:7001 --advertise 127.0.0.1:9001 \
             --data-dir w1"
        );
    }

    #[test]
    fn a_subcommand_answers_or_fails_with_a_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let says = shell(folder.path(), "echo '{\"leader\":3,\"members\":[{\"id\":3}],\"new\":1}'");
        let status = says.status(folder.path(), PATIENCE).expect("an answer");
        assert_eq!((status.leader, status.members[0].id), (Some(3), 3));
        let fails = shell(folder.path(), "echo no >&2; exit 9");
        let error = fails.status(folder.path(), PATIENCE).expect_err("it fails");
        let SubcommandError::Failed { code, output, .. } = &error else { panic!("{error}") };
        assert_eq!((code.as_str(), output.as_str()), ("exit status: 9", "no"));
        let odd = shell(folder.path(), "echo hello");
        let error = odd.status(folder.path(), PATIENCE).expect_err("no JSON");
        assert!(matches!(error, SubcommandError::Answer { .. }), "{error}");
        let hangs = shell(folder.path(), "sleep 600");
        let error = hangs.status(folder.path(), Duration::ZERO).expect_err("it hangs");
        assert!(matches!(error, SubcommandError::Late { .. }), "{error}");
    }

    #[test]
    fn output_is_cut_at_its_beginning() {
        assert_eq!(end_of(" short \n"), "short");
        let long = "é".repeat(3000);
        assert_eq!(end_of(&long).chars().count(), 1000);
    }
}
