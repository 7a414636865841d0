//! How long to wait before a peer is dialled again. A pure function of the two nodes and the
//! failures.

use std::time::Duration;

use zbelastic_types::NodeId;

use crate::limits::TransportLimits;

/// Steps of jitter: a pause is between a half and the whole of its length.
const JITTER_STEPS: u32 = 1024;
/// Doublings after which a pause grows no more, with any limits.
const DOUBLINGS_MAX: u32 = 16;

/// The pause before the attempt after `failures` failures. Two nodes that lost the same peer at
/// once do not come back at once.
pub(crate) fn pause_before_dial(
    own: NodeId,
    peer: NodeId,
    failures: u32,
    limits: &TransportLimits,
) -> Duration {
    let patience = if own < peer { Duration::ZERO } else { limits.dial_patience };
    if failures == 0 {
        return patience;
    }
    let doublings = (failures - 1).min(DOUBLINGS_MAX);
    let whole = (limits.redial_first * (1 << doublings)).min(limits.redial_longest);
    let half = whole / 2;
    (half + half * jitter(own, peer, failures) / JITTER_STEPS).max(patience)
}

fn jitter(own: NodeId, peer: NodeId, failures: u32) -> u32 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&own.0.to_le_bytes());
    hasher.update(&peer.0.to_le_bytes());
    hasher.update(&failures.to_le_bytes());
    let [a, b, ..] = *hasher.finalize().as_bytes();
    u32::from(u16::from_le_bytes([a, b])) % JITTER_STEPS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(own: u64, failures: u32) -> Duration {
        pause_before_dial(NodeId(own), NodeId(5), failures, &TransportLimits::default())
    }

    #[test]
    fn the_lower_id_dials_at_once_and_the_higher_one_waits() {
        assert_eq!(pause(4, 0), Duration::ZERO);
        assert_eq!(pause(6, 0), TransportLimits::default().dial_patience);
        assert!(pause(6, 1) >= TransportLimits::default().dial_patience);
    }

    #[test]
    fn pauses_grow_to_the_longest_and_differ_between_nodes() {
        let limits = TransportLimits::default();
        assert!(pause(1, 1) >= limits.redial_first / 2 && pause(1, 1) <= limits.redial_first);
        assert!(pause(1, 4) > pause(1, 1));
        for failures in [20, 1000, u32::MAX] {
            let pause = pause(1, failures);
            assert!(pause >= limits.redial_longest / 2 && pause <= limits.redial_longest);
        }
        assert_ne!(pause(1, 9), pause(2, 9));
        assert_eq!(pause(1, 9), pause(1, 9));
    }
}
