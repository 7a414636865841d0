//! All that is shown: given observations, it returns the messages that open pages are sent.

use std::collections::VecDeque;

use zbelastic_api::{ClusterEvent, EventKind, HexDigest, StatusReport, StepTimeBreakdown};

use crate::head::{HeadFigures, RunCosts};
use crate::lanes::{AddedLanes, LaneLog};
use crate::mark::{MARKS_KEPT, MarkKind, PageMark};
use crate::message::{PageMessage, SourceState};
use crate::step_history::{StepHistory, StepPoint};

/// An answer of the cluster, or that there was none.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// A status.
    Status(Box<StatusReport>),
    /// Events, in the order of the log.
    Events(Vec<ClusterEvent>),
    /// Events of before, from a file: that they are there does not show that the cluster answers.
    History(Vec<ClusterEvent>),
    /// The text of a trace of the last steps.
    Trace(String),
    /// The cluster does not answer.
    Unanswered {
        /// Why, in words.
        reason: String,
    },
    /// Spans of traces were dropped, or none so far where there is a collector for them.
    SpansDropped {
        /// How many in all since the command began.
        total: u64,
    },
}

impl Observation {
    /// Events that happened while the cluster was observed.
    #[must_use]
    pub fn events(&self) -> Option<&[ClusterEvent]> {
        match self {
            Self::Events(events) => Some(events),
            Self::Status(_)
            | Self::History(_)
            | Self::Trace(_)
            | Self::Unanswered { .. }
            | Self::SpansDropped { .. } => None,
        }
    }
}

/// What was observed of a cluster so far, bounded.
#[derive(Debug)]
pub struct Dashboard {
    costs: RunCosts,
    source: SourceState,
    status: Option<Box<StatusReport>>,
    history: StepHistory,
    marks: VecDeque<PageMark>,
    lanes: LaneLog,
    /// Where the time of steps went under the last plan, as it was reported last.
    causes: Option<StepTimeBreakdown>,
    /// The configuration of the run that the history is of.
    run: Option<HexDigest>,
    /// Spans of traces that were dropped, where there is a collector for them.
    spans_dropped: Option<u64>,
}

impl Dashboard {
    /// Nothing was observed yet.
    #[must_use]
    pub fn new(costs: RunCosts) -> Self {
        Self {
            costs,
            source: SourceState::Connecting,
            status: None,
            history: StepHistory::default(),
            marks: VecDeque::new(),
            lanes: LaneLog::default(),
            causes: None,
            run: None,
            spans_dropped: None,
        }
    }

    /// Adds an observation, and returns the messages for pages that are open, as JSON.
    pub fn observe(&mut self, observed: Observation) -> Vec<String> {
        let source = match &observed {
            Observation::Unanswered { reason } => SourceState::Lost { reason: reason.clone() },
            Observation::Status(_) | Observation::Events(_) | Observation::Trace(_) => {
                SourceState::Live
            }
            Observation::History(_) | Observation::SpansDropped { .. } => self.source.clone(),
        };
        let mut messages = Vec::new();
        if source != self.source {
            messages.push(PageMessage::Source(source.clone()).json());
            self.source = source;
        }
        match observed {
            Observation::Status(status) => messages.push(self.observe_status(status)),
            Observation::Events(events) | Observation::History(events) => {
                messages.extend(self.observe_events(&events));
            }
            Observation::Trace(text) => {
                let before = self.lanes.too_long();
                let AddedLanes { plan, steps: lanes } = self.lanes.add_trace(&text);
                let trace_too_long = self.lanes.too_long();
                if !lanes.is_empty() || trace_too_long != before {
                    let plans = plan.into_iter().collect();
                    messages.push(PageMessage::Lanes { plans, lanes, trace_too_long }.json());
                }
            }
            Observation::Unanswered { .. } => {}
            Observation::SpansDropped { total } => self.spans_dropped = Some(total),
        }
        messages
    }

    /// The newest step whose lanes are kept, or 0.
    #[must_use]
    pub fn newest_lanes(&self) -> u64 {
        self.lanes.newest()
    }

