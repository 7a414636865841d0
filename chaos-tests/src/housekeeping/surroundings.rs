//! The state that the components of a life share: the cluster, the queue of events, draws, the checks
//! and the log.

use zbelastic_consensus::member::Role;
use zbelastic_identity::UnixSeconds;
use zbelastic_types::{Bytes, NodeId};

use super::certificates::{LIFE_S, window_from};
use super::check::HousekeepingChecker;
use super::cluster::HousekeepingCluster;
use super::disk::{MemberDisk, MemberTexts};
use super::member::{HousekeepingMember, MemberProcess, MemberProcessState};
use super::rotation::MemberAuthority;
use super::world::{HousekeepingEvent, MemberMessage};
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
        self.check.check_rot(&self.cluster);
        self.check.check_texts(&self.cluster);
        self.check.check_placed(&self.cluster);
    }
}
