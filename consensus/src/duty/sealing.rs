//! When and how the open turn is sealed.

use std::collections::BTreeMap;
use std::fmt;

use zbelastic_types::{LayerId, StageIndex, Step};

use crate::checkpoint::LayerDigest;
use crate::history::History;
use crate::job::JobSpec;
use crate::member::Holder;
use crate::message::HeldUpdate;
use crate::mutant::{self, Mutant};
use crate::plan::{PlanRecord, Promise};
use crate::state::{PlanPhase, State};
use crate::validation::{
    Leader, Ledger, Proposal, Reason, Report, ReportRefusal, Seal, Turn, Verdict,
};

/// How often a step that was sealed before is run again if it does not come out the same: a device
/// that stumbles is given time to recover.
pub const RECOMPUTE_REPLAYS_MAX: u32 = 8;

/// Why the open turn is not sealed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// The program does not run, or the job is held.
    NotRunning,
    /// Reports are missing.
    Reports,
    /// A stage's update is not held elsewhere (rule R3).
    NotHeld {
        /// The first such stage.
        stage: StageIndex,
    },
    /// A stage's state is not attested by owner and copy.
    NotAttested {
        /// The first such stage.
        stage: StageIndex,
    },
    /// As many steps as can be remembered were sealed since the last checkpoint.
    CheckpointOverdue,
    /// Owner and copy computed different sums from the same gradient.
    Sums {
        /// The layer.
        layer: LayerId,
        /// Who reported.
        owner: Holder,
        /// Who keeps the copy.
        copy: Holder,
    },
    /// Owner and copy hold different states.
    State {
        /// The layer.
        layer: LayerId,
        /// Who owns it.
        owner: Holder,
        /// Who keeps the copy.
        copy: Holder,
    },
    /// The step was sealed before and comes out differently, again and again.
    DiffersFromLog {
        /// The step.
        step: Step,
    },
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning => write!(f, "nothing runs"),
            Self::Reports => write!(f, "reports are missing"),
            Self::NotHeld { stage } => {
                write!(f, "the update of stage {stage} is not held elsewhere")
            }
            Self::NotAttested { stage } => {
                write!(f, "the state of stage {stage} is not attested")
            }
            Self::CheckpointOverdue => write!(f, "a checkpoint is overdue"),
            Self::Sums { layer, owner, copy } => {
                write!(f, "{owner} and {copy} tell different sums of layer {layer}")
            }
            Self::State { layer, owner, copy } => {
                write!(f, "{owner} and {copy} hold different states of layer {layer}")
            }
            Self::DiffersFromLog { step } => {
                write!(f, "step {step} comes out other than it was sealed")
            }
        }
    }
}

/// What is known about the open turn.
#[derive(Debug)]
pub struct Sealing {
    turn: Turn,
    leader: Leader,
    proposal: Option<Proposal>,
    reports: BTreeMap<StageIndex, (Report, Vec<LayerDigest>)>,
    held: BTreeMap<StageIndex, HeldUpdate>,
}

impl Sealing {
    /// Nothing yet about the open turn of `state`.
    #[must_use]
    pub fn new(state: &State, spec: &JobSpec) -> Self {
        let leader = Leader::new(state.ledger(), spec.tensor_count(), spec.policy);
        let turn = state.open_turn();
        Self { turn, leader, proposal: None, reports: BTreeMap::new(), held: BTreeMap::new() }
    }

