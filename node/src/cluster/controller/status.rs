//! The state of the cluster, as this controller knows it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use zbelastic_consensus::class::DeviceKind;
use zbelastic_consensus::job::JobPhase;
use zbelastic_consensus::member::{Member, MembershipStatus, Role};
use zbelastic_consensus::plan::{PlanRecord, Promise, PromiseOff};
use zbelastic_consensus::training_status::TrainingStatus;
use zbelastic_transport::TransportPath;
use zbelastic_types::{NodeId, Step};

use super::ControllerNode;
use super::pace_tracker::pace_status;
use crate::api::{
    ApiAnswer, ClusterStatus, HexDigest, JobPhaseStatus, JobStatus, MemberPath, MemberState,
    MemberStatus, PlanStatus, PromiseStatus, QuorumStatus, SavingStatus, StatusReport,
};
use crate::cluster::journal::now_ms;
use crate::cluster::run_log::{member_role, window_number};
use crate::cluster::tick::TICK;

/// A controller from which nothing was received for so long is not counted as reachable.
const REACHABLE: Duration = Duration::from_secs(1);
/// Workers whose activity is named where a run waits: as many as fit into a line. `status
/// --json` has all.
const ACTIVITIES_SHOWN: usize = 3;

impl ControllerNode {
    pub(super) fn status(&self) -> StatusReport {
        let raft = self.core.status();
        StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            at_ms: now_ms(),
            answered_by: self.setup.node,
            cluster: ClusterStatus {
                name: self.setup.cluster_name.clone(),
                id: self.core.state().cluster().to_string(),
            },
            leader: raft.leader,
            term: raft.term,
            quorum: self.quorum(),
            members: self.members(),
            job: self.job_status(),
            plan: self.plan_status(),
            promise: self.promise(),
            verdict_wait: self.run_log.verdict_wait(),
            pace: self.pace_tracker.measured().map(pace_status),
            failures: self.run_log.failures(),
            checkpoints: self.checkpoints(None),
            counters: self.counters(),
        }
    }

    fn quorum(&self) -> QuorumStatus {
        let voters = self.core.status().members.voters;
        let is_reachable = |node: &NodeId| {
            let connected =
                self.last_received.get(node).is_some_and(|since| since.elapsed() < REACHABLE);
            *node == self.setup.node || connected
        };
        let voters: Vec<NodeId> = voters.into_iter().collect();
        let reachable = voters.iter().copied().filter(is_reachable).collect();
        QuorumStatus { voters, reachable }
    }

    /// The answer while there is no quorum.
    pub(super) fn no_quorum(&self) -> ApiAnswer {
        let QuorumStatus { voters, reachable } = self.quorum();
        let since_ms = if let TrainingStatus::NoQuorum { ticks } = self.core.training_status() {
            u64::from(ticks) * TICK.as_millis() as u64
        } else {
            0
        };
        let missing = voters.iter().filter(|voter| !reachable.contains(voter));
        let missing = missing.map(|voter| self.name_of(*voter)).collect();
        ApiAnswer::NoQuorum { since_ms, missing }
    }

    fn name_of(&self, node: NodeId) -> String {
        let member = self.core.state().members().get(&node);
        member.map_or_else(|| format!("node-{node}"), |member| member.contact.name.clone())
    }

    pub(super) fn members(&self) -> Vec<MemberStatus> {
        let members = self.core.state().members().iter();
        members.map(|(node, member)| self.member(*node, member)).collect()
    }

    fn member(&self, node: NodeId, member: &Member) -> MemberStatus {
        let plan = self.core.state().plan().map(|plan| &plan.record);
        let assignment = plan.and_then(|plan| {
            let stage = plan.stages.iter().position(|holder| holder.node == node)?;
            Some((plan, zbelastic_types::StageIndex(stage as u32)))
        });
        let silent_ms =
            self.last_received.get(&node).map(|since| since.elapsed().as_millis() as u64);
        MemberStatus {
            id: node,
            name: member.contact.name.clone(),
            role: member_role(member.role),
            standing: match member.status {
                MembershipStatus::Present => MemberState::Present,
                MembershipStatus::Draining => MemberState::Draining,
                MembershipStatus::Lost(reason) => MemberState::Lost { reason: reason.to_string() },
            },
            incarnation: member.incarnation.0,
            addresses: member.contact.addresses.clone(),
            zone: member.contact.place.zone.clone(),
            stage: assignment.map(|(_, stage)| stage.0),
            layers: assignment.map(|(plan, stage)| {
                // The middle one of an odd number of stages has the same layers twice.
                let layers: BTreeSet<u32> = plan.layers_at(stage).map(|layer| layer.0).collect();
                ranges(&layers.into_iter().collect::<Vec<_>>())
            }),
            copies_stages: assignment.map_or_else(Vec::new, |(plan, stage)| {
                plan.copied_by(stage).map(|of| of.0).collect()
            }),
            device: member.resources.class.to_string(),
            left_out: self.left_out(member),
            speed_permille: self.pace_tracker.speed_permille(node, member),
            memory_used: None,
            memory: member.resources.memory,
            last_heard_ms: if node == self.setup.node { Some(0) } else { silent_ms },
            round_trip_us: None,
            road: match (node == self.setup.node, self.lane_paths.get(&node)) {
                (true, _) => MemberPath::Own,
                (false, Some(TransportPath::Quic)) => MemberPath::Quic,
                (false, Some(TransportPath::SameHost)) => MemberPath::SameHost,
                (false, None) => MemberPath::Down,
            },
            work: self.work_status.get(&node).copied(),
            disk: self.member_disks.status(node),
        }
    }

    /// Why a worker has no part in the job and will have none, if that is so.
    fn left_out(&self, member: &Member) -> Option<String> {
        let state = self.core.state();
        let job = state.job().filter(|job| job.under_way().is_ok())?;
        let own = member.resources.class;
        let required = state.training().class_for_plan(state.membership());
        if member.role != Role::Worker || !member.is_live() || required == Some(own) {
            return None;
        }
        let required =
            required.map_or_else(|| kind_text(job.spec.device).to_owned(), |w| w.to_string());
        Some(format!("it computes on {own}, the job on {required}: their bits differ"))
    }

    pub(super) fn job_status(&self) -> Option<JobStatus> {
        let state = self.core.state();
        let job = state.job()?;
        let sealed = state.open_turn().step.0;
        let last = self.run_log.last();
        let newest = state.checkpoints().last().map(|checkpoint| checkpoint.version);
        Some(JobStatus {
            name: job.spec.name.clone(),
            config: HexDigest(job.spec.config),
            phase: self.phase(job.phase),
            step: sealed,
            step_count: job.spec.step_count,
            loss: last.and_then(|seal| self.run_log.loss(seal)),
            gnorm: last.map(|seal| seal.norm()).filter(|norm| norm.is_finite()),
            lr: self.run_log.lr(Step(sealed)),
            step_ms: self.run_log.step_time().map(|time| time.as_secs_f64() * 1e3),
            tokens_per_s: self.run_log.speed(),
            eta_s: self.run_log.time_left(sealed).map(|left| left.as_secs_f64()),
            digest: newest.and_then(|version| self.state_digest(version)),
            digest_step: newest.map(|version| version.0),
            saving: state.pending().last().map(|pending| SavingStatus {
                step: pending.version.0,
                layers_durable: pending.layers.len() as u32,
                layers: job.spec.layer_count(),
            }),
        })
    }

    pub(super) fn phase(&self, phase: JobPhase) -> JobPhaseStatus {
        match phase {
            JobPhase::Paused => JobPhaseStatus::Paused,
            JobPhase::Done => JobPhaseStatus::Done,
            JobPhase::Stopped => JobPhaseStatus::Stopped,
            JobPhase::Halted(reason) => JobPhaseStatus::Halted { reason: reason.to_string() },
            JobPhase::Running => {
                let standing = self.core.training_status();
                if let TrainingStatus::Running { .. } = standing {
                    JobPhaseStatus::Running
                } else {
                    let reason = format!("{standing}{}", self.activities());
                    JobPhaseStatus::Waiting { reason }
                }
            }
        }
    }

    /// What takes workers long, behind the reason why a run waits.
    fn activities(&self) -> String {
        let active =
            self.work_status.iter().filter_map(|(node, work)| Some((*node, work.activity?)));
        let text = |(node, activity)| format!("; {} {activity}", self.name_of(node));
        active.take(ACTIVITIES_SHOWN).map(text).collect()
    }

    fn plan_status(&self) -> Option<PlanStatus> {
        let plan = self.core.state().plan()?;
        let record = &plan.record;
        let standing = self.core.training_status();
        let is_smooth = matches!(standing, TrainingStatus::Running { withheld: None, .. });
        let waits_for = (!is_smooth).then(|| standing.to_string());
        Some(PlanStatus {
            generation: record.generation.0,
            stages: record.stages.iter().map(|holder| holder.node).collect(),
            schedule: record.program.kind.name().to_owned(),
            window: window_number(record.window()),
            bubble_planned: None,
            bubble_measured: self.run_log.bubble(),
            from_step: record.from_step.0,
            reason: record.reason.to_string(),
            waits_for,
        })
    }

    fn promise(&self) -> Option<PromiseStatus> {
        let state = self.core.state();
        Some(promise_status(&state.plan()?.record, state.job()?.spec.copies))
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let refusals = self.core.refusals().iter();
        let mut counters: BTreeMap<String, u64> =
            refusals.map(|(name, count)| (format!("refused_{name}"), *count)).collect();
        let lanes = self.transport.counters();
        counters.insert("control_dropped".to_owned(), lanes.control.dropped_queue_full);
        counters.insert("strangers_refused".to_owned(), lanes.accept.refused);
        counters.insert("uptime_s".to_owned(), self.started.elapsed().as_secs());
        counters.insert("rewinds".to_owned(), self.core.state().training().seals().rewinds());
        counters
    }
}

