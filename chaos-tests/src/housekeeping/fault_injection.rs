//! Injects the faults of a life and restarts members.

use std::time::Duration;

use zbelastic_checkpoint::CheckpointStore;
use zbelastic_consensus::member::Role;
use zbelastic_policy::store_opening::{
    ASIDE_MAX, StoreOpeningAction, StoreOpeningFault, after_fault,
};
use zbelastic_policy::store_reopening::StoreReopeningAction;
use zbelastic_transport::DownReason;
use zbelastic_types::NodeId;

use super::certificates::window_from;
use super::check::HousekeepingMarker;
use super::disk::TEXT_CHUNK;
use super::member::{MemberProcess, MemberProcessState};
use super::net::MemberConnections;
use super::options::HousekeepingFault;
use super::rotation::rotate_authority;
use super::surroundings::HousekeepingSurroundings;
use super::world::{HousekeepingEvent, MEMORY_AMPLE};
use crate::queue::VirtualTime;

/// A process that stands still for longer is not connected any more.
const SILENT_US: u64 = 3_000_000;
/// A machine that was suspended needs so long to go on.
const WAKE_US: u64 = 4_000_000;

/// Injects the faults of a life.
pub(super) struct MemberFaults {
    /// The node that joins next.
    pub(super) node_next: NodeId,
    /// The last node that has credentials to join.
    pub(super) node_last: NodeId,
}

impl MemberFaults {
    pub(super) fn inject(
        &mut self,
        env: &mut HousekeepingSurroundings<'_>,
        connections: &MemberConnections,
        fault: HousekeepingFault,
    ) {
        env.line(|| format!("{fault:?}"));
        match fault {
            HousekeepingFault::DiskFull { whom, for_us } => {
                self.spoil_disk(env, whom, for_us, true)
            }
            HousekeepingFault::LogsFill { whom, for_us } => self.fill_logs(env, whom, for_us),
            HousekeepingFault::StoreStuck { whom, for_us } => {
                self.spoil_disk(env, whom, for_us, false)
            }
            HousekeepingFault::OperationFails { whom, operation, after } => {
                let Some(node) = env.cluster.victim(whom) else { return };
                let member = env.cluster.members.get_mut(&node).expect("a member");
                member.disk.fail_once(operation, after);
                env.check.stores.note_fault(node);
            }
            HousekeepingFault::IndexRots { whom } => rot_index(env, whom),
            HousekeepingFault::Crash { whom, for_us, is_damaged } => {
                self.crash(env, connections, whom, for_us, is_damaged)
            }
            HousekeepingFault::Pause { whom, for_us } => self.pause(env, connections, whom, for_us),
            HousekeepingFault::Suspend { whom, seconds } => {
                self.suspend(env, connections, whom, seconds)
            }
            HousekeepingFault::ClocksMove { seconds } => env.cluster.skipped_s += seconds,
            HousekeepingFault::RotPiece { whom } => self.rot_piece(env, whom),
            HousekeepingFault::RotText { whom } => {
                if let Some(node) = env.cluster.victim(whom) {
                    rot_text(env, node, whom >> 8);
                }
            }
            HousekeepingFault::RotTextEverywhere { place } => rot_text_everywhere(env, place),
            HousekeepingFault::RotHashes { whom } => rot_hashes(env, whom),
            HousekeepingFault::Remove { whom } => self.remove(env, whom),
            HousekeepingFault::Join => self.join(env),
            HousekeepingFault::RotateAuthority { is_forced } => rotate_authority(env, is_forced),
        }
    }

    fn spoil_disk(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        draw: u64,
        for_us: u64,
        is_filled: bool,
    ) {
        let (now, Some(node)) = (env.cluster.now, env.cluster.victim(draw)) else { return };
        let member = env.cluster.members.get_mut(&node).expect("a member");
        if is_filled {
            (member.disk.is_filled, member.log_since) = (true, now);
        }
        member.disk.is_stuck |= !is_filled;
        member.able_since = now.after(for_us);
        env.queue.push(now.after(for_us), HousekeepingEvent::DiskAgain { node });
    }

    pub(super) fn free_disk(&self, env: &mut HousekeepingSurroundings<'_>, node: NodeId) {
        let now = env.cluster.now;
        let member = env.cluster.members.get_mut(&node).expect("a member");
        if std::mem::take(&mut member.disk.is_filled) {
            member.log_since = now;
        }
        member.disk.is_stuck = false;
        member.able_since = now;
    }

    /// The logs of the controllers that the bits of a draw name, or of all if they name none, find hardly any space.
    fn fill_logs(&self, env: &mut HousekeepingSurroundings<'_>, draw: u64, for_us: u64) {
        let now = env.cluster.now;
        let all = env.cluster.controllers();
        let is_named = |node: &&NodeId| draw >> node.0 & 1 == 1;
        let named = all.iter().filter(is_named).count();
        for node in all.iter().filter(|node| named == 0 || is_named(node)) {
            let member = env.cluster.members.get_mut(node).expect("a controller stays");
            (member.disk.is_log_filled, member.log_since) = (true, now);
            env.queue.push(now.after(for_us), HousekeepingEvent::LogAgain { node: *node });
        }
    }

