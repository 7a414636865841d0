//! The training line, and other lines that are printed of a run.

use std::fmt::Write;
use std::time::Duration;

use zbelastic_consensus::validation::Verdict;
use zbelastic_local::progress_event::StepRecord;
use zbelastic_types::{Bytes, StageIndex};
use zbelastic_wording::figures::{duration_text, grouped, scientific, three_digits, tokens_per_s};

use super::events::RollbackEvent;

/// Context of a line beside its step, the same for all steps of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct StepLineContext {
    /// Steps of the run.
    pub step_count: u64,
    /// Arithmetic of a token.
    pub flop_per_token: f64,
    /// Peak rate of the cores in use; none for devices.
    pub peak_flop_per_s: Option<f64>,
    /// The fullest stage and its memory.
    pub fullest: (StageIndex, Bytes),
    /// Memory that it may use, if that is known.
    pub bytes_max: Option<Bytes>,
}

/// The line of a step, `eta` before the end.
pub fn step_line(record: &StepRecord, context: &StepLineContext, eta: Duration) -> String {
    let step_count = context.step_count;
    let StepRecord { generation, stage_count, .. } = record;
    let width = step_count.to_string().len();
    let step = record.step.0 + 1;
    let mut line = format!("step {step:>width$}/{step_count}  loss {:.4}", record.loss);
    let _ = write!(line, "  gnorm {}", three_digits(record.norm));
    let tokens_per_s = tokens_per_s(record.tokens, record.elapsed);
    let _ = write!(line, "  lr {}", scientific(record.lr));
    let _ = write!(line, "  {} ms", three_digits(record.elapsed.as_secs_f64() * 1e3));
    let _ = write!(line, "  {} tok/s", grouped(tokens_per_s.round() as u64));
    if let Some(peak) = context.peak_flop_per_s {
        let _ = write!(line, "  mfu {:.1}%", 100.0 * tokens_per_s * context.flop_per_token / peak);
    }
    let measured = record.bubbles.measured;
    let planned = record.bubbles.planned;
    let _ = write!(line, "  bubble {:.1}% (plan {:.1}%)", 100.0 * measured, 100.0 * planned);
    let (stage, bytes) = context.fullest;
    let memory = context.bytes_max.map_or_else(|| bytes.to_string(), |max| share(bytes, max));
    let _ = write!(line, "  mem {memory} @s{stage}  g{generation} {stage_count} stages");
    // Behind the fields of every step, so that nothing moves for it.
    match record.verdict {
        Verdict::Keep => {}
        Verdict::Clip { coefficient } => {
            let _ = write!(line, "  clip {}", three_digits(f64::from(coefficient)));
        }
        Verdict::Skip | Verdict::Replay => {
            let _ = write!(line, "  {}", record.verdict.name());
        }
    }
    let _ = write!(line, "  eta {}", duration_text(eta));
    line
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

/// `part` of `whole`, with one unit if both have the same.
fn share(part: Bytes, whole: Bytes) -> String {
    let part = part.to_string();
    let whole = whole.to_string();
    match (part.split_once(' '), whole.split_once(' ')) {
        (Some((amount, unit)), Some((_, of_unit))) if unit == of_unit => {
            format!("{amount}/{whole}")
        }
        (_, _) => format!("{part}/{whole}"),
    }
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
        StepLineContext {
            step_count: 10_000,
            flop_per_token: 1e6,
            peak_flop_per_s: Some(333.8e9),
            fullest: (StageIndex(2), Bytes(12_025_908_429)),
            bytes_max: Some(Bytes(24 << 30)),
        }
    }

    #[test]
    fn a_line_shows_all_about_a_step() {
        assert_eq!(
            step_line(&record(), &context(), Duration::from_secs(3_733)),
            "step  1280/10000  loss 3.2145  gnorm 0.812  lr 5.9e-4  412 ms  127,184 tok/s  \
             mfu 38.1%  bubble 2.1% (plan 1.8%)  mem 11.2/24.0 GiB @s2  g7 4 stages  eta 1h02"
        );
    }

    #[test]
    fn a_verdict_that_is_not_keep_moves_no_other_column() {
        let check = |norm, verdict, expected: &str| {
            let record = StepRecord { norm, verdict, ..record() };
            let line = step_line(&record, &context(), Duration::ZERO);
            assert!(line.contains(expected), "{line}");
        };
        check(1.414, Verdict::Clip { coefficient: 0.707 }, "  g7 4 stages  clip 0.707  eta");
        check(f64::NAN, Verdict::Skip, "  g7 4 stages  skip  eta");
        check(f64::INFINITY, Verdict::Skip, "  gnorm inf  lr");
    }

    #[test]
    fn memory_without_a_limit_is_printed_alone() {
        let fullest = (StageIndex(0), Bytes(3 << 20));
        let check = |bytes_max, expected: &str| {
            let context = StepLineContext { fullest, bytes_max, ..context() };
            let line = step_line(&record(), &context, Duration::ZERO);
            assert!(line.contains(expected), "{line}");
        };
        check(None, "  mem 3.00 MiB @s0");
        check(Some(Bytes(1 << 30)), "  mem 3.00 MiB/1.00 GiB @s0");
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
