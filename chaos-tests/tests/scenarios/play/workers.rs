//! Workers on the stage: a seat and a host, whose operations take no time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use chaos_tests::digest_bench::DigestModel;
use chaos_tests::digest_model::DigestSource;
use chaos_tests::numeric::NumericFaults;
use chaos_tests::store::Store;
use zbelastic_consensus::contact::Contact;
use zbelastic_consensus::member::Resources;
use zbelastic_consensus::seat::{News, Order, Seat, SeatInput, SeatOutput, SeatSetup, SeatTiming};
use zbelastic_schedule::{Compute, Op};
use zbelastic_trainer::elastic::{GRADIENT_ROOM, ReadLayer, layer_digest};
use zbelastic_trainer::host::{Host, HostInput, HostOutput, HostSetup, PeerRefusal, Station};
use zbelastic_trainer::stage::{Activity, Progress, Workbench};
use zbelastic_types::{Bytes, NodeId, Step};

use super::record::Record;
use super::wire::{Letter, Packet, Wire};
use super::{CLUSTER, Play};

const TIMING: SeatTiming = SeatTiming { beat_ticks: 4, resend_ticks: 5 };
/// Between two starts of a node, more than a seat counts on in between.
const BOOT_STRIDE: u64 = 1000;

type PlayedStation = Station<DigestModel, DigestSource>;

/// The machine of a worker.
#[derive(Default)]
pub struct Worker {
    pub process: Option<Process>,
    pub faults: NumericFaults,
    /// Whether it works on something that it does not report: its heartbeats show that it gets on.
    pub is_at_work: bool,
}

/// What runs on it.
pub struct Process {
    node: NodeId,
    seat: Seat,
    host: Host<DigestModel, DigestSource>,
    /// The work it has done.
    done: u64,
}

/// What a process reaches.
struct Surroundings<'a> {
    wire: &'a mut Wire,
    store: &'a mut Store,
    record: &'a mut Record,
}

impl Process {
    pub fn station(&self) -> Option<&PlayedStation> {
        self.host.station()
    }

    fn seat_input(&mut self, input: SeatInput, around: &mut Surroundings<'_>) {
        if self.seat.handle(input).is_err() {
            around.record.refused("briefing");
        }
        self.drive(around);
    }

    fn host_input(&mut self, input: HostInput, around: &mut Surroundings<'_>) {
        match self.host.handle(input) {
            Ok(()) => {}
            Err(PeerRefusal::OtherGeneration { .. } | PeerRefusal::Stranger { .. }) => {
                around.record.refused("stale-frame");
            }
            Err(
                PeerRefusal::NoStage
                | PeerRefusal::Lacking { .. }
                | PeerRefusal::Unasked { .. }
                | PeerRefusal::Form { .. }
                | PeerRefusal::Gradient { .. }
                | PeerRefusal::Engine(_),
            ) => around.record.refused("frame"),
        }
        self.drive(around);
    }

    /// Carries out what seat and host want done, until neither wants anything.
    fn drive(&mut self, around: &mut Surroundings<'_>) {
        loop {
            if let Some(output) = self.seat.poll_output() {
                match output {
                    SeatOutput::Send { to, message } => {
                        self.send(to, Packet::Control(message), around);
                    }
                    SeatOutput::Order(order) => {
                        self.host_input(HostInput::Order(order), around);
                    }
                }
            } else if let Some(output) = self.host.poll_output() {
                self.perform(output, around);
            } else {
                return;
            }
        }
    }

    fn perform(&mut self, output: HostOutput, around: &mut Surroundings<'_>) {
        match output {
            HostOutput::News(news) => self.seat_input(SeatInput::News(news), around),
            HostOutput::Peer { to, frame } => {
                around.record.sent(&frame.body);
                self.send(to, Packet::Peer(Box::new(frame)), around);
            }
            HostOutput::Read { version, layer, digest } => {
                let bytes = around.store.get((version, layer, digest));
                let read = bytes.and_then(|bytes| ReadLayer::decode(&bytes).ok()).map(Box::new);
                self.host_input(HostInput::Read { version, layer, read }, around);
            }
            HostOutput::Write { image, generation } => {
                let (version, layer, bytes) = (image.version, image.layer, image.encode());
                let digest = layer_digest(&image);
                around.store.put((version, layer, digest), bytes, self.node);
                let durable = around.store.finish((version, layer, digest)).then_some(digest);
                let written = HostInput::Written { version, layer, generation, durable };
                self.host_input(written, around);
            }
            HostOutput::Evaluated { .. } => {}
        }
    }

    fn send(&self, to: NodeId, packet: Packet, around: &mut Surroundings<'_>) {
        around.wire.send(Letter { from: self.node, to, packet });
    }

