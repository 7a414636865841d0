//! What holds for every table: pipelines side by side, of which some stages were lost and others of
//! the same places go on.

use proptest::prelude::*;
use zbelastic_schedule::{
    ChunkMemory, Costs, Op, Program, SharedOrder, check, lower, on_table, peak_memory, side_by_side,
};
use zbelastic_types::StageIndex;

use super::{options, program};

const KEPT: ChunkMemory = ChunkMemory {
    after_forward: 1.0,
    after_drop: 0.3,
    after_input_gradient: 0.8,
    after_early_weights: 0.5,
};

/// A grid, and the same on a table, whose stages alternate in an order.
#[derive(Debug)]
struct Table {
    grid: Program,
    table: Program,
    order: SharedOrder,
}

/// Each stage is lost or not; one column of each place is left. Then some stages join.
fn table() -> impl Strategy<Value = Table> {
    let order = prop::sample::select(vec![SharedOrder::ByTime, SharedOrder::InTurn]);
    let columns = prop::sample::select(vec![2u32, 4]);
    let lost = prop::collection::vec(any::<bool>(), 24);
    let left = prop::collection::vec(0..4u32, 6);
    (program(), columns, lost, (left, 0..6u32), order, 0.0..3.0).prop_map(
        |(column, columns, lost, (left, joining), order, link)| {
            let grid = side_by_side(&vec![column; columns as usize]).expect("alike");
            let places = grid.placement.stages_per_column();
            let is_lost = |stage: &StageIndex| {
                let is_left = left[(stage.0 % places) as usize] % columns == stage.0 / places;
                lost[stage.index()] && !is_left
            };
            let stages = (0..grid.placement.stage_count()).map(StageIndex);
            let lost: Vec<StageIndex> = stages.filter(is_lost).collect();
            let (placement, _) =
                grid.placement.table().rerouted(&lost).expect("one is left at each place");
            let refilled = placement.table().refilled(joining);
            let placement = refilled.map_or(placement, |(placement, _)| placement);
            let costs = Costs::even(&placement, 1.0, 1.2, 0.9, link);
            let table = on_table(&grid, &placement, &costs, order).expect("it runs to its end");
            Table { grid, table, order }
        },
    )
}

/// The operations of a column at one of its places.
fn of_column(program: &Program, (column, place): (u32, u32)) -> Vec<Op> {
    let placement = &program.placement;
    let stage = placement.table().stage_at(column, place).expect("there is such a place");
    let is_it =
        |op: &&Op| op.chunk().map(|chunk| placement.table().column_of(chunk)) == Some(column);
    program.ops(stage).iter().filter(is_it).copied().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tables_are_legal_and_have_a_text(table in table(), options in options()) {
        let Table { table, .. } = table;
        prop_assert_eq!(check(&table), Ok(()));
        let lowered = lower(&table, options);
        prop_assert_eq!(check(&lowered), Ok(()));
        prop_assert_eq!(lowered.to_string().parse(), Ok(lowered.clone()));
    }

    /// Each column's passes are those of the grid, in their order: so gradients add up as there.
    #[test]
    fn columns_keep_their_order(table in table()) {
        let Table { grid, table, .. } = table;
        let places = grid.placement.stages_per_column();
        for cell in 0..grid.placement.column_count() * places {
            let at = (cell / places, cell % places);
            prop_assert_eq!(of_column(&grid, at), of_column(&table, at));
        }
        let count = |program: &Program| program.stages.iter().map(Vec::len).sum::<usize>();
        prop_assert_eq!(count(&grid), count(&table), "and there are no others");
    }

    #[test]
    fn columns_in_turn_keep_no_more_than_one(table in table()) {
        let Table { grid, table, order } = table;
        let chunks = vec![KEPT; grid.placement.chunk_count() as usize];
        let [alone, shared] = [&grid, &table].map(|program| peak_memory(program, &chunks));
        let most = alone.iter().copied().fold(0.0, f64::max);
        for (stage, peak) in (0..).map(StageIndex).zip(shared) {
            let columns = match order {
                SharedOrder::ByTime => table.placement.table().columns_of(stage).count(),
                SharedOrder::InTurn => 1,
            };
            prop_assert!(peak <= columns as f64 * most + 1e-9, "{peak} of {columns} times {most}");
        }
    }
}
