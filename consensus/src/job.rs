//! The job that is trained, as far as the cluster must agree on it.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_schedule::Window;
use zbelastic_types::{Digest, LayerId, RunId, Step, TensorIndex};

use crate::class::DeviceKind;
use crate::history::SEALS_KEPT_MAX;
use crate::run::{RUN_NAME_BYTES_MAX, RUNS_MAX, is_run_name};
use crate::validation::GuardPolicy;

/// The most layers of a model.
pub const LAYERS_MAX: usize = 1024;
/// The most tensors of a model.
pub const TENSORS_MAX: u32 = 1 << 16;
/// Stages a plan may have: 32 machines of eight devices. A program of so many stages with twice as
/// many microbatches fills less than half of an entry.
pub const STAGES_MAX: usize = 256;
/// The most bytes of the document that describes a job.
pub const DOCUMENT_BYTES_MAX: usize = 64 << 10;
/// The most replays of one step that a job may allow: a step that is not finite by then never will
/// be.
pub const REPLAYS_MAX: u32 = 1000;
/// The most copies of each layer beside its owner's.
pub const COPIES_MAX: u32 = 2;

/// Steps from one checkpoint to the next at most: one may fail, and there is room for another.
pub const CHECKPOINT_EVERY_MAX: u64 = SEALS_KEPT_MAX as u64 / 2;

/// Whether steps run ahead of their verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WindowPolicy {
    /// The window that the configuration names.
    Fixed(Window),
    /// As the measured rate of rollbacks and the wait for verdicts suggest; begins ahead.
    Auto,
}

/// Where a run that branches off another begins: at the last checkpoint of one that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunOrigin {
    /// The run that the branch goes on from.
    pub run: RunId,
    /// The version of its checkpoint, and the branch's first.
    pub version: Step,
    /// The digest of the state there, as people compare it. It is not checked here: the layers'
    /// digests stand in the checkpoint.
    pub state: Digest,
}

impl RunOrigin {
    /// The run that wrote the checkpoint of a version of `run`, which begins at `from`: the version
    /// that a branch begins with was written by another.
    #[must_use]
    pub fn run_of(run: RunId, from: Option<Self>, version: Step) -> RunId {
        from.filter(|from| from.version == version).map_or(run, |from| from.run)
    }
}

/// The configuration of a run that decisions depend on. Batch and microbatches are here, and in no
/// plan: they do not depend on which nodes are there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Which run of the cluster it is. The log gives it when the run begins, and ignores the number
    /// that was proposed.
    pub run: RunId,
    /// Its name; no other run of the cluster has it.
    pub name: String,
    /// The version it branches off; none if it begins with weights of its own at step 0.
    pub from: Option<RunOrigin>,
    /// Names the whole configuration, including the parts that are not here.
    pub config: Digest,
    /// The whole configuration, read where a stage is built. It is not read here.
    pub document: Vec<u8>,
    /// Tensors in each layer, in model order.
    pub layer_tensors: Vec<u32>,
    /// Bytes of each layer's state as it travels, in model order; none if all are alike.
    pub layer_bytes: Vec<u64>,
    /// Microbatches in each step's batch.
    pub microbatch_count: u32,
    /// Number of steps of the run.
    pub step_count: u64,
    /// The conditions that a step must satisfy.
    pub policy: GuardPolicy,
    /// Whether steps run ahead of their verdict.
    pub window: WindowPolicy,
    /// Other workers that hold each update before it is sealed, as far as there are others.
    pub copies: u32,
    /// A checkpoint after every so many steps; 0 never.
    pub checkpoint_every: u64,
    /// A checkpoint when so many ticks of a leader have passed since the last one; 0 only by steps.
    /// Which versions become checkpoints depends on time then, and the bits of none of them does.
    pub checkpoint_ticks: u32,
    /// Number of checkpoints kept, the newest ones.
    pub checkpoints_kept: u32,
    /// Owners and copies compare their state's fingerprints at every so many steps; 0 never.
    pub attest_every: u64,
    /// The kind of devices that it computes on. Its class is that of the first node that has a part
    /// in it, until it ends.
    pub device: DeviceKind,
    /// The most stages that a plan may have.
    pub stages_max: u32,
    /// Workers without which no plan is made.
    pub workers_min: u32,
    /// Ticks without a heartbeat, until a member is lost. Here, because the next leader must wait
    /// as long as the present one.
    pub lost_after_ticks: u32,
    /// Ticks after the last change of members, until new members get a part in a plan.
    pub settle_ticks: u32,
}

