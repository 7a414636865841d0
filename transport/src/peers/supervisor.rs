//! The task that owns what is known of the peers.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use zbelastic_types::NodeId;

use super::admission::{ClientDecision, LinkDecision, LinkFacts, admit, admit_client};
use super::backoff::pause_before_dial;
use super::desired_peers::DesiredPeers;
use super::peer_state::{DialState, PeerState, PresentLink};
use crate::endpoint::{
    CloseCode, ConnectionCloser, DialProblem, Dialler, LinkEnd, PeerConnection, PeerDialFailure,
    TransportContext, run_client, run_link,
};
use crate::event::{DownReason, TransportEvent};

/// Where the keeper receives connections that others dialled.
pub(crate) type ConnectionReceiver = mpsc::Receiver<PeerConnection>;

/// The task that owns what is known of the peers.
pub(crate) struct PeerSupervisor {
    context: Arc<TransportContext>,
    dialler: Dialler,
    peers: BTreeMap<NodeId, PeerState>,
    members: usize,
    clients: BTreeMap<u64, (NodeId, ConnectionCloser)>,
    clients_accepted: u64,
    /// How often their connections ended because the node wanted it.
    clients_closed: u64,
    attempts: u64,
    dials: JoinSet<(NodeId, Result<PeerConnection, PeerDialFailure>)>,
    links: JoinSet<LinkEnd>,
    client_links: JoinSet<u64>,
}

impl PeerSupervisor {
    pub(crate) fn new(context: Arc<TransportContext>, dialler: Dialler) -> Self {
        Self {
            context,
            dialler,
            peers: BTreeMap::new(),
            members: 0,
            clients: BTreeMap::new(),
            clients_accepted: 0,
            clients_closed: 0,
            attempts: 0,
            dials: JoinSet::new(),
            links: JoinSet::new(),
            client_links: JoinSet::new(),
        }
    }

    /// Follows the wishes until the transport closes, then waits for the connections to end.
    pub(crate) async fn run(
        mut self,
        mut inbox: ConnectionReceiver,
        mut wishes: watch::Receiver<DesiredPeers>,
    ) {
        // What was wished for before this task began is news as well.
        wishes.mark_changed();
        loop {
            let due = self.next_due();
            tokio::select! {
                changed = wishes.changed() => {
                    let wishes = wishes.borrow_and_update().clone();
                    if changed.is_err() || wishes.closing {
                        break;
                    }
                    self.apply_desired(&wishes);
                }
                Some(greeted) = inbox.recv() => self.handle_greeted(greeted),
                Some(Ok((node, result))) = self.dials.join_next() => {
                    self.handle_dialled(node, result).await;
                }
                Some(Ok(end)) = self.links.join_next() => self.handle_end(end).await,
                Some(Ok(client)) = self.client_links.join_next() => {
                    self.clients.remove(&client);
                }
                () = sleep_until(due), if due.is_some() => self.dial_due(),
            }
        }
        self.close().await;
    }

    fn next_due(&self) -> Option<Instant> {
        let due = |seat: &PeerState| match seat.dial {
            DialState::Due(at) => Some(at),
            DialState::Idle | DialState::UnderWay => None,
        };
        self.peers.values().filter_map(due).min()
    }

    fn apply_desired(&mut self, wishes: &DesiredPeers) {
        for (node, seat) in &mut self.peers {
            let is_banned = wishes.banned.contains(node);
            let is_forgotten = seat.desired.is_some() && !wishes.peers.contains_key(node);
            if !is_banned && !is_forgotten {
                continue;
            }
            seat.desired = None;
            seat.dial = DialState::Idle;
            let reason = if is_banned { DownReason::Banned } else { DownReason::Forgotten };
            if let Some((_, next)) = seat.next.take() {
                next.refuse(if is_banned { CloseCode::Banned } else { CloseCode::Left });
            }
            if let Some(present) = &seat.present {
                present.closer.close(reason);
            }
        }
        for (node, closer) in self.clients.values() {
            if wishes.banned.contains(node) {
                closer.close(DownReason::Banned);
            } else if wishes.clients_closed > self.clients_closed {
                closer.close(DownReason::Forgotten);
            }
        }
        self.clients_closed = wishes.clients_closed;
        let own = self.context.own.node;
        for (&node, wanted) in wishes.peers.iter().filter(|(node, _)| **node != own) {
            let seat = self.peers.entry(node).or_default();
            if seat.desired.as_ref() != Some(wanted) {
                seat.desired = Some(wanted.clone());
                seat.failures = 0;
                if matches!(seat.dial, DialState::Due(_)) {
                    seat.dial = DialState::Idle;
                }
            }
            self.plan_dial(node);
        }
        self.dial_due();
    }

    /// Plans the next dial of a peer, if it is wanted and not there.
    fn plan_dial(&mut self, node: NodeId) {
        let (own, limits) = (self.context.own.node, &self.context.limits);
        if let Some(seat) = self.peers.get_mut(&node)
            && seat.should_dial()
        {
            let pause = pause_before_dial(own, node, seat.failures, limits);
            seat.dial = DialState::Due(Instant::now() + pause);
        }
    }

    fn dial_due(&mut self) {
        let now = Instant::now();
        for (&node, seat) in &mut self.peers {
            if matches!(seat.dial, DialState::Due(at) if at <= now) {
                seat.dial = DialState::UnderWay;
                self.attempts += 1;
                let (dialler, attempt) = (self.dialler.clone(), self.attempts);
                let (context, addresses) = (Arc::clone(&self.context), seat.addresses());
                self.dials.spawn(async move {
                    (node, dialler.dial(&context, node, &addresses, attempt).await)
                });
            }
        }
    }

