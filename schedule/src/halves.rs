//! Columns cut in two, so that a lost stage's passes can be dealt to several others of its place.
//!
//! A column runs through as many lanes as any other, and its subtree of them has two halves. Cut in two it
//! is two columns on the same stages, each with half of the microbatches: the order of operations is
//! what it was, and so is every sum.

use zbelastic_types::{ChunkIndex, StageIndex};

use crate::columns::side_by_side;
use crate::limits::COLUMNS_MAX;
use crate::op::{Op, Pass};
use crate::placement::Placement;
use crate::program::Program;

/// The arithmetic of `program` with each of its columns as two, on the stages that it has, in the order that
/// it has. It is `None` if columns run in two directions, of which each half would have to run in one, if
/// there would be too many, or if one has an odd number of microbatches; and if the optimizer is sharded, because
/// the halves of a column, on one stage, would update two shards.
#[must_use]
pub fn halved(program: &Program) -> Option<Program> {
    let Program { placement, microbatch_count, .. } = program;
    let columns = placement.column_count();
    let own = microbatch_count / columns;
    let can_be = placement.direction_count() == 1
        && placement.shards().count() == 1
        && 2 * columns <= COLUMNS_MAX
        && microbatch_count.is_multiple_of(columns)
        && own.is_multiple_of(2);
    if !can_be {
        return None;
    }
    let places = placement.stages_per_column() as usize;
    let cells = placement.table().cells();
    let cells: Vec<StageIndex> = cells.chunks(places).flat_map(|column| column.repeat(2)).collect();
    let sizes = (placement.stage_count(), 2 * placement.chunk_count());
    let table = Placement::of_table(placement.shape(), 2 * columns, sizes, &cells).ok()?;
    let of_column = placement.chunk_count() / columns;
    let pass = |of: Pass| {
        let [column, at] = [of.chunk.0 / of_column, of.chunk.0 % of_column];
        let half = of.microbatch.0 % own / (own / 2);
        Pass { chunk: ChunkIndex((2 * column + half) * of_column + at), ..of }
    };
    Some(relabelled(program, table, pass))
}

/// The arithmetic of `program` with each two neighbouring columns as one, side by side on stages of their
/// own: what [`halved`] made two is one again. Each runs the order that most stages of its place run which
/// stand in no other column: one that joined has halves of several, in an order of their times. It is
/// `None` if two neighbours differ in a stage, or a place has no such stage.
#[must_use]
pub fn joined(program: &Program) -> Option<Program> {
    let program = &program.arithmetic();
    let Program { placement, microbatch_count, .. } = program;
    let columns = placement.column_count();
    let places = placement.stages_per_column();
    let cells = placement.table().cells();
    let are_alike = |pair: &[StageIndex]| {
        let (one, other) = pair.split_at(places as usize);
        one == other
    };
    let can_be = columns > 1
        && placement.direction_count() == 1
        && microbatch_count.is_multiple_of(columns)
        && cells.chunks(2 * places as usize).all(are_alike);
    if !can_be {
        return None;
    }
    let stages: Option<Vec<Vec<Op>>> = (0..places).map(|place| order_at(program, place)).collect();
    let column = Program {
        placement: placement.column(),
        microbatch_count: 2 * (microbatch_count / columns),
        stages: stages?,
        window: None,
        ..*program
    };
    side_by_side(&vec![column; columns as usize / 2]).ok()
}

/// The order of a whole column at a place, as most pairs of halves there run it.
fn order_at(program: &Program, place: u32) -> Option<Vec<Op>> {
    let pairs = 0..program.placement.column_count() / 2;
    let orders: Vec<Vec<Op>> =
        pairs.filter_map(|pair| order_of_pair(program, (pair, place))).collect();
    let alike = |order: &&Vec<Op>| orders.iter().filter(|other| other == order).count();
    orders.iter().max_by_key(alike).cloned()
}

/// The list of the stage of two neighbouring columns, as one column's, if it stands in no other: else the
/// passes of several are in one list.
fn order_of_pair(program: &Program, (pair, place): (u32, u32)) -> Option<Vec<Op>> {
    let Program { placement, microbatch_count, .. } = program;
    let stage = placement.table().stage_at(2 * pair, place)?;
    if placement.table().columns_of(stage).count() != 2 {
        return None;
    }
    let of_column = placement.chunk_count() / placement.column_count();
    let first = 2 * pair * (microbatch_count / placement.column_count());
    let pass = |mut of: Pass| {
        of.chunk.0 %= of_column;
        of.microbatch.0 -= first;
        of
    };
    let ops: Vec<Op> = program.ops(stage).iter().map(|op| with_pass(*op, pass)).collect();
    adds_in_order(&ops).then_some(ops)
}

/// Whether each chunk's gradient is added up in the order of the microbatches.
fn adds_in_order(ops: &[Op]) -> bool {
    let added = |op: &Op| match op {
        Op::Compute(compute, pass) => compute.accumulates().then_some(*pass),
        Op::Memory(..) | Op::Transfer(..) | Op::Reduce(..) | Op::Update(_) => None,
    };
    let added: Vec<Pass> = ops.iter().filter_map(added).collect();
    let follows = |(at, pass): (usize, &Pass)| {
        added[..at].iter().all(|of| of.chunk != pass.chunk || of.microbatch <= pass.microbatch)
    };
    added.iter().enumerate().all(follows)
}

fn relabelled(program: &Program, placement: Placement, pass: impl Fn(Pass) -> Pass) -> Program {
    let program = program.arithmetic();
    let of_stage = |ops: Vec<Op>| ops.into_iter().map(|op| with_pass(op, &pass)).collect();
    let stages = program.stages.into_iter().map(of_stage).collect();
    Program { placement, stages, ..program }
}

