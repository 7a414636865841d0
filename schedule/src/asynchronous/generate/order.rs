//! The order of F and BW on every stage, without versions.

use std::collections::BTreeMap;

use zbelastic_types::{ChunkIndex, MicrobatchIndex};

use crate::asynchronous::kind::AsyncKind;
use crate::asynchronous::program::AsyncProgram;
use crate::op::{Compute, Flow, Op, Pass};
use crate::orders::one_f_one_b_run;

/// Forward passes that AvgPipe runs further ahead than 1F1B, so that a stage has passes to run
/// while results travel (Chen et al., PPoPP 2023: advance forward propagation).
const ADVANCE: u32 = 1;

/// The passes of every stage, in the order in which it runs them.
pub(super) fn orders(program: &AsyncProgram) -> Vec<Vec<Op>> {
    let total = u32::try_from(program.microbatches_total()).expect("the size was checked");
    let stages = 0..program.placement.stage_count();
    match program.kind {
        AsyncKind::PipeDream
        | AsyncKind::PipeDream2Bw
        | AsyncKind::PipeMare
        | AsyncKind::XPipe
        | AsyncKind::SpecTrain => stages.map(|stage| one_by_one(program, stage, total)).collect(),
        AsyncKind::WPipe => stages.map(|stage| folded(program, stage)).collect(),
        AsyncKind::AvgPipe => interleaved_replicas(program),
        AsyncKind::AmpNet => unreachable!("its order is found while it runs"),
    }
}

/// 1F1B without a flush, behind a warm-up with one after each minibatch.
fn one_by_one(program: &AsyncProgram, stage: u32, total: u32) -> Vec<Op> {
    let ahead = program.ahead_of(ChunkIndex(stage));
    let microbatches = program.microbatch_count;
    let flushed = program.variant.warm_up().min(program.minibatch_count);
    let begins = (0..flushed).map(|minibatch| minibatch * microbatches);
    let warm_up = begins.flat_map(|k| one_f_one_b_run(stage, k..k + microbatches, ahead));
    warm_up.chain(one_f_one_b_run(stage, flushed * microbatches..total, ahead)).collect()
}

/// WPipe: 1F1B without a flush, in which minibatch after minibatch goes forward through the rear
/// chunk and the next one through the front chunk, and backward through the rear and the front.
fn folded(program: &AsyncProgram, stage: u32) -> Vec<Op> {
    let front = stage;
    let rear = stage + program.placement.stage_count();
    let minibatches = program.minibatch_count;
    let microbatches = program.microbatch_count;
    let of = |minibatch: u32, compute, chunk| {
        let passes = minibatch * microbatches..(minibatch + 1) * microbatches;
        passes.map(move |k| Op::Compute(compute, Pass::new(chunk, k)))
    };
    let mut forward = (0..minibatches).flat_map(|minibatch| {
        let next = if minibatch + 1 < minibatches { minibatch + 1..minibatch + 2 } else { 0..0 };
        let next = next.flat_map(|next| of(next, Compute::F, front));
        of(minibatch, Compute::F, rear).chain(next)
    });
    let backward = (0..minibatches).flat_map(|minibatch| {
        of(minibatch, Compute::BW, rear).chain(of(minibatch, Compute::BW, front))
    });
    let mut ops: Vec<Op> = of(0, Compute::F, front).collect();
    ops.extend(forward.by_ref().take(program.ahead_of(ChunkIndex(front)) as usize));
    for op in backward {
        ops.extend(forward.next());
        ops.push(op);
    }
    ops
}

/// AvgPipe: each pipeline runs its minibatches in 1F1B with a flush, and a stage takes whichever
/// pipeline can go on first, if a backward pass takes twice as long as a forward one. So one works
/// while another fills or drains. Minibatches end in their order on every stage, because the
/// reference model meets them in that order.
fn interleaved_replicas(program: &AsyncProgram) -> Vec<Vec<Op>> {
    let stages = program.placement.stage_count();
    let mut interleaver = ReplicaInterleaver::new(program);
    for _ in 0..2 * program.pass_count() {
        let next = (0..stages)
            .flat_map(|stage| (0..program.replica_count).map(move |replica| (stage, replica)))
            .filter_map(|(stage, replica)| {
                let (op, start) = interleaver.next(stage, replica)?;
                Some((start, op.pass()?.microbatch, stage, replica))
            })
            .min();
        let (start, _, stage, replica) = next.expect("pipelines do not wait for each other");
        interleaver.run(stage, replica, start);
    }
    interleaver.orders
}

