//! Injects faults into a cluster, and reverts them when their time is over.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use chaos_tests::random::{DrawPurpose, Draws};

use super::campaign_report::Recovery;
use super::cluster_observation::MemberIndex;
use super::contract::ProcessRole;
use super::disk_damage::damage;
use super::faults::ProcessFault;
use super::local_cluster::{LocalCluster, LocalClusterError, ProcessStatus, wall_us};
use super::namespaces::CutDirection;
use super::proxy::LinkSelector;
use super::system::{ProcessSignal, limit_files};

/// Workers that come in addition to those of the beginning, before one leaves for each that comes.
const WORKERS_EXTRA_MAX: usize = 2;
/// How often it is looked whether a worker that got SIGTERM has left.
const LEAVING_LOOK: Duration = Duration::from_millis(20);
/// A file that fills the rest of a small disk.
const BALLAST: &str = "ballast";
/// Bytes that are written into it at once.
const BALLAST_BYTES: usize = 64 << 10;

/// A fault that was injected, and the members that it hit.
#[derive(Clone, Debug)]
pub struct FaultInjection {
    /// The fault, as it was drawn.
    pub fault: ProcessFault,
    /// When, in microseconds since 1970.
    pub at_us: u64,
    /// The last sealed step of that moment.
    pub step: u64,
    /// The plan of that moment.
    pub generation: u64,
    /// The members that it hit; of a join, the one that leaves for it and the one that comes.
    pub victims: Vec<MemberIndex>,
}

impl FaultInjection {
    /// The event that shows that the run recovered from it, if anything does.
    #[must_use]
    pub fn recovery(&self, cluster: &LocalCluster) -> Option<Recovery> {
        let seen = cluster.observation().recovery(self.at_us, self.step, self.generation);
        let (step, seal) = seen?;
        let ms = (seal.at_us - self.at_us) as f64 / 1e3;
        Some(Recovery { ms, step, generation: seal.generation })
    }
}

/// The action that reverts a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultReversal {
    /// A process that died is started.
    Start(MemberIndex),
    /// A process that left is started, as soon as it has left.
    StartWhenGone(MemberIndex),
    /// A process that has not left is killed.
    Kill(MemberIndex),
    /// A process goes on.
    Continue(MemberIndex),
    /// Files may grow again.
    Empty(MemberIndex),
    /// All links are reset to clear conditions.
    Clear,
    /// The recorded datagrams come again.
    Replay { count: usize },
}

/// Injects faults into a cluster, and holds the faults that are still to be reverted.
#[derive(Debug)]
pub struct ProcessFaultInjector {
    workers: usize,
    has_small_disks: bool,
    /// In no order: there are few.
    due: Vec<(Instant, FaultReversal)>,
}

impl ProcessFaultInjector {
    /// For a cluster that began with so many workers.
    #[must_use]
    pub fn new(workers: usize, has_small_disks: bool) -> Self {
        Self { workers, has_small_disks, due: Vec::new() }
    }

