//! The folders through which the cluster of a life exchanges weights with another island, and the exchanges
//! of its workers with them.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use zbelastic_islands::{
    Exchange, ExchangeError, ExchangeEvent, ExchangeRun, ExchangeSide, FolderError, IslandFolders,
    ObjectKey, WeightsHead, WeightsKind, contents_hash,
};
use zbelastic_remote::RemoteError;
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_trainer::outer::OuterRequest;
use zbelastic_trainer::runtime::RuntimeInput;
use zbelastic_types::{LayerId, NodeId, Step};

use super::WorldEvent;
use super::surroundings::Surroundings;
use super::workers::Workers;
use crate::failure::{Invariant, LifeFailure};
use crate::islands::{SimulatedIslands, other_weights};
use crate::markers::Marker;
use crate::queue::VirtualTime;
use crate::random::{DrawPurpose, Draws};

/// How long a folder takes, in microseconds, and the share of requests for which it takes much longer.
const ANSWER_US: (u64, u64) = (1_000, 300_000);
const LATE_US: (u64, u64) = (500_000, 4_000_000);
const LATE_SHARE: f64 = 0.05;
/// How soon folders are looked into again.
const LOOK_US: u64 = 20_000;
/// The share of operations that fail, and of failed writes those that left the object behind.
const FAILED_SHARE: f64 = 0.1;
const WRITTEN_SHARE: f64 = 0.5;
/// The cluster's island, and the other one.
const OWN: u32 = 0;
const OTHER: u32 = 1;

/// An object, and from when on it is seen.
#[derive(Clone)]
struct SimulatedObject {
    head: WeightsHead,
    vectors: Vec<Vec<f32>>,
    seen_from: VirtualTime,
}

/// What lies in the folders.
struct FolderContents {
    /// The reference, which goes by what the folders have.
    expected: Option<SimulatedIslands>,
    objects: BTreeMap<(u32, ObjectKey), SimulatedObject>,
    draws: Draws,
    now: VirtualTime,
    is_calm: bool,
}

impl FolderContents {
    fn seen(&self, island: u32, key: ObjectKey) -> Option<&SimulatedObject> {
        self.objects.get(&(island, key)).filter(|object| object.seen_from <= self.now)
    }

    fn operate(&mut self) -> Result<(), FolderError> {
        if !self.is_calm && self.draws.chance(FAILED_SHARE) {
            let reason = "a simulated failure".to_owned();
            return Err(FolderError::Remote(RemoteError::Other { reason }));
        }
        Ok(())
    }

    /// An object is in this island's folder. What lies there stays (I1).
    fn insert(&mut self, key: ObjectKey, head: &WeightsHead, vectors: &[&[f32]]) {
        if let Some(found) = self.objects.get(&(OWN, key)) {
            assert_eq!(&found.head, head, "{key} was written before (I1)");
            return;
        }
        let is_first_state = key.kind == WeightsKind::Outer && key.version == Step(0);
        if let Some(expected) = self.expected.as_ref()
            && (key.kind == WeightsKind::Sent || is_first_state)
        {
            expected.replace(key.layer, key.version, vectors[0]);
        }
        if key.kind == WeightsKind::Sent {
            self.send_others(key, head, vectors[0]);
        }
        let vectors = vectors.iter().map(|vector| vector.to_vec()).collect();
        let object = SimulatedObject { head: head.clone(), vectors, seen_from: self.now };
        self.objects.insert((OWN, key), object);
    }

    /// Where this island sends weights, so does the other one, sooner or later.
    fn send_others(&mut self, key: ObjectKey, own: &WeightsHead, weights: &[f32]) {
        let weights = other_weights(weights);
        let head =
            WeightsHead { island: OTHER, contents: contents_hash(&[&weights]), ..own.clone() };
        let is_late = !self.is_calm && self.draws.chance(LATE_SHARE);
        let (least, most) = if is_late { LATE_US } else { ANSWER_US };
        let seen_from = self.now.after(self.draws.between(least, most));
        let object = SimulatedObject { head, vectors: vec![weights], seen_from };
        self.objects.entry((OTHER, key)).or_insert(object);
    }
}

