//! A cluster of real processes, with all operations of the harness on them.
//!
//! One thread owns a cluster: children die with the thread that started them, so that nothing of it
//! survives a panic, Ctrl-C or SIGKILL of ours. The output of a process goes to a file beside its
//! data folder.

mod member;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use self::member::{ClusterMember, ProcessStatus, UnexpectedExit};
use super::cluster_observation::{ClusterObservation, MemberIndex};
use super::contract::{
    ClusterEntry, JoinTicket, ProcessRole, ProcessSpec, ReportedStatus, SubcommandError,
    TestedBinary, TestedConfiguration,
};
use super::events::{EventFileError, NodeEvent};
use super::live_page::LivePage;
use super::namespaces::CutDirection;
use super::process_network::{NetworkKind, NodeAddresses, ProcessNetwork};
use super::proxy::NetworkSite;
use super::small_disk;
use super::system::{ProcessSignal, own_mounts, send};

/// Between two polls of files and processes.
pub const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The time limit of a subcommand that exchanges a few small messages: it dials each controller in
/// turn, of which some may be down.
pub const VERB_LIMIT: Duration = Duration::from_secs(30);
/// Members of a cluster, those that have gone included.
pub const MEMBERS_MAX: usize = 1024;

/// Why a cluster cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LocalClusterError {
    /// Files, ports or processes.
    #[error("{doing}: {source}")]
    System {
        /// The action that was tried, in words.
        doing: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A subcommand of the binary failed.
    #[error(transparent)]
    Verb(#[from] SubcommandError),
    /// Event files cannot be read.
    #[error(transparent)]
    Events(#[from] EventFileError),
    /// A process ended by itself.
    #[error("{0}")]
    Surprise(UnexpectedExit),
    /// Something did not come.
    #[error("{what} did not come, and there was no progress for {limit:?}; {seen}")]
    Late {
        /// The event that was waited for, in words.
        what: String,
        /// How long nothing made progress.
        limit: Duration,
        /// The state that was seen instead.
        seen: String,
    },
    /// The cluster has as many members as it may have.
    #[error("a cluster has at most {MEMBERS_MAX} members, and there were as many")]
    Full,
    /// The run is held.
    #[error("the run is held: {reason}")]
    Halted {
        /// Why it is held, in words.
        reason: String,
    },
    /// The run without faults is not sound itself.
    #[error("the run without faults is not sound: {what}")]
    Undisturbed {
        /// The problem with it.
        what: String,
    },
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(io::Error),
    /// The caller has ended the watch.
    #[error("interrupted")]
    Interrupted,
}

/// The setup that a cluster begins with.
#[derive(Clone, Debug)]
pub struct LocalClusterSetup {
    /// The binary that is started.
    pub program: TestedBinary,
    /// Where everything of it goes: a new folder.
    pub folder: PathBuf,
    /// Number of controllers of the cluster.
    pub controllers: u32,
    /// Number of workers at the beginning.
    pub workers: u32,
    /// Ports and the draws of links follow from it.
    pub seed: u64,
    /// The network between its processes.
    pub network: NetworkKind,
    /// Each worker's data folder is a disk of so many MiB in memory.
    pub small_disk_mib: Option<u32>,
}

/// A cluster of real processes.
#[derive(Debug)]
pub struct LocalCluster {
    program: TestedBinary,
    folder: PathBuf,
    network: ProcessNetwork,
    members: Vec<ClusterMember>,
    tickets: Vec<(ProcessRole, JoinTicket)>,
    observation: ClusterObservation,
    small_disk_mib: Option<u32>,
}

/// Microseconds since 1970, as in event files.
#[must_use]
pub fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).expect("less than five hundred millennia")
}

fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> LocalClusterError {
    let doing = doing.into();
    move |source| LocalClusterError::System { doing, source }
}

/// A member's place in the network.
fn site(index: MemberIndex) -> NetworkSite {
    NetworkSite(u32::try_from(index).expect("few members"))
}

