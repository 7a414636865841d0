//! Plans of every schedule, and of chunks.

use zbelastic_schedule::{PipelineSize, ScheduleKind, Window, check_size};
use zbelastic_trainer::model::ModelConfig;
use zbelastic_trainer::plan::{Plan, PlanRequest, ReplicaCount};

use super::{BATCH, batch_for};

/// Every schedule, with as many chunks as it has by itself and with more.
pub fn every_plan(model: &ModelConfig) -> Vec<Plan> {
    let mut plans = Vec::new();
    for kind in ScheduleKind::ALL {
        let least = kind.chunk_counts().least();
        for (stage_count, chunks) in (1..=4).map(|p| (p, least)).chain([(1, 4), (2, 5), (3, 3)]) {
            let slice_count = if kind.is_sliced() { 2 } else { 1 };
            let microbatch_count = BATCH.microbatch_count;
            let chunks_per_stage = chunks;
            let size =
                PipelineSize { stage_count, chunks_per_stage, microbatch_count, slice_count };
            if check_size(kind, size).is_err() {
                continue;
            }
            for window in [Window::Zero, Window::One] {
                let request = PlanRequest {
                    model,
                    batch: batch_for(kind),
                    kind,
                    chunks_per_stage: Some(chunks),
                    slice_count: Some(slice_count),
                    stage_count,
                    replicas: ReplicaCount::ONE,
                    window,
                };
                plans.push(Plan::new(request).expect("the size exists"));
            }
        }
    }
    plans
}

/// Every schedule at every number of stages, with as many chunks as it has by itself and one window.
pub fn every_plain_plan(model: &ModelConfig) -> Vec<Plan> {
    let is_plain = |plan: &Plan| {
        let placement = plan.placement();
        let window =
            if placement.stage_count().is_multiple_of(2) { Window::One } else { Window::Zero };
        let least = plan.program.kind.chunk_counts().least();
        plan.program.window == Some(window) && placement.chunks_per_stage() == least
    };
    every_plan(model).into_iter().filter(is_plain).collect()
}

/// A plan of stages with so many chunks each.
pub fn plan_of_chunks(
    model: &ModelConfig,
    kind: ScheduleKind,
    chunks_per_stage: Option<u32>,
    stage_count: u32,
    window: Window,
) -> Plan {
    let batch = batch_for(kind);
    Plan::new(PlanRequest {
        model,
        batch,
        kind,
        chunks_per_stage,
        slice_count: None,
        stage_count,
        replicas: ReplicaCount::ONE,
        window,
    })
    .expect("a legal plan")
}