    async fn handle_dialled(
        &mut self,
        node: NodeId,
        result: Result<PeerConnection, PeerDialFailure>,
    ) {
        let seat = self.peers.entry(node).or_default();
        if seat.dial == DialState::UnderWay {
            seat.dial = DialState::Idle;
        }
        match result {
            Ok(greeted) => {
                seat.good_address = Some(greeted.address());
                if seat.desired.is_some() {
                    self.handle_greeted(greeted);
                } else {
                    greeted.refuse(CloseCode::Left);
                }
            }
            Err(failure) => self.handle_dial_failure(node, failure).await,
        }
        self.plan_dial(node);
    }

    async fn handle_dial_failure(&mut self, node: NodeId, failure: PeerDialFailure) {
        let PeerDialFailure { address, problem } = failure;
        let seat = self.peers.entry(node).or_default();
        if seat.present.is_some() || seat.desired.is_none() {
            return;
        }
        seat.failures = seat.failures.saturating_add(1);
        if seat.reported_problem.as_ref() == Some(&problem) {
            return;
        }
        seat.reported_problem = Some(problem.clone());
        if problem == DialProblem::Refused(CloseCode::DuplicateIdentity) {
            self.context.events.send(TransportEvent::DuplicateIdentity { reported_by: node }).await;
        }
        self.context.events.send(TransportEvent::DialFailed { node, address, problem }).await;
    }

    fn handle_greeted(&mut self, greeted: PeerConnection) {
        if self.context.desired_peers.borrow().banned.contains(&greeted.peer.node) {
            self.refuse(greeted, CloseCode::Banned);
        } else if greeted.peer.role.serves() {
            self.handle_member(greeted);
        } else {
            self.handle_client(greeted);
        }
    }

    fn refuse(&self, greeted: PeerConnection, code: CloseCode) {
        self.context.counters.accept_refused.increment();
        greeted.refuse(code);
    }

    fn handle_client(&mut self, greeted: PeerConnection) {
        let open = self.clients.iter().map(|(client, (node, _))| (*client, *node));
        match admit_client(open, greeted.peer.node, self.context.limits.clients_max) {
            ClientDecision::Take => {}
            ClientDecision::Replace(client) => {
                let (_, closer) = self.clients.remove(&client).expect("it is open");
                closer.close_as(DownReason::Closing, CloseCode::Crowded);
            }
            ClientDecision::Refuse => return self.refuse(greeted, CloseCode::Crowded),
        }
        self.clients_accepted += 1;
        let client = self.clients_accepted;
        self.clients.insert(client, (greeted.peer.node, greeted.closer()));
        let context = Arc::clone(&self.context);
        self.client_links.spawn(async move {
            run_client(context, greeted).await;
            client
        });
    }

    fn handle_member(&mut self, greeted: PeerConnection) {
        let (own, peer) = (self.context.own.node, greeted.peer.node);
        if own == peer {
            return self.refuse(greeted, CloseCode::DuplicateIdentity);
        }
        let facts = greeted.facts(own);
        let seat = self.peers.entry(peer).or_default();
        let waiting = seat.next.as_ref().map(|(facts, _)| *facts);
        let present = waiting.or_else(|| seat.present.as_ref().map(|present| present.facts));
        let entry = admit(seat.newest_boot, present, facts);
        seat.newest_boot = seat.newest_boot.max(facts.start.boot);
        match entry {
            LinkDecision::Refuse(code) => self.refuse(greeted, code),
            LinkDecision::Take if self.members >= self.context.limits.members_max => {
                self.refuse(greeted, CloseCode::Crowded);
            }
            LinkDecision::Take => self.start(facts, greeted),
            LinkDecision::Replace(code) => {
                if let Some((_, older)) = seat.next.replace((facts, greeted)) {
                    older.refuse(code);
                }
                if let Some(present) = &seat.present {
                    present.closer.close_as(DownReason::Replaced, code);
                }
            }
        }
    }

    fn start(&mut self, facts: LinkFacts, greeted: PeerConnection) {
        self.members += 1;
        let seat = self.peers.entry(greeted.peer.node).or_default();
        let (closer, since) = (greeted.closer(), Instant::now());
        seat.present = Some(PresentLink { facts, closer, since });
        if matches!(seat.dial, DialState::Due(_)) {
            seat.dial = DialState::Idle;
        }
        self.links.spawn(run_link(Arc::clone(&self.context), greeted));
    }

    async fn handle_end(&mut self, end: LinkEnd) {
        self.members -= 1;
        let (node, longest) = (end.node, self.context.limits.redial_longest);
        let seat = self.peers.entry(node).or_default();
        let present = seat.present.take();
        let has_lasted = present.is_some_and(|present| present.since.elapsed() >= longest);
        // A connection that breaks soon each time is dialled less and less often.
        seat.failures = if has_lasted { 1 } else { seat.failures.saturating_add(1) };
        if end.was_up {
            seat.reported_problem = None;
        }
        if end.reason == DownReason::ClosedByPeer(CloseCode::DuplicateIdentity) {
            self.context.events.send(TransportEvent::DuplicateIdentity { reported_by: node }).await;
        }
        let next = self.peers.entry(node).or_default().next.take();
        if let Some((facts, greeted)) = next {
            self.start(facts, greeted);
        }
        self.plan_dial(node);
    }

    async fn close(mut self) {
        self.dials.shutdown().await;
        for seat in self.peers.values() {
            if let Some(present) = &seat.present {
                present.closer.close(DownReason::Closing);
            }
        }
        for (_, closer) in self.clients.values() {
            closer.close(DownReason::Closing);
        }
        while self.links.join_next().await.is_some() {}
        while self.client_links.join_next().await.is_some() {}
    }
}

async fn sleep_until(due: Option<Instant>) {
    if let Some(due) = due {
        tokio::time::sleep_until(due).await;
    }
}
