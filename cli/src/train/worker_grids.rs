//! How the workers of a run are dealt to stages and replicas.

use zbelastic_config::RunConfig;
use zbelastic_trainer::plan::{Grid, ReplicaCount};
use zbelastic_wording::{CommandFailure, FailureDetail};

/// The ways to deal all workers to stages and replicas.
///
/// # Errors
/// If they cannot be dealt to as many replicas as are requested.
pub fn grids_of(config: &RunConfig, worker_count: u32) -> Result<Vec<Grid>, CommandFailure> {
    let requested = config.replicas.unwrap_or(ReplicaCount::ONE);
    if !worker_count.is_multiple_of(requested.get()) {
        return Err(uneven_replicas(worker_count, requested));
    }
    let mut grids = config.grid_limits().grids(worker_count);
    grids.retain(|grid| grid.workers() == worker_count);
    if grids.is_empty() {
        // More workers than the model has blocks for: the plan says so.
        let stage_count = worker_count / requested.get();
        grids.push(Grid { stage_count, replicas: requested });
    }
    Ok(grids)
}

fn uneven_replicas(worker_count: u32, replicas: ReplicaCount) -> CommandFailure {
    let replicas = replicas.get();
    let below = worker_count / replicas * replicas;
    let counts: Vec<String> = [below, below + replicas]
        .iter()
        .filter(|count| **count > 0)
        .map(|count| format!("--workers {count}"))
        .collect();
    let even = 1 << worker_count.trailing_zeros();
    let detail = FailureDetail::new(format!(
        "{worker_count} workers cannot be dealt evenly to {replicas} replicas"
    ))
    .at("schedule.replicas")
    .why("every replica is a pipeline of as many workers as the others")
    .hint(format!("{}, or --replicas {}", counts.join(" or "), even.min(replicas)));
    CommandFailure::usage("the run has no plan", vec![detail])
}

#[cfg(test)]
mod tests {
    use super::{ReplicaCount, uneven_replicas};

    #[test]
    fn uneven_workers_are_told_what_would_do() {
        let check = |workers, replicas, expected: &str| {
            let replicas = ReplicaCount::new(replicas).expect("a power of two");
            let failure = uneven_replicas(workers, replicas).to_string();
            assert!(failure.contains(expected), "{failure}");
        };
        check(5, 2, "try: --workers 4 or --workers 6, or --replicas 1");
        check(6, 4, "try: --workers 4 or --workers 8, or --replicas 2");
        check(3, 8, "try: --workers 8, or --replicas 1");
    }
}
