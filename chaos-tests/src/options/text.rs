//! The options of a life as text.

use std::fmt;

use super::LifeOptions;

impl fmt::Display for LifeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, controllers, workers, blocks, microbatches, steps, kind, .. } = self;
        writeln!(
            f,
            "{model:?} model, {controllers} controllers, {workers} workers, {blocks} blocks, \
             {microbatches} microbatches, {} lanes, {} replicas, {steps} steps, {kind}, window {:?}",
            self.lanes, self.replicas, self.window
        )?;
        writeln!(
            f,
            "copies {}, checkpoint every {} or {} ticks keep {}, attest every {}, {:?} with {} replays, \
             spike guard {} with {} spikes, clip share {}, operations up to {} ms, storm {} s or \
             until {} steps are left",
            self.copies,
            self.checkpoint_every,
            self.checkpoint_ticks,
            self.checkpoints_kept,
            self.attest_every,
            self.nonfinite,
            self.replays,
            self.spike_guard,
            self.spike_share,
            self.clip_share,
            self.op_us_max / 1000,
            self.storm_us / 1_000_000,
            self.steps_after
        )?;
        if self.sharded {
            writeln!(f, "the optimizer is sharded")?;
        }
        if self.old_programs {
            writeln!(f, "programs are changed")?;
        }
        if let Some(islands) = &self.islands {
            writeln!(f, "{islands:?}")?;
        }
        if let Some(arithmetic) = &self.arithmetic {
            writeln!(f, "{arithmetic:?}")?;
        }
        if let Some(pace) = &self.pace {
            writeln!(f, "work that takes long {pace:?}")?;
        }
        writeln!(f, "network {:?}", self.network)?;
        write!(f, "faults {:?}", self.classes)
    }
}