/// The operation for another pass. One that is none of arithmetic stays as it is.
fn with_pass(op: Op, pass: impl Fn(Pass) -> Pass) -> Op {
    match op {
        Op::Compute(compute, of) => Op::Compute(compute, pass(of)),
        Op::Memory(memory, of) => Op::Memory(memory, pass(of)),
        Op::Transfer(..) | Op::Reduce(..) | Op::Update(_) => op,
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::StageIndex;

    use super::{halved, joined};
    use crate::check::check;
    use crate::columns::side_by_side;
    use crate::cost::Costs;
    use crate::generate::generate;
    use crate::kind::ScheduleKind;
    use crate::lower::{LowerOptions, lower};
    use crate::program::{Program, Window};
    use crate::shared::{SharedOrder, on_table};
    use crate::simulate::simulate;

    fn replicated(kind: ScheduleKind, size: (u32, u32), columns: usize) -> Option<Program> {
        let column = generate(kind, size.0, size.1).ok()?;
        Some(side_by_side(&vec![column; columns]).expect("alike, and a power of two"))
    }

    fn lowered(program: &Program) -> Program {
        lower(program, LowerOptions { window: Window::One, early_head_weights: true })
    }

    fn rerouted(program: &Program, lost: &[u32]) -> Program {
        let lost: Vec<StageIndex> = lost.iter().copied().map(StageIndex).collect();
        let (table, _) = program.placement.table().rerouted(&lost).expect("others are left");
        let costs = Costs::even(&table, 1.0, 1.0, 1.0, 0.1);
        on_table(program, &table, &costs, SharedOrder::ByTime).expect("it runs to its end")
    }

    fn refilled(program: &Program, count: u32) -> Program {
        let (table, _) = program.placement.table().refilled(count).expect("a place is shared");
        let costs = Costs::even(&table, 1.0, 1.0, 1.0, 0.1);
        on_table(program, &table, &costs, SharedOrder::ByTime).expect("it runs to its end")
    }

    #[test]
    fn halves_keep_the_order_of_the_whole() {
        let whole = replicated(ScheduleKind::ZbH1, (2, 2), 2).expect("legal");
        let halves = halved(&whole).expect("two microbatches each");
        assert_eq!(halves.placement.table().cells(), [0, 1, 0, 1, 2, 3, 2, 3].map(StageIndex));
        let ops: Vec<String> = halves.ops(StageIndex(2)).iter().map(ToString::to_string).collect();
        assert_eq!(ops, ["4F2", "6F3", "4B2", "4W2", "6B3", "6W3"]);
        assert_eq!(joined(&halves), Some(whole));
    }

    #[test]
    fn every_schedule_in_one_direction_is_halved_and_joined() {
        let mut count = 0;
        for kind in ScheduleKind::ALL {
            for (stages, microbatches, columns) in [(1, 4, 2), (2, 4, 4), (3, 8, 2), (4, 8, 1)] {
                let Some(whole) = replicated(kind, (stages, microbatches), columns) else {
                    continue;
                };
                let Some(halves) = halved(&whole) else {
                    assert_eq!(whole.placement.direction_count(), 2, "{kind}");
                    continue;
                };
                count += 1;
                assert_eq!(check(&lowered(&halves)), Ok(()), "{kind} {stages} x {columns}");
                assert_eq!(joined(&halves), Some(whole), "{kind} {stages} x {columns}");
            }
        }
        assert!(count > 30, "{count}");
    }

    #[test]
    fn what_cannot_be_halved_is_not() {
        let odd = replicated(ScheduleKind::OneFOneB, (2, 3), 2).expect("legal");
        assert_eq!(halved(&odd), None, "three microbatches each");
        let most = replicated(ScheduleKind::OneFOneB, (1, 2), 64).expect("legal");
        assert_eq!(halved(&most), None, "128 columns");
        let whole = replicated(ScheduleKind::OneFOneB, (2, 2), 2).expect("legal");
        assert_eq!(joined(&whole), None, "each column has stages of its own");
        let shared = halved(&rerouted(&whole, &[2])).expect("two microbatches each");
        assert_eq!(joined(&shared), None, "no stage has the order of one column alone");
    }

    /// Of four pipelines one loses a stage: its halves go to two others, and a step is shorter than where
    /// one of them runs both. Who joins gets the halves from both, and the pipelines are whole again.
    #[test]
    fn halves_of_a_lost_stage_go_to_two_others() {
        let whole = replicated(ScheduleKind::ZbH1, (2, 8), 4).expect("legal");
        let halves = halved(&whole).expect("eight microbatches each");
        let [at_one, at_two] = [&whole, &halves].map(|program| rerouted(program, &[4]));
        let columns = |stage| at_two.placement.table().columns_of(StageIndex(stage)).count();
        assert_eq!((0..7).map(columns).collect::<Vec<_>>(), [3, 2, 2, 2, 3, 2, 2]);
        let time = |program: &Program| {
            let costs = Costs::even(&program.placement, 1.0, 1.0, 1.0, 0.1);
            simulate(program, &costs, 1).expect("it runs").makespan(0)
        };
        assert!(time(&at_two) < 0.8 * time(&at_one), "{} {}", time(&at_two), time(&at_one));
        assert_eq!(check(&lowered(&at_two)), Ok(()));
        assert_eq!(joined(&at_two), None, "two columns differ");
        for lost in 0..8 {
            let table = rerouted(&halves, &[lost]);
            assert_eq!(joined(&refilled(&table, 1)).as_ref(), Some(&whole), "stage {lost}");
        }
    }
}
