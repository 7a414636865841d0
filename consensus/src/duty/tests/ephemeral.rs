//! Nodes that were admitted for as long as they are present.

use zbelastic_types::NodeId;

use super::harness::DutiesHarness;
use crate::access::{AccessChange, AccessRole};
use crate::duty::EPHEMERAL_TICKS_MAX;
use crate::entry::Entry;
use crate::fixture::{FixtureLog, credential};

/// Nodes 1 and 2 are ephemeral, 3 is not; all are lost.
fn harness() -> DutiesHarness {
    let mut log = FixtureLog::empty();
    let ephemeral = [1, 2].map(|node| {
        let (node, mut credential) = credential(node, AccessRole::Worker);
        credential.is_ephemeral = true;
        (node, credential)
    });
    log.state = log.state.with_credentials(ephemeral);
    for node in 1..=3 {
        log.join(node);
        log.lose(node);
    }
    DutiesHarness::new(log)
}

fn forgotten(node: u64) -> Entry {
    Entry::Access(AccessChange::Forgotten { node: NodeId(node) })
}

#[test]
fn who_is_gone_for_long_is_forgotten_and_not_one_tick_earlier() {
    let mut harness = harness();
    harness.tick(EPHEMERAL_TICKS_MAX as u32, &[]);
    assert_eq!(harness.act(), []);
    harness.tick(1, &[]);
    assert_eq!(harness.act(), [forgotten(1), forgotten(2)]);
    harness.tick(9, &[]);
    assert_eq!(harness.act(), []);
    assert!(harness.log.state.members().keys().eq([&NodeId(3)]));
}

#[test]
fn who_comes_back_is_not_forgotten() {
    let mut harness = harness();
    harness.tick(EPHEMERAL_TICKS_MAX as u32, &[]);
    harness.log.join(1);
    harness.tick(1, &[1]);
    assert_eq!(harness.act(), [forgotten(2)]);
    harness.log.lose(1);
    harness.tick(EPHEMERAL_TICKS_MAX as u32, &[]);
    assert_eq!(harness.act(), [], "it is counted anew");
    harness.tick(1, &[]);
    assert_eq!(harness.act(), [forgotten(1)]);
}
