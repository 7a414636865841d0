//! Faults of disks and of numbers.

use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_types::NodeId;

use super::WorldEvent;
use super::storm::{StormFaults, pick};
use crate::numeric_faults::NumericFault;
use crate::options::ComputeModelKind;
use crate::queue::VirtualTime;

/// Within this time a disk that was set back is found out.
const FOUND_OUT_US: u64 = 4_000_000;
/// Until a controller with a flipped bit on its disk starts again.
const FLIPPED_US: u64 = 200_000;
/// Stages from which on a device that is always wrong can be distinguished from those it
/// contradicts.
const STAGES_TO_BLAME: usize = 3;

impl<M: StageFactory, S: BatchSource + Clone> StormFaults<'_, '_, M, S> {
    pub(super) fn slow_disk(&mut self, draw: u64, sync_us: u64, us: u64) -> bool {
        let Some(node) = pick(&self.world.controllers.controllers_in_use(), draw) else {
            return false;
        };
        let machine = self.world.controllers.machines.get_mut(&node).expect("in use");
        machine.sync_us_extra = sync_us;
        self.world.env.queue.push(self.world.env.now.after(us), WorldEvent::DiskRecovers(node));
        machine.core.is_some()
    }

    /// A controller that may lose its disk, so that a majority stays. If there is none, nothing
    /// strikes.
    fn spare_controller(&mut self, draw: u64) -> Option<NodeId> {
        let node = pick(&self.world.controllers.controllers_in_use(), draw);
        node.filter(|node| self.world.controllers.can_lose(&self.world.env, *node))
    }

    pub(super) fn fail_disk(&mut self, draw: u64) -> bool {
        let Some(node) = self.spare_controller(draw) else { return false };
        self.world.controllers.machines.get_mut(&node).expect("in use").disk.fails = true;
        true
    }

    pub(super) fn lose_disk(&mut self, draw: u64) -> bool {
        let Some(node) = self.spare_controller(draw) else { return false };
        self.world.crash(node, None);
        self.world.condemn(node);
        true
    }

    pub(super) fn flip_disk(&mut self, draw: u64) -> bool {
        let Some(node) = self.spare_controller(draw) else { return false };
        self.world.crash(node, Some(FLIPPED_US));
        let machine = self.world.controllers.machines.get_mut(&node).expect("in use");
        machine.disk.flip(&mut self.world.env.draws_disk)
    }

    pub(super) fn set_disk_back_later(&mut self, draw: u64, age_us: u64) -> bool {
        let Some(node) = self.spare_controller(draw) else { return false };
        self.world.controllers.machines.get_mut(&node).expect("in use").disk.take_image();
        let imaged_at = self.world.env.now;
        self.world
            .env
            .queue
            .push(self.world.env.now.after(age_us), WorldEvent::StaleDisk { node, imaged_at });
        false
    }

    /// A disk that was set back within its present boot is found out by controllers that saw the
    /// later entries, if they are there. So they are.
    pub(super) fn set_disk_back(&mut self, node: NodeId, imaged_at: VirtualTime) {
        let are_witnesses = self.world.controllers.machines.iter().all(|(other, machine)| {
            let is_fit = machine.started_at <= imaged_at && machine.sync_us_extra == 0;
            machine.is_condemned || *other == node || is_fit
        });
        let is_busy = self.world.env.is_calm
            || self.world.env.now < self.world.env.storm.undisturbed_until
            || !self.world.env.network.is_whole();
        if is_busy || !are_witnesses || !self.world.controllers.can_lose(&self.world.env, node) {
            return;
        }
        self.world.env.storm.undisturbed_until = self.world.env.now.after(FOUND_OUT_US);
        self.world.crash(node, None);
        self.world.note_injected();
        let machine = self.world.controllers.machines.get_mut(&node).expect("a controller");
        let is_older = machine.disk.restore_image();
        self.world
            .env
            .note(|| format!("n{node} comes back with the disk of a while ago: {is_older}"));
        self.world.restart_controller(node);
    }

    pub(super) fn fail_store(&mut self, us: u64) -> bool {
        self.world.env.store.fails = true;
        self.world.env.queue.push(self.world.env.now.after(us), WorldEvent::StoreRecovers);
        true
    }

    pub(super) fn flip_store(&mut self) -> bool {
        let Some((version, layer, _)) = self.world.env.store.flip(&mut self.world.env.draws_store)
        else {
            return false;
        };
        self.world.env.note(|| format!("layer {layer} of checkpoint {version} is damaged"));
        true
    }

    pub(super) fn mark_gradients(&mut self, draw: u64, infinite: bool, times: u32) -> bool {
        let mark = if infinite { f32::INFINITY } else { f32::NAN };
        let Some(machine) = self.some_worker(draw) else { return false };
        machine.faults.borrow_mut().plan(NumericFault::Mark(mark, times));
        true
    }

    /// Numbers go wrong only where another node is there to notice: a wrong number that is promised
    /// to no copy is right by definition.
    pub(super) fn spoil(&mut self, draw: u64, fault: NumericFault) -> bool {
        if self.stages_with_copies() == 0 {
            return false;
        }
        let Some(machine) = self.some_worker(draw) else { return false };
        machine.faults.borrow_mut().plan(fault);
        true
    }

    /// The real kernels have no place where a bit of a state can be flipped from outside.
    pub(super) fn flip_state(&mut self, draw: u64, bit: u32) -> bool {
        match self.world.env.case.options.model {
            ComputeModelKind::Digest => self.spoil(draw, NumericFault::StateFlip(1 << bit)),
            ComputeModelKind::Float => false,
        }
    }

    pub(super) fn break_device(&mut self, draw: u64) -> bool {
        let is_one_broken =
            self.world.workers.machines.values().any(|m| m.faults.borrow().always_wrong);
        if is_one_broken || self.stages_with_copies() < STAGES_TO_BLAME {
            return false;
        }
        let Some(machine) = self.some_worker(draw) else { return false };
        machine.faults.borrow_mut().always_wrong = true;
        true
    }

    /// Stages of the plan in force, if others keep their updates.
    fn stages_with_copies(&self) -> usize {
        let plan = self
            .world
            .controllers
            .newest_core(&self.world.env)
            .and_then(|core| core.state().plan());
        let kept = plan.filter(|plan| plan.record.promise.is_given());
        kept.map_or(0, |plan| plan.record.stages.len())
    }
}
