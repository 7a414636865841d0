//! Simulated fetches without streams: holders have a pace, and fail by a list.

use std::collections::{BTreeSet, VecDeque};
use std::iter;
use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;

use super::{FetchScheduler, HOLDER_FAILURES_MAX, HolderSetback, RANGE_CHUNKS_MAX, RANGES_AHEAD};

/// Enough for every fetch here, and an end for one that hangs.
const ROUNDS_MAX: usize = 20_000;

fn scheduler_of(wanted: impl IntoIterator<Item = Range<u64>>, holders: usize) -> FetchScheduler {
    let mut scheduler = FetchScheduler::new(wanted);
    (0..holders).for_each(|_| scheduler.add_holder());
    scheduler
}

#[derive(Clone, Debug)]
struct SimulatedHolder {
    /// Time that a chunk takes; without one, none ever arrives.
    pace: Option<Duration>,
    /// After how many chunks it fails, again and again.
    fails_after: VecDeque<u64>,
    /// The setback of each failure.
    setback: HolderSetback,
}

#[derive(Default)]
struct SimulatedHolderState {
    owed: VecDeque<u64>,
    due: Option<Duration>,
    given: u64,
    given_since: u64,
}

struct FetchSimulation {
    scheduler: FetchScheduler,
    holders: Vec<SimulatedHolder>,
    states: Vec<SimulatedHolderState>,
    now: Duration,
    arrived: BTreeSet<u64>,
    yields: usize,
}

impl FetchSimulation {
    fn new(chunks: u64, holders: Vec<SimulatedHolder>) -> Self {
        let states = holders.iter().map(|_| SimulatedHolderState::default()).collect();
        let scheduler = scheduler_of(iter::once(0..chunks), holders.len());
        Self {
            scheduler,
            holders,
            states,
            now: Duration::ZERO,
            arrived: BTreeSet::new(),
            yields: 0,
        }
    }

    /// Runs until the end, and returns whether everything came.
    fn run(&mut self) -> bool {
        for _ in 0..ROUNDS_MAX {
            self.decide();
            if self.scheduler.is_done() || self.scheduler.is_hopeless() {
                return self.scheduler.is_done();
            }
            self.pass_time();
        }
        panic!("no end after {ROUNDS_MAX} rounds");
    }

    fn decide(&mut self) {
        if let Some(victim) = self.scheduler.poll_yield(self.now) {
            self.yields += 1;
            self.fail(victim, HolderSetback::Overtaken);
        }
        for holder in 0..self.holders.len() {
            while let Some(range) = self.scheduler.poll_range(holder, self.now) {
                assert!(!range.is_empty() && range.end - range.start <= RANGE_CHUNKS_MAX);
                for chunk in range {
                    let owe = |state: &SimulatedHolderState| state.owed.contains(&chunk);
                    assert!(!self.arrived.contains(&chunk) && !self.states.iter().any(owe));
                    self.states[holder].owed.push_back(chunk);
                }
            }
            self.begin_chunk(holder);
        }
    }

    fn begin_chunk(&mut self, holder: usize) {
        let state = &mut self.states[holder];
        let simulated = &self.holders[holder];
        if state.due.is_none() && !state.owed.is_empty() {
            state.due = simulated.pace.map(|pace| self.now + pace);
        }
    }

    /// To the next thing that happens.
    fn pass_time(&mut self) {
        let dues = self.states.iter().enumerate();
        let dues = dues.filter_map(|(holder, state)| Some((state.due?, holder)));
        let next = dues.min();
        let timeout = self.scheduler.poll_timeout(self.now);
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
        let state = &mut self.states[holder];
        let simulated = &mut self.holders[holder];
        state.due = None;
        if simulated.fails_after.front() == Some(&state.given_since) {
            simulated.fails_after.pop_front();
            let setback = simulated.setback;
            self.fail(holder, setback);
            return;
        }
        let chunk = state.owed.pop_front().expect("a chunk was due");
        state.given += 1;
        state.given_since += 1;
        assert!(self.arrived.insert(chunk), "chunk {chunk} came twice");
        self.scheduler.on_chunk(holder, chunk, self.now);
        self.begin_chunk(holder);
    }

