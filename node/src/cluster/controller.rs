//! The process of a controller: the core, its log, the solver, the lanes, and requests.
//!
//! ```text
//!   wait ──▶ translate ──▶ core.handle ──▶ perform outputs ──▶ wait
//! ```

mod adopt;
mod answers;
mod authority;
mod checkpoints;
mod data;
mod exports;
mod formats;
mod joins;
mod orders;
mod paces;
mod pieces;
mod rooms;
mod runs;
mod status;
mod uploads;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use zbelastic_consensus::core::{Core, Event as CoreEvent, Input, Output};
use zbelastic_consensus::message::{Envelope, Message};
use zbelastic_consensus::standing::RunStanding;
use zbelastic_consensus::state::Change;
use zbelastic_policy::trust::{Accusers, ClaimRefusal, Known, check_claim, is_removal};
use zbelastic_transport::identity::{AuthoritySecret, ClusterAuthority};
use zbelastic_transport::{
    ControlKind, Credentials, EventQueue, PeerIdentity, PeerRole, Transport, TransportEvent,
};
use zbelastic_types::{NodeId, Step};

use super::breaches::Breaches;
use super::chronicle::Chronicle;
use super::disk::{Disk, Written};
use super::document::JobDocument;
use super::ending::{Ending, Signal};
use super::home::{Home, HomeWriter};
use super::journal::{Journal, now_ms};
use super::keeper::{Keeper, Kept};
use super::keeping::KeepQueue;
use super::peers::Peers;
use super::room::DiskRoom;
use super::shelf::Shelf;
use super::solver::{Answer as SolverAnswer, Solved, Solver};
use super::stores::Places;
use super::tick::TICK;
use super::wire::{self, BulkKey, NodeMessage};
use super::work::WorkCount;
use crate::api::{EventKind, WorkStatus};

/// Results of fetches and of work off the loop that wait for it at once.
const ARRIVALS_MAX: usize = 1024;
/// Without a leader for so long, the loss of the quorum is reported as an event.
const LEADERLESS_TICKS_MAX: u32 = 200;

/// What a controller is started with.
pub struct ControllerSetup {
    /// This controller's number in the cluster.
    pub node: NodeId,
    /// Name of the cluster.
    pub cluster_name: String,
    /// When the cluster was founded, in milliseconds since 1970, if that is known here.
    pub founded_ms: Option<u64>,
    /// Controllers known so far, and where they are reached.
    pub controllers: BTreeMap<NodeId, Vec<SocketAddr>>,
    /// What it knows of itself.
    pub home: Home,
    /// Writes changes of that to disk.
    pub writer: HomeWriter,
    /// Its certificate and key.
    pub credentials: Credentials,
    /// Where checkpoints are kept.
    pub places: Places,
}

/// The parts that a controller is made of.
pub struct ControllerParts {
    /// The consensus core of this controller.
    pub core: Core,
    /// Writes the core's records to the log.
    pub disk: Disk,
    /// Finds plans off the event loop.
    pub solver: Solver,
    /// Issues and renews certificates.
    pub authority: Arc<ClusterAuthority>,
    /// The lanes to the other nodes.
    pub transport: Transport,
    /// The store of checkpoints and its thread.
    pub keeper: Keeper,
    /// Events and log lines.
    pub journal: Journal,
}

/// Where things come from that happen to a controller.
pub struct ControllerInbox {
    /// What becomes of its records.
    pub written: mpsc::Receiver<Written>,
    /// Plans that were found, and reviews of those in force.
    pub solved: mpsc::Receiver<SolverAnswer>,
    /// What happens on the lanes.
    pub events: EventQueue,
    /// What becomes of what is stored.
    pub kept: mpsc::Receiver<Kept>,
    /// What the system or a person wants of the process.
    pub signals: mpsc::Receiver<Signal>,
}

