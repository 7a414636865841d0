//! What a seat does about layers that are copied ahead of a planned change.

use std::sync::Arc;

use zbelastic_types::{Generation, LayerId};

use crate::entry::Entry;
use crate::fixture::{Log, spec};
use crate::message::{Briefing, Message};
use crate::rehearsal::{Follow, Rehearsal};
use crate::seat::{News, Order};
use crate::validation::Verdict;

use super::bench::{Bench, CONTROLLERS, Told, briefing};

/// Nodes 2 and 3 run a plan, and node 1 has come.
fn joined() -> Log {
    let mut log = Log::running(spec(), &[2, 3]);
    log.keep(1);
    log.join(1);
    log
}

/// Node 1 is to follow a layer of node 2.
fn rehearsal(log: &Log) -> Arc<Rehearsal> {
    let (follower, owner) = (log.holder(1), log.holder(2));
    let follows = vec![Follow { layer: LayerId(0), follower, owner }];
    Arc::new(Rehearsal { generation: log.state.generation(), follows })
}

fn told(log: &Log, rehearsal: Option<&Arc<Rehearsal>>) -> Briefing {
    Briefing { rehearsal: rehearsal.cloned(), ..briefing(log, Told::Changes) }
}

/// A seat that follows a layer.
fn following(log: &Log) -> Bench {
    let mut bench = Bench::briefed(log);
    bench.taken_orders();
    bench.try_tell(CONTROLLERS[0], told(log, Some(&rehearsal(log)))).expect("it belongs");
    let (me, rehearsal) = (log.holder(1), Some(rehearsal(log)));
    assert_eq!(bench.taken_orders(), [Order::Rehearse { me, rehearsal }]);
    // The seal before is one that nobody waits for any more.
    bench.try_tell(CONTROLLERS[0], told(log, Some(&self::rehearsal(log)))).expect("it belongs");
    assert!(matches!(bench.taken_orders()[..], [Order::Settle(_)]));
    bench
}

#[test]
fn what_is_copied_ahead_is_ordered_once() {
    let log = joined();
    let mut bench = following(&log);
    bench.try_tell(CONTROLLERS[1], told(&log, Some(&rehearsal(&log)))).expect("it belongs");
    assert_eq!(bench.taken_orders(), []);
}

#[test]
fn who_is_not_named_is_ordered_nothing_nor_is_what_is_of_another_plan() {
    let log = joined();
    let mut bench = Bench::briefed(&log);
    bench.taken_orders();
    let mut other = (*rehearsal(&log)).clone();
    other.follows[0].follower = log.holder(3);
    bench.try_tell(CONTROLLERS[0], told(&log, Some(&Arc::new(other)))).expect("it belongs");
    let mut later = (*rehearsal(&log)).clone();
    later.generation = Generation(9);
    bench.try_tell(CONTROLLERS[0], told(&log, Some(&Arc::new(later)))).expect("it belongs");
    assert_eq!(bench.taken_orders(), []);
}

/// A controller that does not lead does not know what is planned.
#[test]
fn only_who_leads_ends_it() {
    let log = joined();
    let mut bench = following(&log);
    bench.try_tell(CONTROLLERS[1], told(&log, None)).expect("it belongs");
    assert_eq!(bench.taken_orders(), []);
    bench.try_tell(CONTROLLERS[0], told(&log, None)).expect("it belongs");
    let me = log.holder(1);
    assert_eq!(bench.taken_orders(), [Order::Rehearse { me, rehearsal: None }]);
}

#[test]
fn who_follows_learns_of_seals_once_though_it_has_no_stage() {
    let mut log = joined();
    let mut bench = following(&log);
    let seal = log.seal(Verdict::Keep);
    log.apply(Entry::Seal(seal));
    for _ in 0..2 {
        bench.try_tell(CONTROLLERS[0], told(&log, Some(&rehearsal(&log)))).expect("it belongs");
    }
    assert_eq!(bench.taken_orders(), [Order::Settle(seal)]);
}

#[test]
fn that_it_follows_is_told_until_nothing_is_followed() {
    let log = joined();
    let mut bench = following(&log);
    let (generation, layers) = (log.state.generation(), vec![LayerId(0)]);
    bench.sent.clear();
    bench.news(News::Following { generation, layers: layers.clone() });
    let holder = log.holder(1);
    let message = Message::Following { holder, generation, layers };
    assert_eq!(bench.taken_messages(), [(CONTROLLERS[0], message.clone())]);
    assert_eq!(bench.told_again(), [message]);
    bench.try_tell(CONTROLLERS[0], told(&log, None)).expect("it belongs");
    assert_eq!(bench.told_again(), []);
}

/// The last seal comes before the order to load: what is followed is then where the layers begin.
#[test]
fn a_plan_that_begins_is_loaded_behind_its_last_seal() {
    let mut log = joined();
    let mut bench = following(&log);
    let seal = log.seal(Verdict::Keep);
    log.apply(Entry::Seal(seal));
    log.adopt(log.plan(&[2, 1]));
    bench.brief(&log, Told::All);
    let orders = bench.taken_orders();
    assert!(
        matches!(&orders[..], [Order::Settle(of), Order::Load(_)] if *of == seal),
        "{orders:?}"
    );
}

#[test]
fn a_plan_without_it_ends_what_it_follows() {
    let mut log = joined();
    let mut bench = following(&log);
    log.adopt(log.plan(&[3, 2]));
    bench.brief(&log, Told::All);
    let me = log.holder(1);
    assert_eq!(bench.taken_orders(), [Order::Rehearse { me, rehearsal: None }]);
}
