//! Work that takes long: the process does nothing else meanwhile, its heart beats, and its
//! heartbeats report that it gets on.

use zbelastic_consensus::message::HeldLayer;
use zbelastic_consensus::session::{SessionInput, WorkerEvent};
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_trainer::runtime::{PeerBody, RuntimeOutput};
use zbelastic_types::{LayerId, NodeId, Step};

use super::{WorkerProcess, World, WorldEvent};
use crate::failure::{Invariant, LifeFailure};
use crate::markers::Marker;
use crate::queue::VirtualTime;
use crate::work_durations::{BEAT_US, LongWork, STUCK_SHARE};

/// After so long what was requested was once taken for lost: 4 times 40 ticks.
const OLD_INVENTORY_US: u64 = 8_000_000;
/// Work of more than this is long beyond doubt.
const HUNDRED_BEATS_US: u64 = 100 * BEAT_US;

/// The open version, and since when.
pub(super) type OpenVersion = (Step, VirtualTime);

impl<M: StageFactory, S: BatchSource + Clone> WorkerProcess<M, S> {
    /// Whether it does anything that takes time.
    fn is_at_work(&self) -> bool {
        !self.is_hung && (self.busy.is_some() || self.transfers > 0)
    }
}

impl<M: StageFactory, S: BatchSource + Clone> World<'_, M, S> {
    /// How long a piece of work takes, if it takes longer than in other lives.
    pub(super) fn long_us(&mut self, work: LongWork) -> Option<u64> {
        let (us, share) = self.case.options.pace?.of(work);
        if us > self.long_us_left || !self.draws_pace.chance(share) {
            return None;
        }
        self.long_us_left -= us;
        Some(us)
    }

    /// What a process works on for long before it reports it.
    pub(super) fn long_answer(&mut self, output: &RuntimeOutput) -> Option<(LongWork, u64)> {
        let work = match output {
            RuntimeOutput::Event(WorkerEvent::Inventory { .. }) => LongWork::Hash,
            RuntimeOutput::Event(WorkerEvent::Loaded { .. }) => LongWork::Load,
            RuntimeOutput::Event(_)
            | RuntimeOutput::Peer { .. }
            | RuntimeOutput::Read { .. }
            | RuntimeOutput::Write { .. }
            | RuntimeOutput::Evaluated { .. } => return None,
        };
        self.long_us(work).map(|us| (work, us))
    }

    /// A process begins to work on an answer, and gets on with it or not.
    pub(super) fn begin_answer(
        &mut self,
        node: NodeId,
        output: RuntimeOutput,
        (work, us): (LongWork, u64),
    ) {
        let is_stuck = !self.is_calm && self.draws_pace.chance(STUCK_SHARE);
        let now = self.now;
        let machine = self.workers.get_mut(&node).expect("a worker");
        let life = machine.life;
        let process = machine.process.as_mut().expect("it runs");
        let rest = std::iter::from_fn(|| process.runtime.poll_output());
        let outputs = std::iter::once(output).chain(rest).collect();
        process.op_number += 1;
        let number = process.op_number;
        process.busy = Some((number, outputs));
        process.is_hung = is_stuck;
        if is_stuck {
            self.checker.damage.disturbed(node, now);
            self.note(|| format!("w{node} gets stuck: {work:?}"));
        } else {
            self.note(|| format!("w{node} works for {} ms: {work:?}", us / 1000));
            self.note_long(work, us);
            self.queue.push(now.after(us), WorldEvent::OpDone { node, life, number });
        }
    }

    pub(super) fn note_long(&mut self, work: LongWork, us: u64) {
        let is_long = us > HUNDRED_BEATS_US;
        let marker = match work {
            LongWork::Hash => Some(Marker::LateInventory).filter(|_| us > OLD_INVENTORY_US),
            LongWork::Op => Some(Marker::LongOperation).filter(|_| is_long),
            LongWork::Load | LongWork::Serve | LongWork::Read => {
                Some(Marker::LongLoad).filter(|_| is_long)
            }
            LongWork::Write => Some(Marker::LongWrite).filter(|_| is_long),
        };
        if let Some(marker) = marker {
            self.mark(marker);
        }
    }

    /// When something that a process waits for is over; until then it counts as getting on.
    pub(super) fn transfer_ends(
        &mut self,
        node: NodeId,
        work: LongWork,
        usual_us: u64,
    ) -> VirtualTime {
        let long = self.long_us(work);
        if let Some(us) = long {
            self.note_long(work, us);
        }
        let machine = self.workers.get_mut(&node).expect("a worker");
        if let Some(process) = &mut machine.process {
            process.transfers += 1;
        }
        self.now.after(long.unwrap_or(usual_us))
    }

    /// A transfer of this life of a worker is over.
    pub(super) fn transfer_ended(&mut self, node: NodeId, life: u64) {
        let machine = self.workers.get_mut(&node).filter(|machine| machine.life == life);
        if let Some(process) = machine.and_then(|machine| machine.process.as_mut()) {
            process.transfers -= 1;
            process.done += 1;
        }
    }

    /// A frame leaves, if it is one that takes long later.
    pub(super) fn send_frame(
        &mut self,
        node: NodeId,
        to: NodeId,
        frame: zbelastic_trainer::runtime::PeerFrame,
    ) {
        let is_layer = matches!(frame.body, PeerBody::Layer(_));
        let long = if is_layer { self.long_us(LongWork::Serve) } else { None };
        let Some(us) = long else { return self.send_peer(node, to, frame) };
        self.note_long(LongWork::Serve, us);
        let machine = self.workers.get_mut(&node).expect("a worker");
        let life = machine.life;
        if let Some(process) = &mut machine.process {
            process.transfers += 1;
        }
        let frame = Box::new(frame);
        self.queue.push(self.now.after(us), WorldEvent::Served { node, life, to, frame });
    }

    pub(super) fn handle_served(
        &mut self,
        node: NodeId,
        life: u64,
        to: NodeId,
        frame: zbelastic_trainer::runtime::PeerFrame,
    ) {
        if self.workers.get(&node).is_some_and(|machine| machine.life == life) {
            self.transfer_ended(node, life);
            self.send_peer(node, to, frame);
        }
    }

    /// A worker's process counts what it has done, and its heartbeats report the count.
    pub(super) fn report_progress(&mut self, node: NodeId) {
        let machine = self.workers.get_mut(&node);
        let Some(process) = machine.and_then(|machine| machine.process.as_mut()) else { return };
        process.done += u64::from(process.is_at_work());
        let done = process.done;
        self.session_input(node, SessionInput::Event(WorkerEvent::Progress { done }));
    }

    /// L4: no sealed version is given up for want of a layer that a living member holds, unless
    /// that member has itself answered that it does not.
    pub(super) fn check_holders(&mut self, at: NodeId, layer: LayerId) {
        let Some((version, since)) = self.open else { return };
        let core = self.controllers[&at].core.as_ref().expect("it applied something");
        let is_it = |held: &HeldLayer| held.layer == layer && held.version == version;
        let found = self.workers.iter().find(|(_, machine)| {
            let Some(process) = &machine.process else { return false };
            let is_live =
                process.session.holder().is_some_and(|holder| core.state().is_live(holder));
            let inventory = process.reported_inventory.as_ref().filter(|(at, _)| *at >= since);
            let has_denied = inventory.is_some_and(|(_, layers)| !layers.iter().any(is_it));
            is_live && !has_denied && process.runtime.inventory().iter().any(is_it)
        });
        if let Some(node) = found.map(|(node, _)| *node) {
            let message = format!(
                "the run goes back for layer {layer} of version {version}, which w{node} holds"
            );
            self.fail(LifeFailure::safety(Invariant::L4, message));
        }
    }
}