    /// The turn.
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
        report: &Report,
        attested: Vec<LayerDigest>,
    ) -> Result<(), ReportRefusal> {
        let proposal = self.leader.handle_report(state.ledger(), report)?;
        self.proposal = self.proposal.or(proposal);
        self.reports.insert(report.stage, (report.clone(), attested));
        Ok(())
    }

    /// Counts an update that is held elsewhere.
    pub fn handle_held(&mut self, update: HeldUpdate) {
        self.held.insert(update.of, update);
    }

    /// The seal to propose.
    ///
    /// # Errors
    /// Why there is none.
    pub fn decide(&self, state: &State) -> Result<Seal, Withheld> {
        let spec = state.running_spec().ok_or(Withheld::NotRunning)?;
        let plan = state.plan().ok_or(Withheld::NotRunning)?;
        if plan.phase != PlanPhase::Running {
            return Err(Withheld::NotRunning);
        }
        let mut proposal = self.proposal.ok_or(Withheld::Reports)?;
        if mutant::is(Mutant::M16NormByStage) {
            proposal.seal.square_sum_bits = self.sum_by_stage().to_bits();
        }
        if plan.record.promise == Promise::Kept {
            self.check_copies(spec, &plan.record)?;
        }
        let history = state.history();
        if self.turn.step >= history.head() && !state.has_room_for_seal() {
            return Err(Withheld::CheckpointOverdue);
        }
        match history.logged(self.turn.step) {
            Some(logged) => repeated(logged, &proposal.seal, state.ledger()),
            None => Ok(proposal.seal),
        }
    }

    /// What a leader with a known bug adds up: another partition gives other bits.
    fn sum_by_stage(&self) -> f64 {
        let reports = self.reports.values().map(|(report, _)| &report.sums);
        let stages = reports.map(|sums| sums.iter().map(|sum| sum.square_sum).sum::<f64>());
        stages.sum()
    }

    /// R3: what is promised to survive is elsewhere, and is the same there.
    fn check_copies(&self, spec: &JobSpec, plan: &PlanRecord) -> Result<(), Withheld> {
        let attests = spec.attests(self.turn.step);
        for stage in plan.stage_indices() {
            let Some(held) = self.held.get(&stage) else {
                if mutant::is(Mutant::R3SealedBeforeHeld) {
                    continue;
                }
                return Err(Withheld::NotHeld { stage });
            };
            let (report, attested) = self.reports.get(&stage).ok_or(Withheld::Reports)?;
            let owner = plan.stages[stage.index()];
            let copy = plan.copy_holder(stage).expect("the promise is kept by copies");
            if let Some(layer) = differing_sum(spec, report, held) {
                return Err(Withheld::Sums { layer, owner, copy });
            }
            if !attests {
                continue;
            }
            let layers = plan.layers_of(stage).count();
            if attested.len() != layers || held.state.len() != layers {
                return Err(Withheld::NotAttested { stage });
            }
            let pairs = attested.iter().zip(&held.state);
            if let Some((found, _)) = pairs.into_iter().find(|(found, copied)| found != copied) {
                return Err(Withheld::State { layer: found.0, owner, copy });
            }
        }
        Ok(())
    }
}

/// The layer of the first tensor whose sums differ.
fn differing_sum(spec: &JobSpec, report: &Report, held: &HeldUpdate) -> Option<LayerId> {
    let differs = report.sums.iter().find(|sum| {
        let copied = held.sums.iter().find(|copied| copied.tensor == sum.tensor);
        copied.is_none_or(|copied| !copied.same_bits(sum))
    });
    differs.and_then(|sum| spec.layer_of(sum.tensor))
}

/// What becomes of a step that was sealed before a rewind: the same, if it comes out the same. A
/// step that was left out is left out again, because what spoiled it need not come again.
fn repeated(logged: &Seal, found: &Seal, ledger: &Ledger) -> Result<Seal, Withheld> {
    let again = Seal { turn: found.turn, ..*logged };
    let is_taken = logged.verdict.coefficient().is_some();
    let is_same = logged.square_sum_bits == found.square_sum_bits
        && logged.loss_sum_bits == found.loss_sum_bits;
    if !is_taken || is_same {
        debug_assert!(History::agrees(logged, &again));
        return Ok(again);
    }
    let replays = ledger.replays();
    if replays >= RECOMPUTE_REPLAYS_MAX {
        return Err(Withheld::DiffersFromLog { step: logged.turn.step });
    }
    Ok(Seal {
        verdict: Verdict::Replay,
        reason: Reason::DiffersFromLog { replays },
        updates_after: ledger.updates(),
        cursor_after: found.turn.step,
        ..*found
    })
}
