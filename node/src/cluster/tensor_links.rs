//! The threads of a worker's links: boundary tensors that are sent from device to device, each way by
//! a thread that waits for the exchange. What is begun and given up is decided in
//! [`zbelastic_machine::device_links`].

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use zbelastic_kernels::cuda::nccl::DeviceLinks;
use zbelastic_machine::device_links::{
    ExchangeGauge, IncomingLinks, LinkInvitation, LinkReport, OutgoingLinks,
};
use zbelastic_trainer::runtime::{PeerBody, PeerFrame};
use zbelastic_types::{Generation, NodeId};
use zbelastic_wire::frames::AnnouncedTensor;

use super::device::{DeviceInput, DeviceOutput};

/// Commands that wait for a thread: one for each tensor of a step, as the device's inbox has.
const COMMANDS_MAX: usize = 16_384;
/// How often links that are begun are looked at: a plan has computed for longer before they matter.
const BEGUN_PAUSE: Duration = Duration::from_millis(1);

/// A message to one of the threads.
pub(super) enum LinkCommand {
    /// A job begins on another device, or on none.
    Device(Option<Box<dyn DeviceLinks>>),
    /// To the sender: a receiver invites to a link.
    Invited(NodeId, LinkInvitation),
    /// To the receiver: a tensor came by way of the host.
    ByHost(NodeId, Generation),
    /// To the receiver: a tensor is sent.
    Announced(Box<AnnouncedTensor>),
    /// To the receiver: another plan is loaded. Answered once the links before it are dropped.
    Plan(SyncSender<()>),
}

/// The commands of both threads, and what ends their exchanges.
#[derive(Clone)]
pub(super) struct TensorLinks {
    incoming: SyncSender<LinkCommand>,
    outgoing: SyncSender<LinkCommand>,
    gauge: Arc<ExchangeGauge>,
}

/// The sending half, for the thread that sends what a device holds.
pub(super) struct LinkSender {
    commands: Receiver<LinkCommand>,
    links: OutgoingLinks,
}

impl TensorLinks {
    /// Starts the thread that receives; tensors that arrive go to `inbox`, reports to `outbox`.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn start(
        inbox: SyncSender<DeviceInput>,
        outbox: mpsc::Sender<DeviceOutput>,
    ) -> std::io::Result<(Self, LinkSender)> {
        let gauge = Arc::new(ExchangeGauge::default());
        let (incoming, to_receive) = sync_channel(COMMANDS_MAX);
        let (outgoing, commands) = sync_channel(COMMANDS_MAX);
        let links = IncomingLinks::new(gauge.clone());
        let receiver = LinkReceiver { commands: to_receive, links, inbox, outbox };
        thread::Builder::new().name("link-receiver".to_owned()).spawn(move || receiver.run())?;
        let sender = LinkSender { commands, links: OutgoingLinks::new(gauge.clone()) };
        Ok((Self { incoming, outgoing, gauge }, sender))
    }

    /// What ends exchanges.
    pub(super) fn gauge(&self) -> &ExchangeGauge {
        &self.gauge
    }

    /// A job begins on a device with these links, a half for each thread.
    pub(super) fn set_device(&self, [one, other]: [Option<Box<dyn DeviceLinks>>; 2]) {
        // A thread that is so far behind has links that end with their plan.
        let _behind = self.incoming.try_send(LinkCommand::Device(one));
        let _behind = self.outgoing.try_send(LinkCommand::Device(other));
    }

    /// Waits until the memory of links of plans before the one in force is free. Their exchanges are
    /// over.
    pub(super) fn wait_for_memory(&self) {
        let (dropped, is_dropped) = sync_channel(1);
        if self.incoming.try_send(LinkCommand::Plan(dropped)).is_ok() {
            // A thread that has ended holds no link.
            let _ended = is_dropped.recv();
        }
    }

    /// A receiver invites to a link. What is not begun goes by way of the host.
    pub(super) fn accept(&self, from: NodeId, invitation: LinkInvitation) {
        let _behind = self.outgoing.try_send(LinkCommand::Invited(from, invitation));
    }

    /// A frame came by way of the host.
    pub(super) fn note_frame(&self, frame: &PeerFrame) {
        if let PeerBody::Frame(tensor) = &frame.body
            && !tensor.tensor.is_empty()
        {
            let command = LinkCommand::ByHost(frame.sender.node, frame.generation);
            let _behind = self.incoming.try_send(command);
        }
    }

    /// A tensor was announced. One that is not received is as a frame that was lost.
    pub(super) fn receive(&self, announced: Box<AnnouncedTensor>) {
        let _behind = self.incoming.try_send(LinkCommand::Announced(announced));
    }
}

impl LinkSender {
    /// Sends the tensor of a frame from device to device, if it can be; what announces it is sent by
    /// `announce`. Yields whether it was sent, and what is to be reported.
    pub(super) fn send(
        &mut self,
        to: NodeId,
        frame: &PeerFrame,
        mut announce: impl FnMut(&AnnouncedTensor),
    ) -> (bool, Vec<LinkReport>) {
        for command in self.commands.try_iter() {
            match command {
                LinkCommand::Device(device) => self.links.set_device(device),
                LinkCommand::Invited(from, invitation) => self.links.accept(from, invitation),
                LinkCommand::ByHost(..) | LinkCommand::Announced(_) | LinkCommand::Plan(_) => {}
            }
        }
        let (Some(announced), PeerBody::Frame(tensor)) = (AnnouncedTensor::of(frame), &frame.body)
        else {
            return (false, Vec::new());
        };
        let to = (to, frame.generation);
        let is_sent = self.links.send(to, &tensor.tensor, || announce(&announced));
        (is_sent, self.links.take_reports())
    }
}

/// The thread that receives.
struct LinkReceiver {
    commands: Receiver<LinkCommand>,
    links: IncomingLinks,
    inbox: SyncSender<DeviceInput>,
    outbox: mpsc::Sender<DeviceOutput>,
}

impl LinkReceiver {
    fn run(mut self) {
        while self.run_once().is_some() {}
    }

    /// Handles the next command. None if a channel was dropped.
    fn run_once(&mut self) -> Option<()> {
        let command = if self.links.advance() {
            match self.commands.recv_timeout(BEGUN_PAUSE) {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        } else {
            Some(self.commands.recv().ok()?)
        };
        match command {
            Some(LinkCommand::Device(device)) => self.links.set_device(device),
            Some(LinkCommand::ByHost(from, generation)) => {
                if let Some(invitation) = self.links.invite(from, generation) {
                    let output = DeviceOutput::Invite { to: from, invitation };
                    self.outbox.blocking_send(output).ok()?;
                }
            }
            Some(LinkCommand::Announced(announced)) => {
                let from = (announced.sender.node, announced.generation);
                if let Some(tensor) = self.links.receive(from, announced.len()) {
                    let frame = Box::new(announced.arrived(tensor));
                    let _full_or_gone =
                        self.inbox.try_send(DeviceInput::Frame(frame, Instant::now()));
                }
            }
            Some(LinkCommand::Plan(dropped)) => {
                self.links.advance();
                let _nobody_waits = dropped.try_send(());
            }
            Some(LinkCommand::Invited(..)) | None => {}
        }
        for report in self.links.take_reports() {
            self.outbox.blocking_send(DeviceOutput::Link(report)).ok()?;
        }
        Some(())
    }
}
