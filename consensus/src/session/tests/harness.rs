//! A session whose controllers are a state, and whose runtime is the test.

use std::sync::Arc;

use zbelastic_types::{ClusterId, Generation, NodeId};

use crate::fixture::{CLUSTER, FixtureLog, RESOURCES, contact};
use crate::member::AdmissionRefusal;
use crate::message::{Briefing, Envelope, Message};
use crate::session::{
    BriefingRefusal, SessionInput, SessionOutput, SessionSetup, SessionTiming, WorkerCommand,
    WorkerEvent, WorkerSession,
};
use crate::state::PlanPhase;

pub const CONTROLLERS: [NodeId; 2] = [NodeId(100), NodeId(101)];
pub const NODE: NodeId = NodeId(1);
/// The first start of every node of the fixture.
pub const BOOT: u64 = 1;
pub const TIMING: SessionTiming = SessionTiming { beat_ticks: 2, resend_ticks: 5 };

/// Whether a briefing holds the plan and the job, or only what changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BriefingContent {
    All,
    Changes,
}

/// The briefing that a controller sends node 1.
pub fn briefing(log: &FixtureLog, content: BriefingContent) -> Briefing {
    let state = &log.state;
    let member = state.members().get(&NODE).filter(|member| member.is_live());
    let plan = state.plan();
    let is_all = content == BriefingContent::All;
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
        seal: state.training().seals().last_seal().copied(),
        requests_inventory: false,
        rewinds: state.training().seals().rewinds(),
        pending: state.pending().iter().map(|pending| pending.version).collect(),
        contacts: None,
        pre_copy: None,
    }
}

pub struct SessionHarness {
    pub session: WorkerSession,
    pub commands: Vec<WorkerCommand>,
    /// Messages sent, each with its receiver.
    pub sent: Vec<(NodeId, Message)>,
    /// Why its process is to end, if it is.
    pub ended: Option<AdmissionRefusal>,
}

impl SessionHarness {
    pub fn new() -> Self {
        let setup = SessionSetup {
            cluster: CLUSTER,
            node: NODE,
            boot: BOOT,
            resources: RESOURCES,
            contact: contact(NODE.0),
            controllers: CONTROLLERS.to_vec(),
            timing: TIMING,
        };
        let session = WorkerSession::new(setup);
        Self { session, commands: Vec::new(), sent: Vec::new(), ended: None }
    }

    /// A session that knows everything `log` has.
    pub fn briefed(log: &FixtureLog) -> Self {
        let mut harness = Self::new();
        harness.brief(log, BriefingContent::All);
        harness
    }

    pub fn input(&mut self, input: SessionInput) -> Result<(), BriefingRefusal> {
        let result = self.session.handle(input);
        while let Some(output) = self.session.poll_output() {
            match output {
                SessionOutput::Send { to, message } => {
                    assert_eq!(message.cluster, CLUSTER);
                    self.sent.push((to, message.message));
                }
                SessionOutput::Command(command) => self.commands.push(command),
                SessionOutput::End(refusal) => self.ended = Some(refusal),
            }
        }
        result
    }

    pub fn try_brief(&mut self, from: NodeId, briefing: Briefing) -> Result<(), BriefingRefusal> {
        self.try_send(CLUSTER, from, Message::Briefing(Box::new(briefing)))
    }

    pub fn try_send(
        &mut self,
        cluster: ClusterId,
        from: NodeId,
        message: Message,
    ) -> Result<(), BriefingRefusal> {
        let message = Box::new(Envelope { cluster, message });
        self.input(SessionInput::Message { from, message })
    }

    pub fn receive(&mut self, briefing: Briefing) {
        self.try_brief(CONTROLLERS[0], briefing).expect("the briefing belongs");
    }

    pub fn brief(&mut self, log: &FixtureLog, content: BriefingContent) {
        self.try_brief(CONTROLLERS[0], briefing(log, content)).expect("the briefing belongs");
    }

    pub fn event(&mut self, event: WorkerEvent) {
        self.input(SessionInput::Event(event)).expect("the event is accepted");
    }

    pub fn tick(&mut self, count: u32) {
        (0..count).for_each(|_| self.input(SessionInput::Tick).expect("a tick is accepted"));
    }

    pub fn take_commands(&mut self) -> Vec<WorkerCommand> {
        std::mem::take(&mut self.commands)
    }

    /// What was sent and is no heartbeat.
    pub fn take_messages(&mut self) -> Vec<(NodeId, Message)> {
        let mut sent = std::mem::take(&mut self.sent);
        sent.retain(|(_, message)| !matches!(message, Message::Beat { .. }));
        sent
    }

    /// What is resent within the resend interval, each message once.
    pub fn resent_messages(&mut self) -> Vec<Message> {
        self.sent.clear();
        self.tick(TIMING.resend_ticks);
        let sent = self.take_messages();
        let to = |node| {
            sent.iter().filter(move |(to, _)| *to == node).map(|(_, message)| message.clone())
        };
        let first: Vec<_> = to(CONTROLLERS[0]).collect();
        let second: Vec<_> = to(CONTROLLERS[1]).collect();
        assert_eq!(first, second, "every controller receives the same");
        first
    }
}
