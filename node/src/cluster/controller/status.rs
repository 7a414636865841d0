//! The state of the cluster, as this controller knows it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use zbelastic_consensus::class::{DeviceClass, DeviceKind};
use zbelastic_consensus::contact::check_name;
use zbelastic_consensus::core::Core;
use zbelastic_consensus::job::JobPhase;
use zbelastic_consensus::member::{Member, MembershipStatus, Role};
use zbelastic_consensus::plan::{PlanRecord, Promise, PromiseOff};
use zbelastic_consensus::state::State;
use zbelastic_consensus::training_status::{DescribedStatus, TrainingStatus};
use zbelastic_machine::resident_memory;
use zbelastic_planner::PaceTracker;
use zbelastic_transport::TransportPath;
use zbelastic_types::{Bytes, Digest, NodeId, Step};
use zbelastic_wire::NodeMessage;

use super::links::MemberLinks;
use super::member_disks::MemberDisks;
use super::planning::pace_status;
use super::ports::ControllerTasks;
use super::runs::RunCatalog;
use crate::cluster::run_log::{RunLog, member_role, name_of, window_number};
use zbelastic_api::{
    ApiAnswer, ApiRefusal, ClusterInfo, ClusterStatus, CommitLatencyStatus, FormatStatus,
    HexDigest, JobPhaseStatus, JobStatus, MemberPath, MemberState, MemberStatus, PlanStatus,
    PromiseStatus, QuorumStatus, RotationStatus, RunAccepted, RunDisposition, SavingStatus,
    StatusReport, WrongState,
};
use zbelastic_policy::machine_peak::shared_peaks;
use zbelastic_policy::pending_commands::COMMAND_TICKS_MAX;
use zbelastic_policy::tick::TICK;
use zbelastic_timing::commit_times::CommitTimes;
use zbelastic_timing::unix_ms;

/// Workers that a run does not await, with an activity that is named where it waits: as many as
/// fit into a line. `status --json` has all.
const ACTIVITIES_SHOWN: usize = 3;

/// The identity that a controller was started with.
pub(super) struct ControllerFacts {
    /// The id of this node.
    pub(super) node: NodeId,
    pub(super) cluster_name: String,
    /// When the cluster was founded, in milliseconds since 1970, if that is known here.
    pub(super) founded_ms: Option<u64>,
    pub(super) started: Instant,
}

impl ControllerFacts {
    /// The message to a controller that joined and does not know what its cluster is called; none
    /// if this one does not either.
    pub(super) fn founding(&self) -> Option<NodeMessage> {
        let Self { cluster_name, founded_ms, .. } = self;
        let cluster_name = cluster_name.clone();
        let founding = NodeMessage::Founding { cluster_name, founded_ms: *founded_ms };
        (!self.cluster_name.is_empty()).then_some(founding)
    }

    /// Another controller sent what the cluster is called. Yields whether that is news.
    pub(super) fn note_founding(&mut self, cluster_name: &str, founded_ms: Option<u64>) -> bool {
        let is_new = self.cluster_name.is_empty() && check_name(cluster_name).is_ok();
        if is_new {
            cluster_name.clone_into(&mut self.cluster_name);
            self.founded_ms = founded_ms;
        }
        is_new
    }
}

/// The parts of the status: the agreed state, and this controller's knowledge beside that.
#[derive(Clone, Copy)]
pub(super) struct StatusView<'a> {
    pub(super) facts: &'a ControllerFacts,
    pub(super) core: &'a Core,
    pub(super) tasks: &'a ControllerTasks,
    pub(super) run_log: &'a RunLog,
    pub(super) pace: &'a PaceTracker,
    pub(super) links: &'a MemberLinks,
    pub(super) disks: &'a MemberDisks,
    pub(super) commit_times: &'a CommitTimes,
}

