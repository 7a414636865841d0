//! Clusters of processes that end with the test program, however it ends.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use zbelastic_chaos_processes::ports;

use crate::common::text;

/// Patience with a condition, on the slowest machine there is.
const PATIENCE: Duration = Duration::from_secs(240);
/// Pause between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(40);

/// A node that runs. It ends when its standard input does.
pub struct SiteNode {
    pub child: Child,
    pub folder: PathBuf,
}

impl Drop for SiteNode {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl SiteNode {
    pub fn start(folder: &Path, arguments: &[&str]) -> Self {
        Self::start_with(folder, arguments, &[])
    }

    /// The same, in an environment with these variables.
    pub fn start_with(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let log = fs::File::create(folder.with_extension("log")).expect("a log");
        let mut command = zbelastic(folder, arguments);
        command.envs(variables.iter().copied());
        command.stdin(Stdio::piped()).process_group(0);
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        Self { child: command.spawn().expect("it runs"), folder: folder.to_owned() }
    }

    /// Its output so far.
    pub fn log_text(&self) -> String {
        fs::read_to_string(self.folder.with_extension("log")).unwrap_or_default()
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.expect("there is a kill").success());
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is a child").is_none()
    }

    /// Its exit code, once it has ended.
    pub fn ended(&mut self) -> Option<i32> {
        let mut status = None;
        wait_until("its end", || {
            status = self.child.try_wait().expect("it is a child");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// Waits until it has printed `what`.
    pub fn wait_for_log(&self, what: &str) {
        wait_until(what, || self.log_text().contains(what));
    }

    /// Bytes of memory that it has now.
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it is told");
        let kib = line.split_whitespace().nth(1).expect("a number");
        kib.parse::<u64>().expect("a number") << 10
    }
}

/// Waits for a condition that must become true; how long that takes proves nothing.
pub fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    wait_until_or(what, is_so, String::new);
}

/// The same; if it does not become true, the panic has what is shown besides.
pub fn wait_until_or(what: &str, mut is_so: impl FnMut() -> bool, shown: impl Fn() -> String) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what} did not happen\n{}", shown());
        std::thread::sleep(PAUSE);
    }
}

/// The binary on a folder, with no cluster or token in the environment. A process that begins
/// although it should not ends at once, as its standard input has.
pub fn zbelastic(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = crate::common::zbelastic(arguments);
    command.env_remove("ZBELASTIC_CLUSTER").env_remove("ZBELASTIC_TOKEN");
    command.env("ZBELASTIC_DATA_DIR", folder).env("ZBELASTIC_LIFELINE", "stdin");
    command.stdin(Stdio::null());
    command
}

/// Standard error of a command on a folder that ends with `code`.
pub fn refused(folder: &Path, arguments: &[&str], code: i32) -> String {
    crate::common::refusal(&mut zbelastic(folder, arguments), code)
}

/// An address where nobody listens.
pub fn free_address() -> String {
    ports::free_address().expect("a port").to_string()
}

/// A cluster with one controller.
pub struct ControllerSite {
    pub root: TempDir,
    pub address: String,
    pub controller: SiteNode,
}

impl ControllerSite {
    pub fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let address = free_address();
        let folder = root.path().join("controller");
        let bind = ["init", "--name", "test", "--bind", &address, "--advertise", &address];
        let controller = SiteNode::start(&folder, &bind);
        let site = Self { root, address, controller };
        wait_until("a leader", || site.try_json(&["status", "--json"]).is_some_and(has_leader));
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn output_of(&self, arguments: &[&str]) -> Output {
        zbelastic(&self.controller.folder, arguments).output().expect("it runs")
    }

    /// Standard output of a command that succeeds.
    pub fn stdout_of(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.output_of(arguments);
        assert!(status.success(), "{arguments:?}: {}", text(&stderr));
        text(&stdout).trim_end().to_owned()
    }

    pub fn refused(&self, arguments: &[&str], code: i32) -> String {
        refused(&self.controller.folder, arguments, code)
    }

    pub fn try_json(&self, arguments: &[&str]) -> Option<Value> {
        let output = self.output_of(arguments);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    pub fn token(&self, more: &[&str]) -> String {
        self.stdout_of(&[&["token", "create"], more].concat())
    }

    /// The arguments of a worker that joins with a token.
    pub fn join<'a>(&'a self, token: &'a str, name: &'a str) -> Vec<&'a str> {
        let mut arguments = vec!["join", "--cluster", &self.address, "--token", token];
        arguments.extend(["--name", name, "--bind", "127.0.0.1:0", "--threads", "1"]);
        arguments.extend(["--spot", "none"]);
        arguments
    }

    /// Standard error of a join that is refused. A join that came too often is tried again.
    pub fn join_refused(&self, arguments: &[&str], code: i32) -> String {
        let mut stderr = String::new();
        wait_until("another answer than to wait", || {
            let folder = tempfile::tempdir().expect("a folder");
            let output = zbelastic(folder.path(), arguments).output().expect("it runs");
            stderr = text(&output.stderr);
            let has_to_wait = stderr.contains("E2009");
            let expected = if has_to_wait { 6 } else { code };
            assert_eq!(output.status.code(), Some(expected), "{stderr}");
            !has_to_wait
        });
        stderr
    }

    /// A worker that is a member.
    pub fn worker(&self, name: &str) -> SiteNode {
        self.worker_with(name, &[])
    }

    /// The same, with a token made so.
    pub fn worker_with(&self, name: &str, token: &[&str]) -> SiteNode {
        let token = self.token(token);
        let worker = SiteNode::start(&self.path(name), &self.join(&token, name));
        wait_until("the worker", || self.member(name).is_some());
        worker
    }

    pub fn status(&self) -> Value {
        let stdout = self.stdout_of(&["status", "--json"]);
        serde_json::from_str(&stdout).expect("JSON")
    }

    pub fn member(&self, name: &str) -> Option<Value> {
        let status = self.status();
        let mut members = status["members"].as_array().expect("a list").iter();
        members.rfind(|member| member["name"] == name).cloned()
    }

    /// Begins a run over a text; it goes on by itself.
    pub fn run(&self, steps: u64) {
        let (config, words) = self.submission(steps);
        self.stdout_of(&["run", &config, "--text", &words, "--detach"]);
    }

    /// A configuration and a text, as files.
    pub fn submission(&self, steps: u64) -> (String, String) {
        let config = self.path("run.toml");
        let words = self.path("text");
        let toml = format!(
            "[model]\npreset = \"tiny\"\n[train]\nsteps = {steps}\n[checkpoint]\nevery = 5\n"
        );
        fs::write(&config, toml).expect("written");
        fs::write(&words, "the quick brown fox jumps over the lazy dog. ".repeat(2000))
            .expect("written");
        (config.display().to_string(), words.display().to_string())
    }

    pub fn wait_for_checkpoint(&self) -> u64 {
        let mut step = None;
        wait_until("a checkpoint", || {
            let status = self.status();
            step = status["checkpoints"].as_array().and_then(|all| all.last()?["step"].as_u64());
            step.is_some()
        });
        step.expect("waited for")
    }
}

fn has_leader(status: Value) -> bool {
    !status["leader"].is_null()
}
