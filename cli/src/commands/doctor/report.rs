//! Findings as a person and a script read them.

use std::fmt::Write;

use serde::Serialize;
use serde_json::json;

use super::finding::{DoctorFinding, Obstacle, Severity};

/// How many findings are of which level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct FindingCounts {
    errors: usize,
    warnings: usize,
    notes: usize,
}

impl FindingCounts {
    fn of(findings: &[DoctorFinding]) -> Self {
        let mut counts = Self::default();
        for finding in findings {
            match finding.level {
                Severity::Fine => {}
                Severity::Note => counts.notes += 1,
                Severity::Warning => counts.warnings += 1,
                Severity::Error(_) => counts.errors += 1,
            }
        }
        counts
    }
}

/// The obstacle to a start, if the findings have one. Too little of something, if there is that and
/// more.
#[must_use]
pub fn obstacle(findings: &[DoctorFinding]) -> Option<Obstacle> {
    let is = |wanted: Obstacle| findings.iter().any(|found| found.level == Severity::Error(wanted));
    [Obstacle::TooLittle, Obstacle::WrongState].into_iter().find(|wanted| is(*wanted))
}

/// A line for each finding, with the reason and the remedy below it, and a line that counts them.
#[must_use]
pub fn text(findings: &[DoctorFinding]) -> String {
    let mut text = String::new();
    for DoctorFinding { check, level, what, why, hint } in findings {
        let level = level.name();
        let check = check.name();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{level:<8} {check:<14} {what}");
        for (title, more) in [("why", why), ("try", hint)] {
            if let Some(more) = more {
                let _ = writeln!(text, "  {title}: {more}");
            }
        }
    }
    text + "\n" + &summary(FindingCounts::of(findings)) + "\n"
}

fn summary(counts: FindingCounts) -> String {
    let FindingCounts { errors, warnings, notes } = counts;
    let lead =
        if errors == 0 { "this machine can be a node" } else { "this machine cannot be a node" };
    format!(
        "{lead}: {}, {}, {}",
        counted(errors, "error"),
        counted(warnings, "warning"),
        counted(notes, "note")
    )
}

fn counted(count: usize, name: &str) -> String {
    match count {
        0 => format!("no {name}s"),
        1 => format!("1 {name}"),
        more => format!("{more} {name}s"),
    }
}

/// The findings as one JSON object.
#[must_use]
pub fn json(findings: &[DoctorFinding]) -> String {
    let counts = FindingCounts::of(findings);
    let row = |finding: &DoctorFinding| {
        let DoctorFinding { check, level, what, why, hint } = finding;
        json!({
            "check": check.name(),
            "level": level.name(),
            "what": what,
            "why": why,
            "try": hint,
        })
    };
    let rows: Vec<_> = findings.iter().map(row).collect();
    let ok = counts.errors == 0;
    format!("{:#}\n", json!({ "ok": ok, "counts": counts, "findings": rows }))
}

#[cfg(test)]
mod tests;
