//! The leader's count of reports on one attempt at one step.

use std::collections::BTreeSet;

use zbelastic_types::{StageIndex, TensorIndex};

use super::report::{GradientReport, TensorSum};
use super::seal::Turn;
use super::verdict::Reason;

/// Why a report was not counted. The tally stays as it was.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReportRefusal {
    /// It is about another generation, step or attempt.
    #[error("the report is about {found}, the open step is {expected}")]
    OtherTurn {
        /// The turn that waits for its seal.
        expected: Turn,
        /// The turn that the report is about.
        found: Turn,
    },
    /// It names a tensor the model does not have.
    #[error("stage {stage} reports tensor {tensor} of {tensor_count}")]
    UnknownTensor {
        /// The stage that sent the report.
        stage: StageIndex,
        /// Index of the tensor that the report names.
        tensor: TensorIndex,
        /// Number of tensors in the model.
        tensor_count: u32,
    },
    /// It has another sum for a tensor than an earlier report.
    #[error("stage {stage} reports {found} for tensor {tensor}, which was counted as {counted}")]
    Contradiction {
        /// The stage that sent the report.
        stage: StageIndex,
        /// Index of the tensor in the model.
        tensor: TensorIndex,
        /// The sum of squares counted before.
        counted: f64,
        /// The sum of squares in the report.
        found: f64,
    },
    /// It has another loss than an earlier report.
    #[error("stage {stage} reports a loss of {found}, which was counted as {counted}")]
    LossContradiction {
        /// The stage that sent the report.
        stage: StageIndex,
        /// The sum of cross-entropies counted before.
        counted: f64,
        /// The sum of cross-entropies in the report.
        found: f64,
    },
}

impl ReportRefusal {
    /// The name under which the refusal is counted.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::OtherTurn { .. } => "other-turn",
            Self::UnknownTensor { .. } => "unknown-tensor",
            Self::Contradiction { .. } | Self::LossContradiction { .. } => "contradicting-report",
        }
    }
}

/// Sums of all tensors, as far as they have come.
#[derive(Clone, Debug)]
pub struct Tally {
    turn: Turn,
    sums: Vec<Option<TensorSum>>,
    missing: usize,
    /// The stages that have reported.
    stages: BTreeSet<StageIndex>,
    loss_sum: Option<f64>,
    /// The first stage's own sum, which shows whether any stage went ahead.
    first_stage_sum: Option<f64>,
}

impl Tally {
    /// An empty tally for `turn` of a model with `tensor_count` tensors.
    #[must_use]
    pub fn new(turn: Turn, tensor_count: u32) -> Self {
        Self {
            turn,
            sums: vec![None; tensor_count as usize],
            missing: tensor_count as usize,
            stages: BTreeSet::new(),
            loss_sum: None,
            first_stage_sum: None,
        }
    }

    /// Counts a report. One that was counted before changes nothing.
    ///
    /// # Errors
    /// If the report is about another turn, or contradicts one that was counted.
    pub fn add(&mut self, report: &GradientReport) -> Result<(), ReportRefusal> {
        self.check(report)?;
        for sum in &report.sums {
            let slot = &mut self.sums[sum.tensor.index()];
            if slot.replace(*sum).is_none() {
                self.missing -= 1;
            }
        }
        self.stages.insert(report.stage);
        self.loss_sum = self.loss_sum.or(report.loss_sum);
        if report.stage == StageIndex(0) {
            let own = report.sums.iter().fold(0.0, |sum, tensor| sum + tensor.square_sum);
            self.first_stage_sum = Some(own);
        }
        Ok(())
    }

    fn check(&self, report: &GradientReport) -> Result<(), ReportRefusal> {
        let found = report.turn;
        if found != self.turn {
            return Err(ReportRefusal::OtherTurn { expected: self.turn, found });
        }
        let stage = report.stage;
        for sum in &report.sums {
            let tensor = sum.tensor;
            let Some(slot) = self.sums.get(tensor.index()) else {
                let tensor_count = self.sums.len() as u32;
                return Err(ReportRefusal::UnknownTensor { stage, tensor, tensor_count });
            };
            if let Some(counted) = slot.filter(|counted| !counted.same_bits(sum)) {
                let counted = counted.square_sum;
                let found = sum.square_sum;
                return Err(ReportRefusal::Contradiction { stage, tensor, counted, found });
            }
        }
        match (self.loss_sum, report.loss_sum) {
            (Some(counted), Some(found)) if counted.to_bits() != found.to_bits() => {
                Err(ReportRefusal::LossContradiction { stage, counted, found })
            }
            (Some(_) | None, Some(_) | None) => Ok(()),
        }
    }

    /// Everything counted, or `None` while a tensor or the loss is missing.
    #[must_use]
    pub fn summary(&self) -> Option<TallySummary> {
        if self.missing > 0 {
            return None;
        }
        let sums = self.sums.iter().map(|sum| sum.expect("no tensor is missing")).collect();
        let first_stage_sum = self.first_stage_sum.unwrap_or(0.0);
        Some(TallySummary { sums, loss_sum: self.loss_sum?, first_stage_sum })
    }

    /// How many stages have reported.
    #[must_use]
    pub fn stage_count(&self) -> u32 {
        self.stages.len() as u32
    }

    /// The turn of the reports that are counted.
    #[must_use]
    pub fn turn(&self) -> Turn {
        self.turn
    }
}

/// The complete sums of one attempt, in canonical tensor order.
#[derive(Clone, Debug, PartialEq)]
pub struct TallySummary {
    sums: Vec<TensorSum>,
    /// The sum of cross-entropies over the step's tokens.
    pub loss_sum: f64,
    /// The sum at the first stage's gate.
    pub first_stage_sum: f64,
}

impl TallySummary {
    /// The sum of squares over all tensors: one chain of additions in canonical order, in f64, so
    /// that it does not depend on the assignment of layers to stages.
    #[must_use]
    pub fn square_sum(&self) -> f64 {
        self.sums.iter().fold(0.0, |sum, tensor| sum + tensor.square_sum)
    }

    /// Why this step cannot be applied, if something is not finite.
    pub(super) fn nonfinite_reason(&self, replays: u32) -> Option<Reason> {
        let is_bad = |sum: &&TensorSum| sum.nonfinite > 0 || !sum.square_sum.is_finite();
        let mut bad = self.sums.iter().filter(is_bad);
        if let Some(first) = bad.next() {
            return Some(Reason::NonfiniteGradient {
                tensor: first.tensor,
                values: first.nonfinite,
                tensor_count: 1 + bad.count() as u32,
                replays,
            });
        }
        // Each may be finite and all together not: a norm of infinity would be clipped to nothing,
        // and blind the guard against spikes for as long as it is remembered.
        let mut total = 0.0;
        let overflow = self.sums.iter().find(|sum| {
            total += sum.square_sum;
            !f64::is_finite(total)
        });
        if let Some(TensorSum { tensor, .. }) = overflow {
            let tensor = *tensor;
            let values = 0;
            let tensor_count = 1;
            return Some(Reason::NonfiniteGradient { tensor, values, tensor_count, replays });
        }
        (!self.loss_sum.is_finite()).then_some(Reason::NonfiniteLoss { replays })
    }
}
