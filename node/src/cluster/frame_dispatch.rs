//! Sends frames of the device thread. A boundary tensor that a device holds and a layer that
//! it copies to the host have to be waited for; from the first one on that is done by a thread of
//! its own, and the device thread continues to enqueue work. Boundary tensors and sums of a worker
//! go the same way, so that they keep their order. The first that the queue to a peer has no space for
//! goes to that thread too, which waits: a step has as many boundary tensors as it has microbatches.
//!
//! Gradients go by threads of their own, those for copies, those for followers and those that replicas
//! exchange: no pass waits for them, and there may be more of them than the queue to a peer holds. Those
//! for copies are never dropped. Of a turn's gradients for a follower some are, while those of two other
//! turns wait to be sent to it: the layers that lack them are fetched when the plan begins.
//!
//! What passes and replicas wait for is not waited with beyond its plan: a lost peer's queue empties no
//! more, and the frames of the next plan are behind.

#[cfg(test)]
mod tests;

use std::future::pending;
use std::iter::once;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use tokio::sync::{mpsc, watch};
use zbelastic_machine::layer_snapshot::{LayerSnapshot, LayerSnapshots};
use zbelastic_policy::frame_lane::{FrameLane, UnsentMessage, UnsentTurns, lane};
use zbelastic_trainer::runtime::PeerFrame;
use zbelastic_transport::{FrameSender, OutgoingFrame, SendOutcome};
use zbelastic_types::{Generation, NodeId};
use zbelastic_wire::frames::{LayerOffer, OutgoingError, OutgoingMessage, outgoing};

use super::device::{DeviceOutput, OfferedSnapshot, OutputsClosed};
use super::device_error::WorkerDeviceError;
use super::tensor_links::TensorLinks;

/// Messages that wait for a thread that sends them: the boundary tensors of a step of as many microbatches, or the
/// gradient of a stage of 2^32 floats for four receivers, in messages of 16 MiB. The device thread does not
/// wait for its network below that: it answers what the next plan is made of.
const MESSAGES_QUEUED_MAX: usize = 4096;

/// Carries frames to other workers. One that cannot be sent is dropped: its receiver is lost, or will be,
/// and the plan ends with it.
pub(super) trait FrameCarrier: Clone + Send + 'static {
    /// Enqueues a frame, or gives it back if its receiver's queue has no space.
    fn submit(&self, to: NodeId, frame: OutgoingFrame) -> Option<OutgoingFrame>;

    /// Waits until the queue has space for a frame. Drops it if `superseded` is ready, or becomes so.
    fn submit_blocking(
        &self,
        to: NodeId,
        frame: OutgoingFrame,
        superseded: impl Future<Output = ()>,
    );
}

impl FrameCarrier for FrameSender {
    fn submit(&self, to: NodeId, frame: OutgoingFrame) -> Option<OutgoingFrame> {
        match self.send(to, frame) {
            SendOutcome::Full(frame) => Some(frame),
            SendOutcome::Queued | SendOutcome::NoPath(_) => None,
        }
    }

    fn submit_blocking(
        &self,
        to: NodeId,
        frame: OutgoingFrame,
        superseded: impl Future<Output = ()>,
    ) {
        self.send_blocking(to, frame, superseded);
    }
}

/// What a thread sends to another worker.
enum DispatchItem {
    /// A message; one for a follower with what shows that it was not sent.
    Message(PeerFrame, Option<UnsentMessage>),
    /// Frames of a pass, of this plan, that a queue had no space for.
    Frames(Vec<OutgoingFrame>, Generation),
}

/// What waits for a thread that sends it.
type DispatchQueue = SyncSender<(NodeId, DispatchItem)>;

/// Sends the frames of a worker to the tensor lane, by threads of its own where a device is waited
/// for.
pub(super) struct FrameDispatcher<R: FrameCarrier = FrameSender> {
    forwarder: FrameForwarder<R>,
    /// The queue of the thread for what passes wait for, once there is one.
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
    /// The plan in force.
    in_force: watch::Receiver<Generation>,
}

