//! The invariants of the event files of a whole run. Pure: files in, violations out.
//!
//! | id | invariant |
//! |---|---|
//! | S1 | the files together hold every step from the first to the last, and none holds a step twice within the life of a process |
//! | S2 | the facts of two files about a step are the same, to the last bit |
//! | S6 | a step that was sealed is not sealed again under another plan, unless the run went back in between |
//! | N1 | every step has the loss and the norm of the undisturbed run, and the final digest is its |
//! | D1 | every step's batch is used once: by S1, since the batch follows from the step |
//! | C1 | every copy of every checkpoint can be read (the cluster verifies them; its files are not read here) |
//! | R1 | the resources of processes do not grow with the run (checked by the campaign, not here) |
//! | E1 | a file has no broken lines but those that a killed or full node left |

mod rewinds;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use self::rewinds::{LoggedRewind, rewinds_of, unexcused};
use super::events::{NodeEvent, NodeEventKind, SealEvent, SealFacts};

/// Violations that are reported; one is enough to fail.
pub const VIOLATIONS_MAX: usize = 20;

/// The events that one node wrote.
#[derive(Clone, Copy, Debug)]
pub struct NodeLog<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// Its events, in the order of its file.
    pub events: &'a [NodeEvent],
    /// How often something happened to it that may leave a broken line.
    pub disturbances: u32,
}

/// The run that nothing disturbed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UndisturbedRun {
    /// The facts that were agreed on at each step.
    pub steps: BTreeMap<u64, SealFacts>,
    /// The digest of its final state.
    pub digest: Option<String>,
    /// Milliseconds from a seal to the next, in the middle.
    pub step_ms: f64,
}

/// A violation of an invariant in the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogViolation {
    /// The invariant, by its name in the table above.
    pub id: &'static str,
    /// The violation, in words.
    pub what: String,
}

impl fmt::Display for LogViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.what)
    }
}

/// The findings of the check of all files.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LogFindings {
    /// The first violations, up to a limit.
    pub violations: Vec<LogViolation>,
    /// The last sealed step.
    pub step: u64,
    /// Steps that were sealed, given up and sealed again.
    pub steps_lost: u64,
    /// Number of broken lines.
    pub torn: u64,
    /// Steps compared with the undisturbed run.
    pub compared: u64,
    /// Digests of the final state that the files hold.
    pub digests: Vec<String>,
}

impl LogFindings {
    /// Something must not be.
    pub fn violate(&mut self, id: &'static str, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(LogViolation { id, what });
        }
    }
}

/// A step as one node wrote it.
struct LoggedSeal<'a> {
    by: &'a str,
    seal: &'a SealEvent,
}

