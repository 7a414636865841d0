//! The options of a life: everything is drawn from the seed, and printed.
//!
//! Swarm testing (Groce et al., ISSTA 2012): a life has some classes of faults and not others,
//! because a fault that is always injected hides the failures that only show without it.

mod text;

use serde::{Deserialize, Serialize};
use zbelastic_consensus::job::{STAGES_MAX, WindowPolicy};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::model::MicrobatchShape;
use zbelastic_trainer::outer::OuterConfig;
use zbelastic_trainer::plan::{BatchShape, LaneCount, ReplicaCount, SliceBalance};

use crate::island_options::draw_islands;
use crate::life_arithmetic::LifeArithmetic;
use crate::random::{DrawPurpose, Draws};
use crate::speed_drift::SpeedDrift;
use crate::work_durations::WorkDurations;

/// The duration of the shortest operation of a life.
pub(crate) const OP_US_LEAST: u64 = 1_000;

/// The compute model of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ComputeModelKind {
    /// Hashes in place of tensors.
    Digest,
    /// A small transformer with the real kernels.
    Float,
}

/// A class of faults; a life has it or has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FaultClass {
    /// The network loses messages.
    Loss,
    /// Some messages arrive twice.
    Duplication,
    /// Messages overtake each other by far.
    Reordering,
    /// Old frames come again.
    OldFrames,
    /// No messages pass between groups of nodes.
    Partitions,
    /// Processes die and come back.
    Crashes,
    /// Processes die at named points of the protocol.
    CrashPoints,
    /// Processes stand still and go on.
    Pauses,
    /// Operations last long, or never end.
    SlowWork,
    /// Disks are slow, fail, tear, forget or are lost.
    Disks,
    /// The checkpoint store loses and damages.
    Store,
    /// Gradients that are not finite.
    Numbers,
    /// Sums and states that are wrong.
    SilentErrors,
    /// Many nodes at once.
    Mass,
    /// Nodes join and leave, as real ones did.
    Churn,
    /// A majority of the voters is gone for good.
    MajorityLost,
}

impl FaultClass {
    /// All of them, from the least to the most disturbing.
    pub const ALL: [Self; 16] = [
        Self::Loss,
        Self::Duplication,
        Self::Reordering,
        Self::OldFrames,
        Self::Partitions,
        Self::Crashes,
        Self::CrashPoints,
        Self::Pauses,
        Self::SlowWork,
        Self::Disks,
        Self::Store,
        Self::Numbers,
        Self::SilentErrors,
        Self::Mass,
        Self::Churn,
        Self::MajorityLost,
    ];
}

/// The faults that the network applies to every message.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkOptions {
    /// Share of control messages that are lost.
    pub loss: f64,
    /// Share of tensor frames that are lost.
    pub frame_loss: f64,
    /// Share of messages that come twice.
    pub duplicates: f64,
    /// Share of messages that are under way far longer than others.
    pub late: f64,
    /// Share of messages of either kind that are kept and come again much later.
    pub old_frames: f64,
    /// Shortest delay of a message, in microseconds.
    pub delay_us_min: u64,
    /// Longest ordinary delay of a message, in microseconds.
    pub delay_us_max: u64,
    /// Longest delay of a late message, in microseconds.
    pub late_us_max: u64,
}

