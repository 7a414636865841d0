//! The process of a controller: the core, its log, the solver, the lanes, and requests.
//!
//! ```text
//!   wait ──▶ translate ──▶ core.handle ──▶ perform outputs ──▶ wait
//! ```

mod answers;
mod authority;
mod backfill;
mod checkpoints;
mod data;
mod exports;
mod formats;
mod joins;
mod member_disks;
mod pace_tracker;
mod parts;
mod pending_commands;
mod pieces;
mod runs;
mod status;
mod uploads;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use zbelastic_consensus::core::{Core, Event as CoreEvent, Input, Output};
use zbelastic_consensus::message::{Envelope, Message};
use zbelastic_consensus::state::StateChange;
use zbelastic_consensus::training_status::TrainingStatus;
use zbelastic_planner::PaceTracker;
use zbelastic_policy::trust::{
    ClaimContext, ClaimRefusal, DuplicateIdentityReports, check_claim, is_removal,
};
use zbelastic_transport::identity::{AuthoritySecret, ClusterAuthority};
use zbelastic_transport::{ControlKind, PeerIdentity, PeerRole, Transport, TransportEvent};
use zbelastic_types::{NodeId, Step};

use super::activity::WorkCounter;
use super::blob_registry::BlobRegistry;
use super::checkpoint_thread::CheckpointThread;
use super::disk_space::DiskSpace;
use super::document::JobDocument;
use super::journal::{Journal, now_ms};
use super::keep_queue::KeepQueue;
use super::peer_directory::PeerDirectory;
use super::process_exit::{NodeSignal, ProcessExit};
use super::record_writer::{RecordWriteReport, RecordWriter};
use super::run_log::RunLog;
use super::solver::{SolvedPlan, SolverAnswer, SolverThread};
use super::tick::TICK;
use super::violations::PeerViolations;
use super::wire::{self, BulkKey, NodeMessage};
use crate::api::{EventKind, WorkStatus};
pub use parts::{ControllerInbox, ControllerParts, ControllerSetup};

/// Results of fetches and of work off the loop that wait for it at once.
const COMPLETIONS_MAX: usize = 1024;
/// Without a leader for so long, the loss of the quorum is reported as an event.
const LEADERLESS_TICKS_MAX: u32 = 200;

/// The result of work that was done beside the event loop.
enum ControllerCompletion {
    /// A piece of a checkpoint, to be kept for another node.
    Piece(pieces::PieceFetchResult),
    /// The result of fetching a text.
    Data(data::DataFetchResult),
    /// The result of fetching pieces of runs that ended.
    Backfilled(backfill::BackfillResult),
    /// The result of writing a piece of an upload.
    Uploaded(uploads::UploadWriteResult),
    /// The free and total space on the store's disk, if it is known.
    DiskSpace(Option<DiskSpace>),
    /// The administrator's certificate could not be renewed, and why.
    AdminNotRenewed(String),
    /// The key of the authority that follows, or why it did not arrive.
    AuthorityKey(Result<AuthoritySecret, String>),
}

struct ControllerNode {
    setup: ControllerSetup,
    core: Core,
    record_writer: RecordWriter,
    solver: SolverThread,
    authority: Arc<ClusterAuthority>,
    /// This controller's part of a change of authority.
    rotation_state: authority::LocalRotationState,
    transport: Transport,
    checkpoint_thread: CheckpointThread,
    peers: PeerDirectory,
    journal: Journal,
    /// Connections that ended because one end broke a rule.
    violations: PeerViolations,
    accusers: DuplicateIdentityReports,
    run_log: RunLog,
    /// The measured pace of nodes and links.
    pace_tracker: PaceTracker,
    /// Commands of clients that wait for what was proposed for them.
    pending_commands: pending_commands::PendingCommands,
    /// Strangers that wait for the use of their token to be agreed.
    pending_joins: joins::PendingJoins,
    /// Pieces to be kept for workers, and the bytes of them that arrived.
    keeping: KeepQueue,
    kept_bytes: WorkCounter,
    /// The last checkpoint that was warned of, and whether a layer of it could be written nowhere.
    save_failed: Option<(Step, bool)>,
    /// The layers that clients export, read from the store.
    exports: exports::Exports,
    /// Fetches the pieces of runs that ended.
    backfill: backfill::BackfillSchedule,
    /// Texts that are being uploaded.
    uploads: uploads::Uploads,
    completions: mpsc::Sender<ControllerCompletion>,
    /// When a message was last received from each member.
    last_received: BTreeMap<NodeId, Instant>,
    /// The path of the connection to each node, as it was reported last.
    lane_paths: BTreeMap<NodeId, zbelastic_transport::TransportPath>,
    /// What workers reported last of their work, while they are connected.
    work_status: BTreeMap<NodeId, WorkStatus>,
    member_disks: member_disks::MemberDisks,
    leaderless: bool,
    started: Instant,
    exit: Option<ProcessExit>,
}