/// Looks at the files of a run of so many steps.
#[must_use]
pub fn check(
    logs: &[NodeLog<'_>],
    steps: u64,
    undisturbed: Option<&UndisturbedRun>,
) -> LogFindings {
    let mut findings = LogFindings::default();
    let rewinds: Vec<LoggedRewind> = logs.iter().flat_map(rewinds_of).collect();
    let mut seals_by_step: BTreeMap<u64, Vec<LoggedSeal<'_>>> = BTreeMap::new();
    for log in logs {
        check_file(log, &mut findings);
        for event in log.events {
            if let NodeEventKind::Seal(seal) = &event.kind {
                seals_by_step.entry(seal.step).or_default().push(LoggedSeal { by: log.name, seal });
            }
            if let NodeEventKind::Done { digest: Some(digest), .. } = &event.kind {
                findings.digests.push(digest.clone());
            }
        }
    }
    for (step, seals) in &seals_by_step {
        check_step(*step, seals, &rewinds, &mut findings);
    }
    check_line(&seals_by_step, steps, &mut findings);
    if let Some(undisturbed) = undisturbed {
        compare(&seals_by_step, undisturbed, &mut findings);
    }
    findings.digests.sort();
    findings.digests.dedup();
    check_digests(undisturbed, &mut findings);
    findings
}

/// E1, and the part of S1 that one file shows.
fn check_file(log: &NodeLog<'_>, findings: &mut LogFindings) {
    let mut torn = 0;
    // Steps written since the process began or the run went back.
    let mut last = None;
    for event in log.events {
        match &event.kind {
            NodeEventKind::Started { .. } | NodeEventKind::Rewound { .. } => last = None,
            NodeEventKind::Seal(seal) => {
                if let Some(last) = last.filter(|last| seal.step <= *last) {
                    let what = format!("{} logs step {} after step {last}", log.name, seal.step);
                    findings.violate("S1", what);
                }
                last = Some(seal.step);
            }
            NodeEventKind::Torn { line } => {
                torn += 1;
                if torn > log.disturbances {
                    let line: String = line.chars().take(120).collect();
                    findings.violate("E1", format!("{} has a broken line: {line}", log.name));
                }
            }
            NodeEventKind::Leader { .. }
            | NodeEventKind::Joined { .. }
            | NodeEventKind::Lost { .. }
            | NodeEventKind::Plan { .. }
            | NodeEventKind::Halted { .. }
            | NodeEventKind::Done { .. }
            | NodeEventKind::Running(_)
            | NodeEventKind::Checkpoint { .. }
            | NodeEventKind::Other => {}
        }
    }
    findings.torn += u64::from(torn);
}

/// S2 and S6 at one step.
fn check_step(
    step: u64,
    seals: &[LoggedSeal<'_>],
    rewinds: &[LoggedRewind],
    findings: &mut LogFindings,
) {
    let Some(first) = seals.first() else { return };
    let differs = seals.iter().find(|other| {
        let digests = (&first.seal.digest, &other.seal.digest);
        first.seal.facts != other.seal.facts
            || matches!(digests, (Some(one), Some(two)) if one != two)
    });
    if let Some(other) = differs {
        let what = format!(
            "step {step} is {:?} for {} and {:?} for {}",
            first.seal.facts, first.by, other.seal.facts, other.by
        );
        findings.violate("S2", what);
    }
    let mut generations: Vec<u64> = seals.iter().map(|seal| seal.seal.generation).collect();
    generations.sort_unstable();
    generations.dedup();
    if generations.len() > 1 {
        findings.steps_lost += 1;
        if let Some((one, two)) = unexcused(step, &generations, rewinds) {
            let what = format!(
                "step {step} was sealed under generation {one} and again under {two}, and no node logs that \
                 the run went back before it in between"
            );
            findings.violate("S6", what);
        }
    }
}

/// S1: no step is left out.
fn check_line(
    seals_by_step: &BTreeMap<u64, Vec<LoggedSeal<'_>>>,
    steps: u64,
    findings: &mut LogFindings,
) {
    findings.step = seals_by_step.last_key_value().map_or(0, |(step, _)| *step);
    let missing = (1..=findings.step.max(steps)).find(|step| !seals_by_step.contains_key(step));
    if let Some(step) = missing {
        findings.violate("S1", format!("no node logs step {step} of {steps}"));
    }
    if findings.step > steps {
        findings.violate("S1", format!("step {} of {steps} is sealed", findings.step));
    }
}

/// N1 at every step.
fn compare(
    seals_by_step: &BTreeMap<u64, Vec<LoggedSeal<'_>>>,
    undisturbed: &UndisturbedRun,
    findings: &mut LogFindings,
) {
    for (step, facts) in &undisturbed.steps {
        let Some(first) = seals_by_step.get(step).and_then(|seals| seals.first()) else { continue };
        findings.compared += 1;
        if first.seal.facts != *facts {
            let what = format!("step {step} is {:?} and undisturbed {facts:?}", first.seal.facts);
            findings.violate("N1", what);
        }
    }
}

/// N1 at the end, and S2 of the digests there.
fn check_digests(undisturbed: Option<&UndisturbedRun>, findings: &mut LogFindings) {
    if findings.digests.len() > 1 {
        let what = format!("the final state has several digests: {}", findings.digests.join(", "));
        findings.violate("S2", what);
    }
    let expected = undisturbed.and_then(|undisturbed| undisturbed.digest.as_ref());
    let Some(expected) = expected else { return };
    match findings.digests.first() {
        Some(found) if found == expected => {}
        Some(found) => {
            let what = format!("the final digest is {found} and undisturbed {expected}");
            findings.violate("N1", what);
        }
        None => findings.violate("N1", "no node logs the final digest".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{LogFindings, NodeLog, UndisturbedRun, check};
    use crate::events::{NodeEvent, NodeEventKind};

    fn seal(step: u64, generation: u64, loss: f64) -> String {
        format!(
            "{{\"event\":\"step\",\"step\":{step},\"generation\":{generation},\"loss\":{loss},\
             \"verdict\":\"keep\"}}"
        )
    }

    fn rewound(to_step: u64) -> String {
        format!("{{\"event\":\"rewound\",\"to_step\":{to_step}}}")
    }

    const STARTED: &str = "{\"event\":\"started\",\"node\":1}";

    fn seals(steps: impl IntoIterator<Item = u64>) -> Vec<String> {
        let seals = steps.into_iter().map(|step| seal(step, 1, step as f64));
        std::iter::once(STARTED.to_owned()).chain(seals).collect()
    }

    fn events(lines: &[String]) -> Vec<NodeEvent> {
        lines.iter().map(|line| NodeEvent::parse(line)).collect()
    }

    /// What is wrong with these files of a run of four steps.
    fn found(files: &[Vec<String>], undisturbed: Option<&UndisturbedRun>) -> LogFindings {
        let files: Vec<_> = files.iter().map(|lines| events(lines)).collect();
        let logs: Vec<_> = files
            .iter()
            .map(|events| NodeLog { name: "a node", events, disturbances: 1 })
            .collect();
        check(&logs, 4, undisturbed)
    }

    fn ids(files: &[Vec<String>]) -> Vec<&'static str> {
        found(files, None).violations.iter().map(|violation| violation.id).collect()
    }

    #[test]
    fn a_whole_history_is_sound() {
        assert!(ids(&[seals(1..=4)]).is_empty());
        assert!(ids(&[seals(1..=2), seals(2..=4)]).is_empty());
    }

    #[test]
    fn a_step_that_nobody_logs_is_missed() {
        assert_eq!(ids(&[seals([1, 2, 4])]), ["S1"]);
        assert_eq!(ids(&[seals(1..=3)]), ["S1"]);
        assert_eq!(ids(&[seals(1..=5)]), ["S1"]);
    }

    #[test]
    fn a_step_may_be_logged_again_after_a_start() {
        let again = [seals(1..=2), seals(2..=4)].concat();
        assert!(ids(std::slice::from_ref(&again)).is_empty());
        let without: Vec<_> = again.into_iter().filter(|line| line != STARTED).collect();
        assert_eq!(ids(&[without]), ["S1"]);
    }

    #[test]
    fn nodes_must_agree() {
        let mut other = seals(1..=4);
        other[3] = seal(3, 1, 3.5);
        assert_eq!(ids(&[seals(1..=4), other]), ["S2"]);
    }

    #[test]
    fn a_step_is_sealed_under_one_plan() {
        let mut other = seals(1..=4);
        other[3] = seal(3, 2, 3.0);
        assert_eq!(ids(&[seals(1..=4), other.clone()]), ["S6"]);
        assert_eq!(found(&[seals(1..=4), other.clone()], None).steps_lost, 1);
        other.insert(3, rewound(2));
        assert!(ids(&[seals(1..=4), other.clone()]).is_empty());
        other[3] = rewound(3);
        assert_eq!(ids(&[seals(1..=4), other]), ["S6"]);
    }

    /// Back to the beginning once, and then every step may be sealed again, but only once and only
    /// then.
    #[test]
    fn a_rewind_excuses_what_was_sealed_before_it_and_nothing_later() {
        let plan = |generation| {
            format!("{{\"event\":\"plan\",\"generation\":{generation},\"stages\":[1]}}")
        };
        let under = |generation, steps: std::ops::RangeInclusive<u64>| {
            let seals = steps.map(move |step| seal(step, generation, step as f64));
            std::iter::once(plan(generation)).chain(seals).collect::<Vec<_>>()
        };
        let log = |parts: &[Vec<String>]| [vec![STARTED.to_owned()], parts.concat()].concat();
        let back = || vec![rewound(0)];
        let whole = log(&[under(1, 1..=2), back(), under(2, 1..=3), under(3, 4..=4)]);
        assert!(ids(std::slice::from_ref(&whole)).is_empty());
        // Another node has step 3 under the third plan, and no rewind lies between the second and
        // that.
        let other = log(&[under(3, 3..=4)]);
        assert_eq!(ids(&[whole.clone(), other]), ["S6"]);
        // A rewind that came later excuses nothing before it.
        let later = log(&[under(2, 2..=2), back(), under(3, 1..=4)]);
        assert_eq!(ids(&[log(&[under(1, 1..=2)]), later]), ["S6"]);
        // A process that died with the rewind, or begins with it, wrote one of the two plans.
        let died = log(&[under(1, 1..=2), back()]);
        let begins = log(&[back(), under(2, 1..=4)]);
        assert!(ids(&[died.clone(), log(&[under(2, 1..=4)])]).is_empty());
        assert!(ids(&[log(&[under(1, 1..=2)]), begins]).is_empty());
        assert_eq!(ids(&[died, log(&[under(2, 1..=4)]), log(&[under(3, 4..=4)])]), ["S6"]);
    }

    #[test]
    fn every_step_and_the_end_are_as_if_undisturbed() {
        let done = |digest: &str| {
            let done = format!("{{\"event\":\"done\",\"step\":4,\"digest\":\"{digest}\"}}");
            [seals(1..=4), vec![done]].concat()
        };
        let facts = events(&seals(1..=4)).into_iter().filter_map(|event| {
            if let NodeEventKind::Seal(seal) = event.kind {
                Some((seal.step, seal.facts))
            } else {
                None
            }
        });
        let mut undisturbed =
            UndisturbedRun { steps: facts.collect(), digest: Some("ab".to_owned()), step_ms: 1.0 };
        let check = |files: &[Vec<String>], undisturbed: &UndisturbedRun, expected: &[&str]| {
            let found = found(files, Some(undisturbed));
            let ids: Vec<_> = found.violations.iter().map(|violation| violation.id).collect();
            assert_eq!(ids, expected, "{:?}", found.violations);
        };
        check(&[done("ab")], &undisturbed, &[]);
        check(&[done("ac")], &undisturbed, &["N1"]);
        check(&[seals(1..=4)], &undisturbed, &["N1"]);
        check(&[done("ab"), done("ac")], &undisturbed, &["S2"]);
        let third = undisturbed.steps.get_mut(&3).expect("there");
        third.bits[0] = third.bits[0].map(|bits| bits ^ 1);
        check(&[done("ab")], &undisturbed, &["N1"]);
    }

    #[test]
    fn a_kill_excuses_one_broken_line() {
        let mut lines = seals(1..=4);
        lines.insert(2, "{\"eve".to_owned());
        assert!(ids(std::slice::from_ref(&lines)).is_empty());
        lines.insert(2, "{\"eve".to_owned());
        assert_eq!(ids(&[lines]), ["E1"]);
    }
}
