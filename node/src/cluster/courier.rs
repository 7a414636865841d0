//! Sends what the device thread hands out. A boundary tensor that a device holds and a layer that it copies to
//! the host have to be waited for; from the first one on that is done by a thread of its own, and the device
//! thread goes on enqueuing work. Boundary tensors and sums of a worker go the same way, so that they
//! keep their order.
//!
//! Gradients for copies go by another thread: nobody's pass waits for them, there may be more of them than
//! the queue to a peer takes, and none may be dropped. Those for followers may: a follower that is too far
//! behind requests its layer anew.

#[cfg(test)]
mod tests;

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use tokio::sync::mpsc;
use zbelastic_trainer::elastic::GradientPart;
use zbelastic_trainer::host::{PeerBody, PeerFrame};
use zbelastic_transport::{FrameSender, OutgoingFrame};
use zbelastic_types::NodeId;

use super::device::{DeviceOutput, DeviceTrouble, Over};
use super::frames::{Outgoing, outgoing};

/// Frames that wait for the courier. When there are more the device thread waits for it: a device that
/// is so far ahead of its network has nothing to gain.
const BAG_MAX: usize = 64;
/// Messages of gradients that wait for their thread, each of at most 16 MiB: the gradient of a stage of
/// 2^32 floats for four receivers. They share the memory of the gradient.
const GRADIENTS_MAX: usize = 4096;

/// Takes frames to other workers.
pub(super) trait Road: Clone + Send + 'static {
    /// Takes a frame, or drops it: a receiver that cannot be reached is lost, or will be; its plan ends with
    /// it.
    fn take(&self, to: NodeId, frame: OutgoingFrame);

    /// The same, but waits until there is room for it.
    fn take_blocking(&self, to: NodeId, frame: OutgoingFrame);
}

impl Road for FrameSender {
    fn take(&self, to: NodeId, frame: OutgoingFrame) {
        let _queued_or_lost = self.send(to, frame);
    }

    fn take_blocking(&self, to: NodeId, frame: OutgoingFrame) {
        let _queued_or_lost = self.send_blocking(to, frame);
    }
}

/// Frames on their way to a thread that sends them.
type Bag = SyncSender<(NodeId, PeerFrame)>;

/// The way out of a worker.
pub(super) struct Courier<R: Road = FrameSender> {
    way: Way<R>,
    /// The thread's, once there is one.
    bag: Option<Bag>,
    /// Of the thread for gradients, once there is one.
    gradients: Option<Bag>,
}

/// Where frames go to.
#[derive(Clone)]
struct Way<R> {
    frames: R,
    outbox: mpsc::Sender<DeviceOutput>,
    /// What the device is called.
    device: String,
}

impl<R: Road> Courier<R> {
    /// A courier that has started no thread yet.
    pub(super) const fn new(frames: R, outbox: mpsc::Sender<DeviceOutput>, device: String) -> Self {
        Self { way: Way { frames, outbox, device }, bag: None, gradients: None }
    }

    /// Sends a frame, or has it sent.
    ///
    /// # Errors
    /// If the receiver of outputs is gone.
    pub(super) fn send(&mut self, to: NodeId, frame: PeerFrame) -> Result<(), Over> {
        let is_gradient = is_gradient(&frame.body);
        if is_gradient && self.gradients.is_none() {
            self.gradients = self.start("gradients", GRADIENTS_MAX);
        } else if !is_gradient && self.bag.is_none() && is_held(&frame.body) {
            self.bag = self.start("courier", BAG_MAX);
        }
        match if is_gradient { &self.gradients } else { &self.bag } {
            Some(bag) => bag.send((to, frame)).map_err(|_| Over),
            None => self.way.send(to, frame),
        }
    }

    /// The bag of a new thread. Without one the device thread waits itself.
    fn start(&self, name: &str, frames_max: usize) -> Option<Bag> {
        let (bag, frames) = sync_channel(frames_max);
        let way = self.way.clone();
        let carry = move || {
            while let Ok((to, frame)) = frames.recv() {
                if way.send(to, frame).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name(name.to_owned()).spawn(carry).ok().map(|_| bag)
    }
}

/// Whether it is a gradient for a copy, which no pass waits for.
fn is_gradient(body: &PeerBody) -> bool {
    match body {
        PeerBody::Gradients { .. } => true,
        PeerBody::Update { .. }
        | PeerBody::Frame(_)
        | PeerBody::Prefix(_)
        | PeerBody::Partial(_)
        | PeerBody::Layer(_)
        | PeerBody::Ahead { .. }
        | PeerBody::Fetch { .. }
        | PeerBody::Follow { .. } => false,
    }
}

/// Whether the numbers of a frame may have to be waited for.
fn is_held(body: &PeerBody) -> bool {
    match body {
        PeerBody::Frame(frame) => frame.tensor.is_held(),
        PeerBody::Gradients { parts, .. } => parts.iter().any(GradientPart::is_held),
        PeerBody::Update { gradients, .. } => gradients.iter().any(|gradient| gradient.g.is_held()),
        PeerBody::Layer(image) | PeerBody::Ahead { image, .. } => image.is_held(),
        PeerBody::Prefix(_)
        | PeerBody::Partial(_)
        | PeerBody::Fetch { .. }
        | PeerBody::Follow { .. } => false,
    }
}

impl<R: Road> Way<R> {
    fn send(&self, to: NodeId, frame: PeerFrame) -> Result<(), Over> {
        let (held, fault) = match &frame.body {
            PeerBody::Frame(frame) => (frame.tensor.held(), None),
            PeerBody::Gradients { parts, .. } => (None, parts.iter().find_map(GradientPart::wait)),
            PeerBody::Update { gradients, .. } => {
                (None, gradients.iter().find_map(|gradient| gradient.wait()))
            }
            PeerBody::Layer(image) | PeerBody::Ahead { image, .. } => (None, image.wait()),
            PeerBody::Prefix(_)
            | PeerBody::Partial(_)
            | PeerBody::Fetch { .. }
            | PeerBody::Follow { .. } => (None, None),
        };
        let is_gradient = is_gradient(&frame.body);
        let sent = outgoing(frame);
        if let Some(fault) = fault.or_else(|| held.and_then(|held| held.fault())) {
            // What a device that gave up was read as is no result: nobody may take it for one.
            let device = self.device.clone();
            self.say(DeviceOutput::Failed(DeviceTrouble::Fault { device, fault }))?;
            return Err(Over);
        }
        match sent {
            Ok(Outgoing::Frames(frames)) => {
                frames.into_iter().for_each(|frame| match is_gradient {
                    true => self.frames.take_blocking(to, frame),
                    false => self.frames.take(to, frame),
                });
                Ok(())
            }
            Ok(Outgoing::Ask(message)) => self.say(DeviceOutput::Ask { to, message }),
            Ok(Outgoing::Layer(offer)) => self.say(DeviceOutput::Offer { to, offer }),
            Err(error) => self.say(DeviceOutput::Failed(error.into())),
        }
    }

    fn say(&self, output: DeviceOutput) -> Result<(), Over> {
        self.outbox.blocking_send(output).map_err(|_| Over)
    }
}