    pub(super) fn free_log(&self, env: &mut HousekeepingSurroundings<'_>, node: NodeId) {
        let now = env.cluster.now;
        let member = env.cluster.members.get_mut(&node).expect("a controller stays");
        (member.disk.is_log_filled, member.log_since) = (false, now);
    }

    /// A store that has stopped is opened again, as nodes do it.
    pub(super) fn reopen_stopped(&self, env: &mut HousekeepingSurroundings<'_>, node: NodeId) {
        let now = env.cluster.now;
        let member = env.cluster.members.get_mut(&node).expect("a member");
        if !member.disk.has_stopped() || member.disk.is_filled || member.disk.is_stuck {
            return;
        }
        if !member.process.reopening.is_due(since_beginning(now)) {
            return;
        }
        // Another operation may fail in that.
        let Err(error) = member.disk.open() else {
            member.process.reopening.note_open(since_beginning(now));
            member.able_since = now;
            env.check.markers.note(HousekeepingMarker::StoreReopened);
            return env.line(|| format!("n{node} opens its store again"));
        };
        let fault = StoreOpeningFault::from(&error);
        let taken = member.disk.aside;
        match member.process.reopening.after_fault(fault, |number| number <= taken) {
            StoreReopeningAction::BeginAnew { aside } => {
                member.disk.begin_anew(aside);
                member.process.reopening.note_open(since_beginning(now));
                member.able_since = now;
                // It may have reported since it was damaged that it keeps a piece.
                env.check.note_lost_disk(node);
                env.check.markers.note(HousekeepingMarker::StoreReplaced);
                env.line(|| format!("n{node} puts its store aside: {error}"));
            }
            StoreReopeningAction::StayClosed { .. } => {
                env.line(|| format!("n{node} has no store: {error}"));
            }
        }
    }

    fn crash(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        connections: &MemberConnections,
        draw: u64,
        for_us: u64,
        is_damaged: bool,
    ) {
        let (seed, Some(node)) = (env.draws.number(), env.cluster.victim(draw)) else { return };
        connections.drop_links(env, node, DownReason::Reset);
        let member = env.cluster.members.get_mut(&node).expect("a member");
        member.running = MemberProcessState::Down;
        member.life += 1;
        member.disk.crash(seed);
        let is_damaged = is_damaged && member.disk.aside < ASIDE_MAX && member.disk.damage_index();
        if is_damaged {
            env.check.note_lost_disk(node);
        }
        env.queue.push(env.cluster.now.after(for_us), HousekeepingEvent::Restart { node });
    }

    /// A process begins again on the disk that it has.
    pub(super) fn restart(&self, env: &mut HousekeepingSurroundings<'_>, node: NodeId) {
        let turned = env.draws.number();
        let controllers = env.cluster.controllers();
        let now = env.cluster.now;
        let member = env.cluster.members.get_mut(&node).expect("a member");
        if member.running != MemberProcessState::Down {
            return;
        }
        if let Err(error) = member.disk.open() {
            let fault = StoreOpeningFault::from(&error);
            let taken = member.disk.aside;
            match after_fault(fault, true, |number| number <= taken) {
                StoreOpeningAction::BeginAnew { aside } => {
                    member.disk.begin_anew(aside);
                    env.check.markers.note(HousekeepingMarker::StoreBegunAnew);
                }
                StoreOpeningAction::GoWithout => {}
                StoreOpeningAction::Refuse => {
                    member.running = MemberProcessState::Ended;
                    return env.check.check_not_started(node, &error.to_string());
                }
            }
        }
        let member = env.cluster.members.get_mut(&node).expect("a member");
        member.process = MemberProcess::new(node, controllers, &member.texts, turned);
        member.running = MemberProcessState::Up;
        (member.able_since, member.led_since, member.ended_since) = (now, now, None);
        env.line(|| format!("n{node} is back"));
    }

    fn pause(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        connections: &MemberConnections,
        draw: u64,
        for_us: u64,
    ) {
        let Some(node) = env.cluster.victim(draw) else { return };
        if for_us > SILENT_US {
            connections.drop_links(env, node, DownReason::Silent);
        }
        let now = env.cluster.now;
        let member = env.cluster.members.get_mut(&node).expect("a member");
        (member.running, member.able_since) = (MemberProcessState::Paused, now.after(for_us));
        env.queue.push(now.after(for_us), HousekeepingEvent::Resume { node });
    }

    pub(super) fn resume(&self, env: &mut HousekeepingSurroundings<'_>, node: NodeId) {
        let now = env.cluster.now;
        let member = env.cluster.members.get_mut(&node).expect("a member");
        if member.running == MemberProcessState::Paused {
            member.running = MemberProcessState::Up;
            (member.able_since, member.led_since, member.ended_since) = (now, now, None);
        }
    }

