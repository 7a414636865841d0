//! A plan as it is in the log: which worker holds which stage and copies, and the program that all
//! workers run.

mod table;

use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_schedule::{Placement, Program, Window, check};
use zbelastic_types::{
    ChunkIndex, Digest, Generation, LayerId, LayerRange, NodeId, StageIndex, Step,
};

use crate::job::{JobSpec, STAGES_MAX, WindowPolicy};
use crate::member::{Holder, LossReason};
use crate::tick::Ticks;

/// Nodes named as the source of a layer.
pub const SOURCES_MAX: usize = 8;

/// Where a layer's state comes from when a plan begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerSource {
    /// From the memory of these nodes. A node that is named uses its own.
    Nodes(Vec<NodeId>),
    /// From a checkpoint, which has durable layers.
    Checkpoint {
        /// Version of the checkpoint: the number of steps sealed before it.
        version: Step,
        /// Digest of the layer's state that must be read.
        digest: Digest,
    },
    /// From the run's seed: the state before the first step.
    Initial,
}

impl LayerSource {
    /// Whether it is a checkpoint of this version.
    #[must_use]
    pub fn is_checkpoint(&self, of: Step) -> bool {
        match self {
            Self::Checkpoint { version, .. } => *version == of,
            Self::Nodes(_) | Self::Initial => false,
        }
    }
}

/// Whether an update is held elsewhere before it is sealed (rule R3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Promise {
    /// It is, at as many places as the job requires: so many nodes may be lost at once, and no
    /// sealed step is.
    Kept,
    /// No update is held elsewhere before it is sealed.
    Off(PromiseOff),
    /// It is, at every other stage; the job requires more places than there are.
    Fewer {
        /// Places: so many nodes may be lost at once.
        copies: u32,
    },
}

impl Promise {
    /// The promise of a plan over so many stages to a job that requires so many copies.
    #[must_use]
    pub fn of(wanted: u32, stage_count: u32) -> Self {
        match (wanted, copies_at(wanted, stage_count)) {
            (0, _) => Self::Off(PromiseOff::Configured),
            (_, 0) => Self::Off(PromiseOff::OneStage),
            (wanted, copies) if copies < wanted => Self::Fewer { copies },
            (_, _) => Self::Kept,
        }
    }

    /// Whether each update is held somewhere else before it is sealed.
    #[must_use]
    pub fn is_given(self) -> bool {
        match self {
            Self::Kept | Self::Fewer { .. } => true,
            Self::Off(_) => false,
        }
    }
}

/// Stages beside its own that hold each layer, of so many stages and so many that are wanted.
#[must_use]
pub fn copies_at(wanted: u32, stage_count: u32) -> u32 {
    wanted.min(stage_count.saturating_sub(1))
}

/// The stages that update the layers that `stage` speaks for, in the order of replicas: none if it speaks for
/// no layer.
fn group_of(placement: &Placement, stage: StageIndex) -> Vec<StageIndex> {
    // The replicas of a stage's chunks stand together.
    let own = placement.chunks_of(stage).find(|chunk| placement.shards().speaks(*chunk));
    let group = own.into_iter().flat_map(|chunk| {
        let has_shard = move |of: &ChunkIndex| {
            placement.shards().of_replica(*of) == placement.shards().of_replica(chunk)
        };
        placement.group_of(chunk).filter(has_shard)
    });
    let mut stages = Vec::new();
    for stage in group.filter_map(|chunk| placement.stage_of(chunk)) {
        if !stages.contains(&stage) {
            stages.push(stage);
        }
    }
    stages
}

/// The stages that count as holders of the layers of `stage` without keeping a copy: where there are
/// several pipelines all that train them, itself first. A second direction alone does not count: the
/// middle of an odd number of stages is its own.
#[must_use]
pub fn counted_holders(placement: &Placement, stage: StageIndex) -> Vec<StageIndex> {
    match placement.column_count() {
        1 => vec![stage],
        _ => group_of(placement, stage),
    }
}