/// Something that was done off the loop.
enum Arrived {
    /// A piece of a checkpoint, to be kept for another node.
    Piece(pieces::PieceArrived),
    /// A text, or not.
    Data(data::DataArrived),
    /// Pieces of runs that ended are here, or not.
    Adopted(adopt::Adopted),
    /// A piece of an upload is on the disk, or not.
    Uploaded(uploads::UploadArrived),
    /// The room on the store's disk, if it is known.
    Room(Option<DiskRoom>),
    /// The administrator's certificate could not be renewed, and why.
    AdminNotRenewed(String),
    /// The key of the authority that follows, or why it did not come.
    AuthorityKey(Result<AuthoritySecret, String>),
}

struct Controller {
    setup: ControllerSetup,
    core: Core,
    disk: Disk,
    solver: Solver,
    authority: Arc<ClusterAuthority>,
    /// The change to the authority that follows.
    succeeding: authority::Succeeding,
    transport: Transport,
    keeper: Keeper,
    peers: Peers,
    journal: Journal,
    /// Connections that ended because one end broke a rule.
    breaches: Breaches,
    accusers: Accusers,
    chronicle: Chronicle,
    /// How fast nodes and links were found to be.
    paces: paces::Paces,
    /// Orders of people that wait for what was proposed for them.
    orders: orders::Orders,
    /// Strangers that wait for the use of their token to be agreed.
    joins: joins::Joins,
    /// Pieces to be kept for workers, and the bytes of them that came.
    keeping: KeepQueue,
    kept_bytes: WorkCount,
    /// The last checkpoint that was warned of, and whether a layer of it could be written nowhere.
    save_failed: Option<(Step, bool)>,
    /// The layers that clients export, read from the store.
    exports: exports::Exports,
    /// What runs that ended have here.
    adopting: adopt::Adopting,
    /// Texts that are being uploaded.
    uploads: uploads::Uploads,
    arrivals: mpsc::Sender<Arrived>,
    /// When something was received from each member last.
    heard: BTreeMap<NodeId, Instant>,
    /// When each node's road changed, and what it is.
    roads: BTreeMap<NodeId, zbelastic_transport::Road>,
    /// What workers reported last of their work, while they are connected.
    working: BTreeMap<NodeId, WorkStatus>,
    rooms: rooms::Rooms,
    leaderless: bool,
    started: Instant,
    ending: Option<Ending>,
}

/// Runs a controller until it ends.
pub async fn run(
    setup: ControllerSetup,
    parts: ControllerParts,
    mut inbox: ControllerInbox,
) -> Ending {
    let (arrivals, mut arrived) = mpsc::channel(ARRIVALS_MAX);
    let mut controller = Controller::new(setup, parts, arrivals);
    controller.begin();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while controller.ending.is_none() {
        tokio::select! {
            biased;
            // First, so that a flood of anything else does not stop the clock.
            _ = ticks.tick() => controller.handle_tick(),
            Some(written) = inbox.written.recv() => controller.handle_written(written),
            Some(event) = inbox.events.next() => controller.handle_event(event),
            Some(answer) = inbox.solved.recv() => controller.handle_solver(answer),
            Some(arrived) = arrived.recv() => controller.handle_arrived(arrived),
            Some(kept) = inbox.kept.recv() => controller.handle_kept(kept),
            Some(signal) = inbox.signals.recv() => controller.handle_signal(signal),
        }
        controller.perform();
    }
    controller.transport.close().await;
    controller.ending.expect("looked at above")
}

fn serve_bodies(transport: &Transport, keeper: &Keeper) {
    let stored = keeper.clone();
    let shelf = Shelf::new(Box::new(move |key| stored.find(key)));
    transport.serve_bulk(Box::new(move |_, key| {
        let key: BulkKey = wire::decode(key).ok()?;
        shelf.find(&key)
    }));
}

