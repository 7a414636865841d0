//! The training line, and other lines that are printed of a run.

use std::time::Duration;

use zbelastic_consensus::validation::Verdict;
use zbelastic_local::progress_event::StepRecord;
use zbelastic_wording::figures::tokens_per_s;

use super::events::RollbackEvent;
use crate::step_line::StepLine;

/// Context of a line beside its step, the same for all steps of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct StepLineContext {
    /// Steps of the run.
    pub step_count: u64,
    /// Arithmetic of a token.
    pub flop_per_token: f64,
    /// Peak rate of the cores in use; none for devices.
    pub peak_flop_per_s: Option<f64>,
}

/// The line of a step, `eta` before the end.
pub fn step_line(record: &StepRecord, context: &StepLineContext, eta: Duration) -> String {
    let StepLineContext { step_count, flop_per_token, peak_flop_per_s } = *context;
    let tokens_per_s = tokens_per_s(record.tokens, record.elapsed);
    let is_kept = matches!(record.verdict, Verdict::Keep);
    let line = StepLine {
        step: record.step.0 + 1,
        step_count,
        loss: record.loss,
        norm: record.norm,
        elapsed: record.elapsed,
        tokens_per_s,
        mfu: peak_flop_per_s.map(|peak| tokens_per_s * flop_per_token / peak),
        bubble: Some(record.bubbles.measured),
        eta: Some(eta),
        verdict: (!is_kept).then(|| record.verdict.name()),
    };
    line.text()
}

/// The line of work that was dropped.
pub fn rollback_line(rollback: &RollbackEvent) -> String {
    let RollbackEvent { step, verdict, reason } = rollback;
    let (does, next) = match *verdict == Verdict::Replay.name() {
        true => ("rolled back", "it runs again"),
        false => ("skipped", "its batch is left out"),
    };
    format!("▲ step {step} {does}: {reason}; {next}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_consensus::validation::Reason;
    use zbelastic_local::progress_event::Rollback;
    use zbelastic_timing::BubbleShares;
    use zbelastic_types::{Step, TensorIndex};

    fn record() -> StepRecord {
        StepRecord {
            step: Step(1279),
            loss: 3.214_53,
            norm: 0.812_4,
            verdict: Verdict::Keep,
            lr: 5.9e-4,
            elapsed: Duration::from_millis(412),
            tokens: 52_400,
            bubbles: BubbleShares { measured: 0.021, planned: 0.018, causes: None },
            attempts: 1,
            generation: 7,
            stage_count: 4,
        }
    }

    fn context() -> StepLineContext {
        StepLineContext { step_count: 10_000, flop_per_token: 1e6, peak_flop_per_s: Some(333.8e9) }
    }

    #[test]
    fn a_line_shows_a_step_beside_its_run() {
        assert_eq!(
            step_line(&record(), &context(), Duration::from_secs(3_733)),
            "step  1280/10000  loss 3.2145  norm 0.812  412 ms  127k tok/s  mfu 38%  bubble 2.1%  \
             eta 1h02"
        );
    }

    #[test]
    fn only_a_verdict_that_is_not_keep_is_named() {
        let check = |verdict, expected: &str| {
            let record = StepRecord { verdict, ..record() };
            let line = step_line(&record, &context(), Duration::ZERO);
            assert!(line.ends_with(expected), "{line}");
        };
        check(Verdict::Keep, "  eta 0s");
        check(Verdict::Clip { coefficient: 0.707 }, "  eta 0s  clip");
        check(Verdict::Skip, "  eta 0s  skip");
    }

    #[test]
    fn a_rollback_names_the_tensor_and_what_follows() {
        let reason = |tensor_count| Reason::NonfiniteGradient {
            tensor: TensorIndex(3),
            values: 3,
            tensor_count,
            replays: 0,
        };
        let check = |verdict, reason, expected: &str| {
            let rollback = Rollback { step: Step(6), verdict, reason };
            let event = RollbackEvent::new(&rollback, &|tensor| format!("tensor{tensor}"));
            assert_eq!(rollback_line(&event), expected);
        };
        check(
            Verdict::Replay,
            reason(1),
            "▲ step 7 rolled back: non-finite gradient in tensor3 (3 values); it runs again",
        );
        check(
            Verdict::Skip,
            reason(4),
            "▲ step 7 skipped: non-finite gradient in tensor3 (3 values, first of 4 tensors); \
             its batch is left out",
        );
        let tensor = TensorIndex(3);
        let values = 0;
        let tensor_count = 1;
        let overflow = Reason::NonfiniteGradient { tensor, values, tensor_count, replays: 0 };
        check(
            Verdict::Skip,
            overflow,
            "▲ step 7 skipped: the sum of squares overflows at tensor3; its batch is left out",
        );
    }
}
