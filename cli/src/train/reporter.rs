//! Reports events while a run goes on: prints lines with a progress bar for a person, or JSON for a
//! script, and writes the metrics file in both cases.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use zbelastic_api::{ClusterEvent, EventKind, escape};
use zbelastic_local::messages::HeldOutLoss;
use zbelastic_local::progress_event::{ProgressEvent, StepRecord};
use zbelastic_timing::{StepTimeBreakdown, unix_ms};
use zbelastic_types::TensorIndex;
use zbelastic_wording::figures::duration_text;
use zbelastic_wording::{CommandError, print_error_line};

use super::events::{BranchEvent, EvalEvent, RollbackEvent, RunEvent, StepEvent};
use super::folder::RunFolder;
use super::progress_line::{StepLineContext, rollback_line, step_line};
use crate::commands::events::run_line;

/// The audience of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputAudience {
    /// A person, at a terminal or through a file.
    Person,
    /// A script: one JSON object a line.
    Script,
}

/// Prints events, and writes them to the metrics.
pub struct Reporter<'a> {
    out: &'a mut dyn Write,
    folder: &'a mut RunFolder,
    /// State of a person's lines; none for a script, which reads the events themselves.
    person: Option<TerminalOutput>,
    tensor_names: Vec<String>,
    /// Step losses lately, for the end of the run.
    losses: VecDeque<f64>,
    /// Where the time of steps went, as it was reported last.
    causes: Option<StepTimeBreakdown>,
    /// The error of a failed write, which ends the run.
    stop: Option<CommandError>,
}

/// The summary when everything was reported.
pub struct ReporterSummary {
    /// The mean loss of the last steps.
    pub final_loss: f64,
    /// Where the time of steps went, if a step reported it.
    pub causes: Option<StepTimeBreakdown>,
    /// The error of a failed write, which ends the run.
    pub stop: Option<CommandError>,
}

/// Steps with losses that are averaged for the final one.
const FINAL_STEPS: usize = 16;

impl<'a> Reporter<'a> {
    /// A reporter before the first step: for a person if there is a context for lines,
    /// else for a script.
    pub fn new(
        out: &'a mut dyn Write,
        folder: &'a mut RunFolder,
        context: Option<StepLineContext>,
        tensor_names: Vec<String>,
    ) -> Self {
        let person = context.map(TerminalOutput::new);
        let losses = VecDeque::new();
        Self { out, folder, person, tensor_names, losses, causes: None, stop: None }
    }

    /// Reports one event. Breaks if something cannot be written any more.
    pub fn observe(&mut self, event: &ProgressEvent) -> ControlFlow<()> {
        // Events after the first failure are still kept where that is possible.
        let written = self.record(event);
        self.control(written)
    }

    /// Where the run's files lie.
    pub fn folder_path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Reports work that was dropped. Breaks if something cannot be written any more.
    pub fn observe_rollback(&mut self, rollback: RollbackEvent) -> ControlFlow<()> {
        let line = rollback_line(&rollback);
        let written = self.write(&RunEvent::Rollback(rollback), Some(line));
        self.control(written)
    }

    /// Reports that the run goes on from another one. Breaks if something cannot be written any more.
    pub fn observe_branch(&mut self, branch: BranchEvent) -> ControlFlow<()> {
        let line = format!("· {}", branch.text());
        let written = self.write(&RunEvent::Branch(branch), Some(line));
        self.control(written)
    }

    /// Reports an event that only a cluster has. Breaks if something cannot be written any more.
    pub fn observe_event(&mut self, event: &ClusterEvent) -> ControlFlow<()> {
        let written = match is_reported(event) {
            true => {
                let json = serde_json::to_string(event).expect("numbers and texts are JSON");
                self.show(&json, Some(run_line(event)))
            }
            false => Ok(()),
        };
        self.control(written)
    }

    /// Prints a long activity for a person; a script reads it from `status`. Breaks if it cannot be
    /// written.
    pub fn observe_activity(&mut self, what: &str) -> ControlFlow<()> {
        let Some(person) = self.person.as_ref().filter(|_| self.stop.is_none()) else {
            return ControlFlow::Continue(());
        };
        let out = &mut *self.out;
        let written =
            person.bar.suspend(|| writeln!(out, "· {}", escape(what)).and_then(|()| out.flush()));
        self.control(written.map_err(CommandError::from))
    }

