//! `events` and `logs`: the events and log lines so far, or each as it is written.

use std::io::Write;
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use zbelastic_api::client::ApiClient;
use zbelastic_api::{ClusterEvent, EventKind, LogLine, escape};
use zbelastic_wording::{CommandError, CommandFailure};

use super::clock::{date_text, time_text};
use super::reach::{connect, write_json_line};
use super::select::select_node;
use crate::args::{EventsArgs, LogsArgs};
use crate::event_poller::{EventPoller, FOLLOW_PAUSE};
use crate::step_line::StepLine;

/// Runs `events`.
///
/// # Errors
/// If the cluster does not answer, or `out` cannot be written.
pub fn run_events(args: &EventsArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    print_events(args, &mut connect(&args.read.client)?, out, &mut rest)
}

/// Runs `logs`.
///
/// # Errors
/// If the cluster does not answer, or `out` cannot be written.
pub fn run_logs(args: &LogsArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    print_logs(args, &mut connect(&args.read.client)?, out, &mut rest)
}

/// Pauses before the next request.
fn rest() -> ControlFlow<()> {
    thread::sleep(FOLLOW_PAUSE);
    ControlFlow::Continue(())
}

fn print_events(
    args: &EventsArgs,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
    pause: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<(), CommandError> {
    let mut poller = EventPoller::starting_at(args.since);
    loop {
        let polled = poller.poll(client).map_err(CommandFailure::from)?;
        for event in polled.events.iter().filter(|event| args.steps || !event.kind.is_step()) {
            if args.read.json {
                write_json_line(out, event)?;
            } else {
                writeln!(out, "{}", event_line(event))?;
            }
        }
        out.flush()?;
        let is_all = polled.events.is_empty();
        if is_all && (!args.follow || pause().is_break()) {
            return Ok(());
        }
    }
}

fn print_logs(
    args: &LogsArgs,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
    pause: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<(), CommandError> {
    let node = match &args.node {
        None => None,
        Some(typed) => {
            let status = client.status().map_err(CommandFailure::from)?;
            Some(select_node(&status.members, typed)?.id)
        }
    };
    let mut next = 0;
    loop {
        let logs = client.logs(node, next).map_err(CommandFailure::from)?;
        // A process that was started again counts from the beginning.
        next = logs.next_sequence;
        for line in &logs.lines {
            if args.read.json {
                write_json_line(out, line)?;
            } else {
                writeln!(out, "{}", log_text(line))?;
            }
        }
        out.flush()?;
        if logs.lines.is_empty() && (!args.follow || pause().is_break()) {
            return Ok(());
        }
    }
}

fn log_text(line: &LogLine) -> String {
    format!("{}  {}", time_text(line.at_ms), escape(&line.text))
}

/// An event with its date.
#[must_use]
pub fn event_line(event: &ClusterEvent) -> String {
    format!("{}  {}", date_text(event.at_ms), escape(&event.text))
}

/// An event as it is printed while a run is followed.
#[must_use]
pub fn run_line(event: &ClusterEvent) -> String {
    match &event.kind {
        EventKind::Step { .. } => step_text(&event.kind).expect("it is a step"),
        EventKind::Checkpoint { .. } | EventKind::Done { .. } | EventKind::HeldOut { .. } => {
            format!("✔ {}", escape(&event.text))
        }
        EventKind::Started { .. }
        | EventKind::Leader { .. }
        | EventKind::Joined { .. }
        | EventKind::Draining { .. }
        | EventKind::Lost { .. }
        | EventKind::RunStarted { .. }
        | EventKind::Paused { .. }
        | EventKind::Resumed { .. }
        | EventKind::Stopped { .. }
        | EventKind::Halted { .. }
        | EventKind::Plan { .. }
        | EventKind::Running { .. }
        | EventKind::Rollback { .. }
        | EventKind::Rewound { .. }
        | EventKind::QuorumLost
        | EventKind::QuorumHeld
        | EventKind::FormatRaised { .. }
        | EventKind::TokenCreated { .. }
        | EventKind::TokenRevoked { .. }
        | EventKind::Violation { .. }
        | EventKind::Warning { .. }
        | EventKind::Other => format!("▲ {}", escape(&event.text)),
    }
}

/// The training line of a step.
fn step_text(kind: &EventKind) -> Option<String> {
    let EventKind::Step {
        step,
        step_count,
        loss,
        gnorm,
        verdict,
        ms,
        tokens_per_s,
        bubble,
        eta_s,
        clip: _,
        lr: _,
        generation: _,
        stages: _,
        attempts: _,
        bubble_planned: _,
        causes: _,
    } = kind
    else {
        return None;
    };
    let eta = eta_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let verdict = Some(verdict.as_str()).filter(|verdict| *verdict != "keep").map(escape);
    let line = StepLine {
        step: *step,
        step_count: *step_count,
        loss: loss.unwrap_or(f64::NAN),
        norm: gnorm.unwrap_or(f64::NAN),
        elapsed: Duration::try_from_secs_f64(ms / 1e3).unwrap_or(Duration::MAX),
        tokens_per_s: *tokens_per_s,
        mfu: None,
        bubble: *bubble,
        eta,
        verdict: verdict.as_deref(),
    };
    Some(line.text())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use zbelastic_types::{Bytes, NodeId};

    use super::*;
    use crate::args::{Cli, CliCommand};
    use zbelastic_api::sample::{self, NOW_MS, scripted};
    use zbelastic_api::{ApiAnswer, ApiRequest, EventPage, LogPage};

    fn step(step: u64) -> EventKind {
        EventKind::Step {
            step,
            step_count: 10_000,
            loss: Some(3.214_53),
            gnorm: Some(0.8124),
            verdict: "keep".to_owned(),
            clip: Some(1.0),
            lr: 5.9e-4,
            ms: 412.0,
            tokens_per_s: 127_184.4,
            generation: 7,
            stages: 4,
            attempts: 1,
            bubble: None,
            bubble_planned: None,
            causes: None,
            eta_s: Some(3733.0),
        }
    }

    #[test]
    fn steps_are_training_lines_and_the_rest_stands_out() {
        let check = |kind: EventKind, expected: &str| {
            assert_eq!(run_line(&ClusterEvent::new(1, NOW_MS, kind)), expected);
        };
        check(
            step(1280),
            "step  1280/10000  loss 3.2145  norm 0.812  412 ms  127k tok/s  eta 1h02",
        );
        let mut clipped = step(7);
        if let EventKind::Step { verdict, bubble, loss, eta_s, .. } = &mut clipped {
            *verdict = "clip".to_owned();
            *bubble = Some(0.021);
            *loss = None;
            *eta_s = None;
        }
        check(
            clipped,
            "step     7/10000  loss NaN  norm 0.812  412 ms  127k tok/s  bubble 2.1%  clip",
        );
        let name = "gpu-\u{1b}c".to_owned();
        let reason = "connection closed".to_owned();
        let lost = EventKind::Lost { node: NodeId(4), name, reason, detected_ms: Some(400.0) };
        check(lost, "▲ node gpu-\\u{1b}c (4) lost (connection closed, 0.4 s)");
        let checkpoint =
            EventKind::Checkpoint { step: 1300, bytes: Bytes(1_600_000_000), ms: Some(2100.0) };
        check(checkpoint, "✔ checkpoint 1300, 1.49 GiB in 2.1 s");
    }

    fn events(kinds: Vec<EventKind>, from: u64) -> ApiAnswer {
        let numbered = kinds.into_iter().zip(from..);
        let events: Vec<ClusterEvent> =
            numbered.map(|(kind, sequence)| ClusterEvent::new(sequence, NOW_MS, kind)).collect();
        let next_sequence = from + events.len() as u64;
        ApiAnswer::Events(EventPage { log: 1, first_sequence: 0, next_sequence, events })
    }

    fn printed(line: &str, answers: Vec<ApiAnswer>) -> (String, Vec<ApiRequest>) {
        let parsed = Cli::try_parse_from(line.split_whitespace()).expect("legal").command;
        let (mut client, requests) = scripted(answers.into_iter().map(Ok).collect());
        let mut out = Vec::new();
        let mut enough = || ControlFlow::Break(());
        if let CliCommand::Events(args) = &parsed {
            print_events(args, &mut client, &mut out, &mut enough).expect("told");
        }
        if let CliCommand::Logs(args) = &parsed {
            print_logs(args, &mut client, &mut out, &mut enough).expect("told");
        }
        let requests = requests.borrow().clone();
        (String::from_utf8(out).expect("UTF-8"), requests)
    }

    #[test]
    fn events_are_printed_page_by_page_and_steps_on_demand() {
        let answers = || {
            let first = vec![EventKind::QuorumHeld, step(1)];
            vec![events(first, 5), events(vec![EventKind::QuorumLost], 7), events(vec![], 8)]
        };
        let (text, requests) = printed("zbelastic events --since 5", answers());
        let expected = "\
2026-11-21 12:01:03Z  enough controllers are there to decide
2026-11-21 12:01:03Z  too few controllers are there to decide
";
        assert_eq!(text, expected);
        let from = requests.iter().map(|request| {
            let ApiRequest::Events { from_sequence, .. } = request else { panic!("{request:?}") };
            *from_sequence
        });
        assert_eq!(from.collect::<Vec<_>>(), [5, 7, 8]);
        let (text, _) = printed("zbelastic events --steps --json -f", answers());
        let lines: Vec<ClusterEvent> =
            text.lines().map(|line| serde_json::from_str(line).expect("an event")).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1].kind, step(1));
    }

    #[test]
    fn logs_are_those_of_the_node_that_was_named() {
        let text = "started\u{7}".to_owned();
        let lines = vec![LogLine { sequence: 0, at_ms: NOW_MS, text }];
        let logs = |lines: Vec<LogLine>| {
            let next_sequence = lines.len() as u64;
            ApiAnswer::Logs(LogPage { node: NodeId(3), first_sequence: 0, next_sequence, lines })
        };
        let status = ApiAnswer::Status(Box::new(sample::status()));
        let (text, requests) =
            printed("zbelastic logs gpu-b", vec![status, logs(lines), logs(Vec::new())]);
        assert_eq!(text, "12:01:03.000  started\\u{7}\n");
        let node = Some(NodeId(3));
        assert!(matches!(requests[1], ApiRequest::Logs { node: found, .. } if found == node));
    }
}
