//! The trust of a node in its peers: which of their messages count, and which ends of connections
//! mean that this process is to end. One certificate ends no other node, and its messages count
//! only within its role.

use std::collections::BTreeSet;

use zbelastic_consensus::core::ConnectionEnd;
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_identity::PeerRole;
use zbelastic_transport::{CloseCode, DialProblem, DownReason};
use zbelastic_types::{Generation, LayerId, NodeId, StageIndex};

use crate::data::DataName;

/// Whether a connection was closed because this node was removed. Only controllers know that.
#[must_use]
pub fn is_removal(role: PeerRole, reason: DownReason) -> bool {
    let is_believed = role == PeerRole::Controller || mutant::is(Mutant::M36AnyCloseEnds);
    is_believed && reason == DownReason::ClosedByPeer(CloseCode::Banned)
}

/// The same of a connection that was refused.
#[must_use]
pub fn is_refused_removal(role: PeerRole, problem: &DialProblem) -> bool {
    matches!(problem, DialProblem::Refused(CloseCode::Banned))
        && is_removal(role, DownReason::ClosedByPeer(CloseCode::Banned))
}

/// What the end of a connection shows of the process at its other end. Only silence leaves open
/// whether that is there.
#[must_use]
pub const fn connection_end(reason: DownReason) -> ConnectionEnd {
    match reason {
        DownReason::Silent => ConnectionEnd::Silent,
        DownReason::Left
        | DownReason::ProcessEnded
        | DownReason::Reset
        | DownReason::Replaced
        | DownReason::Forgotten
        | DownReason::Banned
        | DownReason::ClosedByPeer(_)
        | DownReason::Violation(_)
        | DownReason::Broken
        | DownReason::Closing => ConnectionEnd::Closed,
    }
}

/// Whether a connection was refused because this program is too old for the cluster. Only a
/// controller knows the format of the log, and it is not written in an older one again.
#[must_use]
pub fn is_outdated(role: PeerRole, problem: &DialProblem) -> bool {
    let is_newer =
        matches!(problem, DialProblem::Version { ours, theirs } if theirs.oldest > ours.newest);
    role == PeerRole::Controller && is_newer
}

/// Workers that must report a second process with the same identity: one certificate ends no other
/// node, be it the only one that is connected.
const REPORTS_MIN: usize = 2;

/// Workers that reported another process with this node's identity. A controller is trusted;
/// workers are if more than half of those that are connected report it, and no fewer than two.
#[derive(Debug, Default)]
pub struct DuplicateIdentityReports {
    workers: BTreeSet<NodeId>,
}

impl DuplicateIdentityReports {
    /// Counts the report of a peer while so many workers are connected. Returns whether it is
    /// trusted.
    pub fn record(&mut self, node: NodeId, role: PeerRole, workers: usize) -> bool {
        if role == PeerRole::Controller || mutant::is(Mutant::M36AnyCloseEnds) {
            return true;
        }
        self.workers.insert(node);
        self.workers.len() >= REPORTS_MIN && 2 * self.workers.len() > workers
    }
}

/// The request or report of a member's message, as far as not every member may make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberClaim {
    /// Items that the cluster does not refer to are to be removed.
    Collect,
    /// A client reads layers of a checkpoint.
    Exporting,
    /// What the cluster is called.
    Founding,
    /// The time report of a stage for a step.
    StageReport {
        /// Generation of the plan that the report names.
        generation: Generation,
        /// Index of the stage that the report names, in pipeline order.
        stage: StageIndex,
    },
    /// A layer arrived for the plan of this generation.
    LayerArrived(Generation),
    /// The loss on held-out text.
    HeldOut,
    /// A text, or weights, is to be kept.
    KeepData(DataName),
    /// Too few copies of a layer of a checkpoint could be written.
    SaveFailed(LayerId),
}

/// The facts that a node checks claims against.
#[derive(Clone, Copy, Debug)]
pub struct ClaimContext<'a> {
    /// Role of this node.
    pub own: PeerRole,
    /// The plan in force.
    pub plan: Option<&'a PlanRecord>,
    /// Whether the sender had the model's head under a plan before.
    pub had_head: bool,
    /// Text and weights of the job, if there is one.
    pub job_data: &'a [DataName],
}

