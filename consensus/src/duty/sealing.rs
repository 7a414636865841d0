//! When and how the open turn is sealed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use zbelastic_types::{LayerId, NodeId, StageIndex, Step};

use super::unplaced::UNPLACED_MAX;
use crate::history::SealHistory;
use crate::job::JobSpec;
use crate::member::Holder;
use crate::message::HeldUpdate;
use crate::mutant::{self, Mutant};
use crate::plan::PlanRecord;
use crate::state::{PlanPhase, State};
use crate::validation::{
    GradientReport, LayerFingerprint, LeaderHalf, Ledger, Proposal, Reason, ReportRefusal, Seal,
    TensorSum, Turn, Verdict,
};

/// How often a step that was sealed before is run again if it does not come out the same: a device
/// that stumbles is given time to recover.
pub const RECOMPUTE_REPLAYS_MAX: u32 = 8;

/// Why the open turn is not sealed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WithheldReason {
    /// The program does not run, or the job is held.
    NotRunning,
    /// Reports of stages are missing.
    Reports,
    /// A stage's update is not held everywhere that the plan promises (rule R3).
    NotHeld {
        /// The first such stage.
        stage: StageIndex,
    },
    /// A stage's state is not attested by its owner and every copy.
    NotAttested {
        /// The first such stage.
        stage: StageIndex,
    },
    /// As many steps as can be remembered were sealed since the last checkpoint.
    CheckpointOverdue,
    /// Several checkpoints, one after the other, could be written nowhere: no disk has room. The
    /// run goes on when one has.
    CheckpointsUnplaced {
        /// The last one that is there.
        last: Option<Step>,
    },
    /// The logs of so many controllers find hardly any space that the others would be no majority if
    /// these end for it. The run goes on when they have some.
    LogsFull {
        /// The controllers.
        nodes: BTreeSet<NodeId>,
    },
    /// The workers that hold the layers are about to go, no others are there to hand them over to,
    /// and the open version is a checkpoint or becomes one: the run goes on from it with the
    /// workers that come.
    Leaving,
    /// Holders of one stage computed different sums from the same gradient.
    Sums(Contradiction),
    /// Holders of one stage hold different states.
    State(Contradiction),
    /// The step was sealed before and comes out differently, again and again.
    DiffersFromLog {
        /// The step that comes out differently.
        step: Step,
    },
}

/// Pairs of holders of a stage's layers, its owner first, with reports that differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// The first layer in which reports of a pair differ.
    pub layer: LayerId,
    /// The pairs, in the order of the plan; one at least.
    pub pairs: Vec<(Holder, Holder)>,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (one, other)) in self.pairs.iter().enumerate() {
            write!(f, "{}{one} and {other}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl WithheldReason {
    /// Whether a disk with space is all that is missing.
    pub(super) const fn is_for_space(&self) -> bool {
        matches!(self, Self::CheckpointsUnplaced { .. } | Self::LogsFull { .. })
    }
}

impl fmt::Display for WithheldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning => write!(f, "nothing runs"),
            Self::Reports => write!(f, "reports are missing"),
            Self::NotHeld { stage } => {
                write!(f, "the update of stage {stage} is not held by all who keep its copies")
            }
            Self::NotAttested { stage } => {
                write!(f, "the state of stage {stage} is not attested")
            }
            Self::CheckpointOverdue => write!(f, "a checkpoint is overdue"),
            Self::CheckpointsUnplaced { last } => {
                write!(f, "the last {UNPLACED_MAX} checkpoints could be written nowhere, and ")?;
                match last {
                    Some(last) => write!(f, "all after {last} would be lost with the workers: ")?,
                    None => write!(f, "all would be lost with the workers: ")?,
                }
                write!(f, "it goes on when a disk has space again")
            }
            Self::LogsFull { nodes } => {
                let nodes: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
                let nodes = nodes.join(", ");
                write!(
                    f,
                    "hardly any space is left for the logs of controllers {nodes}, and the "
                )?;
                write!(f, "others are no majority: it goes on when there is some")
            }
            Self::Leaving => {
                write!(f, "its workers leave, and too few are there to hand over to: it is saved")
            }
            Self::Sums(found) => {
                write!(f, "{found} reported different sums of layer {}", found.layer)
            }
            Self::State(found) => {
                write!(f, "{found} hold different states of layer {}", found.layer)
            }
            Self::DiffersFromLog { step } => {
                write!(f, "step {step} comes out other than it was sealed")
            }
        }
    }
}

