//! How much work a worker process has done, and its present long activity. Counted where the work
//! is done, read by the event loop, and reported to controllers: it distinguishes slow nodes from
//! stuck ones (rule of progress, docs/validation.md), and `status` shows how far a load, an
//! evaluation or a checkpoint is.

pub use zbelastic_api::LongActivity;
pub use zbelastic_policy::WorkCounter;
pub use zbelastic_policy::device_gauge::{DeviceGauge, EvaluationGauge};