    fn fail(&mut self, holder: usize, setback: HolderSetback) {
        let state = &mut self.states[holder];
        state.owed.clear();
        (state.due, state.given_since) = (None, 0);
        self.scheduler.on_setback(holder, setback, self.now);
    }

    /// Lets the simulated time pass until so many chunks are here.
    fn run_until(&mut self, arrived: u64) {
        for _ in 0..ROUNDS_MAX {
            if self.scheduler.arrived() >= arrived {
                return;
            }
            self.decide();
            self.pass_time();
        }
        panic!("{arrived} chunks do not arrive in {ROUNDS_MAX} rounds");
    }

    fn join(&mut self, holder: SimulatedHolder) {
        self.scheduler.add_holder();
        self.holders.push(holder);
        self.states.push(SimulatedHolderState::default());
    }

    fn given(&self) -> Vec<u64> {
        self.states.iter().map(|state| state.given).collect()
    }
}

fn steady(pace_ms: u64) -> SimulatedHolder {
    let pace = Some(Duration::from_millis(pace_ms));
    SimulatedHolder { pace, fails_after: VecDeque::new(), setback: HolderSetback::Passing }
}

fn stalled() -> SimulatedHolder {
    SimulatedHolder { pace: None, ..steady(0) }
}

#[test]
fn equal_holders_share_and_are_left_alone() {
    for pace in [1, 50, 1000] {
        let mut simulation = FetchSimulation::new(300, vec![steady(pace); 3]);
        assert!(simulation.run());
        assert_eq!(simulation.yields, 0);
        assert!(
            simulation.given().iter().all(|given| (95..=105).contains(given)),
            "{:?}",
            simulation.given()
        );
    }
}

#[test]
fn a_faster_holder_gives_more() {
    let mut simulation = FetchSimulation::new(300, vec![steady(10), steady(20)]);
    assert!(simulation.run());
    assert_eq!(simulation.yields, 0);
    assert!(simulation.given()[0] > 190, "{:?}", simulation.given());
}

#[test]
fn a_much_slower_holder_is_overtaken_at_the_end() {
    let mut simulation = FetchSimulation::new(300, vec![steady(10), steady(1000)]);
    assert!(simulation.run());
    assert!(simulation.yields > 0);
    // All chunks by the fast one, a few comparisons, and no wait for the slow one's ranges of 16
    // seconds.
    assert!(simulation.now < Duration::from_secs(5), "{:?}", simulation.now);
}

#[test]
fn a_stalled_holder_is_overtaken() {
    for chunks in [1, 2, 3, 16, 100] {
        let mut simulation = FetchSimulation::new(chunks, vec![stalled(), steady(10)]);
        assert!(simulation.run());
        assert!((1..=2).contains(&simulation.yields), "{}", simulation.yields);
        assert_eq!(simulation.given()[1], chunks);
        assert!(simulation.now < Duration::from_secs(3), "{:?}", simulation.now);
    }
}

#[test]
fn a_slow_holder_that_was_overtaken_gets_requests_when_it_is_all_there_is() {
    let fails_after = [3, 0, 0, 0].into();
    let mut simulation =
        FetchSimulation::new(4, vec![SimulatedHolder { fails_after, ..steady(1) }, steady(2000)]);
    assert!(simulation.run());
}

#[test]
fn a_holder_is_given_up_after_failures_in_a_row_alone() {
    let failing = |after: &[u64]| {
        vec![SimulatedHolder { fails_after: after.iter().copied().collect(), ..steady(10) }]
    };
    assert!(FetchSimulation::new(100, failing(&[1; 9])).run());
    assert!(FetchSimulation::new(100, failing(&[0; HOLDER_FAILURES_MAX as usize - 1])).run());
    assert!(!FetchSimulation::new(100, failing(&[0; HOLDER_FAILURES_MAX as usize])).run());
    let mut simulation = FetchSimulation::new(100, failing(&[7, 0, 0]));
    assert!(!simulation.run());
    assert_eq!(simulation.scheduler.arrived(), 7);
}

