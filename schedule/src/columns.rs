//! Replicas of a pipeline, side by side.

use zbelastic_types::{ChunkIndex, MicrobatchIndex};

use crate::op::{Op, Pass};
use crate::placement::{Placement, PlacementError};
use crate::program::Program;

/// Why programs do not stand side by side.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColumnsError {
    /// So many pipelines of this shape are no placement.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// A column of another schedule, shape or size than the first.
    #[error("replica {column} has another schedule, shape or size than the first one")]
    Differs {
        /// The column, counted from 0.
        column: u32,
    },
    /// There is no column.
    #[error("no replica at all")]
    None,
}

/// One program of the programs of single pipelines, its columns: column `c` stands on stages of its
/// own, and runs the `c`-th run of the step's microbatches, so many as its program has. The order of
/// operations may differ from column to column. Without transfers and updates: [`crate::lower`] adds
/// them, and with them the exchange of gradients.
///
/// # Errors
/// If the columns are no power of two, or not all of one schedule, shape and size.
pub fn side_by_side(columns: &[Program]) -> Result<Program, ColumnsError> {
    let first = columns.first().ok_or(ColumnsError::None)?;
    let count = columns.len() as u32;
    let own = &first.placement;
    let is_like_first = |column: &Program| {
        let Program { kind, placement, microbatch_count, slice_count, .. } = column;
        (*kind, placement, *microbatch_count, *slice_count)
            == (first.kind, own, first.microbatch_count, first.slice_count)
    };
    if let Some(column) = columns.iter().position(|column| !is_like_first(column)) {
        return Err(ColumnsError::Differs { column: column as u32 });
    }
    let [stages, chunks] = [own.stage_count(), own.chunk_count()];
    let placement = Placement::of_columns(own.shape(), count, count * stages, count * chunks)?;
    let shift = |(index, column): (u32, &Program)| {
        let pass = move |pass: Pass| Pass {
            chunk: ChunkIndex(pass.chunk.0 + index * chunks),
            microbatch: MicrobatchIndex(pass.microbatch.0 + index * first.microbatch_count),
            ..pass
        };
        let op = move |op: Op| match op {
            Op::Compute(compute, of) => Op::Compute(compute, pass(of)),
            Op::Memory(memory, of) => Op::Memory(memory, pass(of)),
            Op::Transfer(transfer, flow, of) => Op::Transfer(transfer, flow, pass(of)),
            Op::Reduce(reduction, of) => Op::Reduce(reduction, ChunkIndex(of.0 + index * chunks)),
            Op::Update(_) => op,
        };
        let arithmetic = column.arithmetic().stages;
        arithmetic.into_iter().map(move |ops| ops.into_iter().map(op).collect())
    };
    Ok(Program {
        kind: first.kind,
        placement,
        microbatch_count: count * first.microbatch_count,
        slice_count: first.slice_count,
        window: None,
        stages: (0..).zip(columns).flat_map(shift).collect(),
    })
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{ChunkIndex, StageIndex};

    use super::{ColumnsError, side_by_side};
    use crate::check::check;
    use crate::cost::Costs;
    use crate::generate::generate;
    use crate::halves::halved;
    use crate::kind::ScheduleKind;
    use crate::lower::{LowerOptions, lower};
    use crate::op::Op;
    use crate::placement::Placement;
    use crate::program::{Program, Window};
    use crate::reduction::{Reduction, TreeExchange, TreeSide};
    use crate::shared::{SharedOrder, on_table};
    use crate::ties::tie_ends;

    fn replicated(kind: ScheduleKind, size: (u32, u32), columns: usize) -> Program {
        let column = generate(kind, size.0, size.1).expect("the size is legal");
        side_by_side(&vec![column; columns]).expect("alike, and a power of two")
    }

    #[test]
    fn two_lines_exchange_their_gradients() {
        let program = replicated(ScheduleKind::ZbH1, (2, 1), 2);
        let options = LowerOptions { window: Window::Zero, early_head_weights: false };
        let expected = "program zb-h1 line replicas 2 stages 4 chunks 4 microbatches 2 window 0\n\
            stage 0: 0F0 0SEND_F0 0RECV_B0 0B0 0W0 0SEND_G 0RECV_G 0REDUCE \
            REPORT GATE_THIS STEP COMMIT\n\
            stage 1: 1RECV_F0 1F0 1B0 1SEND_B0 1W0 1SEND_G 1RECV_G 1REDUCE \
            REPORT GATE_THIS STEP COMMIT\n\
            stage 2: 2F1 2SEND_F1 2RECV_B1 2B1 2W1 2SEND_G 2RECV_G 2REDUCE \
            REPORT GATE_THIS STEP COMMIT\n\
            stage 3: 3RECV_F1 3F1 3B1 3SEND_B1 3W1 3SEND_G 3RECV_G 3REDUCE \
            REPORT GATE_THIS STEP COMMIT\n";
        assert_eq!(lower(&program, options).to_string(), expected);
    }

    /// Two directions of two columns: each direction adds half of the floats on the spot, the columns
    /// exchange these halves, and the directions hand each other theirs.
    #[test]
    fn levels_follow_each_other_up_the_tree() {
        let program = replicated(ScheduleKind::Gems, (1, 2), 2);
        let options = LowerOptions { window: Window::Zero, early_head_weights: false };
        let lowered = lower(&program, options).to_string();
        let expected = "stage 0: 0F0 0BW0 0LOCAL_G 1F1 1BW1 1LOCAL_G 0REDUCE 0SEND_G.1 \
            1REDUCE 1SEND_G.1 0RECV_G.1 0REDUCE.1 0LOCAL_S 1RECV_G.1 1REDUCE.1 1LOCAL_S \
            0GATHER 1GATHER REPORT GATE_THIS STEP COMMIT";
        assert_eq!(lowered.lines().nth(1), Some(expected));
    }

    /// What a stage sends of a gradient of `LEN` floats in a step.
    fn floats_sent(program: &Program, stage: StageIndex) -> usize {
        let placement = &program.placement;
        let sent = |op: &Op| match op {
            Op::Reduce(Reduction::Send(exchange), chunk) => {
                let sibling = placement.sibling_at(*chunk, exchange.level());
                let shards = placement.shards().count() as usize;
                let sibling = sibling.expect("it sends to one");
                exchange.merged_floats(placement, sibling, &vec![LEN / shards; shards]).len()
            }
            Op::Compute(..)
            | Op::Transfer(..)
            | Op::Update(_)
            | Op::Reduce(..)
            | Op::Memory(..) => 0,
        };
        program.ops(stage).iter().map(sent).sum()
    }

    const LEN: usize = 1 << 16;

    /// A worker of D replicas has to send 2(D-1)/D of a gradient: D-1 parts of 1/D to be added elsewhere,
    /// and the sum of its own part to D-1 others.
    #[test]
    fn no_more_floats_are_sent_than_have_to_be() {
        let options = LowerOptions { window: Window::One, early_head_weights: true };
        for columns in [2, 4, 8, 64] {
            let program = lower(&replicated(ScheduleKind::ZbH1, (2, 2), columns), options);
            let floor = 2 * (columns - 1) * LEN / columns;
            for stage in (0..2 * columns as u32).map(StageIndex) {
                assert_eq!(floats_sent(&program, stage), floor, "{columns} x 2, stage {stage}");
            }
        }
        // Candidates in the place of sums are as many floats.
        for (columns, shards) in [(2, 2), (8, 2), (8, 4), (8, 8)] {
            let program = sharded(&replicated(ScheduleKind::ZbH1, (2, 2), columns), shards);
            let floor = 2 * (columns - 1) * LEN / columns;
            assert_eq!(floats_sent(&lower(&program, options), StageIndex(0)), floor);
        }
        // Both directions of each column have sums of their own of their halves.
        let program = lower(&replicated(ScheduleKind::Gems, (1, 2), 4), options);
        assert_eq!(floats_sent(&program, StageIndex(0)), 2 * 3 * LEN / 4, "as with one direction");
    }

    /// Who takes over for the other one that updates its shard sends what both did, less what they sent each
    /// other, and everybody else what they sent before.
    #[test]
    fn who_takes_a_shard_over_sends_no_more_than_both_did() {
        for (columns, shards) in [(4, 2), (8, 4)] {
            let program = sharded(&replicated(ScheduleKind::ZbH1, (2, 2), columns), shards);
            let floor = 2 * (columns - 1) * LEN / columns;
            for lost in (0..2 * columns as u32).map(StageIndex) {
                let (table, _) =
                    program.placement.table().rerouted(&[lost]).expect("a twin is left");
                let costs = Costs::even(&table, 1.0, 1.0, 1.0, 0.1);
                let shared = on_table(&program, &table, &costs, SharedOrder::ByTime);
                let shared = shared.expect("it runs to its end");
                for stage in (0..table.stage_count()).map(StageIndex) {
                    let options = LowerOptions { window: Window::One, early_head_weights: true };
                    let is_shared = table.table().columns_of(stage).count() == 2;
                    let both = 2 * (floor - LEN / shards);
                    let expected = if is_shared { both } else { floor };
                    let found = floats_sent(&lower(&shared, options), stage);
                    assert_eq!(found, expected, "{shards} of {columns}, {lost} lost, {stage}");
                }
            }
        }
    }

    /// Every schedule, in shards, without one stage and without two of different shards.
    #[test]
    fn every_schedule_is_legal_on_every_sharded_table() {
        let mut tables = 0;
        for kind in ScheduleKind::ALL {
            for (stages, microbatches) in [(1, 2), (2, 4), (3, 6)] {
                let Ok(column) = generate(kind, stages, microbatches) else { continue };
                let grid = side_by_side(&vec![column; 4]).expect("alike");
                if grid.placement.direction_count() > 1 {
                    continue;
                }
                let grid = sharded(&grid, 2);
                assert_eq!(halved(&grid), None, "halves would be of two shards");
                for lost in [&[StageIndex(0)][..], &[StageIndex(stages), StageIndex(2 * stages)]] {
                    let (table, _) = grid.placement.table().rerouted(lost).expect("twins are left");
                    let costs = Costs::even(&table, 1.0, 1.0, 1.0, 0.1);
                    let shared = on_table(&grid, &table, &costs, SharedOrder::ByTime);
                    let shared = shared.expect("it runs to its end");
                    for window in [Window::Zero, Window::One] {
                        let options = LowerOptions { window, early_head_weights: true };
                        let lowered = lower(&shared, options);
                        assert_eq!(check(&lowered), Ok(()), "{kind} {stages}, {lost:?}");
                        assert_eq!(lowered.to_string().parse(), Ok(lowered.clone()));
                        tables += 1;
                    }
                }
            }
        }
        assert!(tables > 40, "{tables}");
    }

    fn sharded(program: &Program, shards: usize) -> Program {
        let layers = vec![vec![1; shards]; program.placement.chunks_per_replica() as usize];
        let placement = program.placement.clone().sharded(layers).expect("as many columns");
        Program { placement, ..program.clone() }
    }

    /// Behind the last sum each replica computes the candidates of its shard, of sums of all, and every
    /// replica ends with all of them.
    #[test]
    fn each_candidate_is_computed_from_the_sum_of_all_and_gathered_by_all() {
        let few: [&[usize]; 2] = [&[2, 3], &[1, 0]];
        let many: [&[usize]; 2] = [&[3, 0, 1, 4], &[1, 1, 1, 1]];
        let all: [&[usize]; 1] = [&[2, 1, 0, 3, 1, 1, 7, 2]];
        for columns in [2, 4, 8, 16] {
            for shards in few.into_iter().chain(many).chain(all) {
                let program = replicated(ScheduleKind::OneFOneB, (1, 1), columns);
                if shards.len() <= columns {
                    let placement = sharded(&program, shards.len()).placement;
                    all_end_with_the_tree(&placement, shards);
                }
            }
        }
    }

    /// Every float is added at each level by one replica of a subtree, and each replica ends with all of
    /// them added as the tree has it, whatever the length.
    #[test]
    fn each_replica_ends_with_the_tree_of_all() {
        for (columns, len) in [(2, 5), (4, 1), (4, 7), (8, 3), (8, 64), (16, 37)] {
            let placement = replicated(ScheduleKind::OneFOneB, (1, 1), columns).placement;
            all_end_with_the_tree(&placement, &[len]);
        }
    }

    fn all_end_with_the_tree(placement: &Placement, shards: &[usize]) {
        let (columns, len) = (placement.column_count() as usize, shards.iter().sum());
        let own = |chunk: ChunkIndex| {
            let first = shards[..placement.shards().of_replica(chunk) as usize].iter().sum();
            first..first + shards[placement.shards().of_replica(chunk) as usize]
        };
        // By replica and float: which replicas were added, in brackets.
        let leaf = |replica: usize| vec![replica.to_string(); len];
        let mut sums: Vec<Vec<String>> = (0..columns).map(leaf).collect();
        let mut are_candidates = false;
        for exchange in TreeExchange::all_of(placement) {
            if exchange.is_of_candidates() && !std::mem::replace(&mut are_candidates, true) {
                for (replica, sum) in sums.iter_mut().enumerate() {
                    let candidates = &mut sum[own(ChunkIndex(replica as u32))];
                    candidates.iter_mut().for_each(|sum| *sum = format!("w{sum}"));
                }
            }
            let before = sums.clone();
            for (replica, sum) in sums.iter_mut().enumerate() {
                let chunk = ChunkIndex(replica as u32);
                let sibling = placement.sibling_at(chunk, exchange.level()).expect("one each");
                let other = &before[sibling.index()];
                for float in exchange.merged_floats(placement, chunk, shards) {
                    sum[float] = match (exchange, placement.side_of(chunk, exchange.level())) {
                        (TreeExchange::Gather(_) | TreeExchange::GatherCandidates(_), _) => {
                            other[float].clone()
                        }
                        (TreeExchange::Reduce(_), TreeSide::Left) => {
                            format!("({}+{})", sum[float], other[float])
                        }
                        (TreeExchange::Reduce(_), TreeSide::Right) => {
                            format!("({}+{})", other[float], sum[float])
                        }
                    };
                }
            }
        }
        let mut tree: Vec<String> = (0..columns).map(|replica| replica.to_string()).collect();
        while tree.len() > 1 {
            let add = |pair: &[String]| format!("({}+{})", pair[0], pair[1]);
            tree = tree.chunks(2).map(add).collect();
        }
        let expected = if are_candidates { format!("w{}", tree[0]) } else { tree[0].clone() };
        assert!(
            sums.iter().flatten().all(|sum| *sum == expected),
            "{columns}, {shards:?}: {sums:?}"
        );
    }

    #[test]
    fn candidates_are_gathered_behind_the_step_they_are_of() {
        let program = sharded(&replicated(ScheduleKind::ZbH1, (1, 1), 4), 2);
        let lists = |window| {
            let options = LowerOptions { window, early_head_weights: false };
            lower(&program, options).to_string().lines().nth(1).map(str::to_owned)
        };
        let sums = "stage 0: 0F0 0B0 GATES0W0 0SEND_G 0RECV_G 0REDUCE 0SEND_G.1 0RECV_G.1 0REDUCE.1 \
            REPORT";
        let candidates = "STEP 0SEND_C 0RECV_C 0GATHER_C";
        let one = sums.replace("GATES", "GATE_PREVIOUS COMMIT ");
        assert_eq!(lists(Window::One), Some(format!("{one} {candidates}")));
        let zero = sums.replace("GATES", "");
        assert_eq!(lists(Window::Zero), Some(format!("{zero} GATE_THIS {candidates} COMMIT")));
        let lowered =
            lower(&program, LowerOptions { window: Window::One, early_head_weights: true });
        let misplaced = |from: &str, to: &str| {
            let text = lowered.to_string().replacen(from, to, 1);
            check(&text.parse().expect("a program")).expect_err("candidates stand elsewhere").len()
        };
        misplaced("REPORT STEP 0SEND_C", "0SEND_C REPORT STEP");
        misplaced("0RECV_C 0GATHER_C", "0RECV_C");
        misplaced("0SEND_C 0RECV_C", "0RECV_C");
    }

    #[test]
    fn every_schedule_is_legal_in_every_number_of_replicas() {
        for kind in ScheduleKind::ALL {
            for (stages, microbatches) in [(1, 2), (2, 4), (3, 6), (4, 8)] {
                let Ok(column) = generate(kind, stages, microbatches) else { continue };
                for columns in [1, 2, 4, 8] {
                    let program = side_by_side(&vec![column.clone(); columns]).expect("alike");
                    assert_eq!(program.placement.column(), column.placement);
                    for window in [Window::Zero, Window::One] {
                        let options = LowerOptions { window, early_head_weights: true };
                        let lowered = lower(&program, options);
                        let can_be_sharded =
                            columns > 1 && program.placement.direction_count() == 1;
                        let shards = can_be_sharded.then(|| lower(&sharded(&program, 2), options));
                        for lowered in [tie_ends(&lowered), lowered].into_iter().chain(shards) {
                            assert_eq!(check(&lowered), Ok(()), "{kind} {stages} x {columns}");
                            assert_eq!(lowered.to_string().parse(), Ok(lowered.clone()));
                            let bytes = crate::packed::pack(&lowered.placement, &lowered.stages);
                            let unpacked = crate::packed::unpack(
                                &lowered.placement,
                                lowered.pass_count(),
                                &bytes,
                            );
                            assert_eq!(unpacked, Ok(lowered.stages.clone()));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn columns_are_alike_and_a_power_of_two() {
        let column = |stages| generate(ScheduleKind::ZbH1, stages, 2).expect("the size is legal");
        let refuse = |columns: &[Program]| side_by_side(columns).expect_err("refused");
        assert_eq!(refuse(&[]), ColumnsError::None);
        assert_eq!(refuse(&[column(2), column(3)]), ColumnsError::Differs { column: 1 });
        let found = refuse(&vec![column(2); 3]).to_string();
        let expected =
            "6 chunks over 6 stages do not form 3 replicas of a line, a power of two up to 64";
        assert_eq!(found, expected);
    }
}
