//! The process of a controller: the core, its log, the solver, the lanes, and requests.
//!
//! ```text
//!   wait ──▶ translate ──▶ core.handle ──▶ perform outputs ──▶ wait
//! ```
//!
//! The event loop dispatches to components: each owns its fields, decides about them, and writes to
//! the ports ([`ports::ControllerPorts`]) the messages, proposals, log lines and work beside the
//! loop.

mod answers;
mod applied;
mod authority;
mod authority_files;
mod backfill;
mod certificates;
mod checkpoints;
mod command_answer;
mod data;
mod drain;
mod exports;
mod joins;
mod links;
mod member_disks;
mod parts;
mod pieces;
mod planning;
mod ports;
mod refusals;
mod run_listing;
mod runs;
mod status;
mod submission;
mod tokens;
mod uploads;

use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use zbelastic_consensus::core::{Input, Output};
use zbelastic_consensus::duty::Duties;
use zbelastic_consensus::message::{Envelope, Message};
use zbelastic_identity::{PeerIdentity, PeerRole};
use zbelastic_machine::resident_memory;
use zbelastic_policy::pending_commands::{PendingCommands, WaitingCommands};
use zbelastic_policy::quorum_watch::{QuorumChange, QuorumWatch};
use zbelastic_policy::trust::{ClaimContext, ClaimRefusal, check_claim, connection_end};
use zbelastic_transport::{ControlKind, RequestReply, Transport, TransportEvent};
use zbelastic_types::NodeId;
use zbelastic_wire::document::JobDocument;
use zbelastic_wire::{self as wire, NodeMessage};

use super::background::BackgroundTasks;
use super::blob_registry::BlobRegistry;
use super::checkpoint_thread::CheckpointThread;
use super::disk_space::{DiskSpace, DiskSpaceShortage, MemberDiskChange, NodeDisks};
use super::outbox::send_control;
use super::peer_connections::PeerConnections;
use super::peer_directory::PeerDirectory;
use super::process_exit::{NodeSignal, ProcessExit};
use super::record_writer::{RecordWriteReport, RecordWriter};
use super::run_log::RunLog;
use super::solver::{SolvedPlan, SolverAnswer};
use authority::AuthorityRotation;
use certificates::ControllerCertificates;
use checkpoints::TraceText;
use command_answer::CommandAnswer;
use drain::DrainWait;
use exports::Exports;
use joins::PendingJoins;
use links::MemberLinks;
use member_disks::MemberDisks;
pub use parts::{ControllerInbox, ControllerParts, ControllerSetup};
use pieces::{CheckpointPieces, collect_local, collect_on_return, collect_unused, note_store};
use planning::Planning;
use ports::{ControllerCompletion, ControllerPorts};
use status::{ControllerFacts, StatusView};
use uploads::Uploads;
use zbelastic_api::{ApiRequest, EventKind, WorkStatus};
use zbelastic_node_folder::stores::StoreLocations;
use zbelastic_policy::backfill_schedule::BackfillSchedule;
use zbelastic_policy::formats::read_by;
use zbelastic_policy::tick::TICK;

/// Results of fetches and of work off the loop that wait for it at once.
const COMPLETIONS_MAX: usize = 1024;

struct ControllerNode {
    facts: ControllerFacts,
    ports: ControllerPorts,
    record_writer: RecordWriter,
    /// Where checkpoints are kept.
    store_locations: StoreLocations,
    connections: PeerConnections,
    links: MemberLinks,
    quorum: QuorumWatch,
    run_log: RunLog,
    /// The thread that searches plans, and the measured pace of nodes and links.
    planning: Planning,
    certificates: ControllerCertificates,
    /// This controller's part in a change of authority.
    rotation: AuthorityRotation,
    /// Strangers that wait for the use of their token to be agreed.
    joins: PendingJoins,
    /// Commands of clients that wait for the entries proposed for them.
    commands: PendingCommands<RequestReply, CommandAnswer>,
    /// Commands of clients that wait for a leader.
    leaderless: WaitingCommands<(ApiRequest, RequestReply)>,
    /// Runs that wait until copies of their data are compared.
    uncompared: WaitingCommands<(submission::SubmittedRun, RequestReply)>,
    pieces: CheckpointPieces,
    /// The layers that clients export, read from the store.
    exports: Exports,
    trace: TraceText,
    /// Fetches the pieces of runs that ended.
    backfill: BackfillSchedule,
    /// Texts that are being uploaded.
    uploads: Uploads,
    disks: MemberDisks,
    drain: DrainWait,
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
            Some(event) = inbox.store_events.recv() => {
                note_store(event, (&mut controller.ports, &mut controller.backfill));
            }
            Some(signal) = inbox.signals.recv() => controller.handle_signal(signal),
        }
        controller.perform();
    }
    controller.ports.tasks.transport().close().await;
    controller.exit.expect("looked at above")
}

