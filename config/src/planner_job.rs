//! The part of a configuration that planning needs.

use std::time::Duration;

use zbelastic_consensus::member::Resources;
use zbelastic_planner::{PlanSearch, PlannerJob};
use zbelastic_schedule::asynchronous::AsyncKind;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::plan::{GridLimits, Plan, PlanRequest, ReplicaCount};
use zbelastic_types::NodeId;

use super::{RunConfig, ScheduleChoice};

impl RunConfig {
    /// The job that its plans depend on.
    ///
    /// # Errors
    /// With the schedule, if it has no steps.
    pub fn planner_job(&self) -> Result<PlannerJob, AsyncKind> {
        Ok(PlannerJob {
            model: self.model.clone(),
            batch: self.batch,
            optimizer: self.optimizer.kind,
            kinds: self.schedule.kinds()?.to_vec(),
            is_auto: self.schedule == ScheduleChoice::Auto,
            chunks_per_stage: self.chunks_per_stage,
            replicas: self.replicas,
            slice_count: self.slice_count,
            memory: self.memory.policy(self.elastic.copies),
            copies: self.elastic.copies,
            is_island: self.sync.is_some(),
            stage_bytes_max: self.stage_bytes_max,
            sizes: self.arithmetic.sizes(),
        })
    }

    /// What bounds the ways to deal workers to stages and replicas.
    #[must_use]
    pub const fn grid_limits(&self) -> GridLimits {
        let RunConfig { model, batch, replicas, .. } = self;
        GridLimits { blocks: model.blocks, lanes: batch.lanes, requested: *replicas }
    }

    /// Why the run fits on none of these workers, and what would make it fit, as text for people. `None` if
    /// there is a plan, or something else than memory is missing.
    #[must_use]
    pub fn shortage(&self, nodes: &[(NodeId, Resources)]) -> Option<String> {
        let job = self.planner_job().ok()?;
        // The length of a tick changes no plan.
        let mut search = PlanSearch::new(Duration::from_secs(1));
        let window = self.window.planned();
        // Most runs fit on as many workers as can be used, which takes no search of all plans.
        let shortage = search.shortage(&job, window, nodes)?;
        search.solve(&job, window, nodes).is_err().then(|| shortage.to_string())
    }

    /// A plan of one stage that adds up as every plan of the job does.
    ///
    /// # Panics
    /// Never: every model fits on one stage of the plainest schedule.
    #[must_use]
    pub fn one_stage_plan(&self) -> Plan {
        let kind = match self.schedule {
            ScheduleChoice::Kind(kind) if kind.is_sliced() => kind,
            ScheduleChoice::Kind(_) | ScheduleChoice::Auto | ScheduleChoice::Asynchronous(_) => {
                ScheduleKind::OneFOneB
            }
        };
        let request = PlanRequest {
            model: &self.model,
            batch: self.batch,
            kind,
            chunks_per_stage: None,
            slice_count: self.slice_count.filter(|_| kind.is_sliced()),
            stage_count: 1,
            replicas: ReplicaCount::ONE,
            window: Window::One,
        };
        let plan =
            Plan::new(request).expect("every model fits on one stage of the plainest schedule");
        plan.with_recompute(self.memory.recomputed())
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_consensus::class::DeviceClass;
    use zbelastic_consensus::member::Resources;
    use zbelastic_kernels::{DeviceSizes, Precision};
    use zbelastic_schedule::ScheduleKind;
    use zbelastic_trainer::plan::AUTO_KINDS;
    use zbelastic_types::{Bytes, NodeId};

    use crate::tests::load_text;

    #[test]
    fn a_run_that_does_not_fit_says_what_it_lacks() {
        let config = load_text("[model]\npreset = \"tiny\"\n").expect("legal").config;
        let nodes = |bytes: u64| {
            let memory = Bytes(bytes);
            let class = DeviceClass::Processors;
            let resources = Resources { memory, speed_permille: 1000, class };
            [1, 2].map(|node| (NodeId(node), resources))
        };
        assert_eq!(config.shortage(&nodes(1 << 40)), None);
        assert_eq!(config.shortage(&[]), None);
        let text = config.shortage(&nodes(1 << 10)).expect("no stage fits");
        assert!(text.contains("its worker has 1.00 KiB"), "{text}");
    }

    #[test]
    fn what_is_configured_is_planned_with() {
        let job = |text: &str| {
            let text = format!("[model]\npreset = \"tiny\"\n{text}");
            load_text(&text).expect("legal").config.planner_job()
        };
        let auto = job("").expect("it has steps");
        assert_eq!((auto.kinds.as_slice(), auto.is_auto), (&AUTO_KINDS[..], true));
        assert_eq!((auto.chunks_per_stage, auto.stage_bytes_max), (None, None));
        assert_eq!((auto.sizes, auto.copies), (DeviceSizes::Processors(Precision::F32), 1));
        let own = job("[schedule]\nkind = \"zb-v\"\nchunks = 2\n[elastic]\ncopies = 2\n");
        let own = own.expect("it has steps");
        assert_eq!((own.kinds.as_slice(), own.is_auto), (&[ScheduleKind::ZbV][..], false));
        assert_eq!((own.chunks_per_stage, own.copies), (Some(2), 2));
        let text = "[model]\npreset = \"tiny\"\n[schedule]\nkind = \"seq1f1b\"\nslices = 4\n";
        let plan = load_text(text).expect("legal").config.one_stage_plan();
        assert_eq!((plan.placement().stage_count(), plan.program.slice_count), (1, 4));
    }
}