/// The folders, as an exchange sees them.
#[derive(Clone)]
struct SimulatedFolders(Rc<RefCell<FolderContents>>);

impl IslandFolders for SimulatedFolders {
    fn head(&self, island: u32, key: ObjectKey) -> Result<Option<WeightsHead>, FolderError> {
        let mut contents = self.0.borrow_mut();
        contents.operate()?;
        Ok(contents.seen(island, key).map(|object| object.head.clone()))
    }

    fn vectors(
        &self,
        island: u32,
        key: ObjectKey,
        head: &WeightsHead,
    ) -> Result<Vec<Vec<f32>>, FolderError> {
        let mut contents = self.0.borrow_mut();
        contents.operate()?;
        let found = contents.seen(island, key).expect("its head was read");
        assert_eq!(&found.head, head, "the head of {key}");
        Ok(found.vectors.clone())
    }

    fn write(
        &self,
        key: ObjectKey,
        head: &WeightsHead,
        vectors: &[&[f32]],
    ) -> Result<(), FolderError> {
        let mut contents = self.0.borrow_mut();
        let done = contents.operate();
        if done.is_err() && !contents.draws.chance(WRITTEN_SHARE) {
            return done;
        }
        contents.insert(key, head, vectors);
        done
    }

    fn remove_before(&self, key: ObjectKey) -> Result<(), FolderError> {
        let mut contents = self.0.borrow_mut();
        contents.operate()?;
        contents.objects.retain(|(island, found), _| {
            *island != OWN
                || (found.kind, found.layer) != (key.kind, key.layer)
                || found.version >= key.version
        });
        Ok(())
    }
}

/// The exchanges of a process: what is near to it, and what others send.
struct WorkerExchanges {
    life: u64,
    /// Requests in order, each with when it reaches the exchange.
    requests: VecDeque<(VirtualTime, OuterRequest)>,
    /// When folders are looked into again.
    looks_at: Option<VirtualTime>,
    near: Exchange<SimulatedFolders>,
    far: Exchange<SimulatedFolders>,
}

impl WorkerExchanges {
    /// Requests that have reached the exchanges by now are theirs.
    fn hand_over(&mut self, now: VirtualTime) {
        let arrived = self.requests.iter().take_while(|(at, _)| *at <= now).count();
        for (_, request) in self.requests.drain(..arrived) {
            match ExchangeSide::of(&request) {
                ExchangeSide::Far => self.far.handle(request),
                ExchangeSide::Near => self.near.handle(request),
                ExchangeSide::Both => {
                    self.far.handle(request.clone());
                    self.near.handle(request);
                }
            }
        }
    }
}

/// The exchange with another island in a life: none, if its cluster is alone.
pub(super) struct LifeIslands {
    expected: Option<(SimulatedIslands, ExchangeRun)>,
    folders: SimulatedFolders,
    exchanges: BTreeMap<NodeId, WorkerExchanges>,
}

impl LifeIslands {
    pub(super) fn new(expected: Option<(SimulatedIslands, ExchangeRun)>, seed: u64) -> Self {
        let contents = FolderContents {
            expected: expected.as_ref().map(|(islands, _)| islands.clone()),
            objects: BTreeMap::new(),
            draws: Draws::new(seed, DrawPurpose::IslandFaults),
            now: VirtualTime(0),
            is_calm: false,
        };
        let folders = SimulatedFolders(Rc::new(RefCell::new(contents)));
        Self { expected, folders, exchanges: BTreeMap::new() }
    }

    /// The exchanges of a process, which begins without requests.
    fn of_process(&mut self, (node, life): (NodeId, u64)) -> &mut WorkerExchanges {
        let (_, run) = self.expected.as_ref().expect("an island");
        let begin = || Exchange::new(self.folders.clone(), run.clone());
        let begun = || WorkerExchanges {
            life,
            requests: VecDeque::new(),
            looks_at: None,
            near: begin(),
            far: begin(),
        };
        let found = self.exchanges.entry(node).or_insert_with(begun);
        if found.life != life {
            *found = begun();
        }
        found
    }
}

