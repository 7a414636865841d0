//! Islands that exchange weights through folders, in any order and with workers that begin anew: every
//! island receives what the definition says.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use zbelastic_islands::{
    Exchange, ExchangeError, ExchangeEvent, ExchangeRun, FolderError, IslandFolders, ObjectKey,
    WeightsHead, WeightsKind,
};
use zbelastic_trainer::model::{Family, FrozenTensors, LlamaFeatures, ModelConfig};
use zbelastic_trainer::outer::{
    OuterConfig, OuterRequest, OuterSchedule, OuterState, OuterWeights, add_island,
};
use zbelastic_types::{Digest, LayerId, Step};

const ISLANDS: u32 = 3;
const STEPS: u64 = 20;
const LAYER: LayerId = LayerId(1);
const FLOATS: usize = 5;
const SETTINGS: Digest = Digest([7; 32]);

type Object = (WeightsHead, Vec<Vec<f32>>);
type Objects = Rc<RefCell<BTreeMap<(u32, ObjectKey), Object>>>;

/// The folders of all islands in memory.
#[derive(Clone)]
struct InMemory {
    island: u32,
    objects: Objects,
    /// Floats that were read.
    floats_read: Rc<Cell<usize>>,
}

impl InMemory {
    fn new(island: u32, objects: &Objects) -> Self {
        Self { island, objects: objects.clone(), floats_read: Rc::default() }
    }
}

impl IslandFolders for InMemory {
    fn head(&self, island: u32, key: ObjectKey) -> Result<Option<WeightsHead>, FolderError> {
        Ok(self.objects.borrow().get(&(island, key)).map(|(head, _)| head.clone()))
    }

    fn vectors(
        &self,
        island: u32,
        key: ObjectKey,
        head: &WeightsHead,
    ) -> Result<Vec<Vec<f32>>, FolderError> {
        let (found, vectors) = self.objects.borrow()[&(island, key)].clone();
        assert_eq!(&found, head);
        let floats: usize = vectors.iter().map(Vec::len).sum();
        self.floats_read.set(self.floats_read.get() + floats);
        Ok(vectors)
    }

    fn write(
        &self,
        key: ObjectKey,
        head: &WeightsHead,
        vectors: &[&[f32]],
    ) -> Result<(), FolderError> {
        let vectors = vectors.iter().map(|vector| vector.to_vec()).collect();
        let before = self.objects.borrow_mut().insert((self.island, key), (head.clone(), vectors));
        assert!(before.is_none(), "what was written stays (I1)");
        Ok(())
    }

    fn remove_before(&self, key: ObjectKey) -> Result<(), FolderError> {
        self.objects.borrow_mut().retain(|(island, found), _| {
            *island != self.island
                || (found.kind, found.layer) != (key.kind, key.layer)
                || found.version >= key.version
        });
        Ok(())
    }
}

fn model() -> ModelConfig {
    ModelConfig {
        family: Family::Gpt2,
        blocks: 1,
        width: 4,
        heads: 1,
        kv_heads: 1,
        head_width: 4,
        mlp_width: 8,
        features: LlamaFeatures::NONE,
        vocabulary: 8,
        sliding_window: None,
        positions: 8,
        norm_epsilon: 1e-5,
        rope_theta: 10_000.0,
        tied: false,
        frozen: FrozenTensors::NONE,
        without_moments: FrozenTensors::NONE,
        lora: None,
    }
}

fn schedule(island: u32) -> Arc<OuterSchedule> {
    let config = OuterConfig {
        islands: ISLANDS,
        island,
        every: 4,
        fragments: 1,
        overlap: 2,
        local_share: 0.5,
        lr: 0.7,
        momentum: 0.9,
    };
    Arc::new(OuterSchedule::new(config, &model(), STEPS))
}

fn exchange(island: u32, objects: &Objects, rounds_kept: Option<u64>) -> Exchange<InMemory> {
    Exchange::new(InMemory::new(island, objects), run(island, SETTINGS, rounds_kept))
}

fn run(island: u32, settings: Digest, rounds_kept: Option<u64>) -> ExchangeRun {
    ExchangeRun { schedule: schedule(island), settings, floats: vec![FLOATS; 4], rounds_kept }
}

/// What an island has at a version, as if it had trained.
fn weights(island: u32, version: u64) -> Vec<f32> {
    // Islands begin alike.
    let island = if version == 0 { 0 } else { island };
    (0..FLOATS).map(|index| (index + 1) as f32 / (version + u64::from(island) + 2) as f32).collect()
}

fn publish(island: u32, version: u64) -> OuterRequest {
    let weights = weights(island, version).into();
    OuterRequest::Publish { layer: LAYER, version: Step(version), weights }
}

fn wait(version: u64, is_owner: bool) -> OuterRequest {
    let round = schedule(0).sent_at(LAYER, Step(version)).expect("it is sent");
    OuterRequest::Await { layer: LAYER, round, is_owner }
}