/// Copies that other stages keep of the layers of `stage`, of so many other holders that are wanted: a
/// layer that several pipelines train has some without a copy. None of a stage that speaks for no layer.
#[must_use]
pub fn copies_beside(wanted: u32, placement: &Placement, stage: StageIndex) -> u32 {
    let others = counted_holders(placement, stage).len().checked_sub(1);
    let places = copies_at(wanted, placement.stage_count());
    others.map_or(0, |others| places.saturating_sub(others as u32))
}

/// Why no update is held elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PromiseOff {
    /// There is one stage only, and no other to hold a copy.
    OneStage,
    /// The configuration requires none.
    Configured,
}

/// Why there is a new plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanReason {
    /// The first plan of the job.
    First,
    /// A holder was lost.
    Lost {
        /// The holder that was lost, in its life then.
        holder: Holder,
        /// Why the holder is not counted on any more.
        reason: LossReason,
    },
    /// Nodes joined the cluster.
    Joined {
        /// Number of nodes that joined.
        count: u32,
    },
    /// Nodes are about to go.
    Draining {
        /// Number of nodes that are about to go.
        count: u32,
    },
    /// Nothing moved for too long, and no node is to blame.
    Stalled {
        /// Ticks without a seal.
        ticks: u32,
    },
    /// A layer could not be loaded.
    LoadFailed {
        /// Index of the layer in the model.
        layer: LayerId,
    },
    /// Two nodes reported different numbers for the same layer.
    Contradiction {
        /// Index of the layer in the model.
        layer: LayerId,
    },
    /// The run went back.
    Rewound,
    /// Going ahead does not pay, or pays again.
    WindowSwitched {
        /// The window of the new plan.
        window: Window,
        /// Rollbacks among the last seals.
        rollbacks: u32,
        /// Number of last seals that were looked at.
        seals: u32,
        /// Ticks the last verdicts were waited for.
        wait_ticks: u32,
    },
    /// Work is so much longer, or shorter, than the plan was made for that another one is better.
    Drifted {
        /// The part that drifted furthest from its planned time.
        part: DriftedPart,
        /// Microseconds it was planned with: of a stage, all passes of a microbatch.
        expected_us: u64,
        /// Microseconds that were measured.
        found_us: u64,
        /// The share of a step's time that the new plan saves, in thousandths.
        gain_permille: u32,
    },
    /// Workers stand in several replicas, and a plan in which each stands in one is faster.
    Uneven,
}

/// The work that lasts longer or shorter than a plan was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriftedPart {
    /// All passes of a stage over a microbatch.
    Stage {
        /// Index of the stage in the plan before.
        stage: StageIndex,
        /// The node that stood there.
        node: NodeId,
    },
    /// The transfer of a message between stages.
    Links,
}

impl PlanReason {
    /// Whether the plan before is given up for the time of its steps alone: one that is the same
    /// changes nothing.
    #[must_use]
    pub const fn is_for_time(&self) -> bool {
        self.is_drift() || matches!(self, Self::Uneven)
    }

    /// Whether the plan before is given up because work lasts longer, or shorter, than planned.
    #[must_use]
    pub const fn is_drift(&self) -> bool {
        match self {
            Self::Drifted { .. } => true,
            Self::First
            | Self::Lost { .. }
            | Self::Joined { .. }
            | Self::Draining { .. }
            | Self::Stalled { .. }
            | Self::LoadFailed { .. }
            | Self::Contradiction { .. }
            | Self::Rewound
            | Self::WindowSwitched { .. }
            | Self::Uneven => false,
        }
    }

    /// The reason, in which a lost member has its name, as the event of its loss has it.
    #[must_use]
    pub fn with_names(&self, name: impl Fn(NodeId) -> String) -> String {
        let Self::Lost { holder, reason } = self else { return self.to_string() };
        format!("node {} ({}) lost: {reason}", name(holder.node), holder.node)
    }
}

