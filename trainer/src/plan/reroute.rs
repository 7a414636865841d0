//! A plan that goes on without some of its stages: others of the same places, which have the same
//! layers, run their passes too, until further stages get places of their own.

use zbelastic_schedule::{
    NobodyLeft, Placement, Program, SharedOrder, check, halved, joined, on_table,
};
use zbelastic_types::StageIndex;

use super::{Pace, Plan, lowered};

/// A plan on the stages that are left, and who they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Reroute {
    /// The plan. Its chunks have the layers that they had.
    pub plan: Plan,
    /// For each of its stages, the stage of the plan before.
    pub stages: Vec<StageIndex>,
}

/// A plan with further stages at places that others shared.
#[derive(Clone, Debug, PartialEq)]
pub struct Refill {
    /// The plan. Its chunks have the layers that they had.
    pub plan: Plan,
    /// For each of its stages, the stage of the plan before; `None` of a further one.
    pub stages: Vec<Option<StageIndex>>,
}

impl Plan {
    /// This plan without the stages in `lost`, at the pace of those that are left, as it numbers them.
    /// If none is lost it is the same plan: another pace makes no other order.
    ///
    /// # Errors
    /// If nobody is left at a place, or of those that have the moments of a shard there: its layers must move.
    ///
    /// # Panics
    /// If the pace has times that are none.
    pub fn rerouted(
        &self,
        lost: &[StageIndex],
        pace: impl FnOnce(&[StageIndex]) -> Pace,
        order: SharedOrder,
    ) -> Result<Reroute, NobodyLeft> {
        let (table, stages) = self.placement().table().rerouted(lost)?;
        let plan = if lost.is_empty() {
            self.clone()
        } else {
            self.on_table(&table, &pace(&stages), order)
        };
        Ok(Reroute { plan, stages })
    }

    /// This plan with up to `count` further stages at places of stages that stand in several columns, at
    /// the pace of all, as it numbers them. It is `None` if there is none, or no place for one.
    ///
    /// # Panics
    /// If the pace has times that are none.
    #[must_use]
    pub fn refilled(
        &self,
        count: u32,
        pace: impl FnOnce(&[Option<StageIndex>]) -> Pace,
        order: SharedOrder,
    ) -> Option<Refill> {
        let (table, stages) = self.placement().table().refilled(count)?;
        let pace = pace(&stages);
        let mut plan = self.on_table(&table, &pace, order);
        while let Some(whole) = plan.joined() {
            plan = whole;
        }
        Some(Refill { plan, stages })
    }

    /// This plan with each of its columns as two, on the same stages, so that what a stage does can be
    /// dealt to several others. It is `None` if there are not as many lanes, columns run in two
    /// directions, or the optimizer is sharded.
    #[must_use]
    pub fn halved(&self) -> Option<Self> {
        let order = halved(&self.program)?;
        let has_lanes = order.placement.replica_count() <= self.batch.lanes.get();
        has_lanes.then(|| self.in_columns(&order))
    }

    /// This plan with each two of its columns as one, if they stand on the same stages and each place has
    /// an order of its own: [`Self::halved`] undone. A stage stands in one column then.
    fn joined(&self) -> Option<Self> {
        let order = joined(&self.program)?;
        let is_same = order.placement.stage_count() == self.placement().stage_count();
        is_same.then(|| self.in_columns(&order))
    }

    /// The same layers in the columns of `order`, which are more or fewer.
    fn in_columns(&self, order: &Program) -> Self {
        let window = self.program.window.expect("a plan is lowered");
        let once = &self.chunks[..self.placement().chunks_per_replica() as usize];
        let program = lowered(order, window, self.program.is_tied());
        assert_eq!(check(&program), Ok(()), "halves of columns are legal where these are");
        let chunks = once.repeat(program.placement.replica_count() as usize);
        Self { program, chunks, ..self.clone() }
    }

    /// The same with its columns on the stages of `table`.
    ///
    /// # Panics
    /// If the table is not of the same columns, or the pace has times that are none.
    #[must_use]
    pub fn on_table(&self, table: &Placement, pace: &Pace, order: SharedOrder) -> Self {
        let window = self.program.window.expect("a plan is lowered");
        let mut plan = self.clone();
        plan.program.placement = table.clone();
        let shared = on_table(&self.program, table, &pace.costs(&plan), order);
        let shared = shared.expect("a plan's program runs to its end, on any table");
        plan.program = lowered(&shared, window, self.program.is_tied());
        assert_eq!(check(&plan.program), Ok(()), "what was run, and lowered, is legal");
        plan
    }
}