fn serve_bodies(transport: &Transport, checkpoint_thread: &CheckpointThread) {
    let stored = checkpoint_thread.clone();
    BlobRegistry::new(Box::new(move |key| stored.find(key))).serve(transport);
}

impl ControllerNode {
    fn new(
        setup: ControllerSetup,
        parts: ControllerParts,
        completions: mpsc::Sender<ControllerCompletion>,
    ) -> Self {
        let ControllerParts { core, authority, transport, checkpoint_thread, journal, .. } = parts;
        let me = setup.node;
        serve_bodies(&transport, &checkpoint_thread);
        let directory = PeerDirectory::new(me, setup.node_record.controller_addresses());
        let record = (setup.node_record, setup.writer);
        let connections = PeerConnections::begin(directory, record, &transport);
        let folder = setup.store_locations.folder().clone();
        let tasks = BackgroundTasks::new(transport, checkpoint_thread, completions);
        Self {
            facts: ControllerFacts {
                node: me,
                cluster_name: setup.cluster_name,
                founded_ms: setup.founded_ms,
                started: Instant::now(),
            },
            ports: ControllerPorts::new((me, core), journal, tasks),
            record_writer: parts.record_writer,
            store_locations: setup.store_locations,
            connections,
            links: MemberLinks::default(),
            quorum: QuorumWatch::default(),
            run_log: RunLog::default(),
            planning: Planning::new(parts.solver),
            certificates: ControllerCertificates::new((me, folder), authority, setup.credentials),
            rotation: AuthorityRotation::default(),
            joins: PendingJoins::default(),
            commands: PendingCommands::default(),
            leaderless: WaitingCommands::default(),
            uncompared: WaitingCommands::default(),
            pieces: CheckpointPieces::default(),
            exports: Exports::default(),
            trace: TraceText::default(),
            backfill: BackfillSchedule::default(),
            uploads: Uploads::default(),
            disks: MemberDisks::default(),
            drain: DrainWait::default(),
            exit: None,
        }
    }

    fn begin(&mut self) {
        self.ban_revoked();
        let node = self.ports.me;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        self.ports.journal.continue_log(self.ports.core.status().last_index);
        self.ports.journal.record(EventKind::Started { node, version });
        self.follow_job();
        self.perform();
    }

