//! Follows a run to its end: the training line, and the events beside it.

use std::io::Write;

use zbelastic_api::client::{ApiClient, ApiError, ClientError};
use zbelastic_api::{ClusterEvent, EventKind, JobPhaseStatus, JobStatus, escape};
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, print_error_line};

use crate::commands::events::run_line;
use crate::commands::reach::write_json_line;
use crate::event_poller::{EventPoller, PolledEvents};

/// Polls in a row that may stay without an answer: a minute, with the pause between two polls.
const SILENCES_MAX: u32 = 240;
/// Polls without events after which the run's status is requested: the event of its end may have
/// been forgotten, or logged by a node that is gone.
const QUIET_MAX: u32 = 20;

/// Status requests that find the run waiting for each line printed: a minute, with the polls
/// between two.
const LOOKS_PER_LINE: u32 = 12;

/// The reader that events are printed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutputMode {
    /// A script: one event a line.
    Json,
    /// A person at a terminal: the newest step of those that come together.
    Terminal,
    /// A person later: every step.
    File,
}

/// Prints events until the run is over.
///
/// # Errors
/// If it ends otherwise than done, if no answer comes for too long, or if `out` cannot be written.
pub fn follow(
    from: u64,
    mode: RunOutputMode,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
    pause: &mut dyn FnMut(),
) -> Result<(), CommandError> {
    let mut poller = EventPoller::starting_at(from);
    let mut silences = 0;
    let mut quiet = 0;
    let mut waits = WaitLines::default();
    loop {
        let polled = match poller.poll(client) {
            Ok(polled) => polled,
            Err(error) if is_passing(&error) && silences < SILENCES_MAX => {
                if silences == 0 && mode != RunOutputMode::Json {
                    writeln!(out, "▲ {}; retrying", escape(&error.to_string()))?;
                    out.flush()?;
                }
                silences += 1;
                pause();
                continue;
            }
            Err(error) => return Err(CommandFailure::from(error).into()),
        };
        quiet = if silences == 0 && polled.events.is_empty() { quiet + 1 } else { 0 };
        silences = 0;
        print_events(&polled, mode, out)?;
        if let Some(ended) = polled.events.iter().find_map(|event| ending_of(&event.kind)) {
            return ended.map_err(CommandError::from);
        }
        if quiet >= QUIET_MAX || polled.missed > 0 || polled.is_other_log {
            quiet = 0;
            if let Some(job) = client.status().map_err(CommandFailure::from)?.job {
                if job.phase.is_over() {
                    return ending(&job);
                }
                waits.print(&job, mode, out)?;
            }
        }
        if polled.events.is_empty() {
            pause();
        }
    }
}

/// The lines that say what a run waits for.
#[derive(Default)]
struct WaitLines {
    /// Status requests in a row that found it waiting, since the last line.
    looks: u32,
    /// The reason of the last line without its figures, which grow.
    printed: Option<String>,
}

impl WaitLines {
    /// Prints the condition that a run waits for when it is another one, and once a minute: it may be
    /// for something that never comes. Lines of JSON are events alone, so it is on standard error
    /// beside them.
    fn print(
        &mut self,
        job: &JobStatus,
        mode: RunOutputMode,
        out: &mut dyn Write,
    ) -> Result<(), CommandError> {
        let JobPhaseStatus::Waiting { reason } = &job.phase else {
            *self = Self::default();
            return Ok(());
        };
        let words = words_of(reason);
        let is_other = self.printed.as_ref() != Some(&words);
        if is_other || self.looks.is_multiple_of(LOOKS_PER_LINE) {
            self.looks = 0;
            self.printed = Some(words);
            let line = format!("▲ waits: {}; `zbelastic stop --yes` gives it up", escape(reason));
            if mode == RunOutputMode::Json {
                print_error_line(&line);
            } else {
                writeln!(out, "{line}")?;
                out.flush()?;
            }
        }
        self.looks += 1;
        Ok(())
    }
}

/// The words of a reason without its figures and their units; numbers in names stay.
fn words_of(reason: &str) -> String {
    const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "kB", "MB", "GB"];
    let is_figure = |word: &str| {
        let word = word.trim_matches(|letter: char| !letter.is_alphanumeric());
        word.starts_with(|letter: char| letter.is_ascii_digit()) || UNITS.contains(&word)
    };
    let words = reason.split_whitespace().filter(|word| !is_figure(word));
    words.collect::<Vec<_>>().join(" ")
}

/// Whether the cluster may answer again: a controller was lost, another one becomes leader.
pub fn is_passing(error: &ApiError) -> bool {
    match error {
        ApiError::Client(ClientError::Unreachable { .. } | ClientError::Broken { .. })
        | ApiError::NoQuorum { .. }
        | ApiError::NoLeader { .. } => true,
        ApiError::Client(ClientError::Denied { .. } | ClientError::Stranger { .. })
        | ApiError::Wire(_)
        | ApiError::Refused(_)
        | ApiError::Unexpected { .. } => false,
    }
}