/// A life, but for the faults that are injected at drawn times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifeOptions {
    /// The compute model of the life.
    pub model: ComputeModelKind,
    /// Number of controllers of the cluster.
    pub controllers: u32,
    /// Workers at the beginning.
    pub workers: u32,
    /// Blocks of the model.
    pub blocks: u32,
    /// Number of microbatches of a step.
    pub microbatches: u32,
    /// Steps of the run.
    pub steps: u64,
    /// The schedule, where it exists.
    pub kind: ScheduleKind,
    /// Whether steps run ahead.
    pub window: WindowPolicy,
    /// Others that hold each update before it is sealed.
    pub copies: u32,
    /// A checkpoint after so many steps.
    pub checkpoint_every: u64,
    /// A checkpoint after so many ticks; 0 only by steps.
    #[serde(default)]
    pub checkpoint_ticks: u32,
    /// Number of checkpoints that are kept.
    pub checkpoints_kept: u32,
    /// Owners and copies compare their states at every so many steps.
    pub attest_every: u64,
    /// The policy for a gradient that is not finite.
    pub nonfinite: NonfinitePolicy,
    /// How often a step is run again.
    pub replays: u32,
    /// Whether spikes are skipped.
    pub spike_guard: bool,
    /// The share of a layer's gradients that are spikes; digest model only.
    pub spike_share: f64,
    /// The clip norm, as a share of the usual norm.
    pub clip_share: f64,
    /// Longest ordinary operation, in microseconds.
    pub op_us_max: u64,
    /// Entries after which a controller writes a snapshot.
    pub compact_after: u64,
    /// How far a node's clock may be off, as a share.
    pub clock_drift: f64,
    /// Longest sync of a disk, in microseconds.
    pub sync_us_max: u64,
    /// When faults end at the latest.
    pub storm_us: u64,
    /// Faults end as soon as no more than so many steps are left, so that there is something to do
    /// after them. 0: they end at their time alone.
    #[serde(default)]
    pub steps_after: u64,
    /// Share of reads from the store that fail.
    #[serde(default)]
    pub read_failures: f64,
    /// Workers on whose disks a piece of a checkpoint lies, its writer among them; 0 where all nodes
    /// reach all pieces.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub piece_copies: u32,
    /// The cluster begins with the program before this one, in the format before this one's, and
    /// its machines get this one as they start again.
    #[serde(default)]
    pub old_programs: bool,
    /// The duration of each kind of work, in a life where it may last longer than heartbeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<WorkDurations>,
    /// Whether the head of the model is tied to its embedding.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tied: bool,
    /// Whether some tensors of the model are frozen, in a life that computes with floats.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
    /// Whether adapters are trained and all else is frozen, in such a life.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lora: bool,
    /// Whether Muon updates the matrices of blocks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub muon: bool,
    /// The arithmetic of a life that computes with floats, if it is not the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arithmetic: Option<LifeArithmetic>,
    /// Partial sums that the gradient of a step is a tree of.
    #[serde(default, skip_serializing_if = "LaneCount::is_one")]
    pub lanes: LaneCount,
    /// Pipelines side by side, as far as there are workers.
    #[serde(default, skip_serializing_if = "ReplicaCount::is_one")]
    pub replicas: ReplicaCount,
    /// Whether the optimizer is sharded over replicas, as far as there are more than copies need.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sharded: bool,
    /// How fast machines are, in a life where plans follow that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<SpeedDrift>,
    /// How weights are exchanged with another island, if the cluster is one of two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub islands: Option<OuterConfig>,
    /// The faults of the network.
    pub network: NetworkOptions,
    /// The classes of faults there are.
    pub classes: Vec<FaultClass>,
}

/// The schedules that are drawn from. Seeds are written down (`regressions.txt`), so the draws of a
/// seed stay as they are when there are more schedules; those are orders of the same operations.
const KINDS: [ScheduleKind; 7] = [
    ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,
    ScheduleKind::Interleaved,
    ScheduleKind::ZbH1,
    ScheduleKind::ZbH2,
    ScheduleKind::ZbAuto,
    ScheduleKind::ZbV,
];

/// The duration of training without faults, as a share of the storm. Faults make it
/// longer.
const TRAINING_PERCENT: (u64, u64) = (70, 110);
/// Steps that are left when the storm ends, at least.
const STEPS_AFTER: (u64, u64) = (3, 8);
/// Share of reads from the store that fail, if the store is among the things that fail.
const READ_FAILURES: f64 = 0.03;
/// Workers at the beginning of a life that is not a large one, at most.
pub const WORKERS_FEW: u32 = 5;
/// The share of large lives, and of those among them that are as large as a cluster may be.
const LARGE_SHARE: f64 = 0.02;
const HUGE_SHARE: f64 = 0.001;
/// Fewest and most workers of a large life; the next line is for those as large as a cluster may
/// be.
const LARGE_WORKERS: (u32, u32) = (11, 64);
const HUGE_WORKERS: (u32, u32) = (65, 256);
/// Steps of a large life.
const LARGE_STEPS: u64 = 12;
/// The share of lives that have checkpoints by time.
const TIMED_SHARE: f64 = 0.2;
/// The share of lives in which programs are changed.
const OLD_PROGRAMS_SHARE: f64 = 0.2;
/// The share of lives whose model has a tied head.
const TIED_SHARE: f64 = 0.25;
/// The share of lives with floats whose model has frozen tensors.
const FROZEN_SHARE: f64 = 0.4;
/// The share of the other lives with floats whose model has adapters.
const LORA_SHARE: f64 = 0.4;
/// The share of lives whose model is trained by Muon.
const MUON_SHARE: f64 = 0.25;
/// The share of lives that have lanes, if their microbatches can be dealt to some, and of those among
/// them whose lanes run in two directions where there is an even number of stages.
const LANES_SHARE: f64 = 0.5;
const DIRECTIONS_SHARE: f64 = 0.25;
/// The share of lives with lanes that have replicas, if their workers suffice for two.
const REPLICAS_SHARE: f64 = 0.5;
/// The share of lives with replicas in which these share the optimizer.
const SHARDED_SHARE: f64 = 0.6;
/// The share of lives in which pieces of checkpoints lie on disks of workers, and the most workers that
/// have one.
const KEEPERS_SHARE: f64 = 0.3;
const KEEPERS_MAX: u64 = 2;
/// Ticks from one such checkpoint to the next: some steps.
const CHECKPOINT_TICKS: (u64, u64) = (40, 200);
/// Operations of a microbatch in a stage: F, B and W.
const MICROBATCH_OPS: u64 = 3;

