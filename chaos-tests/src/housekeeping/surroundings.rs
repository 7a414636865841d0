//! The state that the components of a life share: the cluster, the queue of events, draws, the checks
//! and the log.

use zbelastic_consensus::member::Role;
use zbelastic_identity::UnixSeconds;
use zbelastic_types::{Bytes, NodeId};

use super::certificates::{LIFE_S, window_from};
use super::check::HousekeepingChecker;
use super::cluster::HousekeepingCluster;
use super::disk::{MemberDisk, MemberTexts};
use super::logs::{DiskReport, broken_hold};
use super::member::{HousekeepingMember, MemberProcess, MemberProcessState};
use super::rotation::MemberAuthority;
use super::world::{HousekeepingEvent, MemberMessage};
use crate::failure::{Invariant, LifeFailure};
use crate::log::EventLog;
use crate::queue::VirtualTimeQueue;
use crate::random::Draws;

/// How far apart clocks are at most: what certificates tolerate, less a minute.
const SKEW_S_MAX: u64 = 240;

/// The state that every component of a life reads and changes.
pub(super) struct HousekeepingSurroundings<'a> {
    pub(super) cluster: HousekeepingCluster,
    pub(super) draws: Draws,
    pub(super) queue: VirtualTimeQueue<HousekeepingEvent>,
    pub(super) check: HousekeepingChecker,
    pub(super) log: &'a mut EventLog,
}

impl HousekeepingSurroundings<'_> {
    /// Which controller leads now.
    pub(super) fn note_leading(&mut self) {
        let leader = self.cluster.leader();
        let now = self.cluster.now;
        for member in self.cluster.members.values_mut() {
            member.process.logs.note_leading(leader == Some(member.node), now);
        }
    }

    /// A controller has measured its disks: it sends that to the others.
    pub(super) fn report_disk(&mut self, node: NodeId, report: DiskReport) {
        if self.cluster.members[&node].role != Role::Controller {
            return;
        }
        self.note_disk_report(node, node, report);
        // No draw: reports change nothing of a life that nothing fills a log in.
        let at = self.cluster.now.after(self.cluster.options.link_us);
        for to in self.cluster.controllers().into_iter().filter(|to| *to != node) {
            let message = MemberMessage::Disk(report);
            self.queue.push(at, HousekeepingEvent::Message { from: node, to, message });
        }
    }

    /// A member reports the space on its disks to a controller.
    pub(super) fn note_disk_report(&mut self, node: NodeId, from: NodeId, report: DiskReport) {
        let controllers = Vec::from_iter(self.cluster.controllers());
        let leads = self.cluster.leader() == Some(node);
        let member = self.cluster.members.get_mut(&node).expect("a member");
        member.process.logs.note_report(from, report, (&controllers, leads));
    }

    /// Whether the leader holds the run for want of space for logs, as it is to seal a version.
    pub(super) fn is_held_for_logs(&mut self, leader: NodeId) -> bool {
        let held = self.cluster.members[&leader].process.logs.held.clone();
        if !held.is_empty() {
            self.line(|| format!("n{leader} holds the run for the logs of {held:?}"));
        }
        if let Some(message) = broken_hold(&self.cluster, leader, !held.is_empty()) {
            self.check.fail(LifeFailure::safety(Invariant::H14, message));
        }
        self.check.note_held(!held.is_empty());
        !held.is_empty()
    }

    pub(super) fn line(&mut self, line: impl FnOnce() -> String) {
        let now = self.cluster.now;
        self.log.line(|| format!("{now} {}", line()));
    }

    pub(super) fn latency(&mut self) -> u64 {
        self.draws.between(100, self.cluster.options.link_us)
    }

    pub(super) fn send(&mut self, from: NodeId, to: NodeId, message: MemberMessage) {
        let at = self.cluster.now.after(self.latency());
        self.queue.push(at, HousekeepingEvent::Message { from, to, message });
    }

    /// A worker is admitted and begins.
    pub(super) fn add_worker(&mut self, node: NodeId, memory: Bytes) {
        self.cluster.agreed.admit(node, memory);
        self.add(node, Role::Worker, memory);
    }

    /// A member begins with an empty disk and a certificate of some age.
    pub(super) fn add(&mut self, node: NodeId, role: Role, memory: Bytes) {
        let texts = MemberTexts::default();
        // Disk space for all that is kept, and as much again for what fails.
        let total = self.cluster.checkpoint_bytes.0 * (self.cluster.options.kept as u64 + 4) * 2;
        let process =
            MemberProcess::new(node, self.cluster.controllers(), &texts, self.draws.number());
        let age_s = self.draws.below(LIFE_S / 2);
        let member = HousekeepingMember {
            node,
            role,
            is_hostile: false,
            running: MemberProcessState::Up,
            life: 0,
            memory,
            disk: MemberDisk::new(total),
            texts,
            skew_s: self.draws.below(SKEW_S_MAX),
            authority: MemberAuthority::by(self.cluster.issuing(), role),
            window: window_from(UnixSeconds(self.cluster.calendar().0 - age_s)),
            process,
            able_since: self.cluster.now,
            log_since: self.cluster.now,
            led_since: self.cluster.now,
            ended_since: None,
        };
        self.cluster.members.insert(node, member);
    }

    /// Checks bans ten times a second, and all else once a second.
    pub(super) fn check_promises(&mut self) {
        self.check.check_bans(&self.cluster);
        if !self.cluster.is_second() {
            return;
        }
        self.cluster.note_certificates();
        self.check.check_certificates(&self.cluster);
        self.check.check_disks(&self.cluster);
        self.check.check_closed(&self.cluster);
        self.check.check_rot(&self.cluster);
        self.check.check_texts(&self.cluster);
        self.check.check_placed(&self.cluster);
    }
}
