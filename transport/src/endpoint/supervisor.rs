//! The task that owns the state of the peers: it dials those that are desired and not connected, decides
//! which of two connections stays, and closes those of banned peers.

mod peer_state;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use zbelastic_types::NodeId;

use super::context::TransportContext;
use super::greeting::{ConnectionCloser, Dialler, PeerConnection, PeerDialFailure};
use super::link::{LinkEnd, run_client, run_link};
use crate::close_code::CloseCode;
use crate::dial_problem::DialProblem;
use crate::event::{DownReason, TransportEvent};
use crate::peers::{
    ClientDecision, DesiredPeers, LinkDecision, LinkFacts, admit, admit_client, pause_before_dial,
};
use peer_state::{DialState, PeerState, PresentLink};

/// Where the supervisor receives connections that others dialled.
pub(crate) type ConnectionReceiver = mpsc::Receiver<PeerConnection>;

/// The task that owns the state of the peers.
pub(crate) struct PeerSupervisor {
    context: Arc<TransportContext>,
    dialler: Dialler,
    peers: BTreeMap<NodeId, PeerState>,
    members: usize,
    clients: BTreeMap<u64, (NodeId, ConnectionCloser)>,
    clients_accepted: u64,
    /// How often their connections were closed because the node requested it.
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

    /// Applies the desired peers until the transport closes, then waits for the connections to end.
    pub(crate) async fn run(
        mut self,
        mut connections: ConnectionReceiver,
        mut desired: watch::Receiver<DesiredPeers>,
    ) {
        // Peers that were desired before this task began are a change as well.
        desired.mark_changed();
        loop {
            let due = self.next_due();
            tokio::select! {
                changed = desired.changed() => {
                    let desired = desired.borrow_and_update().clone();
                    if changed.is_err() || desired.closing {
                        break;
                    }
                    self.apply_desired(&desired);
                }
                Some(peer_connection) = connections.recv() => {
                    self.handle_connection(peer_connection);
                }
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
        let due = |state: &PeerState| match state.dial {
            DialState::Due(at) => Some(at),
            DialState::Idle | DialState::UnderWay => None,
        };
        self.peers.values().filter_map(due).min()
    }

    fn apply_desired(&mut self, desired: &DesiredPeers) {
        for (node, state) in &mut self.peers {
            let is_banned = desired.banned.contains(node);
            let is_forgotten = state.desired.is_some() && !desired.peers.contains_key(node);
            if !is_banned && !is_forgotten {
                continue;
            }
            state.desired = None;
            state.dial = DialState::Idle;
            let reason = if is_banned { DownReason::Banned } else { DownReason::Forgotten };
            if let Some((_, next)) = state.next.take() {
                next.refuse(if is_banned { CloseCode::Banned } else { CloseCode::Left });
            }
            if let Some(present) = &state.present {
                present.closer.close(reason);
            }
        }
        for (node, closer) in self.clients.values() {
            if desired.banned.contains(node) {
                closer.close(DownReason::Banned);
            } else if desired.clients_closed > self.clients_closed {
                closer.close(DownReason::Forgotten);
            }
        }
        self.clients_closed = desired.clients_closed;
        let own = self.context.own.node;
        for (&node, desired_peer) in desired.peers.iter().filter(|(node, _)| **node != own) {
            let state = self.peers.entry(node).or_default();
            if state.desired.as_ref() != Some(desired_peer) {
                state.desired = Some(desired_peer.clone());
                state.failures = 0;
                if matches!(state.dial, DialState::Due(_)) {
                    state.dial = DialState::Idle;
                }
            }
            self.plan_dial(node);
        }
        self.dial_due();
    }

    /// Plans the next dial of a peer, if it is desired and not connected.
    fn plan_dial(&mut self, node: NodeId) {
        let own = self.context.own.node;
        let limits = &self.context.limits;
        if let Some(state) = self.peers.get_mut(&node)
            && state.should_dial()
        {
            let pause = pause_before_dial(own, node, state.failures, limits);
            state.dial = DialState::Due(Instant::now() + pause);
        }
    }

    fn dial_due(&mut self) {
        let now = Instant::now();
        for (&node, state) in &mut self.peers {
            if matches!(state.dial, DialState::Due(at) if at <= now) {
                state.dial = DialState::UnderWay;
                self.attempts += 1;
                let dialler = self.dialler.clone();
                let attempt = self.attempts;
                let context = Arc::clone(&self.context);
                let addresses = state.addresses();
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
        let state = self.peers.entry(node).or_default();
        if state.dial == DialState::UnderWay {
            state.dial = DialState::Idle;
        }
        match result {
            Ok(peer_connection) => {
                state.good_address = Some(peer_connection.address());
                if state.desired.is_some() {
                    self.handle_connection(peer_connection);
                } else {
                    peer_connection.refuse(CloseCode::Left);
                }
            }
            Err(failure) => self.handle_dial_failure(node, failure).await,
        }
        self.plan_dial(node);
    }

    async fn handle_dial_failure(&mut self, node: NodeId, failure: PeerDialFailure) {
        let PeerDialFailure { address, problem } = failure;
        let state = self.peers.entry(node).or_default();
        if state.present.is_some() || state.desired.is_none() {
            return;
        }
        state.failures = state.failures.saturating_add(1);
        if state.reported_problem.as_ref() == Some(&problem) {
            return;
        }
        state.reported_problem = Some(problem.clone());
        if problem == DialProblem::Refused(CloseCode::DuplicateIdentity) {
            self.context.events.send(TransportEvent::DuplicateIdentity { reported_by: node }).await;
        }
        self.context.events.send(TransportEvent::DialFailed { node, address, problem }).await;
    }

    fn handle_connection(&mut self, peer_connection: PeerConnection) {
        if self.context.desired_peers.borrow().banned.contains(&peer_connection.peer.node) {
            self.refuse(peer_connection, CloseCode::Banned);
        } else if peer_connection.serves() {
            self.handle_member(peer_connection);
        } else {
            self.handle_client(peer_connection);
        }
    }

    fn refuse(&self, peer_connection: PeerConnection, code: CloseCode) {
        self.context.counters.accept_refused.increment();
        peer_connection.refuse(code);
    }

    fn handle_client(&mut self, peer_connection: PeerConnection) {
        let open = self.clients.iter().map(|(client, (node, _))| (*client, *node));
        match admit_client(open, peer_connection.peer.node, self.context.limits.clients_max) {
            ClientDecision::Take => {}
            ClientDecision::Replace(client) => {
                let (_, closer) = self.clients.remove(&client).expect("it is open");
                closer.close_as(DownReason::Closing, CloseCode::Crowded);
            }
            ClientDecision::Refuse => return self.refuse(peer_connection, CloseCode::Crowded),
        }
        self.clients_accepted += 1;
        let client = self.clients_accepted;
        self.clients.insert(client, (peer_connection.peer.node, peer_connection.closer()));
        let context = Arc::clone(&self.context);
        self.client_links.spawn(async move {
            run_client(context, peer_connection).await;
            client
        });
    }

    fn handle_member(&mut self, peer_connection: PeerConnection) {
        let own = self.context.own.node;
        let peer = peer_connection.peer.node;
        if own == peer {
            return self.refuse(peer_connection, CloseCode::DuplicateIdentity);
        }
        let facts = peer_connection.facts(own);
        let state = self.peers.entry(peer).or_default();
        let waiting = state.next.as_ref().map(|(facts, _)| *facts);
        let present = waiting.or_else(|| state.present.as_ref().map(|present| present.facts));
        let decision = admit(state.newest_boot, present, facts);
        state.newest_boot = state.newest_boot.max(facts.start.boot);
        match decision {
            LinkDecision::Refuse(code) => self.refuse(peer_connection, code),
            LinkDecision::Take if self.members >= self.context.limits.members_max => {
                self.refuse(peer_connection, CloseCode::Crowded);
            }
            LinkDecision::Take => self.start(facts, peer_connection),
            LinkDecision::Replace(code) => {
                if let Some((_, older)) = state.next.replace((facts, peer_connection)) {
                    older.refuse(code);
                }
                if let Some(present) = &state.present {
                    present.closer.close_as(DownReason::Replaced, code);
                }
            }
        }
    }

    fn start(&mut self, facts: LinkFacts, peer_connection: PeerConnection) {
        self.members += 1;
        let state = self.peers.entry(peer_connection.peer.node).or_default();
        let closer = peer_connection.closer();
        let since = Instant::now();
        state.present = Some(PresentLink { facts, closer, since });
        if matches!(state.dial, DialState::Due(_)) {
            state.dial = DialState::Idle;
        }
        self.links.spawn(run_link(Arc::clone(&self.context), peer_connection));
    }

    async fn handle_end(&mut self, end: LinkEnd) {
        self.members -= 1;
        let node = end.node;
        let longest = self.context.limits.redial_longest;
        let state = self.peers.entry(node).or_default();
        let present = state.present.take();
        let has_lasted = present.is_some_and(|present| present.since.elapsed() >= longest);
        // A connection that breaks soon each time is dialled less and less often.
        state.failures = if has_lasted { 1 } else { state.failures.saturating_add(1) };
        if end.was_up {
            state.reported_problem = None;
        }
        if end.reason == DownReason::ClosedByPeer(CloseCode::DuplicateIdentity) {
            self.context.events.send(TransportEvent::DuplicateIdentity { reported_by: node }).await;
        }
        let next = self.peers.entry(node).or_default().next.take();
        if let Some((facts, peer_connection)) = next {
            self.start(facts, peer_connection);
        }
        self.plan_dial(node);
    }

    async fn close(mut self) {
        self.dials.shutdown().await;
        for state in self.peers.values() {
            if let Some(present) = &state.present {
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
