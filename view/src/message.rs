//! What an open page is sent: one JSON object a message, with its `kind`.

use serde::Serialize;
use zbelastic_api::{StatusReport, StepTimeBreakdown};

use crate::lanes::{PlannedLanes, StepLanes};
use crate::{HeadFigures, PageMark, StepPoint};

/// Whether the cluster answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SourceState {
    /// Nothing was received yet.
    Connecting,
    /// It answers.
    Live,
    /// It does not answer.
    Lost {
        /// Why, in words.
        reason: String,
    },
}

/// Steps by column: a point of one column belongs to those at the same place of all others.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepColumns {
    /// Numbers of the steps, from 1.
    pub step: Vec<u64>,
    /// When each was sealed, in milliseconds since 1970.
    pub at_ms: Vec<u64>,
    /// Losses, in nats a token.
    pub loss: Vec<Option<f64>>,
    /// Gradient norms before clipping.
    pub gnorm: Vec<Option<f64>>,
    /// Learning rates.
    pub lr: Vec<f64>,
    /// Durations in milliseconds.
    pub ms: Vec<f64>,
    /// Tokens a second.
    pub tokens_per_s: Vec<f64>,
    /// Measured bubbles.
    pub bubble: Vec<Option<f64>>,
    /// Planned bubbles.
    pub bubble_planned: Vec<Option<f64>>,
    /// Verdicts: `k` for keep, `c` for clip, `s` for skip, one letter a step.
    pub verdicts: String,
    /// How often each was run.
    pub attempts: Vec<u32>,
}

impl<'a> FromIterator<&'a StepPoint> for StepColumns {
    fn from_iter<I: IntoIterator<Item = &'a StepPoint>>(points: I) -> Self {
        let mut columns = Self::default();
        for point in points {
            columns.step.push(point.step);
            columns.at_ms.push(point.at_ms);
            columns.loss.push(point.loss);
            columns.gnorm.push(point.gnorm);
            columns.lr.push(point.lr);
            columns.ms.push(point.ms);
            columns.tokens_per_s.push(point.tokens_per_s);
            columns.bubble.push(point.bubble);
            columns.bubble_planned.push(point.bubble_planned);
            columns.verdicts.push(point.verdict.chars().next().unwrap_or('k'));
            columns.attempts.push(point.attempts);
        }
        columns
    }
}

/// A message to pages.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PageMessage<'a> {
    /// All that is known, for a page that was opened.
    Snapshot {
        /// Whether the cluster answers.
        source: SourceState,
        /// The status, as `status --json` prints it.
        status: Option<&'a StatusReport>,
        /// Figures that the status does not have.
        head: Option<HeadFigures>,
        /// Sealed steps.
        steps: StepColumns,
        /// Steps and held-out losses.
        held_out: Vec<(u64, Option<f64>)>,
        /// Marks, oldest first.
        marks: Vec<&'a PageMark>,
        /// The planned lanes that those steps name.
        plans: Vec<&'a PlannedLanes>,
        /// Lanes of the last steps.
        lanes: Vec<&'a StepLanes>,
        /// Bytes of the last trace, if it was too long to be read.
        trace_too_long: Option<u64>,
        /// Where the time of steps went under the last plan.
        causes: Option<StepTimeBreakdown>,
        /// Of a report: the description of the run that ended.
        #[serde(skip_serializing_if = "Option::is_none")]
        run: Option<&'a serde_json::Value>,
    },
    /// Whether the cluster answers has changed.
    Source(SourceState),
    /// Another status.
    Status {
        /// The status.
        status: &'a StatusReport,
        /// Figures that the status does not have.
        head: HeadFigures,
    },
    /// More steps were sealed, or marks were added.
    Added {
        /// Steps that were sealed.
        steps: StepColumns,
        /// Held-out losses.
        held_out: Vec<(u64, Option<f64>)>,
        /// Marks.
        marks: Vec<PageMark>,
        /// Where the time of steps went under the plan, as it was reported last.
        causes: Option<StepTimeBreakdown>,
    },
    /// The run went back: steps behind this one are computed again.
    Rewound {
        /// The last step that stays.
        step: u64,
    },
    /// Another run began: steps, lanes and causes are gone, and the marks so far are at no step.
    AnotherRun,
    /// Lanes of more steps.
    Lanes {
        /// The planned lanes that the steps name, if the messages before had no such.
        plans: Vec<PlannedLanes>,
        /// The steps.
        lanes: Vec<StepLanes>,
        /// Bytes of the trace, if it was too long to be read.
        trace_too_long: Option<u64>,
    },
}

impl PageMessage<'_> {
    /// The message as one line of JSON.
    ///
    /// # Panics
    /// Never: numbers, texts and lists are JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers, texts and lists are JSON")
    }
}

/// A status as `status --json` prints it.
///
/// # Panics
/// Never: numbers, texts and lists are JSON.
#[must_use]
pub fn status_json(status: &StatusReport) -> String {
    serde_json::to_string(status).expect("numbers, texts and lists are JSON")
}