/// Runs a controller until it ends.
pub async fn run(
    setup: ControllerSetup,
    parts: ControllerParts,
    mut inbox: ControllerInbox,
) -> ProcessExit {
    let (completions, mut completed) = mpsc::channel(COMPLETIONS_MAX);
    let mut controller = ControllerNode::new(setup, parts, completions);
    controller.begin();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while controller.exit.is_none() {
        tokio::select! {
            biased;
            // First, so that a flood of anything else does not stop the clock.
            _ = ticks.tick() => controller.handle_tick(),
            Some(report) = inbox.write_reports.recv() => controller.handle_write_report(report),
            Some(event) = inbox.events.next() => controller.handle_event(event),
            Some(answer) = inbox.solver_answers.recv() => controller.handle_solver(answer),
            Some(completion) = completed.recv() => controller.handle_completion(completion),
            Some(event) = inbox.store_events.recv() => controller.handle_store_event(event),
            Some(signal) = inbox.signals.recv() => controller.handle_signal(signal),
        }
        controller.perform();
    }
    controller.transport.close().await;
    controller.exit.expect("looked at above")
}

fn serve_bodies(transport: &Transport, checkpoint_thread: &CheckpointThread) {
    let stored = checkpoint_thread.clone();
    let registry = BlobRegistry::new(Box::new(move |key| stored.find(key)));
    transport.set_bulk_source(Box::new(move |_, key| {
        let key: BulkKey = wire::decode(key).ok()?;
        registry.find(&key)
    }));
}

impl ControllerNode {
    fn new(
        setup: ControllerSetup,
        parts: ControllerParts,
        completions: mpsc::Sender<ControllerCompletion>,
    ) -> Self {
        let ControllerParts {
            core,
            record_writer,
            solver,
            authority,
            transport,
            checkpoint_thread,
            journal,
        } = parts;
        let peers = PeerDirectory::new(setup.node, setup.controllers.clone());
        Self {
            setup,
            core,
            record_writer,
            solver,
            authority,
            rotation_state: authority::LocalRotationState::default(),
            transport,
            checkpoint_thread,
            peers,
            journal,
            violations: PeerViolations::default(),
            accusers: DuplicateIdentityReports::default(),
            run_log: RunLog::default(),
            pace_tracker: PaceTracker::default(),
            pending_commands: pending_commands::PendingCommands::default(),
            pending_joins: joins::PendingJoins::default(),
            keeping: KeepQueue::default(),
            kept_bytes: WorkCounter::default(),
            save_failed: None,
            exports: exports::Exports::default(),
            backfill: backfill::BackfillSchedule::default(),
            uploads: uploads::Uploads::default(),
            completions,
            last_received: BTreeMap::new(),
            lane_paths: BTreeMap::new(),
            work_status: BTreeMap::new(),
            member_disks: member_disks::MemberDisks::default(),
            leaderless: false,
            started: Instant::now(),
            exit: None,
        }
    }

    fn begin(&mut self) {
        serve_bodies(&self.transport, &self.checkpoint_thread);
        self.peers.begin(&self.transport);
        self.ban_revoked();
        let node = self.setup.node;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        self.journal.record(EventKind::Started { node, version });
        self.follow_job();
        self.perform();
    }

    fn handle_write_report(&mut self, report: RecordWriteReport) {
        match report {
            RecordWriteReport::Durable(token) => self.core.on_persisted(token),
            RecordWriteReport::Failed(error) => {
                let message = format!("the log cannot be written: {error}");
                self.exit = Some(if error.is_full() {
                    ProcessExit::OutOfResource(message)
                } else {
                    ProcessExit::Lost(message)
                });
            }
        }
    }

