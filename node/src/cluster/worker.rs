//! The process of a worker: session, device, lanes and store, joined by one loop.
//!
//! ```text
//!   wait ──▶ translate ──▶ session.handle / device.send ──▶ perform outputs ──▶ wait
//! ```
//!
//! The loop decides nothing of the protocol: the session's outputs are performed, and events are passed to
//! it. Work that it waits for beside that belongs to components: each owns its fields, and writes to the
//! ports ([`ports::WorkerPorts`]) the messages, commands, log lines and work beside the loop.

mod certificate;
mod commands;
mod drain;
mod job;
mod lanes;
mod layers;
mod parts;
mod pieces;
mod ports;

use std::path::PathBuf;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use zbelastic_consensus::message::Envelope;
use zbelastic_consensus::session::{
    SessionInput, SessionOutput, SessionSetup, WorkerEvent, WorkerSession,
};
use zbelastic_identity::{PeerIdentity, PeerRole};
use zbelastic_kernels::Precision;
use zbelastic_machine::data_fetch::DataSettings;
use zbelastic_machine::layer_snapshot::{LAYER_SNAPSHOTS, LayerSnapshots, SNAPSHOT_MEMORY_MAX};
use zbelastic_machine::peak_rates::{PeakRates, PeakRatesByPrecision};
use zbelastic_machine::resident_memory;
use zbelastic_policy::trust::{ClaimContext, ClaimRefusal, check_claim};
use zbelastic_preemption::NoticeReport;
use zbelastic_trainer::runtime::RuntimeInput;
use zbelastic_transport::{ControlKind, DialProblem, RequestReply, TransportEvent};
use zbelastic_types::Bytes as ByteCount;
use zbelastic_wire::{self as wire, NodeMessage, NodeRequest, StoreReferences};

use super::background::BackgroundTasks;
use super::blob_registry::BlobRegistry;
use super::checkpoint_thread::{StoreEvent, answer_collect};
use super::compute::WorkerDevice;
use super::device::{DeviceHandle, DeviceOutput, StepTime};
use super::disk_space::{DiskSpaceChange, DiskSpaceWatch, NodeDisks};
use super::journal::Journal;
use super::outbox::{Outbox, send_control};
use super::peer_connections::PeerConnections;
use super::peer_directory::PeerDirectory;
use super::process_exit::{NodeSignal, ProcessExit};
use super::requests;
use certificate::WorkerCertificate;
use drain::{DrainAction, DrainWatch};
use job::{ActiveJob, JobStore, WorkerJob, fetch_again};
use lanes::connect_lanes;
use layers::LayerExchange;
pub use parts::{WorkerParts, WorkerSetup};
use pieces::WorkerPieces;
use ports::{WorkerCompletion, WorkerPorts, WorkerTasks};
use zbelastic_api::{ApiAnswer, ApiRequest, EventKind, decode_request};
use zbelastic_node_folder::node_record::NodeRecord;
use zbelastic_policy::data_fetches::DataFetches;
use zbelastic_policy::tick::{SESSION_TIMING, TICK};
use zbelastic_policy::work_log::WorkLog;

/// Results of fetches that wait for the loop at once.
const FETCHES_MAX: usize = 4096;

struct WorkerNode {
    ports: WorkerPorts,
    /// What was typed about data on this machine.
    data: DataSettings,
    identity: PathBuf,
    connections: PeerConnections,
    certificate: WorkerCertificate,
    job: WorkerJob,
    job_store: JobStore,
    layers: LayerExchange,
    pieces: WorkerPieces,
    disk_watch: DiskSpaceWatch,
    /// What it multiplies and adds at best, for the controllers.
    peak: Option<PeakRatesByPrecision>,
    drain: DrainWatch,
    /// Whether this process was a member of the cluster.
    was_member: bool,
}

