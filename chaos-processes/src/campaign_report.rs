//! The report of a campaign, for a person and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::check::LogFindings;
use super::durations::{DurationQuantiles, SortedDurations, words};
use super::faults::{ProcessFault, ProcessFaultKind};
use super::process_network::NetworkKind;
use super::proxy::ProxyCounts;

/// The text in the table for recovery times of a kind if the run recovered from no fault of that
/// kind in time.
const UNRECOVERED: &str = "-";

/// A fault that was injected.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultInjectionRecord {
    /// The fault, as it was drawn.
    pub fault: ProcessFault,
    /// The fault in words.
    pub text: String,
    /// Names of the members that it hit.
    pub victims: Vec<String>,
    /// When, in microseconds since 1970.
    pub at_us: u64,
    /// The last sealed step of that moment.
    pub step: u64,
    /// The plan of that moment.
    pub generation: u64,
    /// The event that showed that the run had recovered.
    pub recovery: Option<Recovery>,
}

/// The seal that showed that a run had recovered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Recovery {
    /// Milliseconds after the fault.
    pub ms: f64,
    /// The step that was sealed.
    pub step: u64,
    /// The plan under which it was sealed.
    pub generation: u64,
}

/// How a campaign ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", content = "why", rename_all = "snake_case")]
pub enum CampaignVerdict {
    /// Everything is as if nothing had happened.
    Passed,
    /// An invariant is broken.
    Unsafe(String),
    /// Nothing moves, though it should.
    Stuck(String),
    /// A process ended by itself.
    Crashed(String),
    /// The campaign itself did not work as it should.
    Harness(String),
    /// The campaign was interrupted.
    Interrupted,
}

impl CampaignVerdict {
    /// The exit code that a script reads: the codes of the simulator.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Unsafe(_) => 10,
            Self::Stuck(_) => 11,
            Self::Crashed(_) => 12,
            Self::Harness(_) => 14,
            Self::Interrupted => 130,
        }
    }
}

impl fmt::Display for CampaignVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Unsafe(why) => write!(f, "FAILED, safety: {why}"),
            Self::Stuck(why) => write!(f, "FAILED, liveness: {why}"),
            Self::Crashed(why) => write!(f, "FAILED, a process ended: {why}"),
            Self::Harness(why) => write!(f, "FAILED, the campaign itself: {why}"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// All that a campaign reports.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessCampaignReport {
    /// The seed from which the faults are drawn.
    pub seed: u64,
    /// The network between its processes.
    pub wires: NetworkKind,
    /// Controllers at the beginning.
    pub controllers: u32,
    /// Workers at the beginning.
    pub workers: u32,
    /// Steps of the run.
    pub steps: u64,
    /// Its duration, in seconds.
    pub seconds: f64,
    /// The faults that this machine could inject into a cluster.
    pub machine: Vec<String>,
    /// Faults that were injected, in order.
    pub strikes: Vec<FaultInjectionRecord>,
    /// Faults that hit no node, because there was none of that kind.
    pub missed: u64,
    /// From a fault to the next seal that needed no member that was hit.
    pub recovery: BTreeMap<ProcessFaultKind, DurationQuantiles>,
    /// The findings of the check of the event files.
    pub findings: LogFindings,
    /// The digest of the final state without faults.
    pub digest_undisturbed: Option<String>,
    /// The counts of the proxy, if there was one.
    pub proxy: Option<ProxyCounts>,
    /// The verdict on the run.
    #[serde(flatten)]
    pub verdict: CampaignVerdict,
}

/// Times from fault to recovery, by kind.
#[must_use]
pub fn recovery_times(
    injections: &[FaultInjectionRecord],
) -> BTreeMap<ProcessFaultKind, DurationQuantiles> {
    let mut times: BTreeMap<ProcessFaultKind, SortedDurations> = BTreeMap::new();
    for injection in injections {
        if let Some(recovery) = injection.recovery {
            times.entry(injection.fault.kind()).or_default().add(recovery.ms);
        }
    }
    times.into_iter().filter_map(|(kind, times)| Some((kind, times.quantiles()?))).collect()
}