    fn handle_event(&mut self, event: TransportEvent) {
        match event {
            TransportEvent::Up { peer, versions, path, .. } => {
                self.lane_paths.insert(peer.node, path);
                self.note_program(peer, versions);
                self.peers.note_up(peer.node);
            }
            TransportEvent::Down { peer, reason } => {
                let violation = self.violations.note_down(peer.node, reason, Instant::now());
                violation.into_iter().for_each(|kind| self.journal.record(kind));
                self.lane_paths.remove(&peer.node);
                self.peers.note_down(peer.node);
                self.work_status.remove(&peer.node);
                self.member_disks.note_down(peer.node);
                self.send_to_core(Input::Closed { node: peer.node });
                if is_removal(peer.role, reason) {
                    self.exit = Some(ProcessExit::Removed);
                }
            }
            TransportEvent::Control { from, bytes } => self.handle_control(from, &bytes),
            TransportEvent::Request { from, bytes, reply } => {
                self.handle_request(from, &bytes, reply);
            }
            TransportEvent::Join { attempt, reply, .. } => self.handle_join(attempt, reply),
            TransportEvent::DuplicateIdentity { reported_by } => {
                let role = self.peers.role(reported_by);
                let workers = self.peers.roster().workers_up();
                if self.accusers.record(reported_by, role, workers) {
                    self.exit = Some(ProcessExit::Duplicate { reported_by });
                }
            }
            TransportEvent::DialFailed { node, address, problem } => {
                match ProcessExit::of_refusal(node, self.peers.role(node), &problem) {
                    Some(exit) => self.exit = Some(exit),
                    None => {
                        let message = format!("node {node} is not reached at {address}: {problem}");
                        self.journal.log(message);
                    }
                }
            }
            TransportEvent::Strangers { count, last, reason: why } => {
                self.journal.log(format!(
                    "{count} connections of strangers refused, the last from {last}: {why}"
                ));
            }
        }
    }

    fn handle_control(&mut self, from: PeerIdentity, bytes: &Bytes) {
        let Some((kind, body)) = bytes.split_first() else { return };
        self.last_received.insert(from.node, Instant::now());
        match ControlKind::of(*kind) {
            Some(kind @ (ControlKind::Raft | ControlKind::Member)) => {
                let Ok(envelope) = Envelope::decode(body) else { return };
                let is_raft = matches!(envelope.message, Message::Raft(_));
                if is_raft == (kind == ControlKind::Raft) {
                    let message = Box::new(envelope);
                    self.send_to_core(Input::Message { from: from.node, message });
                }
            }
            Some(ControlKind::Blob) => {
                if let Ok(message) = wire::decode(body) {
                    self.handle_node_message(from, message);
                }
            }
            None => {}
        }
    }

    /// Whether what a message claims counts, if it makes a claim.
    fn check_message(&self, from: PeerIdentity, message: &NodeMessage) -> Result<(), ClaimRefusal> {
        let Some(claim) = message.claim() else { return Ok(()) };
        let job = self.run_log.job().map(|job| &job.job);
        let data: Vec<_> = job.map_or_else(Vec::new, JobDocument::data);
        let context = ClaimContext {
            own: PeerRole::Controller,
            plan: self.core.state().plan().map(|plan| &*plan.record),
            had_head: self.run_log.had_head(from.node),
            job_data: &data,
        };
        check_claim((from.node, from.role), claim, context)
    }

