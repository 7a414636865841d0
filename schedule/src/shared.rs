//! Programs of tables: the passes of a stage that stands in several columns, in one order.
//!
//! Each column's passes keep their order, so the gradient of each chunk adds up as before; only how
//! the columns of a stage alternate is decided here. All stages are run against each other with
//! times, and at each moment the pass that can start first does. What comes out was run, so it does
//! not deadlock. The idea of giving a lost stage's passes to those that hold the same weights is
//! that of ReCycle (Gandhi et al., SOSP 2024, section 3), in which they fill bubbles.

use crate::cost::Costs;
use crate::op::{Compute, Op};
use crate::placement::Placement;
use crate::program::Program;
use crate::simulate::{SimulateError, SimulationClock};
use crate::wakeup_queue::WakeupQueue;
use crate::walk::{Deadlock, DeadlockedStage, Walk};
use zbelastic_types::StageIndex;

/// How the columns of a stage alternate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedOrder {
    /// The pass that can start first runs first: activations of all columns are kept at once.
    ByTime,
    /// One column after the other: no more activations are kept at once than of one column.
    InTurn,
}

/// The arithmetic of `program` on `table`, whose stages run the passes of each column that they stand
/// in as these are ordered in `program`, and those of columns that stand on one stage there as ordered
/// there. Without transfers and updates: [`crate::lower`] adds them.
///
/// # Errors
/// If the costs do not fit the table, or the program does not reach its end.
///
/// # Panics
/// If the table has not as many columns, places and chunks, in the same shape.
pub fn on_table(
    program: &Program,
    table: &Placement,
    costs: &Costs,
    order: SharedOrder,
) -> Result<Program, SimulateError> {
    let size = |of: &Placement| (of.shape(), of.column_count(), of.column());
    assert_eq!(size(&program.placement), size(table), "a table of the same columns");
    costs.check(table, program.slice_count)?;
    let program = program.arithmetic();
    let lists = lists_by_column(&program, table);
    let stages = vec![Vec::new(); lists.len()];
    let empty = Program { placement: table.clone(), stages, ..program };
    let mut merge = Merge {
        clock: SimulationClock::new(&empty, (costs, &|_, _| None), 1),
        walk: Walk::new(&empty, 1),
        wakeups: WakeupQueue::new(lists.len()),
        orders: vec![Vec::new(); lists.len()],
        lists,
        order,
    };
    merge.run()?;
    let stages = merge.orders;
    Ok(Program { stages, ..empty })
}

/// By stage of the table: the operations of the columns that it stands in, in a list for each stage that
/// had some.
fn lists_by_column(program: &Program, table: &Placement) -> Vec<Vec<ColumnList>> {
    let before = &program.placement;
    let of_columns = |(stage, columns): (StageIndex, Vec<u32>)| {
        let column_of = |chunk| before.table().column_of(chunk);
        let is_of_them =
            |op: &&Op| op.chunk().is_some_and(|chunk| columns.contains(&column_of(chunk)));
        ColumnList { ops: program.ops(stage).iter().filter(is_of_them).copied().collect(), at: 0 }
    };
    let of_stage = |stage| {
        let place = table.table().place_of(stage).0;
        let mut lists: Vec<(StageIndex, Vec<u32>)> = Vec::new();
        for column in table.table().columns_of(stage) {
            let from =
                before.table().stage_at(column, place).expect("the tables have the same places");
            match lists.iter_mut().find(|(stage, _)| *stage == from) {
                Some((_, columns)) => columns.push(column),
                None => lists.push((from, vec![column])),
            }
        }
        lists.into_iter().map(of_columns).collect()
    };
    (0..table.stage_count()).map(StageIndex).map(of_stage).collect()
}

/// The operations of one column on a stage, or of several that keep their order, in order.
struct ColumnList {
    ops: Vec<Op>,
    /// How many have run.
    at: usize,
}

/// An operation that can run next on its stage.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Candidate {
    start: f64,
    /// Others wait for the result of a pass, nobody for that of W.
    is_weights: bool,
    /// How many of its column have run: of two the column that is behind goes first.
    at: usize,
    list: usize,
}

struct Merge<'a> {
    clock: SimulationClock<'a>,
    walk: Walk<'a>,
    /// By stage, then by its columns.
    lists: Vec<Vec<ColumnList>>,
    /// When each stage can go on, if it can.
    wakeups: WakeupQueue,
    orders: Vec<Vec<Op>>,
    order: SharedOrder,
}

