//! Links of a worker's device with those of other workers, by NCCL: when one is begun, used and
//! given up.
//!
//! ```text
//!   receiver                                     sender
//!   a boundary tensor comes by way of the host ◀──  (no link yet)
//!   begins a link, invites the sender        ──▶  begins its end
//!                                            ◀──  announces a tensor, sends it
//! ```
//!
//! A link is of one plan and one peer. One that fails is not begun again under that plan: its
//! tensors go by way of the host, as all do where there is no link. Exchanges under way end with
//! their plan ([`ExchangeGauge`]).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zbelastic_kernels::TensorHandle;
use zbelastic_kernels::cuda::nccl::{CommunicatorId, DeviceLink, DeviceLinks, LinkEnd, LinkError};
use zbelastic_types::{Generation, NodeId};

/// Whether boundary tensors between devices of different processes go by NCCL: `1`, or `0`, which it
/// is if it is not set.
pub const NCCL_VARIABLE: &str = "ZBELASTIC_NCCL";

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

/// What ends exchanges under way. The event loop writes it; threads that poll exchanges read it.
#[derive(Debug, Default)]
pub struct ExchangeGauge {
    generation: AtomicU64,
    /// Numbers of the longest boundary tensor of the plan.
    len_max: AtomicU64,
    interruptions: AtomicU64,
}

impl ExchangeGauge {
    /// A plan with boundary tensors of at most `len_max` numbers is loaded: exchanges of other plans
    /// are over.
    pub fn begin_plan(&self, generation: Generation, len_max: usize) {
        self.len_max.store(len_max as u64, Ordering::Release);
        self.generation.store(generation.0, Ordering::Release);
    }

    /// Sends under way go by way of the host: a peer may be gone, or the device thread is needed and
    /// may wait for them.
    pub fn interrupt(&self) {
        self.interruptions.fetch_add(1, Ordering::AcqRel);
    }

    fn is_current(&self, generation: Generation) -> bool {
        self.generation.load(Ordering::Acquire) == generation.0
    }
}

/// An invitation of a receiver, as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkInvitation {
    /// The plan that the link is of.
    pub generation: Generation,
    /// What both ends begin it with.
    pub id: CommunicatorId,
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
        error: LinkError,
    },
}

/// The link with one peer.
enum PeerLink {
    Begun(Box<dyn DeviceLink>),
    Ready(Box<dyn DeviceLink>),
    /// It failed under this plan.
    Failed,
}

/// The links of a device in one direction.
struct Links {
    end: LinkEnd,
    device: Option<Box<dyn DeviceLinks>>,
    links: BTreeMap<NodeId, (Generation, PeerLink)>,
    gauge: Arc<ExchangeGauge>,
    reports: Vec<LinkReport>,
}

impl Links {
    fn new(end: LinkEnd, gauge: Arc<ExchangeGauge>) -> Self {
        Self { end, device: None, links: BTreeMap::new(), gauge, reports: Vec::new() }
    }

    /// A job begins on another device, or none: the links of the one before are over.
    fn set_device(&mut self, device: Option<Box<dyn DeviceLinks>>) {
        self.links.clear();
        self.device = device;
    }

    /// Drops the links of other plans than the one in force.
    fn drop_stale(&mut self) {
        let Self { links, gauge, .. } = self;
        links.retain(|_, (generation, _)| gauge.is_current(*generation));
    }

    /// Begins a link with a peer that has none under this plan. Yields whether it began.
    fn begin(
        &mut self,
        (peer, generation): (NodeId, Generation),
        id: impl FnOnce() -> Result<CommunicatorId, LinkError>,
    ) -> Option<CommunicatorId> {
        self.drop_stale();
        let device = self.device.as_deref()?;
        if self.links.contains_key(&peer) || !self.gauge.is_current(generation) {
            return None;
        }
        let begun = id().and_then(|id| Ok((device.begin(self.end, &id)?, id)));
        let (link, id) = match begun {
            Ok((link, id)) => (PeerLink::Begun(link), Some(id)),
            Err(error) => {
                self.reports.push(LinkReport::Failed { peer, error });
                (PeerLink::Failed, None)
            }
        };
        self.links.insert(peer, (generation, link));
        id
    }

    fn fail(&mut self, peer: NodeId, error: LinkError) {
        if let Some((_, link)) = self.links.get_mut(&peer) {
            *link = PeerLink::Failed;
            self.reports.push(LinkReport::Failed { peer, error });
        }
    }

