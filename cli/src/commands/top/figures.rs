//! The figures of `top` in words, and their lines in a terminal of some width.

use std::time::Duration;

use zbelastic_api::{CheckpointStatus, JobStatus, StatusReport, StepTimeBreakdown};
use zbelastic_view::{Dashboard, HeadFigures, causes_beside_plan};
use zbelastic_wording::figures::{duration_text, grouped};

fn number(number: Option<f64>, digits: usize) -> String {
    number.map_or_else(|| "–".to_owned(), |number| format!("{number:.digits$}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

fn seconds(seconds: Option<f64>) -> String {
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.map_or_else(|| "–".to_owned(), duration_text)
}

/// How the model learns, and how fast.
pub fn training_figures(job: &JobStatus, head: &HeadFigures, held_out: Option<f64>) -> Vec<String> {
    let speed = job.tokens_per_s.map_or_else(|| "–".to_owned(), |speed| grouped(speed as u64));
    let mut figures = vec![
        format!("loss {}", number(job.loss, 4)),
        format!("norm {}", number(job.gnorm, 3)),
        format!("{speed} tok/s"),
        format!("{} ms a step", number(job.step_ms, 0)),
    ];
    figures.extend(head.mfu.map(|share| format!("MFU {}", percent(Some(share)))));
    figures.push(format!("{} left", seconds(job.eta_s)));
    figures.extend(held_out.map(|loss| format!("held-out {loss:.4}")));
    figures
}

/// The plan, the members, and what is left to pay.
pub fn cluster_figures(status: &StatusReport, head: &HeadFigures) -> Vec<String> {
    let plan = status.plan.as_ref();
    let name = plan.map_or("no plan", |plan| plan.schedule.as_str());
    let bubble = percent(plan.and_then(|plan| plan.bubble_measured));
    let voters = &status.quorum;
    let mut figures = vec![
        name.to_owned(),
        format!("bubble {bubble}"),
        format!("goodput {}", percent(head.goodput)),
        format!("workers {}", head.workers),
        format!("voters {}/{}", voters.reachable.len(), voters.voters.len()),
        format!("term {}", status.term),
    ];
    figures.extend(head.price_left.map(|price| format!("price left {price:.2}")));
    figures
}

/// The newest checkpoint, and where the time of a step goes, as far as either is known.
pub fn progress_figures(status: &StatusReport, dashboard: &Dashboard) -> Vec<String> {
    let checkpoint = status.checkpoints.last();
    let mut figures: Vec<String> =
        checkpoint.map(|newest| checkpoint_figure(newest, status.at_ms)).into_iter().collect();
    figures.extend(dashboard.causes().into_iter().flat_map(cause_figures));
    figures
}

fn checkpoint_figure(checkpoint: &CheckpointStatus, now_ms: u64) -> String {
    let CheckpointStatus { step, at_ms, copies, .. } = checkpoint;
    let age = at_ms.map(|at_ms| Duration::from_millis(now_ms.saturating_sub(at_ms)));
    let age = age.map_or_else(String::new, |age| format!(", {} old", duration_text(age)));
    let noun = if *copies == 1 { "copy" } else { "copies" };
    format!("checkpoint {}{age}, {copies} {noun}", grouped(*step))
}

fn cause_figures(causes: &StepTimeBreakdown) -> Vec<String> {
    let planned = format!("planned {:.1} ms", causes.planned_ms);
    let beside = causes_beside_plan(causes).map(|(name, ms)| format!("{name} {ms:+.1}"));
    [planned].into_iter().chain(beside).collect()
}

/// The entries of a controller's log that are missing, in words.
pub fn log_lag(behind: u64) -> String {
    match behind {
        0 => "log complete".to_owned(),
        entries => format!("log {} behind", grouped(entries)),
    }
}

/// Lines of at most `width` columns with all figures, none of which is cut unless it is wider than a line.
pub fn wrapped(figures: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for figure in figures {
        let columns = |text: &str| text.chars().count();
        match lines.last_mut() {
            Some(line) if columns(line) + 2 + columns(figure) <= width => {
                line.push_str("  ");
                line.push_str(figure);
            }
            Some(_) | None => lines.push(format!(" {figure}")),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::sample;

    #[test]
    fn figures_go_to_another_line_where_one_is_full() {
        let figures = ["ab", "cd", "efg"].map(str::to_owned);
        assert_eq!(wrapped(&figures, 80), [" ab  cd  efg"]);
        assert_eq!(wrapped(&figures, 12), [" ab  cd  efg"]);
        assert_eq!(wrapped(&figures, 11), [" ab  cd", " efg"]);
        assert_eq!(wrapped(&figures, 1), [" ab", " cd", " efg"]);
        assert_eq!(wrapped(&[], 80), Vec::<String>::new());
    }

    #[test]
    fn what_is_known_of_a_run_is_a_figure() {
        let head = HeadFigures { mfu: Some(0.381), ..HeadFigures::default() };
        let figures = training_figures(&sample::job(), &head, Some(3.3));
        assert_eq!(figures[4..], ["MFU 38.1 %", "1h02 left", "held-out 3.3000"]);
        let known = training_figures(&sample::job(), &HeadFigures::default(), None);
        assert_eq!(known.len(), 5, "{known:?}");
        let one = CheckpointStatus { copies: 1, at_ms: None, ..sample::checkpoint(1200) };
        assert_eq!(checkpoint_figure(&one, sample::NOW_MS), "checkpoint 1,200, 1 copy");
        assert_eq!([0, 1, 1200].map(log_lag), ["log complete", "log 1 behind", "log 1,200 behind"]);
    }
}