    /// The values that status and refusals are made of.
    fn view(&self) -> StatusView<'_> {
        StatusView {
            facts: &self.facts,
            core: &self.ports.core,
            tasks: &self.ports.tasks,
            run_log: &self.run_log,
            pace: self.planning.tracker(),
            links: &self.links,
            disks: &self.disks,
            commit_times: &self.ports.commit_times,
        }
    }

    fn handle_write_report(&mut self, report: RecordWriteReport) {
        match report {
            RecordWriteReport::Durable(token) => self.ports.core.on_persisted(token),
            RecordWriteReport::Failed(error) => {
                self.exit = Some(if error.is_full() {
                    ProcessExit::LogFull
                } else {
                    ProcessExit::Lost(format!("the log cannot be written: {error}"))
                });
            }
        }
    }

    fn handle_event(&mut self, event: TransportEvent) {
        match event {
            TransportEvent::Up { peer, versions, path, .. } => {
                self.links.note_up(peer.node, path);
                let reads = read_by(versions);
                self.send_to_core(Input::Connected { node: peer.node, reads });
                self.connections.note_up(peer.node);
                collect_on_return(&peer, &mut self.ports);
                if let Some(founding) = self.facts.founding()
                    && peer.role == PeerRole::Controller
                {
                    self.ports.outbox.send(peer.node, founding);
                }
            }
            TransportEvent::Down { peer, reason } => {
                let exit = self.connections.note_down(peer, reason, &mut self.ports.journal);
                self.links.note_down(peer.node);
                self.disks.note_down(peer.node);
                self.send_to_core(Input::Closed { node: peer.node, end: connection_end(reason) });
                ProcessExit::put(&mut self.exit, exit);
            }
            TransportEvent::Control { from, bytes } => self.handle_control(from, &bytes),
            TransportEvent::Request { from, bytes, reply } => {
                self.handle_request(from, &bytes, reply);
            }
            TransportEvent::Join { attempt, reply, .. } => self.joins.handle_join(
                (attempt, reply),
                (&mut self.ports, self.connections.directory()),
                &self.certificates,
            ),
            TransportEvent::DuplicateIdentity { reported_by } => {
                let exit = self.connections.note_duplicate(reported_by);
                ProcessExit::put(&mut self.exit, exit);
            }
            TransportEvent::DialFailed { node, address, problem } => {
                let failed = (address, &problem);
                let journal = &mut self.ports.journal;
                let exit = self.connections.note_dial_failed(node, failed, journal);
                ProcessExit::put(&mut self.exit, exit);
            }
            TransportEvent::Strangers { count, last, reason: why } => {
                self.ports.journal.log(format!(
                    "{count} connections of strangers refused, the last from {last}: {why}"
                ));
            }
        }
    }

    fn handle_control(&mut self, from: PeerIdentity, bytes: &Bytes) {
        let Some((kind, body)) = bytes.split_first() else { return };
        self.links.note_received(from.node, Instant::now());
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

    /// Whether the claim of a message counts, if it makes one.
    fn check_message(&self, from: PeerIdentity, message: &NodeMessage) -> Result<(), ClaimRefusal> {
        let Some(claim) = message.claim() else { return Ok(()) };
        let job = self.run_log.job().map(|job| &job.job);
        let data: Vec<_> = job.map_or_else(Vec::new, JobDocument::data);
        let context = ClaimContext {
            own: PeerRole::Controller,
            plan: self.ports.core.state().plan().map(|plan| &*plan.record),
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
            NodeMessage::Keep(piece) => {
                self.pieces.keep_for(from.node, piece, (&mut self.ports, &self.run_log));
            }
            NodeMessage::Collect(referred) => collect_local(referred, &mut self.ports),
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
                self.run_log.note_moved(plan, bytes, duration, Instant::now());
            }
            NodeMessage::CopiedAhead { plan, bytes, took_us, ago_us } => {
                let now = Instant::now();
                let arrived_at = now.checked_sub(Duration::from_micros(ago_us)).unwrap_or(now);
                let duration = Duration::from_micros(took_us);
                self.run_log.note_moved(plan, bytes, duration, arrived_at);
            }
            NodeMessage::Evaluated { steps_done, loss } => {
                let event = self.run_log.note_held_out(steps_done, loss);
                event.into_iter().for_each(|kind| self.ports.journal.record(kind));
            }
            NodeMessage::KeepData(name) => {
                data::fetch_data_of(name, vec![from.node], &mut self.ports);
            }
            NodeMessage::Working { done, activity } => {
                let mut workers = self.ports.state().live_workers();
                if workers.any(|(holder, _)| holder.node == from.node) {
                    self.links.note_work(from.node, WorkStatus { done, activity });
                }
            }
            NodeMessage::Room { room, low } => self.note_member_disk(from.node, (room, low)),
            NodeMessage::Scrubbed(report) => {
                if self.ports.state().members().contains_key(&from.node) {
                    self.disks.note_scrubbed(from.node, report);
                }
            }
            NodeMessage::Peak { flop_per_s } => {
                self.links.connected.note_peak(from.node, flop_per_s)
            }
            NodeMessage::MachinePeak { flop_per_s } => {
                self.links.connected.note_machine_peak(from.node, flop_per_s);
            }
            NodeMessage::Resident(memory) => self.links.connected.note_resident(from.node, memory),
            NodeMessage::Draining(cause) => self.links.connected.note_drain(from.node, cause),
            NodeMessage::SaveFailed(failed) => {
                self.pieces.note_save_failed(from.node, failed, &mut self.ports);
                if failed.copies == 0 {
                    self.note_space(Input::CheckpointUnplaced { version: failed.version });
                }
            }
            NodeMessage::Authority(report) => {
                let members = self.ports.core.state().members();
                self.rotation.note_report(from.node, report, members);
            }
            NodeMessage::Founding { cluster_name, founded_ms } => {
                if self.facts.note_founding(&cluster_name, founded_ms) {
                    self.connections.save_founding((cluster_name, founded_ms));
                }
            }
            NodeMessage::Layer(_)
            | NodeMessage::Kept(_)
            | NodeMessage::NotKept(_)
            | NodeMessage::Keeping(_)
            | NodeMessage::KeepingLeft { .. }
            | NodeMessage::Exporting => {}
        }
    }

    fn handle_solver(&mut self, answer: SolverAnswer) {
        match answer {
            SolverAnswer::Solved(solved) => {
                let SolvedPlan { number, solution, choice } = *solved;
                if let Some(choice) = choice {
                    self.ports.journal.log(choice.to_string());
                }
                self.send_to_core(Input::Solved { number, solution: Box::new(solution) });
            }
            SolverAnswer::Reviewed(reviewed) => {
                self.planning.handle_review(*reviewed, &mut self.ports);
            }
        }
    }

    fn handle_completion(&mut self, completion: ControllerCompletion) {
        match completion {
            ControllerCompletion::Piece(piece) => {
                self.pieces.handle_fetched(piece, &mut self.ports);
            }
            ControllerCompletion::Data(data) => data.apply(&mut self.ports),
            ControllerCompletion::Backfilled(result) => {
                backfill::handle_result(&mut self.backfill, result, &mut self.ports.journal);
            }
            ControllerCompletion::Uploaded(upload) => self.handle_upload_write(upload),
            ControllerCompletion::Disks(found) => self.handle_disks(found),
            ControllerCompletion::Credentials(written) => {
                let ControllerPorts { tasks, journal, .. } = &mut self.ports;
                self.certificates.handle_written(*written, (tasks, journal));
            }
            ControllerCompletion::AdminRenewal(result) => {
                let ControllerPorts { tasks, journal, .. } = &mut self.ports;
                self.certificates.handle_admin_renewal(result, tasks, journal);
            }
            ControllerCompletion::AuthorityFiles(result) => {
                let (ports, certificates) = (&mut self.ports, &mut self.certificates);
                if let Some(made) = self.rotation.handle_files(result, ports, certificates) {
                    self.announce_authority(made);
                }
            }
        }
    }

    /// The own disks were measured: the other controllers are sent the free space.
    fn handle_disks(&mut self, found: NodeDisks) {
        let checkpoint = self.run_log.checkpoint_bytes();
        let Some((room, low)) = self.disks.note_measured(found, checkpoint) else { return };
        self.note_member_disk(self.ports.me, (room, low));
        let others = self.ports.other_controllers();
        let report = self.ports.tasks.checkpoint_thread().scrub_report();
        self.disks.note_scrubbed(self.ports.me, report);
        self.ports.outbox.send_to_all(others.clone(), &NodeMessage::Room { room, low });
        self.ports.outbox.send_to_all(others.clone(), &NodeMessage::Scrubbed(report));
        if let Some(resident) = resident_memory() {
            self.ports.outbox.send_to_all(others, &NodeMessage::Resident(resident));
        }
    }

    /// A member reported the space on its disk. Each controller warns once, and the leader has
    /// removed pieces that are not referred to.
    fn note_member_disk(&mut self, node: NodeId, reported: (DiskSpace, Option<DiskSpaceShortage>)) {
        if !self.ports.state().members().contains_key(&node) {
            return;
        }
        match self.disks.note(node, reported) {
            Some(low @ MemberDiskChange::Low { .. }) => {
                self.ports.journal.warn(low.to_string());
                collect_unused(&mut self.ports);
            }
            Some(ample @ MemberDiskChange::Ample { .. }) => {
                self.ports.journal.log(ample.to_string());
                self.note_space(Input::DiskAmple);
            }
            None => {}
        }
        let controllers: Vec<NodeId> = self.ports.state().controllers().collect();
        if let Some(nodes) = self.disks.full_logs(&controllers)
            && self.ports.core.duties().is_some()
        {
            self.note_space(Input::LogsFull { nodes });
        }
    }

    /// Something found no space, or a disk has some: the leader logs that the run is held, or goes on.
    fn note_space(&mut self, input: Input) {
        let held = |ports: &ControllerPorts| ports.core.duties().and_then(Duties::held_for_space);
        let before = held(&self.ports);
        self.send_to_core(input);
        match held(&self.ports) {
            now if now == before => {}
            Some(held) => self.ports.journal.warn(held.to_string()),
            None => self.ports.journal.log("the run goes on: a disk has space".to_owned()),
        }
    }

    fn handle_signal(&mut self, signal: NodeSignal) {
        let exit = self.drain.note_signal(signal);
        ProcessExit::put(&mut self.exit, exit);
        self.follow_drain();
        if self.exit.is_none() {
            let text = "draining: stays until workers that drain are gone; a second signal ends it";
            self.ports.journal.log(text.to_owned());
        }
    }

    /// Exits on a signal once no worker that drains needs this controller.
    fn follow_drain(&mut self) {
        let mut drain = std::mem::take(&mut self.drain);
        let exit = drain.end(self.view());
        self.drain = drain;
        self.exit = self.exit.take().or(exit);
    }

    fn handle_tick(&mut self) {
        // Before the tick, which may apply entries that no event has reported yet.
        self.answer_waiting();
        self.send_to_core(Input::Tick);
        self.joins.handle_tick();
        self.pieces.handle_tick(&mut self.ports);
        if self.exports.handle_tick() {
            // Workers that evaluate wait for clients that read layers.
            let workers = self.ports.core.state().live_workers().map(|(holder, _)| holder.node);
            self.ports.outbox.send_to_all(workers, &NodeMessage::Exporting);
        }
        let roster = self.connections.roster();
        self.rotation.handle_tick(&mut self.ports, &mut self.certificates, roster);
        self.certificates.handle_tick(&self.ports.tasks, &mut self.ports.journal);
        let standing = self.ports.core.training_status();
        match self.quorum.note(&standing) {
            Some(QuorumChange::Lost) => {
                self.ports.journal.record(EventKind::QuorumLost);
                self.ports.journal.warn(standing.to_string());
            }
            Some(QuorumChange::Held) => self.ports.journal.record(EventKind::QuorumHeld),
            None => {}
        }
        self.planning.handle_tick(&mut self.ports.core);
        if backfill::handle_tick(&mut self.backfill, &self.ports) {
            collect_unused(&mut self.ports);
        }
        self.disks.handle_tick(&self.ports.tasks);
        self.follow_contacts();
        self.follow_drain();
    }

    /// Requests connections to the members that were agreed on, if they changed.
    fn follow_contacts(&mut self) {
        let state = self.ports.core.state();
        let is_new = !self.connections.directory().is_current(state.membership().contacts_index());
        let contacts = is_new.then(|| state.membership().contacts());
        let transport = self.ports.tasks.transport();
        self.connections.follow(transport, contacts.as_ref(), &mut self.ports.journal);
    }

    fn send_to_core(&mut self, input: Input) {
        // An input that does not belong is counted by the core, and changes nothing.
        let _ = self.ports.core.handle(input);
    }

    /// Sends the queued messages, and performs the core's outputs, until it has none left.
    fn perform(&mut self) {
        self.ports.outbox.flush(self.ports.tasks.transport());
        while let Some(output) = self.ports.core.poll_output() {
            match output {
                Output::Send { to, message } => send(self.ports.tasks.transport(), to, &message),
                Output::Persist { token, records } => {
                    self.ports.note_commits();
                    if let Err(error) = self.record_writer.persist(token, records) {
                        self.exit = Some(ProcessExit::Lost(error.to_string()));
                    }
                }
                Output::Trim { before } => {
                    // Records that stay longer than needed cost space only.
                    let _ = self.record_writer.trim(before);
                }
                Output::Solve(request) => self.planning.request(request),
                Output::Event(event) => {
                    self.ports.note_commits();
                    self.handle_core_event(event);
                }
                Output::Fatal(cause) => self.exit = Some(ProcessExit::of_fatal(&cause)),
            }
            self.ports.outbox.flush(self.ports.tasks.transport());
        }
    }
}

/// Sends a message of the protocol.
fn send(transport: &Transport, to: NodeId, envelope: &Envelope) {
    let is_raft = matches!(envelope.message, Message::Raft(_));
    let kind = if is_raft { ControlKind::Raft } else { ControlKind::Member };
    send_control(transport, to, kind, &envelope.encode());
}
