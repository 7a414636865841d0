//! How fast a run is: the times from seal to seal, how long plans and verdicts were waited for, and
//! how stages spent their last step.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use zbelastic_trainer::plan::median;
use zbelastic_types::StageIndex;

/// Seals over which speed and waits are averaged.
const SEALS_MEASURED: usize = 32;

/// How long stages waited for the verdicts of the last steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerdictWaits {
    /// The median.
    pub median: Duration,
    /// The longest.
    pub longest: Duration,
    /// Number of waits that were looked at.
    pub count: u64,
}

/// The pace of a run.
#[derive(Debug, Default)]
pub struct RunPace {
    sealed_at: Option<Instant>,
    /// The times from seal to seal, the newest last.
    step_times: VecDeque<Duration>,
    /// How long stages had nothing to run before a verdict, step by step, the newest last.
    verdict_waits: VecDeque<Duration>,
    /// Stages of the plan in force: how long their last step took, and how much of it they worked,
    /// in microseconds.
    stage_times: BTreeMap<StageIndex, (u64, u64)>,
    loads_since: Option<Instant>,
    /// Since when the plan in force runs.
    runs_since: Option<Instant>,
    /// How long the plan in force was waited for.
    last_pause: Option<Duration>,
}

impl RunPace {
    /// A plan was adopted.
    pub fn note_plan(&mut self, now: Instant) {
        self.stage_times.clear();
        self.loads_since = Some(now);
    }

    /// The plan in force runs. Yields how long it was waited for: from the last seal before it.
    pub fn note_resumed(&mut self, now: Instant) -> Option<Duration> {
        self.runs_since = Some(now);
        self.last_pause = self.sealed_at.or(self.loads_since).map(|since| now - since);
        self.last_pause
    }

    /// A step was sealed. Yields how long it took; the first step is timed from when all stages were
    /// ready.
    pub fn note_seal(&mut self, now: Instant) -> Option<Duration> {
        let step_time = self.sealed_at.or(self.runs_since).map(|before| now - before);
        self.sealed_at = Some(now);
        if let Some(step_time) = step_time {
            push(&mut self.step_times, step_time);
        }
        step_time
    }

    /// A stage reported how it spent its last step, and how long it waited for a verdict.
    pub fn note_stage(
        &mut self,
        stage: StageIndex,
        (span_us, busy_us): (u64, u64),
        waited: Duration,
    ) {
        self.stage_times.insert(stage, (span_us, busy_us));
        push(&mut self.verdict_waits, waited);
    }

    /// The time from seal to seal, as the median of the last ones.
    pub fn step_time(&self) -> Option<Duration> {
        median(self.step_times.iter().copied(), Ord::cmp)
    }

    /// The last steps, and how long they took together.
    pub fn steps(&self) -> (u64, Duration) {
        (self.step_times.len() as u64, self.step_times.iter().sum())
    }

    /// From the last seal before the plan in force to when it ran.
    pub const fn last_pause(&self) -> Option<Duration> {
        self.last_pause
    }

    /// How long verdicts were waited for lately.
    #[must_use]
    pub fn verdict_waits(&self) -> Option<VerdictWaits> {
        let longest = self.verdict_waits.iter().max().copied()?;
        let median = median(self.verdict_waits.iter().copied(), Ord::cmp)?;
        Some(VerdictWaits { median, longest, count: self.verdict_waits.len() as u64 })
    }

    /// The share of a step in which the busiest stage waited.
    pub fn bubble(&self) -> Option<f64> {
        let shares = self.stage_times.values().filter(|(span, _)| *span > 0);
        let idle = shares.map(|(span, busy)| 1.0 - (*busy as f64 / *span as f64).min(1.0));
        idle.min_by(f64::total_cmp)
    }
}

fn push(times: &mut VecDeque<Duration>, time: Duration) {
    times.push_back(time);
    while times.len() > SEALS_MEASURED {
        times.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn the_first_step_is_timed_from_when_its_plan_ran_and_a_pause_from_the_last_seal() {
        let start = Instant::now();
        let mut pace = RunPace::default();
        pace.note_plan(start);
        assert_eq!(pace.note_resumed(start + ms(300)), Some(ms(300)));
        assert_eq!(pace.note_seal(start + ms(400)), Some(ms(100)));
        assert_eq!(pace.note_seal(start + ms(450)), Some(ms(50)));
        pace.note_plan(start + ms(460));
        assert_eq!(pace.note_resumed(start + ms(500)), Some(ms(50)));
        assert_eq!(pace.last_pause(), Some(ms(50)));
        assert_eq!(pace.note_seal(start + ms(600)), Some(ms(150)));
        assert_eq!(pace.step_time(), Some(ms(100)));
        assert_eq!(pace.steps(), (3, ms(300)));
    }

    #[test]
    fn the_bubble_is_that_of_the_busiest_stage_and_belongs_to_one_plan() {
        let mut pace = RunPace::default();
        assert_eq!(pace.bubble(), None);
        pace.note_stage(StageIndex(0), (100, 50), ms(1));
        pace.note_stage(StageIndex(1), (100, 75), ms(5));
        pace.note_stage(StageIndex(2), (0, 0), ms(3));
        assert_eq!(pace.bubble(), Some(0.25));
        let waits = VerdictWaits { median: ms(3), longest: ms(5), count: 3 };
        assert_eq!(pace.verdict_waits(), Some(waits));
        pace.note_plan(Instant::now());
        assert_eq!(pace.bubble(), None);
    }

    #[test]
    fn speed_is_of_the_last_seals() {
        let start = Instant::now();
        let mut pace = RunPace::default();
        for step in 0..=SEALS_MEASURED as u64 + 9 {
            pace.note_seal(start + ms(10 * step));
        }
        assert_eq!(pace.steps(), (SEALS_MEASURED as u64, ms(10 * SEALS_MEASURED as u64)));
    }
}
