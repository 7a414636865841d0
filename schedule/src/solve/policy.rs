//! Orders made in the order of time: whenever a stage is free, a rule says what it does next with
//! what has arrived.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::board::Board;
use super::bound::trips;
use super::problem::{Problem, StageCosts, TOLERANCE};
use crate::op::Compute;

/// What a stage goes by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rule {
    /// How many microbatches it begins before its first B, at most.
    pub(super) first: u32,
    /// How many it has begun and not given back, at most, from then on.
    pub(super) ahead: u32,
    /// What comes first where both an F and a B can run.
    pub(super) turn: Turn,
    /// Whether it rather waits for a B than begins an F that would hold that up.
    pub(super) yields: bool,
    /// Whether it rather waits for a B than runs a W to have memory for an F.
    pub(super) saves_w: bool,
    /// Whether it puts off what it does until it is known when something arrives.
    pub(super) looks: bool,
    /// The share of a weight gradient that a gap must have for one to be put there.
    pub(super) share: f64,
}

/// What comes first of an F and a B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    B,
    /// An F between two B.
    Either,
    F,
}

impl Turn {
    pub(super) const ALL: [Self; 3] = [Self::B, Self::Either, Self::F];
}

/// How far stages run ahead, beside what their memory allows.
#[derive(Clone, Copy, Debug)]
enum Ahead {
    /// As far as they can.
    Freely,
    /// As many forwards as fit before the first B comes, and so many more.
    UntilFirst(u32),
    /// As many as are under way when nobody waits, and so many more.
    AsNeeded(u32),
}

/// The share of a weight gradient that no gap has.
pub(super) const NEVER_FILLS: f64 = f64::MAX;

/// The rules that are tried first: all stages go by the same.
pub(super) fn rules(problem: &Problem) -> impl Iterator<Item = Vec<Rule>> + '_ {
    const AHEAD: [(Ahead, Ahead); 8] = [
        (Ahead::Freely, Ahead::Freely),
        (Ahead::UntilFirst(0), Ahead::UntilFirst(0)),
        (Ahead::UntilFirst(0), Ahead::AsNeeded(1)),
        (Ahead::UntilFirst(1), Ahead::UntilFirst(1)),
        (Ahead::Freely, Ahead::AsNeeded(1)),
        (Ahead::Freely, Ahead::AsNeeded(2)),
        (Ahead::AsNeeded(1), Ahead::AsNeeded(1)),
        (Ahead::AsNeeded(0), Ahead::AsNeeded(0)),
    ];
    const SHARES: [f64; 3] = [1.0, 0.5, 0.0];
    // Of the busiest stages, and of the others.
    const TURNS: [(Turn, Turn); 5] = [
        (Turn::B, Turn::B),
        (Turn::Either, Turn::Either),
        (Turn::F, Turn::B),
        (Turn::F, Turn::Either),
        (Turn::F, Turn::F),
    ];
    let busiest = (0..problem.stages.len()).map(|stage| problem.work(stage)).fold(0.0, f64::max);
    let of_stages = move |(first, ahead)| {
        let (first, ahead) = (caps(problem, first), caps(problem, ahead));
        let choices = TURNS.into_iter().flat_map(|turns| {
            [false, true]
                .into_iter()
                .flat_map(move |yields| SHARES.map(move |share| (turns, yields, share)))
        });
        choices.map(move |(turns, yields, share)| {
            let rule = |stage: usize| {
                let is_busiest = problem.work(stage) >= busiest * (1.0 - TOLERANCE);
                let turn = if is_busiest { turns.0 } else { turns.1 };
                let (first, ahead) = (first[stage], ahead[stage]);
                let yields = yields && turn != Turn::F;
                Rule { first, ahead, turn, yields, saves_w: false, looks: false, share }
            };
            (0..problem.stages.len()).map(rule).collect()
        })
    };
    AHEAD.into_iter().flat_map(of_stages)
}

/// The order that rules make, one a stage; `None` if they leave one without memory for its next F.
pub(super) fn by_rules<'a>(problem: &'a Problem, rules: &[Rule]) -> Option<Board<'a>> {
    let mut run = Run::new(problem, rules);
    loop {
        while let Some((Time(at), Reverse(stage))) = run.due.pop() {
            run.advance(stage, at);
        }
        // Nothing arrives any more unless somebody stops waiting for it.
        let pending = (0..rules.len()).filter(|stage| run.board.pending(*stage) > 0);
        let clock = |stage: &usize| Time(run.board.lanes[*stage].clock);
        let Some(stage) = pending.max_by_key(clock) else { break };
        let at = run.board.lanes[stage].clock;
        run.put(stage, Compute::W, at);
    }
    let m = problem.microbatch_count;
    run.board.lanes.iter().all(|lane| lane.w == m).then_some(run.board)
}

/// A time that can be put into order: none is no number.
#[derive(Clone, Copy, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // The earliest first.
        other.0.total_cmp(&self.0)
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