/// The longest operation with which training lasts as long as this: steps follow each other, and in
/// each a microbatch goes through the stages behind all others.
fn op_us_max(training_us: u64, steps: u64, stages: u32, microbatches: u32) -> u64 {
    let ops = steps * MICROBATCH_OPS * u64::from(stages + microbatches - 1);
    // The shortest operation needs almost no time, so that half of the longest is the mean.
    2 * training_us / ops
}

/// Seven lives of ten keep copies, two of these seven keep two.
fn draw_copies(draws: &mut Draws) -> u32 {
    match draws.share() {
        share if share < 0.2 => 2,
        share if share < 0.7 => 1,
        _ => 0,
    }
}

/// What is not written, since it is what lives were before there was the option.
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl LifeOptions {
    /// The options of a seed.
    #[must_use]
    pub fn draw(seed: u64, model: ComputeModelKind) -> Self {
        let mut draws = Draws::new(seed, DrawPurpose::Options);
        let classes = draw_classes(&mut draws);
        let copies = draw_copies(&mut draws);
        let window = match draws.below(4) {
            0 => WindowPolicy::Fixed(Window::Zero),
            1 => WindowPolicy::Auto,
            _ => WindowPolicy::Fixed(Window::One),
        };
        let is_silent = classes.contains(&FaultClass::SilentErrors);
        let controllers = *draws.pick(&[1, 3, 3, 3, 5]);
        let workers = draws.between(1, 5) as u32;
        let blocks = draws.between(2, 4) as u32;
        let microbatches = draws.between(2, 4) as u32;
        let steps = draws.between(40, 56);
        let storm_us = draws.between(25, 60) * 1_000_000;
        let training_us = storm_us * draws.between(TRAINING_PERCENT.0, TRAINING_PERCENT.1) / 100;
        let mut options = Self {
            model,
            controllers,
            workers,
            blocks,
            microbatches,
            steps,
            kind: *draws.pick(&KINDS),
            window,
            copies: copies.max(u32::from(is_silent)),
            checkpoint_every: draws.between(3, 12),
            checkpoint_ticks: 0,
            checkpoints_kept: draws.between(2, 3) as u32,
            attest_every: if is_silent { 1 } else { draws.below(3) },
            nonfinite: *draws.pick(&[NonfinitePolicy::Skip, NonfinitePolicy::Replay]),
            replays: draws.below(3) as u32,
            spike_guard: draws.chance(0.3),
            spike_share: *draws.pick(&[0.0, 0.0, 0.004, 0.02]),
            clip_share: *draws.pick(&[0.8, 0.97, 1.0, 1.1, 10.0]),
            op_us_max: op_us_max(training_us, steps, workers.min(blocks), microbatches),
            compact_after: draws.between(20, 200),
            clock_drift: if draws.chance(0.5) { 0.15 } else { 0.0 },
            sync_us_max: if draws.chance(0.15) { 150_000 } else { draws.between(500, 12_000) },
            storm_us,
            steps_after: draws.between(STEPS_AFTER.0, STEPS_AFTER.1),
            read_failures: if classes.contains(&FaultClass::Store) { READ_FAILURES } else { 0.0 },
            pace: WorkDurations::draw(seed),
            tied: Draws::new(seed, DrawPurpose::Tied).chance(TIED_SHARE),
            frozen: model == ComputeModelKind::Float
                && Draws::new(seed, DrawPurpose::Frozen).chance(FROZEN_SHARE),
            lora: false,
            muon: Draws::new(seed, DrawPurpose::Muon).chance(MUON_SHARE),
            arithmetic: LifeArithmetic::draw(seed).filter(|_| model == ComputeModelKind::Float),
            lanes: LaneCount::ONE,
            replicas: ReplicaCount::ONE,
            sharded: false,
            drift: None,
            islands: None,
            piece_copies: 0,
            old_programs: false,
            network: draw_network(&mut draws, &classes),
            classes,
        };
        options.lora = model == ComputeModelKind::Float
            && !options.frozen
            && Draws::new(seed, DrawPurpose::Lora).chance(LORA_SHARE);
        options.extend(&mut Draws::new(seed, DrawPurpose::Extent));
        options.draw_lanes(&mut Draws::new(seed, DrawPurpose::Lanes));
        options.draw_replicas(&mut Draws::new(seed, DrawPurpose::Replicas));
        options.sharded = !options.replicas.is_one()
            && Draws::new(seed, DrawPurpose::Shards).chance(SHARDED_SHARE);
        options.draw_drift(seed, training_us);
        options.draw_piece_copies(&mut Draws::new(seed, DrawPurpose::Keepers));
        options.islands = draw_islands(&mut Draws::new(seed, DrawPurpose::Islands));
        options.old_programs = Draws::new(seed, DrawPurpose::Programs).chance(OLD_PROGRAMS_SHARE);
        options
    }

    /// Some lives have pieces on disks of workers. Not where machines come and go: a fleet that turns over
    /// takes all its disks along, and controllers, which keep pieces too, do not in lives.
    fn draw_piece_copies(&mut self, draws: &mut Draws) {
        if draws.chance(KEEPERS_SHARE) && !self.has(FaultClass::Churn) {
            self.piece_copies = draws.between(1, KEEPERS_MAX) as u32;
        }
    }

    /// The batch of a step.
    #[must_use]
    pub fn batch(&self) -> BatchShape {
        BatchShape {
            microbatch: MicrobatchShape { sequences: 1, sequence_len: 8 },
            microbatch_count: self.microbatches,
            cut_by: SliceBalance::Tokens,
            lanes: self.lanes,
        }
    }

    /// Some lives have lanes, as many as divide their microbatches; in some of these they run in two
    /// directions.
    fn draw_lanes(&mut self, draws: &mut Draws) {
        let most = 1 << self.microbatches.trailing_zeros();
        let few = most.min(2);
        if !draws.chance(LANES_SHARE) || most == 1 {
            return;
        }
        let found = *draws.pick(&[few, most]);
        self.lanes = LaneCount::new(found).expect("a power of two, of few microbatches");
        if draws.chance(DIRECTIONS_SHARE) {
            self.kind = ScheduleKind::Chimera;
        }
    }

    /// Some lives that have lanes have replicas, as many as their schedule has lanes for. Stages are few
    /// then, so that the workers suffice for several pipelines.
    fn draw_replicas(&mut self, draws: &mut Draws) {
        let most = self.lanes.get() / self.kind.replica_count();
        if !draws.chance(REPLICAS_SHARE) || most < 2 || self.workers < 2 {
            return;
        }
        let found = *draws.pick(&[2, most]);
        self.replicas = ReplicaCount::new(found).expect("a power of two, of few lanes");
        self.blocks = self.blocks.min(self.workers.div_ceil(2).max(2));
    }

    /// The most stages of a plan, over all replicas.
    #[must_use]
    pub fn stages_max(&self) -> u32 {
        (self.blocks * self.replicas.get()).min(STAGES_MAX as u32)
    }

    /// In some lives that are neither large nor full of long work machines differ in speed. Such a life has more
    /// steps, since speeds are measured over several.
    fn draw_drift(&mut self, seed: u64, training_us: u64) {
        if self.pace.is_some() || self.workers > WORKERS_FEW || self.workers < 2 {
            return;
        }
        let stages = self.workers.min(self.blocks);
        let Some((drift, steps)) = SpeedDrift::draw(seed, training_us, stages) else { return };
        if self.checkpoint_every == self.steps {
            self.checkpoint_every = steps;
        }
        self.drift = Some(drift);
        self.steps = steps;
    }

    /// Makes a few lives large, and others have checkpoints by time; of these half have none by steps.
    fn extend(&mut self, draws: &mut Draws) {
        let share = draws.share();
        let more = draws.share();
        if draws.chance(TIMED_SHARE) {
            let (ticks_min, ticks_max) = CHECKPOINT_TICKS;
            self.checkpoint_ticks = draws.between(ticks_min, ticks_max) as u32;
            if draws.chance(0.5) {
                self.checkpoint_every = self.steps;
            }
        }
        // Real kernels are too slow for so many stages.
        let range = match self.model {
            ComputeModelKind::Float => return,
            ComputeModelKind::Digest if share < HUGE_SHARE => HUGE_WORKERS,
            ComputeModelKind::Digest if share < LARGE_SHARE => LARGE_WORKERS,
            ComputeModelKind::Digest => return,
        };
        let workers_min = f64::from(range.0);
        let workers_max = f64::from(range.1);
        self.enlarge((workers_min + more * (workers_max - workers_min)) as u32);
    }

    /// The same life with so many workers, and a stage for each of them. It has fewer steps, so
    /// that it does not last much longer.
    pub fn enlarge(&mut self, workers: u32) {
        let training_us = self.storm_us * TRAINING_PERCENT.0 / 100;
        self.drift = None;
        (self.workers, self.blocks) = (workers, workers.max(self.blocks));
        if workers > WORKERS_FEW {
            self.steps = LARGE_STEPS;
            self.checkpoint_every = self.checkpoint_every.min(LARGE_STEPS);
        }
        let op_us = op_us_max(training_us, self.steps, workers, self.microbatches);
        self.op_us_max = op_us.max(OP_US_LEAST);
    }

    /// Whether a class of faults is there.
    #[must_use]
    pub fn has(&self, class: FaultClass) -> bool {
        self.classes.contains(&class)
    }

    /// The same life without a class of faults.
    #[must_use]
    pub fn without(&self, class: FaultClass) -> Self {
        let mut options = self.clone();
        options.classes.retain(|found| *found != class);
        let network = &mut options.network;
        match class {
            FaultClass::Loss => (network.loss, network.frame_loss) = (0.0, 0.0),
            FaultClass::Duplication => network.duplicates = 0.0,
            FaultClass::Reordering => network.late = 0.0,
            FaultClass::OldFrames => network.old_frames = 0.0,
            FaultClass::Store => options.read_failures = 0.0,
            FaultClass::Partitions
            | FaultClass::Crashes
            | FaultClass::CrashPoints
            | FaultClass::Pauses
            | FaultClass::SlowWork
            | FaultClass::Disks
            | FaultClass::Numbers
            | FaultClass::SilentErrors
            | FaultClass::Mass
            | FaultClass::Churn
            | FaultClass::MajorityLost => {}
        }
        options
    }
}

