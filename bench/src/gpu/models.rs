//! Whole training steps on a device: a model, a length of sequences, workers that share the device,
//! and a schedule.

use std::sync::Arc;

use serde::Serialize;
use zbelastic_kernels::cuda::GraphMode;
use zbelastic_kernels::cuda::device::Device;
use zbelastic_local::device_factory::DeviceFactory;
use zbelastic_schedule::ScheduleKind;
use zbelastic_wording::CommandFailure;

use crate::args::{GpuBenchModelName, MICROBATCH_TOKENS};
use crate::case::{BenchCase, pipeline};
use crate::pipelined::{PipelineRound, round_on};

/// A model that steps are measured of.
#[derive(Clone, Copy, Debug)]
pub struct GpuBenchModel {
    name: &'static str,
    /// Keys of its configuration, but for sequences.
    keys: &'static [&'static str],
}

/// A run of a model.
#[derive(Clone, Copy, Debug)]
pub struct GpuBenchRun {
    /// The model that is trained.
    pub model: GpuBenchModel,
    /// Length of a sequence, in tokens.
    pub sequence_len: u32,
    /// Sequences of a microbatch.
    pub sequences: u32,
    /// Microbatches of a step.
    pub microbatch_count: u32,
    /// Workers on the device, each a stage.
    pub workers: u32,
    /// Schedule of the workers.
    pub kind: ScheduleKind,
    /// Whether passes are started as graphs.
    pub graphs: GraphMode,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct GpuBenchRow {
    /// Name of the model.
    pub model: &'static str,
    /// Length of a sequence, in tokens.
    pub sequence_len: u32,
    /// Workers on the device.
    pub workers: u32,
    /// Their schedule; under `po-half` half of the activations are offloaded between F and B.
    pub schedule: &'static str,
    /// Whether passes were started as graphs.
    pub has_graphs: bool,
    /// Figures, or why there are none.
    pub outcome: Result<GpuBenchFigures, String>,
}

/// The figures of a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct GpuBenchFigures {
    /// Time of a step from seal to seal, in milliseconds.
    pub step_ms: f64,
    /// Tokens trained a second, by all workers together.
    pub tokens_per_s: f64,
    /// The model's own arithmetic beside that of one large product in the same time.
    pub mfu: f64,
    /// The share of a step in which the busiest stage waits.
    pub bubble: f64,
    /// Loss of the last step: for any number of workers and any schedule, the same bits.
    pub loss: f64,
}

impl GpuBenchModelName {
    const fn model(self) -> GpuBenchModel {
        match self {
            Self::Gpt2Small => SMALL_GPT2,
            Self::Gpt2Xl => LARGE_GPT2,
            Self::Llama => LLAMA,
        }
    }
}

/// GPT-2 with 124 million parameters (Radford et al., 2019). Its vocabulary is a multiple of 64
/// here and in the run that is compared with it: products of other widths are slow everywhere.
pub const SMALL_GPT2: GpuBenchModel =
    GpuBenchModel { name: "gpt2-124m", keys: &["model.preset=gpt2-124m", "model.vocab=50304"] };
/// GPT-2 with 1.5 billion.
const LARGE_GPT2: GpuBenchModel = GpuBenchModel {
    name: "gpt2-1.5b",
    keys: &[
        "model.preset=gpt2-124m",
        "model.vocab=50304",
        "model.layers=48",
        "model.width=1600",
        "model.heads=25",
    ],
};
/// A Llama of 1.1 billion parameters, with grouped queries.
const LLAMA: GpuBenchModel = GpuBenchModel {
    name: "llama-1b",
    keys: &[
        "model.preset=gpt2-124m",
        "model.family=llama",
        "model.layers=16",
        "model.width=2048",
        "model.heads=32",
        "model.kv_heads=8",
        "model.mlp_width=8192",
        "model.vocab=32000",
    ],
};

/// Workers and schedules that are compared: one worker and four, backward passes whole and split,
/// with and without activations that leave, and with and without graphs.
const PIPELINES: [(u32, ScheduleKind, GraphMode); 8] = [
    (1, ScheduleKind::OneFOneB, GraphMode::DEFAULT),
    (1, ScheduleKind::ZbH1, GraphMode::DEFAULT),
    (1, ScheduleKind::ZbH1, GraphMode::Off),
    (4, ScheduleKind::OneFOneB, GraphMode::DEFAULT),
    (4, ScheduleKind::ZbH1, GraphMode::DEFAULT),
    (4, ScheduleKind::ZbH1, GraphMode::Off),
    (4, ScheduleKind::Po, GraphMode::DEFAULT),
    (4, ScheduleKind::PoHalf, GraphMode::DEFAULT),
];

/// Microbatches of a step.
const MICROBATCHES: u32 = 8;

