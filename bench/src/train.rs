//! `bench train`: training steps of the benchmark models, serial and pipelined.

use std::io::Write;
use std::time::Duration;

use zbelastic_kernels::CpuBackend;
use zbelastic_machine::peak_flop_per_s;
use zbelastic_schedule::ScheduleKind;
use zbelastic_trainer::model::model_size;
use zbelastic_wording::{CommandError, CommandFailure};

use super::case::{BatchSplit, BenchCase, pipeline};
use super::memory::measure_apart;
use super::optimizer::OptimizerBench;
use super::out_of_resource;
use super::pipelined;
use super::report::{CaseReport, PipelinedFigures, SerialFigures, write_case};
use super::serial::{ENDLESS, PlainLoop, SerialEngine};
use crate::args::{BenchArgs, BenchConfig};

/// Schedules of the pipelined part.
const KINDS: [ScheduleKind; 3] = [ScheduleKind::OneFOneB, ScheduleKind::ZbH1, ScheduleKind::ZbV];
/// Stages of it, each with one thread.
const STAGES: u32 = 2;

/// A peak run lasts as long as a step, but for the largest models.
const PEAK_RUN_MAX: Duration = Duration::from_millis(400);

/// How long to measure.
#[derive(Clone, Copy)]
struct BenchEffort {
    rounds: u32,
    /// The least duration of a measure of one round.
    round_time: Duration,
}

impl BenchEffort {
    fn of(args: &BenchArgs) -> Self {
        match args.quick {
            true => Self { rounds: 2, round_time: Duration::from_millis(200) },
            false => Self { rounds: 6, round_time: Duration::from_millis(500) },
        }
    }

    /// Rounds when a step lasts `step`: fewer of long ones, which even out disturbances by
    /// themselves.
    fn rounds(self, step: Duration) -> u32 {
        if step > Duration::from_secs(1) { self.rounds.div_ceil(2) } else { self.rounds }
    }

    /// Steps of a round when one lasts `step`.
    fn steps(self, step: Duration) -> u32 {
        let count = self.round_time.as_secs_f64() / step.as_secs_f64().max(1e-6);
        (count.ceil() as u32).max(1)
    }
}

/// Runs `bench train`.
pub fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    for config in args.configs() {
        let report = measure(*config, BenchEffort::of(args))?;
        if args.json {
            writeln!(out, "{}", serde_json::to_string(&report).expect("numbers are JSON"))?;
        } else {
            write_case(&report, out)?;
        }
        out.flush()?;
    }
    Ok(())
}

fn measure(config: BenchConfig, effort: BenchEffort) -> Result<CaseReport, CommandFailure> {
    let case = BenchCase::new(config)?;
    let best = serial(&case, effort)?;
    let pipelined = pipelined(&case, effort)?;
    let (in_place, optimistic) = optimizer(&case, effort)?;
    let step_flop = case.step_flop();
    let rate = |step: Duration| step_flop / step.as_secs_f64();
    let tokens = case.batch.tokens() as f64;
    let row = |threads: usize, step: Duration| SerialFigures {
        threads,
        tokens_per_s: tokens / step.as_secs_f64(),
        step_ms: step.as_secs_f64() * 1e3,
        peak_share: rate(step) / best.peaks[threads - 1],
    };
    let engine_overhead = best.engine.as_secs_f64() / best.plain.as_secs_f64() - 1.0;
    let optimistic_ratio = optimistic.as_secs_f64() / in_place.as_secs_f64();
    // The memory of this process is given back before another one allocates as much.
    drop(case);
    Ok(CaseReport {
        config: config.name(),
        parameters: best.parameters,
        step_flop,
        peak_gflop_per_s: best.peaks[0] / 1e9,
        serial: vec![row(1, best.one_thread), row(2, best.two_threads)],
        pipelined,
        engine_overhead,
        optimistic_ratio,
        memory: measure_apart(config, ScheduleKind::ZbH1)?,
    })
}

/// The best rounds of the cases that run on one stage.
struct SerialBest {
    parameters: u64,
    /// Of one thread and of two.
    peaks: [f64; 2],
    one_thread: Duration,
    two_threads: Duration,
    /// One thread over the pipeline's microbatches, through the engine and in a plain loop.
    engine: Duration,
    plain: Duration,
}

