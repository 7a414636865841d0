//! Links of a worker's device with those of other workers, by NCCL: when one is begun, used and
//! given up.
//!
//! ```text
//!   receiver                                       sender
//!   a tensor comes by way of the host          ◀──  (no link yet)
//!   begins its end                   ── Invite ──▶  begins its end
//!   posts a receive                 ◀── Announced ─ sends the tensor, keeps it
//!   passes the tensor on           ── Received ──▶  drops it
//!   either end fails, or is to stop:  Ended ─────▶  drops the link; a tensor that was sent and is not
//!                                                   received goes by way of the host
//! ```
//!
//! A link is of one plan and one peer. One that fails is not begun again under that plan: its tensors
//! go by way of the host, as all do where there is no link. Announcements are numbered, so that a
//! receive is never matched with another tensor than its own. That a send is complete at its end
//! says nothing of the other one, so a tensor is kept until it was received; and since an abort may
//! not be noticed, both ends say that they give up.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fmt;

use zbelastic_kernels::TensorHandle;
use zbelastic_kernels::cuda::nccl::{
    CommunicatorId, DeviceLink, DeviceLinks, ExchangeState, LinkEnd, LinkError,
};
use zbelastic_types::{Generation, NodeId};

/// Whether boundary tensors between devices of different processes go by NCCL: `1`, or `0`, which it
/// is if it is not set.
pub const NCCL_VARIABLE: &str = "ZBELASTIC_NCCL";
/// Tensors that come by way of the host before a receiver gives a link up that its peer does not
/// begin: more than a step has of most peers.
const UNANSWERED_MAX: u32 = 1000;

/// [`NCCL_VARIABLE`] is neither `0` nor `1`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{NCCL_VARIABLE}: found `{found}`, expected 0 or 1")]
pub struct NcclVariableError {
    /// What the variable is.
    pub found: String,
}

/// Whether links are begun, by the environment.
///
/// # Errors
/// If the variable is neither 0 nor 1.
pub fn are_enabled() -> Result<bool, NcclVariableError> {
    is_on(&std::env::var_os(NCCL_VARIABLE).unwrap_or_default())
}

fn is_on(found: &OsStr) -> Result<bool, NcclVariableError> {
    match found.to_str() {
        Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(_) | None => Err(NcclVariableError { found: found.to_string_lossy().into_owned() }),
    }
}

/// A message from one end of a link to the other. `T` says which tensor is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum LinkMessage<T> {
    /// From the receiver: the sender is to begin its end.
    Invite(CommunicatorId),
    /// From the sender: this tensor is sent now.
    Announced {
        /// Its number among those of the link, counted from 0.
        number: u32,
        /// Its length in numbers.
        len: u32,
        /// The tensor.
        tensor: T,
    },
    /// From the receiver: the tensor of this number has come.
    Received(u32),
    /// From this end: the link is over under its plan.
    Ended(LinkEnd),
}

/// What is to be done for the links.
#[derive(Debug)]
pub enum LinkOutput<T> {
    /// Send a message to a peer.
    Message(NodeId, LinkMessage<T>),
    /// Pass on a tensor that has come.
    Arrived(T, TensorHandle),
    /// The tensor under way to a peer was received there; or was not, and goes by way of the host.
    Resolved(NodeId, bool),
    /// Log this.
    Report(LinkReport),
}

/// What a worker reports of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkReport {
    /// Tensors are sent by it from now on.
    Ready {
        /// The receiver.
        to: NodeId,
    },
    /// Tensors go by way of the host until the next plan.
    Failed {
        /// The node at the other end.
        peer: NodeId,
        /// The reason.
        reason: LinkFailure,
    },
}

impl LinkReport {
    /// Whether somebody should look at it: not with a plan that stops, and not for a reason that is
    /// logged at the other end.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        match self {
            Self::Ready { .. } | Self::Failed { reason: LinkFailure::There, .. } => false,
            Self::Failed { .. } => true,
        }
    }
}

impl fmt::Display for LinkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready { to } => write!(f, "tensors for node {to} are sent by NCCL"),
            Self::Failed { peer, reason: reason @ LinkFailure::There } => {
                write!(f, "a link with node {peer} is over: {reason}")
            }
            Self::Failed { peer, reason } => write!(
                f,
                "tensors of a link with node {peer} go by way of the host until the next plan: {reason}"
            ),
        }
    }
}