impl fmt::Display for ProcessCampaignReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18}{:>7}{:>12}{:>12}{:>12}", "fault", "struck", "seal p50", "p99", "max")?;
        for kind in ProcessFaultKind::ALL {
            let of_kind = |injection: &&FaultInjectionRecord| injection.fault.kind() == kind;
            let injected = self.strikes.iter().filter(of_kind).count();
            if injected == 0 {
                continue;
            }
            let columns =
                self.recovery.get(&kind).map_or([UNRECOVERED; 3].map(str::to_owned), |q| {
                    [q.p50_ms, q.p99_ms, q.max_ms].map(words)
                });
            writeln!(
                f,
                "{kind:<18}{injected:>7}{:>12}{:>12}{:>12}",
                columns[0], columns[1], columns[2]
            )?;
        }
        writeln!(
            f,
            "{} faults in {:.1} s, {} missed; {} of {} steps sealed, {} lost, {} compared",
            self.strikes.len(),
            self.seconds,
            self.missed,
            self.findings.step,
            self.steps,
            self.findings.steps_lost,
            self.findings.compared
        )?;
        let digest =
            |digest: Option<&String>| digest.map_or("not reported", String::as_str).to_owned();
        writeln!(f, "digest undisturbed  {}", digest(self.digest_undisturbed.as_ref()))?;
        writeln!(f, "digest under faults {}", digest(self.findings.digests.first()))?;
        for violation in &self.findings.violations {
            writeln!(f, "  {violation}")?;
        }
        write!(f, "{}", self.verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        CampaignVerdict, FaultInjectionRecord, ProcessCampaignReport, Recovery, recovery_times,
    };
    use crate::check::LogFindings;
    use crate::faults::ProcessFault;

    fn injection(down_ms: u64, recovered_ms: Option<f64>) -> FaultInjectionRecord {
        let fault = ProcessFault::KillLeader { down_ms };
        let recovery = recovered_ms.map(|ms| Recovery { ms, step: 9, generation: 3 });
        let text = fault.to_string();
        let victims = vec!["c1".to_owned()];
        FaultInjectionRecord { fault, text, victims, at_us: 1, step: 7, generation: 2, recovery }
    }

    #[test]
    fn an_account_is_a_table_and_a_verdict() {
        let injections =
            vec![injection(10, Some(800.0)), injection(20, Some(1200.0)), injection(5, None)];
        let report = ProcessCampaignReport {
            seed: 1,
            wires: crate::process_network::NetworkKind::Loopback,
            controllers: 3,
            workers: 2,
            steps: 40,
            seconds: 12.0,
            machine: Vec::new(),
            recovery: recovery_times(&injections),
            strikes: injections,
            missed: 0,
            findings: LogFindings {
                step: 40,
                digests: vec!["ab".to_owned()],
                ..LogFindings::default()
            },
            digest_undisturbed: Some("ab".to_owned()),
            proxy: None,
            verdict: CampaignVerdict::Passed,
        };
        let expected = "\
fault              struck    seal p50         p99         max
kill-leader             3      800 ms      1.20 s      1.20 s
3 faults in 12.0 s, 0 missed; 40 of 40 steps sealed, 0 lost, 0 compared
digest undisturbed  ab
digest under faults ab
passed";
        assert_eq!(report.to_string(), expected);
        let json = serde_json::to_value(&report).expect("data");
        assert_eq!(json["verdict"], "passed");
        assert_eq!(json["recovery"]["kill-leader"]["count"], 2);
    }

    #[test]
    fn a_verdict_has_its_reason_in_json() {
        let json =
            serde_json::to_value(CampaignVerdict::Stuck("no seal".to_owned())).expect("data");
        assert_eq!(json, serde_json::json!({ "verdict": "stuck", "why": "no seal" }));
        assert_eq!(CampaignVerdict::Stuck(String::new()).exit_code(), 11);
    }
}