    /// The link with a peer under a plan, if tensors can be exchanged by it.
    fn ready(&mut self, peer: NodeId, generation: Generation) -> Option<&dyn DeviceLink> {
        let (of, link) = self.links.get_mut(&peer)?;
        if *of != generation {
            return None;
        }
        if let PeerLink::Begun(begun) = link {
            match begun.is_ready() {
                Ok(false) => return None,
                Err(error) => {
                    self.fail(peer, error);
                    return None;
                }
                Ok(true) => {
                    if let PeerLink::Begun(begun) = std::mem::replace(link, PeerLink::Failed) {
                        *link = PeerLink::Ready(begun);
                    }
                    if self.end == LinkEnd::Sender {
                        self.reports.push(LinkReport::Ready { to: peer });
                    }
                }
            }
        }
        match &self.links.get(&peer)?.1 {
            PeerLink::Ready(link) => Some(&**link),
            PeerLink::Begun(_) | PeerLink::Failed => None,
        }
    }
}

/// The links by which a worker's tensors leave its device.
pub struct OutgoingLinks(Links);

impl OutgoingLinks {
    /// No links yet.
    #[must_use]
    pub fn new(gauge: Arc<ExchangeGauge>) -> Self {
        Self(Links::new(LinkEnd::Sender, gauge))
    }

    /// A job begins on another device, or on none.
    pub fn set_device(&mut self, device: Option<Box<dyn DeviceLinks>>) {
        self.0.set_device(device);
    }

    /// A receiver invites to a link.
    pub fn accept(&mut self, from: NodeId, invitation: LinkInvitation) {
        let LinkInvitation { generation, id } = invitation;
        let _begun = self.0.begin((from, generation), || Ok(id));
    }

    /// Sends a tensor by the link with a peer, after `announce` has announced it there. False if it
    /// has to go by way of the host, be it announced or not.
    pub fn send(
        &mut self,
        (to, generation): (NodeId, Generation),
        tensor: &TensorHandle,
        mut announce: impl FnMut(),
    ) -> bool {
        self.0.drop_stale();
        let gauge = self.0.gauge.clone();
        let Some(link) = self.0.ready(to, generation).filter(|_| tensor.is_on_device()) else {
            return false;
        };
        let begun = gauge.interruptions.load(Ordering::Acquire);
        let is_over = || {
            !gauge.is_current(generation) || gauge.interruptions.load(Ordering::Acquire) != begun
        };
        match link.send(tensor, &mut announce, &is_over) {
            Ok(is_sent) => is_sent,
            Err(error) => {
                self.0.fail(to, error);
                false
            }
        }
    }

    /// What is to be reported since the last call.
    pub fn take_reports(&mut self) -> Vec<LinkReport> {
        std::mem::take(&mut self.0.reports)
    }
}

/// The links by which tensors come to a worker's device.
pub struct IncomingLinks(Links);

impl IncomingLinks {
    /// No links yet.
    #[must_use]
    pub fn new(gauge: Arc<ExchangeGauge>) -> Self {
        Self(Links::new(LinkEnd::Receiver, gauge))
    }

    /// A job begins on another device, or on none.
    pub fn set_device(&mut self, device: Option<Box<dyn DeviceLinks>>) {
        self.0.set_device(device);
    }

    /// A tensor of a peer came by way of the host: the invitation to send it, if there was none
    /// under this plan.
    pub fn invite(&mut self, peer: NodeId, generation: Generation) -> Option<LinkInvitation> {
        let id = self.0.begin((peer, generation), CommunicatorId::new)?;
        Some(LinkInvitation { generation, id })
    }

    /// Goes on with links that are begun. Yields whether some are not ready yet.
    pub fn advance(&mut self) -> bool {
        self.0.drop_stale();
        let is_begun = |(_, link): &(Generation, PeerLink)| matches!(link, PeerLink::Begun(_));
        let begun = self.0.links.iter().filter(|(_, link)| is_begun(link));
        let begun: Vec<_> = begun.map(|(peer, (generation, _))| (*peer, *generation)).collect();
        for (peer, generation) in begun {
            let _ready = self.0.ready(peer, generation);
        }
        self.0.links.values().any(is_begun)
    }

