//! When checkpoints were due, and when they became durable.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use zbelastic_types::Step;

/// The times of the checkpoints that are kept, and of those under way.
#[derive(Debug, Default)]
pub struct CheckpointTimes {
    /// When a checkpoint's step was sealed.
    due_at: BTreeMap<Step, Instant>,
    /// When checkpoints became durable, in milliseconds since 1970.
    durable_ms: BTreeMap<Step, u64>,
}

impl CheckpointTimes {
    /// The step of a checkpoint was sealed.
    pub fn note_due(&mut self, version: Step, now: Instant) {
        self.due_at.insert(version, now);
    }

    /// A checkpoint became durable, and others are dropped. Yields how long that took.
    pub fn note_durable(
        &mut self,
        version: Step,
        dropped: &[Step],
        (now, now_ms): (Instant, u64),
    ) -> Option<Duration> {
        self.durable_ms.retain(|step, _| !dropped.contains(step));
        self.durable_ms.insert(version, now_ms);
        let since = self.due_at.remove(&version);
        self.due_at.retain(|step, _| *step > version);
        since.map(|since| now - since)
    }

    /// The run went back: no checkpoint is under way.
    pub fn clear_due(&mut self) {
        self.due_at.clear();
    }

    /// When a checkpoint became durable, in milliseconds since 1970.
    pub fn durable_ms(&self, version: Step) -> Option<u64> {
        self.durable_ms.get(&version).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_timed_from_its_seal_unless_a_newer_one_or_a_rewind_came_before() {
        let start = Instant::now();
        let at = |ms| (start + Duration::from_millis(ms), 1000 + ms);
        let mut times = CheckpointTimes::default();
        for version in [4, 8, 12, 16] {
            times.note_due(Step(version), start);
        }
        let took = times.note_durable(Step(8), &[], at(30));
        assert_eq!(took, Some(Duration::from_millis(30)));
        assert_eq!(times.note_durable(Step(4), &[], at(40)), None, "a newer one is durable");
        times.clear_due();
        assert_eq!(times.note_durable(Step(12), &[Step(4), Step(8)], at(50)), None);
        let durable = [4, 8, 12].map(|version| times.durable_ms(Step(version)));
        assert_eq!(durable, [None, None, Some(1050)]);
    }
}
