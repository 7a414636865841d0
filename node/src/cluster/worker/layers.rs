//! Layers between workers: requested, offered, fetched over the bulk lane, passed to the runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::pre_copy::{PreCopyPlan, needed_at};
use zbelastic_consensus::validation::Turn;
use zbelastic_identity::PeerIdentity;
use zbelastic_machine::layer_fetch::{PartialLayer, UnfinishedLayer, fetch_image};
use zbelastic_policy::layer_requests::{LayerRequest, LayerRequests, OfferUse};
use zbelastic_timing::layer_moves::{ArrivedAhead, LayersAhead};
use zbelastic_trainer::elastic::{LayerImage, StateLen, image_bytes};
use zbelastic_trainer::runtime::{PeerBody, PeerFrame, RuntimeInput};
use zbelastic_types::{Generation, NodeId, Step};
use zbelastic_wire::{self as wire, BulkKey, LayerMessage, NodeMessage};

use super::job::WorkerJob;
use super::ports::{WorkerCompletion, WorkerPorts};
use crate::cluster::blob_registry::BlobRegistry;
use crate::cluster::device::OfferedSnapshot;
use crate::cluster::outbox::Outbox;

/// A layer that can be fetched.
#[derive(Clone, Copy)]
struct OfferedLayer {
    key: BulkKey,
    request: LayerRequest,
    version: Step,
    /// The worker that offered it first.
    sender: Holder,
    /// The turn of the seal that it waits for, if it is requested ahead.
    open: Option<Turn>,
    /// When its first chunks were requested.
    requested_at: Instant,
}

/// The result of fetching a layer.
pub(super) struct LayerFetchResult {
    offered: OfferedLayer,
    /// Decoded off the event loop: a layer may be gigabytes, and the event loop sends heartbeats.
    image: Result<LayerImage, UnfinishedLayer>,
    duration: Duration,
}

/// Layers that this worker offers, and those on their way here.
pub(super) struct LayerExchange {
    blob_registry: BlobRegistry,
    /// Layers that were requested of others.
    requests: LayerRequests,
    /// Layers that are on their way here, each with the nodes that send it, for its fetch.
    fetching: BTreeMap<BulkKey, watch::Sender<Vec<NodeId>>>,
    /// What came of layers that no node is left to send, for the next offer of each. Its memory is
    /// that in which the layer will lie, so this is never more than the layers of the plan.
    unfinished: BTreeMap<BulkKey, (Instant, PartialLayer)>,
    /// Layers that arrived ahead of the next plan.
    ahead: LayersAhead,
}

impl LayerExchange {
    pub(super) fn new(blob_registry: BlobRegistry) -> Self {
        Self {
            blob_registry,
            requests: LayerRequests::default(),
            fetching: BTreeMap::new(),
            unfinished: BTreeMap::new(),
            ahead: LayersAhead::default(),
        }
    }

    /// Whether no layer is on its way here.
    pub(super) fn is_idle(&self) -> bool {
        self.fetching.is_empty()
    }

    /// A plan is loaded: layers that were offered for those before, or are on their way, are
    /// dropped. Those that arrived ahead are reported if the plan needs them here.
    pub(super) fn begin_plan(&mut self, plan: &PlanRecord, ports: &mut WorkerPorts) {
        self.blob_registry.clear_before(plan.generation);
        self.requests.begin_plan(plan.generation);
        self.fetching.clear();
        self.unfinished.clear();
        ports.work_log.end_receiving();
        let needed = needed_at(plan, ports.me).unwrap_or_default();
        for ArrivedAhead { bytes, duration, arrived_at } in self.ahead.take(&needed) {
            let took_us = duration.as_micros() as u64;
            let ago_us = arrived_at.elapsed().as_micros() as u64;
            let plan = plan.generation;
            let message = NodeMessage::CopiedAhead { plan, bytes, took_us, ago_us };
            ports.send_to_controllers(&message);
        }
    }

    /// All workers are ready: the layers offered for this plan have been fetched, and a holder of a
    /// layer keeps its owner from writing it in place.
    pub(super) fn end_loading(&mut self, generation: Generation) {
        self.drop_unfinished();
        self.blob_registry.clear_before(generation.next());
    }

    /// The plan has its layers, or stops: what came of others is dropped.
    pub(super) fn drop_unfinished(&mut self) {
        self.requests.end_loading();
        self.unfinished.clear();
    }

    /// Which layers are copied ahead has changed: others are not offered for that any more.
    pub(super) fn follow_pre_copy(&self, pre_copy: Option<&PreCopyPlan>) {
        let layers = pre_copy.into_iter().flat_map(|pre_copy| &pre_copy.layers);
        let layers: BTreeSet<_> = layers.map(|followed| followed.layer).collect();
        self.blob_registry.withdraw_ahead(|layer| layers.contains(&layer));
    }

