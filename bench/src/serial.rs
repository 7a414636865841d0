//! One stage on this thread: the engine and the leader's half of validation, without messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zbelastic_consensus::validation::{LeaderHalf, Ledger};
use zbelastic_data::training_data::TrainingData;
use zbelastic_kernels::{Backend, CpuBackend};
use zbelastic_schedule::ScheduleKind;
use zbelastic_trainer::model::model_size;
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::{
    BackendExecutor, EngineProgress, Event, Output, StageEngine, StageSetup,
};
use zbelastic_types::{StageIndex, Step};
use zbelastic_wording::CommandFailure;

use super::case::{BatchSplit, BenchCase, pipeline};
use super::out_of_resource;

/// More steps than a benchmark runs, so that a run never comes to its end.
pub const ENDLESS: u64 = 1_000_000;

/// A run on one stage that is advanced step by step.
pub struct SerialEngine {
    engine: StageEngine<BackendExecutor<CpuBackend>, Arc<TrainingData>>,
    ledger: Ledger,
    leader: LeaderHalf,
}

impl SerialEngine {
    /// The whole model as one stage.
    pub fn new(
        case: &BenchCase,
        threads: usize,
        split: BatchSplit,
    ) -> Result<Self, CommandFailure> {
        Self::reading(case, threads, split, case.corpus(split)?)
    }

    /// The same over other text.
    pub fn reading(
        case: &BenchCase,
        threads: usize,
        split: BatchSplit,
        data: Arc<TrainingData>,
    ) -> Result<Self, CommandFailure> {
        let setup = case.setup(ScheduleKind::ZbH1, pipeline(1), split, ENDLESS)?;
        let ledger = Ledger::new(setup.plan.generation, Step(0), 0);
        let leader = LeaderHalf::new(&ledger, model_size(&case.model).0, case.policy());
        let backend = CpuBackend::new(threads).map_err(|error| out_of_resource(&error))?;
        let engine = StageEngine::new(Arc::new(setup), StageIndex(0), backend, data);
        Ok(Self { engine: engine.map_err(|error| out_of_resource(&error))?, ledger, leader })
    }

    /// Runs until `count` more steps are sealed, and returns the time for one.
    pub fn steps(&mut self, count: u32) -> Duration {
        let began = Instant::now();
        for _ in 0..count {
            self.step();
        }
        began.elapsed() / count
    }

    fn step(&mut self) {
        let before = self.ledger.open_turn().step;
        while self.ledger.open_turn().step == before {
            let progress = self.engine.run_next();
            assert!(matches!(progress, EngineProgress::Ran(_)), "one stage waits for nobody");
            while let Some(output) = self.engine.poll_output() {
                match output {
                    Output::Sealed { .. } => {}
                    Output::Report { report, .. } => {
                        let counted = self.leader.handle_report(&self.ledger, &report);
                        let proposal = counted.expect("in turn").expect("there is one stage");
                        self.ledger.apply(&proposal.seal).expect("about the open turn");
                        self.engine.handle(Event::Seal(proposal.seal)).expect("in turn");
                    }
                    Output::Frame { .. }
                    | Output::Prefix { .. }
                    | Output::Gradients { .. }
                    | Output::Partial { .. }
                    | Output::Outer(_)
                    | Output::Evaluated { .. } => {
                        unreachable!("one stage sends to nobody")
                    }
                }
            }
        }
    }
}

/// The plain loop over the same microbatches: B and W of a layer together, the norm, AdamW in
/// place.
pub struct PlainLoop<B: Backend> {
    run: SerialReference<B, Arc<TrainingData>>,
    step: Step,
}

impl PlainLoop<CpuBackend> {
    /// The loop over the batches of `setup`.
    pub fn new(
        setup: &StageSetup,
        corpus: Arc<TrainingData>,
        threads: usize,
    ) -> Result<Self, CommandFailure> {
        let backend = CpuBackend::new(threads).map_err(|error| out_of_resource(&error))?;
        let run = SerialReference::new(setup, backend, corpus);
        Ok(Self { run: run.map_err(|error| out_of_resource(&error))?, step: Step(0) })
    }

    /// Runs `count` more steps, and returns the time for one.
    pub fn steps(&mut self, count: u32) -> Duration {
        let began = Instant::now();
        for _ in 0..count {
            self.run.step_in_place(self.step);
            self.step = self.step.next();
        }
        began.elapsed() / count
    }
}
