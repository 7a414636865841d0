//! What a run goes on with on so many nodes: the requested schedule need not exist for every
//! number of stages.

use zbelastic_schedule::ScheduleKind;
use zbelastic_schedule::asynchronous::AsyncKind;
use zbelastic_trainer::plan::AUTO_KINDS;

use super::{RunConfig, ScheduleChoice};

/// The schedule of two replicas that exists for every number of stages.
const REPLICAS_ANYWHERE: [ScheduleKind; 1] = [ScheduleKind::Gems];

/// A thing to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanFallback<'a> {
    /// Schedules to choose from.
    pub kinds: &'a [ScheduleKind],
    /// Chunks a stage, if the configuration sets a number.
    pub chunks_per_stage: Option<u32>,
    /// Stages of the pipeline.
    pub stage_count: u32,
}

impl RunConfig {
    /// What to try on `most` nodes, one after the other until something can be had. Every one
    /// trains to the same bits.
    ///
    /// Most schedules give way to any other before a node is left out. How slices and replicas add
    /// up is a part of the arithmetic, so these give way to none that adds up in another order:
    /// slices to none at all, and replicas to `gems`. That one keeps most of its stages waiting, so
    /// a node is left out before.
    ///
    /// # Errors
    /// With the schedule, if it has no steps.
    pub fn plan_fallbacks(&self, most: u32) -> Result<Vec<PlanFallback<'_>>, AsyncKind> {
        let kinds = self.schedule.kinds()?;
        let chunks_per_stage = self.chunks_per_stage;
        let is_free = self.schedule == ScheduleChoice::Auto && chunks_per_stage.is_none();
        let own = |stage_count| PlanFallback { kinds, chunks_per_stage, stage_count };
        let others =
            |kinds, stage_count| PlanFallback { kinds, chunks_per_stage: None, stage_count };
        let counts = (1..=most).rev();
        if is_free || kinds.iter().any(|kind| kind.is_sliced()) {
            return Ok(counts.map(own).collect());
        }
        if self.schedule.of_replicas().is_some() {
            let anywhere = counts.clone().map(|count| others(&REPLICAS_ANYWHERE, count));
            return Ok(counts.map(own).chain(anywhere).collect());
        }
        Ok(counts.flat_map(|count| [own(count), others(&AUTO_KINDS, count)]).collect())
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_schedule::ScheduleKind;
    use zbelastic_trainer::plan::AUTO_KINDS;

    use crate::config::tests::load_text;

    fn check(kind: &str, most: u32, expected: &[(&[ScheduleKind], u32)]) {
        let text = format!("[model]\npreset = \"tiny\"\n[schedule]\nkind = \"{kind}\"\n");
        let config = load_text(&text).expect("legal").config;
        let fallbacks = config.plan_fallbacks(most).expect("it has steps");
        let found: Vec<_> =
            fallbacks.iter().map(|found| (found.kinds, found.stage_count)).collect();
        assert_eq!(found, expected, "{kind}");
    }

    #[test]
    fn what_gives_way_to_what_keeps_the_order_of_sums() {
        use ScheduleKind::{Chimera, Gems, Seq1F1B, ZbV};
        check("auto", 2, &[(&AUTO_KINDS, 2), (&AUTO_KINDS, 1)]);
        check("zb-v", 2, &[(&[ZbV], 2), (&AUTO_KINDS, 2), (&[ZbV], 1), (&AUTO_KINDS, 1)]);
        check("seq1f1b", 2, &[(&[Seq1F1B], 2), (&[Seq1F1B], 1)]);
        let replicas = [(&[Chimera][..], 2), (&[Chimera], 1), (&[Gems], 2), (&[Gems], 1)];
        check("chimera", 2, &replicas);
    }
}
