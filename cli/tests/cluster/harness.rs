//! Clusters of real processes on this machine: what tests of them share.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use zbelastic_api::client::{ApiClient, ApiError};
use zbelastic_api::{
    ApiAnswer, ApiRequest, CorpusDescription, EVENTS_MAX, EventKind, HexDigest, JobPhaseStatus,
    StatusReport, TokenRequest, TokenRole,
};
use zbelastic_chaos_processes::ports;
use zbelastic_config::load_document;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_types::Bytes;
use zbelastic_wire::document::{DataName, JobDocument};

/// What may take so long on the slowest machine there is.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// A process that does not outlive the test.
pub struct NodeProcess {
    pub child: Child,
    pub folder: PathBuf,
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct SpawnedCluster {
    pub root: TempDir,
    /// Where its controllers are.
    pub addresses: Vec<String>,
    pub nodes: Vec<NodeProcess>,
    /// Variables in the environment of joining nodes, besides those of this process.
    pub variables: Vec<(&'static str, String)>,
}

pub fn zbelastic(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zbelastic"));
    command.env("ZBELASTIC_DATA_DIR", folder).stdin(Stdio::null());
    command
}

pub fn spawn(mut command: Command, folder: &Path) -> NodeProcess {
    let log = std::fs::File::create(folder.with_extension("log")).expect("a log");
    let child = command.stdout(log.try_clone().expect("a log")).stderr(log).spawn();
    NodeProcess { child: child.expect("the binary runs"), folder: folder.to_owned() }
}

pub fn free_address() -> String {
    ports::free_address().expect("a port").to_string()
}

impl SpawnedCluster {
    pub fn new() -> Self {
        Self::in_folder(tempfile::tempdir().expect("a folder"))
    }

    pub fn in_folder(root: TempDir) -> Self {
        let address = free_address();
        let listens = ["--bind", &address, "--advertise", &address];
        Self::founded(root, &listens, address.clone())
    }

    /// One whose nodes are not given the address at which others reach them.
    pub fn everywhere() -> Self {
        let address = free_address();
        let (_, port) = address.rsplit_once(':').expect("a port");
        let root = tempfile::tempdir().expect("a folder");
        Self::founded(root, &["--bind", &format!("0.0.0.0:{port}")], address.clone())
    }

    pub fn founded(root: TempDir, listens: &[&str], address: String) -> Self {
        let folder = root.path().join("controller");
        let mut command = zbelastic(&folder);
        command.args(["init", "--name", "test"]).args(listens);
        let nodes = vec![spawn(command, &folder)];
        Self { root, addresses: vec![address], nodes, variables: Vec::new() }
    }

    /// Sends a request; `None` if there is no answer, or a refusal, for now.
    pub fn query<T>(
        &self,
        request: impl FnOnce(&mut ApiClient<'_>) -> Result<T, ApiError>,
    ) -> Option<T> {
        let folder = NodeDataFolder::new(self.nodes[0].folder.clone());
        let exchange = zbelastic_cli::exchange(&folder).ok()?;
        request(&mut ApiClient::new(self.addresses.clone(), exchange)).ok()
    }

    pub fn wait<T>(&self, what: &str, mut found: impl FnMut(&Self) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            if began.elapsed() > PATIENCE {
                for node in &self.nodes {
                    let log = std::fs::read_to_string(node.folder.with_extension("log"));
                    eprintln!("== {}\n{}", node.folder.display(), log.unwrap_or_default());
                }
                panic!("{what} did not happen");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for a warning of the first controller. Steps are events too: a warning may stand many
    /// pages behind the first one.
    pub fn wait_for_warning(&self, is_it: impl Fn(&str) -> bool) {
        let mut from = 0;
        self.wait("a warning", |cluster| {
            let page = cluster.query(|client| client.events(from, EVENTS_MAX))?;
            from = page.next_sequence;
            let mut kinds = page.events.into_iter().map(|event| event.kind);
            kinds.find(|kind| matches!(kind, EventKind::Warning { what } if is_it(what)))
        });
    }

    pub fn status(&self) -> Option<StatusReport> {
        self.query(|client| client.status())
    }

    pub fn join(&mut self, name: &str) {
        self.join_with(name, &[]);
    }

    pub fn join_with(&mut self, name: &str, more: &[&str]) {
        let words = [&["--bind", "127.0.0.1:0"], more].concat();
        self.join_as(TokenRole::Worker, name, &words);
    }

    pub fn join_controller(&mut self, name: &str) {
        let address = free_address();
        self.join_as(TokenRole::Controller, name, &["--bind", &address]);
        self.addresses.push(address);
    }

    pub fn join_as(&mut self, role: TokenRole, name: &str, listens: &[&str]) {
        let request = TokenRequest { role, ttl_s: 3600, uses: 1, ephemeral: false, note: None };
        let token = self.wait("a token", |cluster| {
            cluster.query(|client| client.create_token(request.clone())).map(|token| token.token)
        });
        let folder = self.root.path().join(name);
        let mut command = zbelastic(&folder);
        command.envs(self.variables.clone());
        let address = self.addresses.join(",");
        command.args(["join", "--cluster", &address, "--token", &token, "--name", name]);
        command.args(["--threads", "1", "--role", role.name(), "--spot", "none"]).args(listens);
        self.nodes.push(spawn(command, &folder));
    }

    pub fn run(&self, steps: u64) {
        self.run_with(steps, "");
    }

    pub fn run_with_copies(&self, steps: u64, copies: u32) {
        self.run_with(steps, &format!("[elastic]\ncopies = {copies}\n"));
    }

    /// Begins a run of short steps, with `more` about its checkpoints, or sections after them.
    pub fn run_with(&self, steps: u64, more: &str) {
        let toml = format!(
            "[model]\npreset = \"tiny\"\n[train]\nsteps = {steps}\nseq_len = 32\nglobal_batch = 16\n\
             microbatch = 2\n[checkpoint]\nevery = 5\n{more}"
        );
        let text: Vec<u8> = (0..200_000_u32).map(|i| (i.wrapping_mul(i) % 97) as u8 + 20).collect();
        self.submit(&toml, &text);
    }

    /// Begins this run over this text.
    pub fn submit(&self, toml: &str, text: &[u8]) {
        let config = load_document("test", toml).expect("a configuration").config;
        let name = DataName::of(text);
        let job = JobDocument::new("test".to_owned(), config, toml.to_owned(), name);
        let document = String::from_utf8(job.encode().expect("short")).expect("JSON");
        let corpus = CorpusDescription { hash: HexDigest(name.hash), length: Bytes(name.length) };
        let request = ApiRequest::Run { document, corpus, weights: None, name: None, from: None };
        self.query(|client| {
            while let ApiAnswer::DataWanted(held) = client.send(&request)? {
                let bytes = text[held.held as usize..].to_vec();
                client.put_data(ApiRequest::PutData {
                    hash: held.hash,
                    offset: held.held,
                    bytes,
                })?;
            }
            Ok(())
        })
        .expect("the run is taken");
    }

    pub fn step(&self) -> Option<u64> {
        self.status()?.job.map(|job| job.step)
    }

    /// Waits until the run is done, and yields the digest of its state.
    pub fn digest(&self, steps: u64) -> HexDigest {
        self.wait("the end", |cluster| {
            let job = cluster.status()?.job?;
            let is_done = job.phase == JobPhaseStatus::Done && job.digest_step == Some(steps);
            job.digest.filter(|_| is_done)
        })
    }

    pub fn begin(&mut self, workers: &[&str], steps: u64) {
        self.begin_with(workers, steps, workers.len() + 1);
    }

    pub fn begin_with(&mut self, workers: &[&str], steps: u64, count: usize) {
        self.join_all(workers, count);
        self.run(steps);
    }

    pub fn join_all(&mut self, workers: &[&str], count: usize) {
        workers.iter().for_each(|name| self.join(name));
        self.wait("all workers", |cluster| {
            (cluster.status()?.members.len() == count).then_some(())
        });
    }

    pub fn kill(&mut self, name: &str) -> NodeProcess {
        let found = self.nodes.iter().position(|node| node.folder.ends_with(name));
        let mut node = self.nodes.remove(found.expect("it was started"));
        node.child.kill().expect("it runs");
        node.child.wait().expect("it ends");
        node
    }

    /// Sends a signal to a node's process.
    pub fn signal(&self, name: &str, signal: &str) {
        let node = self.nodes.iter().find(|node| node.folder.ends_with(name));
        let process = node.expect("it was started").child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &process]).status();
        assert!(sent.expect("there is a kill").success());
    }

    /// Waits until a node's process has ended, and yields its exit code.
    pub fn ended(&mut self, name: &str) -> Option<i32> {
        let found = self.nodes.iter().position(|node| node.folder.ends_with(name));
        let mut node = self.nodes.remove(found.expect("it was started"));
        let began = Instant::now();
        loop {
            if let Some(status) = node.child.try_wait().expect("it is a child") {
                return status.code();
            }
            assert!(began.elapsed() < PATIENCE, "{name} goes on");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn generation(&self) -> Option<u64> {
        self.status()?.plan.map(|plan| plan.generation)
    }

    pub fn restart(&mut self, node: NodeProcess, arguments: &[&str]) {
        self.again_at(&node.folder, arguments);
    }

    pub fn again_at(&mut self, folder: &Path, arguments: &[&str]) {
        let mut command = zbelastic(folder);
        command.args(arguments);
        let is_first = folder.ends_with("controller");
        let restarted = spawn(command, folder);
        if is_first {
            self.nodes.insert(0, restarted);
        } else {
            self.nodes.push(restarted);
        }
    }
}
