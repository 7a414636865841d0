//! The state of a cluster, as far as its event files show. Pure: events in, answers out.

use std::collections::{BTreeMap, BTreeSet};

use super::durations::SortedDurations;
use super::events::{NodeEvent, NodeEventKind, SealEvent, SealFacts};

/// A member's index in its cluster, counted from 0.
pub type MemberIndex = usize;

/// Seals from which the recent time of a step is measured.
const SEALS_MEASURED: usize = 16;

/// A step as it was sealed first.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstSeal {
    /// When, in microseconds since 1970.
    pub at_us: u64,
    /// The plan it was computed under.
    pub generation: u64,
    /// The facts that were agreed on.
    pub facts: SealFacts,
}

/// The facts that are known so far.
#[derive(Clone, Debug, Default)]
pub struct ClusterObservation {
    /// Which member has a name.
    names: BTreeMap<String, MemberIndex>,
    /// Which member a node is.
    members: BTreeMap<u64, MemberIndex>,
    /// Members that were admitted as workers.
    admitted: BTreeSet<MemberIndex>,
    /// How often each member's process reported that it began.
    starts: BTreeMap<MemberIndex, u32>,
    term: u64,
    leader: Option<u64>,
    generation: u64,
    stages: Vec<u64>,
    seals: BTreeMap<u64, FirstSeal>,
    /// By plan and step: behind a rewind a step is sealed again, under a later plan.
    sealed_us: BTreeMap<(u64, u64), u64>,
    done: Option<(u64, Option<String>)>,
    halted: Option<String>,
    rewinds: u64,
}

impl ClusterObservation {
    /// A member has this name.
    pub fn name(&mut self, member: MemberIndex, name: &str) {
        self.names.insert(name.to_owned(), member);
    }

    /// A member's file has another line.
    pub fn observe(&mut self, member: MemberIndex, event: &NodeEvent) {
        match &event.kind {
            NodeEventKind::Started { node } => {
                self.members.insert(*node, member);
                *self.starts.entry(member).or_default() += 1;
            }
            NodeEventKind::Joined { node, name } => {
                if let Some(member) = self.names.get(name) {
                    self.members.insert(*node, *member);
                    self.admitted.insert(*member);
                }
            }
            NodeEventKind::Leader { node, term } => {
                let is_newer = *term > self.term || *term == self.term && node.is_some();
                if is_newer {
                    (self.term, self.leader) = (*term, *node);
                }
            }
            NodeEventKind::Plan { generation, stages, .. } => {
                if *generation > self.generation {
                    (self.generation, self.stages) = (*generation, stages.clone());
                }
            }
            NodeEventKind::Seal(seal) => self.observe_seal(event.at_us, seal),
            NodeEventKind::Done { step, digest } => {
                let known = self.done.take().and_then(|(_, digest)| digest);
                self.done = Some((*step, digest.clone().or(known)));
            }
            NodeEventKind::Halted { reason } => self.halted = Some(reason.clone()),
            NodeEventKind::Rewound { .. } => self.rewinds += 1,
            NodeEventKind::Lost { .. }
            | NodeEventKind::Running(_)
            | NodeEventKind::Other
            | NodeEventKind::Checkpoint { .. }
            | NodeEventKind::Torn { .. } => {}
        }
    }

    fn observe_seal(&mut self, at_us: u64, seal: &SealEvent) {
        let SealEvent { step, generation, facts, .. } = seal;
        let seen = FirstSeal { at_us, generation: *generation, facts: facts.clone() };
        // Nodes write a step at different moments; the first one counts.
        let first = self.seals.entry(*step).or_insert(seen);
        first.at_us = first.at_us.min(at_us);
        let under_plan = self.sealed_us.entry((*generation, *step)).or_insert(at_us);
        *under_plan = (*under_plan).min(at_us);
    }

