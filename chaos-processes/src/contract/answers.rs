//! The output of the binary's subcommands, as far as it matters here.

use serde::{Deserialize, Serialize};

/// The output of `status --json`, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReportedStatus {
    /// Number of the node that leads, if one does.
    pub leader: Option<u64>,
    /// Every member that `status` lists.
    pub members: Vec<ReportedMember>,
    /// The job, if there is one.
    pub job: Option<ReportedJob>,
}

/// A member, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReportedMember {
    /// Number of the node.
    pub id: u64,
    /// Name of the node.
    pub name: String,
    /// Index of its stage in the pipeline, if it has one.
    pub stage: Option<u64>,
    /// The work that it has done, as it reported last.
    pub work: Option<ReportedWork>,
}

/// The work that a worker has done, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReportedWork {
    /// A count that grows with each operation that runs and each byte of a layer that comes.
    pub done: u64,
}

/// The output of `plan --json`, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReportedPlan {
    /// The schedules that were planned.
    pub schedules: Vec<ReportedSchedule>,
}

/// The memory that a schedule needs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReportedSchedule {
    /// Name of the schedule.
    pub schedule: String,
    /// Memory of each stage, copies included.
    pub stage_bytes: Vec<u64>,
}

impl ReportedPlan {
    /// The memory of each stage under a schedule.
    #[must_use]
    pub fn stage_bytes(&self, schedule: &str) -> Option<&[u64]> {
        let found = self.schedules.iter().find(|planned| planned.schedule == schedule)?;
        Some(&found.stage_bytes)
    }
}

/// The output of `bench cluster --json`, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportedBenchmark {
    /// A step, each worker a thread of one process, in milliseconds.
    pub threads_ms: f64,
    /// A step, each worker a process.
    pub processes_ms: f64,
    /// Tokens a second of processes over those of threads.
    pub processes_over_threads: f64,
    /// A step during which a checkpoint was written over one without.
    pub checkpoint_ratio: Option<f64>,
    /// From the last seal to the model's file over writing its bytes plainly.
    pub ending_ratio: Option<f64>,
}

/// The job that is trained, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReportedJob {
    /// How many steps are sealed.
    pub step: u64,
    /// Steps of the run.
    pub step_count: u64,
    /// The digest of a state.
    pub digest: Option<String>,
    /// Steps sealed before that state.
    pub digest_step: Option<u64>,
}

impl ReportedJob {
    /// The digest of the final state, if the run is done and it is known.
    #[must_use]
    pub fn final_digest(&self) -> Option<&str> {
        let is_final = self.step == self.step_count
            && self.digest_step.is_none_or(|step| step == self.step_count);
        self.digest.as_deref().filter(|_| is_final)
    }
}

#[cfg(test)]
mod tests {
    use super::{ReportedBenchmark, ReportedJob, ReportedPlan, ReportedStatus};

    #[test]
    fn a_digest_counts_only_at_the_end() {
        let job = |step, digest_step| {
            let digest = Some("ab".to_owned());
            let job = ReportedJob { step, step_count: 9, digest, digest_step };
            job.final_digest().map(str::to_owned)
        };
        assert_eq!(job(9, Some(9)).as_deref(), Some("ab"));
        assert_eq!(job(9, None).as_deref(), Some("ab"));
        assert_eq!(job(9, Some(8)), None);
        assert_eq!(job(8, Some(8)), None);
        let status: ReportedStatus = serde_json::from_str("{}").expect("nothing is known");
        assert_eq!(status, ReportedStatus::default());
    }

    #[test]
    fn what_was_planned_and_measured_is_read() {
        let text = r#"{"gap":null,"schedules":[{"schedule":"1f1b","stage_bytes":[7,8],"bubble":0.1},
                       {"schedule":"zb-h1","stage_bytes":[9,8]}]}"#;
        let plan: ReportedPlan = serde_json::from_str(text).expect("a plan");
        assert_eq!(plan.stage_bytes("zb-h1"), Some(&[9, 8][..]));
        assert_eq!(plan.stage_bytes("zb-v"), None);
        let text = r#"{"workers":3,"threads_ms":9.5,"processes_ms":10.0,"processes_over_threads":0.95,
                       "checkpoint_ratio":null,"ending_ratio":1.25}"#;
        let benchmark: ReportedBenchmark = serde_json::from_str(text).expect("an answer");
        assert_eq!((benchmark.checkpoint_ratio, benchmark.ending_ratio), (None, Some(1.25)));
    }
}
