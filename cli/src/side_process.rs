//! A process of this program beside a controller: a client of its cluster with a certificate that the
//! controller's authority issues.
//!
//! A process of its own, because no defect of what reaches other networks may end a controller. It
//! ends with the controller, however that ends: its standard input is closed then.

use std::env;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::time::{Duration, Instant};

use zbelastic_identity::{ClusterAuthority, Credentials, NodeKey, PeerRole, UnixSeconds};
use zbelastic_node::cluster::membership_failure::{cannot_certify, cannot_keep};
use zbelastic_node::cluster::signals::LIFELINE_VARIABLE;
use zbelastic_node::cluster::{ADMIN_NODE, command_address};
use zbelastic_node_folder::node_record::NodeRecord;
use zbelastic_node_folder::{AdminFile, NodeDataFolder};
use zbelastic_wording::{CommandFailure, FailureCode, print_error_line};

use crate::named_thread::spawn_named;

/// Another certificate is written so often. One is good for seven days, and that of a viewer is renewed
/// by no controller, for the log has no record of it; a client uses the newest whenever it connects.
const CERTIFICATE_PERIOD: Duration = Duration::from_secs(24 * 3600);
/// Before a process that ended is started again: longer each time, up to a minute, until one has
/// run for as long as that.
const RESTART_PAUSE_MIN: Duration = Duration::from_secs(1);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(60);

/// A process that a controller may have beside it.
pub struct SideProcess {
    folder: NodeDataFolder,
    record: NodeRecord,
    /// Its name, and that of its folder in the controller's.
    name: &'static str,
    /// The role of its certificate.
    role: PeerRole,
    /// Its command and arguments, but for its folder and the cluster's addresses.
    words: Vec<String>,
    certified: Option<Instant>,
    running: Option<RunningProcess>,
    pause: Duration,
    /// Not started again before.
    rests_until: Option<Instant>,
}

struct RunningProcess {
    child: Child,
    began: Instant,
}

impl SideProcess {
    /// A process of the controller in `folder`, which is not started yet.
    pub fn new(
        folder: &NodeDataFolder,
        record: &NodeRecord,
        (name, role): (&'static str, PeerRole),
        words: Vec<String>,
    ) -> Self {
        Self {
            folder: folder.clone(),
            record: record.clone(),
            name,
            role,
            words,
            certified: None,
            running: None,
            pause: RESTART_PAUSE_MIN,
            rests_until: None,
        }
    }

    /// The controller that it is beside.
    pub const fn record(&self) -> &NodeRecord {
        &self.record
    }

    /// Its data folder, with a certificate that is a day old at most, as `zbelastic login` would have
    /// left it. The authority is read each time, because it may have been replaced.
    ///
    /// # Errors
    /// If the controller's folder cannot be read or written.
    pub fn certified_folder(&mut self) -> Result<NodeDataFolder, CommandFailure> {
        let own = NodeDataFolder::new(self.folder.root().join(self.name));
        if self.certified.is_some_and(|at| at.elapsed() < CERTIFICATE_PERIOD) {
            return Ok(own);
        }
        let Self { folder, record, .. } = self;
        let authority = folder.identity().join("authority");
        let authority = ClusterAuthority::load(&authority, Some(record.cluster));
        let authority = authority.map_err(cannot_keep)?;
        let key = NodeKey::load_or_create(&own.admin()).map_err(cannot_keep)?;
        let now = UnixSeconds::now();
        let issued = authority.issue(&key.requested(), self.role, ADMIN_NODE, now);
        let chain = issued.map_err(cannot_certify)?.chain;
        // Controllers that are not certified by a new authority yet are trusted as this one does.
        let node = Credentials::load_ended(&folder.identity(), None).map_err(cannot_keep)?;
        let made = Credentials::new(chain, key, node.roots().to_vec()).map_err(cannot_certify)?;
        made.save(&own.admin()).map_err(cannot_keep)?;
        let name = record.cluster_name.clone();
        let id = record.cluster.to_string();
        own.write_admin(&AdminFile { name, id, addresses: self.addresses() })?;
        self.certified = Some(Instant::now());
        Ok(own)
    }

    /// This controller's own address, and behind it those of others.
    pub fn addresses(&self) -> Vec<String> {
        let NodeRecord { bind, advertised, controllers, .. } = &self.record;
        let has_own = !advertised.is_empty() || bind.port() != 0;
        let mut addresses = Vec::from_iter(has_own.then(|| command_address(advertised, *bind)));
        for address in controllers.values().flatten().map(ToString::to_string) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses
    }

    /// Starts it, and again when it ended, after a pause. What fails is printed, and tried again later:
    /// a controller goes on without.
    pub fn keep_running(&mut self) {
        if let Err(failure) = self.watch() {
            self.rest(&failure.what);
        }
    }

    /// Ends it, if it runs.
    pub fn stop(&mut self) {
        if let Some(RunningProcess { mut child, .. }) = self.running.take() {
            // One that has ended already is what was wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn watch(&mut self) -> Result<(), CommandFailure> {
        let own = self.certified_folder()?;
        let Some(running) = &mut self.running else {
            if self.rests_until.is_none_or(|until| Instant::now() >= until) {
                let child = self.spawn(&own)?;
                self.running = Some(RunningProcess { child, began: Instant::now() });
            }
            return Ok(());
        };
        let status = running.child.try_wait().map_err(cannot_start)?;
        let Some(status) = status else { return Ok(()) };
        if running.began.elapsed() > RESTART_PAUSE_MAX {
            self.pause = RESTART_PAUSE_MIN;
        }
        self.running = None;
        self.rest(&format!("its process ended with {status}"));
        Ok(())
    }

    fn rest(&mut self, why: &str) {
        let Self { name, pause, .. } = self;
        let pause_s = pause.as_secs();
        print_error_line(format_args!("note: no {name}: {why}; tried again in {pause_s} s"));
        self.rests_until = Some(Instant::now() + *pause);
        self.pause = (*pause * 2).min(RESTART_PAUSE_MAX);
    }

    fn spawn(&self, own: &NodeDataFolder) -> Result<Child, CommandFailure> {
        let program: PathBuf = env::current_exe().map_err(cannot_start)?;
        let mut command = Command::new(program);
        command.args(&self.words).arg("--data-dir").arg(own.root());
        command.arg("--cluster").arg(self.addresses().join(","));
        // A controller prints what it prints on standard error, and Ctrl-C is for it alone.
        command.env(LIFELINE_VARIABLE, "stdin").stdin(Stdio::piped());
        command.stdout(Stdio::from(io::stderr())).process_group(0);
        command.spawn().map_err(cannot_start)
    }
}

fn cannot_start(error: io::Error) -> CommandFailure {
    CommandFailure::new(FailureCode::OutOfResource, format!("its process: {error}"))
}

/// Whether this process was started by one that it is to end with.
#[must_use]
pub fn has_lifeline() -> bool {
    env::var(LIFELINE_VARIABLE).is_ok_and(|value| value == "stdin")
}

/// Ends this process, which is only a client, when its standard input ends.
///
/// # Errors
/// If the system gives no thread.
pub fn end_with_lifeline() -> Result<(), CommandFailure> {
    let wait = || {
        let mut nothing = [0; 1];
        while matches!(io::stdin().read(&mut nothing), Ok(count) if count > 0) {}
        process::exit(0);
    };
    spawn_named("lifeline", wait).map(drop)
}
