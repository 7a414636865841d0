//! How a run ends where what comes behind its last step does not fit.

use std::fs;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU32, Ordering};

use zbelastic_kernels::cuda::{Architecture, DeviceProbe, DeviceProperties};
use zbelastic_kernels::{AllocateError, CpuBackend, Precision};
use zbelastic_local::coordinator::TrainedWeights;
use zbelastic_local::executor_factory::ExecutorFactory;
use zbelastic_local::messages::HeldOutLoss;
use zbelastic_local::progress_event::ProgressEvent;
use zbelastic_trainer::stage::{BackendExecutor, StageSetup};
use zbelastic_types::LayerId;

use zbelastic_types::StageIndex;

use super::*;
use crate::args::{ConfigArgs, PageArgs};
use crate::run_files::{METRICS, MODEL, RUN, SAMPLE, TENSORBOARD};

/// Two steps of a small model on two workers.
fn prepared(schedule: &str) -> PreparedRun {
    let small =
        ["model.preset=tiny", "train.seq_len=16", "train.microbatch=1", "train.global_batch=2"];
    let config = ConfigArgs {
        schedule: Some(schedule.to_owned()),
        steps: Some("2".to_owned()),
        set: small.map(str::to_owned).to_vec(),
        ..ConfigArgs::default()
    };
    let args = TrainArgs {
        spot: zbelastic_preemption::NoticeSource::None,
        config,
        workers: Some(2),
        device: None,
        threads: Some(1),
        threads_only: true,
        json: false,
        out: None,
        branch: false,
        inject: Vec::new(),
        page: PageArgs::default(),
    };
    prepare(&args, |_| Ok(Interrupt::default())).expect("it fits")
}

/// Processors that have threads for so many backends and no more.
struct LimitedCpuFactory {
    processors: CpuFactory,
    left: AtomicU32,
}

impl ExecutorFactory for LimitedCpuFactory {
    type Executor = BackendExecutor<CpuBackend>;

    fn executor(
        &self,
        setup: &StageSetup,
        stage: StageIndex,
    ) -> Result<Self::Executor, AllocateError> {
        self.processors.executor(setup, stage)
    }

    fn weights(executor: &Self::Executor) -> Vec<(LayerId, Vec<f32>)> {
        CpuFactory::weights(executor)
    }

    fn name(&self, stage: StageIndex) -> String {
        self.processors.name(stage)
    }
}

impl StageBackendFactory for LimitedCpuFactory {
    type Backend = CpuBackend;

    fn backend(&self, stage: StageIndex) -> Result<CpuBackend, AllocateError> {
        let taken =
            self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        taken.map_err(|_| AllocateError::of_bytes(1))?;
        self.processors.backend(stage)
    }
}

/// The outcome of a run without steps where only so many backends can be made.
fn ended_with(backends: u32) -> RunOutcome {
    let prepared = prepared("pipedream-2bw");
    let processors = CpuFactory { threads: 1, precision: Precision::F32, scratch: None };
    let factory = LimitedCpuFactory { processors, left: AtomicU32::new(backends) };
    train_with(&factory, &prepared, &mut |_| ControlFlow::Continue(())).expect("it is trained")
}

#[test]
fn a_run_without_steps_keeps_its_weights_where_nothing_evaluates_them() {
    let evaluated = ended_with(3);
    assert!(evaluated.held_out.is_some() && evaluated.notes.is_empty(), "{:?}", evaluated.notes);
    let outcome = ended_with(2);
    assert_eq!((outcome.steps_done, outcome.held_out), (2, None));
    let layers = |outcome: &RunOutcome| match &outcome.weights {
        TrainedWeights::InMemory(layers) => layers.len(),
        TrainedWeights::Written(_) => panic!("threads write nothing"),
    };
    assert_eq!(layers(&outcome), layers(&evaluated));
    let [note] = &outcome.notes[..] else { panic!("{:?} is not one note", outcome.notes) };
    assert!(note.starts_with("no held-out loss: "), "{note}");
}

