//! The sealed steps of a run, bounded, and the held-out losses between them.

use std::collections::VecDeque;

use zbelastic_api::EventKind;

/// Steps that are kept. A page draws as many points as its screen has columns, and a long run at one
/// step a second fills this in about five hours; older steps are in the run's `metrics.jsonl` and in
/// TensorBoard's files. One step takes about 130 bytes as JSON: a page receives at most 2.6 MB.
pub const STEPS_KEPT: usize = 20_000;

/// A sealed step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepPoint {
    /// When it was sealed, in milliseconds since 1970.
    pub at_ms: u64,
    /// Number of the step, from 1.
    pub step: u64,
    /// The mean cross-entropy, in nats a token.
    pub loss: Option<f64>,
    /// The gradient norm before clipping.
    pub gnorm: Option<f64>,
    /// The learning rate.
    pub lr: f64,
    /// Milliseconds since the step before was sealed.
    pub ms: f64,
    /// Tokens of the step over that time.
    pub tokens_per_s: f64,
    /// The measured share of the step in which the busiest stage waited.
    pub bubble: Option<f64>,
    /// The planned share.
    pub bubble_planned: Option<f64>,
    /// `keep`, `clip` or `skip`.
    pub verdict: String,
    /// How often it was run.
    pub attempts: u32,
}

impl StepPoint {
    /// The point of an event, if that reports a step.
    #[must_use]
    pub fn of(at_ms: u64, kind: &EventKind) -> Option<Self> {
        let EventKind::Step {
            step,
            loss,
            gnorm,
            lr,
            ms,
            tokens_per_s,
            bubble,
            bubble_planned,
            verdict,
            attempts,
            ..
        } = kind
        else {
            return None;
        };
        Some(Self {
            at_ms,
            step: *step,
            loss: *loss,
            gnorm: *gnorm,
            lr: *lr,
            ms: *ms,
            tokens_per_s: *tokens_per_s,
            bubble: *bubble,
            bubble_planned: *bubble_planned,
            verdict: verdict.clone(),
            attempts: *attempts,
        })
    }
}

/// The last [`STEPS_KEPT`] steps of one run, in their order. Each number is there at most once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepHistory {
    steps: VecDeque<StepPoint>,
    /// Step and loss of each reading of held-out text.
    held_out: VecDeque<(u64, Option<f64>)>,
}

impl StepHistory {
    /// Adds a step, unless it is known: another controller's log may report it again.
    pub fn push(&mut self, point: StepPoint) -> bool {
        if self.steps.back().is_some_and(|last| last.step >= point.step) {
            return false;
        }
        self.steps.push_back(point);
        if self.steps.len() > STEPS_KEPT {
            self.steps.pop_front();
        }
        true
    }

    /// Adds a reading of held-out text, unless it is known.
    pub fn push_held_out(&mut self, step: u64, loss: Option<f64>) -> bool {
        if self.held_out.back().is_some_and(|last| last.0 >= step) {
            return false;
        }
        self.held_out.push_back((step, loss));
        if self.held_out.len() > STEPS_KEPT {
            self.held_out.pop_front();
        }
        true
    }

    /// Removes the steps behind `step`, which are computed again after a rewind.
    pub fn rewind(&mut self, step: u64) {
        self.steps.retain(|point| point.step <= step);
        self.held_out.retain(|point| point.0 <= step);
    }

    /// Steps, oldest first.
    pub fn steps(&self) -> impl DoubleEndedIterator<Item = &StepPoint> + ExactSizeIterator {
        self.steps.iter()
    }

    /// Held-out losses, oldest first, each with the steps sealed before it.
    pub fn held_out(&self) -> impl ExactSizeIterator<Item = (u64, Option<f64>)> {
        self.held_out.iter().copied()
    }

    /// The share of the time since the first step that the kept steps would have taken at their
    /// median duration. Everything else went to recovering, moving layers and waiting.
    #[must_use]
    pub fn goodput(&self) -> Option<f64> {
        let first = self.steps.front()?;
        let last = self.steps.back()?;
        let mut durations: Vec<f64> = self.steps.iter().skip(1).map(|point| point.ms).collect();
        if durations.is_empty() {
            return None;
        }
        let middle = durations.len() / 2;
        let median = *durations.select_nth_unstable_by(middle, f64::total_cmp).1;
        let elapsed_ms = last.at_ms.saturating_sub(first.at_ms) as f64;
        (elapsed_ms > 0.0).then(|| (median * durations.len() as f64 / elapsed_ms).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(step: u64, at_ms: u64, ms: f64) -> StepPoint {
        StepPoint {
            at_ms,
            step,
            loss: Some(3.0),
            gnorm: Some(1.0),
            lr: 1e-3,
            ms,
            tokens_per_s: 10.0,
            bubble: None,
            bubble_planned: None,
            verdict: "keep".to_owned(),
            attempts: 1,
        }
    }

    #[test]
    fn a_step_is_there_once_and_the_oldest_go() {
        let mut history = StepHistory::default();
        for step in 1..=STEPS_KEPT as u64 + 2 {
            assert!(history.push(point(step, step, 1.0)));
            assert!(!history.push(point(step, step, 1.0)), "it is known");
        }
        assert_eq!(history.steps().len(), STEPS_KEPT);
        assert_eq!(history.steps().next().map(|point| point.step), Some(3));
    }

    #[test]
    fn a_rewind_removes_what_is_computed_again() {
        let mut history = StepHistory::default();
        (1..=9).for_each(|step| assert!(history.push(point(step, step, 1.0))));
        history.push_held_out(4, Some(3.0));
        history.push_held_out(8, Some(2.0));
        history.rewind(5);
        assert_eq!(history.steps().map(|point| point.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(history.held_out().collect::<Vec<_>>(), [(4, Some(3.0))]);
        assert!(history.push(point(6, 20, 1.0)));
    }

    #[test]
    fn goodput_is_the_share_of_the_time_that_steps_need() {
        let mut history = StepHistory::default();
        assert_eq!(history.goodput(), None);
        for (step, at_ms, ms) in [(1, 100, 9.0), (2, 200, 100.0), (3, 300, 100.0), (4, 600, 300.0)]
        {
            history.push(point(step, at_ms, ms));
        }
        // Three steps of 100 ms in 500 ms.
        assert_eq!(history.goodput(), Some(0.6));
    }
}