    /// Receives a tensor of `len` numbers that a peer announced; none if it does not come, or is
    /// longer than any of the plan.
    pub fn receive(
        &mut self,
        (from, generation): (NodeId, Generation),
        len: usize,
    ) -> Option<TensorHandle> {
        let gauge = self.0.gauge.clone();
        let is_over = || !gauge.is_current(generation);
        if is_over() || len as u64 > gauge.len_max.load(Ordering::Acquire) {
            return None;
        }
        // The sender's end is ready, so this one is about to be.
        let link = loop {
            match self.0.links.get(&from) {
                Some((_, PeerLink::Begun(_))) if !is_over() => {}
                _ => break self.0.ready(from, generation)?,
            }
            if self.0.ready(from, generation).is_none() {
                std::thread::yield_now();
            }
        };
        match link.receive(len, &is_over) {
            Ok(tensor) => Some(tensor),
            Err(error) => {
                self.0.fail(from, error);
                None
            }
        }
    }

    /// What is to be reported since the last call.
    pub fn take_reports(&mut self) -> Vec<LinkReport> {
        std::mem::take(&mut self.0.reports)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const PEER: NodeId = NodeId(7);
    const PLAN: Generation = Generation(3);

    /// What the links of a test did, and what they answer.
    #[derive(Default)]
    struct FakeDevice {
        begun: Mutex<u32>,
        is_ready: Mutex<Option<LinkError>>,
        sends: Mutex<Vec<Result<bool, LinkError>>>,
    }

    struct FakeLinks(Arc<FakeDevice>);

    fn refused() -> LinkError {
        LinkError::Refused { call: "ncclSend", reason: "remote error".to_owned() }
    }

    impl DeviceLinks for FakeLinks {
        fn begin(&self, _: LinkEnd, _: &CommunicatorId) -> Result<Box<dyn DeviceLink>, LinkError> {
            *self.0.begun.lock().expect("one test") += 1;
            Ok(Box::new(FakeLinks(self.0.clone())))
        }
    }

    impl DeviceLink for FakeLinks {
        fn is_ready(&self) -> Result<bool, LinkError> {
            match &*self.0.is_ready.lock().expect("one test") {
                Some(LinkError::Over) => Ok(false),
                Some(error) => Err(error.clone()),
                None => Ok(true),
            }
        }

        fn send(
            &self,
            _: &TensorHandle,
            announce: &mut dyn FnMut(),
            is_over: &dyn Fn() -> bool,
        ) -> Result<bool, LinkError> {
            announce();
            if is_over() {
                return Err(LinkError::Over);
            }
            self.0.sends.lock().expect("one test").pop().unwrap_or(Ok(true))
        }

        fn receive(
            &self,
            len: usize,
            is_over: &dyn Fn() -> bool,
        ) -> Result<TensorHandle, LinkError> {
            if is_over() { Err(LinkError::Over) } else { Ok(vec![1.0; len].into()) }
        }
    }

    /// A tensor that counts as one of a device.
    struct OnDevice;

    impl zbelastic_kernels::DeviceValue<zbelastic_kernels::HostTensor> for OnDevice {
        fn read(&self) -> Result<zbelastic_kernels::HostTensor, zbelastic_kernels::DeviceFault> {
            Ok(zbelastic_kernels::HostTensor::Floats(vec![2.0]))
        }
    }

    fn on_device() -> TensorHandle {
        TensorHandle::pending(1, zbelastic_kernels::Pending::OnDevice(Arc::new(OnDevice)))
    }

    fn invitation(generation: Generation) -> LinkInvitation {
        LinkInvitation { generation, id: CommunicatorId([0; 128]) }
    }

    fn outgoing() -> (OutgoingLinks, Arc<ExchangeGauge>, Arc<FakeDevice>) {
        let gauge = Arc::new(ExchangeGauge::default());
        gauge.begin_plan(PLAN, 10);
        let device = Arc::new(FakeDevice::default());
        let mut links = OutgoingLinks::new(gauge.clone());
        links.set_device(Some(Box::new(FakeLinks(device.clone()))));
        (links, gauge, device)
    }

    /// Whether a tensor was sent by a link, and whether it was announced.
    fn send(links: &mut OutgoingLinks, tensor: &TensorHandle) -> (bool, bool) {
        let mut is_announced = false;
        let is_sent = links.send((PEER, PLAN), tensor, || is_announced = true);
        (is_sent, is_announced)
    }

    #[test]
    fn a_tensor_goes_by_the_host_until_a_link_is_ready() {
        let (mut links, _, device) = outgoing();
        assert_eq!(send(&mut links, &on_device()), (false, false), "nobody has invited to one");
        links.accept(PEER, invitation(Generation(2)));
        assert_eq!(*device.begun.lock().expect("one test"), 0, "of another plan");
        *device.is_ready.lock().expect("one test") = Some(LinkError::Over);
        links.accept(PEER, invitation(PLAN));
        links.accept(PEER, invitation(PLAN));
        assert_eq!(*device.begun.lock().expect("one test"), 1, "one for each peer and plan");
        assert_eq!(send(&mut links, &on_device()), (false, false), "the other end is not there");
        *device.is_ready.lock().expect("one test") = None;
        assert_eq!(send(&mut links, &vec![1.0].into()), (false, false), "it is on the host");
        assert_eq!(send(&mut links, &on_device()), (true, true));
        assert_eq!(send(&mut links, &on_device()), (true, true));
        assert_eq!(links.take_reports(), [LinkReport::Ready { to: PEER }]);
    }

    #[test]
    fn a_link_that_failed_is_not_begun_again_under_its_plan() {
        let (mut links, gauge, device) = outgoing();
        links.accept(PEER, invitation(PLAN));
        device.sends.lock().expect("one test").push(Err(refused()));
        assert_eq!(send(&mut links, &on_device()), (false, true), "it goes by the host");
        links.accept(PEER, invitation(PLAN));
        assert_eq!(send(&mut links, &on_device()), (false, false));
        let failed = LinkReport::Failed { peer: PEER, error: refused() };
        assert_eq!(links.take_reports(), [LinkReport::Ready { to: PEER }, failed]);
        gauge.begin_plan(Generation(4), 10);
        links.accept(PEER, invitation(Generation(4)));
        assert!(links.send((PEER, Generation(4)), &on_device(), || ()));
    }

    #[test]
    fn a_send_under_way_ends_when_it_is_interrupted_or_its_plan_is_over() {
        let (mut links, gauge, _) = outgoing();
        links.accept(PEER, invitation(PLAN));
        assert!(links.send((PEER, PLAN), &on_device(), || ()));
        assert!(!links.send((PEER, PLAN), &on_device(), || gauge.interrupt()));
        let (mut links, gauge, _) = outgoing();
        links.accept(PEER, invitation(PLAN));
        let ends = || gauge.begin_plan(Generation(4), 10);
        assert!(!links.send((PEER, PLAN), &on_device(), ends));
        assert!(!links.send((PEER, PLAN), &on_device(), || panic!("the link is of a plan before")));
    }

    #[test]
    fn what_was_announced_is_received_by_a_link_of_its_plan_alone() {
        let gauge = Arc::new(ExchangeGauge::default());
        gauge.begin_plan(PLAN, 10);
        let device = Arc::new(FakeDevice::default());
        let mut links = IncomingLinks::new(gauge.clone());
        links.set_device(Some(Box::new(FakeLinks(device.clone()))));
        assert!(links.receive((PEER, PLAN), 5).is_none(), "it was not invited");
        let begun = links.0.begin((PEER, PLAN), || Ok(CommunicatorId([0; 128])));
        assert!(begun.is_some());
        *device.is_ready.lock().expect("one test") = Some(LinkError::Over);
        assert!(links.advance(), "the sender has not begun it");
        *device.is_ready.lock().expect("one test") = None;
        assert!(!links.advance());
        assert_eq!(links.receive((PEER, PLAN), 5).map(|tensor| tensor.len()), Some(5));
        assert!(links.receive((PEER, PLAN), 11).is_none(), "longer than any of the plan");
        gauge.interrupt();
        assert!(links.receive((PEER, PLAN), 5).is_some(), "only sends are interrupted");
        gauge.begin_plan(Generation(4), 10);
        assert!(links.receive((PEER, PLAN), 5).is_none());
    }

    #[test]
    fn the_variable_is_0_or_1() {
        let found = |text: &str| is_on(OsStr::new(text)).map_err(|error| error.to_string());
        assert_eq!(["", "0", "1"].map(found), [Ok(false), Ok(false), Ok(true)]);
        assert_eq!(found("yes"), Err("ZBELASTIC_NCCL: found `yes`, expected 0 or 1".to_owned()));
    }
}
