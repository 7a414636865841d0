//! Work that lasts long: the process does nothing else meanwhile, its heart beats, and its
//! heartbeats report that it gets on.

use zbelastic_consensus::session::{SessionInput, WorkerEvent};
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_trainer::runtime::{PeerBody, RuntimeOutput};
use zbelastic_types::NodeId;

use super::WorldEvent;
use super::machines::WorkerProcess;
use super::surroundings::Surroundings;
use super::workers::Workers;
use crate::queue::VirtualTime;
use crate::work_durations::{LongWork, STUCK_SHARE};

impl<M: StageFactory, S: BatchSource + Clone> WorkerProcess<M, S> {
    /// Whether it does anything that needs time.
    fn is_at_work(&self) -> bool {
        !self.is_hung && (self.busy.is_some() || self.transfers > 0)
    }
}

impl<M: StageFactory, S: BatchSource + Clone> Workers<M, S> {
    /// A process begins to work on an answer, and gets on with it or not.
    pub(super) fn begin_answer(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        output: RuntimeOutput,
        (work, us): (LongWork, u64),
    ) {
        let is_stuck = !env.is_calm && env.draws_pace.chance(STUCK_SHARE);
        let now = env.now;
        let machine = self.machines.get_mut(&node).expect("a worker");
        let life = machine.life;
        let process = machine.process.as_mut().expect("it runs");
        let rest = std::iter::from_fn(|| process.runtime.poll_output());
        let outputs = std::iter::once(output).chain(rest).collect();
        process.op_number += 1;
        let number = process.op_number;
        process.busy = Some((number, outputs));
        process.is_hung = is_stuck;
        if is_stuck {
            env.note(|| format!("w{node} gets stuck: {work:?}"));
        } else {
            env.note(|| format!("w{node} works for {} ms: {work:?}", us / 1000));
            env.note_long(work, us);
            env.queue.push(now.after(us), WorldEvent::OpDone { node, life, number });
        }
    }

    /// When something that a process waits for is over; until then it counts as getting on.
    pub(super) fn transfer_ends(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        work: LongWork,
        usual_us: u64,
    ) -> VirtualTime {
        let long = env.long_us(work);
        if let Some(us) = long {
            env.note_long(work, us);
        }
        let machine = self.machines.get_mut(&node).expect("a worker");
        if let Some(process) = &mut machine.process {
            process.transfers += 1;
        }
        env.now.after(long.unwrap_or(usual_us))
    }

    /// A transfer of this life of a worker is over.
    pub(super) fn transfer_ended(&mut self, node: NodeId, life: u64) {
        let machine = self.machines.get_mut(&node).filter(|machine| machine.life == life);
        if let Some(process) = machine.and_then(|machine| machine.process.as_mut()) {
            process.transfers -= 1;
            process.done += 1;
        }
    }

    /// Sends a frame; a layer that is served for long leaves later.
    pub(super) fn send_frame(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        to: NodeId,
        frame: zbelastic_trainer::runtime::PeerFrame,
    ) {
        let is_layer = matches!(frame.body, PeerBody::Layer(_));
        let long = if is_layer { env.long_us(LongWork::Serve) } else { None };
        let Some(us) = long else {
            let is_flipped = self.machines[&node].has_flipped_layer(&frame);
            return env.send_peer(node, to, (frame, is_flipped));
        };
        env.note_long(LongWork::Serve, us);
        let machine = self.machines.get_mut(&node).expect("a worker");
        let life = machine.life;
        if let Some(process) = &mut machine.process {
            process.transfers += 1;
        }
        let frame = Box::new(frame);
        env.queue.push(env.now.after(us), WorldEvent::Served { node, life, to, frame });
    }

    pub(super) fn handle_served(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        life: u64,
        to: NodeId,
        frame: zbelastic_trainer::runtime::PeerFrame,
    ) {
        if self.machines.get(&node).is_some_and(|machine| machine.life == life) {
            self.transfer_ended(node, life);
            let is_flipped = self.machines[&node].has_flipped_layer(&frame);
            env.send_peer(node, to, (frame, is_flipped));
        }
    }

    /// A worker's process counts the work that it has done, and its heartbeats report the count.
    pub(super) fn report_progress(&mut self, env: &mut Surroundings<'_>, node: NodeId) {
        let machine = self.machines.get_mut(&node);
        let Some(process) = machine.and_then(|machine| machine.process.as_mut()) else { return };
        process.done += u64::from(process.is_at_work());
        let done = process.done;
        self.session_input(env, node, SessionInput::Event(WorkerEvent::Progress { done }));
    }
}
