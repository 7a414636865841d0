//! ZB-V as written by hand (Qi et al., arXiv 2401.10241 v1, section 6).
//!
//! Two chunks a stage, down the stages and up again, so that the loss is where the input is and
//! the first stage need not wait for a message to cross the whole pipeline. Every stage holds the
//! activations of at most `p` whole microbatches, and nothing waits when F, B and W take equally
//! long. The pattern needs `2p - 1` microbatches to unfold: for fewer it is written for that many
//! and the surplus is left out.

use super::{Size, compute};
use crate::op::{Compute, Op};

/// A stage's two chunks: the one met on the way down, and the one met on the way up.
#[derive(Clone, Copy)]
enum Leg {
    Down,
    Up,
}

/// Writes passes in microbatch order, one counter for each kind of pass and leg.
struct Hand {
    stage: u32,
    size: Size,
    forwards: [u32; 2],
    backwards: [u32; 2],
    weights: [u32; 2],
    ops: Vec<Op>,
}

/// Microbatches the pattern runs through.
pub(super) fn microbatches_run_through(size: Size) -> u32 {
    size.microbatch_count.max(2 * size.stage_count - 1)
}

pub(super) fn stage_ops(size: Size, stage: u32) -> Vec<Op> {
    let mut hand =
        Hand { stage, size, forwards: [0; 2], backwards: [0; 2], weights: [0; 2], ops: Vec::new() };
    hand.warm_up();
    hand.steady();
    hand.cool_down();
    hand.ops
}

impl Hand {
    fn warm_up(&mut self) {
        let from_here = self.size.stage_count - self.stage;
        for _ in 0..2 * from_here - 1 {
            self.f(Leg::Down);
        }
        for _ in 0..self.stage {
            self.f(Leg::Up);
            self.f(Leg::Down);
        }
        for _ in 0..from_here {
            self.f(Leg::Up);
            self.b(Leg::Up);
            self.w(Leg::Up);
        }
    }

    fn steady(&mut self) {
        let all = microbatches_run_through(self.size);
        while self.forwards[Leg::Up as usize] < all {
            if self.forwards[Leg::Down as usize] < all {
                self.f(Leg::Down);
            }
            self.b(Leg::Down);
            self.w(Leg::Down);
            self.f(Leg::Up);
            self.b(Leg::Up);
            self.w(Leg::Up);
        }
    }

    fn cool_down(&mut self) {
        for _ in 0..self.stage {
            self.b(Leg::Down);
            self.b(Leg::Up);
        }
        for _ in self.stage..self.size.stage_count {
            self.b(Leg::Down);
            self.w(Leg::Down);
        }
        for leg in [Leg::Up, Leg::Down] {
            while self.weights[leg as usize] < self.backwards[leg as usize] {
                self.w(leg);
            }
        }
    }

    fn f(&mut self, leg: Leg) {
        let microbatch = count_up(&mut self.forwards[leg as usize]);
        self.push(Compute::F, leg, microbatch);
    }

    fn b(&mut self, leg: Leg) {
        let microbatch = count_up(&mut self.backwards[leg as usize]);
        self.push(Compute::B, leg, microbatch);
    }

    fn w(&mut self, leg: Leg) {
        let microbatch = count_up(&mut self.weights[leg as usize]);
        self.push(Compute::W, leg, microbatch);
    }

    fn push(&mut self, pass: Compute, leg: Leg, microbatch: u32) {
        let chunk = match leg {
            Leg::Down => self.stage,
            Leg::Up => 2 * self.size.stage_count - 1 - self.stage,
        };
        if microbatch < self.size.microbatch_count {
            self.ops.push(compute(pass, chunk, microbatch));
        }
    }
}

/// The count before, one more after.
fn count_up(count: &mut u32) -> u32 {
    *count += 1;
    *count - 1
}