fn draw_classes(draws: &mut Draws) -> Vec<FaultClass> {
    let rare = |class: FaultClass| match class {
        FaultClass::MajorityLost => 0.06,
        FaultClass::SilentErrors => 0.25,
        FaultClass::Churn | FaultClass::Mass => 0.35,
        FaultClass::Loss
        | FaultClass::Duplication
        | FaultClass::Reordering
        | FaultClass::OldFrames
        | FaultClass::Partitions
        | FaultClass::Crashes
        | FaultClass::CrashPoints
        | FaultClass::Pauses
        | FaultClass::SlowWork
        | FaultClass::Disks
        | FaultClass::Store
        | FaultClass::Numbers => 0.5,
    };
    let mut classes: Vec<_> =
        FaultClass::ALL.into_iter().filter(|class| draws.chance(rare(*class))).collect();
    if classes.is_empty() {
        classes.push(FaultClass::Crashes);
    }
    classes
}

fn draw_network(draws: &mut Draws, classes: &[FaultClass]) -> NetworkOptions {
    let mut rate = |class: FaultClass, mild: f64, wild: f64| {
        let rate = if draws.chance(0.25) { wild } else { mild } * draws.share();
        if classes.contains(&class) { rate } else { 0.0 }
    };
    let loss = rate(FaultClass::Loss, 0.05, 0.3);
    let frame_loss = rate(FaultClass::Loss, 0.0005, 0.004);
    let duplicates = rate(FaultClass::Duplication, 0.05, 0.3);
    let late = rate(FaultClass::Reordering, 0.02, 0.2);
    let old_frames = rate(FaultClass::OldFrames, 0.02, 0.1);
    let delay_us_min = draws.between(50, 500);
    NetworkOptions {
        loss,
        frame_loss,
        duplicates,
        late,
        old_frames,
        delay_us_min,
        delay_us_max: delay_us_min + draws.between(100, 8_000),
        late_us_max: draws.between(20_000, 400_000),
    }
}