/// Why a claim does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimRefusal {
    /// Only controllers may send such a message.
    #[error("a {found} sent a message that only a controller may send")]
    Role {
        /// Role of the sender, in its certificate.
        found: PeerRole,
    },
    /// The sender does not hold that stage of the plan in force.
    #[error("stage {stage} of plan {generation} is not the sender's")]
    Stage {
        /// Generation of the plan that the report names.
        generation: Generation,
        /// Index of the stage that the report names, in pipeline order.
        stage: StageIndex,
    },
    /// The sender has no part in that plan, or it is not in force.
    #[error("plan {0} is not in force with a stage of the sender's")]
    Plan(Generation),
    /// The sender does not train that layer under the plan in force.
    #[error("layer {0} is not the sender's")]
    Layer(LayerId),
    /// The sender has not the model's head, which computes the loss.
    #[error("the head is not at the sender")]
    Head,
    /// The job has no such text or weights.
    #[error("the job has no such data")]
    NotOfJob,
}

/// Checks the request or report of a member.
///
/// # Errors
/// If it does not count.
pub fn check_claim(
    (node, role): (NodeId, PeerRole),
    claim: MemberClaim,
    context: ClaimContext<'_>,
) -> Result<(), ClaimRefusal> {
    let is_controller = role == PeerRole::Controller;
    match claim {
        MemberClaim::Collect | MemberClaim::Exporting | MemberClaim::Founding => {
            if is_controller {
                Ok(())
            } else {
                Err(ClaimRefusal::Role { found: role })
            }
        }
        MemberClaim::StageReport { generation, stage } => {
            let has_stage = context.plan.is_some_and(|plan| {
                let holder = plan.stages.get(stage.index());
                plan.generation == generation && holder.is_some_and(|at| at.node == node)
            });
            if has_stage { Ok(()) } else { Err(ClaimRefusal::Stage { generation, stage }) }
        }
        MemberClaim::LayerArrived(generation) => {
            let has_part = context.plan.is_some_and(|plan| {
                plan.generation == generation && plan.stages.iter().any(|at| at.node == node)
            });
            if has_part { Ok(()) } else { Err(ClaimRefusal::Plan(generation)) }
        }
        MemberClaim::HeldOut => {
            let has_head = context.plan.is_some_and(|plan| plan.has_head(node));
            let is_believed = mutant::is(Mutant::M39LossOfAnybody);
            if has_head || context.had_head || is_believed {
                Ok(())
            } else {
                Err(ClaimRefusal::Head)
            }
        }
        // Others may speak of an earlier plan, or lie.
        MemberClaim::SaveFailed(layer) => {
            let trains = context.plan.is_some_and(|plan| plan.trains(node, layer));
            if trains { Ok(()) } else { Err(ClaimRefusal::Layer(layer)) }
        }
        // A controller passes on data that was uploaded to it; a worker accepts the data of its
        // job.
        MemberClaim::KeepData(_) if is_controller && context.own == PeerRole::Controller => Ok(()),
        MemberClaim::KeepData(name) if context.job_data.contains(&name) => Ok(()),
        MemberClaim::KeepData(_) => Err(ClaimRefusal::NotOfJob),
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_transport::VersionRange;
    use zbelastic_types::Digest;

    use super::*;

    #[test]
    fn one_worker_alone_cannot_say_that_an_identity_is_taken() {
        let mut reports = DuplicateIdentityReports::default();
        assert!(!reports.record(NodeId(4), PeerRole::Worker, 4));
        assert!(!reports.record(NodeId(4), PeerRole::Worker, 4), "however often");
        assert!(!reports.record(NodeId(5), PeerRole::Worker, 4));
        assert!(reports.record(NodeId(6), PeerRole::Worker, 4), "most of them");
        assert!(DuplicateIdentityReports::default().record(NodeId(1), PeerRole::Controller, 4));
        assert!(
            !DuplicateIdentityReports::default().record(NodeId(4), PeerRole::Worker, 1),
            "no other worker is connected"
        );
    }

    #[test]
    fn only_a_controller_removes() {
        let banned = DownReason::ClosedByPeer(CloseCode::Banned);
        assert!(is_removal(PeerRole::Controller, banned));
        assert!(!is_removal(PeerRole::Worker, banned));
        assert!(!is_removal(PeerRole::Controller, DownReason::Silent));
        let refused = DialProblem::Refused(CloseCode::Banned);
        assert!(is_refused_removal(PeerRole::Controller, &refused));
        assert!(!is_refused_removal(PeerRole::Worker, &refused));
        let other = DialProblem::Refused(CloseCode::Crowded);
        assert!(!is_refused_removal(PeerRole::Controller, &other));
    }

    /// A worker that is silent for so long may be cut off, and come back with what it holds.
    #[test]
    fn a_connection_that_was_silent_for_too_long_shows_no_end_of_a_process() {
        assert_eq!(connection_end(DownReason::Silent), ConnectionEnd::Silent);
        for reason in [DownReason::ProcessEnded, DownReason::Reset, DownReason::Left] {
            assert_eq!(connection_end(reason), ConnectionEnd::Closed);
        }
    }

    #[test]
    fn only_a_controller_that_speaks_newer_versions_alone_ends_an_older_program() {
        let range = |oldest, newest| VersionRange { oldest, newest };
        let problem = |ours, theirs| DialProblem::Version { ours, theirs };
        let outdated = problem(range(2, 2), range(3, 3));
        assert!(is_outdated(PeerRole::Controller, &outdated));
        assert!(!is_outdated(PeerRole::Worker, &outdated), "it may lie");
        let newer = problem(range(3, 4), range(2, 2));
        assert!(!is_outdated(PeerRole::Controller, &newer), "the other one is older");
        assert!(!is_outdated(PeerRole::Controller, &DialProblem::NobodyAnswers));
    }

    #[test]
    fn a_claim_counts_by_role_plan_and_job() {
        let name = DataName { hash: Digest([7; 32]), length: 7 };
        let worker = (NodeId(4), PeerRole::Worker);
        let controller = (NodeId(1), PeerRole::Controller);
        let none =
            ClaimContext { own: PeerRole::Worker, plan: None, had_head: false, job_data: &[] };
        let of_job = ClaimContext { job_data: &[name], ..none };
        let at_controller = ClaimContext { own: PeerRole::Controller, ..none };
        let role = Err(ClaimRefusal::Role { found: PeerRole::Worker });
        assert_eq!(check_claim(worker, MemberClaim::Collect, none), role);
        assert_eq!(check_claim(controller, MemberClaim::Collect, none), Ok(()));
        assert_eq!(check_claim(worker, MemberClaim::Exporting, none), role);
        assert_eq!(check_claim(worker, MemberClaim::HeldOut, none), Err(ClaimRefusal::Head));
        assert_eq!(
            check_claim(worker, MemberClaim::HeldOut, ClaimContext { had_head: true, ..none }),
            Ok(())
        );
        let generation = Generation(1);
        let stage = StageIndex(0);
        let report = MemberClaim::StageReport { generation, stage };
        let refused = Err(ClaimRefusal::Stage { generation, stage });
        assert_eq!(check_claim(worker, report, none), refused);
        let arrived = MemberClaim::LayerArrived(generation);
        assert_eq!(check_claim(worker, arrived, none), Err(ClaimRefusal::Plan(generation)));
        let failed = MemberClaim::SaveFailed(LayerId(2));
        assert_eq!(check_claim(worker, failed, none), Err(ClaimRefusal::Layer(LayerId(2))));
        let keep = MemberClaim::KeepData(name);
        assert_eq!(check_claim(worker, keep, of_job), Ok(()));
        assert_eq!(check_claim(worker, keep, at_controller), Err(ClaimRefusal::NotOfJob));
        assert_eq!(check_claim(controller, keep, at_controller), Ok(()));
        assert_eq!(check_claim(controller, keep, none), Err(ClaimRefusal::NotOfJob));
    }
}
