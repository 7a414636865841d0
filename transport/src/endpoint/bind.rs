//! How a transport begins and ends: its tasks and their owners.

use std::sync::Arc;

use quinn::{Endpoint, TokioRuntime};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

use super::accept::accept_peers;
use super::context::{EventSender, TransportContext};
use super::greeting::Dialler;
use super::hub::LocalHub;
use super::live_counters::LiveCounters;
use super::setup::{BindError, TransportSetup};
use super::socket::bind_udp;
use super::supervisor::PeerSupervisor;
use super::transport::Shared;
use super::tuning::{QuicConfigs, endpoint_config};
use crate::close_code::CloseCode;
use crate::event::EventQueue;
use crate::frame::{FrameRules, PartPool};
use crate::peers::{DesiredPeers, Directory};
use crate::version::SpokenVersions;

/// Peers that wait for the supervisor after their hello was read. More wait with their handshake.
const CONNECTIONS_WAITING_MAX: usize = 64;

pub(super) async fn bind(setup: TransportSetup) -> Result<(Shared, EventQueue), BindError> {
    let TransportSetup { credentials, bind, local_folder, start, limits } = setup;
    let configs = QuicConfigs::new(&credentials, &limits)?;
    let socket = bind_udp(bind, limits.socket_buffer_bytes)?;
    let broken = |source| BindError::Socket { address: bind, source };
    let address = socket.local_addr().map_err(broken)?;
    let hub = match local_folder {
        Some(folder) => Some(LocalHub::bind(&folder).await?),
        None => None,
    };
    let server = Some(configs.server);
    let runtime = Arc::new(TokioRuntime);
    let config = endpoint_config(&credentials);
    let endpoint = Endpoint::new(config, server, socket, runtime).map_err(broken)?;
    let (events, receiver) = EventSender::new(limits.events_max);
    let context = Arc::new(TransportContext {
        own: credentials.identity(),
        start,
        versions: SpokenVersions::default(),
        counters: LiveCounters::default(),
        events,
        directory: Directory::new(limits.frame_queue_max),
        desired_peers: watch::Sender::new(DesiredPeers::default()),
        rules: watch::Sender::new(Arc::new(FrameRules::new())),
        part_pool: PartPool::default(),
        frame_sink: watch::Sender::new(None),
        bulk_source: watch::Sender::new(None),
        requests_open: Arc::new(Semaphore::new(limits.requests_open_max)),
        local_hub: hub,
        limits,
    });
    let (client, config) = watch::channel(configs.client);
    let dialler = Dialler { endpoint: endpoint.clone(), config };
    let (done, closed) = watch::channel(false);
    tokio::spawn(run(Arc::clone(&context), endpoint.clone(), dialler, done));
    let runtime = Handle::current();
    Ok((Shared { context, address, endpoint, client, closed, runtime }, EventQueue { receiver }))
}

/// Everything a transport does, from its first moment until it is closed.
async fn run(
    context: Arc<TransportContext>,
    endpoint: Endpoint,
    dialler: Dialler,
    done: watch::Sender<bool>,
) {
    let (sender, connections) = mpsc::channel(CONNECTIONS_WAITING_MAX);
    let desired_peers = context.desired_peers.subscribe();
    let within = context.limits.handshake_within;
    let acceptor = tokio::spawn(accept_peers(Arc::clone(&context), endpoint.clone(), sender));
    PeerSupervisor::new(context, dialler).run(connections, desired_peers).await;
    endpoint.close(CloseCode::Left.number().into(), &[]);
    acceptor.abort();
    // Peers that do not answer are not waited for.
    let _ = timeout(within, endpoint.wait_idle()).await;
    // Without a handle no caller waits.
    let _ = done.send(true);
}
