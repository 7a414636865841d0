//! Fetches in a world without streams: holders have a pace, and fail by a list.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::{FetchScheduler, HOLDER_FAILURES_MAX, HolderSetback, ORDER_CHUNKS_MAX, ORDERS_AHEAD};

/// Enough for every fetch here, and an end for one that hangs.
const TURNS_MAX: usize = 20_000;

#[derive(Clone, Debug)]
struct SimulatedHolder {
    /// What a chunk takes; without one, none ever comes.
    pace: Option<Duration>,
    /// After how many chunks it fails, again and again.
    fails_after: VecDeque<u64>,
}

#[derive(Default)]
struct SimulatedHolderState {
    owed: VecDeque<u64>,
    due: Option<Duration>,
    given: u64,
    given_since: u64,
}

struct FetchSimulation {
    share: FetchScheduler,
    peers: Vec<SimulatedHolder>,
    lives: Vec<SimulatedHolderState>,
    now: Duration,
    arrived: BTreeSet<u64>,
    yields: usize,
}

impl FetchSimulation {
    fn new(chunks: u64, peers: Vec<SimulatedHolder>) -> Self {
        let lives = peers.iter().map(|_| SimulatedHolderState::default()).collect();
        let share = FetchScheduler::new(chunks, peers.len());
        Self { share, peers, lives, now: Duration::ZERO, arrived: BTreeSet::new(), yields: 0 }
    }

    /// Lives until the end, and returns whether everything came.
    fn run(&mut self) -> bool {
        for _ in 0..TURNS_MAX {
            self.decide();
            if self.share.is_done() || self.share.is_hopeless() {
                return self.share.is_done();
            }
            self.pass_time();
        }
        panic!("no end after {TURNS_MAX} turns");
    }

    fn decide(&mut self) {
        if let Some(victim) = self.share.poll_yield(self.now) {
            self.yields += 1;
            self.fail(victim, HolderSetback::Overtaken);
        }
        for holder in 0..self.peers.len() {
            while let Some(order) = self.share.poll_order(holder, self.now) {
                assert!(!order.is_empty() && order.end - order.start <= ORDER_CHUNKS_MAX);
                for chunk in order {
                    let owe = |life: &SimulatedHolderState| life.owed.contains(&chunk);
                    assert!(!self.arrived.contains(&chunk) && !self.lives.iter().any(owe));
                    self.lives[holder].owed.push_back(chunk);
                }
            }
            self.begin_chunk(holder);
        }
    }

    fn begin_chunk(&mut self, holder: usize) {
        let (life, peer) = (&mut self.lives[holder], &self.peers[holder]);
        if life.due.is_none() && !life.owed.is_empty() {
            life.due = peer.pace.map(|pace| self.now + pace);
        }
    }

    /// To the next thing that happens.
    fn pass_time(&mut self) {
        let dues = self.lives.iter().enumerate();
        let dues = dues.filter_map(|(holder, life)| Some((life.due?, holder)));
        let (next, timeout) = (dues.min(), self.share.poll_timeout(self.now));
        match (next, timeout) {
            (Some((due, holder)), timeout) if timeout.is_none_or(|timeout| due <= timeout) => {
                self.now = due;
                self.give_chunk(holder);
            }
            (_, Some(timeout)) => self.now = timeout,
            (_, None) => panic!("nothing will happen"),
        }
    }

    fn give_chunk(&mut self, holder: usize) {
        let (life, peer) = (&mut self.lives[holder], &mut self.peers[holder]);
        life.due = None;
        if peer.fails_after.front() == Some(&life.given_since) {
            peer.fails_after.pop_front();
            self.fail(holder, HolderSetback::Passing);
            return;
        }
        let chunk = life.owed.pop_front().expect("a chunk was due");
        life.given += 1;
        life.given_since += 1;
        assert!(self.arrived.insert(chunk), "chunk {chunk} came twice");
        self.share.on_chunk(holder, chunk, self.now);
        self.begin_chunk(holder);
    }

    fn fail(&mut self, holder: usize, setback: HolderSetback) {
        let life = &mut self.lives[holder];
        life.owed.clear();
        (life.due, life.given_since) = (None, 0);
        self.share.on_setback(holder, setback, self.now);
    }

    fn given(&self) -> Vec<u64> {
        self.lives.iter().map(|life| life.given).collect()
    }
}

fn steady(pace_ms: u64) -> SimulatedHolder {
    SimulatedHolder { pace: Some(Duration::from_millis(pace_ms)), fails_after: VecDeque::new() }
}

fn stalled() -> SimulatedHolder {
    SimulatedHolder { pace: None, fails_after: VecDeque::new() }
}