impl<R: FrameCarrier> FrameDispatcher<R> {
    /// A dispatcher that has started no thread yet. Of layers in training that it offers it takes
    /// snapshots.
    pub(super) fn new(
        frames: R,
        outbox: mpsc::Sender<DeviceOutput>,
        (device, snapshots): (String, LayerSnapshots),
        in_force: watch::Receiver<Generation>,
        links: Option<TensorLinks>,
    ) -> Self {
        Self {
            forwarder: FrameForwarder { carrier: frames, outbox, device, snapshots, in_force },
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
            FrameLane::Pass { .. } => (&mut self.queue, "frame-sender"),
            FrameLane::Copy => (&mut self.gradients, "gradients"),
            FrameLane::Follower => (&mut self.updates, "updates"),
            FrameLane::Exchange => (&mut self.exchanges, "exchanges"),
        };
        let is_pass = matches!(lane, FrameLane::Pass { .. });
        let waits_for_nothing = lane == FrameLane::Pass { is_on_device: false };
        let item = if queue.is_none() && waits_for_nothing {
            match self.forwarder.try_send(to, frame)? {
                Some(unsent) => unsent,
                None => return Ok(()),
            }
        } else {
            DispatchItem::Message(frame, unsent)
        };
        if queue.is_none() {
            *queue = self.forwarder.start(thread, self.links.clone().filter(|_| is_pass));
        }
        match queue {
            Some(queue) => queue.send((to, item)).map_err(|_| OutputsClosed),
            None => self.forwarder.send(to, item),
        }
    }
}

impl<R: FrameCarrier> FrameForwarder<R> {
    /// The queue of a new thread. Without one the device thread waits itself.
    fn start(&self, name: &str, links: Option<TensorLinks>) -> Option<DispatchQueue> {
        let (queue, items): (DispatchQueue, _) = sync_channel(MESSAGES_QUEUED_MAX);
        let forwarder = self.clone();
        let carry = move || {
            while let Ok((to, item)) = items.recv() {
                let item = match (&links, item) {
                    (Some(links), DispatchItem::Message(frame, unsent)) => {
                        links.send(to, frame).map(|frame| DispatchItem::Message(frame, unsent))
                    }
                    (_, item) => Some(item),
                };
                if item.is_some_and(|item| forwarder.send(to, item).is_err()) {
                    return;
                }
            }
        };
        thread::Builder::new().name(name.to_owned()).spawn(carry).ok().map(|_| queue)
    }

    /// Sends what a pass waits for, or gives back the frames of it that the queue to their receiver has no
    /// space for.
    fn try_send(
        &self,
        to: NodeId,
        frame: PeerFrame,
    ) -> Result<Option<DispatchItem>, OutputsClosed> {
        let generation = frame.generation;
        let mut frames = self.frames_of(to, frame)?.into_iter();
        let unsent = frames.find_map(|frame| self.carrier.submit(to, frame));
        Ok(unsent
            .map(|unsent| DispatchItem::Frames(once(unsent).chain(frames).collect(), generation)))
    }

    /// Sends it once the queue to its receiver has space.
    fn send(&self, to: NodeId, item: DispatchItem) -> Result<(), OutputsClosed> {
        let (frames, generation, _unsent) = match item {
            DispatchItem::Frames(frames, generation) => (frames, Some(generation), None),
            DispatchItem::Message(frame, unsent) => {
                let generation = match lane(&frame.body) {
                    FrameLane::Copy | FrameLane::Follower => None,
                    FrameLane::Pass { .. } | FrameLane::Exchange => Some(frame.generation),
                };
                (self.frames_of(to, frame)?, generation, unsent)
            }
        };
        for frame in frames {
            self.carrier.submit_blocking(to, frame, superseded(self.in_force.clone(), generation));
        }
        Ok(())
    }

    /// The frames of a message, none of one that is sent otherwise or cannot be sent, which is reported.
    fn frames_of(&self, to: NodeId, frame: PeerFrame) -> Result<Vec<OutgoingFrame>, OutputsClosed> {
        let output = match outgoing(frame) {
            Ok(OutgoingMessage::Frames(frames)) => return Ok(frames),
            Ok(OutgoingMessage::Request(message)) => DeviceOutput::Request { to, message },
            Ok(OutgoingMessage::Layer(offer)) => {
                DeviceOutput::Offer { to, offer: self.snapshot(offer) }
            }
            Err(OutgoingError::TooLong(error)) => DeviceOutput::Failed(error.into()),
            Err(OutgoingError::Fault(fault)) => {
                let device = self.device.clone();
                self.report(DeviceOutput::Failed(WorkerDeviceError::Fault { device, fault }))?;
                return Err(OutputsClosed);
            }
        };
        self.report(output)?;
        Ok(Vec::new())
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

/// Ready once a plan behind that of `generation` is in force; never without one.
async fn superseded(mut in_force: watch::Receiver<Generation>, generation: Option<Generation>) {
    let Some(generation) = generation else { return pending().await };
    let _ended_or_superseded = in_force.wait_for(|in_force| *in_force > generation).await;
}
