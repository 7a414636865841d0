//! The thread of a worker's links: boundary tensors that go from device to device. It alone calls NCCL,
//! and waits for no exchange. What is begun and given up is decided in
//! [`zbelastic_machine::device_links`].

use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use zbelastic_consensus::member::Holder;
use zbelastic_kernels::cuda::nccl::{CommunicatorId, DeviceLinks, LinkEnd};
use zbelastic_machine::device_links::{LinkMessage, LinkOutput, LinkPlan, TensorLinks as LinkCore};
use zbelastic_trainer::runtime::{PeerBody, PeerFrame};
use zbelastic_transport::FrameSender;
use zbelastic_types::{Generation, NodeId};
use zbelastic_wire::frames::{AnnouncedTensor, LinkBody, LinkFrame};

use super::device::{DeviceInput, DeviceOutput};

/// Commands that wait for the thread: several for each tensor of a step.
const COMMANDS_MAX: usize = 16_384;
/// The first pause between two looks at an exchange, about what a small one takes.
const PAUSE_MIN: Duration = Duration::from_micros(20);
/// The longest: it adds no more than that to an exchange of many milliseconds.
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// A tensor that is received, with the plan and the worker that sends it.
type SentTensor = (Generation, Holder, AnnouncedTensor);

/// A message to the thread.
enum LinkCommand {
    /// A job begins on another device, or on none.
    Device(Option<Box<dyn DeviceLinks>>),
    /// A plan is loaded in which this worker is this one.
    Plan(LinkPlan, Holder),
    /// The plan stops, or may.
    Stop,
    /// The connection to a node ended.
    Down(NodeId),
    /// A tensor of a node came by way of the host.
    ByHost(NodeId, Generation),
    /// A frame of the other end of a link.
    Frame(Box<LinkFrame>),
    /// A tensor is to be sent. The frame is returned if it has to go by way of the host.
    Send(NodeId, Box<PeerFrame>, SyncSender<Option<PeerFrame>>),
    /// Answered once the commands before it were executed.
    Answer(SyncSender<()>),
}

/// The handle of the thread; cheap to clone.
#[derive(Clone)]
pub(super) struct TensorLinks {
    commands: SyncSender<LinkCommand>,
}

impl TensorLinks {
    /// Starts the thread: its messages go to `frames`, tensors that arrive to `inbox`, reports to
    /// `outbox`.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn start(
        frames: FrameSender,
        inbox: SyncSender<DeviceInput>,
        outbox: mpsc::Sender<DeviceOutput>,
    ) -> std::io::Result<Self> {
        let (commands, waiting) = sync_channel(COMMANDS_MAX);
        let mut thread = LinkThread {
            commands: waiting,
            frames,
            inbox,
            outbox,
            links: LinkCore::default(),
            me: None,
            sending: None,
            pause: PAUSE_MIN,
        };
        let run = move || while thread.run_once().is_some() {};
        thread::Builder::new().name("links".to_owned()).spawn(run)?;
        Ok(Self { commands })
    }

    /// Sends a command. A thread that is thousands of them behind hangs in the driver; then nothing
    /// is sent by a link any more.
    fn command(&self, command: LinkCommand) {
        let _hangs = self.commands.try_send(command);
    }

    /// A job begins on a device with these links, or on none. Links before are dropped when this
    /// returns.
    pub(super) fn set_device(&self, device: Option<Box<dyn DeviceLinks>>) {
        self.command(LinkCommand::Device(device));
        self.wait();
    }

    /// A plan is loaded, in which this worker is `me`.
    pub(super) fn begin_plan(&self, plan: LinkPlan, me: Holder) {
        self.command(LinkCommand::Plan(plan, me));
    }

    /// The plan stops, or may.
    pub(super) fn stop(&self) {
        self.command(LinkCommand::Stop);
    }

    /// The connection to a node ended.
    pub(super) fn note_down(&self, peer: NodeId) {
        self.command(LinkCommand::Down(peer));
    }

    /// A frame came by way of the host.
    pub(super) fn note_frame(&self, frame: &PeerFrame) {
        if let PeerBody::Frame(tensor) = &frame.body
            && !tensor.tensor.is_empty()
        {
            self.command(LinkCommand::ByHost(frame.sender.node, frame.generation));
        }
    }

    /// A frame of the other end of a link arrived.
    pub(super) fn handle(&self, frame: Box<LinkFrame>) {
        self.command(LinkCommand::Frame(frame));
    }

    /// Waits until the commands before are executed: memory of links of other plans is free then.
    pub(super) fn wait(&self) {
        let (answer, answered) = sync_channel(1);
        if self.commands.try_send(LinkCommand::Answer(answer)).is_ok() {
            // A thread that has ended holds no link.
            let _ended = answered.recv();
        }
    }

    /// Sends the tensor of a frame from device to device, and returns when the other end has it. A
    /// frame that has to go by way of the host is returned.
    pub(super) fn send(&self, to: NodeId, frame: PeerFrame) -> Option<PeerFrame> {
        if !matches!(&frame.body, PeerBody::Frame(tensor) if tensor.tensor.is_on_device()) {
            return Some(frame);
        }
        let (answer, answered) = sync_channel(1);
        match self.commands.send(LinkCommand::Send(to, Box::new(frame), answer)) {
            Ok(()) => answered.recv().unwrap_or(None),
            Err(SendError(LinkCommand::Send(_, frame, _))) => Some(*frame),
            Err(_) => None,
        }
    }
}

