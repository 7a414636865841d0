//! Layers between workers: requested, offered, fetched over the bulk lane, passed to the runtime.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zbelastic_consensus::member::Holder;
use zbelastic_consensus::validation::Turn;
use zbelastic_trainer::elastic::{LayerImage, ScatteredLayer, image_bytes};
use zbelastic_trainer::runtime::{PeerBody, PeerFrame, RuntimeInput};
use zbelastic_transport::{BulkFetch, ChunkSink, PeerIdentity, Transport};
use zbelastic_types::{Generation, LayerId, NodeId};

use super::{WorkerCompletion, WorkerNode};
use crate::cluster::blob_registry::LayerBody;
use crate::cluster::frames::LayerOffer;
use crate::cluster::wire::{self, BulkKey, LayerMessage, NodeMessage};

/// A layer that can be fetched.
#[derive(Clone, Copy)]
struct OfferedLayer {
    key: BulkKey,
    generation: Generation,
    sender: Holder,
    /// The turn whose seal it waits for, if it is requested ahead.
    open: Option<Turn>,
}

/// The result of fetching a layer.
pub(super) struct LayerFetchResult {
    offered: OfferedLayer,
    /// Decoded off the event loop: a layer may be gigabytes, and the event loop sends heartbeats.
    image: Result<LayerImage, String>,
    duration: Duration,
}

impl WorkerNode {
    /// Another worker requested a layer, and the runtime has it.
    pub(super) fn offer(&mut self, to: NodeId, offer: LayerOffer) {
        let LayerOffer { generation, sender, image, open } = offer;
        let layer = image.layer;
        let version = image.version;
        let key = BulkKey::Layer { generation, layer, version };
        self.blob_registry.offer(key, Arc::new(LayerBody::new(image)));
        let offer = LayerMessage::Offer { generation, sender, layer, version, open };
        self.send_node(to, &NodeMessage::Layer(offer));
    }

    pub(super) fn handle_layer_message(&mut self, from: PeerIdentity, message: LayerMessage) {
        let (generation, sender, body) = match message {
            LayerMessage::Fetch { generation, sender, layer, version } => {
                (generation, sender, PeerBody::Fetch { layer, version })
            }
            LayerMessage::Follow { generation, sender, layer } => {
                (generation, sender, PeerBody::StandbyRequest { layer })
            }
            LayerMessage::Offer { generation, sender, layer, version, open } => {
                let key = BulkKey::Layer { generation, layer, version };
                let offered = OfferedLayer { key, generation, sender, open };
                return self.fetch_layer(from, offered, layer);
            }
        };
        if sender.node == from.node {
            self.send_to_device(RuntimeInput::Peer(PeerFrame { generation, sender, body }));
        }
    }

    fn fetch_layer(&mut self, from: PeerIdentity, offered: OfferedLayer, layer: LayerId) {
        let Some(float_count) = self.layer_floats(layer) else { return };
        if offered.sender.node != from.node || !self.layers_fetching.insert(offered.key) {
            return;
        }
        let length = image_bytes(float_count);
        let progress = Some(self.work_log.begin_receiving(length).shared());
        let key = wire::encode(&offered.key);
        let fetch = BulkFetch { holders: vec![from.node], key, length, progress };
        let transport = self.transport.clone();
        let completions = self.completions.clone();
        tokio::spawn(async move {
            let requested_at = Instant::now();
            let image = fetch_image(&transport, fetch, float_count).await;
            let duration = requested_at.elapsed();
            let _ = completions
                .send(WorkerCompletion::Layer(LayerFetchResult { offered, image, duration }))
                .await;
        });
    }

    pub(super) fn handle_layer(&mut self, result: LayerFetchResult) {
        let LayerFetchResult { offered, image, duration } = result;
        let OfferedLayer { key, generation, sender, open } = offered;
        if !self.layers_fetching.remove(&key) {
            return;
        }
        if self.layers_fetching.is_empty() {
            self.work_log.end_receiving();
        }
        if let Ok(image) = &image {
            // What is requested ahead is for the plan after this one.
            let plan = if open.is_some() { generation.next() } else { generation };
            let bytes = image_bytes(image.w.len());
            let took_us = duration.as_micros() as u64;
            self.send_to_controllers(&NodeMessage::Moved { plan, bytes, took_us });
        }
        match image {
            Ok(image) => {
                let body = match open {
                    Some(open) => PeerBody::StandbyLayer { open, image: Arc::new(image.into()) },
                    None => PeerBody::Layer(Arc::new(image)),
                };
                self.send_to_device(RuntimeInput::Peer(PeerFrame { generation, sender, body }));
            }
            // The runtime requests it again, from another worker.
            Err(error) => {
                self.journal.log(format!("a layer from {sender} did not arrive: {error}"))
            }
        }
    }
}

/// Fetches a layer to where it will lie. The bulk lane verifies its bytes chunk by chunk; that the
/// state is the one that was sealed is verified when the plan resumes, by its digest.
pub(super) async fn fetch_image(
    transport: &Transport,
    fetch: BulkFetch,
    float_count: usize,
) -> Result<LayerImage, String> {
    let layer = ScatteredLayer::new(float_count).map_err(|error| error.to_string())?;
    let fetched = transport.fetch_bulk_into(fetch, LayerSink(layer)).await;
    let LayerSink(layer) = fetched.map_err(|error| error.to_string())?;
    layer.finish().map_err(|error| error.to_string())
}

/// A layer that is written as its chunks arrive.
struct LayerSink(ScatteredLayer);

impl ChunkSink for LayerSink {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write(offset, bytes).map_err(io::Error::other)
    }
}