    /// Whether nothing is left to be reverted.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.due.is_empty()
    }

    /// Injects a fault. Returns nothing if there is no member that it could hit.
    ///
    /// # Errors
    /// If the system does not do it.
    pub fn inject(
        &mut self,
        cluster: &mut LocalCluster,
        fault: ProcessFault,
    ) -> Result<Option<FaultInjection>, LocalClusterError> {
        let mut victims = self.victims(cluster, &fault);
        // Only members that no other injection has: the reversal of one must not disturb another.
        if !fault.kind().is_network() {
            victims.retain(|victim| !self.is_struck(*victim));
        }
        let needs_victim = !matches!(fault, ProcessFault::Join { .. });
        if victims.is_empty() && needs_victim || !cluster.network().kind().can(fault.kind()) {
            return Ok(None);
        }
        let observation = cluster.observation();
        let step = observation.step();
        let generation = observation.generation();
        let mut injection = FaultInjection { fault, at_us: wall_us(), step, generation, victims };
        self.carry_out(cluster, &injection)?;
        if let ProcessFault::Join { .. } = fault {
            injection.victims.push(cluster.add(ProcessRole::Worker)?);
        }
        Ok(Some(injection))
    }

    /// Whether something that was done to a member is not reverted yet.
    fn is_struck(&self, member: MemberIndex) -> bool {
        self.due.iter().any(|(_, reversal)| match reversal {
            FaultReversal::Start(victim)
            | FaultReversal::StartWhenGone(victim)
            | FaultReversal::Kill(victim)
            | FaultReversal::Continue(victim)
            | FaultReversal::Empty(victim) => *victim == member,
            FaultReversal::Clear | FaultReversal::Replay { .. } => false,
        })
    }

    fn victims(&self, cluster: &LocalCluster, fault: &ProcessFault) -> Vec<MemberIndex> {
        match *fault {
            ProcessFault::KillWorkers { draw, count, .. } => {
                pick(&staged_first(cluster), draw, count)
            }
            ProcessFault::PauseWorker { draw, .. }
            | ProcessFault::Drain { draw, .. }
            | ProcessFault::FullDisk { draw, .. } => pick(&staged_first(cluster), draw, 1),
            ProcessFault::KillLeader { .. } => leader(cluster).into_iter().collect(),
            ProcessFault::KillFollower { draw, .. } => {
                let mut followers = cluster.running(ProcessRole::Controller);
                followers.retain(|member| Some(*member) != leader(cluster));
                pick(&followers, draw, 1)
            }
            ProcessFault::PauseController { draw, .. } => {
                pick(&cluster.running(ProcessRole::Controller), draw, 1)
            }
            ProcessFault::Join { draw } => {
                let workers = cluster.running(ProcessRole::Worker);
                let is_full = workers.len() >= self.workers + WORKERS_EXTRA_MAX;
                pick(&workers, draw, usize::from(is_full))
            }
            ProcessFault::PowerCycle { order, .. } => shuffled(all(cluster), order),
            ProcessFault::DamageDisk { draw, .. }
            | ProcessFault::Isolate { draw, .. }
            | ProcessFault::OneWay { draw, .. } => pick(&all(cluster), draw, 1),
            ProcessFault::Storm { .. } | ProcessFault::Replay { .. } => all(cluster),
        }
    }

    fn carry_out(
        &mut self,
        cluster: &mut LocalCluster,
        injection: &FaultInjection,
    ) -> Result<(), LocalClusterError> {
        let victims = &injection.victims;
        match injection.fault {
            ProcessFault::KillWorkers { down_ms, .. }
            | ProcessFault::KillLeader { down_ms }
            | ProcessFault::KillFollower { down_ms, .. }
            | ProcessFault::PowerCycle { down_ms, .. } => {
                self.signal(cluster, victims, ProcessSignal::Kill)?;
                victims
                    .iter()
                    .for_each(|victim| self.later(down_ms, FaultReversal::Start(*victim)));
            }
            ProcessFault::DamageDisk { draw, down_ms } => {
                self.signal(cluster, victims, ProcessSignal::Kill)?;
                for victim in victims {
                    let spec = cluster.members()[*victim].spec();
                    damage(&spec.data_dir, draw).map_err(damage_error(&spec.name))?;
                    self.later(down_ms, FaultReversal::Start(*victim));
                }
            }
            ProcessFault::PauseWorker { ms, .. } | ProcessFault::PauseController { ms, .. } => {
                self.signal(cluster, victims, ProcessSignal::Stop)?;
                victims.iter().for_each(|victim| self.later(ms, FaultReversal::Continue(*victim)));
            }
            ProcessFault::Drain { killed_after_ms, .. } => {
                self.signal(cluster, victims, ProcessSignal::Terminate)?;
                for victim in victims {
                    if let Some(ms) = killed_after_ms {
                        self.later(ms, FaultReversal::Kill(*victim));
                    }
                    self.later(0, FaultReversal::StartWhenGone(*victim));
                }
            }
            ProcessFault::Join { .. } => {
                victims.iter().for_each(|victim| cluster.retire(*victim));
                self.signal(cluster, victims, ProcessSignal::Terminate)?;
            }
            ProcessFault::FullDisk { ms, .. } => {
                for victim in victims {
                    self.fill(cluster, *victim)?;
                    self.later(ms, FaultReversal::Empty(*victim));
                }
            }
            ProcessFault::Isolate { .. }
            | ProcessFault::OneWay { .. }
            | ProcessFault::Storm { .. }
            | ProcessFault::Replay { .. } => self.turn(cluster, injection)?,
        }
        Ok(())
    }

    /// The network turns bad.
    fn turn(
        &mut self,
        cluster: &mut LocalCluster,
        injection: &FaultInjection,
    ) -> Result<(), LocalClusterError> {
        let victims = &injection.victims;
        let (ms, reversal) = match injection.fault {
            ProcessFault::Isolate { ms, .. } => {
                cut(cluster, victims, CutDirection::Both)?;
                (ms, FaultReversal::Clear)
            }
            ProcessFault::OneWay { is_deaf, ms, .. } => {
                cut(
                    cluster,
                    victims,
                    if is_deaf { CutDirection::Deaf } else { CutDirection::Mute },
                )?;
                (ms, FaultReversal::Clear)
            }
            ProcessFault::Storm { weather: conditions, ms } => {
                cluster.network().proxy().inspect(|proxy| proxy.set(LinkSelector::All, conditions));
                (ms, FaultReversal::Clear)
            }
            ProcessFault::Replay { count, ms } => {
                cluster.network().proxy().inspect(|proxy| proxy.record(true));
                (ms, FaultReversal::Replay { count })
            }
            ProcessFault::KillWorkers { .. }
            | ProcessFault::KillLeader { .. }
            | ProcessFault::KillFollower { .. }
            | ProcessFault::PauseWorker { .. }
            | ProcessFault::PauseController { .. }
            | ProcessFault::Drain { .. }
            | ProcessFault::Join { .. }
            | ProcessFault::PowerCycle { .. }
            | ProcessFault::FullDisk { .. }
            | ProcessFault::DamageDisk { .. } => return Ok(()),
        };
        self.later(ms, reversal);
        Ok(())
    }

    fn signal(
        &self,
        cluster: &mut LocalCluster,
        victims: &[MemberIndex],
        signal: ProcessSignal,
    ) -> Result<(), LocalClusterError> {
        victims.iter().try_for_each(|victim| cluster.signal(*victim, signal).map(|_| ()))
    }

    fn later(&mut self, ms: u64, reversal: FaultReversal) {
        self.due.push((Instant::now() + Duration::from_millis(ms), reversal));
    }

    /// Reverts the faults that are due to be reverted.
    ///
    /// # Errors
    /// If the system does not do it.
    pub fn revert_due(&mut self, cluster: &mut LocalCluster) -> Result<(), LocalClusterError> {
        let now = Instant::now();
        let (due, later) = self.due.drain(..).partition::<Vec<_>, _>(|(at, _)| *at <= now);
        self.due = later;
        due.into_iter().try_for_each(|(_, reversal)| self.revert(cluster, reversal))
    }

    fn revert(
        &mut self,
        cluster: &mut LocalCluster,
        reversal: FaultReversal,
    ) -> Result<(), LocalClusterError> {
        match reversal {
            FaultReversal::Start(member) => cluster.start_member(member),
            FaultReversal::StartWhenGone(member) => match cluster.members()[member].status() {
                ProcessStatus::Down => cluster.start_member(member),
                ProcessStatus::Running | ProcessStatus::Stopped | ProcessStatus::Leaving => {
                    let again = Instant::now() + LEAVING_LOOK;
                    self.due.push((again, FaultReversal::StartWhenGone(member)));
                    Ok(())
                }
                ProcessStatus::Gone => Ok(()),
            },
            // It may have left in time, and have come back.
            FaultReversal::Kill(member)
                if cluster.members()[member].status() == ProcessStatus::Leaving =>
            {
                cluster.signal(member, ProcessSignal::Kill).map(|_| ())
            }
            FaultReversal::Kill(_) => Ok(()),
            FaultReversal::Continue(member) => {
                cluster.signal(member, ProcessSignal::Continue).map(|_| ())
            }
            FaultReversal::Empty(member) => self.empty(cluster, member),
            FaultReversal::Clear => cluster.heal(),
            FaultReversal::Replay { count } => {
                if let Some(proxy) = cluster.network().proxy() {
                    proxy.replay(LinkSelector::All, count);
                    proxy.record(false);
                }
                Ok(())
            }
        }
    }

    fn fill(
        &self,
        cluster: &mut LocalCluster,
        member: MemberIndex,
    ) -> Result<(), LocalClusterError> {
        cluster.disturb(member);
        let found = &cluster.members()[member];
        let result = match found.pid() {
            _ if self.has_small_disks => fill_up(&found.spec().data_dir.join(BALLAST)),
            Some(pid) => limit_files(pid, Some(0)),
            None => Ok(()),
        };
        result.map_err(disk_error(&found.spec().name))
    }

    fn empty(&self, cluster: &LocalCluster, member: MemberIndex) -> Result<(), LocalClusterError> {
        let found = &cluster.members()[member];
        let result = match found.pid() {
            _ if self.has_small_disks => fs::remove_file(found.spec().data_dir.join(BALLAST)),
            Some(pid) => limit_files(pid, None),
            None => Ok(()),
        };
        result.map_err(disk_error(&found.spec().name))
    }
}

