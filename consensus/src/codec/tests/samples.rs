//! One of each: messages, entries, and the words they are made of.

use std::sync::Arc;

use zbelastic_types::{Generation, Incarnation, LayerId, NodeId, StageIndex, Step};

use crate::access::{AccessChange, AccessRole, TokenId, TokenTerms};
use crate::codec::Format;
use crate::entry::Entry;
use crate::fixture::{
    CLUSTER, FixtureLog, RESOURCES, admit, contact, digest, digests, fingerprints, lost, spec, sum,
    turn,
};
use crate::job::{HaltReason, JobChange, JobPhase};
use crate::member::{AdmissionRefusal, Holder, LossReason, MemberChange, Role};
use crate::message::{
    Briefing, Envelope, HeldLayer, HeldUpdate, LoadFault, Message, WorkerActivity,
};
use crate::pre_copy::{FollowedLayer, PreCopyPlan};
use crate::raft::{RaftHello, RaftMessage};
use crate::state::State;
use crate::validation::{GradientReport, Verdict};

/// Messages by name. A new kind of message needs an example here.
pub(super) const MESSAGES: [&str; 16] = [
    "raft",
    "join",
    "beat",
    "report",
    "held",
    "inventory",
    "ready",
    "load-failed",
    "saved",
    "following",
    "drain",
    "leave",
    "briefing",
    "spent",
    "moved",
    "not-admitted",
];

/// Entries by name, in the order of their numbers.
pub(super) const ENTRIES: [&str; 12] = [
    "members",
    "adopt",
    "ready",
    "resume",
    "seal",
    "durable",
    "keep",
    "checkpoint",
    "rewind",
    "job",
    "access",
    "format",
];

pub(super) fn message_name(message: &Message) -> &'static str {
    match message {
        Message::Raft(_) => "raft",
        Message::Join { .. } => "join",
        Message::Beat { .. } => "beat",
        Message::Report { .. } => "report",
        Message::Held { .. } => "held",
        Message::Inventory { .. } => "inventory",
        Message::Ready(_) => "ready",
        Message::LoadFailed { .. } => "load-failed",
        Message::Saved { .. } => "saved",
        Message::Following { .. } => "following",
        Message::Drain { .. } => "drain",
        Message::Leave { .. } => "leave",
        Message::Briefing(_) => "briefing",
        Message::Spent { .. } => "spent",
        Message::NotAdmitted { .. } => "not-admitted",
        Message::Moved { .. } => "moved",
    }
}

fn layer(layer: u32) -> LayerId {
    LayerId(layer)
}

/// Two workers run the first plan; three steps are sealed, one of them clipped.
pub(super) fn running() -> FixtureLog {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    log.keep(1);
    log.apply(Entry::Seal(log.seal(Verdict::Clip { coefficient: 0.5 })));
    log.keep(1);
    log
}

/// A state with something in each of its parts: a plan that loads, a checkpoint, one under way.
/// In the oldest format, in which bytes are read that do not name their format.
pub(super) fn state() -> State {
    let mut log = FixtureLog::running(spec(), &[1, 2, 3]);
    log.keep(4);
    log.checkpoint(4, 1);
    log.keep(4);
    let holder = log.holder(2);
    let layers = digests([layer(1)], 8);
    log.apply(log.durable(8, holder, layers));
    let reason = LossReason::Untrusted { partners: 2 };
    log.apply(Entry::Members(vec![MemberChange::Lost { holder: log.holder(3), reason }]));
    log.apply(Entry::Access(made(TokenId(300))));
    log.apply(Entry::Access(used(TokenId(300))));
    log.adopt(log.plan(&[1, 2]));
    log.apply(Entry::Ready(log.ready(0)));
    let controllers = crate::fixture::controllers(&[NodeId(100), NodeId(101)]);
    log.state.with_controllers(controllers).in_format(Format::OLDEST)
}

pub(super) fn entries() -> Vec<Entry> {
    let log = running();
    let holder = log.holder(1);
    let drained = MemberChange::Drain { holder };
    vec![
        Entry::Members(vec![admit(9, 300), lost(log.holder(2)), drained]),
        Entry::Adopt(Box::new(log.plan(&[2, 1]))),
        Entry::Ready(log.ready(1)),
        Entry::Resume { generation: Generation(1) },
        Entry::Seal(log.seal(Verdict::Clip { coefficient: 0.25 })),
        log.durable(4, holder, digests([layer(0)], 4)),
        Entry::Keep { version: Step(5) },
        Entry::Checkpoint { version: Step(4) },
        log.rewind(0),
        Entry::Job(JobChange::Start(Arc::new(spec()))),
        Entry::Access(made(TokenId(300))),
        Entry::Format(Format::NEWEST),
    ]
}