/// Why a link is of no further use under its plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkFailure {
    /// This end cannot use it.
    #[error(transparent)]
    Here(#[from] LinkError),
    /// The other end gave it up.
    #[error("the other end gave it up")]
    There,
    /// The sender does not begin its end.
    #[error("{UNANSWERED_MAX} tensors came, and it did not begin its end")]
    Unanswered,
    /// Another tensor was announced than the next one, or two at once.
    #[error("tensor {found} was announced, expected {expected}")]
    Number {
        /// The number of the next tensor.
        expected: u32,
        /// The number that was announced.
        found: u32,
    },
    /// A tensor is longer than any of the plan.
    #[error("a tensor of {found} numbers was announced, the longest of the plan has {expected}")]
    Length {
        /// The length of the longest one.
        expected: u32,
        /// The length that was announced.
        found: u32,
    },
}

/// The links of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPlan {
    /// The plan.
    pub generation: Generation,
    /// Numbers of its longest boundary tensor.
    pub len_max: u32,
}

/// A link, as one end has it.
enum PeerLink<S> {
    Begun(Box<dyn DeviceLink>),
    Ready(Box<dyn DeviceLink>, S),
    /// It is over under this plan.
    Failed,
}

/// A sender's end: the number of the next tensor, or of the one under way.
#[derive(Clone, Copy, Default)]
struct Sending {
    number: u32,
    is_under_way: bool,
    /// This end is done with the tensor under way.
    is_sent: bool,
    /// The other end has it.
    is_received: bool,
}

/// A receiver's end: the number of the next tensor, and the tensor under way.
struct Receiving<T> {
    number: u32,
    under_way: Option<T>,
}

/// The links of a device.
pub struct TensorLinks<T> {
    device: Option<Box<dyn DeviceLinks>>,
    plan: Option<LinkPlan>,
    outgoing: BTreeMap<NodeId, PeerLink<Sending>>,
    incoming: BTreeMap<NodeId, PeerLink<Receiving<T>>>,
    /// Tensors that came by way of the host from peers that were invited.
    unanswered: BTreeMap<NodeId, u32>,
    /// Announcements of peers whose links are not ready here yet.
    announced: BTreeMap<NodeId, (u32, u32, T)>,
    outputs: VecDeque<LinkOutput<T>>,
}

impl<T> Default for TensorLinks<T> {
    fn default() -> Self {
        Self {
            device: None,
            plan: None,
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            announced: BTreeMap::new(),
            outputs: VecDeque::new(),
        }
    }
}

impl<T> TensorLinks<T> {
    /// A job begins on another device, or on none: the links of the one before are over. Its plan may
    /// have been loaded while the device was opened.
    pub fn set_device(&mut self, device: Option<Box<dyn DeviceLinks>>) {
        self.end_all();
        self.device = device;
    }

    /// A plan is loaded: links of plans before are over.
    pub fn begin_plan(&mut self, plan: LinkPlan) {
        self.stop();
        self.plan = Some(plan);
    }

    /// The plan stops, or may: its links are over, and none is begun until the next one.
    pub fn stop(&mut self) {
        self.end_all();
        self.plan = None;
    }

    fn end_all(&mut self) {
        let peers: Vec<NodeId> =
            self.outgoing.keys().chain(self.incoming.keys()).copied().collect();
        for peer in peers {
            self.end(peer, LinkEnd::Sender, None);
            self.end(peer, LinkEnd::Receiver, None);
        }
        self.outgoing.clear();
        self.incoming.clear();
        self.unanswered.clear();
        self.announced.clear();
    }

    /// The connection to a peer ended, and what was sent over it may be lost.
    pub fn note_down(&mut self, peer: NodeId) {
        for end in [LinkEnd::Sender, LinkEnd::Receiver] {
            self.end(peer, end, Some(LinkFailure::There));
        }
    }

    /// A tensor of a peer came by way of the host: it is invited to send the next ones by a link.
    pub fn note_by_host(&mut self, peer: NodeId, generation: Generation) {
        if self.plan.is_none_or(|plan| plan.generation != generation) {
            return;
        }
        match self.incoming.get(&peer) {
            Some(PeerLink::Begun(_)) => {
                let unanswered = self.unanswered.entry(peer).or_default();
                *unanswered += 1;
                if *unanswered > UNANSWERED_MAX {
                    self.end(peer, LinkEnd::Receiver, Some(LinkFailure::Unanswered));
                }
            }
            Some(PeerLink::Ready(..) | PeerLink::Failed) => {}
            None => {
                let Some(device) = self.device.as_deref() else { return };
                let begun = CommunicatorId::new()
                    .and_then(|id| Ok((device.begin(LinkEnd::Receiver, &id)?, id)));
                self.invite(peer, begun);
            }
        }
    }

