//! `report.html`: the page of a run that ended, in one file that connects to nothing.

use std::path::Path;

use serde_json::Value;
use zbelastic_view::{Dashboard, Observation, RunCosts};
use zbelastic_whole_file::last_lines;

use super::events::cluster_event;
use crate::run_files::{METRICS, METRICS_BYTES_MAX};

/// Events that are given to the dashboard at once.
const EVENTS_AT_ONCE: usize = 4096;

/// The text of the report on the run in `folder`: its metrics, the trace of its last steps, and the
/// description that `run.json` has. Lines that cannot be read are left out: the report is a picture,
/// and `metrics.jsonl` is what it is a picture of.
pub fn report(folder: &Path, trace: Option<&str>, run: &str) -> String {
    let mut dashboard = Dashboard::new(RunCosts::default());
    let mut events = Vec::new();
    for line in last_lines(&folder.join(METRICS), 2 * METRICS_BYTES_MAX) {
        events.extend(std::str::from_utf8(&line).ok().and_then(cluster_event));
        if events.len() >= EVENTS_AT_ONCE {
            dashboard.observe(Observation::Events(std::mem::take(&mut events)));
        }
    }
    dashboard.observe(Observation::Events(events));
    if let Some(trace) = trace {
        dashboard.observe(Observation::Trace(trace.to_owned()));
    }
    let run = serde_json::from_str(run).unwrap_or(Value::Null);
    zbelastic_ui::report_page(&dashboard.report(&run))
}