impl LocalCluster {
    /// A cluster of which all members have begun.
    ///
    /// # Errors
    /// If one of them does not come up, and there was no progress for `limit`.
    pub fn start(setup: &LocalClusterSetup, limit: Duration) -> Result<Self, LocalClusterError> {
        let making = format!("cannot make {}", setup.folder.display());
        fs::create_dir_all(&setup.folder).map_err(system(making))?;
        let ports = setup.seed ^ u64::from(std::process::id()).wrapping_mul(7919);
        let network = ProcessNetwork::start(setup.network, ports, setup.seed);
        let network = network.map_err(system(format!("cannot start {}", setup.network)))?;
        let mut cluster = Self {
            program: TestedBinary { namespace: network.hub(), ..setup.program.clone() },
            folder: setup.folder.clone(),
            network,
            members: Vec::new(),
            tickets: Vec::new(),
            observation: ClusterObservation::default(),
            small_disk_mib: setup.small_disk_mib,
        };
        if cluster.small_disk_mib.is_some() {
            own_mounts().map_err(system("cannot have mounts of its own"))?;
        }
        let founder = cluster.add(ProcessRole::Controller)?;
        cluster.wait(limit, "the founder", |observation, _| observation.is_known(founder))?;
        for role in [ProcessRole::Worker, ProcessRole::Controller] {
            let ticket = cluster.get_ticket(role, limit)?;
            cluster.tickets.push((role, ticket));
        }
        for _ in 1..setup.controllers {
            let member = cluster.add(ProcessRole::Controller)?;
            cluster
                .wait(limit, "another controller", |observation, _| observation.is_known(member))?;
        }
        let workers = (0..setup.workers).map(|_| cluster.add(ProcessRole::Worker));
        let workers = workers.collect::<Result<Vec<_>, _>>()?;
        let are_admitted = |observation: &ClusterObservation| {
            workers.iter().all(|worker| observation.is_admitted(*worker))
        };
        cluster.wait(limit, "the workers", |observation, _| are_admitted(observation))?;
        Ok(cluster)
    }

    /// A token; a founder that has just begun may not be able to give one yet.
    fn get_ticket(
        &mut self,
        role: ProcessRole,
        limit: Duration,
    ) -> Result<JoinTicket, LocalClusterError> {
        let began = Instant::now();
        loop {
            match self.program.token(role, self.admin(), VERB_LIMIT) {
                Ok(ticket) => return Ok(ticket),
                Err(error) if began.elapsed() > limit => return Err(error.into()),
                Err(_) => self.poll_for(LOOK_EVERY * 10)?,
            }
        }
    }

    /// The data folder with the certificate of the administrator.
    fn admin(&self) -> &Path {
        &self.members[0].spec().data_dir
    }

    /// A member more: the first one founds the cluster, the others join it.
    ///
    /// # Errors
    /// If there are too many, or the system has no port or process left.
    pub fn add(&mut self, role: ProcessRole) -> Result<MemberIndex, LocalClusterError> {
        let index = self.members.len();
        if index >= MEMBERS_MAX {
            return Err(LocalClusterError::Full);
        }
        let count = self.members.iter().filter(|member| member.spec().role == role).count();
        let initial = if role == ProcessRole::Controller { 'c' } else { 'w' };
        let name = format!("{initial}{}", count + 1);
        let addresses = self.network.add(site(index));
        let NodeAddresses { bind, advertise } =
            addresses.map_err(system("cannot connect a node to the network"))?;
        let data_dir = self.folder.join(&name);
        if let Some(mib) = self.small_disk_mib.filter(|_| role == ProcessRole::Worker) {
            small_disk::mount(&data_dir, mib).map_err(system("cannot mount a small disk"))?;
        }
        let spec = ProcessSpec { name, role, bind, advertise, data_dir };
        self.observation.name(index, &spec.name);
        self.members.push(ClusterMember::new(spec));
        self.start_member(index)?;
        Ok(index)
    }