#[test]
fn what_failed_is_requested_first() {
    let mut scheduler = scheduler_of(iter::once(0..100), 2);
    let first = scheduler.poll_range(0, Duration::ZERO).unwrap();
    let second = scheduler.poll_range(0, Duration::ZERO).unwrap();
    assert_eq!((first, second), (0..8, 8..16));
    assert_eq!(scheduler.poll_range(0, Duration::ZERO), None, "{RANGES_AHEAD} ranges are open");
    scheduler.on_chunk(0, 0, Duration::ZERO);
    scheduler.on_setback(0, HolderSetback::Passing, Duration::ZERO);
    assert_eq!(scheduler.poll_range(0, Duration::ZERO), None, "it is paused");
    let next: Vec<_> = (0..2).map(|_| scheduler.poll_range(1, Duration::ZERO).unwrap()).collect();
    assert_eq!(next, [1..8, 8..16]);
}

#[test]
fn a_final_failure_is_final() {
    let mut scheduler = scheduler_of(iter::once(0..1), 1);
    scheduler.poll_range(0, Duration::ZERO).unwrap();
    scheduler.on_setback(0, HolderSetback::Final, Duration::ZERO);
    assert!(scheduler.is_hopeless() && !scheduler.is_done());
}

#[test]
fn a_refused_chunk_is_for_others_and_the_holder_goes_on() {
    let now = Duration::ZERO;
    let mut scheduler = scheduler_of([2..4, 7..9], 2);
    assert_eq!(scheduler.expected(), 4);
    assert_eq!(scheduler.poll_range(0, now), Some(2..3));
    assert_eq!(scheduler.poll_range(0, now), Some(3..4));
    scheduler.on_refused(0, 2, now);
    scheduler.on_refused(0, 3, now);
    assert_eq!(scheduler.poll_range(0, now), Some(7..8), "it has others");
    assert_eq!(scheduler.poll_range(1, now), Some(3..4));
    scheduler.on_refused(1, 3, now);
    assert!(scheduler.is_hopeless(), "chunk 3 is sound at none of them");
    assert_eq!(scheduler.poll_range(1, now), Some(2..3));
}

#[test]
fn a_chunk_that_an_idle_holder_cannot_give_stays_with_the_slow_one_that_can() {
    let mut scheduler = scheduler_of(iter::once(0..1), 2);
    assert!(scheduler.poll_range(0, Duration::ZERO).is_some());
    scheduler.on_refused(0, 0, Duration::from_millis(1));
    let later = Duration::from_secs(1000);
    assert_eq!(scheduler.poll_range(1, Duration::from_millis(1)), Some(0..1));
    assert_eq!(scheduler.poll_yield(later), None);
    assert!(!scheduler.is_hopeless());
    scheduler.on_setback(1, HolderSetback::Final, later);
    assert!(scheduler.is_hopeless(), "the only one that could is gone");
}

/// A layer of 300 chunks is on its way from one holder, and another one has it as well.
#[test]
fn a_holder_that_joins_sends_its_share_of_what_is_missing() {
    let mut simulation = FetchSimulation::new(300, vec![steady(10)]);
    simulation.run_until(100);
    simulation.join(steady(10));
    assert!(simulation.run());
    assert_eq!(simulation.yields, 0);
    let given = simulation.given();
    assert!((85..=100).contains(&given[1]), "{given:?}");
}

#[test]
fn what_a_holder_owes_that_goes_comes_from_one_that_joined() {
    let goes =
        SimulatedHolder { fails_after: [120].into(), setback: HolderSetback::Final, ..steady(10) };
    let mut simulation = FetchSimulation::new(300, vec![goes]);
    simulation.run_until(100);
    simulation.join(steady(10));
    assert!(simulation.run());
    assert_eq!(simulation.given(), [120, 180]);
}

