//! Connections of a life, what is received over them, and texts that are fetched.

use std::sync::Arc;

use zbelastic_identity::CLOCK_TOLERANCE_SECONDS;
use zbelastic_policy::data::{DataFetch, DataFetchAction, DataFetchOutcome, DataName};
use zbelastic_policy::trust::{ClaimContext, MemberClaim, check_claim, is_removal};
use zbelastic_transport::{CloseCode, DownReason};
use zbelastic_types::{NodeId, StageIndex};

use super::check::HousekeepingMarker;
use super::member::{HousekeepingMember, MemberProcessState, peer_role};
use super::world::{HousekeepingEvent, HousekeepingWorld, MemberMessage};

/// Contacts are sent again to a member that has not followed them after so long.
const RESEND_US: u64 = 500_000;
/// From one attempt to fetch a text to the next.
const TEXT_EVERY_US: u64 = 2_000_000;
/// A message to a process that stands still waits so long at a time.
const STANDS_STILL_US: u64 = 100_000;

const fn pair(one: NodeId, other: NodeId) -> (NodeId, NodeId) {
    if one.0 < other.0 { (one, other) } else { (other, one) }
}

impl HousekeepingWorld<'_> {
    pub(super) fn is_linked(&self, one: NodeId, other: NodeId) -> bool {
        self.links.contains(&pair(one, other))
    }

    /// Connects each pair of members that may be connected.
    pub(super) fn connect(&mut self) {
        let now = self.calendar();
        let up: Vec<NodeId> = self.up().map(|member| member.node).collect();
        let believes = |one: &HousekeepingMember, other: &HousekeepingMember| {
            let is_good = one.clock(now) <= other.window.not_after.plus(CLOCK_TOLERANCE_SECONDS);
            (is_good || one.is_hostile) && !one.process.banned.contains(&other.node)
        };
        for (index, one) in up.iter().enumerate() {
            for other in &up[index + 1..] {
                let a = &self.members[one];
                let b = &self.members[other];
                let is_new = !self.links.contains(&pair(*one, *other));
                if is_new && believes(a, b) && believes(b, a) {
                    self.link(*one, *other);
                }
            }
        }
        let leader = self.leader();
        for node in up {
            let is_led =
                leader.is_some_and(|leader| leader == node || self.is_linked(leader, node));
            if !is_led {
                self.members.get_mut(&node).expect("a member").led_since = self.now;
            }
        }
    }

    fn link(&mut self, one: NodeId, other: NodeId) {
        self.links.insert(pair(one, other));
        for (node, peer) in [(one, other), (other, one)] {
            let now = self.now;
            let is_hostile = self.members[&peer].is_hostile;
            let member = self.members.get_mut(&node).expect("a member");
            member.process.roster.note_up(peer);
            if !is_hostile {
                member.able_since = now;
            }
        }
    }

    /// A connection ends: each end knows why.
    pub(super) fn unlink(&mut self, (one, one_reason): (NodeId, DownReason), other: NodeId) {
        if !self.links.remove(&pair(one, other)) {
            return;
        }
        self.note_down(one, other, one_reason);
        let reason = match one_reason {
            DownReason::Banned => DownReason::ClosedByPeer(CloseCode::Banned),
            DownReason::ClosedByPeer(_) => DownReason::Closing,
            DownReason::Left
            | DownReason::ProcessEnded
            | DownReason::Silent
            | DownReason::Reset
            | DownReason::Replaced
            | DownReason::Forgotten
            | DownReason::Violation(_)
            | DownReason::Broken
            | DownReason::Closing => one_reason,
        };
        self.note_down(other, one, reason);
    }

    fn note_down(&mut self, node: NodeId, peer: NodeId, reason: DownReason) {
        let now = self.now;
        let role = self.members[&peer].role;
        let is_hostile = self.members[&peer].is_hostile;
        let member = self.members.get_mut(&node).expect("a member");
        member.process.roster.note_down(peer);
        if !is_hostile {
            member.able_since = now;
        }
        // A hostile member goes on after it was removed.
        if !member.is_up() || member.is_hostile {
            return;
        }
        let nexts = member.process.copies.note_down(peer);
        for (piece, next) in nexts {
            self.continue_copying(node, piece, next);
        }
        if is_removal(peer_role(role), reason) {
            self.end(node, peer);
        }
    }

    /// A process ends because of what its peers sent.
    pub(super) fn end(&mut self, node: NodeId, because_of: NodeId) {
        self.line(|| format!("n{node} ends, n{because_of} says so"));
        self.check_end(node, because_of);
        self.drop_links(node, DownReason::ProcessEnded);
        let member = self.members.get_mut(&node).expect("a member");
        member.running = MemberProcessState::Ended;
        member.life += 1;
    }

    /// All connections of a node end.
    pub(super) fn drop_links(&mut self, node: NodeId, reason: DownReason) {
        let others: Vec<NodeId> =
            self.members.keys().copied().filter(|other| self.is_linked(node, *other)).collect();
        for other in others {
            self.unlink((other, reason), node);
        }
    }

    /// The leader sends where members are, and which nodes are members no more.
    pub(super) fn send_contacts(&mut self) {
        let Some(leader) = self.leader() else { return };
        let contacts = Arc::new(self.agreed.state.membership().contacts());
        let is_again = self.now.0.is_multiple_of(RESEND_US);
        let lacking = self.agreed.members().into_iter().filter(|node| {
            let member = &self.members[node];
            let knows = member.process.contacts.index >= contacts.index
                && member.process.roster.has_applied(contacts.index);
            member.is_up() && !knows && (is_again || self.check.has_newer_contacts(contacts.index))
        });
        let lacking: Vec<NodeId> = lacking.collect();
        self.check.note_contacts_sent(contacts.index);
        for node in lacking {
            let message = MemberMessage::Contacts(contacts.clone());
            if node == leader {
                self.handle_message(node, leader, message);
            } else {
                self.send(leader, node, message);
            }
        }
    }

    /// A message arrives, if the connection is there.
    pub(super) fn deliver(&mut self, from: NodeId, to: NodeId, message: MemberMessage) {
        match self.members[&to].running {
            MemberProcessState::Up if from == to || self.is_linked(from, to) => {
                self.handle_message(to, from, message)
            }
            MemberProcessState::Paused if self.is_linked(from, to) => {
                let at = self.now.after(STANDS_STILL_US);
                self.queue.push(at, HousekeepingEvent::Message { from, to, message });
            }
            MemberProcessState::Up
            | MemberProcessState::Paused
            | MemberProcessState::Down
            | MemberProcessState::Ended => {}
        }
    }

    fn handle_message(&mut self, node: NodeId, from: NodeId, message: MemberMessage) {
        if self.members[&node].is_hostile {
            return self.handle_hostile_message(node, from, message);
        }
        if !self.counts(node, from, &message) {
            return self.check.markers.note(HousekeepingMarker::ClaimRefused);
        }
        self.check_claimed(node, from, &message);
        match message {
            MemberMessage::Keep(piece) => self.keep_for(node, from, piece),
            MemberMessage::Kept(piece) => self.note_copy(node, from, (piece, true)),
            MemberMessage::NotKept(piece) => self.note_copy(node, from, (piece, false)),
            MemberMessage::Keeping(piece) => {
                let member = self.members.get_mut(&node).expect("a member");
                member.process.copies.note_progress(piece, from);
            }
            MemberMessage::Collect(referred) => self.collect_at(node, &referred),
            MemberMessage::KeepData(name) => self.fetch_text(node, name, vec![from]),
            MemberMessage::HeldOut | MemberMessage::StageReport => {}
            MemberMessage::SaveFailed(version) => {
                let owners = self.agreed.pending.get(&version).map(|pending| &pending.owners);
                let is_owner = owners.is_some_and(|all| all.values().any(|(at, _)| *at == from));
                if Some(node) == self.leader() && is_owner {
                    self.line(|| format!("checkpoint {version} failed, n{from} says"));
                    self.agreed.give_up(version);
                }
            }
            MemberMessage::Contacts(contacts) => self.follow(node, contacts),
        }
    }

    /// Whether what a message claims counts with a node.
    fn counts(&self, node: NodeId, from: NodeId, message: &MemberMessage) -> bool {
        let plan = self.plans.current();
        let claim = match message {
            MemberMessage::Collect(_) => MemberClaim::Collect,
            MemberMessage::KeepData(name) => MemberClaim::KeepData(*name),
            MemberMessage::HeldOut => MemberClaim::HeldOut,
            MemberMessage::StageReport => MemberClaim::StageReport {
                generation: plan.map(|plan| plan.generation).unwrap_or_default(),
                stage: StageIndex(0),
            },
            MemberMessage::Keep(_)
            | MemberMessage::Kept(_)
            | MemberMessage::NotKept(_)
            | MemberMessage::Keeping(_)
            | MemberMessage::SaveFailed(_)
            | MemberMessage::Contacts(_) => return true,
        };
        let own = peer_role(self.members[&node].role);
        let job_data = [self.text_name()];
        let known = ClaimContext {
            own,
            plan: plan.map(|plan| &**plan),
            had_head: false,
            job_data: &job_data,
        };
        check_claim((from, peer_role(self.members[&from].role)), claim, known).is_ok()
    }

    fn note_copy(
        &mut self,
        node: NodeId,
        from: NodeId,
        (piece, is_kept): (zbelastic_policy::piece::PieceRef, bool),
    ) {
        if is_kept {
            self.check.note_keep_claimed(piece, from, self.members[&from].is_hostile);
        }
        let member = self.members.get_mut(&node).expect("a member");
        let next = member.process.copies.note_kept(piece, from, is_kept);
        self.continue_copying(node, piece, next);
    }

    fn follow(&mut self, node: NodeId, contacts: Arc<zbelastic_consensus::contact::Contacts>) {
        let member = self.members.get_mut(&node).expect("a member");
        if contacts.index < member.process.contacts.index {
            return;
        }
        let change = member.process.roster.apply_contacts(&contacts);
        member.process.contacts = contacts;
        let Some(change) = change else { return };
        member.process.banned.extend(&change.banned);
        for banned in change.banned {
            self.check.markers.note(HousekeepingMarker::Banned);
            self.unlink((node, DownReason::Banned), banned);
        }
    }

    /// Each member that lacks the text fetches it.
    pub(super) fn fetch_missing_texts(&mut self) {
        if !self.now.0.is_multiple_of(TEXT_EVERY_US) {
            return;
        }
        let name = self.text_name();
        let lacks = |member: &&HousekeepingMember| {
            let has = member.texts.get(name.hash).is_some();
            !member.is_hostile && !has && member.process.fetch.is_none()
        };
        let lacking: Vec<NodeId> = self.up().filter(lacks).map(|member| member.node).collect();
        for node in lacking {
            let process = &self.members[&node].process;
            let holders = process.roster.holders(&process.contacts);
            self.fetch_text(node, name, holders);
        }
    }

    /// A text is fetched from these, unless one is being fetched.
    pub(super) fn fetch_text(&mut self, node: NodeId, name: DataName, holders: Vec<NodeId>) {
        let member = self.members.get_mut(&node).expect("a member");
        let here = member.texts.get(name.hash);
        let is_sound = here.is_some_and(|bytes| DataName::of(&bytes) == name);
        if member.process.fetch.is_some() || is_sound || holders.is_empty() {
            return;
        }
        let (fetch, next) = DataFetch::new(holders);
        member.process.fetch = Some(fetch);
        self.continue_fetch(node, next);
    }

    fn continue_fetch(&mut self, node: NodeId, next: DataFetchAction) {
        let name = self.text_name();
        let life = self.members[&node].life;
        match next {
            DataFetchAction::Request(requested) => {
                let outcome = self.served_text(node, &requested);
                let at = self.now.after(self.latency() + self.draws.between(1000, 200_000));
                self.queue
                    .push(at, HousekeepingEvent::Texts { at: (node, life), requested, outcome });
            }
            DataFetchAction::Done { damaged } => {
                let text = self.text.to_vec();
                let member = self.members.get_mut(&node).expect("a member");
                member.process.fetch = None;
                member.texts.put(name.hash, text);
                self.line(|| format!("n{node} has the text, damaged at {damaged:?}"));
                if !damaged.is_empty() {
                    self.check.markers.note(HousekeepingMarker::DamagedCopyNamed);
                }
                for other in damaged {
                    self.send(node, other, MemberMessage::KeepData(name));
                }
            }
            DataFetchAction::Failed { .. } => {
                self.members.get_mut(&node).expect("a member").process.fetch = None;
            }
        }
    }

    /// What comes of requesting from these at once: chunks come from all that have it, so one
    /// damaged copy spoils the whole.
    fn served_text(&self, node: NodeId, requested: &[NodeId]) -> DataFetchOutcome {
        let name = self.text_name();
        let there = requested.iter().filter(|other| self.is_linked(node, **other));
        let there = there.filter_map(|other| self.members.get(other).filter(|m| m.is_up()));
        let copies: Vec<bool> = there
            .filter_map(|member| {
                let copy = member.texts.get(name.hash)?;
                Some(!member.is_hostile && DataName::of(&copy) == name)
            })
            .collect();
        match copies.iter().position(|is_sound| !is_sound) {
            Some(_) => DataFetchOutcome::Damaged,
            None if copies.is_empty() => DataFetchOutcome::Missing,
            None => DataFetchOutcome::Sound,
        }
    }

    pub(super) fn handle_text(
        &mut self,
        at: (NodeId, u64),
        requested: &[NodeId],
        outcome: DataFetchOutcome,
    ) {
        let Some(member) = self.process(at) else { return };
        let Some(fetch) = &mut member.process.fetch else { return };
        let next = fetch.note(outcome);
        self.line(|| format!("n{} asked {requested:?} for the text: {outcome:?}", at.0));
        self.continue_fetch(at.0, next);
    }
}