    /// The last step that was sealed; 0 if none was.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.seals.last_key_value().map_or(0, |(step, _)| *step)
    }

    /// From seal to seal under the last plan that sealed, the median of the last ones, in
    /// milliseconds; nothing before two seals of it.
    #[must_use]
    pub fn step_ms(&self) -> Option<f64> {
        let (_, last) = self.seals.last_key_value()?;
        let of_plan = self.seals.values().rev();
        let of_plan = of_plan.take_while(|seal| seal.generation == last.generation);
        let seal_times_us: Vec<u64> = of_plan.take(SEALS_MEASURED).map(|seal| seal.at_us).collect();
        let gaps =
            seal_times_us.windows(2).map(|pair| pair[0].saturating_sub(pair[1]) as f64 / 1e3);
        Some(gaps.collect::<SortedDurations>().quantiles()?.p50_ms)
    }

    /// Every sealed step, by its number.
    #[must_use]
    pub const fn seals(&self) -> &BTreeMap<u64, FirstSeal> {
        &self.seals
    }

    /// The last plan, or that of the last seal.
    #[must_use]
    pub fn generation(&self) -> u64 {
        let sealed = self.seals.last_key_value().map_or(0, |(_, seal)| seal.generation);
        self.generation.max(sealed)
    }

    /// The member that leads, if it is known.
    #[must_use]
    pub fn leader(&self) -> Option<MemberIndex> {
        self.members.get(&self.leader?).copied()
    }

    /// The members that have a stage, in the order of their stages, each once: after a loss a node may
    /// stand in several replicas.
    #[must_use]
    pub fn stages(&self) -> Vec<MemberIndex> {
        let mut stages = Vec::new();
        for member in self.stages.iter().filter_map(|node| self.members.get(node).copied()) {
            if !stages.contains(&member) {
                stages.push(member);
            }
        }
        stages
    }

    /// Whether a member is known: its process reported that it began, or it was admitted by that
    /// name.
    #[must_use]
    pub fn is_known(&self, member: MemberIndex) -> bool {
        self.members.values().any(|known| *known == member)
    }

    /// Whether a worker was admitted: from then on plans count on it.
    #[must_use]
    pub fn is_admitted(&self, worker: MemberIndex) -> bool {
        self.admitted.contains(&worker)
    }

    /// How often a member's process reported that it began.
    #[must_use]
    pub fn starts(&self, member: MemberIndex) -> u32 {
        self.starts.get(&member).copied().unwrap_or(0)
    }

    /// Whether every step is sealed, and the digest of the final state if a file holds it.
    #[must_use]
    pub const fn done(&self) -> Option<&(u64, Option<String>)> {
        self.done.as_ref()
    }

    /// Why the run is held.
    #[must_use]
    pub fn halted(&self) -> Option<&str> {
        self.halted.as_deref()
    }

    /// How many rewinds the files hold.
    #[must_use]
    pub const fn rewinds(&self) -> u64 {
        self.rewinds
    }

    /// The first seal after a moment, of a step that was sealed before or of a new one.
    #[must_use]
    pub fn first_seal_after(&self, at_us: u64) -> Option<u64> {
        self.sealed_us.values().copied().filter(|at| *at > at_us).min()
    }

    /// The first seal after a moment that shows that the run recovered from a fault at that time:
    /// one of a later plan than `generation`, or the second one after `step`. The first one after
    /// `step` may have been in flight, with everything that it needs.
    #[must_use]
    pub fn recovery(&self, at_us: u64, step: u64, generation: u64) -> Option<(u64, &FirstSeal)> {
        let later = self.seals.range(step + 1..).filter(|(_, seal)| seal.at_us > at_us);
        let mut shows =
            later.filter(|(sealed, seal)| seal.generation > generation || **sealed >= step + 2);
        shows.next().map(|(step, seal)| (*step, seal))
    }
}

#[cfg(test)]
mod tests {
    use super::ClusterObservation;
    use crate::events::NodeEvent;

    fn observation(lines: &[(usize, &str)]) -> ClusterObservation {
        let mut observation = ClusterObservation::default();
        lines
            .iter()
            .for_each(|(member, line)| observation.observe(*member, &NodeEvent::parse(line)));
        observation
    }

    fn seal(step: u64, at_ms: u64, generation: u64) -> String {
        format!(
            "{{\"event\":\"step\",\"step\":{step},\"at_ms\":{at_ms},\"generation\":{generation},\
             \"verdict\":\"keep\"}}"
        )
    }

