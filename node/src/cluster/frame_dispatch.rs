//! Sends frames of the device thread. A boundary tensor that a device holds and a layer that
//! it copies to the host have to be waited for; from the first one on that is done by a thread of
//! its own, and the device thread continues to enqueue work. Boundary tensors and sums of a worker
//! go the same way, so that they keep their order.
//!
//! Gradients go by threads of their own, those for copies, those for followers and those that replicas
//! exchange: no pass waits for them, and there may be more of them than the queue to a peer holds. Those for copies are never dropped. Of a turn's gradients for a
//! follower some are, while those of two other turns wait to be sent to it: the layers that lack
//! them are fetched when the plan begins.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use tokio::sync::mpsc;
use zbelastic_machine::layer_snapshot::{LayerSnapshot, LayerSnapshots};
use zbelastic_policy::frame_lane::{FrameLane, UnsentMessage, UnsentTurns, lane};
use zbelastic_trainer::runtime::PeerFrame;
use zbelastic_transport::{FrameSender, OutgoingFrame};
use zbelastic_types::NodeId;
use zbelastic_wire::frames::{LayerOffer, OutgoingError, OutgoingMessage, outgoing};

use super::device::{DeviceOutput, OfferedSnapshot, OutputsClosed};
use super::device_error::WorkerDeviceError;
use super::tensor_links::TensorLinks;

/// Frames that wait for the dispatcher. When there are more the device thread waits for it: a
/// device that is so far ahead of its network has nothing to gain.
const FRAMES_QUEUED_MAX: usize = 64;
/// Messages of gradients that wait for their thread, each of at most 16 MiB: the gradient of a
/// stage of 2^32 floats for four receivers. They share the memory of the gradient.
const GRADIENTS_MAX: usize = 4096;

/// Carries frames to other workers.
pub(super) trait FrameCarrier: Clone + Send + 'static {
    /// Sends a frame, or drops it: a receiver that cannot be reached is lost, or will be; its plan
    /// ends with it.
    fn submit(&self, to: NodeId, frame: OutgoingFrame);

    /// The same, but waits until the queue has space for it.
    fn submit_blocking(&self, to: NodeId, frame: OutgoingFrame);
}

impl FrameCarrier for FrameSender {
    fn submit(&self, to: NodeId, frame: OutgoingFrame) {
        let _queued_or_lost = self.send(to, frame);
    }

    fn submit_blocking(&self, to: NodeId, frame: OutgoingFrame) {
        let _queued_or_lost = self.send_blocking(to, frame);
    }
}

/// Frames on their way to a thread that sends them; those for followers with what shows that they
/// were not sent.
type DispatchQueue = SyncSender<(NodeId, PeerFrame, Option<UnsentMessage>)>;

/// Sends the frames of a worker to the tensor lane, by threads of its own where a device is waited
/// for.
pub(super) struct FrameDispatcher<R: FrameCarrier = FrameSender> {
    forwarder: FrameForwarder<R>,
    /// The queue of the thread for boundary tensors, once there is one.
    queue: Option<DispatchQueue>,
    /// The queue of the thread for gradients of copies, once there is one.
    gradients: Option<DispatchQueue>,
    /// The queue of the thread for gradients of followers, once there is one.
    updates: Option<DispatchQueue>,
    /// The queue of the thread for what replicas exchange, once there is one.
    exchanges: Option<DispatchQueue>,
    unsent: UnsentTurns,
    /// The links that tensors of the device leave by.
    links: Option<TensorLinks>,
}

/// Sends frames to the carrier, and faults to the event loop.
#[derive(Clone)]
struct FrameForwarder<R> {
    carrier: R,
    outbox: mpsc::Sender<DeviceOutput>,
    /// The name of the device.
    device: String,
    snapshots: LayerSnapshots,
}

impl<R: FrameCarrier> FrameDispatcher<R> {
    /// A dispatcher that has started no thread yet. Of layers in training that it offers it takes
    /// snapshots.
    pub(super) fn new(
        frames: R,
        outbox: mpsc::Sender<DeviceOutput>,
        (device, snapshots): (String, LayerSnapshots),
        links: Option<TensorLinks>,
    ) -> Self {
        Self {
            forwarder: FrameForwarder { carrier: frames, outbox, device, snapshots },
            queue: None,
            gradients: None,
            updates: None,
            exchanges: None,
            unsent: UnsentTurns::default(),
            links,
        }
    }