struct Run<'a, 'r> {
    board: Board<'a>,
    rules: &'r [Rule],
    /// Stages that may have something to do, by when.
    due: BinaryHeap<(Time, Reverse<usize>)>,
    /// By stage: when it is due; infinite if it is not.
    due_at: Vec<f64>,
}

/// What a stage does next.
enum Next {
    /// This.
    Run(Compute),
    /// It looks again when something has arrived.
    Wait(f64),
    /// It looks again when somebody says that something will arrive.
    Nothing,
}

impl<'a, 'r> Run<'a, 'r> {
    fn new(problem: &'a Problem, rules: &'r [Rule]) -> Self {
        let stage_count = problem.stages.len();
        let mut run = Self {
            board: Board::new(problem),
            rules,
            due: BinaryHeap::with_capacity(2 * stage_count),
            due_at: vec![f64::INFINITY; stage_count],
        };
        run.call(0, 0.0);
        run
    }

    /// A stage may have something to do, once it is free.
    fn call(&mut self, stage: usize, at: f64) {
        let at = at.max(self.board.lanes[stage].clock);
        if at < self.due_at[stage] {
            self.due_at[stage] = at;
            self.due.push((Time(at), Reverse(stage)));
        }
    }

    /// Puts the next pass of a stage, if there is one that can be known.
    fn advance(&mut self, stage: usize, at: f64) {
        if std::mem::replace(&mut self.due_at[stage], f64::INFINITY) < at {
            // It was called for an earlier time meanwhile, and that has come.
            return;
        }
        match self.choose(stage, at) {
            Next::Run(compute) => self.put(stage, compute, at),
            Next::Wait(until) => self.call(stage, until),
            Next::Nothing => {}
        }
    }

    fn put(&mut self, stage: usize, compute: Compute, at: f64) {
        self.board.put(stage, compute);
        self.call(stage, at);
        match compute {
            Compute::F if stage + 1 < self.rules.len() => self.call(stage + 1, at),
            Compute::B if stage > 0 => self.call(stage - 1, at),
            Compute::F | Compute::B | Compute::W | Compute::BW | Compute::WE => {}
        }
    }

    fn choose(&self, stage: usize, now: f64) -> Next {
        let rule = &self.rules[stage];
        let lane = &self.board.lanes[stage];
        let StageCosts { f, w, after_input_gradient, .. } = *self.board.costs(stage);
        let m = self.board.microbatch_count();
        let cap = if lane.b == 0 { rule.first } else { rule.ahead };
        let is_free = lane.f < m && lane.f - lane.b < cap;
        let f_at = if is_free { self.board.arrival_f(stage) } else { f64::INFINITY };
        let b_at = if lane.b < lane.f { self.board.arrival_b(stage) } else { f64::INFINITY };
        let pending = self.board.pending(stage);
        let has_room = self.board.has_room(stage);
        let (f_is_here, b_is_here) = (f_at <= now, b_at <= now);
        let is_turn_of_f = match rule.turn {
            Turn::B => false,
            Turn::Either => lane.order.last() == Some(&Compute::B),
            Turn::F => true,
        };
        if b_is_here && !(is_turn_of_f && f_is_here && has_room) {
            return Next::Run(Compute::B);
        }
        let yields = rule.yields && b_at > now && now + f > b_at;
        if f_is_here && has_room && !yields {
            return Next::Run(Compute::F);
        }
        let comes_soon = b_at - now < rule.share * w || (rule.looks && b_at == f64::INFINITY);
        let waits_for_b = rule.saves_w && lane.b < lane.f && comes_soon;
        let frees = f_is_here && !has_room && after_input_gradient > 0.0;
        if pending > 0 && frees && !waits_for_b {
            return Next::Run(Compute::W);
        }
        let f_at = if has_room && !yields { f_at } else { f64::INFINITY };
        let next = f_at.min(b_at);
        // A gap is as long as it turns out to be: it began when the stage was done.
        let gap = next - lane.clock;
        let is_filled = if next == f64::INFINITY { !rule.looks } else { gap >= rule.share * w };
        if pending > 0 && is_filled {
            return Next::Run(Compute::W);
        }
        if next == f64::INFINITY { Next::Nothing } else { Next::Wait(next) }
    }
}

fn caps(problem: &Problem, ahead: Ahead) -> Vec<u32> {
    let m = problem.microbatch_count;
    let step = |costs: &StageCosts| costs.f + costs.b + costs.w;
    let rhythm = problem.stages.iter().map(step).fold(0.0, f64::max);
    let trips = trips(problem);
    let cap = |(costs, trip): (&StageCosts, f64)| {
        let (count, more) = match ahead {
            Ahead::Freely => (f64::INFINITY, 0),
            Ahead::UntilFirst(more) => (trip / costs.f, more),
            Ahead::AsNeeded(more) => ((trip + costs.b) / rhythm, more),
        };
        let count = (count * (1.0 - TOLERANCE)).ceil();
        let count = if count >= f64::from(m) { m } else { count as u32 };
        count.saturating_add(more).clamp(1, m)
    };
    problem.stages.iter().zip(trips).map(cap).collect()
}
