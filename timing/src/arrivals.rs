//! How long a message occupies its link, derived from its time in all.
//!
//! A message needs latency, and time for each of its bytes. Messages of one length show only the
//! sum; those of two lengths on the same link show both. Boundary tensors are of one length, a
//! stage's gradient for the stage that keeps its copy is much longer, and sums of the stages before
//! have no floats at all. Each is sent when an operation ends, by the sender's clock, and arrives
//! by the receiver's. The difference of these clocks is in the times of both lengths, and not in
//! their difference.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zbelastic_consensus::validation::Turn;
use zbelastic_schedule::{Compute, Flow, Op, Pass, UpdateOp};
use zbelastic_trainer::elastic::GradientPart;
use zbelastic_trainer::runtime::{MessageNumber, PeerBody};
use zbelastic_trainer::stage::{EngineActivity, PassMode};
use zbelastic_types::{Bytes, StageIndex};

use super::causes::{made, passes_of};
use super::{DurationSamples, MeasuredSlice, RunTiming, SliceActivity, US_MAX};

/// Arrivals that a stage reports at once, and that are kept of it: a step has two of each
/// microbatch and chunk, and few others.
pub const ARRIVALS_REPORTED_MAX: usize = 1024;
const ARRIVALS_STORED_MAX: usize = 4 * ARRIVALS_REPORTED_MAX;
/// How many times longer one message has to be for the two lengths to separate latency and rate.
const LENGTHS_APART: u64 = 2;

/// Kind of a message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArrivalKind {
    /// A boundary tensor of a pass.
    Boundary {
        /// Turn that the pass belongs to.
        turn: Turn,
        /// Whether it is an activation or a gradient.
        flow: Flow,
        /// The pass that reads it.
        pass: Pass,
    },
    /// The sums of the stages before.
    Prefix {
        /// Turn that the sums belong to.
        turn: Turn,
    },
    /// A stage's gradient, for the copy of it.
    Gradients {
        /// Turn that the gradient belongs to.
        turn: Turn,
        /// Stage that the gradient is of.
        of: StageIndex,
    },
}

/// A message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageArrival {
    /// Kind of the message.
    pub what: ArrivalKind,
    /// Bytes of its floats.
    pub bytes: u64,
    /// When all of it was here, on the receiver's clock.
    pub at_us: f64,
}

impl MessageArrival {
    /// The arrival of a message, if it is one on a timed link.
    pub fn of(body: &PeerBody, at_us: f64) -> Option<Self> {
        let (what, floats) = match body {
            PeerBody::Frame(frame) => match frame.mode {
                PassMode::Training => {
                    let turn = frame.turn;
                    let flow = frame.flow;
                    let pass = frame.pass;
                    (ArrivalKind::Boundary { turn, flow, pass }, frame.tensor.len())
                }
                PassMode::Evaluation => return None,
            },
            PeerBody::Prefix(prefix) => (ArrivalKind::Prefix { turn: prefix.turn }, 0),
            // Of more than one message, those behind the first wait for those before them.
            PeerBody::Gradients { turn, of, number: MessageNumber { count: 1, .. }, parts } => {
                let floats = parts.iter().map(GradientPart::len).sum();
                (ArrivalKind::Gradients { turn: *turn, of: *of }, floats)
            }
            PeerBody::Gradients { .. } => return None,
            PeerBody::Fetch { .. }
            | PeerBody::Layer(_)
            | PeerBody::StandbyRequest { .. }
            | PeerBody::StandbyLayer { .. }
            | PeerBody::StandbyUpdate { .. }
            | PeerBody::Partial(_) => return None,
        };
        Some(Self { what, bytes: Bytes::of_f32(floats).0, at_us })
    }

    /// Whether its time can be.
    pub fn is_sound(&self) -> bool {
        (0.0..=US_MAX).contains(&self.at_us)
    }
}

/// Times from sending to arrival by the length of the message, of one direction.
#[derive(Default)]
struct MessageLags {
    lags: BTreeMap<u64, DurationSamples>,
    /// Bytes of a boundary tensor.
    boundary: Option<u64>,
}

impl MessageLags {
    /// The time that a boundary tensor occupies the link, from the shortest and the longest
    /// messages.
    fn occupied_us(&self) -> Option<f64> {
        let short = self.lags.first_key_value()?;
        let long = self.lags.last_key_value()?;
        if *long.0 < LENGTHS_APART.saturating_mul((*short.0).max(1)) {
            return None;
        }
        let byte_us = (long.1.median() - short.1.median()) / (long.0 - short.0) as f64;
        Some(byte_us.max(0.0) * self.boundary? as f64)
    }
}

