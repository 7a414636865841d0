//! The machines of workers: seat and host.

use std::sync::Arc;

use zbelastic_consensus::contact::Contact;
use zbelastic_consensus::member::Resources;
use zbelastic_consensus::message::Envelope;
use zbelastic_consensus::rehearsal::Rehearsal;
use zbelastic_consensus::seat::{News, Order, Seat, SeatInput, SeatOutput, SeatSetup, SeatTiming};
use zbelastic_consensus::validation::Verdict;
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::{ComputeModel, GRADIENT_ROOM};
use zbelastic_trainer::host::{Host, HostInput, HostSetup};
use zbelastic_types::{Bytes, NodeId};

use super::{Event, Packet, Process, WorkerMachine, World};
use crate::bug::{self, Bug};
use crate::crash_points::CrashPoint;
use crate::network::Lane;
use crate::queue::Moment;

/// Until a process that was ended is started again.
const RESPAWN_US: u64 = 400_000;
const SEAT_TIMING: SeatTiming = SeatTiming { beat_ticks: 4, resend_ticks: 5 };

impl<M: ComputeModel, S: BatchSource + Clone> World<'_, M, S> {
    /// A machine that was not there before.
    pub(super) fn add_worker(&mut self) -> NodeId {
        let node = self.new_node();
        let tick_us = self.draw_tick_us();
        let machine = WorkerMachine {
            life: 0,
            boot: 0,
            process: None,
            paused_until: Moment(0),
            tick_us,
            slow_factor: 1,
            slow_until: Moment(0),
            hangs_next: false,
            faults: crate::numeric::NumericFaults::default(),
            is_gone: false,
        };
        self.workers.insert(node, machine);
        let is_first = self.now == Moment(0);
        self.choose_program(node, is_first);
        self.restart_worker(node);
        node
    }

    pub(super) fn restart_worker(&mut self, node: NodeId) {
        let boot = self.new_boot();
        let setup = SeatSetup {
            cluster: self.cluster,
            node,
            boot,
            resources: Resources {
                memory: Bytes(1 << 30),
                speed_permille: 1000,
                class: zbelastic_consensus::class::DeviceClass::Processors,
            },
            contact: Contact::of_node(node),
            controllers: self.controllers_in_use(),
            timing: SEAT_TIMING,
        };
        let host_setup =
            HostSetup { stage: self.setup.stage.clone(), gradient_room: GRADIENT_ROOM };
        let machine = self.workers.get_mut(&node).expect("a worker");
        if machine.process.is_some() || machine.is_gone {
            return;
        }
        let model = (self.setup.model)(&machine.faults);
        let starts_again = machine.life > 0;
        machine.life += 1;
        machine.boot = boot;
        machine.process = Some(Process {
            seat: Seat::new(setup),
            host: Host::new(host_setup, model, self.setup.source.clone()),
            busy: None,
            backlog: Vec::new(),
            op_number: 0,
            is_hung: false,
            done: 0,
            transfers: 0,
            inventory_told: None,
            checked: None,
            may_follow_flipped: false,
            last_program: None,
        });
        let (life, tick_us) = (machine.life, machine.tick_us);
        self.queue.push(self.now.after(tick_us), Event::Tick(node, life));
        if starts_again {
            self.choose_program(node, false);
        }
        self.note(|| format!("w{node} starts"));
    }

    /// Controllers that may be named to a worker.
    pub(super) fn controllers_in_use(&self) -> Vec<NodeId> {
        let in_use = self.controllers.iter().filter(|(_, machine)| !machine.is_condemned);
        in_use.map(|(node, _)| *node).collect()
    }

    /// Everybody learns of other controllers.
    pub(super) fn tell_controllers(&mut self) {
        let (cluster, controllers) = (self.cluster, self.controllers_in_use());
        let nodes: Vec<NodeId> = self.workers.keys().copied().collect();
        for node in nodes {
            let input = SeatInput::Controllers { cluster, controllers: controllers.clone() };
            self.advise(node, input);
        }
    }

    /// The operator of the cluster sends a worker an input; it arrives when the worker does not stand still.
    pub(super) fn advise(&mut self, node: NodeId, input: SeatInput) {
        let Some(machine) = self.workers.get(&node) else { return };
        let life = machine.life;
        match self.paused_until(node) {
            Some(until) => {
                self.queue.push(until, Event::Advice { node, life, input: Box::new(input) });
            }
            None => self.seat_input(node, input),
        }
    }

    pub(super) fn handle_advice(&mut self, node: NodeId, life: u64, input: SeatInput) {
        if self.workers.get(&node).is_some_and(|machine| machine.life == life) {
            self.seat_input(node, input);
        }
    }

    pub(super) fn tick_worker(&mut self, node: NodeId, life: u64) {
        let Some(machine) = self.workers.get_mut(&node) else { return };
        if machine.life != life {
            return;
        }
        self.queue.push(self.now.after(machine.tick_us), Event::Tick(node, life));
        self.tell_progress(node);
        self.seat_input(node, SeatInput::Tick);
        self.host_input(node, life, HostInput::Tick);
    }

    pub(super) fn seat_message(&mut self, from: NodeId, to: NodeId, message: Box<Envelope>) {
        self.seat_input(to, SeatInput::Message { from, message });
    }

    pub(super) fn seat_input(&mut self, node: NodeId, input: SeatInput) {
        let Some(machine) = self.workers.get_mut(&node) else { return };
        let Some(process) = &mut machine.process else { return };
        // A briefing that is refused changes nothing.
        let _ = process.seat.handle(input);
        self.drive_seat(node);
    }

    pub(super) fn tell_seat(&mut self, node: NodeId, news: News) {
        let point = match &news {
            News::Reported { .. } => Some(CrashPoint::BeforeReport),
            News::Saved { .. } => Some(CrashPoint::PiecesDoneBeforeTold),
            News::Following { .. } => Some(CrashPoint::FollowingBeforeTold),
            News::Busy { .. }
            | News::Progress { .. }
            | News::Waited { .. }
            | News::Held(_)
            | News::Inventory { .. }
            | News::Loaded { .. }
            | News::LoadFailed { .. } => None,
        };
        if point.is_some_and(|point| self.hits(point)) {
            self.crash_here(node);
            return;
        }
        if let News::Inventory { layers, .. } = &news
            && let Some(process) = self.workers.get_mut(&node).and_then(|m| m.process.as_mut())
        {
            process.inventory_told = Some((self.now, layers.clone()));
        }
        self.seat_input(node, SeatInput::News(news));
    }

    fn drive_seat(&mut self, node: NodeId) {
        loop {
            let Some(machine) = self.workers.get_mut(&node) else { return };
            let life = machine.life;
            let Some(process) = &mut machine.process else { return };
            let Some(output) = process.seat.poll_output() else { return };
            match output {
                SeatOutput::Send { to, message } => {
                    self.send(node, to, Lane::Control, Packet::Control(message));
                }
                SeatOutput::Order(order) => {
                    let is_settle = matches!(order, Order::Settle(_));
                    if is_settle && self.hits(CrashPoint::BeforeStageApply) {
                        self.crash_here(node);
                        return;
                    }
                    let is_run = matches!(order, Order::Run { .. });
                    if is_run && self.hits(CrashPoint::BeforeStep) {
                        self.crash_here(node);
                        return;
                    }
                    let order = self.tampered(node, order);
                    self.note_order(node, &order);
                    if order == Order::Forget && self.is_hung(node) {
                        // Nothing ends an operation that hangs but the end of its process.
                        self.crash(node, Some(RESPAWN_US));
                        return;
                    }
                    self.host_input(node, life, HostInput::Order(order));
                }
            }
        }
    }

    fn is_hung(&self, node: NodeId) -> bool {
        let process = self.workers.get(&node).and_then(|machine| machine.process.as_ref());
        process.is_some_and(|process| process.is_hung)
    }

    /// What a machine with a known bug does to an order.
    fn tampered(&mut self, node: NodeId, order: Order) -> Order {
        if let Order::Settle(seal) = &order {
            let is_replaying = seal.verdict == Verdict::Replay;
            self.workers[&node].faults.borrow_mut().is_replaying = is_replaying;
        }
        let Order::Load(mut load) = order else { return order };
        let process = self.workers.get_mut(&node).and_then(|machine| machine.process.as_mut());
        let program = load.plan.program.clone();
        let before = process.and_then(|process| process.last_program.replace(program));
        if let Some(program) = before.filter(|before| {
            bug::is(Bug::M5OldProgram) && before.placement == load.plan.program.placement
        }) {
            let mut plan = (*load.plan).clone();
            plan.program = program;
            load.plan = Arc::new(plan);
        }
        Order::Load(load)
    }

    fn note_order(&mut self, node: NodeId, order: &Order) {
        match order {
            Order::Settle(_) | Order::Release | Order::TakeInventory { .. } => {}
            Order::Stop => self.note(|| format!("w{node} stops")),
            Order::Rehearse { me, rehearsal } => {
                self.rehearsal.clone_from(rehearsal);
                let followed = |r: &Arc<Rehearsal>| r.followed_by(*me).count();
                let count = rehearsal.as_ref().map_or(0, followed);
                self.note(|| format!("w{node} follows {count} layers"));
            }
            Order::GoBack => {
                self.forget_flip(node);
                self.note(|| format!("w{node} goes back"));
            }
            Order::Load(load) => {
                let (generation, stage) = (load.plan.generation, load.stage);
                self.note(|| format!("w{node} loads stage {stage} of generation {generation}"));
            }
            Order::Run { generation } => {
                self.note(|| format!("w{node} runs generation {generation}"));
            }
            Order::Save { version, .. } => {
                self.note(|| format!("w{node} is to write version {version}"));
            }
            Order::Forget => {
                self.forget_flip(node);
                self.note(|| format!("w{node} is fenced off and forgets"));
            }
        }
    }

    /// A node gives up what it holds. If a bit of it was flipped, others may follow that until
    /// they have given it up too.
    fn forget_flip(&mut self, node: NodeId) {
        let is_flipped = self.workers[&node].faults.borrow().flipped().is_some();
        self.workers[&node].faults.borrow_mut().forget_flip();
        for (other, machine) in &mut self.workers {
            let Some(process) = &mut machine.process else { continue };
            process.may_follow_flipped =
                *other != node && (is_flipped || process.may_follow_flipped);
        }
    }

    pub(super) fn handle_leave(&mut self, node: NodeId, life: u64) {
        let Some(machine) = self.workers.get_mut(&node) else { return };
        if machine.life == life {
            machine.is_gone = true;
            self.crash(node, None);
        }
    }
}