impl Controller {
    fn new(
        setup: ControllerSetup,
        parts: ControllerParts,
        arrivals: mpsc::Sender<Arrived>,
    ) -> Self {
        let ControllerParts { core, disk, solver, authority, transport, keeper, journal } = parts;
        let peers = Peers::new(setup.node, setup.controllers.clone());
        Self {
            setup,
            core,
            disk,
            solver,
            authority,
            succeeding: authority::Succeeding::default(),
            transport,
            keeper,
            peers,
            journal,
            breaches: Breaches::default(),
            accusers: Accusers::default(),
            chronicle: Chronicle::default(),
            paces: paces::Paces::default(),
            orders: orders::Orders::default(),
            joins: joins::Joins::default(),
            keeping: KeepQueue::default(),
            kept_bytes: WorkCount::default(),
            save_failed: None,
            exports: exports::Exports::default(),
            adopting: adopt::Adopting::default(),
            uploads: uploads::Uploads::default(),
            arrivals,
            heard: BTreeMap::new(),
            roads: BTreeMap::new(),
            working: BTreeMap::new(),
            rooms: rooms::Rooms::default(),
            leaderless: false,
            started: Instant::now(),
            ending: None,
        }
    }

    fn begin(&mut self) {
        serve_bodies(&self.transport, &self.keeper);
        self.peers.begin(&self.transport);
        self.keep_out();
        let (node, version) = (self.setup.node, env!("CARGO_PKG_VERSION").to_owned());
        self.journal.tell(EventKind::Started { node, version });
        self.look_at_job();
        self.perform();
    }

    fn handle_written(&mut self, written: Written) {
        match written {
            Written::Durable(token) => self.core.on_persisted(token),
            Written::Failed(error) => {
                let what = format!("the log takes no more: {error}");
                self.ending = Some(if error.is_full() {
                    Ending::OutOfResource(what)
                } else {
                    Ending::Lost(what)
                });
            }
        }
    }

    fn handle_event(&mut self, event: TransportEvent) {
        match event {
            TransportEvent::Up { peer, versions, road, .. } => {
                self.roads.insert(peer.node, road);
                self.note_program(peer, versions);
                self.peers.note_up(peer.node);
            }
            TransportEvent::Down { peer, reason } => {
                let told = self.breaches.note_down(peer.node, reason, Instant::now());
                told.into_iter().for_each(|kind| self.journal.tell(kind));
                self.roads.remove(&peer.node);
                self.peers.note_down(peer.node);
                self.working.remove(&peer.node);
                self.rooms.note_down(peer.node);
                self.tell_core(Input::Closed { node: peer.node });
                if is_removal(peer.role, reason) {
                    self.ending = Some(Ending::Removed);
                }
            }
            TransportEvent::Control { from, bytes } => self.handle_control(from, &bytes),
            TransportEvent::Request { from, bytes, reply } => {
                self.handle_request(from, &bytes, reply);
            }
            TransportEvent::Join { attempt, reply, .. } => self.handle_join(attempt, reply),
            TransportEvent::DuplicateIdentity { told_by } => {
                let (role, workers) = (self.peers.role(told_by), self.peers.roster().workers_up());
                if self.accusers.note(told_by, role, workers) {
                    self.ending = Some(Ending::Duplicate { told_by });
                }
            }
            TransportEvent::DialFailed { node, address, problem } => {
                match Ending::of_refusal(node, self.peers.role(node), &problem) {
                    Some(ending) => self.ending = Some(ending),
                    None => {
                        let what = format!("node {node} is not reached at {address}: {problem}");
                        self.journal.log(what);
                    }
                }
            }
            TransportEvent::Strangers { count, last, why } => {
                self.journal.log(format!("{count} strangers at the port, the last {last}: {why}"));
            }
        }
    }