/// How far each stage has come with each pipeline, and when.
struct ReplicaInterleaver<'a> {
    program: &'a AsyncProgram,
    /// By stage and pipeline: the passes that it runs, and how many of them have run.
    lists: BTreeMap<(u32, u32), (Vec<Op>, usize)>,
    free_at: Vec<u64>,
    /// When a pass yielded its result.
    ends: BTreeMap<(Flow, Pass), u64>,
    /// Minibatches that have ended, by stage.
    ended: Vec<u32>,
    orders: Vec<Vec<Op>>,
}

impl<'a> ReplicaInterleaver<'a> {
    fn new(program: &'a AsyncProgram) -> Self {
        let stages = program.placement.stage_count();
        let microbatches = program.microbatch_count;
        let replicas = program.replica_count;
        let list = |stage: u32, replica: u32| -> Vec<Op> {
            let ahead = program.ahead_of(ChunkIndex(stage)) + ADVANCE;
            let minibatches = (replica..program.minibatch_count).step_by(replicas as usize);
            let begins = minibatches.map(|minibatch| minibatch * microbatches);
            begins.flat_map(|k| one_f_one_b_run(stage, k..k + microbatches, ahead)).collect()
        };
        let pairs = (0..stages).flat_map(|stage| (0..replicas).map(move |r| (stage, r)));
        Self {
            program,
            lists: pairs.map(|(stage, r)| ((stage, r), (list(stage, r), 0))).collect(),
            free_at: vec![0; stages as usize],
            ends: BTreeMap::new(),
            ended: vec![0; stages as usize],
            orders: vec![Vec::new(); stages as usize],
        }
    }

    /// The next pass of a pipeline on a stage and when it could begin, if that is known.
    fn next(&self, stage: u32, replica: u32) -> Option<(Op, u64)> {
        let (list, position) = &self.lists[&(stage, replica)];
        let op = *list.get(*position)?;
        let Op::Compute(compute, pass) = op else { unreachable!("an order is of passes") };
        let flow = flow_of(compute);
        if self.is_end(op)
            && self.program.minibatch_of(pass.microbatch) != self.ended[stage as usize]
        {
            return None;
        }
        let ready = match self.program.placement.chunk_before(pass.chunk, flow) {
            Some(chunk) => *self.ends.get(&(flow, Pass { chunk, ..pass }))?,
            None => 0,
        };
        Some((op, ready.max(self.free_at[stage as usize])))
    }

    fn run(&mut self, stage: u32, replica: u32, start: u64) {
        let (list, position) = self.lists.get_mut(&(stage, replica)).expect("every pair is there");
        let op = list[*position];
        *position += 1;
        let Op::Compute(compute, pass) = op else { unreachable!("an order is of passes") };
        let flow = flow_of(compute);
        let end = start + if flow == Flow::Forward { 1 } else { 2 };
        self.free_at[stage as usize] = end;
        self.ends.insert((flow, pass), end);
        self.ended[stage as usize] += u32::from(self.is_end(op));
        self.orders[stage as usize].push(op);
    }

    /// Whether it is the last pass of its minibatch on a stage.
    fn is_end(&self, op: Op) -> bool {
        let Op::Compute(Compute::BW, Pass { microbatch: MicrobatchIndex(k), .. }) = op else {
            return false;
        };
        (k + 1).is_multiple_of(self.program.microbatch_count)
    }
}

fn flow_of(compute: Compute) -> Flow {
    match compute {
        Compute::F => Flow::Forward,
        Compute::B | Compute::W | Compute::WE | Compute::BW | Compute::R => Flow::Backward,
    }
}