/// Runs a worker until it ends.
///
/// # Errors
/// If the device's thread cannot be started.
pub async fn run<M: WorkerDevice>(
    setup: WorkerSetup,
    parts: WorkerParts,
    worker_device: M,
) -> std::io::Result<ProcessExit> {
    let WorkerParts { transport, mut events, checkpoint_thread, mut store_events, journal, .. } =
        parts;
    let WorkerParts { mut signals, mut notices, .. } = parts;
    let folder = setup.identity.with_file_name(LAYER_SNAPSHOTS);
    let snapshots = LayerSnapshots::new(folder, SNAPSHOT_MEMORY_MAX);
    let (device, mut outputs) =
        DeviceHandle::start(transport.frame_sender(), worker_device, snapshots)?;
    let (completions, mut completed) = mpsc::channel(FETCHES_MAX);
    let tasks = BackgroundTasks::new(transport, checkpoint_thread, completions);
    let mut worker = WorkerNode::new(setup, (device, journal), tasks);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    worker.ports.journal.record(EventKind::Started { node: worker.ports.me, version });
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while worker.ports.exit.is_none() {
        tokio::select! {
            biased;
            // First, so that a flood of anything else does not stop the clock.
            _ = ticks.tick() => worker.handle_tick(),
            Some(event) = events.next() => worker.handle_event(event),
            Some(output) = outputs.recv() => worker.handle_device(output),
            Some(completion) = completed.recv() => worker.handle_completion(completion),
            Some(event) = store_events.recv() => worker.handle_store_event(event),
            Some(signal) = signals.recv() => worker.handle_signal(signal),
            Some(report) = notices.reports.recv() => worker.handle_report(&report),
        }
        worker.perform();
    }
    if let Some(notice) = worker.drain.notice() {
        notices.acknowledge(notice);
    }
    worker.ports.tasks.transport().close().await;
    Ok(worker.ports.exit.expect("looked at above"))
}

impl WorkerNode {
    fn new(
        setup: WorkerSetup,
        (device, journal): (DeviceHandle, Journal),
        tasks: WorkerTasks,
    ) -> Self {
        let stored = tasks.checkpoint_thread().clone();
        let blob_registry = BlobRegistry::new(Box::new(move |key| stored.find(key)));
        connect_lanes(tasks.transport(), &device, &blob_registry);
        let me = setup.node;
        let session = WorkerSession::new(SessionSetup {
            cluster: setup.cluster,
            node: me,
            boot: setup.boot,
            resources: setup.resources,
            contact: setup.contact,
            controllers: setup.node_record.controllers.keys().copied().collect(),
            timing: SESSION_TIMING,
        });
        let directory = PeerDirectory::new(me, setup.node_record.controller_addresses());
        let record = (setup.node_record, setup.writer);
        let connections = PeerConnections::begin(directory, record, tasks.transport());
        let work_log = WorkLog::default();
        Self {
            pieces: WorkerPieces::new(blob_registry.clone(), &setup.resources),
            layers: LayerExchange::new(blob_registry),
            ports: WorkerPorts {
                me,
                session,
                device,
                outbox: Outbox::default(),
                journal,
                work_log,
                tasks,
                data_fetches: DataFetches::default(),
                exit: None,
            },
            data: setup.data,
            certificate: WorkerCertificate::new(setup.credentials, setup.identity.clone()),
            identity: setup.identity,
            connections,
            job: WorkerJob::default(),
            job_store: JobStore::new(setup.cluster, setup.store_locations),
            disk_watch: DiskSpaceWatch::default(),
            peak: setup.peak,
            drain: DrainWatch::default(),
            was_member: false,
        }
    }