    /// The runtime requests a layer of another worker.
    pub(super) fn request(&mut self, to: NodeId, message: LayerMessage, outbox: &mut Outbox) {
        self.requests.record(to, message.request());
        outbox.send(to, NodeMessage::Layer(message));
    }

    /// Another worker requested a layer, and the runtime has it. One that is requested ahead is in
    /// training, and is let go when it was read.
    pub(super) fn offer(&self, to: NodeId, offer: OfferedSnapshot, outbox: &mut Outbox) {
        let OfferedSnapshot { generation, sender, snapshot, open } = offer;
        let layer = snapshot.layer();
        let version = snapshot.version();
        let key = BulkKey::Layer { generation, layer, version };
        match open {
            Some(_) => self.blob_registry.offer_ahead(key, snapshot),
            None => self.blob_registry.offer(key, snapshot),
        }
        let offer = LayerMessage::Offer { generation, sender, layer, version, open };
        outbox.send(to, NodeMessage::Layer(offer));
    }

    /// Another worker requests a layer, or offers one that is fetched now.
    pub(super) fn handle_message(
        &mut self,
        from: PeerIdentity,
        message: LayerMessage,
        (job, ports): (&WorkerJob, &mut WorkerPorts),
    ) {
        let (generation, sender, body) = match message {
            LayerMessage::Fetch { generation, sender, layer, version } => {
                (generation, sender, PeerBody::Fetch { layer, version })
            }
            LayerMessage::Follow { generation, sender, layer } => {
                (generation, sender, PeerBody::StandbyRequest { layer })
            }
            LayerMessage::Offer { generation, sender, layer, version, open } => {
                let key = BulkKey::Layer { generation, layer, version };
                let request = message.request();
                let requested_at = Instant::now();
                let offered = OfferedLayer { key, request, version, sender, open, requested_at };
                let Some(len) = job.layer_len(layer).filter(|_| sender.node == from.node) else {
                    return;
                };
                return match self.requests.answer(from.node, request, version) {
                    Ok(OfferUse::First) => self.fetch(offered, len, ports),
                    Ok(OfferUse::Joins) => {
                        let fetch = self.fetching.get(&key);
                        fetch.iter().for_each(|f| f.send_modify(|nodes| nodes.push(from.node)));
                    }
                    Ok(OfferUse::Unused) | Err(_) => {}
                };
            }
        };
        if sender.node == from.node {
            ports.send_to_device(RuntimeInput::Peer(PeerFrame { generation, sender, body }));
        }
    }

    fn fetch(&mut self, mut offered: OfferedLayer, len: StateLen, ports: &mut WorkerPorts) {
        let key = offered.key;
        let (join, holders) = watch::channel(vec![offered.sender.node]);
        self.fetching.insert(key, join);
        let begun = self.unfinished.remove(&key).map(|(requested_at, begun)| {
            offered.requested_at = requested_at;
            begun
        });
        let missing = begun.as_ref().map_or_else(|| image_bytes(len), PartialLayer::missing_bytes);
        let progress = ports.work_log.begin_receiving(missing).shared();
        let transport = ports.tasks.transport().clone();
        ports.tasks.spawn(async move {
            let layer = (wire::encode(&key), len);
            let fetch = |body| transport.fetch_bulk_joined(body, holders, Some(progress));
            let image = fetch_image(layer, begun, fetch).await;
            let duration = offered.requested_at.elapsed();
            WorkerCompletion::Layer(LayerFetchResult { offered, image, duration })
        });
    }

    /// A layer was fetched, or not.
    pub(super) fn handle_fetched(&mut self, result: LayerFetchResult, ports: &mut WorkerPorts) {
        let LayerFetchResult { offered, image, duration } = result;
        let OfferedLayer { key, request, version, sender, open, requested_at } = offered;
        if self.fetching.remove(&key).is_none() {
            return;
        }
        let goes_on = self.requests.finish(request, version, image.is_ok());
        if self.fetching.is_empty() {
            ports.work_log.end_receiving();
        }
        let image = match image {
            Ok(image) => image,
            // The runtime requests it again.
            Err(UnfinishedLayer { error, begun }) => {
                let begun = begun.filter(|_| goes_on);
                self.unfinished.extend(begun.map(|begun| (key, (requested_at, begun))));
                let text = format!("a layer from {sender} did not arrive: {error}");
                return ports.journal.log(text);
            }
        };
        let bytes = image_bytes(image.state_len());
        let body = match open {
            Some(open) => {
                let arrived = ArrivedAhead { bytes, duration, arrived_at: Instant::now() };
                self.ahead.note(image.layer, arrived);
                PeerBody::StandbyLayer { open, image: Arc::new(image.into()) }
            }
            None => {
                let took_us = duration.as_micros() as u64;
                let plan = request.generation;
                ports.send_to_controllers(&NodeMessage::Moved { plan, bytes, took_us });
                PeerBody::Layer(Arc::new(image))
            }
        };
        let generation = request.generation;
        ports.send_to_device(RuntimeInput::Peer(PeerFrame { generation, sender, body }));
    }
}