    fn observe_status(&mut self, status: Box<StatusReport>) -> String {
        let status = &**self.status.insert(status);
        let head = HeadFigures::of(status, &self.history, &self.costs);
        PageMessage::Status { status, head }.json()
    }

    fn observe_events(&mut self, events: &[ClusterEvent]) -> Vec<String> {
        let mut messages = Vec::new();
        let mut batch = AddedBatch::default();
        for event in events {
            if let EventKind::Rewound { to_step: step, .. } = event.kind {
                messages.extend(batch.take_message());
                self.history.rewind(step);
                self.lanes.rewind(step);
                messages.push(PageMessage::Rewound { step }.json());
            }
            if self.begins_another_run(&event.kind) {
                messages.extend(batch.take_message());
                self.forget_run();
                messages.push(PageMessage::AnotherRun.json());
            }
            self.add(event, &mut batch);
        }
        messages.extend(batch.take_message());
        messages
    }

    fn begins_another_run(&mut self, kind: &EventKind) -> bool {
        let EventKind::RunStarted { config, .. } = kind else { return false };
        let before = self.run.replace(*config);
        before.is_some_and(|before| before != *config)
    }

    /// What was of the run before is gone; what happened to members and leaders stays, and is at no step.
    fn forget_run(&mut self) {
        self.history.rewind(0);
        self.lanes.rewind(0);
        self.causes = None;
        self.marks.iter_mut().for_each(|mark| mark.step = None);
    }

    fn add(&mut self, event: &ClusterEvent, batch: &mut AddedBatch) {
        if let Some(point) = StepPoint::of(event.at_ms, &event.kind)
            && self.history.push(point.clone())
        {
            batch.steps.push(point);
        }
        if let EventKind::Step { causes: Some(causes), .. } = event.kind {
            self.causes = Some(causes);
        }
        batch.causes = self.causes;
        if let EventKind::HeldOut { step, loss } = event.kind
            && self.history.push_held_out(step, loss)
        {
            batch.held_out.push((step, loss));
        }
        let sealed = self.history.steps().next_back().map_or(0, |point| point.step);
        if let Some(mark) = PageMark::of(event, sealed) {
            batch.marks.push(mark.clone());
            self.marks.push_back(mark);
            if self.marks.len() > MARKS_KEPT {
                self.marks.pop_front();
            }
        }
    }

    /// The message for a page that was opened now, as JSON.
    #[must_use]
    pub fn snapshot(&self) -> String {
        self.snapshot_with(None, self.causes, None)
    }

    /// The same for a report, with the description of the run that ended (`run.json`). It has what the
    /// run's own file of events leaves out: where the time of steps went, and the plan that it began with.
    #[must_use]
    pub fn report(&self, run: &serde_json::Value) -> String {
        let causes = self.causes.or_else(|| serde_json::from_value(run["causes"].clone()).ok());
        let began_ms = self.history.steps().next().map_or(0, |point| point.at_ms);
        let first_plan = run["plan"]["reason"].as_str().map(|reason| PageMark {
            at_ms: began_ms,
            step: Some(0),
            kind: MarkKind::Plan,
            member: None,
            text: format!("begins with {reason}"),
        });
        self.snapshot_with(Some(run), causes, first_plan.as_ref())
    }

    fn snapshot_with(
        &self,
        run: Option<&serde_json::Value>,
        causes: Option<StepTimeBreakdown>,
        first_mark: Option<&PageMark>,
    ) -> String {
        let message = PageMessage::Snapshot {
            source: self.source.clone(),
            status: self.status(),
            head: self.head(),
            steps: self.history.steps().collect(),
            held_out: self.history.held_out().collect(),
            marks: first_mark.into_iter().chain(&self.marks).collect(),
            plans: self.lanes.plans().collect(),
            lanes: self.lanes.steps().collect(),
            trace_too_long: self.lanes.too_long(),
            causes,
            run,
        };
        message.json()
    }

    /// Whether the cluster answers.
    #[must_use]
    pub const fn source(&self) -> &SourceState {
        &self.source
    }

