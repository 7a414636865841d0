//! Frames of other workers on their way to the device, and links from device to device.

use std::time::Instant;

use zbelastic_kernels::cuda::nccl::CommunicatorId;
use zbelastic_machine::device_links::{LinkInvitation, LinkReport};
use zbelastic_transport::Transport;
use zbelastic_types::{Generation, NodeId};
use zbelastic_wire::frames::{IncomingFrame, incoming};
use zbelastic_wire::{self as wire, BulkKey, NodeMessage};

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
            (Ok(IncomingFrame::Announced(tensor)), Some(links)) => return links.receive(tensor),
            (Ok(IncomingFrame::Announced(_)), None) | (Err(_), _) => return,
        };
        let _ = to_device.send(input);
    }));
    let blob_registry = blob_registry.clone();
    transport.set_bulk_source(Box::new(move |_, key| {
        let key: BulkKey = wire::decode(key).ok()?;
        blob_registry.find(&key)
    }));
}

impl WorkerNode {
    /// Sends from device to device under way go by way of the host: a peer may be gone, or the
    /// device thread, which may wait for them, has to answer.
    pub(super) fn interrupt_exchanges(&self) {
        if let Some(links) = self.ports.device.links() {
            links.gauge().interrupt();
        }
    }

    /// A worker sends tensors here by way of the host.
    pub(super) fn invite(&mut self, to: NodeId, invitation: LinkInvitation) {
        let LinkInvitation { generation, id } = invitation;
        self.ports.outbox.send(to, NodeMessage::Link { generation, id: id.0.to_vec() });
    }

    /// A worker of the plan invites this one to send tensors from device to device.
    pub(super) fn accept_link(&self, from: NodeId, (generation, id): (Generation, Vec<u8>)) {
        let is_of_plan = self.job.active().is_some_and(|job| job.has_stage_at(from, generation));
        if let (Some(links), Ok(id), true) = (self.ports.device.links(), id.try_into(), is_of_plan)
        {
            links.accept(from, LinkInvitation { generation, id: CommunicatorId(id) });
        }
    }

    pub(super) fn log_link(&mut self, report: LinkReport) {
        match report {
            LinkReport::Ready { to } => {
                self.ports.journal.log(format!("tensors for node {to} are sent by NCCL"));
            }
            LinkReport::Failed { peer, error } => self.ports.journal.warn(format!(
                "tensors from or for node {peer} go by way of the host until the next plan: {error}"
            )),
        }
    }
}
