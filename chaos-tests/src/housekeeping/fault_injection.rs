//! Injects the faults of a life and restarts members; renews certificates and watches disk space as
//! time passes.

use zbelastic_checkpoint::CheckpointStore;
use zbelastic_consensus::member::Role;
use zbelastic_policy::disk_space::DiskSpaceChange;
use zbelastic_policy::renewal::{CertificateStatus, RenewalAction};
use zbelastic_policy::store_opening::{
    ASIDE_MAX, StoreOpeningAction, StoreOpeningFault, after_fault,
};
use zbelastic_transport::DownReason;
use zbelastic_types::{Bytes, NodeId};

use super::check::HousekeepingMarker;
use super::member::{HousekeepingMember, MemberProcess, MemberProcessState};
use super::options::HousekeepingFault;
use super::world::{HousekeepingEvent, HousekeepingWorld, SECOND_US, window_from};

/// A process that stands still for longer is not connected any more.
const SILENT_US: u64 = 3_000_000;
/// A machine that was suspended needs so long to go on.
const WAKE_US: u64 = 4_000_000;

impl HousekeepingWorld<'_> {
    pub(super) fn inject(&mut self, fault: HousekeepingFault) {
        self.line(|| format!("{fault:?}"));
        match fault {
            HousekeepingFault::DiskFull { whom, for_us } => self.spoil_disk(whom, for_us, true),
            HousekeepingFault::StoreStuck { whom, for_us } => self.spoil_disk(whom, for_us, false),
            HousekeepingFault::Crash { whom, for_us, is_damaged } => {
                self.crash(whom, for_us, is_damaged)
            }
            HousekeepingFault::Pause { whom, for_us } => self.pause(whom, for_us),
            HousekeepingFault::Suspend { whom, seconds } => self.suspend(whom, seconds),
            HousekeepingFault::ClocksMove { seconds } => self.skipped_s += seconds,
            HousekeepingFault::RotPiece { whom } => self.rot_piece(whom),
            HousekeepingFault::RotText { whom } => self.rot_text(whom),
            HousekeepingFault::Remove { whom } => self.remove(whom),
            HousekeepingFault::Join => self.join(),
        }
    }

    /// A member that runs and is not hostile.
    fn victim(&self, draw: u64) -> Option<NodeId> {
        let up: Vec<NodeId> =
            self.up().filter(|member| !member.is_hostile).map(|member| member.node).collect();
        (!up.is_empty()).then(|| up[(draw % up.len() as u64) as usize])
    }

    fn spoil_disk(&mut self, draw: u64, for_us: u64, is_filled: bool) {
        let (now, Some(node)) = (self.now, self.victim(draw)) else { return };
        let member = self.members.get_mut(&node).expect("a member");
        member.disk.is_filled |= is_filled;
        member.disk.is_stuck |= !is_filled;
        member.able_since = now.after(for_us);
        self.queue.push(now.after(for_us), HousekeepingEvent::DiskAgain { node });
    }

    pub(super) fn free_disk(&mut self, node: NodeId) {
        let now = self.now;
        let member = self.members.get_mut(&node).expect("a member");
        (member.disk.is_filled, member.disk.is_stuck) = (false, false);
        member.able_since = now;
    }

    fn crash(&mut self, draw: u64, for_us: u64, is_damaged: bool) {
        let (seed, Some(node)) = (self.draws.number(), self.victim(draw)) else { return };
        self.drop_links(node, DownReason::Reset);
        let member = self.members.get_mut(&node).expect("a member");
        member.running = MemberProcessState::Down;
        member.life += 1;
        member.disk.crash(seed);
        let is_damaged = is_damaged && member.disk.aside < ASIDE_MAX && member.disk.damage_index();
        if is_damaged {
            self.check.note_lost_disk(node);
        }
        self.queue.push(self.now.after(for_us), HousekeepingEvent::Restart { node });
    }

    /// A process begins again on the disk that it has.
    pub(super) fn restart(&mut self, node: NodeId) {
        let turned = self.draws.number();
        let controllers = self.controllers();
        let now = self.now;
        let member = self.members.get_mut(&node).expect("a member");
        if member.running != MemberProcessState::Down {
            return;
        }
        if let Err(error) = member.disk.open() {
            let is_damage = error.is_damage();
            let fault =
                if is_damage { StoreOpeningFault::Damage } else { StoreOpeningFault::Store };
            let taken = member.disk.aside;
            match after_fault(fault, true, |number| number <= taken) {
                StoreOpeningAction::BeginAnew { aside } => {
                    member.disk.begin_anew(aside);
                    self.check.markers.note(HousekeepingMarker::StoreBegunAnew);
                }
                StoreOpeningAction::GoWithout => {}
                StoreOpeningAction::Refuse => {
                    member.running = MemberProcessState::Ended;
                    return self.check_not_started(node, &error.to_string());
                }
            }
        }
        let member = self.members.get_mut(&node).expect("a member");
        member.process = MemberProcess::new(node, controllers, &member.texts, turned);
        member.running = MemberProcessState::Up;
        (member.able_since, member.led_since, member.ended_since) = (now, now, None);
        self.line(|| format!("n{node} is back"));
    }

    fn pause(&mut self, draw: u64, for_us: u64) {
        let Some(node) = self.victim(draw) else { return };
        if for_us > SILENT_US {
            self.drop_links(node, DownReason::Silent);
        }
        let now = self.now;
        let member = self.members.get_mut(&node).expect("a member");
        (member.running, member.able_since) = (MemberProcessState::Paused, now.after(for_us));
        self.queue.push(now.after(for_us), HousekeepingEvent::Resume { node });
    }

    pub(super) fn resume(&mut self, node: NodeId) {
        let now = self.now;
        let member = self.members.get_mut(&node).expect("a member");
        if member.running == MemberProcessState::Paused {
            member.running = MemberProcessState::Up;
            (member.able_since, member.led_since, member.ended_since) = (now, now, None);
        }
    }

    /// A machine is suspended while hours pass, in which all others went on as ever.
    fn suspend(&mut self, draw: u64, seconds: u64) {
        let Some(node) = self.victim(draw) else { return };
        self.drop_links(node, DownReason::Silent);
        self.skipped_s += seconds;
        let now = self.calendar();
        for member in self.members.values_mut().filter(|member| member.is_up()) {
            if member.node != node && now > member.window.renew_after() {
                member.window = window_from(now);
            }
        }
        let now = self.now;
        let member = self.members.get_mut(&node).expect("a member");
        (member.running, member.able_since) = (MemberProcessState::Paused, now.after(WAKE_US));
        self.queue.push(now.after(WAKE_US), HousekeepingEvent::Resume { node });
    }

    /// A bit flips in a piece of which another node has a sound copy.
    fn rot_piece(&mut self, draw: u64) {
        let Some(node) = self.victim(draw) else { return };
        let Some(store) = self.members[&node].disk.store() else { return };
        let names = store.names().expect("a disk in memory does not fail");
        let referred: Vec<_> = self.agreed.checkpoints.values().flatten().copied().collect();
        let here: Vec<_> =
            referred.into_iter().filter(|piece| names.contains(&piece.name())).collect();
        let rots = here.into_iter().find(|piece| {
            let others = self.members.keys().filter(|other| **other != node);
            let mut others = others.filter(|other| !self.members[*other].is_hostile);
            others.any(|other| self.sound(*other, *piece))
        });
        let Some(piece) = rots else { return };
        let member = self.members.get_mut(&node).expect("a member");
        if member.disk.rot(piece.name()) {
            self.check.note_rot(node, piece, self.now);
        }
    }

    fn rot_text(&mut self, draw: u64) {
        let Some(node) = self.victim(draw) else { return };
        let hash = self.text_name().hash;
        let member = &self.members[&node];
        let Some(text) = member.texts.get(hash) else { return };
        let mut bytes = text.to_vec();
        let at = bytes.len() / 3;
        bytes[at] ^= 4;
        member.texts.put(hash, bytes);
        self.check.note_rotten_text(node, self.now);
    }

    /// The hostile member is removed, or a worker of which there are others.
    fn remove(&mut self, draw: u64) {
        if self.leader().is_none() {
            return;
        }
        let members = self.agreed.members();
        let hostile = self.members.values().find(|member| member.is_hostile);
        let hostile = hostile.map(|member| member.node).filter(|node| members.contains(node));
        let workers = || -> Vec<NodeId> {
            let up = self.up().filter(|member| member.role == Role::Worker && !member.is_hostile);
            up.map(|member| member.node).filter(|node| members.contains(node)).collect()
        };
        let other = || {
            let workers = workers();
            (workers.len() > 1).then(|| workers[(draw % workers.len() as u64) as usize])
        };
        let Some(node) = hostile.or_else(other) else { return };
        if self.agreed.remove(node) {
            self.line(|| format!("n{node} is removed"));
            self.check.note_removed(node, self.now);
        }
    }

    /// A look at a member's certificate.
    pub(super) fn tick_certificate(&mut self, node: NodeId) {
        let now = self.calendar();
        let member = self.members.get_mut(&node).expect("a member");
        let clock = member.clock(now);
        let window = member.window;
        let look =
            || CertificateStatus { now: clock, window, is_replaced: false, is_untrusted: false };
        let next = member.process.renewal.handle_tick(look);
        let at = (node, member.life);
        let role = member.role;
        if next == RenewalAction::Wait {
            return;
        }
        // A controller has the authority, and sends no request.
        let took = if role == Role::Controller { 0 } else { 2 * self.latency() };
        let is_at_door = next == RenewalAction::RequestAsJoiner;
        self.queue.push(self.now.after(took), HousekeepingEvent::Renewed { at, is_at_door });
    }

    pub(super) fn handle_renewed(&mut self, at: (NodeId, u64), is_at_door: bool) {
        let node = at.0;
        let now = self.calendar();
        let leader = self.leader();
        let is_let_in = self.agreed.state.access().credential(node).is_some();
        let is_reached = leader.is_some_and(|leader| self.is_linked(leader, node));
        let Some(member) = self.process(at) else { return };
        let is_answered = match member.role {
            Role::Controller => true,
            Role::Worker => is_let_in && (is_reached || (is_at_door && leader.is_some())),
        };
        if is_answered {
            member.window = window_from(now);
            let seen = if is_at_door {
                HousekeepingMarker::RenewedAtTheDoor
            } else {
                HousekeepingMarker::Renewed
            };
            self.check.markers.note(seen);
        }
    }

    /// A look at a member's disk.
    pub(super) fn tick_disk_space(&mut self, node: NodeId) {
        let checkpoint = Bytes(self.layer_bytes.iter().sum());
        let member = self.members.get_mut(&node).expect("a member");
        if !member.process.disk_watch.handle_tick() {
            return;
        }
        let space = member.disk.disk_space();
        let change = member.process.disk_watch.note(Some(space), checkpoint);
        match change {
            Some(DiskSpaceChange::Low(_)) => {
                self.check.markers.note(HousekeepingMarker::DiskLow);
                self.collect_unused();
            }
            Some(DiskSpaceChange::Ample) | None => {}
        }
    }

    /// Since when a member's certificate is over though it could have another one.
    pub(super) fn note_certificates(&mut self) {
        let now = self.calendar();
        let is_led = self.leader().is_some();
        let at = self.now;
        for member in self.members.values_mut().filter(|member| member.is_up()) {
            let is_over = is_led && member.is_ended(now);
            member.ended_since = is_over.then(|| member.ended_since.unwrap_or(at));
        }
    }

    /// Whether a second begins.
    pub(super) const fn is_second(&self) -> bool {
        self.now.0.is_multiple_of(SECOND_US)
    }
}

impl HousekeepingMember {
    /// Whether its disk stores what there is space for.
    #[must_use]
    pub fn has_disk(&self) -> bool {
        !self.disk.is_filled && !self.disk.is_stuck && self.disk.store().is_some()
    }
}