/// What every round leads to, by the definition.
fn expected() -> BTreeMap<Step, OuterState> {
    let schedule = schedule(0);
    let mut state = OuterState::initial(weights(0, 0));
    let mut states = BTreeMap::new();
    for round in (1..=STEPS).filter_map(|sent| schedule.sent_at(LAYER, Step(sent))) {
        let mut sum = None;
        (0..ISLANDS).for_each(|island| add_island(&mut sum, weights(island, round.sent.0)));
        state = state.step(&sum.expect("islands"), ISLANDS, schedule.config().outer_step());
        states.insert(round.mixed, state.clone());
    }
    states
}

fn outer_of(events: Vec<ExchangeEvent>) -> Option<OuterWeights> {
    events.into_iter().find_map(|event| match event {
        ExchangeEvent::Outer(outer) => Some(outer),
        ExchangeEvent::Failed(error) => panic!("{error}"),
        ExchangeEvent::Published { .. }
        | ExchangeEvent::Skipped { .. }
        | ExchangeEvent::Stays { .. } => None,
    })
}

fn versions_sent() -> Vec<u64> {
    (1..=STEPS).filter(|sent| schedule(0).sent_at(LAYER, Step(*sent)).is_some()).collect()
}

/// Each island in turn does all it can; one of them begins anew each round, as a worker that was
/// killed does, and requests again what it requested before.
#[test]
fn every_island_receives_the_same_outer_weights_whoever_is_killed() {
    let expected = expected();
    assert!(expected.len() >= 4, "several rounds");
    let objects = Objects::default();
    let mut islands: Vec<_> = (0..ISLANDS).map(|island| exchange(island, &objects, None)).collect();
    for (island, exchange) in (0..).zip(&mut islands) {
        exchange.handle(publish(island, 0));
        assert!(matches!(exchange.poll()[..], [ExchangeEvent::Published { .. }]));
    }
    for (number, sent) in (0..).zip(versions_sent()) {
        let mut found = BTreeMap::new();
        let killed = number % ISLANDS;
        for island in 0..ISLANDS {
            let exchange = &mut islands[island as usize];
            exchange.handle(publish(island, sent));
            exchange.handle(wait(sent, true));
            found.extend(outer_of(exchange.poll()).map(|outer| (island, outer)));
        }
        assert_eq!(found.len(), 1, "the last has all, and the others look again");
        islands[killed as usize] = exchange(killed, &objects, None);
        islands[killed as usize].handle(publish(killed, sent));
        islands[killed as usize].handle(wait(sent, true));
        for island in 0..ISLANDS {
            let outer = outer_of(islands[island as usize].poll());
            found.extend(outer.map(|outer| (island, outer)));
        }
        for island in 0..ISLANDS {
            let outer = &found[&island];
            let state = &expected[&outer.version];
            assert_eq!(outer.weights[..], state.weights[..], "island {island}, sent {sent}");
            let is_last = outer.version == Step(STEPS);
            assert_eq!(outer.local_share, if is_last { 0.0 } else { 0.5 });
        }
    }
}

/// A copy waits for its owner, and takes what that made.
#[test]
fn one_that_does_not_own_a_layer_makes_no_outer_step() {
    let objects = Objects::default();
    for island in 0..ISLANDS {
        let mut exchange = exchange(island, &objects, None);
        exchange.handle(publish(island, 0));
        exchange.poll();
        exchange.handle(publish(island, 4));
        exchange.poll();
    }
    let mut copy = exchange(0, &objects, None);
    copy.handle(wait(4, false));
    assert!(outer_of(copy.poll()).is_none(), "all have sent, and nobody made the step");
    let mut owner = exchange(0, &objects, None);
    owner.handle(wait(4, true));
    let made = outer_of(owner.poll()).expect("all have sent");
    assert_eq!(outer_of(copy.poll()), Some(made));
    assert!(!copy.is_busy());
}

#[test]
fn what_was_published_stays_and_what_nobody_goes_back_to_is_removed() {
    let objects = Objects::default();
    let kept = |kind: WeightsKind| {
        let objects = objects.borrow();
        let own = objects.keys().filter(|(island, key)| *island == 0 && key.kind == kind);
        own.map(|(_, key)| key.version.0).collect::<Vec<_>>()
    };
    let mut islands: Vec<_> =
        (0..ISLANDS).map(|island| exchange(island, &objects, Some(2))).collect();
    for version in [0].into_iter().chain(versions_sent()) {
        for (island, exchange) in (0..).zip(&mut islands) {
            exchange.handle(publish(island, version));
            exchange.poll();
        }
        if version > 0 {
            let mut again = exchange(0, &objects, Some(2));
            let weights = [9.0; 5].as_slice().into();
            let version = Step(version);
            again.handle(OuterRequest::Publish { layer: LAYER, version, weights });
            let events = again.poll();
            let [ExchangeEvent::Stays { .. }, ExchangeEvent::Published { .. }] = events[..] else {
                panic!("{events:?}")
            };
            islands.iter_mut().for_each(|exchange| exchange.handle(wait(version.0, true)));
            islands.iter_mut().for_each(|exchange| assert!(outer_of(exchange.poll()).is_some()));
        }
    }
    assert_eq!(versions_sent(), [4, 8, 12, 16, 18]);
    assert_eq!(kept(WeightsKind::Sent), [12, 16, 18]);
    assert_eq!(kept(WeightsKind::Outer), [10, 14, 18, 20]);
}