/// A use of the token.
pub(super) fn used(token: TokenId) -> AccessChange {
    AccessChange::TokenUsed {
        token,
        key: digest(9, 300),
        name: "spot-9".to_owned(),
        role: AccessRole::Worker,
        at_s: 3700,
        expires_at_s: 90_000,
    }
}

/// A token for two ephemeral workers.
pub(super) fn made(token: TokenId) -> AccessChange {
    let terms = TokenTerms {
        role: AccessRole::Worker,
        verifier: [7; 32],
        authority: digest(6, 300),
        expires_at_s: 90_000,
        uses_max: 2,
        is_ephemeral: true,
        note: "spot".to_owned(),
    };
    AccessChange::TokenMade { token, terms, at_s: 3600 }
}

pub(super) fn briefing() -> Briefing {
    let log = running();
    let plan = log.state.plan().map(|plan| plan.record.clone().into());
    Briefing {
        index: log.state.applied(),
        leader: Some(NodeId(100)),
        you: Some((1, Incarnation(2))),
        spec: Some(Arc::new(spec()).into()),
        job: Some(JobPhase::Halted(HaltReason::DiffersFromLog { step: Step(2) })),
        generation: log.state.generation(),
        plan,
        is_running: true,
        open: log.state.open_turn(),
        updates: 3,
        seal: log.state.training().seals().last_seal().copied(),
        requests_inventory: true,
        rewinds: 2,
        pending: vec![Step(3), Step(8)],
        contacts: Some(Arc::new(log.state.membership().contacts()).into()),
        pre_copy: Some(Arc::new(pre_copy_plan())),
    }
}

fn pre_copy_plan() -> PreCopyPlan {
    let log = running();
    let (follower, owner) = (log.holder(1), log.holder(2));
    PreCopyPlan {
        generation: Generation(1),
        layers: vec![FollowedLayer { layer: layer(2), follower, owner }],
    }
}

pub(super) fn messages() -> Vec<Message> {
    let log = running();
    let holder: Holder = log.holder(1);
    let (stage, generation) = (StageIndex(0), Generation(1));
    let sums = vec![sum(layer(0), 0.25), sum(layer(1), f64::INFINITY)];
    let report =
        GradientReport { turn: turn(3, 1), stage, sums: sums.clone(), loss_sum: Some(2.5) };
    let layers = [layer(0), layer(1)];
    let (state, saved) = (fingerprints(layers, 3), digests(layers, 3));
    let update = HeldUpdate { turn: turn(3, 1), of: stage, sums, state: state.clone() };
    let held = HeldLayer { layer: layer(2), version: Step(3), digest: digest(2, 3) };
    let hello = RaftHello { boot: 2, life: 1 << 40, term: 3, last_index: 300 };
    vec![
        Message::Raft(RaftMessage::Hello(hello)),
        Message::Join { boot: 300, role: Role::Worker, resources: RESOURCES, contact: contact(1) },
        Message::Beat { holder, known: 300, generation, contacts: 299, pulse: pulse() },
        Message::Report { holder, report, state },
        Message::Held { holder, update },
        Message::Inventory { holder, index: 300, layers: vec![held] },
        Message::Ready(log.ready(0)),
        Message::LoadFailed { holder, generation, layer: layer(3), cause: LoadFault::Memory },
        Message::Saved { holder, version: Step(4), generation, layers: saved, busy_milliticks: 0 },
        Message::Following { holder, generation, layers: vec![layer(0), layer(300)] },
        Message::Drain { holder },
        Message::Leave { holder },
        Message::Briefing(Box::new(briefing())),
        Message::Spent { boot: 7 },
        Message::Moved { holder, contact: contact(1) },
        Message::NotAdmitted { boot: 7, cause: AdmissionRefusal::NoCredential },
    ]
}

fn pulse() -> WorkerActivity {
    WorkerActivity { busy_ticks: 1, wait_ticks: 300, progress: 70_000 }
}

pub(super) fn envelope(message: Message) -> Envelope {
    Envelope { cluster: CLUSTER, message }
}