    #[test]
    fn the_newest_term_has_the_leader() {
        let observation = observation(&[
            (0, r#"{"event":"started","node":1}"#),
            (1, r#"{"event":"started","node":7}"#),
            (0, r#"{"event":"leader","node":7,"term":3}"#),
            (1, r#"{"event":"leader","node":1,"term":2}"#),
            (1, r#"{"event":"leader","node":null,"term":3}"#),
            (1, r#"{"event":"started","node":7}"#),
        ]);
        assert_eq!(observation.leader(), Some(1));
        assert_eq!(
            (observation.starts(0), observation.starts(1), observation.starts(2)),
            (1, 2, 0)
        );
    }

    #[test]
    fn a_member_is_known_by_itself_or_by_its_name() {
        let mut observation = ClusterObservation::default();
        observation.name(3, "w1");
        observation.observe(0, &NodeEvent::parse(r#"{"event":"joined","node":9,"name":"w1"}"#));
        observation
            .observe(0, &NodeEvent::parse(r#"{"event":"joined","node":8,"name":"stranger"}"#));
        observation.observe(1, &NodeEvent::parse(r#"{"event":"started","node":2}"#));
        let known = [0, 1, 2, 3].map(|member| observation.is_known(member));
        assert_eq!(known, [false, true, false, true]);
        let admitted = [1, 3].map(|member| observation.is_admitted(member));
        assert_eq!(admitted, [false, true], "a process that began may not have joined yet");
        observation
            .observe(0, &NodeEvent::parse(r#"{"event":"plan","generation":1,"stages":[9,8]}"#));
        assert_eq!(observation.stages(), [3]);
    }

    #[test]
    fn nobody_leads_when_the_newest_term_has_nobody() {
        let observation = observation(&[
            (0, r#"{"event":"started","node":1}"#),
            (0, r#"{"event":"leader","node":1,"term":2}"#),
            (0, r#"{"event":"leader","node":null,"term":3}"#),
        ]);
        assert_eq!(observation.leader(), None);
    }

    #[test]
    fn the_newest_plan_says_who_has_a_stage() {
        let observation = observation(&[
            (2, r#"{"event":"started","node":4}"#),
            (3, r#"{"event":"started","node":5}"#),
            (0, r#"{"event":"plan","generation":2,"stages":[5,4]}"#),
            (1, r#"{"event":"plan","generation":1,"stages":[4]}"#),
        ]);
        assert_eq!((observation.generation(), observation.stages()), (2, vec![3, 2]));
    }

    #[test]
    fn a_seal_is_as_old_as_its_first_event() {
        let observation =
            observation(&[(1, &seal(1, 20, 1)), (0, &seal(1, 10, 1)), (0, &seal(2, 30, 1))]);
        assert_eq!(observation.seals()[&1].at_us, 10_000);
        assert_eq!(observation.step(), 2);
    }

    #[test]
    fn a_step_that_is_sealed_again_is_a_seal_and_one_that_is_written_again_is_none() {
        let observation = observation(&[
            (0, &seal(1, 10, 1)),
            (0, &seal(2, 20, 1)),
            (0, &seal(1, 60, 1)),
            (0, &seal(1, 90, 2)),
            (0, &seal(2, 95, 2)),
            (0, &seal(3, 99, 2)),
        ]);
        assert_eq!(observation.first_seal_after(50_000), Some(90_000));
        assert_eq!(observation.seals()[&1].at_us, 10_000);
    }

    #[test]
    fn one_seal_may_have_been_on_its_way() {
        let mut lines = vec![(0, seal(4, 10, 1)), (0, seal(5, 21, 1))];
        let check = |lines: &[(usize, String)], expected: Option<u64>| {
            let lines: Vec<_> =
                lines.iter().map(|(member, line)| (*member, line.as_str())).collect();
            let observation = observation(&lines);
            assert_eq!(observation.recovery(20_000, 4, 1).map(|(step, _)| step), expected);
        };
        check(&lines, None);
        lines.push((0, seal(6, 25, 1)));
        check(&lines, Some(6));
        lines[1] = (0, seal(5, 21, 2));
        check(&lines, Some(5));
        lines[1] = (0, seal(5, 20, 2));
        check(&lines, Some(6));
    }

    #[test]
    fn a_step_takes_what_lies_between_seals_of_one_plan() {
        let lines = [seal(1, 10, 1), seal(2, 20, 1), seal(3, 500, 2), seal(4, 530, 2)];
        let measured = |count: usize| {
            let lines: Vec<_> = lines[..count].iter().map(|line| (0, line.as_str())).collect();
            observation(&lines).step_ms()
        };
        assert_eq!([1, 2, 3, 4].map(measured), [None, Some(10.0), None, Some(30.0)]);
    }

    #[test]
    fn a_digest_that_one_node_reports_is_known() {
        let observation = observation(&[
            (0, r#"{"event":"done","step":9,"digest":"ab"}"#),
            (1, r#"{"event":"done","step":9}"#),
        ]);
        assert_eq!(observation.done(), Some(&(9, Some("ab".to_owned()))));
    }
}