#[test]
fn a_run_without_a_sample_is_done() {
    let mut prepared = prepared("1f1b");
    let outcome = train_in_threads(&prepared, None, &mut |_| ControlFlow::Continue(()));
    let outcome = outcome.expect("it is trained");
    // No machine has this device, so that nothing is drawn there.
    let info = DeviceProperties {
        index: 4_095,
        name: "none".to_owned(),
        architecture: Architecture::new(9, 0),
        memory_bytes: 0,
        multiprocessor_count: 1,
    };
    let nowhere = DeviceProbe { info, library_version: 130_100, free_bytes: 0 };
    prepared.devices = RunDevices::Cuda(vec![nowhere]);
    let finished = FinishedRun { outcome, final_loss: 1.0, causes: None, is_interrupted: false };
    for audience in [OutputAudience::Person, OutputAudience::Script] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run");
        let mut folder = RunFolder::create(Some(&path), "unused", "").expect("new");
        let mut out = Vec::new();
        summary::write_end(&prepared, &finished, &mut folder, audience, &mut out).expect("done");
        let printed = String::from_utf8(out).expect("text");
        match audience {
            OutputAudience::Person => {
                assert!(
                    printed.contains("✔ 2 steps") && printed.contains("note: no sample: "),
                    "{printed}"
                );
            }
            OutputAudience::Script => {
                assert!(printed.lines().all(|line| line.contains("done")), "{printed}")
            }
        }
        assert_eq!(fs::read_to_string(path.join(SAMPLE)).expect("there"), "");
        let metrics = fs::read_to_string(path.join(METRICS)).expect("there");
        assert!(metrics.contains("\"done\""), "{metrics}");
        assert!(path.join(RUN).exists() && path.join(MODEL).join("model.safetensors").exists());
    }
}

#[test]
fn the_page_has_the_peak_that_mfu_of_the_lines_is_a_share_of() {
    let context =
        StepLineContext { step_count: 2, flop_per_token: 1e6, peak_flop_per_s: Some(3e9) };
    let costs = run_costs(Some(1.5), Some(&context));
    let expected = RunCosts {
        price_per_hour: Some(1.5),
        flop_per_token: Some(1e6),
        peak_flop_per_s: Some(3e9),
    };
    assert_eq!(costs, expected);
    assert_eq!(run_costs(None, None), RunCosts::default());
}

#[test]
fn the_heading_has_what_a_step_and_the_run_take_at_best() {
    let check = |peak_flop_per_s, step_count, bubble, expected: Option<&str>| {
        let context = StepLineContext { step_count, flop_per_token: 9e6, peak_flop_per_s };
        assert_eq!(summary::least_time(&context, 2000, bubble).as_deref(), expected);
    };
    let at_best = "at best 100 ms a step and 36s for 360 steps: arithmetic alone, at that peak";
    check(Some(180e9), 360, 0.0, Some(at_best));
    let waiting = "at best 200 ms a step and 1h00 for 18,000 steps: arithmetic alone, at that peak";
    check(Some(180e9), 18_000, 0.5, Some(waiting));
    check(None, 360, 0.0, None);
    check(Some(0.0), 360, 0.0, None);
}

/// A reader who has left.
struct ClosedPipe;

impl Write for ClosedPipe {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_nobody_reads_any_more_is_kept_in_the_run_folder() {
    let parent = tempfile::tempdir().expect("a folder");
    let path = parent.path().join("run");
    let mut folder = RunFolder::create(Some(&path), "tiny", "").expect("an empty folder");
    let mut out = ClosedPipe;
    let mut reporter = Reporter::new(&mut out, &mut folder, None, Vec::new());
    let evaluated = ProgressEvent::Evaluated(HeldOutLoss { steps_done: 3, loss: 2.5 });
    assert!(reporter.observe(&evaluated).is_break());
    assert!(reporter.finish().stop.is_some());
    let metrics = fs::read_to_string(path.join(METRICS)).expect("kept");
    assert_eq!(metrics.lines().count(), 1, "{metrics}");
    assert_eq!(fs::read_dir(path.join(TENSORBOARD)).expect("kept").count(), 1);
}