    /// A machine is suspended while hours pass, in which all others went on as ever.
    fn suspend(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        connections: &MemberConnections,
        draw: u64,
        seconds: u64,
    ) {
        let Some(node) = env.cluster.victim(draw) else { return };
        connections.drop_links(env, node, DownReason::Silent);
        env.cluster.skipped_s += seconds;
        let now = env.cluster.calendar();
        for member in env.cluster.members.values_mut().filter(|member| member.is_up()) {
            if member.node != node && now > member.window.renew_after() {
                member.window = window_from(now);
            }
        }
        let now = env.cluster.now;
        let member = env.cluster.members.get_mut(&node).expect("a member");
        (member.running, member.able_since) = (MemberProcessState::Paused, now.after(WAKE_US));
        env.queue.push(now.after(WAKE_US), HousekeepingEvent::Resume { node });
    }

    /// A bit flips in a piece of which another node has a sound copy.
    fn rot_piece(&self, env: &mut HousekeepingSurroundings<'_>, draw: u64) {
        let Some(node) = env.cluster.victim(draw) else { return };
        let Some(store) = env.cluster.members[&node].disk.store() else { return };
        let Ok(names) = store.names() else { return };
        let referred: Vec<_> = env.cluster.agreed.checkpoints.values().flatten().copied().collect();
        let here: Vec<_> =
            referred.into_iter().filter(|piece| names.contains(&piece.name())).collect();
        let rots = here.into_iter().find(|piece| {
            let others = env.cluster.members.keys().filter(|other| **other != node);
            let mut others = others.filter(|other| !env.cluster.members[*other].is_hostile);
            others.any(|other| env.cluster.sound(*other, *piece))
        });
        let Some(piece) = rots else { return };
        let member = env.cluster.members.get_mut(&node).expect("a member");
        if member.disk.rot(piece.name()) {
            env.check.note_rot(node, piece, env.cluster.now);
        }
    }

    /// The hostile member is removed, or a worker of which there are others.
    fn remove(&self, env: &mut HousekeepingSurroundings<'_>, draw: u64) {
        if env.cluster.leader().is_none() {
            return;
        }
        let members = env.cluster.agreed.members();
        let hostile = env.cluster.members.values().find(|member| member.is_hostile);
        let hostile = hostile.map(|member| member.node).filter(|node| members.contains(node));
        let workers = || -> Vec<NodeId> {
            let up =
                env.cluster.up().filter(|member| member.role == Role::Worker && !member.is_hostile);
            up.map(|member| member.node).filter(|node| members.contains(node)).collect()
        };
        let other = || {
            let workers = workers();
            (workers.len() > 1).then(|| workers[(draw % workers.len() as u64) as usize])
        };
        let Some(node) = hostile.or_else(other) else { return };
        if env.cluster.agreed.remove(node) {
            env.line(|| format!("n{node} is removed"));
            env.check.note_removed(node, env.cluster.now);
        }
    }

    /// A worker comes, if there are numbers left.
    fn join(&mut self, env: &mut HousekeepingSurroundings<'_>) {
        if self.node_next > self.node_last {
            return;
        }
        let node = self.node_next;
        self.node_next = NodeId(node.0 + 1);
        env.line(|| format!("w{node} joins"));
        env.add_worker(node, MEMORY_AMPLE);
    }
}

const fn since_beginning(now: VirtualTime) -> Duration {
    Duration::from_micros(now.0)
}

fn rot_index(env: &mut HousekeepingSurroundings<'_>, draw: u64) {
    let Some(node) = env.cluster.victim(draw) else { return };
    let member = env.cluster.members.get_mut(&node).expect("a member");
    if member.disk.aside < ASIDE_MAX && member.disk.rot_index() {
        env.check.note_lost_disk(node);
        env.check.stores.note_fault(node);
    }
}

fn rot_text(env: &mut HousekeepingSurroundings<'_>, node: NodeId, place: u64) {
    let hash = env.cluster.text_name.hash;
    let member = &env.cluster.members[&node];
    let Some(text) = member.texts.get(hash) else { return };
    let mut bytes = text.to_vec();
    let at = place as usize % bytes.len();
    bytes[at] ^= 4;
    member.texts.damage(hash, bytes);
    env.check.note_rotten_text(node, env.cluster.now);
}

fn rot_text_everywhere(env: &mut HousekeepingSurroundings<'_>, place: u64) {
    let honest = env.cluster.members.values().filter(|member| !member.is_hostile);
    let nodes: Vec<NodeId> = honest.map(|member| member.node).collect();
    let place = place % env.cluster.text_name.length;
    for (node, chunk) in nodes.into_iter().zip(0..) {
        rot_text(env, node, place + chunk * TEXT_CHUNK.bytes());
    }
}

fn rot_hashes(env: &HousekeepingSurroundings<'_>, draw: u64) {
    let Some(node) = env.cluster.victim(draw) else { return };
    env.cluster.members[&node].texts.damage_hashes(env.cluster.text_name.hash, draw >> 8);
}
