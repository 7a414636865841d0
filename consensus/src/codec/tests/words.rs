//! The closed lists that messages and entries are made of: the number of each word is the form.

use std::any::type_name;
use std::fmt::Debug;

use serde::Serialize;
use zbelastic_schedule::Window;
use zbelastic_types::{Incarnation, LayerId, NodeId, RunId, StageIndex, Step, TensorIndex};

use super::super::encode;
use super::golden::hex;
use super::samples::{made, used};
use crate::access::{
    AccessChange, AccessRole, AuthorityChange, RotationPhase, Succession, TokenId,
};
use crate::entry::RewindReason;
use crate::fixture::{admit, contact, digest, lost, seal_at, turn};
use crate::job::{HaltReason, JobChange, JobPhase};
use crate::member::{Holder, LossReason, MemberChange, Role};
use crate::plan::{DriftedPart, LayerSource, PlanReason, Promise, PromiseOff};
use crate::validation::{NonfinitePolicy, Reason, Verdict};

const HOLDER: Holder = Holder { node: NodeId(1), incarnation: Incarnation(300) };
const LAYER: LayerId = LayerId(3);
const STEP: Step = Step(3);

pub(super) fn words() -> Vec<String> {
    [of_members(), of_access(), of_plans(), of_jobs(), of_validation()].concat()
}

fn rows<T: Debug + Serialize, const COUNT: usize>(values: [T; COUNT]) -> Vec<String> {
    let name = type_name::<T>().rsplit("::").next().expect("a type has a name");
    values.iter().map(|value| format!("{name} {value:?}: {}", hex(&encode(value)))).collect()
}

fn of_members() -> Vec<String> {
    let losses = [
        LossReason::Closed,
        LossReason::Silent { ticks: 300 },
        LossReason::OpOverdue { ticks: 300, ticks_max: 50 },
        LossReason::NoProgress { ticks: 300 },
        LossReason::Superseded,
        LossReason::Drained,
        LossReason::Untrusted { partners: 2 },
        LossReason::Removed,
        LossReason::OutOfMemory,
    ];
    let moved = MemberChange::Moved { holder: HOLDER, contact: contact(1) };
    let changes = [admit(1, 1), lost(HOLDER), MemberChange::Drain { holder: HOLDER }, moved];
    [rows([Role::Controller, Role::Worker]), rows(losses), rows(changes)].concat()
}

fn of_access() -> Vec<String> {
    let (token, node, key) = (TokenId(300), NodeId(9), digest(9, 300));
    let (at_s, expires_at_s) = (3600, 90_000);
    let roles = [
        AccessRole::Admin,
        AccessRole::Controller,
        AccessRole::Worker,
        AccessRole::Viewer,
        AccessRole::Operator,
    ];
    let changes = [
        made(token),
        AccessChange::TokenRevoked { token },
        used(token),
        AccessChange::Renewed { node, key, at_s, expires_at_s },
        AccessChange::Revoked { node },
        AccessChange::Forgotten { node },
    ];
    let succession =
        Succession { key, certificate: vec![1, 2], bridge: vec![3], old: vec![4, 5, 6] };
    let steps = [
        AuthorityChange::Announced { succession: Box::new(succession), is_forced: true },
        AuthorityChange::Issues { key, until_s: 90_000 },
        AuthorityChange::Forced { key },
        AuthorityChange::Retired { key },
    ];
    let phases = [
        RotationPhase::Announced,
        RotationPhase::Issuing { until_s: 90_000 },
        RotationPhase::Retired,
    ];
    let steps = steps.map(AccessChange::Authority);
    [rows(roles), rows(changes), rows(steps), rows(phases)].concat()
}

fn drifted(part: DriftedPart) -> PlanReason {
    PlanReason::Drifted { part, expected_us: 1300, found_us: 2600, gain_permille: 310 }
}

fn of_plans() -> Vec<String> {
    let window = Window::Zero;
    let reasons = [
        PlanReason::First,
        PlanReason::Lost { holder: HOLDER, reason: LossReason::Closed },
        PlanReason::Joined { count: 2 },
        PlanReason::Draining { count: 1 },
        PlanReason::Stalled { ticks: 300 },
        PlanReason::LoadFailed { layer: LAYER },
        PlanReason::Contradiction { layer: LAYER },
        PlanReason::Rewound,
        PlanReason::WindowSwitched { window, rollbacks: 29, seals: 32, wait_ticks: 1 },
        drifted(DriftedPart::Stage { stage: StageIndex(1), node: NodeId(300) }),
        drifted(DriftedPart::Links),
        PlanReason::Uneven,
    ];
    let sources = [
        LayerSource::Nodes(vec![NodeId(1), NodeId(300)]),
        LayerSource::Checkpoint { version: STEP, digest: digest(1, 3) },
        LayerSource::Initial,
    ];
    let off = [PromiseOff::OneStage, PromiseOff::Configured].map(Promise::Off);
    let rewinds = [
        RewindReason::LayerLost { layer: LAYER },
        RewindReason::StateDiffers { layer: LAYER },
        RewindReason::Ordered,
    ];
    let promises = [Promise::Kept, off[0], off[1], Promise::Fewer { copies: 1 }];
    [rows(reasons), rows(sources), rows(promises), rows(rewinds)].concat()
}

fn of_jobs() -> Vec<String> {
    let halts = [
        HaltReason::DiffersFromLog { step: STEP },
        HaltReason::NothingToRestore,
        HaltReason::Untrusted,
    ];
    let phases = [
        JobPhase::Running,
        JobPhase::Paused,
        JobPhase::Done,
        JobPhase::Halted(halts[2]),
        JobPhase::Stopped,
    ];
    let changes = [
        JobChange::Pause,
        JobChange::Continue,
        JobChange::Halt(halts[1]),
        JobChange::Stop,
        JobChange::Remove(RunId(3)),
    ];
    [rows(halts), rows(phases), rows(changes), rows([Window::Zero, Window::One])].concat()
}

fn of_validation() -> Vec<String> {
    let deviations = 6.5;
    let (tensor, replays) = (TensorIndex(3), 1);
    let reasons = [
        Reason::Sound,
        Reason::LargeNorm { clip_norm: 1.0 },
        Reason::NonfiniteGradient { tensor, values: 5, tensor_count: 2, replays },
        Reason::NonfiniteLoss { replays },
        Reason::DiffersFromLog { replays },
        Reason::Spike { deviations, deviations_max: 6.0 },
        Reason::SpikeAccepted { deviations },
    ];
    let verdicts =
        [Verdict::Keep, Verdict::Clip { coefficient: 0.5 }, Verdict::Skip, Verdict::Replay];
    let policies = [NonfinitePolicy::Skip, NonfinitePolicy::Replay];
    let seal = seal_at(turn(3, 1), Verdict::Keep, 4);
    [rows(verdicts), rows(reasons), rows(policies), rows([seal])].concat()
}