    /// Starts a member's process, for the first time or again.
    ///
    /// # Errors
    /// If the system does not start it.
    ///
    /// # Panics
    /// If it has one.
    pub fn start_member(&mut self, index: MemberIndex) -> Result<(), LocalClusterError> {
        let spec = self.members[index].spec().clone();
        let (cluster, token) = if index == 0 {
            (String::new(), String::new())
        } else {
            let ticket = self.tickets.iter().find(|(role, _)| *role == spec.role);
            let (_, ticket) = ticket.expect("tickets are there before anybody joins");
            (self.controller_addresses(), ticket.token.clone())
        };
        let entry = match index {
            0 => ClusterEntry::Founds,
            _ => ClusterEntry::Joins { cluster: &cluster, token: &token },
        };
        let mut command = self.program.node(&spec, entry);
        self.network.place(site(index), &mut command);
        let doing = format!("cannot start {}", spec.name);
        self.members[index].start(command).map_err(system(doing))
    }

    /// Addresses at which nodes may join.
    fn controller_addresses(&self) -> String {
        let controllers = self.members.iter().map(ClusterMember::spec);
        let controllers = controllers.filter(|spec| spec.role == ProcessRole::Controller);
        controllers.map(|spec| spec.advertise.to_string()).collect::<Vec<_>>().join(",")
    }

    /// Sends a member's process a signal; whether it had one.
    ///
    /// # Errors
    /// If the system does not send it.
    pub fn signal(
        &mut self,
        index: MemberIndex,
        signal: ProcessSignal,
    ) -> Result<bool, LocalClusterError> {
        let member = &mut self.members[index];
        let Some(pid) = member.pid() else { return Ok(false) };
        member.expects(signal);
        let doing = format!("cannot send {signal:?} to {}", member.spec().name);
        send(pid, signal).map_err(system(doing))?;
        if signal == ProcessSignal::Kill {
            // It is gone before anything else happens, so that its port and its lock are free.
            member.wait().map_err(system("cannot wait for a process"))?;
        }
        Ok(true)
    }

    /// Reads new events from all files, and checks which processes ended.
    ///
    /// # Errors
    /// If a file cannot be read, or a process ended by itself.
    pub fn poll(&mut self) -> Result<Vec<(MemberIndex, NodeEvent)>, LocalClusterError> {
        let mut events = Vec::new();
        for (index, member) in self.members.iter_mut().enumerate() {
            for event in member.read()? {
                self.observation.observe(index, &event);
                events.push((index, event));
            }
            let ended = member.poll_exit().map_err(system("cannot look at a process"))?;
            if let Some(exit) = ended {
                return Err(LocalClusterError::Surprise(exit));
            }
        }
        Ok(events)
    }

