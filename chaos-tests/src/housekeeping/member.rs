//! A member: the product's decisions, with a disk, a clock and connections that a life gives it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbelastic_consensus::contacts::Contacts;
use zbelastic_consensus::member::Role;
use zbelastic_identity::{PeerRole, UnixSeconds, ValidityWindow};
use zbelastic_policy::data::DataFetch;
use zbelastic_policy::disk_space::DiskSpaceWatch;
use zbelastic_policy::keep_queue::KeepQueue;
use zbelastic_policy::piece::PieceRef;
use zbelastic_policy::piece_copies::PieceCopies;
use zbelastic_policy::renewal::RenewalWatch;
use zbelastic_policy::roster::Roster;
use zbelastic_policy::scrub::Scrubber;
use zbelastic_policy::store_reopening::StoreReopening;
use zbelastic_policy::trust::DuplicateIdentityReports;
use zbelastic_types::{Bytes, NodeId, Step};

use super::disk::{MemberDisk, MemberTexts};
use super::logs::ControllerLogs;
use super::rotation::MemberAuthority;
use crate::queue::VirtualTime;

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberProcessState {
    /// The process of the member runs.
    Up,
    /// The process stands still.
    Paused,
    /// The process ended and is to come back.
    Down,
    /// The process of the member ended.
    Ended,
}

/// A member of the cluster.
pub struct HousekeepingMember {
    /// Number of the node.
    pub node: NodeId,
    /// Whether the node is a controller or a worker.
    pub role: Role,
    /// Whether the member is hostile.
    pub is_hostile: bool,
    /// Whether its process runs.
    pub running: MemberProcessState,
    /// Grows with each start: what an earlier process began is not this one's.
    pub life: u64,
    /// Bytes of memory for training.
    pub memory: Bytes,
    /// The disk of its machine.
    pub disk: MemberDisk,
    /// Texts on its disk.
    pub texts: MemberTexts,
    /// By how many seconds its clock is ahead.
    pub skew_s: u64,
    /// From when to when its certificate is good.
    pub window: ValidityWindow,
    /// Who made its certificate, and whom it trusts.
    pub authority: MemberAuthority,
    /// What its process holds.
    pub process: MemberProcess,
    /// Since when it could take a piece from everybody.
    pub able_since: VirtualTime,
    /// Since when its log is nearly full, or has space, as far as something began to fill it or stopped.
    pub log_since: VirtualTime,
    /// Since when it is connected with the leader.
    pub led_since: VirtualTime,
    /// Since when its certificate is over, though it could have another one.
    pub ended_since: Option<VirtualTime>,
}

/// What a process holds, and loses when it dies.
pub struct MemberProcess {
    /// The members of the cluster, as it knows them.
    pub roster: Roster,
    /// Contacts of members, as it received them last.
    pub contacts: Arc<Contacts>,
    /// Pieces of its own that are being written to disks.
    pub copies: PieceCopies,
    /// What others may fetch of them from memory.
    pub offered: BTreeMap<PieceRef, Arc<Vec<u8>>>,
    /// Pieces to be kept for others.
    pub keeping: KeepQueue,
    /// Attempts to open its store again.
    pub reopening: StoreReopening,
    /// What reads its disk.
    pub scrubber: Scrubber<MemberTexts>,
    /// Its looks at its certificate.
    pub renewal: RenewalWatch,
    /// Its looks at its disk.
    pub disk_watch: DiskSpaceWatch,
    /// What it knows of the logs of controllers, if it is one.
    pub logs: ControllerLogs,
    /// The members that accused it of living twice.
    pub accusers: DuplicateIdentityReports,
    /// The newest version it knows to be sealed.
    pub newest: Step,
    /// Nodes whose connections it does not take.
    pub banned: BTreeSet<NodeId>,
    /// A text that it fetches.
    pub fetch: Option<DataFetch>,
    /// Bytes that its store has taken.
    pub stored_bytes: u64,
    /// The same at the last tick.
    pub stored_bytes_before: u64,
}

impl MemberProcess {
    /// A process that begins, and knows these controllers.
    #[must_use]
    pub fn new(
        node: NodeId,
        controllers: BTreeSet<NodeId>,
        texts: &MemberTexts,
        turned: u64,
    ) -> Self {
        Self {
            roster: Roster::new(node, controllers),
            contacts: Arc::default(),
            copies: PieceCopies::default(),
            offered: BTreeMap::new(),
            keeping: KeepQueue::default(),
            reopening: StoreReopening::default(),
            scrubber: Scrubber::new(texts.clone(), turned),
            renewal: RenewalWatch::default(),
            disk_watch: DiskSpaceWatch::default(),
            logs: ControllerLogs::default(),
            accusers: DuplicateIdentityReports::default(),
            newest: Step(0),
            banned: BTreeSet::new(),
            fetch: None,
            stored_bytes: 0,
            stored_bytes_before: 0,
        }
    }
}

impl HousekeepingMember {
    /// Whether its process runs.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.running == MemberProcessState::Up
    }

    /// Whether it runs and means well.
    #[must_use]
    pub fn is_honest_and_up(&self) -> bool {
        self.is_up() && !self.is_hostile
    }

    /// Whether its disk stores what there is space for.
    #[must_use]
    pub fn has_disk(&self) -> bool {
        !self.disk.is_filled && !self.disk.is_stuck && !self.disk.has_stopped()
    }

    /// What its clock shows when the right one shows `now`.
    #[must_use]
    pub const fn clock(&self, now: UnixSeconds) -> UnixSeconds {
        now.plus(self.skew_s)
    }

    /// Whether its certificate is over by its own clock.
    #[must_use]
    pub fn is_ended(&self, now: UnixSeconds) -> bool {
        self.clock(now) > self.window.not_after
    }
}

/// A member's role as it stands in certificates.
#[must_use]
pub const fn peer_role(role: Role) -> PeerRole {
    match role {
        Role::Controller => PeerRole::Controller,
        Role::Worker => PeerRole::Worker,
    }
}