/// Why a configuration is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobRefusal {
    /// Another job is under way.
    #[error("another job is under way")]
    UnderWay,
    /// This very job is there, and not ended by order: it can be watched.
    #[error("this job is there already")]
    Same,
    /// There is no job to change.
    #[error("there is no job")]
    Missing,
    /// Another run has this name: an ended one is kept until it is removed.
    #[error("a run called {name} is there already")]
    NameTaken {
        /// The name that another run has.
        name: String,
    },
    /// No run can be called so.
    #[error(
        "a run cannot be called {name:?}: 1 to {RUN_NAME_BYTES_MAX} of a-z, 0-9, '-', '_' and '.', the first a letter or a digit"
    )]
    Name {
        /// The name that is not allowed.
        name: String,
    },
    /// As many ended runs are kept as can be.
    #[error("{RUNS_MAX} ended runs are kept, which is the most: one must be removed first")]
    TooManyRuns,
    /// No such run is kept.
    #[error("there is no run {run}")]
    NoRun {
        /// Number of the run.
        run: RunId,
    },
    /// The run that a branch names has no such checkpoint, or is not over.
    #[error("run {run} is not over, or its last checkpoint is not that of version {version}")]
    Origin {
        /// Number of the run that the branch names.
        run: RunId,
        /// Version that the branch names.
        version: Step,
    },
    /// A branch has other layers than its origin.
    #[error("run {run} has another model")]
    OtherModel {
        /// Number of the run that the branch names.
        run: RunId,
    },
    /// A branch ends where it begins, or before.
    #[error("{step_count} steps, and it begins behind step {version}")]
    NoStepsLeft {
        /// The version it begins with.
        version: Step,
        /// Steps that the branch would have.
        step_count: u64,
    },
    /// A run that is under way has no other checkpoint than this one's.
    #[error("run {name} goes on from it and has no checkpoint of its own yet")]
    Needed {
        /// The run that is under way.
        name: String,
    },
    /// Every step of it is sealed: there is none left, or the job is over.
    #[error("the job is done")]
    Done,
    /// It was ended by order.
    #[error("the job was stopped")]
    Stopped,
    /// Only a job that is held goes back by order.
    #[error("the job is not paused")]
    NotHeld,
    /// It is held for a reason that a pause would hide; it can be continued.
    #[error("the job is held already: {reason}")]
    Halted {
        /// The reason why it is held.
        reason: HaltReason,
    },
    /// Nothing is trained, or too much.
    #[error("{layers} layers with {tensors} tensors; 1 to {LAYERS_MAX} and {TENSORS_MAX} allowed")]
    Size {
        /// Number of layers in the model.
        layers: usize,
        /// Number of tensors in the model.
        tensors: u64,
    },
    /// The document is too long.
    #[error("a document of {found} bytes, at most {DOCUMENT_BYTES_MAX}")]
    Document {
        /// Length of the document in bytes.
        found: usize,
    },
    /// The job requires more workers than a plan can have stages.
    #[error("at least {found} workers, a plan has up to {stages_max} stages")]
    Workers {
        /// Workers that the job requires.
        found: u32,
        /// Stages allowed by the job.
        stages_max: u32,
    },
    /// A count that must not be zero is.
    #[error("{field} is zero")]
    Zero {
        /// Name of the field that is zero.
        field: &'static str,
    },
    /// No such number of stages can be planned.
    #[error("up to {found} stages, a plan has up to {STAGES_MAX}")]
    Stages {
        /// Stages allowed by the job.
        found: u32,
    },
    /// A step is run again too often.
    #[error("up to {found} replays of a step, at most {REPLAYS_MAX}")]
    Replays {
        /// Replays allowed by the job.
        found: u32,
    },
    /// The bytes are not given for every layer.
    #[error("bytes of {found} layers, there are {expected}")]
    LayerBytes {
        /// Number of layers in the model.
        expected: usize,
        /// Number of layers with given bytes.
        found: usize,
    },
    /// More copies than are kept.
    #[error("{found} copies of each layer, at most {COPIES_MAX}")]
    Copies {
        /// Copies that the job requires.
        found: u32,
    },
    /// Checkpoints lie so far apart that the seals since the last one could not be remembered if
    /// one were missed.
    #[error("a checkpoint every {found} steps, at least every {CHECKPOINT_EVERY_MAX} is one due")]
    Every {
        /// Steps from one to the next.
        found: u64,
    },
}

