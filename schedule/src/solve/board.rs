//! An order in the making: passes are put on stages one after another, each as early as it can.

use super::problem::{Problem, StageCosts, TOLERANCE};
use crate::op::Compute;

/// What a stage does with a microbatch, in the order of the list; microbatches of one kind come in
/// their own order, so the kind says enough.
pub(super) type Order = Vec<Compute>;

/// A pass that no order has yet.
const NEVER: f64 = f64::INFINITY;

/// A stage, as far as it goes.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    /// Forwards, input gradients and weight gradients so far.
    pub(super) f: u32,
    pub(super) b: u32,
    pub(super) w: u32,
    /// When its last pass ends.
    pub(super) clock: f64,
    /// When its first one began.
    pub(super) began: f64,
    /// What it keeps.
    pub(super) kept: f64,
    /// For how long it stood still since it began.
    pub(super) idle: f64,
    pub(super) order: Order,
}

/// All stages.
pub(super) struct Board<'a> {
    pub(super) problem: &'a Problem,
    pub(super) lanes: Vec<Lane>,
    /// By stage and microbatch: when its F and its B end.
    ends_f: Vec<f64>,
    ends_b: Vec<f64>,
}

impl<'a> Board<'a> {
    pub(super) fn new(problem: &'a Problem) -> Self {
        let passes = problem.stages.len() * problem.microbatch_count as usize;
        let room = 3 * problem.microbatch_count as usize;
        let lane = || Lane { order: Vec::with_capacity(room), ..Lane::default() };
        let lanes = problem.stages.iter().map(|_| lane()).collect();
        Self { problem, lanes, ends_f: vec![NEVER; passes], ends_b: vec![NEVER; passes] }
    }

    pub(super) fn microbatch_count(&self) -> u32 {
        self.problem.microbatch_count
    }

    pub(super) fn costs(&self, stage: usize) -> &StageCosts {
        &self.problem.stages[stage]
    }

    fn cell(&self, stage: usize, microbatch: u32) -> usize {
        stage * self.problem.microbatch_count as usize + microbatch as usize
    }

    /// When the input of a stage's next F is there; infinite as long as nobody makes it.
    pub(super) fn arrival_f(&self, stage: usize) -> f64 {
        let next = self.lanes[stage].f;
        match stage.checked_sub(1) {
            None => 0.0,
            Some(before) => self.ends_f[self.cell(before, next)] + self.problem.link,
        }
    }

    /// When the input of a stage's next B is there; infinite as long as nobody makes it.
    pub(super) fn arrival_b(&self, stage: usize) -> f64 {
        let next = self.lanes[stage].b;
        if stage + 1 == self.lanes.len() {
            self.ends_f[self.cell(stage, next)]
        } else {
            self.ends_b[self.cell(stage + 1, next)] + self.problem.link
        }
    }

    /// Whether there is memory for another F.
    pub(super) fn has_room(&self, stage: usize) -> bool {
        let StageCosts { after_forward, limit, .. } = *self.costs(stage);
        self.lanes[stage].kept + after_forward <= limit * (1.0 + TOLERANCE)
    }

    /// Weight gradients that can be computed now.
    pub(super) fn pending(&self, stage: usize) -> u32 {
        self.lanes[stage].b - self.lanes[stage].w
    }

    /// Puts a pass on a stage; its input is made by a pass that is on the board.
    pub(super) fn put(&mut self, stage: usize, compute: Compute) {
        let costs = *self.costs(stage);
        let (arrival, time, kept) = match compute {
            Compute::F => (self.arrival_f(stage), costs.f, costs.after_forward),
            Compute::B => {
                let kept = costs.after_input_gradient - costs.after_forward;
                (self.arrival_b(stage), costs.b, kept)
            }
            Compute::W => (0.0, costs.w, -costs.after_input_gradient),
            Compute::BW | Compute::WE => unreachable!("a solver splits every backward pass in two"),
        };
        let is_first = self.lanes[stage].order.is_empty();
        let start = self.lanes[stage].clock.max(arrival);
        let end = start + time;
        let (f, b) = (self.lanes[stage].f, self.lanes[stage].b);
        match compute {
            Compute::F => {
                let cell = self.cell(stage, f);
                self.ends_f[cell] = end;
                self.lanes[stage].f += 1;
            }
            Compute::B => {
                let cell = self.cell(stage, b);
                self.ends_b[cell] = end;
                self.lanes[stage].b += 1;
            }
            Compute::W | Compute::BW | Compute::WE => self.lanes[stage].w += 1,
        }
        let lane = &mut self.lanes[stage];
        if is_first {
            lane.began = start;
        } else {
            lane.idle += start - lane.clock;
        }
        lane.clock = end;
        lane.kept += kept;
        lane.order.push(compute);
    }

    /// The stage that stood still for longest.
    pub(super) fn idle_max(&self) -> f64 {
        self.lanes.iter().map(|lane| lane.idle).fold(0.0, f64::max)
    }

    /// The longest span of a stage.
    pub(super) fn cost(&self) -> f64 {
        self.lanes.iter().map(|lane| lane.clock - lane.began).fold(0.0, f64::max)
    }

    /// The list of each stage.
    pub(super) fn into_orders(self) -> Vec<Order> {
        self.lanes.into_iter().map(|lane| lane.order).collect()
    }
}