    fn handle_control(&mut self, from: PeerIdentity, bytes: &Bytes) {
        let Some((kind, body)) = bytes.split_first() else { return };
        self.heard.insert(from.node, Instant::now());
        match ControlKind::of(*kind) {
            Some(kind @ (ControlKind::Raft | ControlKind::Member)) => {
                let Ok(envelope) = Envelope::decode(body) else { return };
                let is_raft = matches!(envelope.message, Message::Raft(_));
                if is_raft == (kind == ControlKind::Raft) {
                    let message = Box::new(envelope);
                    self.tell_core(Input::Message { from: from.node, message });
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

    /// Whether what a message claims counts, if it claims something.
    fn check_message(&self, from: PeerIdentity, message: &NodeMessage) -> Result<(), ClaimRefusal> {
        let Some(claim) = message.claim() else { return Ok(()) };
        let job = self.chronicle.job().map(|job| &job.job);
        let data: Vec<_> = job.map_or_else(Vec::new, JobDocument::data);
        let known = Known {
            own: PeerRole::Controller,
            plan: self.core.state().plan().map(|plan| &*plan.record),
            had_head: self.chronicle.knows_loss(from.node),
            job_data: &data,
        };
        check_claim((from.node, from.role), claim, known)
    }

    fn handle_node_message(&mut self, from: PeerIdentity, message: NodeMessage) {
        if self.check_message(from, &message).is_err() {
            return;
        }
        match message {
            NodeMessage::Keep(piece) => self.keep_for(from.node, piece),
            NodeMessage::Collect(referred) => self.collect_here(referred),
            NodeMessage::Took { generation, stage, span_us, busy_us, waited_us, slices } => {
                self.chronicle.note_took((generation, stage), (span_us, busy_us), waited_us);
                self.chronicle.note_slices((generation, stage), slices);
            }
            NodeMessage::LayersTook { turn, stage, times } => {
                self.chronicle.note_layers((turn, stage), *times);
            }
            NodeMessage::Arrived { generation, stage, arrivals } => {
                self.chronicle.note_arrivals((generation, stage), &arrivals);
            }
            NodeMessage::Moved { plan, bytes, took_us } => {
                let took = Duration::from_micros(took_us);
                self.chronicle.moves.note(plan, bytes, took, Instant::now());
            }
            NodeMessage::Evaluated { steps_done, loss } => {
                self.note_held_out(steps_done, loss);
            }
            NodeMessage::KeepData(name) => self.fetch(name, vec![from.node]),
            NodeMessage::Working { done, activity } => {
                if self.core.state().live_workers().any(|(holder, _)| holder.node == from.node) {
                    self.working.insert(from.node, WorkStatus { done, activity });
                }
            }
            NodeMessage::Room { room, low } => self.note_room(from.node, room, low),
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
            SolverAnswer::Solved(Solved { number, solution }) => {
                self.tell_core(Input::Solved { number, solution: Box::new(solution) });
            }
            SolverAnswer::Reviewed(reviewed) => self.handle_reviewed(*reviewed),
        }
    }

    fn handle_arrived(&mut self, arrived: Arrived) {
        match arrived {
            Arrived::Piece(piece) => self.handle_piece(piece),
            Arrived::Data(data) => self.handle_data(data),
            Arrived::Adopted(adopted) => self.handle_adopted(adopted),
            Arrived::Uploaded(upload) => self.handle_upload(upload),
            Arrived::Room(found) => self.handle_room(found),
            Arrived::AdminNotRenewed(why) => {
                self.journal.warn(format!("the administrator's certificate is not renewed: {why}"));
            }
            Arrived::AuthorityKey(secret) => self.handle_authority_key(secret),
        }
    }

    fn handle_signal(&mut self, signal: Signal) {
        // A controller has nothing to hand over but its vote; a leader lets another one lead.
        self.ending = Some(match signal {
            Signal::Drain(cause) => Ending::Drained(cause),
            Signal::Now => Ending::Left,
        });
    }

    fn handle_tick(&mut self) {
        self.tell_core(Input::Tick);
        self.joins.handle_tick();
        self.look_at_pieces();
        self.tell_of_exports();
        self.solver.handle_tick();
        self.look_at_authority();
        self.look_at_certificate();
        self.answer_late_orders();
        self.look_at_quorum();
        self.tell_paces();
        self.look_after_ended();
        self.look_at_room();
        let state = self.core.state();
        let is_new = !self.peers.follows(state.contacts_index());
        let contacts = is_new.then(|| state.contacts());
        let controllers = self.peers.follow(&self.transport, contacts.as_ref());
        for node in self.peers.poll_banned() {
            self.journal.log(format!("node {node} was removed: no connection of it is accepted"));
        }
        if let Some(controllers) = controllers {
            self.setup.home.remember(&self.setup.writer, controllers);
        }
    }

    fn look_at_quorum(&mut self) {
        let is_lost = matches!(
            self.core.standing(),
            RunStanding::NoQuorum { ticks } if ticks >= LEADERLESS_TICKS_MAX
        );
        if is_lost != self.leaderless {
            self.leaderless = is_lost;
            let kind = if is_lost { EventKind::QuorumLost } else { EventKind::QuorumHeld };
            self.journal.tell(kind);
        }
    }

    fn tell_core(&mut self, input: Input) {
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
                    if let Err(error) = self.disk.persist(token, records) {
                        self.ending = Some(Ending::Lost(error.to_string()));
                    }
                }
                Output::Trim { before } => {
                    // Records that stay longer than needed cost room only.
                    let _ = self.disk.trim(before);
                }
                Output::Solve(request) => self.solver.ask(request),
                Output::Event(event) => self.handle_core_event(event),
                Output::Fatal(cause) => self.ending = Some(Ending::of_fatal(&cause)),
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
                self.answer_order(index, Err(refusal));
            }
            CoreEvent::NoPlan(none) => self.journal.warn(format!("no plan: {none}")),
            CoreEvent::Installed { .. } => {
                self.adopting.ask();
                self.look_at_job();
                self.keep_out();
            }
            CoreEvent::Leader { leader, term } => {
                self.journal.tell(EventKind::Leader { node: leader, term });
            }
        }
    }

    fn handle_change(&mut self, index: u64, change: &Change) {
        if let Change::Job { .. } = change {
            self.look_at_job();
        }
        let now = (Instant::now(), now_ms());
        for kind in self.chronicle.note_change(change, self.core.state(), now) {
            let kind = self.with_digest(kind);
            self.journal.tell(kind);
        }
        self.note_pace(change);
        match change {
            Change::Checkpoint { version, .. } => {
                self.note_checkpoint(*version);
                self.adopting.ask();
            }
            Change::Removed { run } => {
                self.journal.log(format!("run {run} is removed"));
                self.collect_unused();
            }
            Change::Job { .. } => {
                self.collect_unused();
                self.adopting.ask();
            }
            Change::Access(outcome) => self.note_access(outcome),
            Change::Members(_) | Change::Format(_) => self.keep_out(),
            Change::Adopted(_)
            | Change::Planned(_)
            | Change::Ready(_)
            | Change::Resumed(_)
            | Change::Sealed { .. }
            | Change::Durable { .. }
            | Change::Kept { .. }
            | Change::Rewound { .. } => {}
        }
        self.answer_order(index, Ok(()));
    }

    /// Revoked nodes stay out, and programs that do not read the log, whenever this one learned of it.
    fn keep_out(&self) {
        self.require_format();
        self.core.state().access().revoked().for_each(|node| self.transport.ban(node));
    }

    fn look_at_job(&mut self) {
        let Some(spec) = self.core.state().job().map(|job| job.spec.clone()) else { return };
        match JobDocument::of_job(&spec) {
            Ok(job) => {
                self.want_data(&job.job);
                self.use_store(&job.job);
                self.paces.set_job(job.name);
                self.tell_paces();
                self.chronicle.set_job(job);
            }
            Err(error) => self.journal.warn(error.to_string()),
        }
    }

    /// Whether this node leads and knows all that was agreed before.
    fn leads(&self) -> bool {
        self.core.status().leads_applied
    }
}

/// So long an order waits to be decided before it is answered that there is no quorum.
pub(super) const ORDER_WAIT: Duration = Duration::from_secs(5);