    /// Runs one operation, if one can run.
    fn run_op(&mut self, around: &mut Surroundings<'_>) -> bool {
        let Some(Progress::Ran(activity)) = self.host.run_next() else { return false };
        self.done += 1;
        if let Activity::Op { turn, op: Op::Compute(compute, _) } = activity {
            let station = self.host.station().expect("it ran an operation");
            let version = station.engine().bench().version();
            match compute {
                Compute::F | Compute::B | Compute::R => {}
                Compute::W | Compute::WE | Compute::BW => {
                    assert_eq!(version, turn.step, "R1: {op:?} ran before its gate", op = compute);
                }
            }
            around.record.ran(self.node, turn);
        }
        self.drive(around);
        true
    }
}

impl Play {
    pub(super) fn start_worker(&mut self, node: NodeId) {
        self.boots += BOOT_STRIDE;
        let setup = SeatSetup {
            cluster: CLUSTER,
            node,
            boot: self.boots,
            resources: Resources {
                memory: Bytes(1 << 30),
                speed_permille: 1000,
                class: zbelastic_consensus::class::DeviceClass::Processors,
            },
            contact: Contact::of_node(node),
            controllers: self.controllers.keys().copied().collect(),
            timing: TIMING,
        };
        let worker = self.workers.entry(node).or_default();
        assert!(worker.process.is_none(), "worker {node} is up");
        let shape = self.script.shape.clone();
        let source = DigestSource { seed: shape.seed };
        let leftovers = Rc::new(RefCell::new(BTreeMap::new()));
        let model = DigestModel { shape, faults: worker.faults.clone(), leftovers };
        let host_setup =
            HostSetup { stage: self.script.stage.clone(), gradient_room: GRADIENT_ROOM };
        let (seat, host) = (Seat::new(setup), Host::new(host_setup, model, source));
        worker.process = Some(Process { node, seat, host, done: 0 });
    }

    /// Lets a process act in its surroundings, if it is up. Yields what it yields.
    fn with_process<T: Default>(
        &mut self,
        node: NodeId,
        act: impl FnOnce(&mut Process, &mut Surroundings<'_>) -> T,
    ) -> T {
        let Self { workers, wire, store, record, .. } = self;
        let process = workers.get_mut(&node).and_then(|worker| worker.process.as_mut());
        let mut around = Surroundings { wire, store, record };
        process.map_or_else(T::default, |process| act(process, &mut around))
    }

    /// A node works on something for long, from now on or no longer.
    pub fn work(&mut self, node: NodeId, is_at_work: bool) {
        self.workers.get_mut(&node).expect("a worker").is_at_work = is_at_work;
    }

    /// A worker's clock ticks.
    pub(super) fn tick_worker(&mut self, node: NodeId) {
        let is_at_work = self.workers[&node].is_at_work;
        self.with_process(node, |process, around| {
            process.done += u64::from(is_at_work);
            let done = process.done;
            process.seat_input(SeatInput::News(News::Progress { done }), around);
            process.seat_input(SeatInput::Tick, around);
            process.host_input(HostInput::Tick, around);
        });
    }

    pub(super) fn seat_input(&mut self, node: NodeId, input: SeatInput) {
        self.with_process(node, |process, around| process.seat_input(input, around));
    }

    pub(super) fn host_input(&mut self, node: NodeId, input: HostInput) {
        self.with_process(node, |process, around| process.host_input(input, around));
    }

    pub(super) fn run_op(&mut self, node: NodeId) -> bool {
        self.with_process(node, |process, around| process.run_op(around))
    }

    /// A worker that was not there before starts.
    pub fn join(&mut self) -> NodeId {
        let node = NodeId(super::WORKER_FIRST + self.workers.len() as u64);
        self.start_worker(node);
        node
    }

    /// A worker receives the order to drain: it is about to go.
    pub fn drain(&mut self, node: NodeId) {
        self.seat_input(node, SeatInput::Drain);
    }

    /// Whether a worker follows layers.
    pub fn follows(&self, node: NodeId) -> bool {
        let process = self.workers.get(&node).and_then(|worker| worker.process.as_ref());
        process.is_some_and(|process| process.host.followed().next().is_some())
    }

    /// Orders a worker's host, past its seat, to apply the last seal again.
    pub fn settle_again(&mut self, node: NodeId) {
        let seal = *self.state().and_then(|state| state.last_seal()).expect("something is sealed");
        self.host_input(node, HostInput::Order(Order::Settle(seal)));
    }

    /// Stations of the plan in force, with the node that stands there.
    pub(super) fn stations(&self) -> Vec<(NodeId, &PlayedStation)> {
        let generation = self.state().map(|state| state.generation());
        let found = self.workers.iter().filter_map(|(node, worker)| {
            let station = worker.process.as_ref()?.station()?;
            (Some(station.plan().generation) == generation).then_some((*node, station))
        });
        found.collect()
    }

    /// The node that stands at a stage.
    pub fn stage(&self, stage: usize) -> NodeId {
        let plan = self.state().and_then(|state| state.plan()).expect("a plan is in force");
        plan.record.stages[stage].node
    }

    /// The version of the layers that a worker has at its stage.
    pub fn version(&self, node: NodeId) -> Step {
        let process = self.workers[&node].process.as_ref().expect("it is up");
        process.station().expect("it stands at a stage").engine().bench().version()
    }
}
