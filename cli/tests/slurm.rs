//! The script of `deploy/slurm` under a real Slurm: munge, slurmctld and two slurmd on this machine.
//!
//! Where they are not installed, or nobody is root, whom slurmd requires, the test is passed over with
//! a line.

#[path = "common/tools.rs"]
mod tools;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tools::{content, tool};
use zbelastic_chaos_processes::ports;

/// What may take so long on the slowest machine there is: two lives of a job, and the two minutes for
/// which Slurm holds one back that was requeued.
const PATIENCE: Duration = Duration::from_secs(400);
/// Jobs that are cancelled end within this.
const GRACE: Duration = Duration::from_secs(60);
/// Enough for a signal in the middle.
const STEPS: u64 = 200;
/// Munge's key has so many bytes at least.
const KEY: [u8; 64] = [7; 64];
const PROGRAM: &str = env!("CARGO_BIN_EXE_zbelastic");

/// Daemons that do not outlive the test.
struct Slurm {
    folder: TempDir,
    daemons: Vec<Child>,
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // Processes of jobs outlive the daemons.
        let _ = self.command("scancel").arg("--me").output();
        let began = Instant::now();
        while began.elapsed() < GRACE && self.is_busy() {
            std::thread::sleep(Duration::from_millis(100));
        }
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("it has one").port()
}

fn configuration(folder: &Path, host: &str) -> String {
    let at = folder.display();
    let [controller, first, second] = [free_port(), free_port(), free_port()];
    format!(
        "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={controller}\n\
         SlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nAuthInfo=socket={at}/munge,cred_expire=10\n\
         StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool-%n\n\
         SlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd-%n.pid\n\
         SlurmctldLogFile={at}/slurmctld.log\nSlurmdLogFile={at}/slurmd-%n.log\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMailProg=/bin/true\n\
         ReturnToService=2\nJobRequeue=1\nKillWait=60\n\
         NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1\n\
         NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1\n\
         PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    )
}

impl Slurm {
    /// Starts one; `None`, with a line that says so, where that is not possible.
    fn start() -> Option<Self> {
        let names = ["munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "squeue"];
        if names.iter().any(|name| tool(name).is_none()) {
            return None;
        }
        if content(Command::new("id").arg("-u")).trim() != "0" {
            println!("skipped: slurmd requires root");
            return None;
        }
        let mut slurm = Self { folder: TempDir::new().expect("a folder"), daemons: Vec::new() };
        let folder = slurm.path("");
        let host = content(&mut Command::new("hostname"));
        fs::write(slurm.path("slurm.conf"), configuration(&folder, host.trim())).expect("written");
        fs::create_dir(slurm.path("state")).expect("made");
        fs::write(slurm.path("key"), KEY).expect("written");
        content(Command::new("chmod").arg("600").arg(slurm.path("key")));
        let files =
            ["key-file=key", "socket=munge", "pid-file=pid", "log-file=log", "seed-file=seed"];
        let files = files.map(|file| file.replace('=', &format!("={}/", folder.display())));
        let files = files.map(|file| format!("--{file}"));
        let mut munged = Command::new("munged");
        slurm.daemon(munged.args(["--foreground", "--force"]).args(files));
        slurm.wait("munge", |slurm| slurm.path("munge").exists().then_some(()));
        slurm.daemon(Command::new("slurmctld").args(["-D", "-i"]));
        for node in ["n1", "n2"] {
            slurm.daemon(Command::new("slurmd").args(["-D", "-N", node]));
        }
        Some(slurm)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.path("slurm.conf")).current_dir(self.folder.path());
        command
    }

    fn daemon(&mut self, command: &mut Command) {
        command.env("SLURM_CONF", self.path("slurm.conf")).stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.daemons.push(child.expect("it runs"));
    }

    fn wait<T>(&self, what: &str, mut found: impl FnMut(&Self) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            if began.elapsed() > PATIENCE {
                for name in ["slurmctld.log", "slurmd-n1.log", "log", "job"] {
                    let text = fs::read_to_string(self.path(name)).unwrap_or_default();
                    eprintln!("== {name}\n{text}");
                }
                panic!("{what} did not happen");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Submits the script, as its first lines say.
    fn submit(&self, more: &[&str]) -> String {
        let port = ports::free_address().expect("a port").port();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/slurm/zbelastic.sbatch");
        let mut sbatch = self.command("sbatch");
        sbatch.env("ZBELASTIC", PROGRAM).env("ZBELASTIC_STATE", self.path("cluster"));
        sbatch.env("ZBELASTIC_PORT", port.to_string());
        sbatch.args(["--parsable", "--nodes=2", "--output=job"]).arg(script).args(more);
        content(&mut sbatch).trim().to_owned()
    }

    /// What the cluster of the job says of its run; `None` while it does not answer.
    fn job(&self) -> Option<Value> {
        let mut command = self.command(PROGRAM);
        command.args(["status", "--json", "--data-dir"]).arg(self.path("cluster/controller"));
        let output = command.output().expect("it runs");
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        Some(status["job"].clone()).filter(|job| !job.is_null())
    }

    /// Whether there is a job.
    fn is_busy(&self) -> bool {
        let output = self.command("squeue").arg("--noheader").output();
        output.is_ok_and(|output| !output.stdout.is_empty())
    }

    fn printed(&self) -> String {
        fs::read_to_string(self.path("job")).unwrap_or_default()
    }
}

#[test]
fn a_job_that_is_requeued_goes_on_and_ends_with_the_digest_of_one_that_nothing_disturbed() {
    let Some(slurm) = Slurm::start() else { return };
    let text: String = (0..4000).map(|line| format!("{line} lines of a text\n")).collect();
    fs::write(slurm.path("corpus.txt"), text).expect("written");
    let steps = format!("[model]\npreset = \"tiny\"\n[train]\nsteps = {STEPS}\n");
    fs::write(slurm.path("run.toml"), steps).expect("written");
    let arguments = ["run.toml", "--text", "corpus.txt"];
    let id = slurm.submit(&arguments);
    let step = |slurm: &Slurm| slurm.job()?["step"].as_u64().filter(|step| *step > 2);
    let seen = slurm.wait("steps", step);
    // What Slurm itself sends 180 s before the end of the job's time.
    content(slurm.command("scancel").args(["--batch", "--signal=USR1", &id]));
    let goes_on = slurm.wait("the second life", |slurm| {
        let printed = slurm.printed();
        let (_, step) = printed.split_once("is under way: ")?.1.split_once("after step ")?;
        step.split(' ').next()?.parse::<u64>().ok()
    });
    assert!((seen..STEPS).contains(&goes_on), "{seen} {goes_on}\n{}", slurm.printed());
    let end = slurm.wait("the end", |slurm| {
        let printed = slurm.printed();
        printed.lines().find_map(|line| Some(line.split_once("digest ")?.1.trim().to_owned()))
    });
    slurm.wait("the end of the job", |slurm| (!slurm.is_busy()).then_some(()));
    let mut alone = slurm.command(PROGRAM);
    let alone =
        content(alone.arg("train").args(arguments).args(["--threads-only", "--out", "run"]));
    assert!(alone.contains(&end), "{end}\n{alone}\n{}", slurm.printed());
}