fn damage_error(name: &str) -> impl FnOnce(io::Error) -> LocalClusterError {
    let doing = format!("cannot damage a file of {name}");
    move |source| LocalClusterError::System { doing, source }
}

fn disk_error(name: &str) -> impl FnOnce(io::Error) -> LocalClusterError {
    let doing = format!("cannot change how full the disk of {name} is");
    move |source| LocalClusterError::System { doing, source }
}

/// Writes until the disk is full.
fn fill_up(path: &Path) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    let piece = vec![0; BALLAST_BYTES];
    loop {
        match file.write_all(&piece) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn cut(
    cluster: &mut LocalCluster,
    members: &[MemberIndex],
    cut: CutDirection,
) -> Result<(), LocalClusterError> {
    members.iter().try_for_each(|member| cluster.cut(*member, cut))
}

/// The members with a running process.
fn all(cluster: &LocalCluster) -> Vec<MemberIndex> {
    [ProcessRole::Controller, ProcessRole::Worker]
        .into_iter()
        .flat_map(|role| cluster.running(role))
        .collect()
}

fn leader(cluster: &LocalCluster) -> Option<MemberIndex> {
    let leader = cluster.observation().leader()?;
    cluster.running(ProcessRole::Controller).contains(&leader).then_some(leader)
}

/// Workers that run: those with a stage in the order of the pipeline, so that two of them one after
/// the other are neighbours, and then the others.
fn staged_first(cluster: &LocalCluster) -> (Vec<MemberIndex>, Vec<MemberIndex>) {
    let running = cluster.running(ProcessRole::Worker);
    let mut staged = cluster.observation().stages();
    staged.retain(|worker| running.contains(worker));
    let others = running.into_iter().filter(|worker| !staged.contains(worker)).collect();
    (staged, others)
}

/// Members from which victims are picked.
trait VictimPool {
    /// The nth of those that come first, and those behind it.
    fn from(&self, draw: u64) -> Vec<MemberIndex>;
}

impl VictimPool for Vec<MemberIndex> {
    fn from(&self, draw: u64) -> Vec<MemberIndex> {
        let mut turned = self.clone();
        let first = draw % (turned.len() as u64).max(1);
        turned.rotate_left(usize::try_from(first).expect("few members"));
        turned
    }
}

impl VictimPool for (Vec<MemberIndex>, Vec<MemberIndex>) {
    fn from(&self, draw: u64) -> Vec<MemberIndex> {
        [VictimPool::from(&self.0, draw), VictimPool::from(&self.1, draw)].concat()
    }
}

fn pick(pool: &impl VictimPool, draw: u64, count: usize) -> Vec<MemberIndex> {
    let mut picked = pool.from(draw);
    picked.truncate(count);
    picked
}

fn shuffled(mut members: Vec<MemberIndex>, order: u64) -> Vec<MemberIndex> {
    let mut draws = Draws::new(order, DrawPurpose::Targets);
    for place in (1..members.len()).rev() {
        members.swap(place, draws.below(place as u64 + 1) as usize);
    }
    members
}

#[cfg(test)]
mod tests {
    use super::{pick, shuffled};

    #[test]
    fn victims_are_those_with_a_stage_first() {
        let pool = (vec![4, 5], vec![6]);
        assert_eq!(pick(&pool, 0, 1), [4]);
        assert_eq!(pick(&pool, 3, 1), [5]);
        assert_eq!(pick(&pool, 3, 9), [5, 4, 6]);
        assert_eq!(pick(&(vec![], vec![6]), 3, 1), [6]);
        assert!(pick(&Vec::new(), 3, 1).is_empty());
    }

    #[test]
    fn an_order_has_everybody() {
        let orders: Vec<_> = (0..20).map(|order| shuffled((0..6).collect(), order)).collect();
        assert!(orders.iter().any(|order| *order != orders[0]));
        for mut order in orders {
            order.sort_unstable();
            assert!(order.into_iter().eq(0..6));
        }
    }
}