impl fmt::Display for PlanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => write!(f, "first plan"),
            Self::Lost { holder, reason } => write!(f, "{holder} lost: {reason}"),
            Self::Joined { count: 1 } => write!(f, "1 node joined"),
            Self::Joined { count } => write!(f, "{count} nodes joined"),
            Self::Draining { count: 1 } => write!(f, "1 node about to go"),
            Self::Draining { count } => write!(f, "{count} nodes about to go"),
            Self::Stalled { ticks } => write!(f, "no step sealed for {}", Ticks(*ticks)),
            Self::LoadFailed { layer } => write!(f, "layer {layer} could not be loaded"),
            Self::Contradiction { layer } => write!(f, "contradiction about layer {layer}"),
            Self::Rewound => write!(f, "rewound"),
            // The plan has the window.
            Self::WindowSwitched { window: _, rollbacks, seals, wait_ticks } => write!(
                f,
                "{rollbacks} of {seals} steps rolled back, {} waited for verdicts",
                Ticks(*wait_ticks)
            ),
            Self::Uneven => write!(f, "workers stood in several replicas"),
            Self::Drifted { part, expected_us, found_us, gain_permille } => {
                match part {
                    DriftedPart::Stage { stage, node } => write!(f, "stage {stage} (node {node})")?,
                    DriftedPart::Links => write!(f, "a message between stages")?,
                }
                let [expected, found] = [expected_us, found_us].map(|us| *us as f64 / 1e3);
                let gain = f64::from(*gain_permille) / 10.0;
                write!(
                    f,
                    " drifted: takes {found:.2} ms, {expected:.2} ms planned; another plan saves \
                     {gain:.1} % of a step"
                )
            }
        }
    }
}

/// A plan as it is agreed on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// Number of the plan: each is higher than all before it.
    pub generation: Generation,
    /// The holder of each stage, in pipeline order.
    pub stages: Vec<Holder>,
    /// For each stage, the stages whose holders keep a copy of its layers each.
    pub copies: Vec<Vec<StageIndex>>,
    /// Whether updates are held elsewhere before they are sealed.
    pub promise: Promise,
    /// The layers of each chunk, in model order; those of later replicas are the first one's.
    pub chunks: Vec<LayerRange>,
    /// The program of all stages, lowered from a schedule.
    pub program: Program,
    /// The step it begins with; its layers have this version.
    pub from_step: Step,
    /// Where each layer comes from.
    pub sources: Vec<LayerSource>,
    /// Digest that each layer must be loaded with, in model order; none where no inventory reported
    /// it.
    pub expected: Vec<Option<Digest>>,
    /// Ticks after which an operation of this plan hangs.
    pub op_ticks_max: u32,
    /// Why it was made: the event that led to it.
    pub reason: PlanReason,
}

/// Why a plan is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanRefusal {
    /// It does not follow the plan in force.
    #[error("a plan of generation {found}, expected {expected}")]
    Generation {
        /// The number after the highest given to a plan.
        expected: Generation,
        /// Number of the refused plan.
        found: Generation,
    },
    /// It begins at another step than the ledger.
    #[error("a plan from step {found}, the ledger is open at {open}")]
    FromStep {
        /// The step that waits for its seal.
        open: Step,
        /// The step that the plan begins with.
        found: Step,
    },
    /// Holders, copies or stages of the program differ in number.
    #[error("{found} holders and {copies} copies for {expected} stages")]
    Stages {
        /// Number of stages in the program.
        expected: u32,
        /// Number of holders in the plan.
        found: usize,
        /// Number of stages that copies are listed for.
        copies: usize,
    },
    /// A holder computes on other devices than the job: its bits would differ.
    #[error("{holder} computes on other devices than the job")]
    Class {
        /// The first such holder.
        holder: Holder,
    },
    /// A holder is not a live worker, or holds two stages.
    #[error("{holder} cannot stand at a stage")]
    Holder {
        /// The first such holder.
        holder: Holder,
    },
    /// The program has another number of microbatches than the job.
    #[error("a program of {found} microbatches, the job has {expected}")]
    Microbatches {
        /// Microbatches of the job.
        expected: u32,
        /// Microbatches of the program.
        found: u32,
    },
    /// The chunks of a later replica have other layers than the first one's.
    #[error("chunk {chunk} has other layers than its twin {twin}")]
    Twins {
        /// The chunk of the first replica.
        chunk: ChunkIndex,
        /// The chunk of the later replica.
        twin: ChunkIndex,
    },
    /// Chunks do not make up the model.
    #[error("{found} chunks up to layer {end}; expected {expected} up to {layer_count}")]
    Chunks {
        /// Number of chunks in the program.
        expected: u32,
        /// Number of chunks in the plan.
        found: usize,
        /// The layer behind the last one that the chunks cover.
        end: u32,
        /// Number of layers in the model.
        layer_count: u32,
    },
    /// Sources do not cover the layers.
    #[error("{found} sources for {expected} layers, or too many nodes in one")]
    Sources {
        /// Number of layers in the model.
        expected: u32,
        /// Number of sources in the plan.
        found: usize,
    },
    /// The program breaks a rule of programs.
    #[error("the program breaks {count} rules")]
    Program {
        /// Number of rules broken.
        count: usize,
    },
    /// Its shards are not the layers of a chunk, or one of them has none.
    #[error(
        "chunk {chunk} has {expected} layers and {found} in its shards, of which each must have some"
    )]
    Shards {
        /// The chunk, of the first replica.
        chunk: ChunkIndex,
        /// Layers of the chunk.
        expected: u64,
        /// Layers in its shards.
        found: u64,
    },
    /// Its window is not the one that the job requires, or it has none.
    #[error("the program's window is {found:?}")]
    Window {
        /// Window of the program.
        found: Option<Window>,
    },
    /// Copies are not where the promise requires them.
    #[error("the copies do not fit the promise {promise:?}")]
    Promise {
        /// The promise that the plan states.
        promise: Promise,
    },
}