/// The runs of models and lengths of sequences. Runs in a row train one case.
pub fn runs(models: &[GpuBenchModelName], sequence_lens: &[u32]) -> Vec<Vec<GpuBenchRun>> {
    let cases = models.iter().flat_map(|named| sequence_lens.iter().map(|len| (*named, *len)));
    let pipelines = |(named, sequence_len): (GpuBenchModelName, u32)| {
        let run = |(workers, kind, graphs)| GpuBenchRun {
            model: named.model(),
            sequence_len,
            sequences: MICROBATCH_TOKENS / sequence_len,
            microbatch_count: MICROBATCHES,
            workers,
            kind,
            graphs,
        };
        PIPELINES.map(run).to_vec()
    };
    cases.map(pipelines).collect()
}

impl GpuBenchRun {
    fn keys(&self) -> Vec<String> {
        let own = [
            format!("train.seq_len={}", self.sequence_len),
            format!("train.microbatch={}", self.sequences),
            format!("train.global_batch={}", self.sequences * self.microbatch_count),
        ];
        let keys = self.model.keys.iter().map(|key| (*key).to_owned());
        keys.chain(own).collect()
    }

    /// Its case, with weights drawn, which is that of all pipelines of its model and length.
    ///
    /// # Errors
    /// If its configuration is not legal.
    pub fn case(&self) -> Result<BenchCase, CommandFailure> {
        BenchCase::configured(&self.keys())
    }

    /// Measures it; `flop_per_s` is the highest rate of the device.
    pub fn measure<D: Device + Send + Sync>(
        &self,
        case: &BenchCase,
        devices: Vec<Arc<D>>,
        (step_count, flop_per_s): (u64, f64),
    ) -> GpuBenchRow {
        let opened = devices.into_iter().map(|device| ("the device".to_owned(), device)).collect();
        let devices = DeviceFactory { opened, scratch: None, graphs: self.graphs };
        let round = round_on(&devices, case, self.kind, pipeline(self.workers), step_count);
        let figures = |round: PipelineRound| {
            let seconds = round.step.as_secs_f64();
            GpuBenchFigures {
                step_ms: 1e3 * seconds,
                tokens_per_s: case.batch.tokens() as f64 / seconds,
                mfu: case.step_flop() / seconds / flop_per_s,
                bubble: round.bubbles.measured,
                loss: round.loss,
            }
        };
        let outcome = match round {
            Ok(round) if round.loss.is_finite() => Ok(figures(round)),
            Ok(round) => Err(format!("the device failed: the loss is {}", round.loss)),
            Err(failure) => Err(failure.what),
        };
        let Self { model, sequence_len, workers, kind, graphs, .. } = *self;
        let model = model.name;
        let schedule = kind.name();
        let has_graphs = graphs != GraphMode::Off;
        GpuBenchRow { model, sequence_len, workers, schedule, has_graphs, outcome }
    }
}

/// Two runs of one model over the same text that do not end with the same loss.
#[must_use]
pub fn disagreeing(rows: &[GpuBenchRow]) -> Option<[&GpuBenchRow; 2]> {
    let loss = |row: &GpuBenchRow| row.outcome.as_ref().ok().map(|figures| figures.loss.to_bits());
    let differ = |one: &GpuBenchRow, other: &GpuBenchRow| {
        (one.model, one.sequence_len) == (other.model, other.sequence_len)
            && loss(one).is_some_and(|bits| loss(other).is_some_and(|other| other != bits))
    };
    let first_of = |row| rows.iter().find(|other| differ(row, other)).map(|other| [row, other]);
    rows.iter().find_map(first_of)
}

#[cfg(test)]
mod tests {
    use zbelastic_schedule::Window;
    use zbelastic_trainer::model::model_size;
    use zbelastic_trainer::plan::{Plan, PlanRequest, ReplicaCount};

    use super::*;
    use zbelastic_config::{ConfigFlag, ConfigSources, load};

    #[test]
    fn runs_are_of_models_that_exist_and_of_the_size_that_they_are_called() {
        let lens = [1024, 4096];
        for run in runs(&GpuBenchModelName::ALL, &lens).into_iter().flatten() {
            let flags = run.keys().into_iter().map(ConfigFlag::Set).collect();
            let config = load(&ConfigSources { file: None, flags }).expect("legal").config;
            let request = PlanRequest {
                model: &config.model,
                batch: config.batch,
                kind: run.kind,
                chunks_per_stage: None,
                slice_count: None,
                stage_count: run.workers,
                replicas: ReplicaCount::ONE,
                window: Window::One,
            };
            assert!(Plan::new(request).is_ok(), "{run:?}");
            let tokens = config.batch.tokens();
            assert_eq!(tokens, u64::from(MICROBATCH_TOKENS * MICROBATCHES), "{run:?}");
            let (_, weights) = model_size(&config.model);
            let millions = weights / 1_000_000;
            let expected = match run.model.name {
                "gpt2-124m" => 150..180,
                "gpt2-1.5b" => 1500..1700,
                _ => 1000..1200,
            };
            assert!(expected.contains(&millions), "{}: {millions} million", run.model.name);
        }
    }
}
