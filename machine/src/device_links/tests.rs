//! Two ends of links, whose messages a test carries, over a device that does what the test says.

use std::sync::{Arc, Mutex, MutexGuard};

use zbelastic_kernels::{DeviceFault, DeviceValue, HostTensor, Pending};

use super::*;

/// The sender, the receiver, and their plan.
const S: NodeId = NodeId(1);
const R: NodeId = NodeId(2);
const PLAN: LinkPlan = LinkPlan { generation: Generation(3), len_max: 10 };

/// What the links of a device do.
#[derive(Default)]
struct Script {
    begun: u32,
    dropped: u32,
    is_ready: bool,
    /// What polling yields once, in place of nothing.
    polled: Option<Result<ExchangeState, LinkError>>,
    refuses: bool,
}

#[derive(Clone, Default)]
struct FakeDevice(Arc<Mutex<Script>>);

impl FakeDevice {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().expect("one test")
    }
}

struct FakeLink(FakeDevice);

impl Drop for FakeLink {
    fn drop(&mut self) {
        self.0.script().dropped += 1;
    }
}

impl DeviceLinks for FakeDevice {
    fn begin(&self, _: LinkEnd, _: &CommunicatorId) -> Result<Box<dyn DeviceLink>, LinkError> {
        self.script().begun += 1;
        Ok(Box::new(FakeLink(self.clone())))
    }
}

impl DeviceLink for FakeLink {
    fn is_ready(&self) -> Result<bool, LinkError> {
        Ok(self.0.script().is_ready)
    }

    fn begin_send(&mut self, _: &TensorHandle) -> Result<bool, LinkError> {
        if self.0.script().refuses { Err(refused()) } else { Ok(true) }
    }

    fn begin_receive(&mut self, _: usize) -> Result<(), LinkError> {
        if self.0.script().refuses { Err(refused()) } else { Ok(()) }
    }

    fn poll(&mut self) -> Result<ExchangeState, LinkError> {
        self.0.script().polled.take().unwrap_or(Ok(ExchangeState::Pending))
    }
}

fn refused() -> LinkError {
    LinkError::Refused { call: "ncclSend", reason: "remote error".to_owned() }
}

/// A tensor that counts as one of a device.
struct OnDevice;

impl DeviceValue<HostTensor> for OnDevice {
    fn read(&self) -> Result<HostTensor, DeviceFault> {
        Ok(HostTensor::Floats(vec![2.0]))
    }
}

fn on_device() -> TensorHandle {
    TensorHandle::pending(1, Pending::OnDevice(Arc::new(OnDevice)))
}

