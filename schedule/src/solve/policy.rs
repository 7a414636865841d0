//! Orders made in the order of time: whenever a stage is free, a rule decides what it does next with
//! what has arrived.

use std::iter;

use super::board::Board;
use super::bound::tails;
use super::due::Due;
use super::pipeline::Pipeline;
use super::problem::{ChunkCosts, TOLERANCE};
use super::stepwise;
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
    /// Before this time it runs its first W only if memory requires it: behind its gate the verdict on
    /// the step before is needed. As a multiple of the verdict's own time.
    pub(super) holds: f64,
    /// Whether of two F that can run the upper chunk's comes first; with one chunk it is no matter.
    pub(super) upper_f_first: bool,
    /// The same of two B.
    pub(super) upper_b_first: bool,
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

/// The rules that are tried first: all stages go by the same. `bound` is what every order costs. Those
/// that hold nothing back come first.
pub(super) fn rules<'a>(
    pipeline: &'a Pipeline<'a>,
    bound: f64,
) -> impl Iterator<Item = Vec<Rule>> + 'a {
    holds(pipeline).iter().flat_map(move |holds| rules_that_hold(pipeline, bound, *holds))
}

fn rules_that_hold<'a>(
    pipeline: &'a Pipeline<'a>,
    bound: f64,
    holds: f64,
) -> impl Iterator<Item = Vec<Rule>> + 'a {
    // Whether the upper chunk's F, and B, come first.
    const UPPER_FIRST: [(bool, bool); 4] =
        [(true, false), (true, true), (false, false), (false, true)];
    let busiest = (0..pipeline.stage_count()).map(|stage| pipeline.work(stage)).fold(0.0, f64::max);
    let is_busiest = move |stage| pipeline.work(stage) >= busiest * (1.0 - TOLERANCE);
    let has_several = pipeline.chunk_count() > pipeline.stage_count();
    let upper_first = UPPER_FIRST.into_iter().take(if has_several { UPPER_FIRST.len() } else { 1 });
    upper_first.flat_map(move |(upper_f_first, upper_b_first)| {
        ahead(pipeline, bound).flat_map(move |(first, ahead)| {
            choices().map(move |(turns, yields, share)| {
                let rule = |stage: usize| {
                    let turn = if is_busiest(stage) { turns.0 } else { turns.1 };
                    Rule {
                        first: first[stage],
                        ahead: ahead[stage],
                        turn,
                        yields: yields && turn != Turn::F,
                        saves_w: false,
                        looks: false,
                        share,
                        holds,
                        upper_f_first,
                        upper_b_first,
                    }
                };
                (0..pipeline.stage_count()).map(rule).collect()
            })
        })
    })
}

/// By stage, how many microbatches it begins before its first B and from then on, at most. Orders of
/// a small problem are made from the first three.
fn ahead<'a>(
    pipeline: &'a Pipeline<'a>,
    bound: f64,
) -> impl Iterator<Item = (Vec<u32>, Vec<u32>)> + 'a {
    const AHEAD: [(Ahead, Ahead); 7] = [
        (Ahead::UntilFirst(0), Ahead::UntilFirst(0)),
        (Ahead::UntilFirst(0), Ahead::AsNeeded(1)),
        (Ahead::UntilFirst(1), Ahead::UntilFirst(1)),
        (Ahead::Freely, Ahead::AsNeeded(1)),
        (Ahead::Freely, Ahead::AsNeeded(2)),
        (Ahead::AsNeeded(1), Ahead::AsNeeded(1)),
        (Ahead::AsNeeded(0), Ahead::AsNeeded(0)),
    ];
    let freely = || caps(pipeline, Ahead::Freely);
    let stepwise = stepwise::forwards_first(pipeline, bound).into_iter();
    let stepwise = stepwise.map(move |first| (first, caps(pipeline, Ahead::Freely)));
    let others =
        AHEAD.into_iter().map(|(first, ahead)| (caps(pipeline, first), caps(pipeline, ahead)));
    iter::once((freely(), freely())).chain(stepwise).chain(others)
}