    /// Keeps the first thing that could not be written.
    fn control(&mut self, written: Result<(), CommandError>) -> ControlFlow<()> {
        self.stop = self.stop.take().or(written.err());
        if self.stop.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn record(&mut self, event: &ProgressEvent) -> Result<(), CommandError> {
        let names = &self.tensor_names;
        let name = |tensor: TensorIndex| names[tensor.index()].clone();
        match event {
            ProgressEvent::Step(record) => {
                // The loss of a step that was skipped for it is no measure of the model.
                self.losses.extend(Some(record.loss).filter(|loss| loss.is_finite()));
                if self.losses.len() > FINAL_STEPS {
                    self.losses.pop_front();
                }
                self.causes = record.bubbles.causes.or(self.causes);
                let line = self.person.as_mut().and_then(|person| person.step_line(record));
                let step = StepEvent::from(record);
                let scalars = step.scalars();
                // Somebody who reads no longer takes nothing from the folder.
                let shown = self.write(&RunEvent::Step(step), line);
                self.folder.append_scalars(record.step.0 + 1, unix_ms(), &scalars)?;
                shown
            }
            ProgressEvent::Rollback(rollback) => {
                let event = RollbackEvent::new(rollback, &name);
                let line = rollback_line(&event);
                self.write(&RunEvent::Rollback(event), Some(line))
            }
            ProgressEvent::Evaluated(evaluated) => {
                let HeldOutLoss { steps_done, loss } = evaluated;
                let line = format!("✔ held-out loss {loss:.4} after step {steps_done}");
                let shown = self.write(&RunEvent::Eval(EvalEvent::from(evaluated)), Some(line));
                let scalars = [("loss/held_out", *loss)];
                self.folder.append_scalars(*steps_done, unix_ms(), &scalars)?;
                shown
            }
            ProgressEvent::Islands(text) => {
                let note = || print_error_line(format_args!("note: {text}"));
                self.person.as_ref().map_or_else(note, |person| person.bar.suspend(note));
                Ok(())
            }
        }
    }

    fn write(&mut self, event: &RunEvent, line: Option<String>) -> Result<(), CommandError> {
        self.show(&event.line(unix_ms()), line)
    }

    fn show(&mut self, json: &str, line: Option<String>) -> Result<(), CommandError> {
        self.folder.append_metrics(json)?;
        if self.stop.is_some() {
            return Ok(());
        }
        let out = &mut *self.out;
        let mut show = |text: &str| writeln!(out, "{text}").and_then(|()| out.flush());
        match (&self.person, line) {
            (None, _) => show(json)?,
            (Some(person), Some(line)) => person.bar.suspend(|| show(&line))?,
            (Some(_), None) => {}
        }
        Ok(())
    }

    /// The mean loss of the last steps, and the failure to write, if there was one.
    pub fn finish(self) -> ReporterSummary {
        self.person.iter().for_each(|person| person.bar.finish_and_clear());
        let final_loss = self.losses.iter().sum::<f64>() / self.losses.len() as f64;
        ReporterSummary { final_loss, causes: self.causes, stop: self.stop }
    }
}

/// A person's lines and progress bar.
struct TerminalOutput {
    context: StepLineContext,
    throttle: LineThrottle,
    bar: ProgressBar,
}

impl TerminalOutput {
    fn new(context: StepLineContext) -> Self {
        // Draws on standard error, and nothing if that is no terminal.
        let bar = ProgressBar::new(context.step_count);
        let style = "{bar:40} {pos}/{len} steps  {elapsed} elapsed, {msg} to go";
        bar.set_style(ProgressStyle::with_template(style).expect("a legal template"));
        let is_throttled = io::stdout().is_terminal();
        Self {
            context,
            throttle: LineThrottle { is_throttled, last: None, recent: VecDeque::new() },
            bar,
        }
    }

    /// Moves the bar on; the line, if it is time for one.
    fn step_line(&mut self, record: &StepRecord) -> Option<String> {
        let steps_done = record.step.0 + 1;
        let step_count = self.context.step_count;
        let eta = self.throttle.eta(record, step_count);
        self.bar.set_message(duration_text(eta));
        self.bar.set_position(steps_done);
        let is_shown = self.throttle.allows_line() || steps_done == step_count;
        is_shown.then(|| step_line(record, &self.context, eta))
    }
}

/// How fast steps come, and how many lines that makes.
struct LineThrottle {
    /// Whether lines come no faster than a person reads.
    is_throttled: bool,
    last: Option<Instant>,
    /// Durations of the last steps.
    recent: VecDeque<Duration>,
}

impl LineThrottle {
    /// Time left after `record`, at the speed of the last steps.
    fn eta(&mut self, record: &StepRecord, step_count: u64) -> Duration {
        const STEPS: usize = 16;
        self.recent.push_back(record.elapsed);
        if self.recent.len() > STEPS {
            self.recent.pop_front();
        }
        let mean = self.recent.iter().sum::<Duration>().as_secs_f64() / self.recent.len() as f64;
        let left = step_count.saturating_sub(record.step.0 + 1);
        Duration::try_from_secs_f64(mean * left as f64).unwrap_or(Duration::MAX)
    }

    fn allows_line(&mut self) -> bool {
        const INTERVAL: Duration = Duration::from_millis(500);
        let is_due = self.last.is_none_or(|last| last.elapsed() >= INTERVAL);
        if self.is_throttled && !is_due {
            return false;
        }
        self.last = Some(Instant::now());
        true
    }
}

/// The number of the plan that a run in processes of its own begins with.
const FIRST_PLAN: u64 = 1;

/// Whether an event is worth a line for a reader of the run.
fn is_reported(event: &ClusterEvent) -> bool {
    match &event.kind {
        // The plan that every run begins with was printed before it began.
        EventKind::Plan { generation: FIRST_PLAN, .. }
        | EventKind::Running { generation: FIRST_PLAN, .. } => false,
        EventKind::Draining { .. }
        | EventKind::Lost { .. }
        | EventKind::Paused { .. }
        | EventKind::Resumed { .. }
        | EventKind::Stopped { .. }
        | EventKind::Halted { .. }
        | EventKind::Plan { .. }
        | EventKind::Running { .. }
        | EventKind::Rollback { .. }
        | EventKind::Rewound { .. }
        | EventKind::Checkpoint { .. }
        | EventKind::QuorumLost
        | EventKind::QuorumHeld
        | EventKind::FormatRaised { .. }
        | EventKind::Violation { .. }
        | EventKind::Warning { .. }
        | EventKind::Other => true,
        EventKind::Started { .. }
        | EventKind::Leader { .. }
        | EventKind::Joined { .. }
        | EventKind::RunStarted { .. }
        | EventKind::Done { .. }
        | EventKind::Step { .. }
        | EventKind::HeldOut { .. }
        | EventKind::TokenCreated { .. }
        | EventKind::TokenRevoked { .. } => false,
    }
}
