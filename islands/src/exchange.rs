//! Requests in, published weights and outer steps out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use zbelastic_trainer::outer::{
    OuterRequest, OuterRound, OuterSchedule, OuterState, OuterVerdict, add_island,
};
use zbelastic_types::{Digest, LayerId, Step};

use crate::event::{ExchangeError, ExchangeEvent};
use crate::folders::{FolderError, IslandFolders, ObjectKey, WeightsKind};
use crate::object::{WeightsHead, contents_hash};

/// What all exchanges of a run have in common.
#[derive(Clone, Debug)]
pub struct ExchangeRun {
    /// When which layers are exchanged.
    pub schedule: Arc<OuterSchedule>,
    /// The hash of the settings that the islands have in common.
    pub settings: Digest,
    /// Trained floats of each layer.
    pub floats: Vec<usize>,
    /// Rounds of which objects are kept; none for all.
    pub rounds_kept: Option<u64>,
}

/// What came of other islands for a round, in the order of islands.
#[derive(Default)]
struct IslandSum {
    /// The first island that is not in it.
    next: u32,
    sum: Option<Vec<f32>>,
}

/// An object that was read whole.
struct ReadObject {
    head: WeightsHead,
    vectors: Vec<Vec<f32>>,
}

/// The exchange of one worker with other islands.
pub struct Exchange<F> {
    folders: F,
    run: ExchangeRun,
    publishes: VecDeque<(LayerId, Step, Arc<[f32]>)>,
    /// The round of each layer that is awaited, and whether its outer step is made here.
    awaited: BTreeMap<LayerId, (OuterRound, bool)>,
    received: BTreeMap<LayerId, IslandSum>,
    /// The failure that was said last, so that it is said once.
    failed: Option<String>,
}

impl<F: IslandFolders> Exchange<F> {
    /// An exchange without requests.
    #[must_use]
    pub const fn new(folders: F, run: ExchangeRun) -> Self {
        Self {
            folders,
            run,
            publishes: VecDeque::new(),
            awaited: BTreeMap::new(),
            received: BTreeMap::new(),
            failed: None,
        }
    }

    /// Takes a request up. A later one of a layer replaces those before it.
    pub fn handle(&mut self, request: OuterRequest) {
        match request {
            OuterRequest::Publish { layer, version, weights } => {
                self.publishes.retain(|(of, _, _)| *of != layer);
                self.publishes.push_back((layer, version, weights));
            }
            OuterRequest::Await { layer, round, is_owner } => {
                let known = self.awaited.get(&layer).filter(|(known, _)| *known == round);
                // Several here may have the layer, and one of them owns it.
                let is_owner = is_owner || known.is_some_and(|(_, was_owner)| *was_owner);
                if known.is_none() {
                    self.received.remove(&layer);
                }
                self.awaited.insert(layer, (round, is_owner));
            }
            OuterRequest::Forget => {
                self.publishes.clear();
                self.awaited.clear();
                self.received.clear();
            }
        }
    }