/// The reports on the open turn.
#[derive(Debug)]
pub struct OpenTurnReports {
    turn: Turn,
    leader: LeaderHalf,
    proposal: Option<Proposal>,
    reports: BTreeMap<StageIndex, (GradientReport, Vec<LayerFingerprint>)>,
    held: BTreeMap<(StageIndex, Holder), HeldUpdate>,
    /// The result of comparing the reports of all holders of a stage's layers, for each stage with
    /// a report: computed anew at each report of one of them, and not at those of other stages.
    compared: BTreeMap<StageIndex, Result<(), WithheldReason>>,
    /// The first stage of which not all holders have reported the same: those before it need no
    /// other look.
    first_open: StageIndex,
}

/// The report of one holder of a stage's layers on its update.
#[derive(Clone, Copy)]
struct HeldUpdateReport<'a> {
    by: Holder,
    sums: &'a [TensorSum],
    state: &'a [LayerFingerprint],
}

impl OpenTurnReports {
    /// The sealing of the open turn of `state`, without any report yet.
    #[must_use]
    pub fn new(state: &State, spec: &JobSpec) -> Self {
        let stage_count = state.plan().map_or(0, |plan| plan.record.stages.len() as u32);
        let leader = LeaderHalf::new(state.ledger(), spec.tensor_count(), spec.policy);
        let leader = leader.of_stages(stage_count);
        let turn = state.open_turn();
        let (reports, held, compared) = Default::default();
        let first_open = StageIndex(0);
        Self { turn, leader, proposal: None, reports, held, compared, first_open }
    }

    /// The turn that the reports are about.
    #[must_use]
    pub fn turn(&self) -> Turn {
        self.turn
    }

    /// Counts a report.
    ///
    /// # Errors
    /// If it contradicts another.
    pub fn handle_report(
        &mut self,
        state: &State,
        report: &GradientReport,
        attested: Vec<LayerFingerprint>,
    ) -> Result<(), ReportRefusal> {
        let proposal = self.leader.handle_report(state.ledger(), report)?;
        self.proposal = self.proposal.or(proposal);
        self.reports.insert(report.stage, (report.clone(), attested));
        self.compare(state, report.stage);
        Ok(())
    }

    /// Counts an update that the keeper of a copy holds.
    pub fn handle_held(&mut self, state: &State, holder: Holder, update: HeldUpdate) {
        let of = update.of;
        self.held.insert((of, holder), update);
        self.compare(state, of);
    }

    /// Compares the reports of all holders of a stage's layers so far.
    fn compare(&mut self, state: &State, stage: StageIndex) {
        let (Some(job), Some(plan)) = (state.job(), state.plan()) else { return };
        if stage.index() >= plan.record.stages.len() {
            return;
        }
        let found = self.check_stage(&job.spec, &plan.record, stage);
        if found.is_err() {
            self.first_open = self.first_open.min(stage);
        }
        self.compared.insert(stage, found);
        while let Some(Ok(())) = self.compared.get(&self.first_open) {
            self.first_open.0 += 1;
        }
    }

