//! The line of a step, as `train`, `run` and `events` print it: at most 100 columns, for two
//! terminals beside each other.

use std::fmt::Write;
use std::time::Duration;

use zbelastic_wording::figures::{
    duration_text, scientific, short_count, short_time, three_digits,
};

/// What a line says of a step. What is `None` is not known, and left out.
#[derive(Clone, Debug, PartialEq)]
pub struct StepLine<'a> {
    /// The step, counted from 1.
    pub step: u64,
    /// Steps of the run.
    pub step_count: u64,
    /// Training loss in nats a token; NaN or infinite if it is not finite.
    pub loss: f64,
    /// Norm of the whole gradient, before it was clipped.
    pub norm: f64,
    /// From the seal before to this step's.
    pub elapsed: Duration,
    /// Tokens trained a second.
    pub tokens_per_s: f64,
    /// Model's arithmetic over what the cores reach at best, 0 to 1.
    pub mfu: Option<f64>,
    /// Share of the step in which the busiest stage waited, 0 to 1.
    pub bubble: Option<f64>,
    /// Time left.
    pub eta: Option<Duration>,
    /// Name of a verdict that is not to keep the step as it is.
    pub verdict: Option<&'a str>,
}

impl StepLine<'_> {
    /// The line, without its end.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { step, step_count, norm, elapsed, tokens_per_s, .. } = self;
        let width = step_count.to_string().len();
        let loss = match self.loss {
            loss if loss.abs() < 10.0 => format!("{loss:.4}"),
            loss => format!("{loss:.3}"),
        };
        let mut line = format!("step {step:>width$}/{step_count}  loss {loss}");
        let norm = match norm.abs() {
            plain if plain == 0.0 || (1e-3..1e6).contains(&plain) => three_digits(*norm),
            far if far.is_finite() => scientific(*norm),
            _ => norm.to_string(),
        };
        let time = short_time(*elapsed);
        let _ = write!(line, "  norm {norm}  {time}  {} tok/s", short_count(*tokens_per_s));
        if let Some(mfu) = self.mfu {
            let _ = write!(line, "  mfu {:.0}%", 100.0 * mfu);
        }
        if let Some(bubble) = self.bubble.map(|share| 100.0 * share) {
            let digits = usize::from(bubble < 9.95);
            let _ = write!(line, "  bubble {bubble:.digits$}%");
        }
        if let Some(eta) = self.eta {
            let _ = write!(line, "  eta {}", duration_text(eta));
        }
        // Behind the fields of every step, so that nothing moves for it.
        if let Some(verdict) = self.verdict {
            let _ = write!(line, "  {verdict}");
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns of a step's line at most, for runs of up to 99,999 steps.
    const COLUMNS_MAX: usize = 100;

    fn line() -> StepLine<'static> {
        StepLine {
            step: 1280,
            step_count: 10_000,
            loss: 3.214_53,
            norm: 0.812_4,
            elapsed: Duration::from_millis(412),
            tokens_per_s: 127_184.4,
            mfu: Some(0.381),
            bubble: Some(0.021),
            eta: Some(Duration::from_secs(3_733)),
            verdict: None,
        }
    }

    #[test]
    fn a_line_shows_what_matters_about_a_step() {
        assert_eq!(
            line().text(),
            "step  1280/10000  loss 3.2145  norm 0.812  412 ms  127k tok/s  mfu 38%  bubble 2.1%  \
             eta 1h02"
        );
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let line = StepLine { mfu: None, bubble: None, eta: None, ..line() };
        let text = "step  1280/10000  loss 3.2145  norm 0.812  412 ms  127k tok/s";
        assert_eq!(line.text(), text);
    }

    #[test]
    fn a_verdict_moves_no_other_field() {
        let skipped = StepLine { verdict: Some("skip"), ..line() };
        assert_eq!(skipped.text(), format!("{}  skip", line().text()));
    }

    #[test]
    fn numbers_that_are_not_finite_are_named() {
        let line = StepLine { loss: f64::NAN, norm: f64::INFINITY, ..line() };
        assert!(line.text().contains("  loss NaN  norm inf  "), "{}", line.text());
    }

    #[test]
    fn a_line_fits_its_columns() {
        let elapsed = |ms| Duration::from_millis(ms);
        for (ms, tokens_per_s, norm) in
            [(412, 999_949.0, 0.000_123), (999, 9_994.0, 1e9), (13_924, 1e9, 54.1), (1, 2.0, 1e-9)]
        {
            let line = StepLine {
                step: 99_999,
                step_count: 99_999,
                loss: 11.170_1,
                norm,
                elapsed: elapsed(ms),
                tokens_per_s,
                bubble: Some(0.265),
                verdict: Some("clip"),
                ..line()
            };
            let columns = line.text().chars().count();
            assert!(columns <= COLUMNS_MAX, "{columns}: {}", line.text());
        }
    }
}