impl JobRefusal {
    /// The name under which the refusal is counted.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::UnderWay => "job-under-way",
            Self::Same => "job-same",
            Self::Missing => "job-missing",
            Self::NameTaken { .. } => "job-name-taken",
            Self::Name { .. } => "job-name",
            Self::TooManyRuns => "job-too-many-runs",
            Self::NoRun { .. } => "job-no-run",
            Self::Origin { .. } => "job-origin",
            Self::OtherModel { .. } => "job-other-model",
            Self::NoStepsLeft { .. } => "job-no-steps-left",
            Self::Needed { .. } => "job-needed",
            Self::Done => "job-done",
            Self::Stopped => "job-stopped",
            Self::NotHeld => "job-not-held",
            Self::Halted { .. } => "job-halted",
            Self::Size { .. } => "job-size",
            Self::Document { .. } => "job-document",
            Self::Workers { .. } => "job-workers",
            Self::Zero { .. } => "job-zero",
            Self::Stages { .. } => "job-stages",
            Self::Replays { .. } => "job-replays",
            Self::LayerBytes { .. } => "job-layer-bytes",
            Self::Copies { .. } => "job-copies",
            Self::Every { .. } => "job-every",
        }
    }
}

impl JobSpec {
    /// Number of layers of the model.
    #[must_use]
    pub fn layer_count(&self) -> u32 {
        self.layer_tensors.len() as u32
    }

    /// Number of tensors of the model.
    #[must_use]
    pub fn tensor_count(&self) -> u32 {
        self.layer_tensors.iter().sum()
    }

    /// The tensors of each of these layers.
    #[must_use]
    pub fn tensors_of(&self, layers: &BTreeSet<LayerId>) -> Vec<Range<u32>> {
        let before = |layer: &LayerId| self.layer_tensors.iter().take(layer.index()).sum::<u32>();
        let count = |layer: &LayerId| self.layer_tensors.get(layer.index()).copied().unwrap_or(0);
        layers.iter().map(|layer| before(layer)..before(layer) + count(layer)).collect()
    }

    /// The layer that holds a tensor.
    #[must_use]
    pub fn layer_of(&self, tensor: TensorIndex) -> Option<LayerId> {
        let mut end = 0;
        let position = self.layer_tensors.iter().position(|count| {
            end += count;
            tensor.0 < end
        });
        position.map(|layer| LayerId(layer as u32))
    }

    /// Whether owners and copies attest the state that `step` begins with.
    #[must_use]
    pub fn attests(&self, step: Step) -> bool {
        self.copies > 0 && self.is_attesting(step)
    }

    /// Whether the state that `step` begins with is attested if another node holds it.
    #[must_use]
    pub fn is_attesting(&self, step: Step) -> bool {
        self.attest_every > 0 && step.0.is_multiple_of(self.attest_every)
    }

    /// The run that wrote the checkpoint of a version.
    #[must_use]
    pub fn run_of(&self, version: Step) -> RunId {
        RunOrigin::run_of(self.run, self.from, version)
    }

    /// Whether `version` becomes a checkpoint: every so many steps, and at the end.
    #[must_use]
    pub fn checkpoints(&self, version: Step) -> bool {
        let is_due = self.checkpoint_every > 0 && version.0.is_multiple_of(self.checkpoint_every);
        version.0 > 0 && (is_due || version.0 == self.step_count)
    }

    /// Whether there are to be checkpoints before the end.
    #[must_use]
    pub const fn schedules_checkpoints(&self) -> bool {
        self.checkpoint_every > 0 || self.checkpoint_ticks > 0
    }