    /// Sends a frame, or has it sent.
    ///
    /// # Errors
    /// If the receiver of outputs was dropped.
    pub(super) fn send(&mut self, to: NodeId, mut frame: PeerFrame) -> Result<(), OutputsClosed> {
        let Some((lane, unsent)) = self.unsent.admit(to, &mut frame.body) else { return Ok(()) };
        let (queue, thread) = match lane {
            FrameLane::Pass { is_on_device } => {
                (&mut self.queue, is_on_device.then_some(("frame-sender", FRAMES_QUEUED_MAX)))
            }
            FrameLane::Copy => (&mut self.gradients, Some(("gradients", GRADIENTS_MAX))),
            FrameLane::Follower => (&mut self.updates, Some(("updates", GRADIENTS_MAX))),
            FrameLane::Exchange => (&mut self.exchanges, Some(("exchanges", FRAMES_QUEUED_MAX))),
        };
        if let (None, Some(of)) = (&queue, thread) {
            let links = self.links.clone().filter(|_| matches!(lane, FrameLane::Pass { .. }));
            *queue = self.forwarder.start(of, links);
        }
        match queue {
            Some(queue) => queue.send((to, frame, unsent)).map_err(|_| OutputsClosed),
            None => self.forwarder.send(to, frame),
        }
    }
}

impl<R: FrameCarrier> FrameForwarder<R> {
    /// The queue of a new thread. Without one the device thread waits itself.
    fn start(
        &self,
        (name, frames_max): (&str, usize),
        links: Option<TensorLinks>,
    ) -> Option<DispatchQueue> {
        let (queue, frames): (DispatchQueue, _) = sync_channel(frames_max);
        let forwarder = self.clone();
        let carry = move || {
            while let Ok((to, frame, _unsent)) = frames.recv() {
                let frame = match &links {
                    Some(links) => links.send(to, frame),
                    None => Some(frame),
                };
                if frame.is_some_and(|frame| forwarder.send(to, frame).is_err()) {
                    return;
                }
            }
        };
        thread::Builder::new().name(name.to_owned()).spawn(carry).ok().map(|_| queue)
    }

    fn send(&self, to: NodeId, frame: PeerFrame) -> Result<(), OutputsClosed> {
        let lane = lane(&frame.body);
        match outgoing(frame) {
            Ok(OutgoingMessage::Frames(frames)) => {
                frames.into_iter().for_each(|frame| match lane {
                    FrameLane::Copy | FrameLane::Follower | FrameLane::Exchange => {
                        self.carrier.submit_blocking(to, frame);
                    }
                    FrameLane::Pass { .. } => self.carrier.submit(to, frame),
                });
                Ok(())
            }
            Ok(OutgoingMessage::Request(message)) => {
                self.report(DeviceOutput::Request { to, message })
            }
            Ok(OutgoingMessage::Layer(offer)) => {
                let offer = self.snapshot(offer);
                self.report(DeviceOutput::Offer { to, offer })
            }
            Err(OutgoingError::TooLong(error)) => self.report(DeviceOutput::Failed(error.into())),
            Err(OutgoingError::Fault(fault)) => {
                let device = self.device.clone();
                self.report(DeviceOutput::Failed(WorkerDeviceError::Fault { device, fault }))?;
                Err(OutputsClosed)
            }
        }
    }

    /// A layer that is requested for a plan is not in training yet.
    fn snapshot(&self, offer: LayerOffer) -> OfferedSnapshot {
        let LayerOffer { generation, sender, image, open } = offer;
        let snapshot = match open {
            Some(_) => self.snapshots.take(image),
            None => Arc::new(LayerSnapshot::new(image)),
        };
        OfferedSnapshot { generation, sender, snapshot, open }
    }

    fn report(&self, output: DeviceOutput) -> Result<(), OutputsClosed> {
        self.outbox.blocking_send(output).map_err(|_| OutputsClosed)
    }
}