/// One end's links, and their device.
struct End(TensorLinks<&'static str>, FakeDevice);

impl End {
    fn new() -> Self {
        let mut links = TensorLinks::default();
        let device = FakeDevice::default();
        // A device takes a while to be opened.
        links.begin_plan(PLAN);
        links.set_device(Some(Box::new(device.clone())));
        Self(links, device)
    }

    /// A sender's end, whose link is ready.
    fn sender() -> Self {
        let mut end = Self::new();
        end.handle(R, LinkMessage::Invite(CommunicatorId([0; 128])));
        assert!(end.0.advance(), "it is begun");
        end.1.script().is_ready = true;
        assert!(!end.0.advance());
        assert_eq!(end.outputs(), ["ready for 2"]);
        end
    }

    /// A receiver's end, which has invited the sender.
    fn receiver() -> Self {
        let mut end = Self::new();
        let link = end.1.begin(LinkEnd::Receiver, &CommunicatorId([0; 128])).expect("a link");
        end.0.invite(S, Ok((link, CommunicatorId([0; 128]))));
        assert_eq!(end.outputs(), ["to 1: invite"]);
        end
    }

    fn handle(&mut self, from: NodeId, message: LinkMessage<&'static str>) {
        self.0.handle(from, PLAN.generation, message);
    }

    fn send(&mut self, tensor: &'static str) -> bool {
        self.0.send(R, PLAN.generation, &on_device(), tensor)
    }

    /// What polling yields next.
    fn polled(&mut self, state: Result<ExchangeState, LinkError>) {
        self.1.script().polled = Some(state);
        self.0.advance();
    }

    fn outputs(&mut self) -> Vec<String> {
        let text = |output| match output {
            LinkOutput::Message(to, LinkMessage::Invite(_)) => format!("to {to}: invite"),
            LinkOutput::Message(to, LinkMessage::Announced { number, tensor, .. }) => {
                format!("to {to}: {tensor} is {number}")
            }
            LinkOutput::Message(to, LinkMessage::Received(number)) => {
                format!("to {to}: received {number}")
            }
            LinkOutput::Message(to, LinkMessage::Ended(end)) => format!("to {to}: {end:?} ended"),
            LinkOutput::Arrived(of, tensor) => format!("{of} of {}", tensor.len()),
            LinkOutput::Resolved(peer, is_sent) => format!("{peer} resolved {is_sent}"),
            LinkOutput::Report(LinkReport::Ready { to }) => format!("ready for {to}"),
            LinkOutput::Report(LinkReport::Failed { reason, .. }) => reason.to_string(),
        };
        std::iter::from_fn(|| self.0.poll_output()).map(text).collect()
    }
}

fn announced(number: u32, tensor: &'static str) -> LinkMessage<&'static str> {
    LinkMessage::Announced { number, len: 5, tensor }
}

fn arrived() -> Result<ExchangeState, LinkError> {
    Ok(ExchangeState::Received(vec![1.0; 5].into()))
}

#[test]
fn a_tensor_goes_by_the_host_until_a_link_is_ready() {
    let mut end = End::new();
    assert!(!end.send("a"), "nobody has invited to a link");
    end.0.handle(R, Generation(2), LinkMessage::Invite(CommunicatorId([0; 128])));
    assert_eq!(end.1.script().begun, 0, "of another plan");
    for _ in 0..2 {
        end.handle(R, LinkMessage::Invite(CommunicatorId([0; 128])));
    }
    assert_eq!(end.1.script().begun, 1, "one for each peer and plan");
    assert!(!end.send("a"), "the other end is not there yet");
    let mut end = End::sender();
    assert!(!end.0.send(R, PLAN.generation, &vec![1.0].into(), "a"), "it is on the host");
    assert!(!end.0.send(R, Generation(4), &on_device(), "a"), "of another plan");
    assert!(end.send("a"));
}

#[test]
fn a_tensor_is_sent_once_both_ends_are_done_with_it() {
    for sent_first in [true, false] {
        let mut end = End::sender();
        assert!(end.send("a"));
        assert!(!end.send("b"), "one after the other");
        assert_eq!(end.outputs(), ["to 2: a is 0"]);
        if sent_first {
            end.polled(Ok(ExchangeState::Sent));
            assert!(end.outputs().is_empty(), "nobody says that it has come");
            end.handle(R, LinkMessage::Received(0));
            end.0.advance();
        } else {
            end.handle(R, LinkMessage::Received(0));
            end.0.advance();
            assert!(end.outputs().is_empty(), "NCCL may still read it");
            end.polled(Ok(ExchangeState::Sent));
        }
        assert_eq!(end.outputs(), ["2 resolved true"]);
        assert!(end.send("b"));
        end.handle(R, LinkMessage::Received(0));
        end.polled(Ok(ExchangeState::Sent));
        assert_eq!(end.outputs(), ["to 2: b is 1"], "an answer to the one before counts for none");
    }
}

#[test]
fn a_tensor_that_was_not_received_goes_by_the_host() {
    let begun = || {
        let mut end = End::sender();
        assert!(end.send("a"));
        assert_eq!(end.outputs().len(), 1);
        end
    };
    let mut given_up = begun();
    given_up.handle(R, LinkMessage::Ended(LinkEnd::Receiver));
    assert_eq!(given_up.outputs(), ["2 resolved false", "the other end gave it up"]);
    assert_eq!(given_up.1.script().dropped, 1);
    let mut failed = begun();
    failed.polled(Err(refused()));
    let expected = ["to 2: Sender ended", "2 resolved false", "NCCL: ncclSend: remote error"];
    assert_eq!(failed.outputs(), expected);
    let mut down = begun();
    down.0.note_down(NodeId(9));
    assert!(down.outputs().is_empty(), "another peer");
    down.0.note_down(R);
    assert_eq!(down.outputs(), ["2 resolved false", "the other end gave it up"]);
    assert!(!down.send("b"), "not under this plan");
    down.handle(R, LinkMessage::Invite(CommunicatorId([0; 128])));
    assert_eq!(down.1.script().begun, 1);
    let mut stopped = begun();
    stopped.0.stop();
    assert_eq!(stopped.outputs(), ["to 2: Sender ended", "2 resolved false"]);
    stopped.handle(R, LinkMessage::Invite(CommunicatorId([0; 128])));
    assert_eq!(stopped.1.script().begun, 1, "none until the next plan");
    stopped.0.begin_plan(LinkPlan { generation: Generation(4), ..PLAN });
    stopped.0.handle(R, Generation(4), LinkMessage::Invite(CommunicatorId([0; 128])));
    assert_eq!(stopped.1.script().begun, 2);
}

#[test]
fn what_was_announced_is_received_in_its_order() {
    let mut end = End::receiver();
    end.handle(S, announced(0, "a"));
    assert!(end.0.advance(), "this end is not ready yet");
    assert!(end.outputs().is_empty());
    end.1.script().is_ready = true;
    end.0.advance();
    end.polled(arrived());
    assert_eq!(end.outputs(), ["to 1: received 0", "a of 5"]);
    end.handle(S, announced(1, "b"));
    end.polled(arrived());
    assert_eq!(end.outputs(), ["to 1: received 1", "b of 5"]);
    assert!(!end.0.advance(), "nothing is under way");
}

#[test]
fn an_announcement_that_does_not_belong_ends_the_link() {
    let ready = || {
        let mut end = End::receiver();
        end.1.script().is_ready = true;
        end.0.advance();
        end
    };
    let check = |messages: &[LinkMessage<&'static str>], reason: &str| {
        let mut end = ready();
        messages.iter().for_each(|message| end.handle(S, message.clone()));
        assert_eq!(end.outputs(), ["to 1: Receiver ended", reason]);
        assert_eq!(end.1.script().dropped, 1);
        end.handle(S, announced(0, "c"));
        assert!(end.outputs().is_empty(), "its sender was told");
    };
    // One was lost on its way.
    check(&[announced(1, "b")], "tensor 1 was announced, expected 0");
    check(&[announced(0, "a"), announced(1, "b")], "tensor 1 was announced, expected 0");
    let long = LinkMessage::Announced { number: 0, len: 11, tensor: "a" };
    check(&[long], "a tensor of 11 numbers was announced, the longest of the plan has 10");
    let mut full = ready();
    full.1.script().refuses = true;
    full.handle(S, announced(0, "a"));
    assert_eq!(full.outputs(), ["to 1: Receiver ended", "NCCL: ncclSend: remote error"]);
    let mut ended = ready();
    ended.handle(S, announced(0, "a"));
    ended.handle(S, LinkMessage::Ended(LinkEnd::Sender));
    assert_eq!(ended.outputs(), ["the other end gave it up"]);
}

#[test]
fn a_peer_that_does_not_begin_its_end_is_not_waited_for() {
    let mut end = End::receiver();
    for _ in 0..UNANSWERED_MAX {
        end.0.note_by_host(S, PLAN.generation);
    }
    assert!(end.outputs().is_empty());
    end.0.note_by_host(S, PLAN.generation);
    let reason = "1000 tensors came, and it did not begin its end";
    assert_eq!(end.outputs(), ["to 1: Receiver ended", reason]);
    end.0.note_by_host(S, PLAN.generation);
    assert!(!end.0.advance() && end.outputs().is_empty());
}

#[test]
fn the_variable_is_0_or_1() {
    let found = |text: &str| is_on(OsStr::new(text)).map_err(|error| error.to_string());
    assert_eq!(["", "0", "1"].map(found), [Ok(false), Ok(false), Ok(true)]);
    assert_eq!(found("yes"), Err("ZBELASTIC_NCCL: found `yes`, expected 0 or 1".to_owned()));
}