fn serial(case: &BenchCase, effort: BenchEffort) -> Result<SerialBest, CommandFailure> {
    let setup = case.setup(ScheduleKind::GPipe, pipeline(1), BatchSplit::Microbatches, ENDLESS)?;
    let mut one_thread = SerialEngine::new(case, 1, BatchSplit::Whole)?;
    let mut two_threads = SerialEngine::new(case, 2, BatchSplit::Whole)?;
    let mut engine = SerialEngine::new(case, 1, BatchSplit::Microbatches)?;
    let mut plain = PlainLoop::new(&setup, case.corpus(BatchSplit::Microbatches)?, 1)?;
    let first = one_thread.steps(1);
    let steps = effort.steps(first);
    two_threads.steps(1);
    engine.steps(1);
    plain.steps(1);
    let mut best = SerialBest {
        parameters: model_size(&case.model).1,
        peaks: [0.0; 2],
        one_thread: Duration::MAX,
        two_threads: Duration::MAX,
        engine: Duration::MAX,
        plain: Duration::MAX,
    };
    for _ in 0..effort.rounds(first) {
        best.one_thread = best.one_thread.min(one_thread.steps(steps));
        best.two_threads = best.two_threads.min(two_threads.steps(steps));
        for (threads, peak) in (1..).zip(&mut best.peaks) {
            let duration = best.one_thread / threads as u32;
            let cpu = CpuBackend::new(threads).map_err(|error| out_of_resource(&error))?;
            *peak = peak.max(peak_flop_per_s(&cpu, duration.min(PEAK_RUN_MAX)));
        }
        // Turn by turn, because the difference of these two is small.
        for _ in 0..steps {
            best.engine = best.engine.min(engine.steps(1));
            best.plain = best.plain.min(plain.steps(1));
        }
    }
    Ok(best)
}

/// Pipelines, in turns with one thread alone.
fn pipelined(
    case: &BenchCase,
    effort: BenchEffort,
) -> Result<Vec<PipelinedFigures>, CommandFailure> {
    let mut alone = SerialEngine::new(case, 1, BatchSplit::Whole)?;
    let mut best_alone = alone.steps(1);
    let rounds = effort.rounds(best_alone);
    let steps = effort.steps(best_alone / STAGES).max(2);
    let mut best: [Option<pipelined::PipelineRound>; KINDS.len()] = [None; KINDS.len()];
    for _ in 0..rounds {
        best_alone = best_alone.min(alone.steps(steps.div_ceil(STAGES)));
        for (kind, best) in KINDS.into_iter().zip(&mut best) {
            let round = pipelined::round(case, kind, STAGES, steps.into())?;
            if best.is_none_or(|best| round.step < best.step) {
                *best = Some(round);
            }
        }
    }
    let tokens = case.batch.tokens() as f64;
    let row = |(kind, round): (ScheduleKind, Option<pipelined::PipelineRound>)| {
        let round = round.expect("there is a round");
        PipelinedFigures {
            schedule: kind.name(),
            tokens_per_s: tokens / round.step.as_secs_f64(),
            step_ms: round.step.as_secs_f64() * 1e3,
            speedup: best_alone.as_secs_f64() / round.step.as_secs_f64(),
            bubble_measured: round.bubbles.measured,
            bubble_planned: round.bubbles.planned,
        }
    };
    Ok(KINDS.into_iter().zip(best).map(row).collect())
}

/// A step of AdamW in place and an optimistic one, in turns.
fn optimizer(
    case: &BenchCase,
    effort: BenchEffort,
) -> Result<(Duration, Duration), CommandFailure> {
    let mut bench = OptimizerBench::new(case)?;
    let cpu = CpuBackend::new(1).map_err(|error| out_of_resource(&error))?;
    let optimistic_step = |bench: &mut OptimizerBench<'_>| {
        let [candidate, commit] = bench.optimistic(&cpu);
        candidate + commit
    };
    let first = bench.in_place(&cpu).max(optimistic_step(&mut bench));
    let mut in_place = Duration::MAX;
    let mut optimistic = Duration::MAX;
    for _ in 0..effort.rounds * effort.steps(first).min(64) {
        in_place = in_place.min(bench.in_place(&cpu));
        optimistic = optimistic.min(optimistic_step(&mut bench));
    }
    Ok((in_place, optimistic))
}
