//! Counters of a device thread that an event loop reads without a request: whether an operation is
//! under way, how much was done, and how far an evaluation is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zbelastic_types::{LayerId, Step};

use crate::WorkCounter;

/// How far an evaluation is, as the device thread sets it and the event loop reads it; and whether
/// it waits, as the event loop sets it and the device thread reads it.
#[derive(Debug, Default)]
pub struct EvaluationGauge {
    packed: AtomicU64,
    waits: AtomicBool,
}

impl EvaluationGauge {
    /// Passes that ran, and all of them; none if no evaluation is under way.
    pub fn set(&self, passes: Option<(u32, u32)>) {
        let packed = passes.map_or(0, |(done, total)| u64::from(done) << 32 | u64::from(total));
        self.packed.store(packed, Ordering::Relaxed);
    }

    /// As it was set last.
    #[must_use]
    pub fn get(&self) -> Option<(u32, u32)> {
        let packed = self.packed.load(Ordering::Relaxed);
        (packed != 0).then_some(((packed >> 32) as u32, packed as u32))
    }

    /// Holds its passes back, or lets them run.
    pub fn set_waiting(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// Whether its passes wait: the processor is needed for a checkpoint or for a model that is
    /// written.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }
}

/// Counters of the device thread that the event loop reads without a request.
#[derive(Debug, Default)]
pub struct DeviceGauge {
    /// Operations begun and ended: odd while one is under way.
    edges: AtomicU64,
    /// Operations that ran, and commands that were executed.
    work: WorkCounter,
    /// Commands begun and commands done: odd while one is under way.
    command_edges: AtomicU64,
    evaluation: EvaluationGauge,
    /// Bytes of layers that were made as a run begins with them.
    drawn: WorkCounter,
    /// One more than the layer whose exchange with other islands is awaited; 0 for none.
    awaited_layer: AtomicU64,
    /// One more than the step whose tokens are awaited; 0 for none.
    awaited_step: AtomicU64,
}

impl DeviceGauge {
    /// Counts each begin and end; odd while an operation is under way.
    #[must_use]
    pub fn edges(&self) -> u64 {
        self.edges.load(Ordering::Acquire)
    }

    /// The work that the device has done.
    #[must_use]
    pub fn work(&self) -> &WorkCounter {
        &self.work
    }

    /// Counts each begin and end of a command; odd while one is executed.
    #[must_use]
    pub fn command_edges(&self) -> u64 {
        self.command_edges.load(Ordering::Acquire)
    }

    /// How far the evaluation under way is.
    #[must_use]
    pub fn evaluation(&self) -> &EvaluationGauge {
        &self.evaluation
    }

    /// Bytes of layers that were made as a run begins with them.
    #[must_use]
    pub fn drawn(&self) -> &WorkCounter {
        &self.drawn
    }

    /// The layer whose exchange with other islands is awaited, if a step waits for one.
    #[must_use]
    pub fn awaited_layer(&self) -> Option<LayerId> {
        let layer = self.awaited_layer.load(Ordering::Relaxed).checked_sub(1);
        layer.map(|layer| LayerId(layer as u32))
    }

    /// Sets it.
    pub fn set_awaited_layer(&self, layer: Option<LayerId>) {
        let number = layer.map_or(0, |layer| u64::from(layer.0) + 1);
        self.awaited_layer.store(number, Ordering::Relaxed);
    }

    /// The step whose tokens are awaited, if one waits for them.
    #[must_use]
    pub fn awaited_step(&self) -> Option<Step> {
        self.awaited_step.load(Ordering::Relaxed).checked_sub(1).map(Step)
    }

    /// Sets it.
    pub fn set_awaited_step(&self, step: Option<Step>) {
        self.awaited_step.store(step.map_or(0, |step| step.0 + 1), Ordering::Relaxed);
    }

    /// An operation begins, or ends.
    pub fn mark_edge(&self) {
        self.edges.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts that a command begins or ended.
    pub fn mark_command_edge(&self) {
        self.command_edges.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluation_is_read_as_it_was_set() {
        let gauge = EvaluationGauge::default();
        for passes in [None, Some((0, 7)), Some((7, 7)), None] {
            gauge.set(passes);
            assert_eq!(gauge.get(), passes);
        }
    }

    #[test]
    fn clones_of_a_count_count_together() {
        let count = WorkCounter::default();
        count.clone().add(3);
        count.shared().fetch_add(4, Ordering::Relaxed);
        assert_eq!(count.total(), 7);
    }
}