impl StatusView<'_> {
    pub(super) fn state(&self) -> &State {
        self.core.state()
    }

    pub(super) fn status(&self) -> StatusReport {
        let raft = self.core.status();
        StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            at_ms: unix_ms(),
            answered_by: self.facts.node,
            cluster: ClusterStatus {
                name: self.facts.cluster_name.clone(),
                id: self.state().cluster().to_string(),
            },
            leader: raft.leader,
            term: raft.term,
            quorum: self.quorum(),
            members: self.members(),
            job: self.job_status(),
            plan: self.plan_status(),
            promise: self.promise(),
            verdict_wait: self.run_log.verdict_wait(),
            commit_latency: self.commit_times.latency().map(CommitLatencyStatus::from),
            pace: self.pace.measured().map(pace_status),
            failures: self.run_log.failures(),
            checkpoints: self.checkpoints(None),
            counters: self.counters(),
        }
    }

    fn quorum(&self) -> QuorumStatus {
        let voters = self.core.status().members.voters;
        let now = Instant::now();
        let is_reachable =
            |node: &NodeId| *node == self.facts.node || self.links.is_reachable(*node, now);
        let voters: Vec<NodeId> = voters.into_iter().collect();
        let reachable = voters.iter().copied().filter(is_reachable).collect();
        QuorumStatus { voters, reachable }
    }

    /// Whether a majority of the voters is reachable without this node.
    pub(super) fn is_majority_without_me(&self) -> bool {
        let QuorumStatus { voters, reachable } = self.quorum();
        let others = reachable.iter().filter(|node| **node != self.facts.node).count();
        others > voters.len() / 2
    }

    /// For how long no leader is known here.
    pub(super) fn leaderless(&self) -> Duration {
        if let TrainingStatus::NoQuorum { ticks } = self.core.training_status() {
            TICK * ticks
        } else {
            Duration::ZERO
        }
    }

    /// Whether an election is under way, which takes until voters' disks answer, or this node is
    /// elected and has not applied all of its log.
    pub(super) fn awaits_leader(&self) -> bool {
        let status = self.core.status();
        match status.leader {
            Some(leader) => leader == self.facts.node && !status.leads_applied,
            None => self.leaderless() < TICK * COMMAND_TICKS_MAX,
        }
    }

    /// The answer while there is no quorum.
    pub(super) fn no_quorum(&self) -> ApiAnswer {
        let QuorumStatus { voters, reachable } = self.quorum();
        let since_ms = self.leaderless().as_millis() as u64;
        let missing = voters.iter().filter(|voter| !reachable.contains(voter));
        let missing = missing.map(|voter| name_of(self.state(), *voter)).collect();
        ApiAnswer::NoQuorum { since_ms, missing }
    }

    /// The answer of a controller that does not lead: a redirect to the leader, or that there is no
    /// quorum.
    pub(super) fn redirect(&self) -> ApiAnswer {
        match self.core.status().leader {
            Some(leader) if leader != self.facts.node => {
                ApiAnswer::Redirect { addresses: addresses_of(self.state(), leader) }
            }
            Some(_) | None => self.no_quorum(),
        }
    }

    /// The answer to a run that was submitted; its events begin at a sequence number.
    pub(super) fn run_accepted(&self, disposition: RunDisposition, events_from: u64) -> ApiAnswer {
        match self.job_status() {
            Some(job) => ApiAnswer::Run(RunAccepted { disposition, events_from, job }),
            None => ApiAnswer::Refused(ApiRefusal::WrongState(WrongState::Starting)),
        }
    }

    /// The answer to `cluster info`. `authority` is the key that issues here.
    pub(super) fn cluster_info(
        &self,
        authority: Digest,
        rotation: Option<RotationStatus>,
    ) -> ClusterInfo {
        let status = self.core.status();
        let members = self.members().into_iter();
        let voters: Vec<_> = members.filter(|m| status.members.voters.contains(&m.id)).collect();
        ClusterInfo {
            name: self.facts.cluster_name.clone(),
            id: self.state().cluster().to_string(),
            founded_ms: self.facts.founded_ms,
            authority: authority.to_string(),
            rotation,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            format: format_status(self.core),
            leader: status.leader,
            term: status.term,
            committed: status.commit,
            failures_tolerated: (voters.len().saturating_sub(1) / 2) as u32,
            voters,
        }
    }

    fn members(&self) -> Vec<MemberStatus> {
        let members = self.state().members();
        let plan = self.state().plan().map(|plan| &plan.record.stages[..]).unwrap_or_default();
        // Those that compute: the cores of one that waits are free for the others.
        let peaks = plan.iter().filter_map(|holder| {
            let machine = members.get(&holder.node)?.contact.place.host;
            Some((holder.node, self.links.connected.peak(holder.node, machine)?))
        });
        let shares = shared_peaks(&peaks.collect());
        let raft = self.core.status();
        let member = |(node, member): (&NodeId, &Member)| {
            let alone = || self.links.connected.peak(*node, 0).map(|peak| peak.own);
            let peak_flop_per_s = shares.get(node).copied().or_else(alone);
            let log_behind = raft.behind(*node);
            MemberStatus { peak_flop_per_s, log_behind, ..self.member(*node, member) }
        };
        members.iter().map(member).collect()
    }

    fn member(&self, node: NodeId, member: &Member) -> MemberStatus {
        let plan = self.state().plan().map(|plan| &plan.record);
        let assignment = plan.and_then(|plan| {
            let stage = plan.stages.iter().position(|holder| holder.node == node)?;
            Some((plan, zbelastic_types::StageIndex(stage as u32)))
        });
        let silent = self.links.silent_for(node, Instant::now());
        let round_trip = self.tasks.transport().round_trip(node);
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
            speed_permille: self.pace.speed_permille(node, member),
            peak_flop_per_s: None,
            memory_used: self.memory_used(node, member),
            memory_planned: assignment
                .and_then(|(_, stage)| self.run_log.timings().memory_planned(stage)),
            memory: member.resources.memory,
            last_heard_ms: if node == self.facts.node {
                Some(0)
            } else {
                silent.map(|silent| silent.as_millis() as u64)
            },
            round_trip_us: round_trip.map(|trip| trip.as_micros() as u64),
            log_behind: None,
            road: match (node == self.facts.node, self.links.connected.path(node)) {
                (true, _) => MemberPath::Own,
                (false, Some(TransportPath::Quic)) => MemberPath::Quic,
                (false, Some(TransportPath::SameHost)) => MemberPath::SameHost,
                (false, None) => MemberPath::Down,
            },
            work: self.links.work_status().get(&node).copied(),
            disk: self.disks.status(node),
            scrub: self.disks.scrub_status(node),
        }
    }

    /// The memory of a member's process, if it is of the kind that the member offers.
    fn memory_used(&self, node: NodeId, member: &Member) -> Option<Bytes> {
        match member.resources.class {
            DeviceClass::Processors if node == self.facts.node => resident_memory(),
            DeviceClass::Processors => self.links.connected.resident(node),
            DeviceClass::Cuda(_) => None,
        }
    }

    /// Why a worker has no part in the job and will have none, if that is so.
    fn left_out(&self, member: &Member) -> Option<String> {
        let state = self.state();
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
        let state = self.state();
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
            flop_per_token: self.flop_per_token(),
            eta_s: self.run_log.time_left(sealed).map(|left| left.as_secs_f64()),
            digest: newest.and_then(|version| RunCatalog::of(state).state_digest(version)),
            digest_step: newest.map(|version| version.0),
            saving: state.pending().last().map(|pending| SavingStatus {
                step: pending.version.0,
                layers_durable: pending.layers.len() as u32,
                layers: job.spec.layer_count(),
            }),
        })
    }

    fn flop_per_token(&self) -> Option<f64> {
        Some(self.run_log.job()?.job.config.flop_per_token())
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
                    let reason = self.waits_for(&standing);
                    JobPhaseStatus::Waiting { reason }
                }
            }
        }
    }

    /// What a run waits for: awaited members with their activities, and behind them others that have
    /// one.
    fn waits_for(&self, standing: &TrainingStatus) -> String {
        let work = self.links.work_status();
        let activity = |node| work.get(&node).and_then(|work| work.activity);
        let describe = |node| {
            let name = name_of(self.state(), node);
            activity(node).map_or_else(|| name.clone(), |activity| format!("{name} ({activity})"))
        };
        let is_awaited = |node| standing.awaited().iter().any(|awaited| awaited.node == node);
        let others = work.keys().copied().filter(|node| !is_awaited(*node));
        let active = others.filter_map(|node| Some((node, activity(node)?)));
        let text = |(node, activity)| format!("; {} {activity}", name_of(self.state(), node));
        let others: String = active.take(ACTIVITIES_SHOWN).map(text).collect();
        format!("{}{others}", DescribedStatus { status: standing, describe: &describe })
    }

    fn plan_status(&self) -> Option<PlanStatus> {
        let plan = self.state().plan()?;
        let record = &plan.record;
        let standing = self.core.training_status();
        let is_smooth = matches!(standing, TrainingStatus::Running { withheld: None, .. });
        let waits_for = (!is_smooth).then(|| self.waits_for(&standing));
        Some(PlanStatus {
            generation: record.generation.0,
            stages: record.cells().map(|holder| holder.node).collect(),
            replicas: record.program.placement.column_count(),
            schedule: record.program.kind.name().to_owned(),
            window: window_number(record.window()),
            bubble_planned: self.run_log.timings().bubble_planned(),
            bubble_measured: self.run_log.bubble(),
            from_step: record.from_step.0,
            reason: record.reason.with_names(|node| name_of(self.state(), node)),
            waits_for,
        })
    }

    fn promise(&self) -> Option<PromiseStatus> {
        let state = self.state();
        Some(promise_status(&state.plan()?.record, state.job()?.spec.copies))
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let refusals = self.core.refusals().iter();
        let mut counters: BTreeMap<String, u64> =
            refusals.map(|(name, count)| (format!("refused_{name}"), *count)).collect();
        let lanes = self.tasks.transport().counters();
        counters.insert("control_dropped".to_owned(), lanes.control.dropped_queue_full);
        counters.insert("strangers_refused".to_owned(), lanes.accept.refused);
        counters.insert("uptime_s".to_owned(), self.facts.started.elapsed().as_secs());
        counters.insert("rewinds".to_owned(), self.state().training().seals().rewinds());
        counters
    }
}

/// Where a member is reached.
pub(super) fn addresses_of(state: &State, node: NodeId) -> Vec<String> {
    let member = state.members().get(&node);
    member.map_or_else(Vec::new, |member| member.contact.addresses.clone())
}

/// Where controllers are reached.
pub(super) fn controller_addresses(state: &State) -> Vec<String> {
    state.controllers().flat_map(|node| addresses_of(state, node)).collect()
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

/// The format that the log has agreed on, and the nodes with programs that hold a newer one back.
fn format_status(core: &Core) -> FormatStatus {
    let mut held_back_by: Vec<_> = core.holding_format_back().collect();
    held_back_by.sort_unstable();
    held_back_by.dedup();
    FormatStatus { agreed: core.state().format().number(), held_back_by }
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn layers_are_reported_as_ranges() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[4]), "4");
        assert_eq!(ranges(&[0, 1, 2, 3]), "0-3");
        assert_eq!(ranges(&[0, 1, 6, 9, 10]), "0-1, 6, 9-10");
    }
}