    /// Checks the job against the limits of a cluster.
    ///
    /// # Errors
    /// If a size is out of bounds.
    pub fn check(&self) -> Result<(), JobRefusal> {
        let layers = self.layer_tensors.len();
        let tensors: u64 = self.layer_tensors.iter().map(|count| u64::from(*count)).sum();
        if layers == 0 || layers > LAYERS_MAX || tensors > u64::from(TENSORS_MAX) {
            return Err(JobRefusal::Size { layers, tensors });
        }
        let fewest = self.layer_tensors.iter().copied().min().unwrap_or(0);
        let counts = [
            // A stage without tensors would have nothing to report, and the leader would not wait
            // for it.
            ("layer_tensors", u64::from(fewest)),
            ("microbatch_count", u64::from(self.microbatch_count)),
            ("step_count", self.step_count),
            ("stages_max", u64::from(self.stages_max)),
            ("workers_min", u64::from(self.workers_min)),
            ("checkpoints_kept", u64::from(self.checkpoints_kept)),
            ("lost_after_ticks", u64::from(self.lost_after_ticks)),
        ];
        if let Some((field, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(JobRefusal::Zero { field });
        }
        let version = self.from.map_or(Step(0), |from| from.version);
        if version.0 >= self.step_count {
            let step_count = self.step_count;
            return Err(JobRefusal::NoStepsLeft { version, step_count });
        }
        let found = self.layer_bytes.len();
        if found != 0 && found != layers {
            return Err(JobRefusal::LayerBytes { expected: layers, found });
        }
        if self.stages_max as usize > STAGES_MAX {
            return Err(JobRefusal::Stages { found: self.stages_max });
        }
        let found = self.workers_min;
        let stages_max = self.stages_max;
        if found > stages_max {
            return Err(JobRefusal::Workers { found, stages_max });
        }
        if !is_run_name(&self.name) {
            return Err(JobRefusal::Name { name: self.name.clone() });
        }
        let found = self.document.len();
        if found > DOCUMENT_BYTES_MAX {
            return Err(JobRefusal::Document { found });
        }
        if self.policy.replays_max > REPLAYS_MAX {
            return Err(JobRefusal::Replays { found: self.policy.replays_max });
        }
        if self.copies > COPIES_MAX {
            return Err(JobRefusal::Copies { found: self.copies });
        }
        let found = self.checkpoint_every;
        if found > CHECKPOINT_EVERY_MAX { Err(JobRefusal::Every { found }) } else { Ok(()) }
    }
}

/// Why a run cannot go on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HaltReason {
    /// A step that was sealed comes out differently, again and again.
    DiffersFromLog {
        /// The step that comes out differently.
        step: Step,
    },
    /// No checkpoint can be read, and the beginning is too far back.
    NothingToRestore,
    /// Two nodes contradict each other, and nothing decides which one is right.
    Untrusted,
}

impl fmt::Display for HaltReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DiffersFromLog { step } => {
                write!(f, "step {step} comes out other than it was sealed")
            }
            Self::NothingToRestore => write!(f, "no checkpoint can be read"),
            Self::Untrusted => write!(f, "two nodes contradict each other"),
        }
    }
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobPhase {
    /// Under way: plans are made, and steps are sealed.
    Running,
    /// Held by order; it can be continued.
    Paused,
    /// Every step is sealed, and the checkpoint behind the last one is durable.
    Done,
    /// Held because going on would be wrong.
    Halted(HaltReason),
    /// Ended by order, for good: another job may begin.
    Stopped,
}

/// The job with its phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Configuration of the run that is trained.
    pub spec: Arc<JobSpec>,
    /// Whether it runs, is held, or has ended.
    pub phase: JobPhase,
}

impl Job {
    /// The configuration, if there are steps to seal.
    ///
    /// # Errors
    /// If the job is done, or was stopped.
    pub fn under_way(&self) -> Result<&Arc<JobSpec>, JobRefusal> {
        match self.phase {
            JobPhase::Done => Err(JobRefusal::Done),
            JobPhase::Stopped => Err(JobRefusal::Stopped),
            JobPhase::Running | JobPhase::Paused | JobPhase::Halted(_) => Ok(&self.spec),
        }
    }
}

/// A change of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JobChange {
    /// A job with this configuration begins.
    Start(Arc<JobSpec>),
    /// The job is held by order.
    Pause,
    /// A held job goes on.
    Continue,
    /// The job is held because going on would be wrong.
    Halt(HaltReason),
    /// It ends for good. Workers let go of it; its last checkpoint stays until it is removed.
    Stop,
    /// A run that ended is forgotten, and its checkpoint goes.
    Remove(RunId),
}