impl RunTiming {
    /// Records messages that arrived at a stage; the oldest arrivals beyond the limit are dropped.
    pub fn record_arrivals(&mut self, stage: StageIndex, arrivals: &[MessageArrival]) {
        let stored = &mut self.arrivals[stage.index()];
        stored.extend(arrivals);
        stored.drain(..stored.len().saturating_sub(ARRIVALS_STORED_MAX));
    }

    /// The time that a microbatch's boundary tensors occupy the link between two stages, the lower
    /// one first, where messages of several lengths came; the mean of both directions if they did
    /// in both.
    pub(super) fn occupied(&self, turn: Turn) -> BTreeMap<(StageIndex, StageIndex), f64> {
        let slice_count = f64::from(self.slice_count());
        let mut found: BTreeMap<(StageIndex, StageIndex), Vec<f64>> = BTreeMap::new();
        for ((from, to), lags) in self.lags_by_link(turn) {
            let occupied_us = lags.occupied_us().map(|us| us * slice_count);
            found.entry((from.min(to), from.max(to))).or_default().extend(occupied_us);
        }
        found.retain(|_, both| !both.is_empty());
        let mean = |both: Vec<f64>| both.iter().sum::<f64>() / both.len() as f64;
        found.into_iter().map(|(pair, both)| (pair, mean(both))).collect()
    }

    /// By sender and receiver. Boundary tensors are those of `turn`; messages that are sent when a
    /// step ends are those of all steps that are kept, for those of `turn` may not be reported yet.
    fn lags_by_link(&self, turn: Turn) -> BTreeMap<(StageIndex, StageIndex), MessageLags> {
        let placement = self.setup.plan.placement();
        let passes = passes_of(&self.slices, turn);
        let mut lags_by_link: BTreeMap<(StageIndex, StageIndex), MessageLags> = BTreeMap::new();
        for (to, arrivals) in (0..).map(StageIndex).zip(&self.arrivals) {
            for MessageArrival { what, bytes, at_us } in arrivals {
                let sent = match *what {
                    ArrivalKind::Boundary { turn: of, .. } if of != turn => None,
                    ArrivalKind::Boundary { flow, pass, .. } => {
                        let reader = match flow {
                            Flow::Forward => Compute::F,
                            Flow::Backward => Compute::B,
                        };
                        made(placement, &passes, (reader, pass), to)
                    }
                    ArrivalKind::Prefix { turn } => self.prefix_sent(turn, to),
                    ArrivalKind::Gradients { turn, of } => {
                        self.update_ended(of, turn, UpdateOp::Report).map(|(_, end)| (of, end))
                    }
                };
                let Some((from, sent_us)) = sent else { continue };
                let link = lags_by_link.entry((from, to)).or_default();
                link.lags.entry(*bytes).or_default().push(at_us - sent_us);
                if let ArrivalKind::Boundary { .. } = what {
                    link.boundary = Some(*bytes);
                }
            }
        }
        lags_by_link
    }

    /// When the sums of a turn were sent to a stage: when the STEP of the one before ended. Not if
    /// that waited for a verdict, for then they were sent before it; and not behind a gradient,
    /// which they would have waited for.
    fn prefix_sent(&self, turn: Turn, to: StageIndex) -> Option<(StageIndex, f64)> {
        let from = StageIndex(to.0.checked_sub(1)?);
        let (before, end_us) = self.update_ended(from, turn, UpdateOp::Step)?;
        let has_waited =
            before.is_some_and(|before| matches!(before.doing, SliceActivity::Waited(_)));
        let is_behind =
            |arrival: &MessageArrival| arrival.what == ArrivalKind::Gradients { turn, of: from };
        let is_free = !has_waited && !self.arrivals[to.index()].iter().any(is_behind);
        is_free.then_some((from, end_us))
    }

    /// The end of an update of a stage, and the operation of the stage right before it.
    pub(super) fn update_ended(
        &self,
        stage: StageIndex,
        turn: Turn,
        update: UpdateOp,
    ) -> Option<(Option<&MeasuredSlice>, f64)> {
        let slices = self.slices.get(stage.index())?;
        let wanted = SliceActivity::Ran(EngineActivity::Op { turn, op: Op::Update(update) });
        let position = slices.iter().rposition(|slice| slice.doing == wanted)?;
        let before = position.checked_sub(1).and_then(|before| slices.get(before));
        Some((before, slices[position].end_us))
    }
}