    /// Polls for so long.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn poll_for(&mut self, time: Duration) -> Result<(), LocalClusterError> {
        let began = Instant::now();
        loop {
            self.poll()?;
            let left = time.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY.min(left));
        }
    }

    /// Polls until a condition holds.
    ///
    /// # Errors
    /// If it is not, and there was no progress for `limit`, or as [`Self::poll`].
    pub fn wait(
        &mut self,
        limit: Duration,
        what: &str,
        mut is_so: impl FnMut(&ClusterObservation, &[ClusterMember]) -> bool,
    ) -> Result<(), LocalClusterError> {
        let mut since = Instant::now();
        loop {
            if !self.poll()?.is_empty() {
                since = Instant::now();
            }
            if is_so(&self.observation, &self.members) {
                return Ok(());
            }
            if since.elapsed() > limit {
                let what = what.to_owned();
                let seen = self.seen();
                return Err(LocalClusterError::Late { what, limit, seen });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// How the cluster stands, in one line for an error.
    #[must_use]
    pub fn seen(&self) -> String {
        let stand = |member: &ClusterMember| format!("{} {}", member.spec().name, member.status());
        let members: Vec<_> = self.members.iter().map(stand).collect();
        let step = self.observation.step();
        let generation = self.observation.generation();
        let halted =
            self.observation.halted().map_or(String::new(), |why| format!(", held: {why}"));
        format!("step {step} of generation {generation}{halted}; {}", members.join(", "))
    }

    /// Submits a configuration.
    ///
    /// # Errors
    /// If it is not accepted.
    pub fn run(&self, config: &TestedConfiguration, steps: u64) -> Result<(), LocalClusterError> {
        Ok(self.program.run(config, steps, self.admin())?)
    }

    /// The answer of `status`.
    ///
    /// # Errors
    /// If no controller answers.
    pub fn status(&self) -> Result<ReportedStatus, SubcommandError> {
        self.program.status(self.admin(), VERB_LIMIT)
    }

    /// The digest of the final state, if `status` has it.
    #[must_use]
    pub fn final_digest(&self) -> Option<String> {
        Some(self.status().ok()?.job?.final_digest()?.to_owned())
    }

    /// Starts a live page of the cluster at this address.
    ///
    /// # Errors
    /// If it cannot be there.
    pub fn page(&self, listen: SocketAddr) -> Result<LivePage, SubcommandError> {
        LivePage::start(self.program.page(listen, &self.controller_addresses(), self.admin()))
    }

    /// Has every copy of every checkpoint read.
    ///
    /// # Errors
    /// If one is damaged, or no controller answers.
    pub fn verify(&self) -> Result<(), SubcommandError> {
        self.program.verify(self.admin())
    }

    /// The state of the cluster that the event files show.
    #[must_use]
    pub const fn observation(&self) -> &ClusterObservation {
        &self.observation
    }

    /// Its members, those that have gone included.
    #[must_use]
    pub fn members(&self) -> &[ClusterMember] {
        &self.members
    }

    /// Members of a role with running processes.
    #[must_use]
    pub fn running(&self, role: ProcessRole) -> Vec<MemberIndex> {
        let members = self.members.iter().enumerate();
        let mine = members.filter(|(_, member)| {
            member.spec().role == role && member.status() == ProcessStatus::Running
        });
        mine.map(|(index, _)| index).collect()
    }

    /// The network between its members.
    #[must_use]
    pub const fn network(&self) -> &ProcessNetwork {
        &self.network
    }

    /// Cuts a member off.
    ///
    /// # Errors
    /// If the system does not do it.
    pub fn cut(&mut self, index: MemberIndex, cut: CutDirection) -> Result<(), LocalClusterError> {
        let doing = format!("cannot cut off {}", self.members[index].spec().name);
        self.network.cut(site(index), cut).map_err(system(doing))
    }

    /// Resets all links to clear conditions, and cuts no member off.
    ///
    /// # Errors
    /// If the system does not do it.
    pub fn heal(&mut self) -> Result<(), LocalClusterError> {
        self.network.heal().map_err(system("cannot heal the network"))
    }

    /// A member goes and is not to come back.
    pub fn retire(&mut self, index: MemberIndex) {
        self.members[index].retire();
    }

    /// Removes the files that a member that is gone has left on its disk, but for its event file.
    ///
    /// # Errors
    /// If the system does not do it.
    pub fn clear(&self, index: MemberIndex) -> Result<(), LocalClusterError> {
        let member = &self.members[index];
        if member.status() != ProcessStatus::Gone {
            return Ok(());
        }
        let name = &member.spec().name;
        member.clear().map_err(system(format!("cannot clear the folder of {name}")))
    }

    /// Notes that a member is about to be disturbed, which may leave a broken line in its file.
    pub fn disturb(&mut self, index: MemberIndex) {
        self.members[index].disturb();
    }

    /// The folder of the cluster, with its members' data folders.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}