/// Runs that do not belong together are refused with what to do.
#[test]
fn other_runs_and_other_beginnings_are_named() {
    let objects = Objects::default();
    let mut first = exchange(0, &objects, None);
    first.handle(publish(0, 0));
    first.handle(publish(0, 0));
    first.poll();
    let failure = |exchange: &mut Exchange<InMemory>| {
        exchange.poll().into_iter().find_map(|event| match event {
            ExchangeEvent::Failed(error) => Some(error),
            ExchangeEvent::Published { .. }
            | ExchangeEvent::Outer(_)
            | ExchangeEvent::Skipped { .. }
            | ExchangeEvent::Stays { .. } => None,
        })
    };
    // Another seed in the same folder.
    let weights = [9.0; 5].as_slice().into();
    first.handle(OuterRequest::Publish { layer: LAYER, version: Step(0), weights });
    assert!(matches!(failure(&mut first), Some(ExchangeError::OtherRun { island: 0 })));
    assert!(failure(&mut first).is_none(), "it is said once");
    // Other settings.
    let mut other = Exchange::new(InMemory::new(0, &objects), run(0, Digest([8; 32]), None));
    other.handle(publish(0, 0));
    let error = failure(&mut other).expect("refused");
    assert!(error.to_string().contains("folders of its own"), "{error}");
    // An island that began from other weights.
    let mut own = exchange(0, &objects, None);
    own.handle(publish(0, 4));
    own.poll();
    let mut second = exchange(1, &objects, None);
    let weights = [3.0; 5].as_slice().into();
    second.handle(OuterRequest::Publish { layer: LAYER, version: Step(0), weights });
    second.poll();
    second.handle(publish(1, 4));
    second.poll();
    own.handle(wait(4, true));
    let error = failure(&mut own).expect("refused");
    assert!(matches!(error, ExchangeError::Diverged { island: 1, .. }), "{error}");
}

#[test]
fn the_island_that_is_missing_is_named_and_a_plan_that_ends_forgets() {
    let objects = Objects::default();
    let mut own = exchange(0, &objects, None);
    assert_eq!(own.missing_island(), None);
    own.handle(publish(0, 0));
    own.poll();
    own.handle(wait(4, true));
    assert_eq!(own.missing_island(), Some(0), "its own is not there yet");
    own.handle(publish(0, 4));
    own.poll();
    assert_eq!(own.missing_island(), Some(1));
    own.handle(OuterRequest::Forget);
    assert!(!own.is_busy());
}

/// Weights of a layer are hundreds of megabytes: a folder that is looked into every second is not read.
#[test]
fn a_wait_reads_nothing_again() {
    let objects = Objects::default();
    let folders = InMemory::new(0, &objects);
    let floats_read = folders.floats_read.clone();
    let mut own = Exchange::new(folders, run(0, SETTINGS, None));
    own.handle(publish(0, 0));
    own.poll();
    assert_eq!(floats_read.get(), 0, "what was just written is not read");
    own.handle(publish(0, 4));
    own.handle(wait(4, true));
    own.poll();
    let once = floats_read.get();
    assert_eq!(once, FLOATS, "its own weights, and of the state that they began with the head");
    (0..9).for_each(|_| drop(own.poll()));
    assert_eq!(floats_read.get(), once);
}

/// What fails for one layer is no reason to leave another.
#[test]
fn a_layer_that_fails_keeps_no_other_from_its_outcome() {
    let objects = Objects::default();
    let mut own = exchange(0, &objects, None);
    own.handle(publish(0, 0));
    let (layer, version) = (LayerId(0), Step(4));
    // Without the state that its round began with.
    own.handle(OuterRequest::Publish { layer, version, weights: weights(0, 4).into() });
    let events = own.poll();
    let [ExchangeEvent::Published { layer: LAYER, .. }, ExchangeEvent::Failed(error)] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert!(matches!(error, ExchangeError::NoState { layer: LayerId(0), .. }), "{error}");
    assert!(own.poll().is_empty(), "it is said once");
}

/// An object with other floats than the layer has is refused, whatever its hash.
#[test]
fn an_object_of_another_length_is_refused() {
    let objects = Objects::default();
    let mut own = exchange(0, &objects, None);
    own.handle(publish(0, 0));
    own.poll();
    let outer = |version| ObjectKey { kind: WeightsKind::Outer, layer: LAYER, version };
    let mut object = objects.borrow()[&(0, outer(Step(0)))].clone();
    object.0.floats = 6;
    object.0.version = 6;
    objects.borrow_mut().insert((0, outer(Step(6))), object);
    own.handle(wait(4, false));
    let events = own.poll();
    let [ExchangeEvent::Failed(ExchangeError::Length { expected: 5, found: 6, .. })] = &events[..]
    else {
        panic!("{events:?}")
    };
}