    fn handle_event(&mut self, event: TransportEvent) {
        match event {
            TransportEvent::Up { peer, .. } => self.connections.note_up(peer.node),
            TransportEvent::Down { peer, reason } => {
                if let Some(links) = self.ports.device.links() {
                    links.note_down(peer.node);
                }
                let exit = self.connections.note_down(peer, reason, &mut self.ports.journal);
                self.pieces.note_holder_down(peer.node, &mut self.ports);
                ProcessExit::put(&mut self.ports.exit, exit);
            }
            TransportEvent::Control { from, bytes } => self.handle_control(from, &bytes),
            TransportEvent::Request { from, bytes, reply } => {
                self.handle_request(from, &bytes, reply);
            }
            TransportEvent::Join { reply, .. } => drop(reply),
            TransportEvent::DuplicateIdentity { reported_by } => {
                let exit = self.connections.note_duplicate(reported_by);
                ProcessExit::put(&mut self.ports.exit, exit);
            }
            TransportEvent::DialFailed { node, address, problem } => {
                if problem == DialProblem::AuthorityRetired {
                    self.certificate.note_untrusted();
                }
                let failed = (address, &problem);
                let journal = &mut self.ports.journal;
                let exit = self.connections.note_dial_failed(node, failed, journal);
                ProcessExit::put(&mut self.ports.exit, exit);
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
        match ControlKind::of(*kind) {
            Some(ControlKind::Raft) | None => {}
            Some(ControlKind::Member) => {
                if from.role != PeerRole::Controller {
                    return;
                }
                // A message that cannot be read or does not belong changes nothing, and is sent
                // again if it matters.
                if let Ok(message) = Envelope::decode(body) {
                    let message = Box::new(message);
                    let input = SessionInput::Message { from: from.node, message };
                    let _ = self.ports.session.handle(input);
                }
            }
            Some(ControlKind::Blob) => {
                if let Ok(message) = wire::decode(body) {
                    self.handle_node_message(from, message);
                }
            }
        }
    }

    /// Whether the claim of a message counts, if it makes one. A worker passes on no reports of
    /// others.
    fn check_message(&self, from: PeerIdentity, message: &NodeMessage) -> Result<(), ClaimRefusal> {
        let Some(claim) = message.claim() else { return Ok(()) };
        let job_data = self.job.data();
        let own = PeerRole::Worker;
        let context = ClaimContext { own, plan: None, had_head: false, job_data: &job_data };
        check_claim((from.node, from.role), claim, context)
    }

    fn handle_node_message(&mut self, from: PeerIdentity, message: NodeMessage) {
        if self.check_message(from, &message).is_err() {
            return;
        }
        match message {
            NodeMessage::Layer(message) => {
                self.layers.handle_message(from, message, (&self.job, &mut self.ports));
            }
            NodeMessage::Keep(piece) => {
                self.pieces.keep_for((from.node, piece), &self.job, &mut self.ports);
            }
            NodeMessage::Kept(piece) => {
                self.pieces.note_copy(piece, (from.node, true), &mut self.ports);
            }
            NodeMessage::NotKept(piece) => {
                self.pieces.note_copy(piece, (from.node, false), &mut self.ports);
            }
            NodeMessage::Keeping(piece) => self.pieces.note_progress(piece, from.node, None),
            NodeMessage::KeepingLeft { piece, left } => {
                self.pieces.note_progress(piece, from.node, Some(left));
            }
            NodeMessage::Collect(referred) => self.collect(referred),
            // Another node found the copy here of a job's text or weights to be damaged, and has a
            // sound one.
            NodeMessage::KeepData(name) => {
                let node = from.node;
                let text = format!("node {node} found the copy of the text here to be damaged");
                if fetch_again(name, vec![node], &mut self.ports) {
                    self.ports.journal.warn(text);
                }
            }
            NodeMessage::Exporting => self.ports.work_log.note_export(),
            // For controllers.
            NodeMessage::SaveFailed(_)
            | NodeMessage::Took { .. }
            | NodeMessage::Moved { .. }
            | NodeMessage::CopiedAhead { .. }
            | NodeMessage::Evaluated { .. }
            | NodeMessage::LayersTook { .. }
            | NodeMessage::Arrived { .. }
            | NodeMessage::Room { .. }
            | NodeMessage::Working { .. }
            | NodeMessage::Authority(_)
            | NodeMessage::Founding { .. }
            | NodeMessage::Peak { .. }
            | NodeMessage::MachinePeak { .. }
            | NodeMessage::Resident(_)
            | NodeMessage::Draining(_)
            | NodeMessage::Scrubbed(_) => {}
        }
    }

    fn handle_device(&mut self, output: DeviceOutput) {
        match output {
            DeviceOutput::Event(event) => self.ports.send_to_session(event),
            DeviceOutput::Request { to, message } => {
                self.layers.request(to, message, &mut self.ports.outbox);
            }
            DeviceOutput::Offer { to, offer } => {
                self.layers.offer(to, offer, &mut self.ports.outbox);
            }
            DeviceOutput::Read { version, layer, digest } => {
                let ports = (&self.job, &mut self.ports);
                self.pieces.read((version, layer), digest, ports);
            }
            DeviceOutput::Write { snapshot, generation } => {
                if let Some(run) = self.job.run() {
                    self.pieces.write(snapshot, (run, generation), &self.ports);
                }
            }
            DeviceOutput::Evaluated { steps_done, loss } => {
                self.ports.send_to_controllers(&NodeMessage::Evaluated { steps_done, loss });
            }
            DeviceOutput::StepTime(step) => report_step_time(step, &mut self.ports),
            DeviceOutput::Link(report) if report.is_warning() => {
                self.ports.journal.warn(report.to_string());
            }
            DeviceOutput::Link(report) => self.ports.journal.log(report.to_string()),
            DeviceOutput::Islands(event) => self.ports.journal.warn(event.to_string()),
            DeviceOutput::StageRefused(refusal) => {
                self.ports.journal.warn(format!("it does not run its stage: {refusal}"));
            }
            DeviceOutput::Failed(error) => self.ports.exit = Some(error.process_exit()),
        }
    }

    fn handle_completion(&mut self, completion: WorkerCompletion) {
        let roster = self.connections.roster();
        let ports = &mut self.ports;
        match completion {
            WorkerCompletion::Layer(layer) => self.layers.handle_fetched(layer, ports),
            WorkerCompletion::Piece(result) => {
                self.pieces.handle_task(result, &self.job, (ports, roster));
            }
            WorkerCompletion::Kept(result) => self.pieces.handle_kept(result, ports),
            WorkerCompletion::Certificate(chain) => {
                let ports = (&ports.tasks, &mut ports.journal);
                self.certificate.handle_certificate(chain, ports);
            }
            WorkerCompletion::Credentials(written) => {
                let ports = (&ports.tasks, &mut ports.journal);
                self.certificate.handle_written(*written, ports);
            }
            WorkerCompletion::Disks(found) => self.handle_disks(found),
            WorkerCompletion::NoMember => ports.exit = Some(ProcessExit::Removed),
            WorkerCompletion::Shards(round) => {
                let held = self.job.handle_round(*round, (ports, roster));
                held.into_iter().for_each(|command| self.execute(command));
            }
            WorkerCompletion::FetchedAgain(name, is_kept) => {
                if let Some(holders) = ports.data_fetches.end(name, is_kept) {
                    fetch_again(name, holders, ports);
                }
            }
            WorkerCompletion::RequestData => {
                let held = self.job.take_held(ports);
                held.into_iter().for_each(|command| self.execute(command));
            }
            WorkerCompletion::Job(fetched) => {
                let held = self.job.handle_fetched(*fetched, (ports, &self.identity));
                held.into_iter().for_each(|command| self.execute(command));
                // Its factors may be of another type than those of the job before.
                self.report_peak();
            }
        }
    }

    fn handle_store_event(&mut self, event: StoreEvent) {
        let roster = self.connections.roster();
        self.pieces.handle_store_event(event, &self.job, (&mut self.ports, roster));
    }

    fn handle_signal(&mut self, signal: NodeSignal) {
        match self.drain.note_signal(signal) {
            DrainAction::Leave => {
                let _ = self.ports.session.handle(SessionInput::Leave);
                self.perform();
                self.ports.exit = Some(ProcessExit::Left);
            }
            DrainAction::Begin(cause) => {
                let text = format!("draining: {cause}; a second signal ends it at once");
                self.ports.journal.log(text);
                // Queued messages are sent before those of the session.
                self.ports.send_to_controllers(&NodeMessage::Draining(cause));
                let _ = self.ports.session.handle(SessionInput::Drain);
                if self.ports.session.holder().is_none() {
                    self.ports.exit = Some(ProcessExit::Drained(cause));
                }
            }
        }
    }

    /// The thread that polls for a cloud's notices reported something.
    fn handle_report(&mut self, report: &NoticeReport) {
        let journal = &mut self.ports.journal;
        let notice = match report {
            NoticeReport::Watching(cloud) => {
                return journal.log(format!("notices of {} are polled", cloud.name()));
            }
            NoticeReport::NoCloud => return,
            NoticeReport::Trouble { source, fault } => {
                return journal.log(format!("notices of {}: {fault}", source.name()));
            }
            NoticeReport::Notice(notice) => notice,
        };
        journal.warn(format!("notice of {}: {:?}", notice.source.name(), notice.cause));
        if let Some(signal) = self.drain.note_notice(notice, self.job.notice_policy()) {
            self.handle_signal(signal);
        }
    }

    fn handle_tick(&mut self) {
        self.report_work();
        let _ = self.ports.session.handle(SessionInput::Tick);
        if self.ports.device.gauge().edges().is_multiple_of(2) && self.layers.is_idle() {
            // While a layer is on its way, no time counts towards a timeout of the runtime.
            self.ports.send_to_device(RuntimeInput::Tick);
        }
        let contacts = self.ports.session.contacts().clone();
        let transport = self.ports.tasks.transport();
        self.connections.follow(transport, Some(&contacts), &mut self.ports.journal);
        self.certificate.follow_rotation(&mut self.ports);
        let roster = self.connections.roster();
        self.certificate.renew_if_due(&self.ports, roster, self.connections.node_record());
        if self.drain.is_alone(roster.is_controller_connected()) && self.ports.exit.is_none() {
            self.ports.exit = Some(ProcessExit::Alone);
        }
        if self.disk_watch.handle_tick() {
            let checkpoint_thread = self.ports.tasks.checkpoint_thread().clone();
            self.ports
                .tasks
                .spawn(async move { WorkerCompletion::Disks(checkpoint_thread.disks().await) });
        }
    }

    /// Reports to the session whether an operation is under way, and how much work was done; to
    /// controllers the long activity, and to other nodes that their pieces make progress.
    fn report_work(&mut self) {
        let gauge = self.ports.device.gauge();
        if let Some(is_busy) = self.ports.work_log.note_edges(gauge.edges()) {
            self.ports.send_to_session(WorkerEvent::Busy { is_busy: false });
            if is_busy {
                self.ports.send_to_session(WorkerEvent::Busy { is_busy: true });
            }
        }
        let moved = self.ports.tasks.checkpoint_thread().moved().total() + self.pieces.arrived();
        let gauge = self.ports.device.gauge();
        let report = self.ports.work_log.handle_tick(gauge, self.pieces.is_busy(), moved);
        if let Some(done) = report.progress {
            self.ports.send_to_session(WorkerEvent::Progress { done });
        }
        self.pieces.handle_tick(&mut self.ports);
        if let Some((done, activity)) = report.activity {
            self.ports.send_to_controllers(&NodeMessage::Working { done, activity });
        }
    }

    fn handle_disks(&mut self, found: NodeDisks) {
        let layer_bytes = self.job.active().map_or_else(Vec::new, ActiveJob::layer_bytes);
        match self.disk_watch.note(found, ByteCount(layer_bytes.iter().sum())) {
            Some(DiskSpaceChange::Low(shortage)) => self.ports.journal.warn(format!(
                "{shortage}: pieces of checkpoints that do not fit are kept by other nodes"
            )),
            Some(DiskSpaceChange::Ample) => {
                self.ports.journal.log("the disk has free space again".to_owned());
            }
            None => {}
        }
        if let Some(room) = found.reported() {
            let low = self.disk_watch.low();
            self.ports.send_to_controllers(&NodeMessage::Room { room, low });
            let report = self.ports.tasks.checkpoint_thread().scrub_report();
            self.ports.send_to_controllers(&NodeMessage::Scrubbed(report));
        }
        if let Some(resident) = resident_memory() {
            self.ports.send_to_controllers(&NodeMessage::Resident(resident));
        }
        // As often: a controller that came later has it then.
        self.report_peak();
    }

    /// Sends to the controllers what this worker multiplies and adds at best, with factors of the type
    /// that those of its job have.
    fn report_peak(&mut self) {
        let precision = self.job.active().map_or(Precision::F32, ActiveJob::precision);
        if let Some(peak) = self.peak {
            let PeakRates { own, of_machine } = peak.of(precision);
            self.ports.send_to_controllers(&NodeMessage::Peak { flop_per_s: own });
            self.ports.send_to_controllers(&NodeMessage::MachinePeak { flop_per_s: of_machine });
        }
    }

    /// A controller sent the names that are referred to; the rest is removed.
    fn collect(&mut self, referred: StoreReferences) {
        let run = self.job.run();
        let of_run = referred.versions.iter().filter(|version| Some(version.run) == run);
        let newest = of_run.map(|found| found.version).max().unwrap_or_default();
        self.job.note_sealed(newest);
        self.pieces.note_referred(&referred);
        // If the thread's queue is full now, the next checkpoint brings the message again.
        let _ = self.ports.tasks.checkpoint_thread().collect(referred);
    }

    /// A request arrived, from a controller or from a client.
    fn handle_request(&mut self, from: PeerIdentity, bytes: &[u8], reply: RequestReply) {
        match NodeRequest::decode(bytes).map(NodeRequest::collection) {
            Some(Some(collection)) if from.role == PeerRole::Controller => {
                answer_collect(self.ports.tasks.checkpoint_thread().clone(), collection, reply);
            }
            Some(_) => drop(reply),
            None => self.answer_client(from, bytes, reply),
        }
    }

    /// Answers with the lines that this node logged. All other requests are redirected to the
    /// controllers.
    fn answer_client(&mut self, from: PeerIdentity, bytes: &[u8], reply: RequestReply) {
        // A request that cannot be decoded gets no answer.
        let Ok(request) = decode_request(bytes) else { return drop(reply) };
        let own = self.ports.me;
        let answer = if let ApiRequest::Logs { node, from_sequence, max } = request
            && node.is_none_or(|node| node == own)
        {
            let journal = &mut self.ports.journal;
            match requests::authorize(journal, from, &request) {
                Ok(()) => requests::logs(journal, own, (from_sequence, max)),
                Err(refusal) => ApiAnswer::Refused(refusal),
            }
        } else {
            let controllers = self.connections.node_record().controllers.values().flatten();
            let addresses = controllers.map(ToString::to_string).collect();
            ApiAnswer::Redirect { addresses }
        };
        requests::reply(reply, &answer);
    }

    /// That this worker is a member, and the command to type next.
    fn log_hint(&mut self) {
        let NodeRecord { name, node, .. } = self.connections.node_record();
        let joined =
            format!("worker {name}, node {node}: joined; it takes part in runs as they come");
        let folder = self.identity.parent().unwrap_or(&self.identity).display();
        self.ports.journal.log(joined);
        self.ports.journal.log(format!("end it in order:  zbelastic leave --data-dir {folder}"));
    }

    /// Sends the queued messages, and performs the session's outputs, until it has none left.
    fn perform(&mut self) {
        // Before all commands, and whether there are any: others fetch the pieces kept here for
        // them.
        self.job_store.follow_job(&mut self.ports);
        if !self.was_member && self.ports.session.holder().is_some() {
            self.was_member = true;
            self.log_hint();
        }
        self.ports.outbox.flush(self.ports.tasks.transport());
        while let Some(output) = self.ports.session.poll_output() {
            match output {
                SessionOutput::Send { to, message } => {
                    let transport = self.ports.tasks.transport();
                    send_control(transport, to, ControlKind::Member, &message.encode());
                }
                SessionOutput::Command(command) => self.execute(command),
                SessionOutput::End(refusal) => self.end_refused(refusal),
            }
            self.ports.outbox.flush(self.ports.tasks.transport());
        }
    }
}

/// Sends controllers how a step's time was spent here.
fn report_step_time(step: StepTime, ports: &mut WorkerPorts) {
    let Some((generation, stage)) = ports.session.assigned_stage() else { return };
    let span_us = step.span.as_micros() as u64;
    let busy_us = step.busy.as_micros() as u64;
    let waited_us = step.waited.as_micros() as u64;
    let step_time =
        NodeMessage::Took { generation, stage, span_us, busy_us, waited_us, slices: step.slices };
    ports.send_to_controllers(&step_time);
    let arrivals = step.arrivals;
    ports.send_to_controllers(&NodeMessage::Arrived { generation, stage, arrivals });
    if let Some((turn, times)) = step.layers {
        ports.send_to_controllers(&NodeMessage::LayersTook { turn, stage, times });
    }
}
