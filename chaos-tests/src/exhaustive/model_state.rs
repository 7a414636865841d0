//! A state of the small world, and the bytes by which it is known again.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::message::HeldUpdate;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::state::State;
use zbelastic_consensus::validation::{GradientReport, LayerFingerprint, Turn};
use zbelastic_types::{LayerId, NodeId, StageIndex, Step};

use super::transition_cache::{EntryId, StateId};
use super::worker::{ModelActiveStage, ModelStageCopy, ModelWorker, ModelWorkerPhase};

/// Everything there is at a moment.
#[derive(Clone)]
pub(super) struct ModelState {
    pub agreed: StateId,
    /// The proposals that are neither agreed on nor lost, in the order of the log.
    pub in_flight: Vec<ProposalInFlight>,
    pub leader: ReceivedReports,
    /// Workers that live, those that were declared dead among them.
    pub workers: BTreeMap<NodeId, ModelWorker>,
    /// The last plan that ran. Its promise holds until the next one runs.
    pub ran: Arc<PlanRecord>,
    /// For each stage, the last turn that was computed by a worker that stood there.
    pub computed: BTreeMap<StageIndex, Turn>,
    pub deaths_left: u8,
    pub fences_left: u8,
    pub elections_left: u8,
    pub stalls_left: u8,
}

/// A proposal in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProposalInFlight {
    pub entry: EntryId,
    /// Whether the present leader proposed it, and knows that it did.
    pub is_own: bool,
}

/// The reports that a leader received on the open turn since its election.
#[derive(Clone, Default)]
pub(super) struct ReceivedReports {
    pub reports: BTreeMap<StageIndex, Arc<(GradientReport, Vec<LayerFingerprint>)>>,
    pub held: BTreeMap<StageIndex, Arc<HeldUpdate>>,
}

impl ModelState {
    /// Workers that live and are not declared dead.
    pub(super) fn counted<'a>(&'a self, state: &'a State) -> impl Iterator<Item = &'a ModelWorker> {
        self.workers.values().filter(|worker| !worker.is_fenced(state))
    }

    /// Adds a proposal of the present leader.
    pub(super) fn propose(&mut self, entry: EntryId) {
        self.in_flight.push(ProposalInFlight { entry, is_own: true });
    }

    /// The leader dies, and with it as many of the last proposals. Another one begins with no
    /// hands.
    pub(super) fn elect(&mut self, lost: usize) {
        self.elections_left -= 1;
        self.leader = ReceivedReports::default();
        self.in_flight.truncate(self.in_flight.len() - lost);
        self.in_flight.iter_mut().for_each(|flying| flying.is_own = false);
    }

    /// The facts that distinguish this state from the others. The contents of messages follow from
    /// their turn and stage, so those are enough.
    pub(super) fn key(&self) -> Box<[u8]> {
        let mut key = StateKey(Vec::with_capacity(128));
        key.number(self.agreed.0.into());
        key.numbers(
            self.in_flight
                .iter()
                .map(|flying| u64::from(flying.entry.0) * 2 + u64::from(flying.is_own)),
        );
        key.numbers(self.leader.reports.keys().map(|stage| stage.0.into()));
        key.numbers(self.leader.held.keys().map(|stage| stage.0.into()));
        key.number(self.ran.generation.0);
        key.number(self.computed.len() as u64);
        for (stage, turn) in &self.computed {
            key.number(stage.0.into());
            key.turn(*turn);
        }
        let left = [self.deaths_left, self.fences_left, self.elections_left, self.stalls_left];
        key.numbers(left.map(u64::from).into_iter());
        self.workers.values().for_each(|worker| key.worker(worker));
        key.0.into_boxed_slice()
    }
}

/// Bytes of a key. Each part encodes where it ends, so no two states have the same bytes.
struct StateKey(Vec<u8>);

impl StateKey {
    /// Seven bits a byte, the last one marked.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 & 0x7f);
            number >>= 7;
        }
        self.0.push(number as u8 | 0x80);
    }

    fn numbers(&mut self, numbers: impl ExactSizeIterator<Item = u64>) {
        self.number(numbers.len() as u64);
        numbers.for_each(|number| self.number(number));
    }

    fn turn(&mut self, turn: Turn) {
        let Turn { generation, attempt, step } = turn;
        [generation.0, attempt.0.into(), step.0].into_iter().for_each(|part| self.number(part));
    }

    fn turn_if_any(&mut self, turn: Option<Turn>) {
        self.number(turn.is_some().into());
        turn.into_iter().for_each(|turn| self.turn(turn));
    }

    fn layers<'a>(&mut self, layers: impl ExactSizeIterator<Item = (&'a LayerId, &'a Step)>) {
        self.number(layers.len() as u64);
        for (layer, version) in layers {
            self.number(layer.0.into());
            self.number(version.0);
        }
    }

    fn worker(&mut self, worker: &ModelWorker) {
        self.number(worker.me.0);
        self.number(worker.generation.0);
        self.layers(worker.unused_layers.iter());
        match &worker.phase {
            ModelWorkerPhase::Idle => self.number(0),
            ModelWorkerPhase::Loading(loading) => {
                self.number(1);
                self.number(loading.stage.0.into());
                self.turn(loading.turn);
                self.layers(loading.images.iter());
            }
            ModelWorkerPhase::Active(active) => {
                self.number(2);
                self.active_stage(active);
            }
        }
    }

    fn active_stage(&mut self, active: &ModelActiveStage) {
        self.number(active.stage.0.into());
        self.turn(active.half.open_turn());
        self.number(active.half.updates());
        self.number(active.version.0);
        self.number(active.reported.is_some().into());
        self.turn_if_any(active.candidate);
        self.number(active.is_running.into());
        self.number(active.copy.is_some().into());
        if let Some(ModelStageCopy { of, version, open, held }) = &active.copy {
            self.number(of.0.into());
            self.number(version.0);
            self.turn(*open);
            self.turn_if_any(*held);
        }
    }
}
