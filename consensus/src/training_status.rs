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

    /// Workers that the leader awaits answers from, as far as this node knows.
    #[must_use]
    pub fn awaited(&self) -> &[AwaitedMember] {
        match self {
            Self::Planning { awaited, .. } | Self::Loading { awaited, .. } => awaited,
            Self::NoQuorum { .. }
            | Self::NotAgreed { .. }
            | Self::NoJob
            | Self::Paused
            | Self::Halted(_)
            | Self::Saving { .. }
            | Self::Done
            | Self::Stopped
            | Self::WaitingForWorkers { .. }
            | Self::NoPlan(_)
            | Self::Running { .. } => &[],
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
        DescribedStatus { status: self, describe: &|node| node.to_string() }.fmt(f)
    }
}

/// A training status as text, with the awaited members as somebody describes them who knows more of
/// them than their numbers.
pub struct DescribedStatus<'a> {
    /// The status.
    pub status: &'a TrainingStatus,
    /// The text for a member.
    pub describe: &'a dyn Fn(NodeId) -> String,
}

impl fmt::Display for DescribedStatus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            TrainingStatus::NoQuorum { ticks } => {
                write!(f, "no quorum: no leader for {}", Ticks(*ticks))
            }
            TrainingStatus::NotAgreed { ticks, behind } => {
                let nodes: Vec<String> = behind.iter().map(|node| format!("node {node}")).collect();
                let nodes = nodes.join(", ");
                write!(
                    f,
                    "nothing was agreed on for {}: {nodes} did not write the log; look at the disks there",
                    Ticks(*ticks)
                )
            }
            TrainingStatus::NoJob => write!(f, "there is no job"),
            TrainingStatus::Paused => write!(f, "paused by order"),
            TrainingStatus::Halted(reason) => write!(f, "halted: {reason}"),
            TrainingStatus::Saving { durable, layers } => {
                write!(
                    f,
                    "the last checkpoint is written, {durable} of {layers} layers are durable"
                )
            }
            TrainingStatus::Done => write!(f, "every step is sealed"),
            TrainingStatus::Stopped => write!(f, "stopped by order"),
            TrainingStatus::WaitingForWorkers { present, left_out, needed } => {
                write!(f, "waiting for workers: {present} of {needed} are there")?;
                match left_out {
                    0 => Ok(()),
                    _ => write!(f, ", {left_out} on devices that give other bits than the job's"),
                }
            }
            TrainingStatus::NoPlan(none) => none.fmt(f),
            TrainingStatus::Planning { awaited, returns } => {
                let returns = AwaitedReturns(returns);
                write!(f, "a plan is being made{}{returns}", AwaitedMembers(awaited, self.describe))
            }
            TrainingStatus::Loading { generation, ready, stages, awaited } => {
                let awaited = AwaitedMembers(awaited, self.describe);
                write!(f, "plan {generation} loads, {ready} of {stages} stages are ready{awaited}")
            }
            TrainingStatus::Running { generation, withheld: None } => {
                write!(f, "plan {generation} runs")
            }
            TrainingStatus::Running { generation, withheld: Some(reason) } => {
                write!(f, "plan {generation} runs; not sealed yet: {reason}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duty::AwaitedAnswer;

    #[test]
    fn awaited_members_are_described_with_what_they_do() {
        let answer = AwaitedAnswer::Ready;
        let awaited = vec![AwaitedMember { node: NodeId(3), answer, still_ticks: 0 }];
        let generation = Generation(2);
        let status = TrainingStatus::Loading { generation, ready: 1, stages: 2, awaited };
        let describe = |node| format!("gpu-{node} (receives layers, 118 MB of 290 MB)");
        assert_eq!(
            DescribedStatus { status: &status, describe: &describe }.to_string(),
            "plan 2 loads, 1 of 2 stages are ready; waiting for nodes that did not load their layers yet: gpu-3 \
             (receives layers, 118 MB of 290 MB)"
        );
        assert!(status.to_string().ends_with("layers yet: 3"));
        assert_eq!(status.awaited().len(), 1);
    }
}