/// Times for which stages hold their first W back, if that can be of use; without end until nothing
/// else is left.
pub(super) fn holds(pipeline: &Pipeline<'_>) -> &'static [f64] {
    if pipeline.problem.ending.is_gated() { &[0.0, 1.0, f64::INFINITY] } else { &[0.0] }
}

/// Turns, of the busiest stages and of the others, whether F yield, and the share of a W that a gap
/// must have.
fn choices() -> impl Iterator<Item = ((Turn, Turn), bool, f64)> {
    const SHARES: [f64; 3] = [1.0, 0.5, 0.0];
    const TURNS: [(Turn, Turn); 5] = [
        (Turn::B, Turn::B),
        (Turn::Either, Turn::Either),
        (Turn::F, Turn::B),
        (Turn::F, Turn::Either),
        (Turn::F, Turn::F),
    ];
    TURNS.into_iter().flat_map(|turns| {
        [false, true]
            .into_iter()
            .flat_map(move |yields| SHARES.map(move |share| (turns, yields, share)))
    })
}

/// How long stages may stand still in an order that costs no more than another one.
pub(super) struct Allowance<'a> {
    pipeline: &'a Pipeline<'a>,
    /// By stage: how long it will stand still after its last F in any order.
    tails: Vec<f64>,
    /// By stage.
    idle_max: Vec<f64>,
}

impl<'a> Allowance<'a> {
    /// Nothing is too long.
    pub(super) fn new(pipeline: &'a Pipeline<'a>) -> Self {
        let idle_max = vec![f64::INFINITY; pipeline.stage_count()];
        Self { pipeline, tails: tails(pipeline), idle_max }
    }

    /// Orders that cost more than this are given up.
    pub(super) fn lower_to(&mut self, cost: f64) {
        for (stage, idle_max) in self.idle_max.iter_mut().enumerate() {
            *idle_max = cost * (1.0 + TOLERANCE) - self.pipeline.least(stage);
        }
    }

    fn is_exceeded(&self, board: &Board<'_>, stage: usize) -> bool {
        let (_, upper) = self.pipeline.ends_of(stage);
        let has_f = board.passes[upper].f < board.microbatch_count();
        let later = if has_f { self.tails[stage] } else { 0.0 };
        board.lanes[stage].idle + later > self.idle_max[stage]
    }
}

/// The order that rules make, one a stage; `None` if they leave one without memory for its next F,
/// or if a stage stands still for longer than is allowed.
pub(super) fn by_rules<'a>(
    pipeline: &'a Pipeline<'a>,
    rules: &[Rule],
    allowance: &Allowance<'_>,
) -> Option<Board<'a>> {
    let mut run = Run::new(pipeline, rules, allowance);
    loop {
        while let Some((at, stage)) = run.due.pop() {
            run.advance(stage, at)?;
        }
        // Nothing arrives any more unless a stage stops waiting for it.
        let pending = (0..rules.len()).filter_map(|stage| {
            let chunk = run.board.longest_pending(stage)?;
            Some((run.board.lanes[stage].clock, stage, chunk))
        });
        let latest = pending.max_by(|one, other| one.0.total_cmp(&other.0));
        let Some((at, stage, chunk)) = latest else { break };
        run.put(stage, chunk, Compute::W, at)?;
    }
    let m = pipeline.microbatch_count();
    run.board.passes.iter().all(|passes| passes.w == m).then_some(run.board)
}

struct Run<'a, 'r> {
    board: Board<'a>,
    rules: &'r [Rule],
    allowance: &'r Allowance<'r>,
    /// Stages that may have something to do, by when.
    due: Due,
}

/// What a stage does next.
enum Next {
    /// This, of this chunk.
    Run(usize, Compute),
    /// It looks again when something has arrived.
    Wait(f64),
    /// It looks again when it is called because something will arrive.
    Nothing,
}

impl<'a, 'r> Run<'a, 'r> {
    fn new(pipeline: &'a Pipeline<'a>, rules: &'r [Rule], allowance: &'r Allowance<'r>) -> Self {
        let (board, due) = (Board::new(pipeline), Due::new(pipeline.stage_count()));
        let mut run = Self { board, rules, allowance, due };
        run.call(0, 0.0);
        run
    }