impl Surroundings<'_> {
    /// A worker requests something of the folders.
    pub(super) fn request_of_islands(
        &mut self,
        (node, life): (NodeId, u64),
        request: OuterRequest,
    ) {
        if let OuterRequest::Publish { layer, version, weights } = &request {
            self.check_published(*layer, *version, weights);
        }
        let is_late = !self.is_calm && self.draws_islands.chance(LATE_SHARE);
        let (least, most) = if is_late { LATE_US } else { ANSWER_US };
        let at = self.now.after(self.draws_islands.between(least, most));
        let requests = &mut self.islands.of_process((node, life)).requests;
        // None overtakes another.
        let at = requests.back().map_or(at, |(before, _)| at.max(*before));
        requests.push_back((at, request));
        self.queue.push(at, WorldEvent::IslandsPolled { node, life });
    }

    /// Weights that are published are those that the reference publishes, unless a new cluster seals
    /// the version anew, and may have left out other steps than the one before.
    fn check_published(&mut self, layer: LayerId, version: Step, weights: &[f32]) {
        let (expected, _) = self.islands.expected.as_ref().expect("an island");
        let may_differ = self.checker.is_sealed_anew(version);
        let is_expected = expected.publish(layer, version, weights);
        let key = ObjectKey { kind: WeightsKind::Sent, layer, version };
        if self.islands.folders.0.borrow().objects.contains_key(&(OWN, key)) {
            self.mark(Marker::PublishedAgain);
        }
        if !is_expected && !may_differ {
            let text = format!("layer {layer} is published at {version} with other weights");
            self.fail(LifeFailure::safety(Invariant::N1, text));
        }
    }

    /// All that the exchanges of a process can do now. They look again while something is left.
    fn poll_islands(&mut self, (node, life): (NodeId, u64)) -> Vec<RuntimeInput> {
        let mut contents = self.islands.folders.0.borrow_mut();
        (contents.now, contents.is_calm) = (self.now, self.is_calm);
        drop(contents);
        let now = self.now;
        let exchanges = self.islands.of_process((node, life));
        exchanges.hand_over(now);
        let WorkerExchanges { near, far, looks_at, .. } = exchanges;
        let events: Vec<_> = near.poll().into_iter().chain(far.poll()).collect();
        let is_busy = near.is_busy() || far.is_busy();
        if is_busy && looks_at.is_none_or(|at| at <= now) {
            let at = now.after(LOOK_US);
            *looks_at = Some(at);
            self.queue.push(at, WorldEvent::IslandsPolled { node, life });
        }
        let mut inputs = Vec::new();
        for event in events {
            match event.into_input() {
                Ok(input) => inputs.push(input),
                // Where they may differ they do now and then, which was checked as they were sent.
                Err(ExchangeEvent::Stays { .. }) => {}
                Err(ExchangeEvent::Failed(ExchangeError::Folder { .. })) => {
                    self.mark(Marker::IslandFolderFailed);
                }
                Err(event) => {
                    let text = format!("an exchange between islands: {event}");
                    self.fail(LifeFailure::safety(Invariant::N1, text));
                }
            }
        }
        inputs
    }
}

/// The exchanges of a process look into the folders, if it runs yet.
pub(super) fn poll<M: StageFactory, S: BatchSource + Clone>(
    workers: &mut Workers<M, S>,
    env: &mut Surroundings<'_>,
    (node, life): (NodeId, u64),
) {
    let machine = workers.machines.get(&node);
    if !machine.is_some_and(|machine| machine.life == life && machine.process.is_some()) {
        return;
    }
    for input in env.poll_islands((node, life)) {
        if let RuntimeInput::Outer(_) = &input {
            env.mark(Marker::IslandsMixed);
        }
        workers.runtime_input(env, node, life, input);
    }
}