impl Merge<'_> {
    fn run(&mut self) -> Result<(), Deadlock> {
        loop {
            // At first that is every stage. One that is woken again has nothing that starts later.
            while let Some(stage) = self.walk.awake.pop() {
                if let Some(Candidate { start, .. }) = self.candidate(stage) {
                    self.wakeups.schedule(stage.index(), start);
                }
            }
            let Some((_, index)) = self.wakeups.pop() else { break };
            let stage = StageIndex(index as u32);
            let Candidate { list, .. } = self.candidate(stage).expect("it was found to be ready");
            let list = &mut self.lists[stage.index()][list];
            let op = list.ops[list.at];
            list.at += 1;
            self.walk.complete(stage, 0, op);
            self.walk.awake.push(stage);
            self.clock.run(stage, 0, op);
            self.orders[stage.index()].push(op);
        }
        self.outcome()
    }

    /// The operation of a stage that runs next, if one can.
    fn candidate(&self, stage: StageIndex) -> Option<Candidate> {
        let open = self.lists[stage.index()].iter().enumerate();
        let mut open = open.filter(|(_, list)| list.at < list.ops.len());
        let first = open.next();
        let others = match self.order {
            SharedOrder::ByTime => usize::MAX,
            SharedOrder::InTurn => 0,
        };
        let ready = first.into_iter().chain(open.take(others)).filter_map(|(index, list)| {
            let op = list.ops[list.at];
            let is_weights = matches!(op, Op::Compute(Compute::W | Compute::WE, _));
            let start = || self.clock.start(stage, 0, op);
            let is_ready = self.walk.is_ready(stage, 0, op);
            is_ready.then(|| Candidate { start: start(), is_weights, at: list.at, list: index })
        });
        ready.min_by(|a, b| a.partial_cmp(b).expect("times are numbers"))
    }

    fn outcome(&self) -> Result<(), Deadlock> {
        let place = |(stage, lists): (u32, &Vec<ColumnList>)| {
            let op = lists.iter().find_map(|list| list.ops.get(list.at)).copied();
            DeadlockedStage { stage: StageIndex(stage), step: 0, op }
        };
        let places: Vec<DeadlockedStage> = (0..).zip(&self.lists).map(place).collect();
        let is_over = places.iter().all(|place| place.op.is_none());
        if is_over { Ok(()) } else { Err(Deadlock { places }) }
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::StageIndex;

    use super::{SharedOrder, on_table};
    use crate::check::{ScheduleViolation, check};
    use crate::columns::side_by_side;
    use crate::cost::Costs;
    use crate::generate::{generate, generate_sized};
    use crate::kind::{OffloadChunks, ScheduleKind};
    use crate::lower::{LowerOptions, lower};
    use crate::memory::{ChunkMemory, peak_memory};
    use crate::offload::{OffloadRequest, offload};
    use crate::op::Op;
    use crate::orders::PipelineSize;
    use crate::program::{Program, Window};
    use crate::recompute::recompute;
    use crate::simulate::simulate;
    use crate::ties::tie_ends;

    const ORDERS: [SharedOrder; 2] = [SharedOrder::ByTime, SharedOrder::InTurn];

    const KEPT: ChunkMemory = ChunkMemory {
        after_forward: 1.0,
        after_drop: 0.0,
        after_input_gradient: 1.0,
        after_early_weights: 1.0,
    };

    fn replicated(
        kind: ScheduleKind,
        (stages, microbatches): (u32, u32),
        columns: usize,
    ) -> Program {
        let column = generate(kind, stages, microbatches).expect("the size is legal");
        side_by_side(&vec![column; columns]).expect("alike, and a power of two")
    }

    fn rerouted(program: &Program, lost: &[u32], order: SharedOrder) -> Program {
        let lost: Vec<StageIndex> = lost.iter().copied().map(StageIndex).collect();
        let (table, _) = program.placement.table().rerouted(&lost).expect("others are left");
        let costs = Costs::even(&table, 1.0, 1.0, 1.0, 0.1);
        on_table(program, &table, &costs, order).expect("it runs to its end")
    }

    #[test]
    fn passes_of_a_lost_stage_fill_the_bubbles_of_another() {
        let grid = replicated(ScheduleKind::ZbH1, (2, 2), 2);
        let options = LowerOptions { window: Window::Zero, early_head_weights: false };
        let program = rerouted(&grid, &[3], SharedOrder::ByTime);
        let expected = "program zb-h1 line replicas 2 table 0,1/2,1 stages 3 chunks 4 \
            microbatches 4 window 0\n\
            stage 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0W0 0RECV_B1 0B1 0W1 0SEND_G \
            0RECV_G 0REDUCE REPORT GATE_THIS STEP COMMIT\n\
            stage 1: 1RECV_F0 1F0 3RECV_F2 3F2 1B0 1SEND_B0 3B2 3SEND_B2 1RECV_F1 1F1 \
            3RECV_F3 3F3 1B1 1SEND_B1 3B3 3SEND_B3 1W0 3W2 1W1 1LOCAL_G 3W3 3LOCAL_G \
            1REDUCE 3REDUCE REPORT GATE_THIS STEP COMMIT\n\
            stage 2: 2F2 2SEND_F2 2F3 2SEND_F3 2RECV_B2 2B2 2W2 2RECV_B3 2B3 2W3 2SEND_G \
            2RECV_G 2REDUCE REPORT GATE_THIS STEP COMMIT\n";
        assert_eq!(lower(&program, options).to_string(), expected);
    }

    /// Every schedule, one stage lost and two at different places, and the same again from the table.
    #[test]
    fn every_schedule_is_legal_on_every_table() {
        let mut tables = 0;
        for kind in ScheduleKind::ALL {
            for (stages, microbatches, columns) in [(1, 4, 2), (2, 4, 2), (3, 6, 4), (4, 8, 2)] {
                let Ok(column) = generate(kind, stages, microbatches) else { continue };
                let grid = side_by_side(&vec![column; columns]).expect("alike");
                for order in ORDERS {
                    let one = rerouted(&grid, &[0], order);
                    let last = one.placement.stage_count() - 1;
                    let two = (stages > 1).then(|| rerouted(&one, &[last], order));
                    for program in [Some(one), two].into_iter().flatten() {
                        tables += 1;
                        for window in [Window::Zero, Window::One] {
                            let options = LowerOptions { window, early_head_weights: true };
                            let lowered = lower(&program, options);
                            for lowered in [tie_ends(&lowered), lowered] {
                                let size = format!("{kind} {stages} x {columns}, {order:?}");
                                assert_eq!(check(&lowered), Ok(()), "{size}");
                                assert_eq!(lowered.to_string().parse(), Ok(lowered.clone()));
                            }
                        }
                    }
                }
            }
        }
        assert!(tables > 200, "{tables}");
    }

    /// Passes that are recomputed or offloaded are so on a table as well.
    #[test]
    fn operations_on_memory_follow_their_passes() {
        for kind in ScheduleKind::ALL {
            let Ok(column) = generate(kind, 2, 8) else { continue };
            let grid = side_by_side(&[column.clone(), column]).expect("alike");
            let costs = Costs::even(&grid.placement, 1.0, 1.0, 1.0, 0.1);
            let chunks = vec![KEPT; grid.placement.chunk_count() as usize];
            let request = OffloadRequest {
                costs: &costs,
                memory: &chunks,
                chunks: OffloadChunks::First(1),
                limits: None,
            };
            let offloaded = offload(&grid, request).expect("it runs to its end");
            for program in [recompute(&grid), offloaded] {
                let count = |program: &Program| {
                    let is_memory = |op: &&Op| matches!(op, Op::Memory(..));
                    program.stages.iter().flatten().filter(is_memory).count()
                };
                for order in ORDERS {
                    let table = rerouted(&program, &[3], order);
                    let options = LowerOptions { window: Window::One, early_head_weights: true };
                    assert_eq!(check(&lower(&table, options)), Ok(()), "{kind}, {order:?}");
                    assert_eq!(count(&table), count(&program), "{kind}, {order:?}");
                }
            }
        }
    }

    /// A table that is a grid again has the grid's orders.
    #[test]
    fn columns_come_apart_as_they_were() {
        let grid = replicated(ScheduleKind::ZbV, (2, 4), 2);
        let table = rerouted(&grid, &[1], SharedOrder::ByTime);
        let costs = Costs::even(&grid.placement, 1.0, 1.0, 1.0, 0.0);
        let back = on_table(&table, &grid.placement, &costs, SharedOrder::ByTime);
        assert_eq!(back, Ok(grid));
    }

    #[test]
    fn in_turn_keeps_no_more_than_one_column() {
        let size = PipelineSize::of(ScheduleKind::OneFOneB, 3, 6);
        let column = generate_sized(ScheduleKind::OneFOneB, size).expect("legal");
        let grid = side_by_side(&[column.clone(), column]).expect("alike");
        let peak = |program: &Program| peak_memory(program, &[KEPT; 6])[0];
        let [by_time, in_turn] = ORDERS.map(|order| rerouted(&grid, &[3], order));
        assert_eq!((peak(&grid), peak(&in_turn)), (3.0, 3.0));
        assert!(peak(&by_time) > 3.0);
        let time = |program: &Program| {
            let costs = Costs::even(&program.placement, 1.0, 1.0, 1.0, 0.1);
            simulate(program, &costs, 1).expect("it runs").makespan(0)
        };
        assert!(time(&by_time) < time(&in_turn));
        // All passes of both columns, and no more than what a bubble costs at the ends.
        assert!(time(&by_time) < 36.0 + 9.0, "{}", time(&by_time));
    }

    /// A pass that a table leaves out, or has twice, is found.
    #[test]
    fn passes_of_a_lost_stage_are_run_once() {
        let grid = replicated(ScheduleKind::ZbH1, (2, 2), 2);
        let mut table = rerouted(&grid, &[3], SharedOrder::ByTime);
        let whole = table.stages[1].clone();
        table.stages[1].retain(|op| op.to_string() != "3W3");
        let missing = check(&table).expect_err("a pass is missing");
        assert!(missing.iter().all(|v| matches!(v, ScheduleViolation::BackwardCount { .. })));
        table.stages[1] = whole;
        table.stages[1].push("3W3".parse().expect("an operation"));
        assert!(check(&table).is_err(), "a pass is there twice");
    }
}