    /// A stage may have something to do, once it is free.
    fn call(&mut self, stage: usize, at: f64) {
        self.due.call(stage, at.max(self.board.lanes[stage].clock));
    }

    /// Puts the next pass of a stage, if there is one that can be known; `None` if that was not
    /// allowed.
    fn advance(&mut self, stage: usize, at: f64) -> Option<()> {
        match self.choose(stage, at) {
            Next::Run(chunk, compute) => self.put(stage, chunk, compute, at)?,
            Next::Wait(until) => self.call(stage, until),
            Next::Nothing => {}
        }
        Some(())
    }

    fn put(&mut self, stage: usize, chunk: usize, compute: Compute, at: f64) -> Option<()> {
        self.board.put(chunk, compute);
        if self.allowance.is_exceeded(&self.board, stage) {
            return None;
        }
        self.call(stage, at);
        let pipeline = self.board.pipeline;
        match compute {
            Compute::F if chunk + 1 < pipeline.chunk_count() => {
                self.call(pipeline.stage_of(chunk + 1), at);
            }
            Compute::B if chunk > 0 => self.call(pipeline.stage_of(chunk - 1), at),
            Compute::F | Compute::B | Compute::W | Compute::BW | Compute::WE | Compute::R => {}
        }
        Some(())
    }

    fn choose(&self, stage: usize, now: f64) -> Next {
        let rule = &self.rules[stage];
        let lane = &self.board.lanes[stage];
        let (forward, backward) = (self.forward(stage, now), self.backward(stage, now));
        let is_turn_of_f = match rule.turn {
            Turn::B => false,
            Turn::Either => lane.order.last().is_some_and(|put| put.compute == Compute::B),
            Turn::F => true,
        };
        if let Some(chunk) = backward.here
            && !(is_turn_of_f && forward.here.is_some())
        {
            return Next::Run(chunk, Compute::B);
        }
        let b_at = backward.at;
        let yields = rule.yields && b_at > now && now + forward.time > b_at;
        if let Some(chunk) = forward.here
            && !yields
        {
            return Next::Run(chunk, Compute::F);
        }
        let f_at = if yields { f64::INFINITY } else { forward.at };
        let next = f_at.min(b_at);
        let mut wakes_at = next;
        if let Some(chunk) = self.board.longest_pending(stage) {
            let costs = self.board.costs(chunk);
            let enough = rule.share * costs.w;
            let comes_soon = b_at - now < enough || (rule.looks && b_at == f64::INFINITY);
            let waits_for_b = rule.saves_w && backward.is_owed && comes_soon;
            let frees = forward.is_blocked && costs.after_input_gradient > 0.0 && !waits_for_b;
            // A gap is as long as it turns out to be: it began when the stage was done.
            let gap = next - lane.clock;
            let is_filled = if next == f64::INFINITY { !rule.looks } else { gap >= enough };
            let opens_at = self.opens_at(stage);
            if frees || (is_filled && now >= opens_at) {
                return Next::Run(chunk, Compute::W);
            }
            if is_filled {
                wakes_at = next.min(opens_at);
            }
        }
        if wakes_at == f64::INFINITY { Next::Nothing } else { Next::Wait(wakes_at) }
    }

    /// What the weight gradients keep that a stage holds back.
    fn held(&self, stage: usize, now: f64) -> f64 {
        if now >= self.opens_at(stage) {
            return 0.0;
        }
        let of_chunk = |chunk: &usize| {
            let costs = self.board.costs(*chunk);
            f64::from(self.board.pending(*chunk)) * costs.after_input_gradient
        };
        self.board.pipeline.chunks_of(stage).iter().map(of_chunk).sum()
    }

    /// Until when a stage holds its next W back: only the first one waits.
    fn opens_at(&self, stage: usize) -> f64 {
        let is_open = self.board.lanes[stage].gated < f64::INFINITY;
        let holds = self.rules[stage].holds;
        let until = holds * self.board.pipeline.problem.ending.verdict;
        if is_open || holds == 0.0 { 0.0 } else { until }
    }