fn print_events(
    polled: &PolledEvents,
    mode: RunOutputMode,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    if polled.missed > 0 && mode != RunOutputMode::Json {
        writeln!(out, "▲ {} events were dropped before they could be received", polled.missed)?;
    }
    let newest = polled.events.iter().rposition(|event| event.kind.is_step());
    for (index, event) in polled.events.iter().enumerate() {
        match mode {
            RunOutputMode::Json => write_json_line(out, event)?,
            RunOutputMode::Terminal if event.kind.is_step() && Some(index) != newest => {}
            RunOutputMode::Terminal | RunOutputMode::File => print_event_line(event, out)?,
        }
    }
    out.flush()?;
    Ok(())
}

fn print_event_line(event: &ClusterEvent, out: &mut dyn Write) -> Result<(), CommandError> {
    writeln!(out, "{}", run_line(event))?;
    Ok(())
}

/// How the run ended, if this is its end.
fn ending_of(kind: &EventKind) -> Option<Result<(), CommandFailure>> {
    match kind {
        EventKind::Done { .. } => Some(Ok(())),
        EventKind::Stopped { step } => Some(Err(stopped(*step))),
        EventKind::Halted { step, reason } => Some(Err(halted(*step, reason))),
        EventKind::Started { .. }
        | EventKind::Leader { .. }
        | EventKind::Joined { .. }
        | EventKind::Draining { .. }
        | EventKind::Lost { .. }
        | EventKind::RunStarted { .. }
        | EventKind::Paused { .. }
        | EventKind::Resumed { .. }
        | EventKind::Plan { .. }
        | EventKind::Running { .. }
        | EventKind::Step { .. }
        | EventKind::HeldOut { .. }
        | EventKind::Rollback { .. }
        | EventKind::Rewound { .. }
        | EventKind::Checkpoint { .. }
        | EventKind::QuorumLost
        | EventKind::QuorumHeld
        | EventKind::FormatRaised { .. }
        | EventKind::TokenCreated { .. }
        | EventKind::TokenRevoked { .. }
        | EventKind::Violation { .. }
        | EventKind::Warning { .. }
        | EventKind::Other => None,
    }
}

/// The outcome of the command for a run in this phase.
///
/// # Errors
/// If it is stopped or halted.
pub fn ending(job: &JobStatus) -> Result<(), CommandError> {
    match &job.phase {
        JobPhaseStatus::Stopped => Err(stopped(job.step).into()),
        JobPhaseStatus::Halted { reason } => Err(halted(job.step, reason).into()),
        JobPhaseStatus::Done
        | JobPhaseStatus::Running
        | JobPhaseStatus::Waiting { .. }
        | JobPhaseStatus::Paused => Ok(()),
    }
}

fn stopped(step: u64) -> CommandFailure {
    let what = format!("the run was stopped after step {step}");
    CommandFailure::new(FailureCode::WrongState, what)
}

