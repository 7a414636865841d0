//! Findings as a person and a script read them.

use std::fmt::Write;

use serde::Serialize;
use serde_json::json;

use super::finding::{Finding, Level, Obstacle};

/// How many findings are of which level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Counts {
    errors: usize,
    warnings: usize,
    notes: usize,
}

impl Counts {
    fn of(findings: &[Finding]) -> Self {
        let mut counts = Self::default();
        for finding in findings {
            match finding.level {
                Level::Fine => {}
                Level::Note => counts.notes += 1,
                Level::Warning => counts.warnings += 1,
                Level::Error(_) => counts.errors += 1,
            }
        }
        counts
    }
}

/// What stands in the way, if anything does. Too little of something, if there is that and more.
#[must_use]
pub fn obstacle(findings: &[Finding]) -> Option<Obstacle> {
    let is = |wanted: Obstacle| findings.iter().any(|found| found.level == Level::Error(wanted));
    [Obstacle::TooLittle, Obstacle::WrongState].into_iter().find(|wanted| is(*wanted))
}

/// A line for each finding, with why and what to do below it, and a line that counts them.
#[must_use]
pub fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { check, level, what, why, hint } in findings {
        let (level, check) = (level.name(), check.name());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{level:<8} {check:<14} {what}");
        for (title, more) in [("why", why), ("try", hint)] {
            if let Some(more) = more {
                let _ = writeln!(text, "  {title}: {more}");
            }
        }
    }
    text + "\n" + &summary(Counts::of(findings)) + "\n"
}

fn summary(counts: Counts) -> String {
    let Counts { errors, warnings, notes } = counts;
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
pub fn json(findings: &[Finding]) -> String {
    let counts = Counts::of(findings);
    let row = |finding: &Finding| {
        let Finding { check, level, what, why, hint } = finding;
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