#[test]
fn equal_holders_share_and_are_left_alone() {
    for pace in [1, 50, 1000] {
        let mut world = FetchSimulation::new(300, vec![steady(pace); 3]);
        assert!(world.run());
        assert_eq!(world.yields, 0);
        assert!(
            world.given().iter().all(|given| (95..=105).contains(given)),
            "{:?}",
            world.given()
        );
    }
}

#[test]
fn a_faster_holder_gives_more() {
    let mut world = FetchSimulation::new(300, vec![steady(10), steady(20)]);
    assert!(world.run());
    assert_eq!(world.yields, 0);
    assert!(world.given()[0] > 190, "{:?}", world.given());
}

#[test]
fn a_much_slower_holder_is_overtaken_at_the_end() {
    let mut world = FetchSimulation::new(300, vec![steady(10), steady(1000)]);
    assert!(world.run());
    assert!(world.yields > 0);
    // All chunks by the fast one, a few looks, and no wait for the slow one's rest of 16 seconds.
    assert!(world.now < Duration::from_secs(5), "{:?}", world.now);
}

#[test]
fn a_stalled_holder_is_overtaken() {
    for chunks in [1, 2, 3, 16, 100] {
        let mut world = FetchSimulation::new(chunks, vec![stalled(), steady(10)]);
        assert!(world.run());
        assert!((1..=2).contains(&world.yields), "{}", world.yields);
        assert_eq!(world.given()[1], chunks);
        assert!(world.now < Duration::from_secs(3), "{:?}", world.now);
    }
}

#[test]
fn a_slow_holder_that_was_overtaken_gets_requests_when_it_is_all_there_is() {
    let fails_after = [3, 0, 0, 0].into();
    let mut world =
        FetchSimulation::new(4, vec![SimulatedHolder { fails_after, ..steady(1) }, steady(2000)]);
    assert!(world.run());
}

#[test]
fn a_holder_is_given_up_after_failures_in_a_row_alone() {
    let failing = |after: &[u64]| {
        vec![SimulatedHolder { fails_after: after.iter().copied().collect(), ..steady(10) }]
    };
    assert!(FetchSimulation::new(100, failing(&[1; 9])).run());
    assert!(FetchSimulation::new(100, failing(&[0; HOLDER_FAILURES_MAX as usize - 1])).run());
    assert!(!FetchSimulation::new(100, failing(&[0; HOLDER_FAILURES_MAX as usize])).run());
    let mut world = FetchSimulation::new(100, failing(&[7, 0, 0]));
    assert!(!world.run());
    assert_eq!(world.share.arrived(), 7);
}

#[test]
fn what_failed_is_requested_first() {
    let mut share = FetchScheduler::new(100, 2);
    let first = share.poll_order(0, Duration::ZERO).unwrap();
    let second = share.poll_order(0, Duration::ZERO).unwrap();
    assert_eq!((first, second), (0..8, 8..16));
    assert_eq!(share.poll_order(0, Duration::ZERO), None, "{ORDERS_AHEAD} orders are open");
    share.on_chunk(0, 0, Duration::ZERO);
    share.on_setback(0, HolderSetback::Passing, Duration::ZERO);
    assert_eq!(share.poll_order(0, Duration::ZERO), None, "it rests");
    let next: Vec<_> = (0..2).map(|_| share.poll_order(1, Duration::ZERO).unwrap()).collect();
    assert_eq!(next, [1..8, 8..16]);
}

#[test]
fn a_final_failure_is_final() {
    let mut share = FetchScheduler::new(1, 1);
    share.poll_order(0, Duration::ZERO).unwrap();
    share.on_setback(0, HolderSetback::Final, Duration::ZERO);
    assert!(share.is_hopeless() && !share.is_done());
}

#[test]
fn nothing_is_done_at_once() {
    assert!(FetchScheduler::new(0, 1).is_done());
}

fn any_peer() -> impl Strategy<Value = SimulatedHolder> {
    let pace = prop_oneof![
        1 => Just(None),
        5 => (0_u64..3000).prop_map(|pace| Some(Duration::from_millis(pace))),
    ];
    let fails_after = prop::collection::vec_deque(0_u64..5, 0..12);
    (pace, fails_after).prop_map(|(pace, fails_after)| SimulatedHolder { pace, fails_after })
}

proptest! {
    #[test]
    fn everything_comes_once_if_one_holder_is_sound(
        chunks in 0_u64..120,
        mut peers in prop::collection::vec(any_peer(), 0..5),
        place in any::<prop::sample::Index>(),
        pace in 0_u64..3000,
    ) {
        peers.insert(place.index(peers.len() + 1), steady(pace));
        let mut world = FetchSimulation::new(chunks, peers);
        prop_assert!(world.run());
        prop_assert_eq!(world.arrived.len() as u64, chunks);
    }
}
