//! How long islands take that a link of some bandwidth joins.

use zbelastic_types::{LayerId, Step};

use super::schedule::OuterSchedule;

/// The times of an island.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IslandPace {
    /// Time of a step, in any unit.
    pub step: f64,
    /// Time that a step takes longer which nothing may run ahead of.
    pub drain: f64,
    /// Bytes that the link from the other islands carries in a unit of time.
    pub bytes_per_unit: f64,
}

/// Where the time of an island went, in the unit of its pace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IslandTimes {
    /// Steps.
    pub computed: f64,
    /// Steps that nothing may run ahead of.
    pub drained: f64,
    /// Waits for weights of other islands.
    pub waited: f64,
}

impl IslandTimes {
    /// The share of the time in which steps were computed.
    #[must_use]
    pub fn compute_share(&self) -> f64 {
        self.computed / (self.computed + self.drained + self.waited)
    }
}

/// The times of so many steps, where all islands are as fast as each other. Weights are durable in an
/// island's own folder at once, and the link to the others' carries one layer after the other, in the order
/// in which they were sent. `layer_bytes` are those of the trained floats of each layer.
#[must_use]
pub fn island_times(
    schedule: &OuterSchedule,
    steps: u64,
    layer_bytes: &[u64],
    pace: IslandPace,
) -> IslandTimes {
    let others = f64::from(schedule.config().islands - 1);
    let mut arrivals = vec![0.0_f64; layer_bytes.len()];
    let mut link_free: f64 = 0.0;
    let mut now = 0.0;
    let mut times = IslandTimes::default();
    for step in 0..steps {
        now += pace.step;
        times.computed += pace.step;
        let version = Step(step + 1);
        let layers = || (0..).map(LayerId).zip(layer_bytes);
        let mixed = layers().filter(|(layer, _)| schedule.mixed_at(*layer, version).is_some());
        let here = mixed.map(|(layer, _)| arrivals[layer.index()]).fold(now, f64::max);
        times.waited += here - now;
        now = here;
        if schedule.mixes_any(version) {
            now += pace.drain;
            times.drained += pace.drain;
        }
        for (layer, bytes) in layers().filter(|(it, _)| schedule.sent_at(*it, version).is_some()) {
            link_free = link_free.max(now) + *bytes as f64 * others / pace.bytes_per_unit;
            arrivals[layer.index()] = link_free;
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outer::OuterConfig;
    use crate::outer::schedule::tests::model;

    /// Six layers of as many bytes: a step of plain replicas on two islands sends all of them, in f32 as
    /// here, and takes as long over the link as it computes.
    const LAYER_BYTES: [u64; 6] = [1000; 6];
    const STEPS: u64 = 2000;
    const STEP: f64 = 1.0;

    fn share(every: u64, fragments: u32, overlap: u64, bandwidth_share: f64) -> f64 {
        let config = OuterConfig {
            islands: 2,
            island: 0,
            every,
            fragments,
            overlap,
            local_share: 0.5,
            lr: 0.7,
            momentum: 0.9,
        };
        let schedule = OuterSchedule::new(config, &model(false), STEPS);
        let all: u64 = LAYER_BYTES.iter().sum();
        let bytes_per_unit = all as f64 / STEP * bandwidth_share;
        let pace = IslandPace { step: STEP, drain: STEP / 4.0, bytes_per_unit };
        island_times(&schedule, STEPS, &LAYER_BYTES, pace).compute_share()
    }

    #[test]
    fn a_hundredth_of_the_bandwidth_keeps_islands_computing() {
        assert!(share(120, 3, 40, 0.01) >= 0.95, "{}", share(120, 3, 40, 0.01));
        assert!(share(120, 3, 40, 1.0) >= 0.99);
        // The link carries less than is sent.
        let starved = share(120, 3, 40, 0.001);
        assert!((0.1..0.13).contains(&starved), "{starved}");
        // It would carry it, and not while so few steps last.
        assert!(share(120, 3, 2, 0.01) < 0.6);
    }
}
