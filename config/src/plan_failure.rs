//! The failure printed for a run that has no plan.

use zbelastic_schedule::GenerateError;
use zbelastic_trainer::plan::PlanError;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::wording::{lanes_hint, lanes_key, slice_hint};
use super::{RunConfig, WeightSource};

/// The failure for a plan that cannot be made of `config` and `workers`, one stage each.
#[must_use]
pub fn plan_failure(error: &PlanError, config: &RunConfig, workers: u32) -> CommandFailure {
    let batch = SequenceBatch::of(config);
    let detail = match error {
        PlanError::Stages { stage_count, blocks } => stages(*stage_count, *blocks, &config.weights),
        PlanError::Chunks { stage_count, chunks_per_stage, layer_count } => {
            chunks(error, *layer_count / *stage_count, *layer_count / *chunks_per_stage)
        }
        PlanError::Generate(error) => generate(error, batch, workers),
        PlanError::Lanes(error) => {
            let (why, hint) = lanes_hint(error);
            FailureDetail::new(error.to_string()).at(lanes_key(error)).why(why).hint(hint)
        }
        PlanError::Slices { by, slice_count, sequence_len } => {
            let (why, hint) = slice_hint(*by, *slice_count, *sequence_len as u64);
            let hint = format!("--set schedule.slices={hint}");
            FailureDetail::new(error.to_string()).at("schedule.slices").why(why).hint(hint)
        }
        PlanError::Partition { .. } => {
            return CommandFailure::new(FailureCode::Internal, error.to_string());
        }
    };
    CommandFailure {
        code: FailureCode::Usage,
        what: "the run has no plan".to_owned(),
        details: vec![detail],
    }
}

/// The batch as a person sets it, in sequences.
#[derive(Clone, Copy)]
struct SequenceBatch {
    global_batch: u64,
    microbatch: u64,
}

impl SequenceBatch {
    fn of(config: &RunConfig) -> Self {
        let batch = &config.batch;
        let microbatch = batch.microbatch.sequences as u64;
        Self { global_batch: microbatch * u64::from(batch.microbatch_count), microbatch }
    }

    /// The microbatch nearest to the present one that makes a number of microbatches which `fits`,
    /// and that number.
    fn microbatch_for(self, fits: impl Fn(u64) -> bool) -> Option<(u64, u64)> {
        let sizes = (1..=self.global_batch).filter(|size| self.global_batch.is_multiple_of(*size));
        let counts = sizes.map(|size| (size, self.global_batch / size));
        counts
            .filter(|(_, count)| fits(*count))
            .min_by_key(|(size, _)| size.abs_diff(self.microbatch))
    }
}

fn stages(stage_count: u32, blocks: u32, weights: &WeightSource) -> FailureDetail {
    let fewer =
        if blocks == 1 { "--workers 1".to_owned() } else { format!("--workers {blocks} or fewer") };
    let hint = match weights {
        WeightSource::Drawn => format!("{fewer}, or --set model.layers={stage_count}"),
        WeightSource::HuggingFace { .. } => fewer,
    };
    FailureDetail::new(format!("{stage_count} workers for a model of {blocks} layers"))
        .at("--workers")
        .why("each worker is a stage, and a stage holds a layer or more")
        .hint(hint)
}

fn chunks(error: &PlanError, chunks_max: u32, workers_max: u32) -> FailureDetail {
    FailureDetail::new(error.to_string())
        .at("schedule.chunks")
        .why("a chunk holds half a block, the embedding or the head, or several of these")
        .hint(format!("--set schedule.chunks={chunks_max} or less, or --workers {workers_max}"))
}

fn generate(error: &GenerateError, batch: SequenceBatch, workers: u32) -> FailureDetail {
    let detail = FailureDetail::new(error.to_string());
    match error {
        GenerateError::StageCount { max, .. } => {
            detail.at("--workers").hint(format!("--workers 1 to --workers {max}"))
        }
        GenerateError::ChunkCount { expected, .. } => {
            detail.at("schedule.chunks").hint(format!("schedule.chunks = {}", expected.least()))
        }
        GenerateError::MicrobatchCount { .. } | GenerateError::PassCount { .. } => detail
            .at("train.microbatch")
            .why("every worker runs every microbatch, and lists them all in its program")
            .hint("a larger train.microbatch, or a smaller train.global_batch"),
        GenerateError::FewMicrobatches { kind, least, .. } => {
            let fewer = batch.microbatch_for(|count| count >= (*least).into());
            let smaller = fewer.map(|(size, count)| microbatch_hint(size, count));
            detail
                .at("schedule.kind")
                .why(if kind.replica_count() > 1 {
                    format!("each replica of {kind} runs a microbatch or more")
                } else {
                    format!("{kind} runs passes of different microbatches in pairs")
                })
                .hint(one_of(smaller.into_iter().chain([OTHER_SCHEDULE.to_owned()]).collect()))
        }
        GenerateError::OddStages { found, .. } => detail
            .at("--workers")
            .why("two directions meet in one slot of the middle worker")
            .hint(one_of(
                [found - 1, found + 1]
                    .into_iter()
                    .filter(|even| *even > 0)
                    .map(|even| format!("--workers {even}"))
                    .chain(["--schedule gems".to_owned(), OTHER_SCHEDULE.to_owned()])
                    .collect(),
            )),
        GenerateError::OddMicrobatches { .. } => {
            let even = batch.microbatch_for(|count| count.is_multiple_of(2));
            let other = even.map(|(size, count)| microbatch_hint(size, count));
            detail
                .at("schedule.kind")
                .why("each direction runs as many microbatches as the other")
                .hint(one_of(other.into_iter().chain([OTHER_SCHEDULE.to_owned()]).collect()))
        }
        GenerateError::UnevenGroups { stage_count, microbatch_count } => detail
            .at("schedule.kind")
            .why("interleaved deals microbatches in groups of one a worker")
            .hint(uneven_hint(batch, *stage_count, *microbatch_count, workers)),
        GenerateError::SliceCount { .. } => detail.at("schedule.slices"),
    }
}

