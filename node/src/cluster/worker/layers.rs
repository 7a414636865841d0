//! Layers between workers: asked for, offered, fetched over the bulk lane, handed to the host.

use std::sync::Arc;

use zbelastic_consensus::member::Holder;
use zbelastic_trainer::elastic::{LayerImage, layer_digest};
use zbelastic_trainer::host::{HostInput, PeerBody, PeerFrame};
use zbelastic_transport::{BulkFetch, PeerIdentity};
use zbelastic_types::{Digest, Generation, NodeId};

use super::{Arrived, Worker};
use crate::cluster::shelf::LayerBody;
use crate::cluster::wire::{self, BulkKey, LayerMessage, NodeMessage};

/// A layer that was fetched, or not.
pub(super) struct LayerArrived {
    key: BulkKey,
    generation: Generation,
    sender: Holder,
    digest: Digest,
    bytes: Result<Vec<u8>, String>,
}

impl Worker {
    /// Another worker wants a layer, and the host has it.
    pub(super) fn offer(
        &mut self,
        to: NodeId,
        generation: Generation,
        sender: Holder,
        image: Arc<LayerImage>,
    ) {
        let (layer, version) = (image.layer, image.version);
        let key = BulkKey::Layer { generation, layer, version };
        let digest = layer_digest(&image);
        self.shelf.offer(key, Arc::new(LayerBody::new(image)));
        let offer = LayerMessage::Offer { generation, sender, layer, version, digest };
        self.send_node(to, &NodeMessage::Layer(offer));
    }

    pub(super) fn handle_layer_message(&mut self, from: PeerIdentity, message: LayerMessage) {
        match message {
            LayerMessage::Fetch { generation, sender, layer, version } => {
                if sender.node == from.node {
                    let body = PeerBody::Fetch { layer, version };
                    let frame = PeerFrame { generation, sender, body };
                    self.tell_device(HostInput::Peer(frame));
                }
            }
            LayerMessage::Offer { generation, sender, layer, version, digest } => {
                let key = BulkKey::Layer { generation, layer, version };
                let Some(length) = self.layer_length(layer) else { return };
                if sender.node != from.node || !self.arriving.insert(key) {
                    return;
                }
                let fetch = BulkFetch { holders: vec![from.node], key: wire::encode(&key), length };
                let (transport, arrivals) = (self.transport.clone(), self.arrivals.clone());
                tokio::spawn(async move {
                    let bytes = transport.fetch_bulk(fetch).await.map_err(|e| e.to_string());
                    let arrived = LayerArrived { key, generation, sender, digest, bytes };
                    let _ = arrivals.send(Arrived::Layer(arrived)).await;
                });
            }
        }
    }

    pub(super) fn handle_layer(&mut self, arrived: LayerArrived) {
        let LayerArrived { key, generation, sender, digest, bytes } = arrived;
        if !self.arriving.remove(&key) {
            return;
        }
        let image = bytes.and_then(|bytes| {
            let image = LayerImage::decode(&bytes).map_err(|error| error.to_string())?;
            let found = layer_digest(&image);
            let differs = || format!("layer {} arrived as another one than sent", image.layer);
            if found == digest { Ok(image) } else { Err(differs()) }
        });
        match image {
            Ok(image) => {
                let body = PeerBody::Layer(Arc::new(image));
                self.tell_device(HostInput::Peer(PeerFrame { generation, sender, body }));
            }
            // The host asks again, and somebody else.
            Err(error) => {
                self.journal.log(format!("a layer from {sender} did not arrive: {error}"))
            }
        }
    }
}
