//! Figures that the page, the terminal and `/metrics` show of a cluster, computed from the answers
//! of its API.
//!
//! Pure: a [`Dashboard`] is given what was observed ([`Observation`]) and returns the messages that
//! open pages are sent, as JSON. It reads no clock: times are those of the answers. All of
//! it is bounded: [`STEPS_KEPT`], [`MARKS_KEPT`], [`LANE_STEPS_KEPT`].
//!
//! Numbers of a status are not computed again: a page receives the status as `status --json` prints
//! it, and beside it the few figures that a status does not have ([`HeadFigures`]).

mod causes;
mod dashboard;
mod head;
mod lanes;
mod mark;
mod message;
mod metrics;
mod spans;
mod step_history;
pub mod tensorboard;

pub use causes::causes_beside_plan;
pub use dashboard::{Dashboard, Observation};
pub use head::{HeadFigures, RunCosts};
pub use lanes::LANE_STEPS_KEPT;
pub use mark::{MARKS_KEPT, MarkKind, PageMark};
pub use message::{SourceState, status_json};
pub use metrics::{METRIC_NAMES, metrics_text};
pub use spans::{Span, SpanBuilder, otlp_json};
pub use step_history::{STEPS_KEPT, StepHistory, StepPoint};