    fn invite(
        &mut self,
        peer: NodeId,
        begun: Result<(Box<dyn DeviceLink>, CommunicatorId), LinkError>,
    ) {
        match begun {
            Ok((link, id)) => {
                self.incoming.insert(peer, PeerLink::Begun(link));
                self.outputs.push_back(LinkOutput::Message(peer, LinkMessage::Invite(id)));
            }
            Err(error) => {
                self.incoming.insert(peer, PeerLink::Failed);
                self.report(LinkReport::Failed { peer, reason: error.into() });
            }
        }
    }

    /// A message of the other end of a link.
    pub fn handle(&mut self, peer: NodeId, generation: Generation, message: LinkMessage<T>) {
        if self.plan.is_none_or(|plan| plan.generation != generation) {
            return;
        }
        match message {
            LinkMessage::Invite(id) => self.accept(peer, &id),
            LinkMessage::Announced { number, len, tensor } => {
                if let Err(failure) = self.begin_receive(peer, (number, len, tensor)) {
                    self.end(peer, LinkEnd::Receiver, Some(failure));
                }
            }
            LinkMessage::Received(number) => {
                if let Some(PeerLink::Ready(_, sending)) = self.outgoing.get_mut(&peer)
                    && sending.is_under_way
                    && sending.number == number
                {
                    sending.is_received = true;
                }
            }
            LinkMessage::Ended(LinkEnd::Sender) => {
                self.end(peer, LinkEnd::Receiver, Some(LinkFailure::There));
            }
            LinkMessage::Ended(LinkEnd::Receiver) => {
                self.end(peer, LinkEnd::Sender, Some(LinkFailure::There));
            }
        }
    }

    fn accept(&mut self, peer: NodeId, id: &CommunicatorId) {
        let Some(device) = self.device.as_deref() else { return };
        if self.outgoing.contains_key(&peer) {
            return;
        }
        match device.begin(LinkEnd::Sender, id) {
            Ok(link) => drop(self.outgoing.insert(peer, PeerLink::Begun(link))),
            Err(error) => {
                self.outgoing.insert(peer, PeerLink::Failed);
                self.tell_ended(peer, LinkEnd::Sender);
                self.report(LinkReport::Failed { peer, reason: error.into() });
            }
        }
    }

    fn begin_receive(
        &mut self,
        peer: NodeId,
        (found, len, tensor): (u32, u32, T),
    ) -> Result<(), LinkFailure> {
        let expected = self.plan.map_or(0, |plan| plan.len_max);
        if len > expected {
            return Err(LinkFailure::Length { expected, found: len });
        }
        let (link, receiving) = match self.incoming.get_mut(&peer) {
            // The sender's end is ready, and this one is about to be.
            Some(PeerLink::Begun(_)) => {
                return match self.announced.insert(peer, (found, len, tensor)) {
                    None => Ok(()),
                    Some((expected, ..)) => Err(LinkFailure::Number { expected, found }),
                };
            }
            // It is over, and its sender is told.
            Some(PeerLink::Failed) | None => return Ok(()),
            Some(PeerLink::Ready(link, receiving)) => (link, receiving),
        };
        if receiving.number != found || receiving.under_way.is_some() {
            return Err(LinkFailure::Number { expected: receiving.number, found });
        }
        link.begin_receive(len as usize)?;
        receiving.under_way = Some(tensor);
        Ok(())
    }

    /// Begins to send a tensor to a peer. False if it goes by way of the host; else
    /// [`LinkOutput::Resolved`] says what became of it.
    pub fn send(&mut self, to: NodeId, generation: Generation, held: &TensorHandle, of: T) -> bool {
        if self.plan.is_none_or(|plan| plan.generation != generation) || !held.is_on_device() {
            return false;
        }
        let Some(PeerLink::Ready(link, sending)) = self.outgoing.get_mut(&to) else {
            return false;
        };
        if sending.is_under_way {
            return false;
        }
        match link.begin_send(held) {
            Ok(true) => {
                sending.is_under_way = true;
                let (number, len) = (sending.number, held.len() as u32);
                let message = LinkMessage::Announced { number, len, tensor: of };
                self.outputs.push_back(LinkOutput::Message(to, message));
                true
            }
            Ok(false) => false,
            Err(error) => {
                self.end(to, LinkEnd::Sender, Some(error.into()));
                false
            }
        }
    }

    /// Goes on with what is under way. Yields whether anything is.
    pub fn advance(&mut self) -> bool {
        for peer in self.outgoing.keys().copied().collect::<Vec<_>>() {
            if let Err(error) = self.advance_outgoing(peer) {
                self.end(peer, LinkEnd::Sender, Some(error.into()));
            }
        }
        for peer in self.incoming.keys().copied().collect::<Vec<_>>() {
            if let Err(failure) = self.advance_incoming(peer) {
                self.end(peer, LinkEnd::Receiver, Some(failure));
            }
        }
        self.outgoing.values().any(PeerLink::is_busy_sending)
            || self.incoming.values().any(PeerLink::is_busy_receiving)
    }

