//! Connections that were closed because one end broke a rule: reported as events, but not each
//! time.
//!
//! A peer of another version, or a broken one, reconnects at once and breaks the same rule again.
//! Each is counted; the first is reported, and then no more than one of a node in
//! [`REPORT_INTERVAL`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use zbelastic_api::EventKind;
use zbelastic_transport::{CloseCode, DownReason, FrameRejection, PeerViolation};
use zbelastic_types::NodeId;
use zbelastic_wire::frames::FrameClassName;

/// The least time between two events about one node.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Nodes that are remembered: as many as may be connected. Beyond it the one with the event that
/// was reported longest ago is dropped, with its count.
const NODES_MAX: usize = 1024;

/// The nodes that broke rules, how often, and when that was reported last.
#[derive(Debug, Default)]
pub struct PeerViolations {
    nodes: BTreeMap<NodeId, ViolationCount>,
}

#[derive(Clone, Copy, Debug)]
struct ViolationCount {
    count: u64,
    reported_at: Instant,
}

impl PeerViolations {
    /// A connection ended; yields the event to report now, if one is due.
    pub fn note_down(
        &mut self,
        node: NodeId,
        reason: DownReason,
        now: Instant,
    ) -> Option<EventKind> {
        let what = violated_rule(reason)?;
        let is_new = !self.nodes.contains_key(&node);
        if is_new && self.nodes.len() >= NODES_MAX {
            let oldest = self.nodes.iter().min_by_key(|(_, violation)| violation.reported_at);
            let oldest = oldest.map(|(node, _)| *node).expect("the table is full");
            self.nodes.remove(&oldest);
        }
        let violation =
            self.nodes.entry(node).or_insert(ViolationCount { count: 0, reported_at: now });
        violation.count += 1;
        if !is_new && now.duration_since(violation.reported_at) < REPORT_INTERVAL {
            return None;
        }
        violation.reported_at = now;
        Some(EventKind::Violation { node, what, count: violation.count })
    }
}

/// Which rule was broken, if one was.
fn violated_rule(reason: DownReason) -> Option<String> {
    match reason {
        DownReason::Violation(PeerViolation::Frame(refusal)) => Some(frame_refusal_text(refusal)),
        DownReason::Violation(PeerViolation::Other(code)) => Some(format!("it sent: {code}")),
        DownReason::ClosedByPeer(code) => {
            blames_this_node(code).then(|| format!("it says: {code}"))
        }
        DownReason::Left
        | DownReason::ProcessEnded
        | DownReason::Silent
        | DownReason::Reset
        | DownReason::Replaced
        | DownReason::Forgotten
        | DownReason::Banned
        | DownReason::Broken
        | DownReason::Closing => None,
    }
}

/// Whether a peer that closes with this code reports that this node broke a rule.
const fn blames_this_node(code: CloseCode) -> bool {
    match code {
        CloseCode::Forbidden | CloseCode::Length | CloseCode::Malformed | CloseCode::Late => true,
        CloseCode::Left
        | CloseCode::NotThisCluster
        | CloseCode::Banned
        | CloseCode::Version
        | CloseCode::Replaced
        | CloseCode::DuplicateIdentity
        | CloseCode::Crowded
        | CloseCode::Unknown(_) => false,
    }
}

fn frame_refusal_text(refusal: FrameRejection) -> String {
    match refusal {
        FrameRejection::WrongLength { class, expected, found } => {
            let name = FrameClassName(class);
            format!("it announced {name} of {found} bytes, expected are {expected}")
        }
        FrameRejection::TooLong { class, .. } | FrameRejection::MetaTooLong { class, .. } => {
            format!("it announced {}: {refusal}", FrameClassName(class))
        }
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_transport::FrameClass;

    use super::*;

    fn wrong_length() -> DownReason {
        let class = FrameClass(7 << 24 | 1);
        let refusal = FrameRejection::WrongLength { class, expected: 4012, found: 4016 };
        DownReason::Violation(PeerViolation::Frame(refusal))
    }

    #[test]
    fn who_sent_what_of_which_length_is_reported_with_what_was_expected() {
        let mut violations = PeerViolations::default();
        let reported =
            violations.note_down(NodeId(3), wrong_length(), Instant::now()).expect("the first");
        let expected = "connection to node 3 closed: it announced a boundary tensor of plan 7 of \
                        4016 bytes, expected are 4012";
        assert_eq!(reported.to_string(), expected);
        let closed_by_peer = DownReason::ClosedByPeer(CloseCode::Length);
        let reported =
            violations.note_down(NodeId(4), closed_by_peer, Instant::now()).expect("the first");
        let expected = "connection to node 4 closed: it says: a length above its limit or not as \
                        expected";
        assert_eq!(reported.to_string(), expected);
    }

    #[test]
    fn of_a_node_that_does_it_again_and_again_little_is_reported_and_all_is_counted() {
        let mut violations = PeerViolations::default();
        let start = Instant::now();
        let count = |reported: Option<EventKind>| match reported {
            Some(EventKind::Violation { count, .. }) => Some(count),
            Some(_) | None => None,
        };
        assert_eq!(count(violations.note_down(NodeId(3), wrong_length(), start)), Some(1));
        let soon = start + REPORT_INTERVAL - Duration::from_nanos(1);
        for _ in 0..5 {
            assert_eq!(count(violations.note_down(NodeId(3), wrong_length(), soon)), None);
        }
        assert_eq!(
            count(violations.note_down(NodeId(4), wrong_length(), soon)),
            Some(1),
            "another node"
        );
        let later = start + REPORT_INTERVAL;
        assert_eq!(count(violations.note_down(NodeId(3), wrong_length(), later)), Some(7));
    }

    #[test]
    fn connections_that_end_for_other_reasons_are_not_reported() {
        let mut violations = PeerViolations::default();
        let left = DownReason::ClosedByPeer(CloseCode::Left);
        for reason in [DownReason::Left, DownReason::Silent, DownReason::Replaced, left] {
            assert_eq!(violations.note_down(NodeId(3), reason, Instant::now()), None);
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let mut violations = PeerViolations::default();
        let start = Instant::now();
        for node in 0..2 * NODES_MAX as u64 {
            let now = start + Duration::from_millis(node);
            assert!(violations.note_down(NodeId(node), wrong_length(), now).is_some());
        }
        assert_eq!(violations.nodes.len(), NODES_MAX);
        let later = start + REPORT_INTERVAL;
        let first = violations.note_down(NodeId(0), wrong_length(), later);
        assert!(matches!(first, Some(EventKind::Violation { count: 1, .. })), "forgotten");
    }
}