/// Other numbers of microbatches, of workers, or another schedule.
fn uneven_hint(
    batch: SequenceBatch,
    stage_count: u32,
    microbatch_count: u32,
    workers: u32,
) -> String {
    let mut ways = Vec::new();
    let fits = |count: u64| count.is_multiple_of(stage_count.into());
    if let Some((size, count)) = batch.microbatch_for(fits) {
        ways.push(microbatch_hint(size, count));
    }
    let fewer = (1..workers).rev().find(|fewer| microbatch_count.is_multiple_of(*fewer));
    ways.extend(fewer.map(|fewer| format!("--workers {fewer}")));
    ways.push(OTHER_SCHEDULE.to_owned());
    one_of(ways)
}

/// It exists for every size.
const OTHER_SCHEDULE: &str = "--schedule 1f1b";

fn microbatch_hint(size: u64, count: u64) -> String {
    format!("--set train.microbatch={size} ({count} microbatches)")
}

fn one_of(mut ways: Vec<String>) -> String {
    let last = ways.pop().expect("there is a way");
    if ways.is_empty() { last } else { format!("{}, or {last}", ways.join(", ")) }
}

#[cfg(test)]
mod tests {
    use zbelastic_schedule::{ScheduleKind, Window};
    use zbelastic_trainer::plan::{Plan, PlanRequest, ReplicaCount};

    use super::plan_failure;
    use crate::tests::load_text;
    use zbelastic_wording::FailureCode;

    fn check(config: &str, kind: ScheduleKind, workers: u32, expected: &str) {
        let config = load_text(config).expect("legal").config;
        let request = PlanRequest {
            model: &config.model,
            batch: config.batch,
            kind,
            chunks_per_stage: config.chunks_per_stage,
            slice_count: None,
            stage_count: workers,
            replicas: ReplicaCount::ONE,
            window: Window::One,
        };
        let error = Plan::new(request).expect_err("there is no plan");
        let failure = plan_failure(&error, &config, workers);
        assert_eq!(failure.code, FailureCode::Usage);
        assert_eq!(failure.to_string(), expected);
    }

    #[test]
    fn more_workers_than_layers_are_refused() {
        check(
            "[model]\npreset = \"tiny\"",
            ScheduleKind::ZbH1,
            5,
            "error: the run has no plan
  --workers: 5 workers for a model of 4 layers
  why: each worker is a stage, and a stage holds a layer or more
  try: --workers 4 or fewer, or --set model.layers=5",
        );
    }

    #[test]
    fn more_chunks_than_layers_are_refused() {
        check(
            "[model]\npreset = \"tiny\"\n[schedule]\nchunks = 4\n",
            ScheduleKind::Gis,
            3,
            "error: the run has no plan
  schedule.chunks: 3 stages of 4 chunks for 10 parts of a model
  why: a chunk holds half a block, the embedding or the head, or several of these
  try: --set schedule.chunks=3 or less, or --workers 2",
        );
    }

    #[test]
    fn pairs_say_how_many_microbatches_would_do() {
        check(
            "[model]\npreset = \"tiny\"\n[train]\nglobal_batch = 12\nmicrobatch = 4",
            ScheduleKind::DualPipeV,
            2,
            "error: the run has no plan
  schedule.kind: dualpipe-v with 2 stages needs 4 microbatches or more, found 3
  why: dualpipe-v runs passes of different microbatches in pairs
  try: --set train.microbatch=3 (4 microbatches), or --schedule 1f1b",
        );
    }

    #[test]
    fn two_directions_say_how_many_lanes_would_do() {
        check(
            "[model]\npreset = \"tiny\"",
            ScheduleKind::Chimera,
            2,
            "error: the run has no plan
  train.lanes: chimera runs lanes in two directions: expected 2 lanes or more, found 1
  why: each direction adds up half of the lanes, and lanes are a part of the arithmetic
  try: train.lanes = 2 or more, or another schedule.kind",
        );
    }

    #[test]
    fn interleaved_says_which_numbers_would_do() {
        check(
            "[model]\npreset = \"tiny\"\n[train]\nglobal_batch = 18\nmicrobatch = 9",
            ScheduleKind::Interleaved,
            3,
            "error: the run has no plan
  schedule.kind: interleaved with 3 stages needs a multiple of 3 microbatches, found 2
  why: interleaved deals microbatches in groups of one a worker
  try: --set train.microbatch=6 (3 microbatches), --workers 2, or --schedule 1f1b",
        );
    }
}
