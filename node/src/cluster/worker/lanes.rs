//! Frames of other workers on their way to the device, and links from device to device.

use std::time::Instant;

use zbelastic_transport::Transport;
use zbelastic_wire::frames::{IncomingFrame, incoming};

use super::WorkerNode;
use crate::cluster::blob_registry::BlobRegistry;
use crate::cluster::device::{DeviceHandle, DeviceInput};

/// Frames go to the device on the thread that received them.
pub(super) fn connect_lanes(
    transport: &Transport,
    device: &DeviceHandle,
    blob_registry: &BlobRegistry,
) {
    let to_device = device.clone();
    transport.set_frame_sink(Box::new(move |frame| {
        let links = to_device.links();
        // A frame that cannot be decoded or accepted is dropped; a plan that misses it is given up
        // and redone.
        let input = match (incoming(frame), links) {
            (Ok(IncomingFrame::Whole(frame)), links) => {
                links.inspect(|links| links.note_frame(&frame));
                DeviceInput::Frame(frame, Instant::now())
            }
            (Ok(IncomingFrame::Piece(piece)), _) => DeviceInput::Piece(piece),
            (Ok(IncomingFrame::Link(frame)), Some(links)) => return links.handle(frame),
            (Ok(IncomingFrame::Link(_)), None) | (Err(_), _) => return,
        };
        let _ = to_device.send(input);
    }));
    blob_registry.clone().serve(transport);
}

impl WorkerNode {
    /// The plan stops, or may: what is sent from device to device goes by way of the host, so that the
    /// device thread, which may wait for it, can answer.
    pub(super) fn stop_links(&self) {
        if let Some(links) = self.ports.device.links() {
            links.stop();
        }
    }
}
