//! The nodes of a play, and what is trained.

use std::sync::Arc;

use chaos_tests::case::LifeCase;
use chaos_tests::digest_model::DigestShape;
use chaos_tests::life::parts;
use chaos_tests::options::{ComputeModelKind, LifeOptions};
use zbelastic_consensus::codec::Format;
use zbelastic_consensus::job::{JobSpec, WindowPolicy};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::plan::LaneCount;
use zbelastic_trainer::stage::StageSetup;

/// Steps of the run: enough for something to happen in the middle of it.
pub const STEPS: u64 = 24;
/// Blocks of the model: the most stages a plan can have.
const BLOCKS: u32 = 4;
const SEED: u64 = 2024;
/// A share of the usual norm that no step comes near.
const NEVER_CLIPS: f64 = 10.0;

/// The nodes of a play, and under which promises they train.
#[derive(Clone, Debug)]
pub struct PlayOptions {
    /// Controllers, all of them voters.
    pub controllers: u64,
    /// Number of workers at the beginning.
    pub workers: u64,
    /// Stages at most: workers beyond them are spare.
    pub stages: u32,
    /// Other workers that hold each update before it is sealed (rule R3).
    pub copies: u32,
    /// A checkpoint after so many steps; 0 never.
    pub checkpoint_every: u64,
    /// A checkpoint after so many ticks; 0 only by steps.
    pub checkpoint_ticks: u32,
    /// The clip norm, as a share of the usual one.
    pub clip_share: f64,
    /// How often a step with a gradient that is not finite is run again.
    pub replays: u32,
    /// The schedule of the plan.
    pub kind: ScheduleKind,
    /// The format that the log begins with.
    pub format: Format,
}

impl Default for PlayOptions {
    fn default() -> Self {
        Self {
            controllers: 3,
            workers: 3,
            stages: BLOCKS,
            copies: 1,
            checkpoint_every: 0,
            checkpoint_ticks: 0,
            clip_share: NEVER_CLIPS,
            replays: 0,
            kind: ScheduleKind::ZbH1,
            format: Format::NEWEST,
        }
    }
}

/// What is trained, in the forms that the parts of a cluster are set up with.
pub struct PlaySetup {
    pub spec: Arc<JobSpec>,
    pub stage: StageSetup,
    pub shape: DigestShape,
    pub options: LifeOptions,
}

impl PlaySetup {
    pub fn new(cast: &PlayOptions) -> Self {
        let mut case = LifeCase::draw(SEED, ComputeModelKind::Digest);
        case.faults.clear();
        case.options = LifeOptions {
            blocks: BLOCKS,
            microbatches: 4,
            steps: STEPS,
            kind: cast.kind,
            lanes: LaneCount::new(cast.kind.replica_count()).expect("one direction, or two"),
            window: WindowPolicy::Fixed(Window::One),
            copies: cast.copies,
            checkpoint_every: cast.checkpoint_every,
            checkpoint_ticks: cast.checkpoint_ticks,
            checkpoints_kept: 2,
            attest_every: 1,
            nonfinite: if cast.replays > 0 {
                NonfinitePolicy::Replay
            } else {
                NonfinitePolicy::Skip
            },
            replays: cast.replays,
            spike_guard: false,
            clip_share: cast.clip_share,
            pace: None,
            ..case.options
        };
        let (spec, stage) = parts(&case);
        let spec = JobSpec { stages_max: cast.stages, ..spec };
        let layer_tensors = spec.layer_tensors.clone();
        let shape = DigestShape { seed: SEED, layer_tensors, spike_share: 0.0 };
        Self { spec: Arc::new(spec), stage, shape, options: case.options }
    }
}
