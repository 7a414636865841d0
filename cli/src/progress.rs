//! How far a command is that takes minutes: a bar on a terminal, and a line now and then where
//! standard error is none.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use zbelastic_wording::figures::duration_text;
use zbelastic_wording::print_error_line;

/// How often a line is printed where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Prints on standard error how far a command is.
pub struct CommandProgress {
    bar: Option<ProgressBar>,
    began: Instant,
    /// Units that were done when the first were reported: work of an earlier call.
    first: Option<u64>,
    last_line: Instant,
}

impl CommandProgress {
    pub fn new() -> Self {
        let began = Instant::now();
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            let style = "{bar:30} {msg}";
            bar.set_style(ProgressStyle::with_template(style).expect("a legal template"));
            bar
        });
        Self { bar, began, first: None, last_line: began }
    }

    /// Begins another part of the work, whose units are counted anew.
    pub fn begin_part(&mut self) {
        self.began = Instant::now();
        self.first = None;
    }

    /// Reports `done` units of `total`, in words by `text`.
    pub fn report(&mut self, done: u64, total: u64, text: impl FnOnce() -> String) {
        let first = *self.first.get_or_insert(done);
        let line = || {
            let left =
                time_left(self.began.elapsed(), done - first.min(done), total.max(done) - done);
            let left = left.map(|left| format!(", {} to go", duration_text(left)));
            format!("{}{}", text(), left.unwrap_or_default())
        };
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done.min(total));
            bar.set_message(line());
        } else if self.last_line.elapsed() >= LINE_INTERVAL {
            print_error_line(line());
            self.last_line = Instant::now();
        }
    }

    /// Prints lines above the bar, from any thread.
    pub fn line_printer(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let bar = self.bar.clone();
        move |line| match &bar {
            Some(bar) => bar.suspend(|| print_error_line(line)),
            None => print_error_line(line),
        }
    }

    /// Time since the command began, or the last part.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}

/// Time for `left` units at the rate of those that are done; none before the first.
fn time_left(elapsed: Duration, done: u64, left: u64) -> Option<Duration> {
    let per_unit = elapsed.as_secs_f64() / (done > 0).then_some(done)? as f64;
    Duration::try_from_secs_f64(per_unit * left as f64).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_what_this_call_did() {
        let check = |done, left, expected: Option<u64>| {
            let found = time_left(Duration::from_secs(10), done, left);
            assert_eq!(found, expected.map(Duration::from_secs), "{done} {left}");
        };
        check(0, 100, None);
        check(50, 100, Some(20));
        check(50, 0, Some(0));
    }
}