#[test]
fn a_slow_holder_is_overtaken_by_one_that_joins() {
    let mut simulation = FetchSimulation::new(40, vec![steady(5000)]);
    simulation.run_until(1);
    simulation.join(steady(10));
    assert!(simulation.run());
    assert!(simulation.yields > 0);
    assert!(simulation.now < Duration::from_secs(20), "{:?}", simulation.now);
}

#[test]
fn a_holder_that_sent_a_damaged_chunk_gets_no_more_while_another_is_left() {
    let now = Duration::ZERO;
    let later = Duration::from_secs(1000);
    let mut scheduler = scheduler_of(iter::once(0..100), 2);
    assert_eq!(scheduler.poll_range(0, now), Some(0..8));
    assert_eq!(scheduler.poll_range(1, now), Some(8..16));
    scheduler.on_setback(0, HolderSetback::Damaged, now);
    assert_eq!(scheduler.poll_range(0, later), None, "the other one is left");
    assert_eq!(scheduler.poll_range(1, later), Some(0..8), "which sends what is missing");
    scheduler.on_setback(1, HolderSetback::Damaged, later);
    assert!(!scheduler.is_hopeless(), "no other one is left: it may fail as often as others");
    for failures in 1..HOLDER_FAILURES_MAX {
        let at = later * (failures + 1);
        assert!(scheduler.poll_range(1, at).is_some());
        scheduler.on_setback(1, HolderSetback::Damaged, at);
    }
    assert!(scheduler.is_hopeless());
}

#[test]
fn what_did_not_arrive_is_missing_whether_a_holder_owes_it_or_not() {
    let now = Duration::ZERO;
    let mut scheduler = scheduler_of([0..30, 35..40], 2);
    assert_eq!(scheduler.poll_range(0, now), Some(0..8));
    assert_eq!(scheduler.poll_range(1, now), Some(8..15));
    scheduler.on_chunk(0, 0, now);
    scheduler.on_chunk(0, 1, now);
    scheduler.on_chunk(1, 8, now);
    let missing: BTreeSet<u64> = scheduler.missing().into_iter().flatten().collect();
    let expected: BTreeSet<u64> = (2..8).chain(9..30).chain(35..40).collect();
    assert_eq!(missing, expected);
    scheduler.on_setback(0, HolderSetback::Final, now);
    scheduler.on_setback(1, HolderSetback::Final, now);
    assert!(scheduler.is_hopeless());
    assert_eq!(scheduler.missing().into_iter().flatten().collect::<BTreeSet<u64>>(), expected);
    let rest = FetchScheduler::new(scheduler.missing());
    assert_eq!(rest.expected(), expected.len() as u64, "each once");
}

#[test]
fn nothing_is_done_at_once() {
    assert!(scheduler_of(iter::once(0..0), 1).is_done());
}

fn any_holder() -> impl Strategy<Value = SimulatedHolder> {
    let pace = prop_oneof![
        1 => Just(None),
        5 => (0_u64..3000).prop_map(|pace| Some(Duration::from_millis(pace))),
    ];
    let fails_after = prop::collection::vec_deque(0_u64..5, 0..12);
    let setback = prop_oneof![Just(HolderSetback::Passing), Just(HolderSetback::Damaged)];
    (pace, fails_after, setback).prop_map(|(pace, fails_after, setback)| SimulatedHolder {
        pace,
        fails_after,
        setback,
    })
}

proptest! {
    #[test]
    fn everything_comes_once_if_one_holder_is_sound(
        chunks in 0_u64..120,
        mut holders in prop::collection::vec(any_holder(), 0..5),
        index in any::<prop::sample::Index>(),
        pace in 0_u64..3000,
    ) {
        holders.insert(index.index(holders.len() + 1), steady(pace));
        let mut simulation = FetchSimulation::new(chunks, holders);
        prop_assert!(simulation.run());
        prop_assert_eq!(simulation.arrived.len() as u64, chunks);
    }
}
