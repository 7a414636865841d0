//! A cluster's authority, and nodes of it.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::timeout;
use zbelastic_identity::{ClusterAuthority, Credentials, PeerIdentity, PeerRole, UnixSeconds};
use zbelastic_transport::{
    DialProblem, DownReason, EventQueue, ProcessStart, RequestReply, Transport, TransportEvent,
    TransportLimits, TransportPath, TransportSetup,
};
use zbelastic_types::{ClusterId, NodeId};

/// Only a broken program takes that long.
pub const DEADLINE: Duration = Duration::from_secs(30);

pub struct TransportSite {
    pub authority: ClusterAuthority,
    folder: tempfile::TempDir,
}

pub struct TransportTestNode {
    pub id: NodeId,
    pub role: PeerRole,
    pub transport: Transport,
    pub events: EventQueue,
}

/// What differs from node to node.
#[derive(Clone)]
pub struct TransportTestOptions {
    pub role: PeerRole,
    pub start: ProcessStart,
    pub bind: SocketAddr,
    pub same_host: bool,
    pub limits: TransportLimits,
}

impl Default for TransportTestOptions {
    fn default() -> Self {
        // Which end dials does not depend on timing: the higher id never comes before the lower
        // one.
        let limits = TransportLimits {
            dial_within: Duration::from_secs(1),
            dial_patience: DEADLINE,
            ..TransportLimits::default()
        };
        Self {
            role: PeerRole::Worker,
            start: ProcessStart { boot: 1, life: 1 },
            bind: "127.0.0.1:0".parse().unwrap(),
            same_host: false,
            limits,
        }
    }
}

impl TransportSite {
    pub fn new() -> Self {
        Self::of(1)
    }

    pub fn of(cluster: u64) -> Self {
        let now = UnixSeconds::now();
        Self::by(ClusterAuthority::create(ClusterId(cluster), now).unwrap())
    }

    pub fn by(authority: ClusterAuthority) -> Self {
        Self { authority, folder: tempfile::tempdir().unwrap() }
    }

    pub fn credentials(&self, role: PeerRole, node: u64) -> Credentials {
        self.authority.credentials(role, NodeId(node), UnixSeconds::now()).unwrap()
    }

    fn local_folder(&self, node: u64, options: &TransportTestOptions) -> Option<PathBuf> {
        let name = format!("{node}-{}-{}", options.start.boot, options.start.life);
        options.same_host.then(|| self.folder.path().join(name))
    }

    /// Removes the sockets of all nodes, which still listen there.
    pub fn remove_sockets(&self) {
        for node in fs::read_dir(self.folder.path()).unwrap() {
            fs::remove_dir_all(node.unwrap().path()).unwrap();
        }
    }

    pub fn setup(&self, node: u64, options: &TransportTestOptions) -> TransportSetup {
        TransportSetup {
            credentials: self.credentials(options.role, node),
            bind: options.bind,
            local_folder: self.local_folder(node, options),
            start: options.start,
            limits: options.limits.clone(),
        }
    }

    pub async fn node(&self, node: u64, options: TransportTestOptions) -> TransportTestNode {
        let (transport, events) = Transport::bind(self.setup(node, &options)).await.unwrap();
        TransportTestNode { id: NodeId(node), role: options.role, transport, events }
    }

    pub async fn worker(&self, node: u64) -> TransportTestNode {
        self.node(node, TransportTestOptions::default()).await
    }

    /// Two workers that are up to each other.
    pub async fn pair(&self, same_host: bool) -> (TransportTestNode, TransportTestNode) {
        let options = TransportTestOptions { same_host, ..TransportTestOptions::default() };
        let mut one = self.node(1, options.clone()).await;
        let mut two = self.node(2, options).await;
        one.knows(&two);
        two.knows(&one);
        let path = if same_host { TransportPath::SameHost } else { TransportPath::Quic };
        assert_eq!(one.up().await, (two.id, 1, path));
        assert_eq!(two.up().await, (one.id, 1, path));
        (one, two)
    }
}

impl TransportTestNode {
    pub fn knows(&self, other: &Self) {
        self.transport.add_peer(other.id, other.role, vec![other.transport.local_addr()]);
    }

    pub async fn next(&mut self) -> TransportEvent {
        timeout(DEADLINE, self.events.next()).await.expect("an event in time").expect("open")
    }

    /// The next event, which is a peer that is there.
    pub async fn up(&mut self) -> (NodeId, u64, TransportPath) {
        let event = self.next().await;
        let TransportEvent::Up { peer, boot, path, .. } = event else {
            panic!("expected a peer to be up, got {event:?}");
        };
        (peer.node, boot, path)
    }

    /// The next event, which is a peer that is gone.
    pub async fn down(&mut self) -> (NodeId, DownReason) {
        let event = self.next().await;
        let TransportEvent::Down { peer, reason } = event else {
            panic!("expected a peer to be down, got {event:?}");
        };
        (peer.node, reason)
    }

    /// The next event, which is a control message.
    pub async fn control(&mut self) -> (NodeId, Vec<u8>) {
        let event = self.next().await;
        let TransportEvent::Control { from, bytes } = event else {
            panic!("expected a control message, got {event:?}");
        };
        (from.node, bytes.to_vec())
    }

    /// The next event, which is a request.
    pub async fn request(&mut self) -> (PeerIdentity, Vec<u8>, RequestReply) {
        let event = self.next().await;
        let TransportEvent::Request { from, bytes, reply } = event else {
            panic!("expected a request, got {event:?}");
        };
        (from, bytes.to_vec(), reply)
    }

    /// The first event that `pick` takes; others are dropped.
    pub async fn until<T>(&mut self, mut pick: impl FnMut(TransportEvent) -> Option<T>) -> T {
        loop {
            if let Some(picked) = pick(self.next().await) {
                return picked;
            }
        }
    }

    /// The node that is there next, whatever was tried meanwhile.
    pub async fn until_up(&mut self) -> NodeId {
        let pick = |event| {
            if let TransportEvent::Up { peer, .. } = event { Some(peer.node) } else { None }
        };
        self.until(pick).await
    }

    /// The node that is gone next, whatever was tried meanwhile.
    pub async fn until_down(&mut self) -> NodeId {
        let pick = |event| {
            if let TransportEvent::Down { peer, .. } = event { Some(peer.node) } else { None }
        };
        self.until(pick).await
    }

    /// Why a node cannot be reached, whatever else there is.
    pub async fn until_dial_failed(&mut self) -> (NodeId, DialProblem) {
        let pick = |event| {
            assert!(!matches!(event, TransportEvent::Up { .. }), "a node that cannot be reached");
            if let TransportEvent::DialFailed { node, problem, .. } = event {
                Some((node, problem))
            } else {
                None
            }
        };
        self.until(pick).await
    }

    /// The peer that reports that another process has this identity.
    pub async fn until_duplicate(&mut self) -> NodeId {
        let pick = |event| {
            if let TransportEvent::DuplicateIdentity { reported_by: told_by } = event {
                Some(told_by)
            } else {
                None
            }
        };
        self.until(pick).await
    }
}
