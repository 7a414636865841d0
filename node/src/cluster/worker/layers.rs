//! Layers between workers: asked for, offered, fetched over the bulk lane, handed to the host.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zbelastic_consensus::member::Holder;
use zbelastic_consensus::validation::Turn;
use zbelastic_trainer::elastic::{LayerImage, layer_digest};
use zbelastic_trainer::host::{HostInput, PeerBody, PeerFrame};
use zbelastic_transport::{BulkFetch, PeerIdentity};
use zbelastic_types::{Digest, Generation, LayerId, NodeId};

use super::{Arrived, Worker};
use crate::cluster::frames::LayerOffer;
use crate::cluster::shelf::LayerBody;
use crate::cluster::wire::{self, BulkKey, LayerMessage, NodeMessage};

/// A layer that can be fetched.
#[derive(Clone, Copy)]
struct Offered {
    key: BulkKey,
    generation: Generation,
    sender: Holder,
    digest: Digest,
    /// The turn whose seal it waits for, if it is wanted ahead.
    open: Option<Turn>,
}

/// A layer that was fetched, or not.
pub(super) struct LayerArrived {
    offered: Offered,
    bytes: Result<Vec<u8>, String>,
    took: Duration,
}

impl Worker {
    /// Another worker wants a layer, and the host has it.
    pub(super) fn offer(&mut self, to: NodeId, offer: LayerOffer) {
        let LayerOffer { generation, sender, image, open } = offer;
        let (layer, version) = (image.layer, image.version);
        let key = BulkKey::Layer { generation, layer, version };
        let digest = layer_digest(&image);
        self.shelf.offer(key, Arc::new(LayerBody::new(image)));
        let offer = LayerMessage::Offer { generation, sender, layer, version, digest, open };
        self.send_node(to, &NodeMessage::Layer(offer));
    }

    pub(super) fn handle_layer_message(&mut self, from: PeerIdentity, message: LayerMessage) {
        let (generation, sender, body) = match message {
            LayerMessage::Fetch { generation, sender, layer, version } => {
                (generation, sender, PeerBody::Fetch { layer, version })
            }
            LayerMessage::Follow { generation, sender, layer } => {
                (generation, sender, PeerBody::Follow { layer })
            }
            LayerMessage::Offer { generation, sender, layer, version, digest, open } => {
                let key = BulkKey::Layer { generation, layer, version };
                let offered = Offered { key, generation, sender, digest, open };
                return self.fetch_layer(from, offered, layer);
            }
        };
        if sender.node == from.node {
            self.tell_device(HostInput::Peer(PeerFrame { generation, sender, body }));
        }
    }

    fn fetch_layer(&mut self, from: PeerIdentity, offered: Offered, layer: LayerId) {
        let Some(length) = self.layer_length(layer) else { return };
        if offered.sender.node != from.node || !self.arriving.insert(offered.key) {
            return;
        }
        let key = wire::encode(&offered.key);
        let fetch = BulkFetch { holders: vec![from.node], key, length, progress: None };
        let (transport, arrivals) = (self.transport.clone(), self.arrivals.clone());
        tokio::spawn(async move {
            let asked = Instant::now();
            let bytes = transport.fetch_bulk(fetch).await.map_err(|error| error.to_string());
            let took = asked.elapsed();
            let _ = arrivals.send(Arrived::Layer(LayerArrived { offered, bytes, took })).await;
        });
    }

    pub(super) fn handle_layer(&mut self, arrived: LayerArrived) {
        let LayerArrived { offered, bytes, took } = arrived;
        let Offered { key, generation, sender, digest, open } = offered;
        if !self.arriving.remove(&key) {
            return;
        }
        if let Ok(bytes) = &bytes {
            // What is wanted ahead is for the plan after this one.
            let plan = if open.is_some() { generation.next() } else { generation };
            let (bytes, took_us) = (bytes.len() as u64, took.as_micros() as u64);
            self.tell_controllers(&NodeMessage::Moved { plan, bytes, took_us });
        }
        let image = bytes.and_then(|bytes| {
            let image = LayerImage::decode(&bytes).map_err(|error| error.to_string())?;
            let found = layer_digest(&image);
            let differs = || format!("layer {} arrived as another one than sent", image.layer);
            if found == digest { Ok(image) } else { Err(differs()) }
        });
        match image {
            Ok(image) => {
                let image = Arc::new(image);
                let body = match open {
                    Some(open) => PeerBody::Ahead { open, image },
                    None => PeerBody::Layer(image),
                };
                self.tell_device(HostInput::Peer(PeerFrame { generation, sender, body }));
            }
            // The host asks again, and somebody else.
            Err(error) => {
                self.journal.log(format!("a layer from {sender} did not arrive: {error}"))
            }
        }
    }
}