fn halted(step: u64, reason: &str) -> CommandFailure {
    let what = format!("the run is halted after step {step}: {}", escape(reason));
    CommandFailure::new(FailureCode::WrongState, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::sample::{self, scripted};
    use zbelastic_api::{ApiAnswer, EventPage};

    type Scripted = Result<ApiAnswer, ClientError>;

    fn page(log: u64, from: u64, kinds: Vec<EventKind>) -> Scripted {
        let numbered = kinds.into_iter().zip(from..);
        let events: Vec<ClusterEvent> = numbered
            .map(|(kind, sequence)| ClusterEvent::new(sequence, 1 + sequence, kind))
            .collect();
        let next_sequence = from + events.len() as u64;
        Ok(ApiAnswer::Events(EventPage { log, first_sequence: 0, next_sequence, events }))
    }

    fn step(step: u64) -> EventKind {
        EventKind::Step {
            step,
            step_count: 9,
            loss: Some(1.0),
            gnorm: Some(1.0),
            verdict: "keep".to_owned(),
            clip: Some(1.0),
            lr: 1e-3,
            ms: 1.0,
            tokens_per_s: 1.0,
            generation: 1,
            stages: 1,
            attempts: 1,
            bubble: None,
            bubble_planned: None,
            causes: None,
            eta_s: None,
        }
    }

    fn done() -> EventKind {
        EventKind::Done { step: 9, digest: None }
    }

    fn followed(
        mode: RunOutputMode,
        answers: Vec<Scripted>,
    ) -> (Result<(), FailureCode>, String, u32) {
        let (mut client, _) = scripted(answers);
        let mut out = Vec::new();
        let mut pauses = 0;
        let ended = follow(0, mode, &mut client, &mut out, &mut || pauses += 1);
        let ended = ended.map_err(|stop| match stop {
            CommandError::Failed(failure) => failure.code,
            CommandError::Output(error) => panic!("{error}"),
        });
        (ended, String::from_utf8(out).expect("UTF-8"), pauses)
    }

    #[test]
    fn a_file_gets_every_step_and_a_terminal_the_newest_of_those_that_come_together() {
        let answers = || {
            let kinds = vec![step(1), step(2), EventKind::QuorumHeld, step(3)];
            vec![page(1, 0, kinds), page(1, 4, vec![]), page(1, 4, vec![step(4), done()])]
        };
        let (ended, text, pauses) = followed(RunOutputMode::File, answers());
        assert_eq!((ended, text.matches("step ").count(), pauses), (Ok(()), 4, 1));
        assert!(text.ends_with("✔ all 9 steps are sealed\n"), "{text}");
        let (_, text, _) = followed(RunOutputMode::Terminal, answers());
        let firsts: Vec<&str> = text.lines().map(|line| &line[..line.len().min(8)]).collect();
        assert_eq!(firsts.len(), 4);
        assert!(text.contains("step 3/9") && text.contains("step 4/9"), "{text}");
        let (_, text, _) = followed(RunOutputMode::Json, answers());
        assert_eq!(text.lines().count(), 6);
    }

    #[test]
    fn a_run_that_does_not_get_done_ends_with_6() {
        let reason = "no checkpoint can be read".to_owned();
        for kind in [EventKind::Stopped { step: 3 }, EventKind::Halted { step: 3, reason }] {
            let (ended, _, _) = followed(RunOutputMode::File, vec![page(1, 0, vec![kind])]);
            assert_eq!(ended, Err(FailureCode::WrongState));
        }
    }

    fn silence() -> Scripted {
        Err(ClientError::Broken { reason: "reset".to_owned() })
    }

    #[test]
    fn a_silence_is_reported_once_and_borne_for_a_while() {
        let mut answers = vec![page(1, 0, vec![step(1)])];
        answers.extend((0..SILENCES_MAX).map(|_| silence()));
        answers.push(page(1, 1, vec![done()]));
        let (ended, text, pauses) = followed(RunOutputMode::File, answers);
        assert_eq!((ended, pauses), (Ok(()), SILENCES_MAX));
        assert_eq!(text.matches("; retrying").count(), 1);
        let answers = (0..=SILENCES_MAX).map(|_| silence()).collect();
        let (ended, _, _) = followed(RunOutputMode::File, answers);
        assert_eq!(ended, Err(FailureCode::Unreachable));
        let denied = Err(ClientError::Denied { reason: "revoked".to_owned() });
        let (ended, _, pauses) = followed(RunOutputMode::File, vec![denied]);
        assert_eq!((ended, pauses), (Err(FailureCode::NotAuthorised), 0));
    }

    fn status(phase: JobPhaseStatus) -> Scripted {
        let mut status = sample::status();
        status.job = Some(JobStatus { phase, ..sample::job() });
        Ok(ApiAnswer::Status(Box::new(status)))
    }

    #[test]
    fn a_run_that_waits_for_something_else_says_so_and_figures_that_grow_are_no_news() {
        let mut waits = WaitLines::default();
        let mut out = Vec::new();
        for reason in [
            "plan 2 loads",
            "plan 2 loads: b (receives 1 of 9)",
            "plan 2 loads: b (receives 7 of 9)",
        ] {
            let phase = JobPhaseStatus::Waiting { reason: reason.to_owned() };
            let job = JobStatus { phase, ..sample::job() };
            assert!(waits.print(&job, RunOutputMode::File, &mut out).is_ok());
        }
        let text = String::from_utf8(out).expect("UTF-8");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("(receives 1 of 9)"), "{text}");
    }

    #[test]
    fn a_run_that_waits_says_for_what_once_a_minute() {
        let waiting =
            || status(JobPhaseStatus::Waiting { reason: "waiting for workers".to_owned() });
        let polls = 2 * LOOKS_PER_LINE;
        let mut answers = Vec::new();
        for poll in 0..polls {
            answers.extend((0..QUIET_MAX).map(|_| page(1, 0, vec![])));
            answers.push(if poll == 3 { status(JobPhaseStatus::Running) } else { waiting() });
        }
        answers.push(page(1, 0, vec![done()]));
        let (ended, text, _) = followed(RunOutputMode::File, answers);
        assert_eq!(ended, Ok(()));
        let count = text.matches("▲ waits: waiting for workers; `zbelastic stop --yes`").count();
        assert_eq!(
            count, 3,
            "when it begins to wait, when it does again, and a minute later: {text}"
        );
    }

    #[test]
    fn an_end_that_no_event_reports_is_found_all_the_same() {
        let mut answers: Vec<Scripted> = (0..QUIET_MAX).map(|_| page(1, 0, vec![])).collect();
        answers.push(status(JobPhaseStatus::Running));
        answers.extend((0..QUIET_MAX).map(|_| page(1, 0, vec![])));
        answers.push(status(JobPhaseStatus::Done));
        let (ended, _, _) = followed(RunOutputMode::File, answers);
        assert_eq!(ended, Ok(()));
        // Another node answers, that never logged the end.
        let answers = vec![
            page(1, 0, vec![step(1)]),
            page(2, 1, vec![]),
            page(2, 0, vec![]),
            status(JobPhaseStatus::Stopped),
        ];
        let (ended, _, _) = followed(RunOutputMode::File, answers);
        assert_eq!(ended, Err(FailureCode::WrongState));
    }
}
