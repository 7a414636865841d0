//! Shapes, replicas and columns.

use super::{Placement, PlacementError, PlacementShape};
use crate::limits::TEXT_COUNT_MAX;
use crate::op::Flow;
use crate::reduction::{TreeLevel, TreeSide};
use zbelastic_types::{ChunkIndex, MicrobatchIndex, StageIndex};

#[test]
fn shapes_lay_chunks_as_drawn() {
    let check = |placement: &Placement, shape: PlacementShape, stages: &[u32]| {
        assert_eq!(placement.shape(), shape);
        assert_eq!(placement.chunk_count() as usize, stages.len());
        for (chunk, stage) in (0..).zip(stages) {
            assert_eq!(placement.stage_of(ChunkIndex(chunk)), Some(StageIndex(*stage)));
        }
        assert_eq!(placement.stage_of(ChunkIndex(placement.chunk_count())), None);
    };
    check(&Placement::line(3), PlacementShape::Line, &[0, 1, 2]);
    check(&Placement::looped(2, 2), PlacementShape::Loop, &[0, 1, 0, 1]);
    check(&Placement::vee(3), PlacementShape::Vee, &[0, 1, 2, 2, 1, 0]);
    check(&Placement::cross(3), PlacementShape::Cross, &[0, 1, 2, 2, 1, 0]);
    let first: Vec<_> = Placement::vee(3).chunks_of(StageIndex(0)).collect();
    assert_eq!(first, [ChunkIndex(0), ChunkIndex(5)]);
}

#[test]
fn chunks_and_stages_must_form_the_shape() {
    let check = |shape, stage_count, chunk_count, is_legal: bool| {
        let expected = if is_legal {
            Ok(chunk_count)
        } else {
            Err(PlacementError { shape, column_count: 1, stage_count, chunk_count })
        };
        let found = Placement::of_shape(shape, stage_count, chunk_count);
        assert_eq!(found.map(|placement| placement.chunk_count()), expected);
    };
    check(PlacementShape::Line, 3, 3, true);
    check(PlacementShape::Line, 3, 6, false);
    check(PlacementShape::Loop, 3, 9, true);
    check(PlacementShape::Loop, 3, 8, false);
    check(PlacementShape::Vee, 3, 6, true);
    check(PlacementShape::Vee, 3, 3, false);
    check(PlacementShape::Cross, 3, 6, true);
    check(PlacementShape::Cross, 3, 3, false);
    check(PlacementShape::Line, 0, 0, false);
    check(PlacementShape::Loop, 1, TEXT_COUNT_MAX, true);
    check(PlacementShape::Loop, 1, TEXT_COUNT_MAX + 1, false);
}

#[test]
fn the_ends_of_the_model_find_each_other() {
    let check = |placement: &Placement, ends: &[(u32, u32)]| {
        let found = (0..placement.chunk_count())
            .filter_map(|c| Some((c, placement.other_end_of(ChunkIndex(c))?.0)));
        assert_eq!(found.collect::<Vec<_>>(), ends);
    };
    check(&Placement::line(1), &[(0, 0)]);
    check(&Placement::line(3), &[(0, 2), (2, 0)]);
    check(&Placement::looped(2, 2), &[(0, 3), (3, 0)]);
    check(&Placement::vee(3), &[(0, 5), (5, 0)]);
    check(&Placement::cross(1), &[(0, 0), (1, 1)]);
    // Each end's twin is on the stage of the other end.
    check(&Placement::cross(3), &[(0, 5), (2, 3), (3, 2), (5, 0)]);
}

#[test]
fn two_replicas_have_two_ends_each_and_share_the_microbatches() {
    let cross = Placement::cross(3);
    assert_eq!((cross.replica_count(), cross.chunks_per_replica()), (2, 3));
    let ends = |is_end: fn(&Placement, ChunkIndex) -> bool| -> Vec<u32> {
        (0..6).filter(|chunk| is_end(&cross, ChunkIndex(*chunk))).collect()
    };
    assert_eq!((ends(Placement::is_first), ends(Placement::is_last)), (vec![0, 3], vec![2, 5]));
    let after: Vec<_> = (0..7)
        .map(|chunk| cross.chunk_after(ChunkIndex(chunk), Flow::Forward).map(|after| after.0))
        .collect();
    assert_eq!(after, [Some(1), Some(2), None, Some(4), Some(5), None, None]);
    let before: Vec<_> = (0..6)
        .map(|chunk| cross.chunk_after(ChunkIndex(chunk), Flow::Backward).map(|after| after.0))
        .collect();
    assert_eq!(before, [None, Some(0), Some(1), None, Some(3), Some(4)]);
    let level = TreeLevel(0);
    let siblings = (0..7).map(|chunk| cross.sibling_at(ChunkIndex(chunk), level));
    let expected = [3, 4, 5, 0, 1, 2].map(|chunk| Some(ChunkIndex(chunk)));
    assert_eq!(siblings.collect::<Vec<_>>(), [&expected[..], &[None]].concat());
    assert_eq!(Placement::line(3).sibling_at(ChunkIndex(1), level), None);
    let replicas = |placement: &Placement, count| -> Vec<_> {
        let all = (0..count).map(MicrobatchIndex);
        all.map(|k| placement.replica_of_microbatch(k, count)).collect()
    };
    assert_eq!(replicas(&cross, 4), [0, 0, 1, 1]);
    assert_eq!(replicas(&Placement::vee(3), 3), [0, 0, 0]);
    assert_eq!(cross.microbatches_per_replica(4), 2);
    assert_eq!(Placement::vee(3).microbatches_per_replica(5), 5);
}