    /// The seal to propose.
    ///
    /// # Errors
    /// Why there is none.
    pub fn decide(&self, state: &State) -> Result<Seal, WithheldReason> {
        let spec = state.running_spec().ok_or(WithheldReason::NotRunning)?;
        let plan = state.plan().ok_or(WithheldReason::NotRunning)?;
        if plan.phase != PlanPhase::Running {
            return Err(WithheldReason::NotRunning);
        }
        let mut proposal = self.proposal.ok_or(WithheldReason::Reports)?;
        if mutant::is(Mutant::M16NormByStage) {
            proposal.seal.square_sum_bits = self.sum_by_stage().to_bits();
        }
        if plan.record.promise.is_given() {
            self.check_copies(spec, &plan.record)?;
        }
        self.check_twins(spec, &plan.record)?;
        // Looks at all members, so only once a step is complete.
        if state.is_left_alone() && state.training().is_being_kept()
            || state.training().plans().has_drained_holder(state.membership())
        {
            return Err(WithheldReason::Leaving);
        }
        let history = state.history();
        if self.turn.step >= history.head() && !state.training().can_remember_seal() {
            return Err(WithheldReason::CheckpointOverdue);
        }
        match history.logged(self.turn.step) {
            Some(logged) => repeated(logged, &proposal.seal, state.ledger()),
            None => Ok(proposal.seal),
        }
    }

    /// The sum of a leader with a known bug: another partition gives other bits.
    fn sum_by_stage(&self) -> f64 {
        let reports = self.reports.values().map(|(report, _)| &report.sums);
        let stages = reports.map(|sums| sums.iter().map(|sum| sum.square_sum).sum::<f64>());
        stages.sum()
    }

    /// R3: the copies that are promised exist on other nodes, and are the same there.
    fn check_copies(&self, spec: &JobSpec, plan: &PlanRecord) -> Result<(), WithheldReason> {
        let stage = self.first_open;
        if stage.index() >= plan.stages.len() {
            return Ok(());
        }
        match self.compared.get(&stage) {
            Some(found) => found.clone(),
            None => self.check_stage(spec, plan, stage),
        }
    }

    /// Checks that all holders of a stage's layers reported the same of its update.
    fn check_stage(
        &self,
        spec: &JobSpec,
        plan: &PlanRecord,
        stage: StageIndex,
    ) -> Result<(), WithheldReason> {
        let reported = self.update_reports(plan, stage)?;
        let sums = |one: HeldUpdateReport<'_>, other: HeldUpdateReport<'_>| {
            differing_sum(spec, one, other)
        };
        if let Some(found) = contradiction(&reported, sums) {
            return Err(WithheldReason::Sums(found));
        }
        if spec.attests(self.turn.step) { check_states(plan, stage, &reported) } else { Ok(()) }
    }

    /// The stages that train a layer's later replicas report their state too, with copies and
    /// without. They are compared with the owner alone: copies follow the owner's gradient, and do not
    /// check it.
    fn check_twins(&self, spec: &JobSpec, plan: &PlanRecord) -> Result<(), WithheldReason> {
        if !spec.is_attesting(self.turn.step) || plan.program.placement.replica_count() == 1 {
            return Ok(());
        }
        for stage in plan.stage_indices() {
            for twin in plan.twins_of(stage) {
                self.check_twin(plan, stage, twin)?;
            }
        }
        Ok(())
    }

    fn check_twin(
        &self,
        plan: &PlanRecord,
        stage: StageIndex,
        twin: StageIndex,
    ) -> Result<(), WithheldReason> {
        let state_of = |at: StageIndex| {
            let (_, state) = self.reports.get(&at).ok_or(WithheldReason::Reports)?;
            Ok(attested(plan, at, state))
        };
        let (own, _) = state_of(stage)?;
        let (_, later) = state_of(twin)?;
        // Those of the stage's layers: a twin may train later replicas of other layers too.
        let same = own.iter().filter_map(|(layer, _)| later.iter().find(|(of, _)| of == layer));
        let same: Vec<LayerFingerprint> = same.copied().collect();
        let report = |at: StageIndex, state| HeldUpdateReport {
            by: plan.stages[at.index()],
            sums: &[],
            state,
        };
        check_states(plan, stage, &[report(stage, own), report(twin, &same)])
    }

