//! Why a run goes on, or does not: the first item of the status.

use std::fmt;

use zbelastic_types::{Generation, NodeId};

use crate::duty::{
    AwaitedMember, AwaitedMembers, AwaitedReturn, AwaitedReturns, NoPlan, WithheldReason,
};
use crate::job::{HaltReason, JobPhase};
use crate::state::{PlanPhase, State};
use crate::tick::Ticks;

/// The status of the training, as a controller knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrainingStatus {
    /// No leader is known: nothing is agreed on, and nothing sealed. Other reports of the run may
    /// be old.
    NoQuorum {
        /// Ticks since a leader was last known.
        ticks: u32,
    },
    /// This node leads, others answer its heartbeats, and nothing that it proposed was agreed on: too
    /// many of them have not written it to their logs.
    NotAgreed {
        /// Ticks since something was agreed on.
        ticks: u32,
        /// Voters that are not known to have written the log up to its end.
        behind: Vec<NodeId>,
    },
    /// There is no job.
    NoJob,
    /// The job is held by order.
    Paused,
    /// The job is held because going on would be wrong.
    Halted(HaltReason),
    /// Every step is sealed, and the checkpoint behind the last one is under way.
    Saving {
        /// Layers of it that are durable.
        durable: u32,
        /// Number of layers of the model.
        layers: u32,
    },
    /// The checkpoint behind the last step is durable.
    Done,
    /// The job was ended by order.
    Stopped,
    /// There are too few workers for a plan.
    WaitingForWorkers {
        /// Workers with devices that fit the job.
        present: u32,
        /// Workers with devices that give other bits than the job's.
        left_out: u32,
        /// Number of workers that a plan needs.
        needed: u32,
    },
    /// No plan fits the workers that are there.
    NoPlan(NoPlan),
    /// A plan is being made.
    Planning {
        /// Workers that it awaits answers from, if this node leads.
        awaited: Vec<AwaitedMember>,
        /// Workers that were declared lost and may come back with layers that nobody else has.
        returns: Vec<AwaitedReturn>,
    },
    /// Layers of a plan are on their way.
    Loading {
        /// Generation of the plan that loads.
        generation: Generation,
        /// Number of stages that are ready.
        ready: u32,
        /// Number of stages in the plan.
        stages: u32,
        /// Workers that it awaits answers from, if this node leads.
        awaited: Vec<AwaitedMember>,
    },
    /// A plan's program runs.
    Running {
        /// Generation of the plan that runs.
        generation: Generation,
        /// Why the open turn is not sealed yet, if this node leads and stages have reported.
        withheld: Option<WithheldReason>,
    },
}

impl TrainingStatus {
    /// The word for status and logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::NoQuorum { .. } => "no-quorum",
            Self::NotAgreed { .. } => "not-agreed",
            Self::NoJob => "no-job",
            Self::Paused => "paused",
            Self::Halted(_) => "halted",
            Self::Saving { .. } => "saving",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::WaitingForWorkers { .. } => "waiting-for-workers",
            Self::NoPlan(_) => "no-plan",
            Self::Planning { .. } => "planning",
            Self::Loading { .. } => "loading",
            Self::Running { .. } => "running",
        }
    }

    /// The status that follows from the state, if a plan needs so many workers.
    pub(crate) fn of(state: &State, needed: u32) -> Self {
        match state.job().map(|job| job.phase) {
            None => return Self::NoJob,
            Some(JobPhase::Paused) => return Self::Paused,
            Some(JobPhase::Halted(reason)) => return Self::Halted(reason),
            Some(JobPhase::Done) => return Self::Done,
            Some(JobPhase::Stopped) => return Self::Stopped,
            Some(JobPhase::Running) => {}
        }
        let present = state.fitting_workers().count() as u32;
        let left_out = state.live_workers().count() as u32 - present;
        let plan = state.plan().filter(|_| state.lost_holder().is_none());
        match plan.map(|plan| (plan.record.generation, &plan.phase)) {
            Some((_, PlanPhase::Running)) if state.training().is_all_sealed() => {
                Self::saving(state)
            }
            Some((generation, PlanPhase::Running)) => Self::Running { generation, withheld: None },
            Some((generation, PlanPhase::Loading(slots))) => {
                let ready = slots.iter().filter(|slot| slot.is_some()).count() as u32;
                let stages = slots.len() as u32;
                let awaited = Vec::new();
                Self::Loading { generation, ready, stages, awaited }
            }
            Some((_, PlanPhase::Closed)) | None if present < needed => {
                Self::WaitingForWorkers { present, left_out, needed }
            }
            Some((_, PlanPhase::Closed)) | None => {
                Self::Planning { awaited: Vec::new(), returns: Vec::new() }
            }
        }
    }
}

impl TrainingStatus {
    fn saving(state: &State) -> Self {
        let version = state.open_turn().step;
        let pending = state.pending().iter().find(|pending| pending.version == version);
        let durable = pending.map_or(0, |pending| pending.layers.len() as u32);
        let layers = state.job().map_or(0, |job| job.spec.layer_count());
        Self::Saving { durable, layers }
    }
}

impl fmt::Display for TrainingStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQuorum { ticks } => {
                write!(f, "no quorum: no leader for {}", Ticks(*ticks))
            }
            Self::NotAgreed { ticks, behind } => {
                let nodes: Vec<String> = behind.iter().map(|node| format!("node {node}")).collect();
                let nodes = nodes.join(", ");
                write!(
                    f,
                    "nothing was agreed on for {}: {nodes} did not write the log; look at the disks there",
                    Ticks(*ticks)
                )
            }
            Self::NoJob => write!(f, "there is no job"),
            Self::Paused => write!(f, "paused by order"),
            Self::Halted(reason) => write!(f, "halted: {reason}"),
            Self::Saving { durable, layers } => {
                write!(
                    f,
                    "the last checkpoint is written, {durable} of {layers} layers are durable"
                )
            }
            Self::Done => write!(f, "every step is sealed"),
            Self::Stopped => write!(f, "stopped by order"),
            Self::WaitingForWorkers { present, left_out, needed } => {
                write!(f, "waiting for workers: {present} of {needed} are there")?;
                match left_out {
                    0 => Ok(()),
                    _ => write!(f, ", {left_out} on devices that give other bits than the job's"),
                }
            }
            Self::NoPlan(none) => none.fmt(f),
            Self::Planning { awaited, returns } => {
                let returns = AwaitedReturns(returns);
                write!(f, "a plan is being made{}{returns}", AwaitedMembers(awaited))
            }
            Self::Loading { generation, ready, stages, awaited } => {
                let awaited = AwaitedMembers(awaited);
                write!(f, "plan {generation} loads, {ready} of {stages} stages are ready{awaited}")
            }
            Self::Running { generation, withheld: None } => write!(f, "plan {generation} runs"),
            Self::Running { generation, withheld: Some(reason) } => {
                write!(f, "plan {generation} runs; not sealed yet: {reason}")
            }
        }
    }
}