    fn handle_node_message(&mut self, from: PeerIdentity, message: NodeMessage) {
        if self.check_message(from, &message).is_err() {
            return;
        }
        match message {
            NodeMessage::Keep(piece) => self.keep_for(from.node, piece),
            NodeMessage::Collect(referred) => self.collect_local(referred),
            NodeMessage::Took { generation, stage, span_us, busy_us, waited_us, slices } => {
                self.run_log.note_stage_time((generation, stage), (span_us, busy_us), waited_us);
                self.run_log.note_stage_slices((generation, stage), slices);
            }
            NodeMessage::LayersTook { turn, stage, times } => {
                self.run_log.note_layers((turn, stage), *times);
            }
            NodeMessage::Arrived { generation, stage, arrivals } => {
                self.run_log.note_arrivals((generation, stage), &arrivals);
            }
            NodeMessage::Moved { plan, bytes, took_us } => {
                let duration = Duration::from_micros(took_us);
                self.run_log.layer_moves.note(plan, bytes, duration, Instant::now());
            }
            NodeMessage::Evaluated { steps_done, loss } => {
                self.note_held_out(steps_done, loss);
            }
            NodeMessage::KeepData(name) => self.fetch(name, vec![from.node]),
            NodeMessage::Working { done, activity } => {
                if self.core.state().live_workers().any(|(holder, _)| holder.node == from.node) {
                    self.work_status.insert(from.node, WorkStatus { done, activity });
                }
            }
            NodeMessage::Room { room, low } => self.note_member_disk(from.node, room, low),
            NodeMessage::SaveFailed(failed) => self.note_save_failed(from.node, failed),
            NodeMessage::Authority(report) => self.note_authority(from.node, report),
            NodeMessage::Layer(_)
            | NodeMessage::Kept(_)
            | NodeMessage::NotKept(_)
            | NodeMessage::Keeping(_)
            | NodeMessage::Exporting => {}
        }
    }

    fn handle_solver(&mut self, answer: SolverAnswer) {
        match answer {
            SolverAnswer::Solved(SolvedPlan { number, solution }) => {
                self.send_to_core(Input::Solved { number, solution: Box::new(solution) });
            }
            SolverAnswer::Reviewed(reviewed) => self.handle_review(*reviewed),
        }
    }

    fn handle_completion(&mut self, completion: ControllerCompletion) {
        match completion {
            ControllerCompletion::Piece(piece) => self.handle_piece(piece),
            ControllerCompletion::Data(data) => self.handle_data(data),
            ControllerCompletion::Backfilled(result) => self.handle_backfill(result),
            ControllerCompletion::Uploaded(upload) => self.handle_upload_write(upload),
            ControllerCompletion::DiskSpace(found) => self.handle_disk_space(found),
            ControllerCompletion::AdminNotRenewed(reason) => {
                self.journal
                    .warn(format!("the administrator's certificate is not renewed: {reason}"));
            }
            ControllerCompletion::AuthorityKey(secret) => self.handle_authority_key(secret),
        }
    }

    fn handle_signal(&mut self, signal: NodeSignal) {
        // A controller has nothing to hand over but its vote; a leader transfers leadership.
        self.exit = Some(match signal {
            NodeSignal::Drain(cause) => ProcessExit::Drained(cause),
            NodeSignal::Now => ProcessExit::Left,
        });
    }

    fn handle_tick(&mut self) {
        self.send_to_core(Input::Tick);
        self.pending_joins.handle_tick();
        self.report_piece_progress();
        self.report_exports();
        self.solver.handle_tick();
        self.follow_rotation();
        self.renew_own_if_due();
        self.expire_commands();
        self.check_quorum();
        self.send_estimate();
        self.backfill_ended_runs();
        self.check_disk_space();
        let state = self.core.state();
        let is_new = !self.peers.is_current(state.membership().contacts_index());
        let contacts = is_new.then(|| state.membership().contacts());
        let controllers = self.peers.follow(&self.transport, contacts.as_ref());
        for node in self.peers.poll_banned() {
            self.journal.log(format!("node {node} was removed: no connection of it is accepted"));
        }
        if let Some(controllers) = controllers {
            self.setup.node_record.save_controllers(&self.setup.writer, controllers);
        }
    }

    fn check_quorum(&mut self) {
        let is_lost = matches!(
            self.core.training_status(),
            TrainingStatus::NoQuorum { ticks } if ticks >= LEADERLESS_TICKS_MAX
        );
        if is_lost != self.leaderless {
            self.leaderless = is_lost;
            let kind = if is_lost { EventKind::QuorumLost } else { EventKind::QuorumHeld };
            self.journal.record(kind);
        }
    }

    fn send_to_core(&mut self, input: Input) {
        // What does not belong is counted by the core, and changes nothing.
        let _ = self.core.handle(input);
    }

