//! The bytes that moved between nodes for plans, and their rates.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::events::{NodeEvent, NodeEventKind, PlanTraffic};

/// A seal after a loss may come so much later than the time that its step and the bytes that move
/// for it need, in milliseconds: the loss is noticed, and a plan agreed on.
const AGREED_MS: f64 = 500.0;
/// Layers may need so many times as long as the path needs to carry their bytes.
const MOVED_TIMES: f64 = 1.3;

/// The traffic of each plan. Several nodes report each, and it counts once: by the report with the
/// most bytes, as the leader makes it. Others, and a controller that reports again the plans that
/// it finds in its log, may know of less.
#[must_use]
pub fn by_plan<'a>(events: impl Iterator<Item = &'a NodeEvent>) -> BTreeMap<u64, PlanTraffic> {
    let traffic = events.filter_map(|event| {
        let NodeEventKind::Running(traffic) = &event.kind else { return None };
        (traffic.floor > 0 || traffic.bytes > 0).then_some((traffic.generation, *traffic))
    });
    let mut plans: BTreeMap<u64, PlanTraffic> = BTreeMap::new();
    for (generation, traffic) in traffic {
        let known = plans.entry(generation).or_insert(traffic);
        if traffic.bytes > known.bytes {
            *known = traffic;
        }
    }
    plans
}

/// Bytes a millisecond that paths between nodes carry: those of the fastest plan, of the plans that
/// moved at least half as much as the one that moved most. Smaller ones measure questions and
/// answers.
#[must_use]
pub fn bandwidth(plans: &BTreeMap<u64, PlanTraffic>) -> Option<f64> {
    let most = plans.values().map(|traffic| traffic.bytes).max()?;
    let large = plans.values().filter(|traffic| traffic.bytes >= most / 2 && traffic.ms > 0.0);
    large.map(|traffic| traffic.bytes as f64 / traffic.ms).max_by(f64::total_cmp)
}

/// How late the seal after a loss may be, if a step lasts so long and so much moves for it.
#[must_use]
pub fn allowed_ms(step_ms: f64, traffic: Option<&PlanTraffic>, bandwidth: Option<f64>) -> f64 {
    let carried = traffic.zip(bandwidth).map_or(0.0, |(traffic, rate)| traffic.bytes as f64 / rate);
    step_ms + carried * MOVED_TIMES + AGREED_MS
}

/// The bytes that moved between nodes, over all plans for which something had to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TotalTraffic {
    /// Number of plans that moved layers.
    pub plans: usize,
    /// Bytes that moved between nodes.
    pub bytes: u64,
    /// The fewest that had to.
    pub floor: u64,
    /// From the first question to the last arrival, in milliseconds.
    pub ms: f64,
    /// Measured bandwidth of paths between nodes, in bytes a second.
    pub bytes_per_s: Option<f64>,
}

impl TotalTraffic {
    /// The total of the traffic of each plan.
    #[must_use]
    pub fn of(plans: &BTreeMap<u64, PlanTraffic>) -> Self {
        let add = |all: Self, traffic: &PlanTraffic| Self {
            plans: all.plans + 1,
            bytes: all.bytes + traffic.bytes,
            floor: all.floor + traffic.floor,
            ms: all.ms + traffic.ms,
            ..all
        };
        let bytes_per_s = bandwidth(plans).map(|rate| rate * 1e3);
        let none = Self { bytes_per_s, ..Self::default() };
        plans.values().filter(|traffic| traffic.floor > 0).fold(none, add)
    }
}

impl fmt::Display for TotalTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plans, bytes, floor, ms, .. } = *self;
        let share = bytes as f64 / floor.max(1) as f64;
        let mib = bytes as f64 / f64::from(1 << 20);
        write!(f, "{mib:.1} MiB of layers moved for {plans} plans, {share:.3} of the least, ")?;
        write!(f, "{:.0} MiB/s", mib / (ms / 1e3).max(1e-9))
    }
}

#[cfg(test)]
mod tests {
    use super::{TotalTraffic, allowed_ms, bandwidth, by_plan};
    use crate::events::{NodeEvent, PlanTraffic};

    const MIB: u64 = 1 << 20;

    fn line(generation: u64, bytes: u64, floor: u64, ms: f64) -> NodeEvent {
        NodeEvent::parse(&format!(
            "{{\"event\":\"running\",\"generation\":{generation},\"bytes_moved\":{bytes},\
             \"bytes_floor\":{floor},\"moved_ms\":{ms:?}}}"
        ))
    }

    #[test]
    fn what_moved_counts_once_for_each_plan() {
        let plan = line(2, 3 * MIB, 2 * MIB, 250.0);
        let events = [plan.clone(), plan, line(3, MIB, 2 * MIB, 250.0)];
        let retold = line(2, 0, 2 * MIB, 250.0);
        let others = [line(4, 0, 0, 250.0), retold, NodeEvent::parse("{\"event\":\"step\"}")];
        let all = TotalTraffic::of(&by_plan(events.iter().chain(&others)));
        let rate = 3.0 * MIB as f64 * 4.0;
        let expected = TotalTraffic {
            plans: 2,
            bytes: 4 * MIB,
            floor: 4 * MIB,
            ms: 500.0,
            bytes_per_s: Some(rate),
        };
        assert_eq!(all, expected);
        let text = "4.0 MiB of layers moved for 2 plans, 1.000 of the least, 8 MiB/s";
        assert_eq!(all.to_string(), text);
    }

    #[test]
    fn the_fastest_large_move_gives_the_bandwidth() {
        let rate = |events: &[NodeEvent]| bandwidth(&by_plan(events.iter()));
        assert_eq!(rate(&[]), None);
        assert_eq!(
            rate(&[line(1, 100, 1, 10.0), line(2, 60, 1, 3.0), line(3, 40, 1, 0.1)]),
            Some(20.0)
        );
        assert_eq!(rate(&[line(1, 100, 1, 0.0)]), None);
    }

    #[test]
    fn a_seal_after_a_loss_may_take_a_step_and_what_moves_for_it() {
        let traffic = PlanTraffic { generation: 3, bytes: 1000, floor: 1000, ms: 400.0 };
        assert_eq!(allowed_ms(70.0, None, Some(10.0)), 570.0);
        assert_eq!(allowed_ms(70.0, Some(&traffic), None), 570.0);
        assert_eq!(allowed_ms(70.0, Some(&traffic), Some(10.0)), 70.0 + 130.0 + 500.0);
    }
}