    /// The F that a stage could run next.
    fn forward(&self, stage: usize, now: f64) -> Forward {
        let board = &self.board;
        let rule = &self.rules[stage];
        let m = board.microbatch_count();
        let mut found = Forward { here: None, at: f64::INFINITY, is_blocked: false, time: 0.0 };
        // A microbatch that is begun needs room for its F of the upper chunk, or all would wait. What is
        // held back can still make room.
        let mut kept_free = -self.held(stage, now);
        let consider = |(is_lowest, chunk): (bool, usize), kept_free: f64| {
            let passes = &board.passes[chunk];
            let cap = if passes.b == 0 { rule.first } else { rule.ahead };
            let is_free = passes.f < m && (!is_lowest || passes.f - passes.b < cap);
            let at = if is_free { board.arrival_f(chunk) } else { f64::INFINITY };
            (at, at < f64::INFINITY && board.has_room(chunk, kept_free.max(0.0)))
        };
        for (place, chunk) in board.pipeline.chunks_of(stage).iter().enumerate().rev() {
            let (at, has_room) = consider((place == 0, *chunk), kept_free);
            let ChunkCosts { f, after_forward, .. } = *board.costs(*chunk);
            kept_free += after_forward;
            if !has_room {
                found.is_blocked |= at <= now;
            } else if at <= now {
                if found.here.is_none() || !rule.upper_f_first {
                    (found.here, found.time) = (Some(*chunk), f);
                }
            } else if at < found.at {
                found.at = at;
                if found.here.is_none() {
                    found.time = f;
                }
            }
        }
        found.is_blocked &= found.here.is_none();
        found
    }

    /// The B that a stage could run next.
    fn backward(&self, stage: usize, now: f64) -> Backward {
        let board = &self.board;
        let mut found = Backward { here: None, at: f64::INFINITY, is_owed: false };
        for chunk in board.pipeline.chunks_of(stage) {
            let passes = &board.passes[*chunk];
            if passes.b == passes.f {
                continue;
            }
            found.is_owed = true;
            let at = board.arrival_b(*chunk);
            found.at = found.at.min(at);
            if at <= now && (found.here.is_none() || self.rules[stage].upper_b_first) {
                found.here = Some(*chunk);
            }
        }
        found
    }
}

/// What a stage knows of its next F.
struct Forward {
    /// The chunk of the one that can run now.
    here: Option<usize>,
    /// When another can run; infinite as long as that is not known.
    at: f64,
    /// Whether one would be here but for memory, and none is.
    is_blocked: bool,
    /// How long the one that is meant takes.
    time: f64,
}

/// What a stage knows of its next B.
struct Backward {
    /// The chunk of the one that can run now.
    here: Option<usize>,
    /// When the first is here; infinite as long as that is not known.
    at: f64,
    /// Whether one is to come.
    is_owed: bool,
}

/// By stage: how many microbatches of its lowest chunk are under way at most.
fn caps(pipeline: &Pipeline<'_>, ahead: Ahead) -> Vec<u32> {
    let m = pipeline.microbatch_count();
    let step = |stage| pipeline.sum(stage, |costs| costs.f + costs.b + costs.w);
    let rhythm = (0..pipeline.stage_count()).map(step).fold(0.0, f64::max);
    let cap = |stage: usize| {
        let (lowest, _) = pipeline.ends_of(stage);
        let costs = pipeline.costs(lowest);
        let (count, more) = match ahead {
            Ahead::Freely => (f64::INFINITY, 0),
            Ahead::UntilFirst(more) => (pipeline.first_trip(stage) / costs.f, more),
            Ahead::AsNeeded(more) => ((pipeline.trip(lowest) + costs.b) / rhythm, more),
        };
        let count = (count * (1.0 - TOLERANCE)).ceil();
        let count = if count >= f64::from(m) { m } else { count as u32 };
        count.saturating_add(more).clamp(1, m)
    };
    (0..pipeline.stage_count()).map(cap).collect()
}
