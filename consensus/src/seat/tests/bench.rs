//! A seat whose controllers are a state, and whose host is the test.

use std::sync::Arc;

use zbelastic_types::{ClusterId, Generation, NodeId};

use crate::fixture::{CLUSTER, Log, RESOURCES, contact};
use crate::message::{Briefing, Envelope, Message};
use crate::seat::{
    BriefingRefusal, News, Order, Seat, SeatInput, SeatOutput, SeatSetup, SeatTiming,
};
use crate::state::PlanPhase;

pub const CONTROLLERS: [NodeId; 2] = [NodeId(100), NodeId(101)];
pub const NODE: NodeId = NodeId(1);
/// The first start of every node of the fixture.
pub const BOOT: u64 = 1;
pub const TIMING: SeatTiming = SeatTiming { beat_ticks: 2, resend_ticks: 5 };

/// Whether a briefing holds the plan and the job, or only what changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    All,
    Changes,
}

/// The briefing that a controller sends node 1.
pub fn briefing(log: &Log, told: Told) -> Briefing {
    let state = &log.state;
    let member = state.members().get(&NODE).filter(|member| member.is_live());
    let plan = state.plan();
    let is_all = told == Told::All;
    Briefing {
        index: state.applied(),
        leader: Some(CONTROLLERS[0]),
        you: member.map(|member| (member.boot, member.incarnation)),
        spec: state.job().filter(|_| is_all).map(|job| Arc::clone(&job.spec).into()),
        job: state.job().map(|job| job.phase),
        generation: plan.map_or(Generation(0), |plan| plan.record.generation),
        plan: plan.filter(|_| is_all).map(|plan| Arc::clone(&plan.record).into()),
        is_running: plan.is_some_and(|plan| plan.phase == PlanPhase::Running),
        open: state.open_turn(),
        updates: state.ledger().updates(),
        seal: state.last_seal().copied(),
        asks_inventory: false,
        rewinds: state.rewinds(),
        pending: state.pending().iter().map(|pending| pending.version).collect(),
        contacts: None,
        rehearsal: None,
    }
}

pub struct Bench {
    pub seat: Seat,
    pub orders: Vec<Order>,
    /// Messages sent, each with its receiver.
    pub sent: Vec<(NodeId, Message)>,
}

impl Bench {
    pub fn new() -> Self {
        let setup = SeatSetup {
            cluster: CLUSTER,
            node: NODE,
            boot: BOOT,
            resources: RESOURCES,
            contact: contact(NODE.0),
            controllers: CONTROLLERS.to_vec(),
            timing: TIMING,
        };
        Self { seat: Seat::new(setup), orders: Vec::new(), sent: Vec::new() }
    }

    /// A seat that knows everything `log` has.
    pub fn briefed(log: &Log) -> Self {
        let mut bench = Self::new();
        bench.brief(log, Told::All);
        bench
    }

    pub fn input(&mut self, input: SeatInput) -> Result<(), BriefingRefusal> {
        let result = self.seat.handle(input);
        while let Some(output) = self.seat.poll_output() {
            match output {
                SeatOutput::Send { to, message } => {
                    assert_eq!(message.cluster, CLUSTER);
                    self.sent.push((to, message.message));
                }
                SeatOutput::Order(order) => self.orders.push(order),
            }
        }
        result
    }

    pub fn try_tell(&mut self, from: NodeId, briefing: Briefing) -> Result<(), BriefingRefusal> {
        self.try_tell_in(CLUSTER, from, Message::Briefing(Box::new(briefing)))
    }

    pub fn try_tell_in(
        &mut self,
        cluster: ClusterId,
        from: NodeId,
        message: Message,
    ) -> Result<(), BriefingRefusal> {
        let message = Box::new(Envelope { cluster, message });
        self.input(SeatInput::Message { from, message })
    }

    pub fn told(&mut self, briefing: Briefing) {
        self.try_tell(CONTROLLERS[0], briefing).expect("the briefing belongs");
    }

    pub fn brief(&mut self, log: &Log, told: Told) {
        self.try_tell(CONTROLLERS[0], briefing(log, told)).expect("the briefing belongs");
    }

    pub fn news(&mut self, news: News) {
        self.input(SeatInput::News(news)).expect("news are taken");
    }

    pub fn tick(&mut self, count: u32) {
        (0..count).for_each(|_| self.input(SeatInput::Tick).expect("a tick is taken"));
    }

    pub fn taken_orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// What was sent and is no heartbeat.
    pub fn taken_messages(&mut self) -> Vec<(NodeId, Message)> {
        let mut sent = std::mem::take(&mut self.sent);
        sent.retain(|(_, message)| !matches!(message, Message::Beat { .. }));
        sent
    }

    /// What is resent within the resend interval, each message once.
    pub fn told_again(&mut self) -> Vec<Message> {
        self.sent.clear();
        self.tick(TIMING.resend_ticks);
        let sent = self.taken_messages();
        let to =
            |node| sent.iter().filter(move |(to, _)| *to == node).map(|(_, told)| told.clone());
        let (first, second): (Vec<_>, Vec<_>) =
            (to(CONTROLLERS[0]).collect(), to(CONTROLLERS[1]).collect());
        assert_eq!(first, second, "every controller is told");
        first
    }
}