    fn send_node(&self, to: NodeId, message: &NodeMessage) {
        let mut bytes = vec![ControlKind::Blob.byte()];
        bytes.extend(wire::encode(message));
        self.transport.send(to, bytes.into());
    }

    /// Performs the core's outputs, until it has none left.
    fn perform(&mut self) {
        while let Some(output) = self.core.poll_output() {
            match output {
                Output::Send { to, message } => self.send(to, &message),
                Output::Persist { token, records } => {
                    if let Err(error) = self.record_writer.persist(token, records) {
                        self.exit = Some(ProcessExit::Lost(error.to_string()));
                    }
                }
                Output::Trim { before } => {
                    // Records that stay longer than needed cost space only.
                    let _ = self.record_writer.trim(before);
                }
                Output::Solve(request) => self.solver.request(request),
                Output::Event(event) => self.handle_core_event(event),
                Output::Fatal(cause) => self.exit = Some(ProcessExit::of_fatal(&cause)),
            }
        }
    }

    fn send(&self, to: NodeId, envelope: &Envelope) {
        let is_raft = matches!(envelope.message, Message::Raft(_));
        let kind = if is_raft { ControlKind::Raft } else { ControlKind::Member };
        let mut bytes = vec![kind.byte()];
        bytes.extend(envelope.encode());
        self.transport.send(to, bytes.into());
    }

    fn handle_core_event(&mut self, event: CoreEvent) {
        match event {
            CoreEvent::Applied { index, change } => self.handle_change(index, &change),
            CoreEvent::Refused { index, entry, refusal } => {
                self.journal.log(format!("entry {index} ({entry}) changed nothing: {refusal}"));
                self.refuse_join(index, &refusal);
                self.answer_command(index, Err(refusal));
            }
            CoreEvent::NoPlan(none) => self.journal.warn(format!("no plan: {none}")),
            CoreEvent::Installed { .. } => {
                self.backfill.request();
                self.follow_job();
                self.ban_revoked();
            }
            CoreEvent::Leader { leader, term } => {
                self.journal.record(EventKind::Leader { node: leader, term });
            }
        }
    }

    fn handle_change(&mut self, index: u64, change: &StateChange) {
        if let StateChange::Job { .. } = change {
            self.follow_job();
        }
        let now = (Instant::now(), now_ms());
        for kind in self.run_log.note_change(change, self.core.state(), now) {
            let kind = self.with_digest(kind);
            self.journal.record(kind);
        }
        self.note_pace(change);
        match change {
            StateChange::Checkpoint { version, .. } => {
                self.note_checkpoint(*version);
                self.backfill.request();
            }
            StateChange::Removed { run } => {
                self.journal.log(format!("run {run} is removed"));
                self.collect_unused();
            }
            StateChange::Job { .. } => {
                self.collect_unused();
                self.backfill.request();
            }
            StateChange::Access(outcome) => self.note_access(outcome),
            StateChange::Members(_) | StateChange::Format(_) => self.ban_revoked(),
            StateChange::Adopted(_)
            | StateChange::Planned(_)
            | StateChange::Ready(_)
            | StateChange::Resumed(_)
            | StateChange::Sealed { .. }
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Rewound { .. } => {}
        }
        self.answer_command(index, Ok(()));
    }

    /// Bans revoked nodes, and programs that do not read the log, whenever this one learned of
    /// it.
    fn ban_revoked(&self) {
        self.require_format();
        self.core.state().access().revoked().for_each(|node| self.transport.ban(node));
    }

    fn follow_job(&mut self) {
        let Some(spec) = self.core.state().job().map(|job| job.spec.clone()) else { return };
        match JobDocument::of_job(&spec) {
            Ok(job) => {
                self.ensure_data(&job.job);
                self.use_store(&job.job);
                self.pace_tracker.set_job(job.name);
                self.send_estimate();
                self.run_log.set_job(job);
            }
            Err(error) => self.journal.warn(error.to_string()),
        }
    }

    /// Whether this node leads and has applied all that was agreed before.
    fn leads(&self) -> bool {
        self.core.status().leads_applied
    }
}

/// How long a command waits to be decided before it is answered that there is no quorum.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);