fn promise_status(plan: &PlanRecord, promised: u32) -> PromiseStatus {
    match plan.promise {
        Promise::Kept => PromiseStatus::Kept { copies: promised },
        Promise::Fewer { copies } => PromiseStatus::Fewer { copies, wanted: promised },
        Promise::Off(PromiseOff::OneStage) => {
            PromiseStatus::Off { reason: "one stage: no other worker is there".to_owned() }
        }
        Promise::Off(PromiseOff::Configured) => {
            PromiseStatus::Off { reason: "elastic.copies = 0".to_owned() }
        }
    }
}

/// As in `0-3, 8-11`.
fn ranges(layers: &[u32]) -> String {
    let mut text = String::new();
    let mut at = 0;
    while at < layers.len() {
        let mut end = at;
        while end + 1 < layers.len() && layers[end + 1] == layers[end] + 1 {
            end += 1;
        }
        let separator = if text.is_empty() { "" } else { ", " };
        text.push_str(&match end - at {
            0 => format!("{separator}{}", layers[at]),
            _ => format!("{separator}{}-{}", layers[at], layers[end]),
        });
        at = end + 1;
    }
    text
}

const fn kind_text(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Processors => "processors",
        DeviceKind::Cuda => "NVIDIA devices",
    }
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn layers_are_told_as_ranges() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[4]), "4");
        assert_eq!(ranges(&[0, 1, 2, 3]), "0-3");
        assert_eq!(ranges(&[0, 1, 6, 9, 10]), "0-1, 6, 9-10");
    }
}