    /// Whether a request is not answered.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.publishes.is_empty() || !self.awaited.is_empty()
    }

    /// The island whose weights are missing for the round that is to be mixed in first, if one is missing.
    #[must_use]
    pub fn missing_island(&self) -> Option<u32> {
        let owned = self.awaited.iter().filter(|(_, (_, is_owner))| *is_owner);
        let (layer, _) = owned.min_by_key(|(_, (round, _))| round.mixed)?;
        let next = self.received.get(layer).map_or(0, |received| received.next);
        (next < self.run.schedule.config().islands).then_some(next)
    }

    /// Does what can be done now. What failed is left, and tried at the next call.
    pub fn poll(&mut self) -> Vec<ExchangeEvent> {
        let mut events = Vec::new();
        let mut failure = None;
        for _ in 0..self.publishes.len() {
            let Some((layer, version, weights)) = self.publishes.pop_front() else { break };
            match self.publish(layer, version, &weights) {
                Ok(stays) => {
                    events.extend(stays.then_some(ExchangeEvent::Stays { layer, version }));
                    events.push(ExchangeEvent::Published { layer, version });
                }
                Err(error) => {
                    self.publishes.push_back((layer, version, weights));
                    failure.get_or_insert(error);
                }
            }
        }
        let mut awaited: Vec<_> = self.awaited.iter().map(|(k, v)| (v.0.mixed, *k, *v)).collect();
        awaited.sort_unstable_by_key(|(mixed, layer, _)| (*mixed, *layer));
        for (version, layer, (round, is_owner)) in awaited {
            match self.outer_state(layer, round, is_owner) {
                Ok(None) => {}
                Ok(Some(state)) => {
                    let is_skipped = state.verdict == OuterVerdict::Skip;
                    events.extend(is_skipped.then_some(ExchangeEvent::Skipped { layer, version }));
                    let outer = self.run.schedule.config().outer_weights(layer, round, &state);
                    events.push(ExchangeEvent::Outer(outer));
                    self.awaited.remove(&layer);
                    self.received.remove(&layer);
                }
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        events.extend(self.failed_event(failure));
        events
    }

    /// Says a failure that was not said last.
    fn failed_event(&mut self, failure: Option<ExchangeError>) -> Option<ExchangeEvent> {
        let text = failure.as_ref().map(ToString::to_string);
        let is_new = self.failed != text;
        self.failed = text;
        failure.filter(|_| is_new).map(ExchangeEvent::Failed)
    }

    fn island(&self) -> u32 {
        self.run.schedule.config().island
    }

    /// Makes weights durable, with the state that their round began with; those before the first step as
    /// the state that the first round begins with. What is there stays (I1): yields whether it has other
    /// bits.
    fn publish(
        &self,
        layer: LayerId,
        version: Step,
        weights: &[f32],
    ) -> Result<bool, ExchangeError> {
        let Some(round) = self.run.schedule.sent_at(layer, version) else {
            return self.begin_with(layer, version, weights).map(|()| false);
        };
        let key = ObjectKey { kind: WeightsKind::Sent, layer, version };
        if let Some(found) = self.own(key)? {
            let is_same = found.vectors.first().is_some_and(|found| is_equal(found, weights));
            return Ok(!is_same);
        }
        let before = self.state_hash(layer, round.before)?;
        let head = WeightsHead { before, ..self.head(layer, version) };
        self.write(key, head, &[weights])?;
        self.remove_old(layer, version).map(|()| false)
    }

    /// Makes the state that the first round goes on from durable. One that is there is this one, or
    /// belongs to another run.
    fn begin_with(
        &self,
        layer: LayerId,
        version: Step,
        weights: &[f32],
    ) -> Result<(), ExchangeError> {
        let state = OuterState::initial(weights.to_vec());
        match self.state_at(layer, version)? {
            None => self.write_state(layer, version, &state),
            Some(found)
                if is_equal(&found.weights, &state.weights)
                    && is_equal(&found.momentum, &state.momentum) =>
            {
                Ok(())
            }
            Some(_) => Err(ExchangeError::OtherRun { island: self.island() }),
        }
    }

    /// The outer state that a round leads to, if it is there or can be made.
    fn outer_state(
        &mut self,
        layer: LayerId,
        round: OuterRound,
        is_owner: bool,
    ) -> Result<Option<OuterState>, ExchangeError> {
        if let Some(state) = self.state_at(layer, round.mixed)? {
            return Ok(Some(state));
        }
        if !is_owner {
            return Ok(None);
        }
        self.receive(layer, round)?;
        let islands = self.run.schedule.config().islands;
        let received = self.received.get(&layer).filter(|received| received.next == islands);
        let Some(sum) = received.and_then(|received| received.sum.as_ref()) else {
            return Ok(None);
        };
        let before = self.state(layer, round.before)?;
        let state = before.step(sum, islands, self.run.schedule.config().outer_step());
        self.write_state(layer, round.mixed, &state)?;
        Ok(Some(state))
    }

    /// Reads what islands sent for a round, as far as it is there.
    fn receive(&mut self, layer: LayerId, round: OuterRound) -> Result<(), ExchangeError> {
        let mut received = self.received.remove(&layer).unwrap_or_default();
        let result = self.receive_into(&mut received, layer, round);
        self.received.insert(layer, received);
        result
    }

    fn receive_into(
        &self,
        received: &mut IslandSum,
        layer: LayerId,
        round: OuterRound,
    ) -> Result<(), ExchangeError> {
        let version = round.sent;
        let key = ObjectKey { kind: WeightsKind::Sent, layer, version };
        while received.next < self.run.schedule.config().islands {
            let island = received.next;
            let Some(head) = self.checked_head(island, key)? else { break };
            if head.before != self.state_hash(layer, round.before)? {
                return Err(ExchangeError::Diverged { island, layer, version });
            }
            let vectors = self.vectors(island, key, &head)?;
            vectors.into_iter().for_each(|weights| add_island(&mut received.sum, weights));
            received.next += 1;
        }
        Ok(())
    }

    /// The outer state of a version, if it is there and whole.
    fn state_at(&self, layer: LayerId, version: Step) -> Result<Option<OuterState>, ExchangeError> {
        let key = ObjectKey { kind: WeightsKind::Outer, layer, version };
        let Some(ReadObject { head, vectors }) = self.own(key)? else { return Ok(None) };
        let mut vectors = vectors.into_iter();
        let state = vectors.next().zip(vectors.next()).map(|(weights, momentum)| {
            let verdict = if head.is_skipped { OuterVerdict::Skip } else { OuterVerdict::Keep };
            OuterState { weights, momentum, verdict }
        });
        Ok(state)
    }

    /// The outer state that a round goes on from.
    fn state(&self, layer: LayerId, version: Step) -> Result<OuterState, ExchangeError> {
        let island = self.island();
        let found = self.state_at(layer, version)?;
        found.ok_or(ExchangeError::NoState { island, layer, version })
    }

    /// The hash of the outer state that a round goes on from. Its floats are not read.
    fn state_hash(&self, layer: LayerId, version: Step) -> Result<[u8; 32], ExchangeError> {
        let island = self.island();
        let key = ObjectKey { kind: WeightsKind::Outer, layer, version };
        let found = self.checked_head(island, key)?.map(|head| head.contents);
        found.ok_or(ExchangeError::NoState { island, layer, version })
    }

    /// Writes an outer state that is not there.
    fn write_state(
        &self,
        layer: LayerId,
        version: Step,
        state: &OuterState,
    ) -> Result<(), ExchangeError> {
        let key = ObjectKey { kind: WeightsKind::Outer, layer, version };
        let is_skipped = state.verdict == OuterVerdict::Skip;
        let head = WeightsHead { is_skipped, ..self.head(layer, version) };
        self.write(key, head, &[&state.weights, &state.momentum])
    }

    fn head(&self, layer: LayerId, version: Step) -> WeightsHead {
        WeightsHead {
            settings: self.run.settings.0,
            island: self.island(),
            layer: layer.0,
            version: version.0,
            before: [0; 32],
            is_skipped: false,
            floats: 0,
            contents: [0; 32],
        }
    }

    /// Removes what no island goes back to.
    fn remove_old(&self, layer: LayerId, version: Step) -> Result<(), ExchangeError> {
        let Some(rounds) = self.run.rounds_kept else { return Ok(()) };
        let steps = rounds.saturating_mul(self.run.schedule.config().every);
        let Some(oldest) = version.0.checked_sub(steps) else { return Ok(()) };
        for kind in [WeightsKind::Sent, WeightsKind::Outer] {
            let key = ObjectKey { kind, layer, version: Step(oldest) };
            self.folders.remove_before(key).map_err(failed(self.island(), key))?;
        }
        Ok(())
    }

    /// An object of this island with its vectors. One that is damaged, as by a process that was killed while
    /// another wrote it too, is not there: it is written again.
    fn own(&self, key: ObjectKey) -> Result<Option<ReadObject>, ExchangeError> {
        let island = self.island();
        let found = self.checked_head(island, key).and_then(|head| {
            let Some(head) = head else { return Ok(None) };
            let vectors = self.vectors(island, key, &head)?;
            Ok(Some(ReadObject { head, vectors }))
        });
        match found {
            Err(ExchangeError::Folder { error: FolderError::Object(_), .. }) => Ok(None),
            found => found,
        }
    }

    /// The head of an object, if the object is there and belongs to this run.
    fn checked_head(
        &self,
        island: u32,
        key: ObjectKey,
    ) -> Result<Option<WeightsHead>, ExchangeError> {
        let found = self.folders.head(island, key).map_err(failed(island, key))?;
        let Some(head) = found else { return Ok(None) };
        let is_named = head.island == island && head.place() == (key.layer, key.version);
        if head.settings != self.run.settings.0 || !is_named {
            return Err(ExchangeError::OtherRun { island });
        }
        let layer = key.layer;
        let expected = self.run.floats.get(layer.index()).copied().unwrap_or_default() as u64;
        let found = head.floats;
        if found != expected {
            return Err(ExchangeError::Length { island, layer, expected, found });
        }
        Ok(Some(head))
    }

    /// The vectors of an object whose head was checked.
    fn vectors(
        &self,
        island: u32,
        key: ObjectKey,
        head: &WeightsHead,
    ) -> Result<Vec<Vec<f32>>, ExchangeError> {
        self.folders.vectors(island, key, head).map_err(failed(island, key))
    }

    /// Writes an object of vectors that are of one length.
    fn write(
        &self,
        key: ObjectKey,
        head: WeightsHead,
        vectors: &[&[f32]],
    ) -> Result<(), ExchangeError> {
        let floats = vectors.first().map_or(0, |vector| vector.len()) as u64;
        let head = WeightsHead { floats, contents: contents_hash(vectors), ..head };
        self.folders.write(key, &head, vectors).map_err(failed(self.island(), key))
    }
}

/// The failure of a folder, with what was to be done there.
fn failed(island: u32, key: ObjectKey) -> impl Fn(FolderError) -> ExchangeError {
    move |error| ExchangeError::Folder { island, key, error }
}

/// Whether floats have the same bits.
fn is_equal(left: &[f32], right: &[f32]) -> bool {
    bytemuck::cast_slice::<_, u32>(left) == bytemuck::cast_slice::<_, u32>(right)
}