    /// The reports of all holders of a stage's layers, its owner first.
    fn update_reports(
        &self,
        plan: &PlanRecord,
        stage: StageIndex,
    ) -> Result<Vec<HeldUpdateReport<'_>>, WithheldReason> {
        let mut reported = Vec::new();
        for by in plan.copy_holders(stage) {
            match self.held.get(&(stage, by)) {
                Some(held) => {
                    reported.push(HeldUpdateReport { by, sums: &held.sums, state: &held.state })
                }
                None if mutant::is(Mutant::R3SealedBeforeHeld) => {}
                None => return Err(WithheldReason::NotHeld { stage }),
            }
        }
        let (report, state) = self.reports.get(&stage).ok_or(WithheldReason::Reports)?;
        let by = plan.stages[stage.index()];
        let (state, _) = attested(plan, stage, state);
        reported.insert(0, HeldUpdateReport { by, sums: &report.sums, state });
        Ok(reported)
    }
}

/// Checks that all reports of the state of a stage's layers are the same.
fn check_states(
    plan: &PlanRecord,
    stage: StageIndex,
    reported: &[HeldUpdateReport<'_>],
) -> Result<(), WithheldReason> {
    let layers = plan.layers_of(stage).count();
    if reported.iter().any(|report| report.state.len() != layers) {
        return Err(WithheldReason::NotAttested { stage });
    }
    contradiction(reported, differing_state)
        .map_or(Ok(()), |found| Err(WithheldReason::State(found)))
}

/// A stage's attestations of its own layers, and then of later replicas'.
fn attested<'a>(
    plan: &PlanRecord,
    stage: StageIndex,
    state: &'a [LayerFingerprint],
) -> (&'a [LayerFingerprint], &'a [LayerFingerprint]) {
    state.split_at(plan.layers_of(stage).count().min(state.len()))
}

/// The pairs that contradict each other, and the first layer in which one does.
fn contradiction(
    reported: &[HeldUpdateReport<'_>],
    differing: impl Fn(HeldUpdateReport<'_>, HeldUpdateReport<'_>) -> Option<LayerId>,
) -> Option<Contradiction> {
    let mut found: Option<Contradiction> = None;
    for (index, one) in reported.iter().enumerate() {
        for other in &reported[index + 1..] {
            let Some(layer) = differing(*one, *other) else { continue };
            let known = found.get_or_insert(Contradiction { layer, pairs: Vec::new() });
            known.pairs.push((one.by, other.by));
            known.layer = known.layer.min(layer);
        }
    }
    found
}

/// The layer of the first tensor with different sums.
fn differing_sum(
    spec: &JobSpec,
    one: HeldUpdateReport<'_>,
    other: HeldUpdateReport<'_>,
) -> Option<LayerId> {
    let differs = one.sums.iter().find(|sum| {
        let same = other.sums.iter().find(|other| other.tensor == sum.tensor);
        same.is_none_or(|other| !other.same_bits(sum))
    });
    differs.and_then(|sum| spec.layer_of(sum.tensor))
}

/// The first layer with different states.
fn differing_state(one: HeldUpdateReport<'_>, other: HeldUpdateReport<'_>) -> Option<LayerId> {
    let mut pairs = one.state.iter().zip(other.state);
    pairs.find(|(found, expected)| found != expected).map(|(found, _)| found.0)
}

/// The seal of a step that was sealed before a rewind: the same, if it comes out the same. A step
/// that was left out is left out again, because the fault that spoiled it need not come again.
fn repeated(logged: &Seal, found: &Seal, ledger: &Ledger) -> Result<Seal, WithheldReason> {
    let again = Seal { turn: found.turn, ..*logged };
    let is_taken = logged.verdict.coefficient().is_some();
    let is_same = logged.square_sum_bits == found.square_sum_bits
        && logged.loss_sum_bits == found.loss_sum_bits;
    if !is_taken || is_same {
        debug_assert!(SealHistory::agrees(logged, &again));
        return Ok(again);
    }
    let replays = ledger.replays();
    if replays >= RECOMPUTE_REPLAYS_MAX {
        return Err(WithheldReason::DiffersFromLog { step: logged.turn.step });
    }
    Ok(Seal {
        verdict: Verdict::Replay,
        reason: Reason::DiffersFromLog { replays },
        updates_after: ledger.updates(),
        cursor_after: found.turn.step,
        ..*found
    })
}