    /// The last status.
    #[must_use]
    pub fn status(&self) -> Option<&StatusReport> {
        self.status.as_deref()
    }

    /// The figures that the last status does not have.
    #[must_use]
    pub fn head(&self) -> Option<HeadFigures> {
        self.status().map(|status| HeadFigures::of(status, &self.history, &self.costs))
    }

    /// Spans of traces that were dropped since the command began, where there is a collector for them.
    #[must_use]
    pub const fn spans_dropped(&self) -> Option<u64> {
        self.spans_dropped
    }

    /// The sealed steps.
    #[must_use]
    pub const fn history(&self) -> &StepHistory {
        &self.history
    }

    /// Where the time of steps went under the plan, as it was reported last.
    #[must_use]
    pub const fn causes(&self) -> Option<&StepTimeBreakdown> {
        self.causes.as_ref()
    }

    /// Marks, oldest first.
    pub fn marks(&self) -> impl DoubleEndedIterator<Item = &PageMark> + ExactSizeIterator {
        self.marks.iter()
    }
}

/// Steps and marks of one batch of events.
#[derive(Default)]
struct AddedBatch {
    steps: Vec<StepPoint>,
    held_out: Vec<(u64, Option<f64>)>,
    marks: Vec<PageMark>,
    /// As it was reported last.
    causes: Option<StepTimeBreakdown>,
}