impl PlanRecord {
    /// Indices of the stages, in pipeline order.
    pub fn stage_indices(&self) -> impl Iterator<Item = StageIndex> + use<> {
        (0..self.stages.len() as u32).map(StageIndex)
    }

    /// The stage of a holder.
    #[must_use]
    pub fn stage_of(&self, holder: Holder) -> Option<StageIndex> {
        let position = self.stages.iter().position(|found| *found == holder);
        position.map(|index| StageIndex(index as u32))
    }

    /// Whether a node trains the last layer, and so knows the loss.
    #[must_use]
    pub fn has_head(&self, node: NodeId) -> bool {
        let last = self.chunks.iter().flat_map(|chunk| chunk.layers()).max();
        last.is_some_and(|last| self.trains(node, last))
    }

    /// Whether a node trains a layer.
    #[must_use]
    pub fn trains(&self, node: NodeId, layer: LayerId) -> bool {
        let of_node = (0..).map(StageIndex).zip(&self.stages).filter(|(_, at)| at.node == node);
        of_node.flat_map(|(stage, _)| self.layers_at(stage)).any(|found| found == layer)
    }

    /// The stages of which `stage` keeps a copy.
    pub fn copied_by(&self, stage: StageIndex) -> impl Iterator<Item = StageIndex> + '_ {
        self.stage_indices().filter(move |of| self.copies[of.index()].contains(&stage))
    }

    /// The nodes that keep a copy of a stage's layers each.
    pub fn copy_holders(&self, of: StageIndex) -> impl Iterator<Item = Holder> + '_ {
        self.copies[of.index()].iter().map(|stage| self.stages[stage.index()])
    }

    /// The nodes that hold a stage's layers, each once: its owner, then the keepers of copies, then
    /// the holders that train them too.
    pub fn holders_of(&self, stage: StageIndex) -> impl Iterator<Item = Holder> + '_ {
        let copies = &self.copies[stage.index()];
        let twins = self.twins_of(stage).into_iter().filter(|twin| !copies.contains(twin));
        let twins = twins.map(|twin| self.stages[twin.index()]);
        std::iter::once(self.stages[stage.index()]).chain(self.copy_holders(stage)).chain(twins)
    }

    /// The window that the program runs with, if it has one.
    #[must_use]
    pub fn window(&self) -> Option<Window> {
        self.program.window
    }

    /// Checks everything that follows from the plan and the job alone.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, spec: &JobSpec) -> Result<(), PlanRefusal> {
        self.check_sizes(spec)?;
        self.check_chunks(spec)?;
        self.check_copies(spec)?;
        self.check_program(spec)
    }

    fn check_sizes(&self, spec: &JobSpec) -> Result<(), PlanRefusal> {
        let expected = self.program.placement.stage_count();
        let found = self.stages.len();
        let copies = self.copies.len();
        let is_fit = found == expected as usize && copies == found && found <= STAGES_MAX;
        if !is_fit || found > spec.stages_max as usize {
            return Err(PlanRefusal::Stages { expected, found, copies });
        }
        let twice = self.stages.iter().enumerate().find(|(index, holder)| {
            self.stages[..*index].iter().any(|other| other.node == holder.node)
        });
        if let Some((_, holder)) = twice {
            return Err(PlanRefusal::Holder { holder: *holder });
        }
        let is_bounded = |source: &LayerSource| match source {
            LayerSource::Nodes(nodes) => !nodes.is_empty() && nodes.len() <= SOURCES_MAX,
            LayerSource::Checkpoint { .. } | LayerSource::Initial => true,
        };
        let expected = spec.layer_count();
        let is_whole = [self.sources.len(), self.expected.len()] == [expected as usize; 2];
        if !is_whole || !self.sources.iter().all(is_bounded) {
            return Err(PlanRefusal::Sources { expected, found: self.sources.len() });
        }
        Ok(())
    }

    fn check_chunks(&self, spec: &JobSpec) -> Result<(), PlanRefusal> {
        let placement = &self.program.placement;
        let once = match placement.replica_count() {
            1 => self.chunks.len(),
            _ => self.chunks.len().min(placement.chunks_per_replica() as usize),
        };
        let mut end = 0;
        for chunk in &self.chunks[..once] {
            if chunk.ids().start == end {
                end = chunk.ids().end;
            }
        }
        let expected = placement.chunk_count();
        let found = self.chunks.len();
        let layer_count = spec.layer_count();
        let follows = |pair: &[LayerRange]| pair[0].ids().end == pair[1].ids().start;
        let is_whole = found == expected as usize && end == layer_count;
        if !is_whole || !self.chunks[..once].windows(2).all(follows) {
            return Err(PlanRefusal::Chunks { expected, found, end, layer_count });
        }
        let chunks = (0..once as u32).map(ChunkIndex);
        let mut pairs = chunks
            .flat_map(|chunk| placement.group_of(chunk).skip(1).map(move |twin| (chunk, twin)));
        let differ = |(chunk, twin): &(ChunkIndex, ChunkIndex)| {
            self.chunks[chunk.index()] != self.chunks[twin.index()]
        };
        if let Some((chunk, twin)) = pairs.find(differ) {
            return Err(PlanRefusal::Twins { chunk, twin });
        }
        let dealt = (0..).map(ChunkIndex).zip(placement.shards().layers()).zip(&self.chunks);
        for ((chunk, shards), layers) in dealt {
            let expected = layers.ids().len() as u64;
            let found = shards.iter().map(|count| u64::from(*count)).sum();
            if shards.contains(&0) || found != expected {
                return Err(PlanRefusal::Shards { chunk, expected, found });
            }
        }
        Ok(())
    }

    fn check_copies(&self, spec: &JobSpec) -> Result<(), PlanRefusal> {
        let stage_count = self.stages.len();
        let placement = &self.program.placement;
        let are_elsewhere = |(of, by): (usize, &Vec<StageIndex>)| {
            let of = StageIndex(of as u32);
            let has = counted_holders(placement, of);
            let expected = copies_beside(spec.copies, placement, of) as usize;
            let is_other = |(at, stage): (usize, &StageIndex)| {
                !has.contains(stage) && stage.index() < stage_count && !by[..at].contains(stage)
            };
            by.len() == expected && by.iter().enumerate().all(is_other)
        };
        let is_fit = self.promise == Promise::of(spec.copies, stage_count as u32)
            && self.copies.iter().enumerate().all(are_elsewhere);
        if is_fit { Ok(()) } else { Err(PlanRefusal::Promise { promise: self.promise }) }
    }

    fn check_program(&self, spec: &JobSpec) -> Result<(), PlanRefusal> {
        let expected = spec.microbatch_count;
        let found = self.program.microbatch_count;
        if expected != found {
            return Err(PlanRefusal::Microbatches { expected, found });
        }
        let found = self.window();
        let is_fit = match spec.window {
            WindowPolicy::Fixed(window) => found == Some(window),
            WindowPolicy::Auto => found.is_some(),
        };
        if !is_fit {
            return Err(PlanRefusal::Window { found });
        }
        check(&self.program).map_err(|violations| PlanRefusal::Program { count: violations.len() })
    }
}