fn columns(shape: PlacementShape, count: u32, stages: u32, chunks: u32) -> Placement {
    Placement::of_columns(shape, count, stages, chunks).expect("legal")
}

#[test]
fn columns_stand_on_stages_of_their_own() {
    let lines = columns(PlacementShape::Line, 2, 6, 6);
    assert_eq!((lines.column_count(), lines.stages_per_column()), (2, 3));
    assert_eq!((lines.replica_count(), lines.direction_count()), (2, 1));
    assert_eq!((lines.shape(), lines.column()), (PlacementShape::Line, Placement::line(3)));
    let ends: Vec<_> = (0..6).filter(|chunk| lines.is_last(ChunkIndex(*chunk))).collect();
    assert_eq!(ends, [2, 5]);
    assert_eq!(lines.chunk_after(ChunkIndex(2), Flow::Forward), None);
    assert_eq!(lines.other_end_of(ChunkIndex(3)), Some(ChunkIndex(5)), "within the column");
    assert_eq!(
        (lines.table().columns_of(StageIndex(4)).next(), lines.table().place_of(StageIndex(4))),
        (Some(1), StageIndex(1))
    );
    let crosses = columns(PlacementShape::Cross, 2, 4, 8);
    assert_eq!((crosses.replica_count(), crosses.direction_count()), (4, 2));
    assert_eq!((crosses.shape(), crosses.column()), (PlacementShape::Cross, Placement::cross(2)));
    let stages: Vec<_> = (0..8).filter_map(|chunk| crosses.stage_of(ChunkIndex(chunk))).collect();
    assert_eq!(stages, [0, 1, 1, 0, 2, 3, 3, 2].map(StageIndex));
    assert_eq!(crosses.other_end_of(ChunkIndex(4)), Some(ChunkIndex(7)), "on its own stage");
    assert_eq!(columns(PlacementShape::Vee, 2, 4, 8).shape(), PlacementShape::Vee);
    assert_eq!(columns(PlacementShape::Loop, 2, 4, 8).shape(), PlacementShape::Loop);
}

#[test]
fn siblings_have_the_subtrees_next_to_each_other() {
    let lines = columns(PlacementShape::Line, 4, 8, 8);
    assert_eq!(lines.levels().collect::<Vec<_>>(), [TreeLevel(0), TreeLevel(1)]);
    let check = |level, expected: [u32; 8]| {
        let sibling = |chunk| lines.sibling_at(ChunkIndex(chunk), TreeLevel(level));
        let expected: Vec<_> = expected.map(|chunk| Some(ChunkIndex(chunk))).to_vec();
        assert_eq!((0..8).map(sibling).collect::<Vec<_>>(), expected);
    };
    check(0, [2, 3, 0, 1, 6, 7, 4, 5]);
    check(1, [4, 5, 6, 7, 0, 1, 2, 3]);
    assert_eq!(lines.sibling_at(ChunkIndex(0), TreeLevel(2)), None);
    assert_eq!(lines.sibling_at(ChunkIndex(0), TreeLevel(200)), None);
    assert_eq!(lines.replicas_below(ChunkIndex(5), TreeLevel(0)), 2..3);
    assert_eq!(lines.replicas_below(ChunkIndex(5), TreeLevel(1)), 2..4);
    let sides = [0, 1].map(|level| lines.side_of(ChunkIndex(5), TreeLevel(level)));
    assert_eq!(sides, [TreeSide::Left, TreeSide::Right]);
    let readers =
        |stage| lines.table().prefix_readers(StageIndex(stage)).map(|s| s.0).collect::<Vec<_>>();
    assert_eq!((readers(0), readers(1), readers(2)), (vec![1, 2, 4, 6], vec![3, 5, 7], vec![]));
    let sources = (0..8).map(|stage| lines.table().prefix_source(StageIndex(stage)).map(|s| s.0));
    let expected = [None, Some(0), Some(0), Some(1), Some(0), Some(1), Some(0), Some(1)];
    assert_eq!(sources.collect::<Vec<_>>(), expected);
    let group: Vec<_> = lines.group_of(ChunkIndex(5)).collect();
    assert_eq!(group, [1, 3, 5, 7].map(ChunkIndex));
}