    fn advance_outgoing(&mut self, peer: NodeId) -> Result<(), LinkError> {
        let Some(link) = self.outgoing.get_mut(&peer) else { return Ok(()) };
        if link.become_ready(Sending::default)? {
            self.report(LinkReport::Ready { to: peer });
        }
        if let Some(PeerLink::Ready(link, sending)) = self.outgoing.get_mut(&peer)
            && sending.is_under_way
        {
            if let ExchangeState::Sent = link.poll()? {
                sending.is_sent = true;
            }
            if sending.is_sent && sending.is_received {
                *sending = Sending { number: sending.number + 1, ..Sending::default() };
                self.outputs.push_back(LinkOutput::Resolved(peer, true));
            }
        }
        Ok(())
    }

    fn advance_incoming(&mut self, peer: NodeId) -> Result<(), LinkFailure> {
        let Some(link) = self.incoming.get_mut(&peer) else { return Ok(()) };
        let has_become_ready = link.become_ready(|| Receiving { number: 0, under_way: None })?;
        if has_become_ready && let Some(announced) = self.announced.remove(&peer) {
            return self.begin_receive(peer, announced);
        }
        let Some(link) = self.incoming.get_mut(&peer) else { return Ok(()) };
        let PeerLink::Ready(link, receiving) = link else { return Ok(()) };
        if receiving.under_way.is_none() {
            return Ok(());
        }
        if let ExchangeState::Received(tensor) = link.poll()? {
            let number = receiving.number;
            receiving.number += 1;
            if let Some(of) = receiving.under_way.take() {
                self.outputs.push_back(LinkOutput::Message(peer, LinkMessage::Received(number)));
                self.outputs.push_back(LinkOutput::Arrived(of, tensor));
            }
        }
        Ok(())
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<LinkOutput<T>> {
        self.outputs.pop_front()
    }

    /// Gives up one end of the links with a peer. The other end is told, unless it is the one that
    /// said so; a tensor under way to it goes by way of the host.
    fn end(&mut self, peer: NodeId, end: LinkEnd, failure: Option<LinkFailure>) {
        let (was_open, was_sending) = match end {
            LinkEnd::Sender => match self.outgoing.get_mut(&peer) {
                Some(link) => {
                    let was_sending = link.is_busy_sending_tensor();
                    (link.give_up(), was_sending)
                }
                None => (false, false),
            },
            LinkEnd::Receiver => {
                self.announced.remove(&peer);
                (self.incoming.get_mut(&peer).is_some_and(PeerLink::give_up), false)
            }
        };
        if !was_open {
            return;
        }
        if failure != Some(LinkFailure::There) {
            self.tell_ended(peer, end);
        }
        if was_sending {
            self.outputs.push_back(LinkOutput::Resolved(peer, false));
        }
        if let Some(reason) = failure {
            self.report(LinkReport::Failed { peer, reason });
        }
    }

    fn tell_ended(&mut self, peer: NodeId, end: LinkEnd) {
        self.outputs.push_back(LinkOutput::Message(peer, LinkMessage::Ended(end)));
    }

    fn report(&mut self, report: LinkReport) {
        self.outputs.push_back(LinkOutput::Report(report));
    }
}

impl<S> PeerLink<S> {
    /// Looks whether a link that was begun is ready. Yields whether it has become so.
    fn become_ready(&mut self, state: impl FnOnce() -> S) -> Result<bool, LinkError> {
        let Self::Begun(begun) = self else { return Ok(false) };
        if !begun.is_ready()? {
            return Ok(false);
        }
        let Self::Begun(begun) = std::mem::replace(self, Self::Failed) else { return Ok(false) };
        *self = Self::Ready(begun, state());
        Ok(true)
    }

    /// Drops the link, which aborts what is under way. Yields whether there was one.
    fn give_up(&mut self) -> bool {
        !matches!(std::mem::replace(self, Self::Failed), Self::Failed)
    }
}

impl PeerLink<Sending> {
    fn is_busy_sending_tensor(&self) -> bool {
        matches!(self, Self::Ready(_, Sending { is_under_way: true, .. }))
    }

    fn is_busy_sending(&self) -> bool {
        self.is_busy_sending_tensor() || matches!(self, Self::Begun(_))
    }
}

impl<T> PeerLink<Receiving<T>> {
    const fn is_busy_receiving(&self) -> bool {
        match self {
            Self::Begun(_) => true,
            Self::Ready(_, receiving) => receiving.under_way.is_some(),
            Self::Failed => false,
        }
    }
}

#[cfg(test)]
mod tests;
