//! How workers are dealt to stages and replicas, and which of the ways is taken.

use zbelastic_consensus::plan::copies_at;

use super::{LaneCount, ReplicaCount};

/// By which share a step has to be shorter for another number of replicas that uses no more workers.
/// Times are predicted, and a replica more holds all weights once more.
const GAIN_MIN: f64 = 0.05;

/// Pipelines side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Stages of each pipeline.
    pub stage_count: u32,
    /// How many times the pipeline is there.
    pub replicas: ReplicaCount,
}

impl Grid {
    /// Workers that hold a stage.
    #[must_use]
    pub const fn workers(self) -> u32 {
        self.stage_count * self.replicas.get()
    }

    /// Copies that other stages keep of a layer, of so many other holders that are wanted: each further
    /// replica is one.
    #[must_use]
    pub fn copies(self, wanted: u32) -> u32 {
        copies_at(wanted, self.workers()).saturating_sub(self.replicas.get() - 1)
    }
}

/// What decides in which ways so many workers may be dealt.
#[derive(Clone, Copy, Debug)]
pub struct GridLimits {
    /// Blocks of the model: the most stages of a pipeline.
    pub blocks: u32,
    /// Lanes of the job: the most replicas.
    pub lanes: LaneCount,
    /// The replicas that are requested, if a number is.
    pub requested: Option<ReplicaCount>,
}

impl GridLimits {
    /// The grids to compare on so many workers, each with as many stages as they suffice for, the one
    /// that others have to beat first: one pipeline, or as many as are requested, which are all there is to
    /// choose from where that many use every worker.
    #[must_use]
    pub fn grids(self, workers: u32) -> Vec<Grid> {
        let grid = |replicas: ReplicaCount| {
            let stage_count = (workers / replicas.get()).min(self.blocks);
            (stage_count > 0).then_some(Grid { stage_count, replicas })
        };
        let Some(requested) = self.requested else {
            let has_lane = |replicas: &ReplicaCount| replicas.get() <= self.lanes.get();
            return ReplicaCount::all().filter(has_lane).filter_map(grid).collect();
        };
        let fewer = ReplicaCount::all().filter(|replicas| *replicas <= requested);
        let mut all: Vec<Grid> = fewer.filter_map(grid).collect();
        all.reverse();
        if all
            .first()
            .is_some_and(|first| first.workers() == workers && first.replicas == requested)
        {
            all.truncate(1);
        }
        all
    }
}

/// The plan of the grid that is taken, of those that can be had: the first, unless the step of another
/// is shorter. One that uses no more workers has to be shorter by [`GAIN_MIN`], and is compared only if
/// `is_priced`: if it is known what the exchange of gradients costs.
///
/// # Errors
/// The error of the first grid, if none can be had; `None` if there is no grid.
pub fn best_grid<P, E>(
    grids: Vec<Grid>,
    is_priced: bool,
    mut plan: impl FnMut(Grid) -> Result<(P, f64), E>,
) -> Result<P, Option<E>> {
    let mut best: Option<(P, f64, Grid)> = None;
    let mut error = None;
    for grid in grids {
        let uses_more = best.as_ref().is_none_or(|(.., than)| grid.workers() > than.workers());
        if !uses_more && !is_priced {
            continue;
        }
        match plan(grid) {
            Ok((found, period)) => {
                let is_better = best.as_ref().is_none_or(|(_, than, _)| {
                    let most = if uses_more { *than } else { than * (1.0 - GAIN_MIN) };
                    period < most
                });
                if is_better {
                    best = Some((found, period, grid));
                }
            }
            Err(found) => error = error.or(Some(found)),
        }
    }
    best.map(|(plan, ..)| plan).ok_or(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replicas(count: u32) -> ReplicaCount {
        ReplicaCount::new(count).expect("a power of two")
    }

    fn limits(lanes: u32, requested: u32) -> GridLimits {
        GridLimits {
            blocks: 4,
            lanes: LaneCount::new(lanes).expect("a power of two"),
            requested: (requested > 0).then(|| replicas(requested)),
        }
    }

    #[test]
    fn workers_are_dealt_to_replicas_as_far_as_there_are_lanes() {
        let check = |lanes, requested, workers, expected: &[(u32, u32)]| {
            let found = limits(lanes, requested).grids(workers);
            let found = found.iter().map(|grid| (grid.stage_count, grid.replicas.get()));
            assert_eq!(found.collect::<Vec<_>>(), expected);
        };
        check(1, 0, 6, &[(4, 1)]);
        check(4, 0, 6, &[(4, 1), (3, 2), (1, 4)]);
        check(4, 0, 1, &[(1, 1)]);
        check(4, 2, 6, &[(3, 2)]);
        check(4, 2, 3, &[(1, 2), (3, 1)]);
        check(4, 4, 3, &[(1, 2), (3, 1)]);
        check(4, 4, 16, &[(4, 4)]);
        check(4, 2, 16, &[(4, 2), (4, 1)]);
        check(4, 2, 0, &[]);
    }

    #[test]
    fn each_replica_is_a_holder() {
        let copies = |stage_count, count, wanted| {
            Grid { stage_count, replicas: replicas(count) }.copies(wanted)
        };
        assert_eq!([copies(4, 1, 1), copies(1, 1, 1)], [1, 0]);
        assert_eq!([copies(2, 2, 1), copies(2, 2, 2), copies(2, 2, 9)], [0, 1, 2]);
        assert_eq!([copies(1, 4, 1), copies(1, 4, 5)], [0, 0]);
    }

    #[test]
    fn others_have_to_be_better_than_the_first() {
        let check = |periods: &[f64], is_priced, expected: Option<u32>| {
            let grids = limits(4, 0).grids(6);
            let plan = |grid: Grid| {
                let period = periods[grid.replicas.get().ilog2() as usize];
                if period > 0.0 { Ok((grid.replicas.get(), period)) } else { Err("no memory") }
            };
            assert_eq!(best_grid(grids, is_priced, plan).ok(), expected, "{periods:?}");
        };
        // Four stages of four workers, three of two, and one of four.
        check(&[1.0, 0.99, 2.0], false, Some(2));
        check(&[1.0, 1.01, 0.1], false, Some(1));
        check(&[1.0, 0.99, 0.1], true, Some(4));
        check(&[1.0, 1.01, 0.96], true, Some(1));
        check(&[0.0, 0.0, 3.0], false, Some(4));
        check(&[0.0, 0.0, 0.0], true, None);
        let none = best_grid(Vec::new(), true, |_| Err::<((), f64), &str>("never"));
        assert_eq!(none, Err(None));
    }
}