impl AddedBatch {
    /// The message with all of it, if there is any; the batch is empty then.
    fn take_message(&mut self) -> Option<String> {
        let Self { steps, held_out, marks, causes } = std::mem::take(self);
        if steps.is_empty() && held_out.is_empty() && marks.is_empty() {
            return None;
        }
        let steps = steps.iter().collect();
        Some(PageMessage::Added { steps, held_out, marks, causes }.json())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use zbelastic_api::sample;

    fn step(number: u64) -> EventKind {
        EventKind::Step {
            step: number,
            step_count: 100,
            loss: Some(2.5),
            gnorm: Some(0.5),
            verdict: "clip".to_owned(),
            clip: Some(0.5),
            lr: 1e-3,
            ms: 10.0,
            tokens_per_s: 100.0,
            attempts: 1,
            bubble: Some(0.1),
            bubble_planned: Some(0.05),
            causes: None,
            generation: 1,
            stages: 2,
            eta_s: Some(1.0),
        }
    }

    fn events(kinds: Vec<EventKind>) -> Observation {
        let events = (0..).zip(kinds).map(|(at, kind)| ClusterEvent::new(at, 1000 + at, kind));
        Observation::Events(events.collect())
    }

    fn parsed(messages: &[String]) -> Vec<Value> {
        messages.iter().map(|text| serde_json::from_str(text).expect("JSON")).collect()
    }

    #[test]
    fn a_page_that_was_open_shows_the_same_as_one_that_is_opened_now() {
        let mut dashboard = Dashboard::new(RunCosts::default());
        let reason = || "no copies".to_owned();
        let kinds = vec![
            step(1),
            step(2),
            step(3),
            EventKind::Rewound { to_step: 1, reason: reason() },
            step(2),
            EventKind::HeldOut { step: 2, loss: Some(2.0) },
        ];
        let messages = parsed(&dashboard.observe(events(kinds)));
        let names: Vec<_> = messages.iter().map(|message| &message["kind"]).collect();
        assert_eq!(names, ["source", "added", "rewound", "added"]);
        let snapshot: Value = serde_json::from_str(&dashboard.snapshot()).expect("JSON");
        assert_eq!(snapshot["steps"]["step"], serde_json::json!([1, 2]));
        assert_eq!(snapshot["steps"]["verdicts"], "cc");
        assert_eq!(snapshot["held_out"], serde_json::json!([[2, 2.0]]));
        assert_eq!(snapshot["marks"][0]["kind"], "rewind");
        assert_eq!(messages[1]["steps"]["step"], serde_json::json!([1, 2, 3]));
        assert_eq!(messages[3]["steps"]["step"], serde_json::json!([2]));
    }

    #[test]
    fn another_run_begins_with_an_empty_history() {
        let mut dashboard = Dashboard::new(RunCosts::default());
        let started =
            |byte| EventKind::RunStarted { config: sample::digest(byte), step: 0, step_count: 9 };
        let kinds = vec![started(1), step(1), step(2), started(1), step(3), started(2), step(1)];
        let messages = parsed(&dashboard.observe(events(kinds)));
        assert_eq!(dashboard.history().steps().map(|point| point.step).collect::<Vec<_>>(), [1]);
        let another = messages.iter().filter(|message| message["kind"] == "another_run");
        assert_eq!(another.count(), 1, "the same run went on before: {messages:?}");
        let places: Vec<_> = dashboard.marks().map(|mark| mark.step).collect();
        assert_eq!(
            places,
            [None, None, Some(0)],
            "marks of the first are at no step of the second"
        );
    }

    #[test]
    fn a_cluster_that_does_not_answer_keeps_what_was_seen() {
        let mut dashboard = Dashboard::new(RunCosts::default());
        dashboard.observe(Observation::Status(Box::new(sample::status())));
        dashboard.observe(events(vec![step(1)]));
        let lost = || Observation::Unanswered { reason: "nobody".to_owned() };
        assert_eq!(
            parsed(&dashboard.observe(lost())),
            [serde_json::json!({
                "kind": "source", "state": "lost", "reason": "nobody"
            })]
        );
        assert_eq!(dashboard.observe(lost()), Vec::<String>::new(), "it is known");
        let snapshot: Value = serde_json::from_str(&dashboard.snapshot()).expect("JSON");
        assert_eq!(snapshot["source"]["state"], "lost");
        assert_eq!(snapshot["steps"]["step"], serde_json::json!([1]));
        let status = serde_json::to_value(sample::status()).expect("JSON");
        assert_eq!(snapshot["status"], status, "numbers are those of `status --json`");
    }

    #[test]
    fn a_history_is_shown_and_is_no_answer() {
        let mut dashboard = Dashboard::new(RunCosts::default());
        let Observation::Events(before) = events(vec![step(1), step(2)]) else { panic!("events") };
        dashboard.observe(Observation::History(before));
        assert_eq!(*dashboard.source(), SourceState::Connecting);
        dashboard.observe(events(vec![step(2), step(3)]));
        let steps: Vec<_> = dashboard.history().steps().map(|point| point.step).collect();
        assert_eq!(steps, [1, 2, 3]);
        assert_eq!(*dashboard.source(), SourceState::Live);
    }

    #[test]
    fn a_report_has_the_causes_and_the_first_plan_that_the_run_left() {
        let mut dashboard = Dashboard::new(RunCosts::default());
        dashboard.observe(events(vec![step(1), EventKind::QuorumLost]));
        let causes = StepTimeBreakdown { planned_ms: 7.5, rest_ms: 0.5, ..Default::default() };
        let reason = "zb-h1: planned bubble 2.0 %, 1 MiB a stage";
        let run = serde_json::json!({ "causes": causes, "plan": { "reason": reason } });
        let report: Value = serde_json::from_str(&dashboard.report(&run)).expect("JSON");
        assert_eq!(report["causes"], run["causes"]);
        let marks = &report["marks"];
        assert_eq!(marks[0]["text"], format!("begins with {reason}"));
        assert_eq!((&marks[0]["kind"], &marks[0]["at_ms"]), (&"plan".into(), &1000.into()));
        assert_eq!(marks[1]["kind"], "quorum");
        // Runs of programs from before left neither.
        let before = serde_json::json!({ "causes": null, "plan": { "schedule": "zb-h1" } });
        let report: Value = serde_json::from_str(&dashboard.report(&before)).expect("JSON");
        assert_eq!(report["causes"], Value::Null);
        assert_eq!(report["marks"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn marks_are_bounded() {
        let mut dashboard = Dashboard::new(RunCosts::default());
        dashboard.observe(events(vec![EventKind::QuorumLost; MARKS_KEPT + 3]));
        assert_eq!(dashboard.marks().len(), MARKS_KEPT);
    }
}