struct LinkThread {
    commands: Receiver<LinkCommand>,
    frames: FrameSender,
    inbox: SyncSender<DeviceInput>,
    outbox: mpsc::Sender<DeviceOutput>,
    links: LinkCore<SentTensor>,
    /// The plan in force, and this worker in it.
    me: Option<(Generation, Holder)>,
    /// The frame whose tensor is under way, and whom to answer.
    sending: Option<(NodeId, Box<PeerFrame>, SyncSender<Option<PeerFrame>>)>,
    pause: Duration,
}

impl LinkThread {
    /// Goes on with what is under way and executes the next command. None if a channel was dropped.
    fn run_once(&mut self) -> Option<()> {
        let is_busy = self.links.advance();
        self.perform()?;
        let command = if is_busy {
            match self.commands.recv_timeout(self.pause) {
                Ok(command) => command,
                Err(RecvTimeoutError::Timeout) => {
                    self.pause = (2 * self.pause).min(PAUSE_MAX);
                    return Some(());
                }
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        } else {
            self.commands.recv().ok()?
        };
        self.pause = PAUSE_MIN;
        self.execute(command);
        self.perform()
    }

    fn execute(&mut self, command: LinkCommand) {
        match command {
            LinkCommand::Device(device) => self.links.set_device(device),
            LinkCommand::Plan(plan, me) => {
                // What says that links before are over belongs to their plan.
                self.links.stop();
                let _closed = self.perform();
                self.me = Some((plan.generation, me));
                self.links.begin_plan(plan);
            }
            LinkCommand::Stop => self.links.stop(),
            LinkCommand::Down(peer) => self.links.note_down(peer),
            LinkCommand::ByHost(from, generation) => self.links.note_by_host(from, generation),
            LinkCommand::Frame(frame) => {
                let LinkFrame { generation, sender, body } = *frame;
                if let Some(message) = message((generation, sender), body) {
                    self.links.handle(sender.node, generation, message);
                }
            }
            LinkCommand::Send(to, frame, answer) => self.send(to, frame, answer),
            LinkCommand::Answer(answer) => {
                let _nobody_waits = answer.try_send(());
            }
        }
    }

    fn send(&mut self, to: NodeId, frame: Box<PeerFrame>, answer: SyncSender<Option<PeerFrame>>) {
        let (generation, sender) = (frame.generation, frame.sender);
        let is_begun = AnnouncedTensor::of(&frame).is_some_and(|(announced, tensor)| {
            self.links.send(to, generation, tensor, (generation, sender, announced))
        });
        if is_begun {
            self.sending = Some((to, frame, answer));
        } else {
            let _nobody_waits = answer.try_send(Some(*frame));
        }
    }

    /// Carries out what the links decided.
    fn perform(&mut self) -> Option<()> {
        while let Some(output) = self.links.poll_output() {
            match output {
                LinkOutput::Message(to, message) => {
                    if let Some((generation, sender)) = self.me {
                        let frame = LinkFrame { generation, sender, body: body(message) };
                        // One that is lost was lost with its connection, which ends the link.
                        let _queued_or_lost = self.frames.send(to, frame.frame());
                    }
                }
                LinkOutput::Arrived((generation, sender, announced), tensor) => {
                    let frame = Box::new(announced.arrived((generation, sender), tensor));
                    let input = DeviceInput::Frame(frame, Instant::now());
                    let _full_or_gone = self.inbox.try_send(input);
                }
                LinkOutput::Resolved(to, is_sent) => {
                    if let Some((_, frame, answer)) = self.sending.take_if(|(of, ..)| *of == to) {
                        let _nobody_waits = answer.try_send((!is_sent).then_some(*frame));
                    }
                }
                LinkOutput::Report(report) => {
                    self.outbox.blocking_send(DeviceOutput::Link(report)).ok()?;
                }
            }
        }
        Some(())
    }
}

/// The message in a frame; none if its id is none.
fn message(
    (generation, sender): (Generation, Holder),
    body: LinkBody,
) -> Option<LinkMessage<SentTensor>> {
    Some(match body {
        LinkBody::Invite(id) => LinkMessage::Invite(CommunicatorId(id.try_into().ok()?)),
        LinkBody::Announced { number, len, tensor } => {
            LinkMessage::Announced { number, len, tensor: (generation, sender, tensor) }
        }
        LinkBody::Received(number) => LinkMessage::Received(number),
        LinkBody::SenderEnded => LinkMessage::Ended(LinkEnd::Sender),
        LinkBody::ReceiverEnded => LinkMessage::Ended(LinkEnd::Receiver),
    })
}

fn body(message: LinkMessage<SentTensor>) -> LinkBody {
    match message {
        LinkMessage::Invite(id) => LinkBody::Invite(id.0.to_vec()),
        LinkMessage::Announced { number, len, tensor: (_, _, tensor) } => {
            LinkBody::Announced { number, len, tensor }
        }
        LinkMessage::Received(number) => LinkBody::Received(number),
        LinkMessage::Ended(LinkEnd::Sender) => LinkBody::SenderEnded,
        LinkMessage::Ended(LinkEnd::Receiver) => LinkBody::ReceiverEnded,
    }
}
