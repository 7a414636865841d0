//! Nodes that were let in for as long as they are there.

use zbelastic_types::NodeId;

use super::harness::DutiesHarness;
use crate::access::{AccessChange, AccessRole};
use crate::duty::EPHEMERAL_TICKS_MAX;
use crate::entry::Entry;
use crate::fixture::{FixtureLog, credential};

/// Nodes 1 and 2 are ephemeral, 3 is not; all are lost.
fn bench() -> DutiesHarness {
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
    let mut bench = bench();
    bench.tick(EPHEMERAL_TICKS_MAX as u32, &[]);
    assert_eq!(bench.act(), []);
    bench.tick(1, &[]);
    assert_eq!(bench.act(), [forgotten(1), forgotten(2)]);
    bench.tick(9, &[]);
    assert_eq!(bench.act(), []);
    assert!(bench.log.state.members().keys().eq([&NodeId(3)]));
}

#[test]
fn who_comes_back_is_not_forgotten() {
    let mut bench = bench();
    bench.tick(EPHEMERAL_TICKS_MAX as u32, &[]);
    bench.log.join(1);
    bench.tick(1, &[1]);
    assert_eq!(bench.act(), [forgotten(2)]);
    bench.log.lose(1);
    bench.tick(EPHEMERAL_TICKS_MAX as u32, &[]);
    assert_eq!(bench.act(), [], "it is counted anew");
    bench.tick(1, &[]);
    assert_eq!(bench.act(), [forgotten(1)]);
}
