//! Getting the layers of a plan: from the idle layers, from others, from a checkpoint, from the
//! seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbelastic_consensus::member::Holder;
use zbelastic_consensus::message::LoadFault;
use zbelastic_consensus::plan::{LayerSource, SOURCES_MAX};
use zbelastic_consensus::session::{LoadCommand, WorkerEvent};
use zbelastic_consensus::state::copied_layers;
use zbelastic_types::{Digest, Generation, LayerId, NodeId, Step};

use super::active_stage::ActiveStage;
use super::peers::{PeerBody, PeerFrame, PeerFrameRefusal};
use super::{RuntimeOutput, RuntimePhase, WorkerRuntime};
use crate::data::BatchSource;
use crate::elastic::{LayerImage, LoadedLayer, StageFactory};

/// Ticks until a layer that does not come is requested again; twice as many each time.
const RETRY_TICKS: u32 = 3;
/// How often these ticks are doubled.
const RETRY_DOUBLINGS: u32 = 3;
/// How often a layer is requested of the nodes that a plan names for it, with none coming, until the
/// runtime reports that it does not come: as often as there may be nodes, since each is requested by
/// itself where a layer came with other bits.
const REQUESTS_IN_VAIN: u32 = SOURCES_MAX as u32;
/// Ticks that so many requests last. A runtime is given no tick while an operation runs or a layer
/// is on its way. That no layer came in these is reported to the leader, which sees whether the
/// nodes that are requested to send it get on: only where none does is the layer given up (rule
/// R10), and until then it is requested again.
const SILENCE_TICKS_MAX: u32 = ticks_of_requests(REQUESTS_IN_VAIN);

/// Ticks until a layer that was requested so often is requested again.
const fn ticks_after(attempts: u32) -> u32 {
    RETRY_TICKS << if attempts < RETRY_DOUBLINGS { attempts } else { RETRY_DOUBLINGS }
}

const fn ticks_of_requests(count: u32) -> u32 {
    let mut ticks = 0;
    let mut attempts = 0;
    while attempts < count {
        ticks += ticks_after(attempts);
        attempts += 1;
    }
    ticks
}

/// Ticks for which a layer on standby is not requested from others when a plan begins, from the last
/// update that came: half a second, in which the largest message of one comes.
const UPDATE_TICKS: u32 = 50;

/// A layer on its way.
struct AwaitedLayer {
    source: LayerSource,
    attempts: u32,
    /// Tick at which it is requested again.
    due: u32,
    /// How often it came with other bits than its plan expects.
    differing: usize,
}

impl AwaitedLayer {
    fn new(source: LayerSource, due: u32) -> Self {
        Self { source, attempts: 0, due, differing: 0 }
    }

    /// The nodes that send it, but this one.
    fn others(&self, me: NodeId) -> Vec<NodeId> {
        match &self.source {
            LayerSource::Nodes(nodes) => nodes.iter().copied().filter(|node| *node != me).collect(),
            LayerSource::Checkpoint { .. } | LayerSource::Initial => Vec::new(),
        }
    }

    /// The nodes to request it of: all, which send it together; or one after the other once it came
    /// with other bits, since one that spoils it is among those that sent it.
    fn next_nodes(&self, me: NodeId) -> Vec<NodeId> {
        let mut nodes = self.others(me);
        if self.differing > 0 && !nodes.is_empty() {
            let next = self.attempts as usize % nodes.len();
            nodes = vec![nodes[next]];
        }
        nodes
    }

    /// Whether a layer that came with this digest is refused: it has other bits than its plan
    /// expects, and a node is left to be requested by itself. Behind the last one the layer stands as
    /// it came: the log names what differs.
    fn refuses(&mut self, me: NodeId, (expected, found): (Option<Digest>, Digest)) -> bool {
        let differs = expected.is_some_and(|expected| expected != found);
        let nodes = self.others(me).len();
        let is_refused = differs && nodes > 1 && self.differing < nodes;
        self.differing += usize::from(is_refused);
        is_refused
    }
}

/// A plan whose layers are on their way.
pub(super) struct LoadingStage {
    command: LoadCommand,
    me: Holder,
    images: BTreeMap<LayerId, Arc<LayerImage>>,
    /// The digests of those that arrived, hashed while others were on their way, and of those that
    /// were here and hashed for the plan.
    digests: BTreeMap<LayerId, Digest>,
    awaited: BTreeMap<LayerId, AwaitedLayer>,
    tick: u32,
    /// Tick at which a layer came last.
    arrived: u32,
    /// Layers that were here before: other workers may request them until all are ready.
    offered: BTreeMap<LayerId, Arc<LayerImage>>,
}

/// How far a stage is loaded after a layer that arrived.
pub(super) enum LoadProgress {
    /// Other layers of the plan are missing.
    Waiting,
    /// All layers of the plan are there.
    Complete,
    /// This layer cannot be read or fetched.
    Failed(LayerId),
}

impl LoadingStage {
    /// The version that it begins with is to be written.
    pub(super) fn save(&mut self, generation: Generation, version: Step) {
        let LoadCommand { plan, turn, is_pending, .. } = &mut self.command;
        *is_pending |= plan.generation == generation && turn.step == version;
    }

    fn version(&self) -> Step {
        self.command.plan.from_step
    }

    /// The layers that have come, and those that were here before, whether the plan gives them to
    /// this node or not.
    pub(super) fn images(&self) -> impl Iterator<Item = &Arc<LayerImage>> {
        self.images.values().chain(self.offered.values())
    }

    pub(super) fn into_images(self) -> BTreeMap<LayerId, Arc<LayerImage>> {
        let mut images = self.offered;
        images.extend(self.images);
        images
    }

    /// The layer, if it is here at this version, for a worker that requests it.
    pub(super) fn offer(&self, layer: LayerId, version: Step) -> Option<Arc<LayerImage>> {
        let found = self.images.get(&layer).or_else(|| self.offered.get(&layer));
        found.filter(|image| image.version == version).cloned()
    }

    /// Requests a layer of the nodes that have it, or reads it.
    fn request(&mut self, layer: LayerId) -> Vec<RuntimeOutput> {
        let version = self.version();
        let Some(awaited) = self.awaited.get_mut(&layer) else { return Vec::new() };
        let nodes = awaited.next_nodes(self.me.node);
        awaited.due = self.tick + ticks_after(awaited.attempts);
        awaited.attempts += 1;
        if let LayerSource::Checkpoint { version, digest } = awaited.source {
            return vec![RuntimeOutput::Read { version, layer, digest }];
        }
        let generation = self.command.plan.generation;
        let sender = self.me;
        let to_node = |to| {
            let body = PeerBody::Fetch { layer, version };
            RuntimeOutput::Peer { to, frame: PeerFrame { generation, sender, body } }
        };
        nodes.into_iter().map(to_node).collect()
    }

    /// A layer that came with another digest than the plan expects is requested again, of one node
    /// alone. None if it is accepted.
    pub(super) fn request_alone(
        &mut self,
        layer: LayerId,
        found: Digest,
    ) -> Option<Vec<RuntimeOutput>> {
        let expected = self.command.plan.expected[layer.index()];
        let is_refused = self.awaited.get_mut(&layer)?.refuses(self.me.node, (expected, found));
        is_refused.then(|| self.request(layer))
    }

    /// Requests again the layers that have not come from other nodes, and reports it if none
    /// comes. A read is answered, so it is requested once, and waited for however long the read of
    /// a layer lasts.
    pub(super) fn retry_requests(&mut self) -> Vec<RuntimeOutput> {
        self.tick += 1;
        let is_of_nodes = |(_, awaited): &(&LayerId, &AwaitedLayer)| match awaited.source {
            LayerSource::Nodes(_) => true,
            LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
        };
        let requested = self.awaited.iter().find(is_of_nodes).map(|(layer, _)| *layer);
        if self.tick - self.arrived >= SILENCE_TICKS_MAX
            && let Some(layer) = requested
        {
            let generation = self.command.plan.generation;
            self.arrived = self.tick;
            let cause = LoadFault::Source;
            return vec![RuntimeOutput::Event(WorkerEvent::LoadFailed {
                generation,
                layer,
                cause,
            })];
        }
        let is_due = |awaited: &AwaitedLayer| match awaited.source {
            LayerSource::Nodes(_) => awaited.due <= self.tick,
            LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
        };
        let due = self.awaited.iter().filter(|(_, awaited)| is_due(awaited));
        let layers: Vec<LayerId> = due.map(|(layer, _)| *layer).collect();
        layers.into_iter().flat_map(|layer| self.request(layer)).collect()
    }

    /// An update of layers on standby came. The owner trains no more, so what it sent before comes now:
    /// a third of what the layers are that it brings forward.
    fn await_updates(&mut self) {
        self.arrived = self.tick;
        for awaited in self.awaited.values_mut().filter(|awaited| awaited.attempts == 0) {
            awaited.due = self.tick + UPDATE_TICKS;
        }
    }

    /// S3: a layer is accepted for the plan that requested it, from the nodes that it names.
    /// Whether its bits are the right ones is decided from the log, when all have reported what
    /// they loaded.
    pub(super) fn check_sent(
        &self,
        found: Generation,
        sender: Holder,
        image: &LayerImage,
    ) -> Result<(), PeerFrameRefusal> {
        let expected = self.command.plan.generation;
        if expected != found {
            return Err(PeerFrameRefusal::OtherGeneration { expected, found });
        }
        let layer = image.layer;
        let version = image.version;
        let is_from = |awaited: &AwaitedLayer| match &awaited.source {
            LayerSource::Nodes(nodes) => nodes.contains(&sender.node),
            LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
        };
        let is_awaited = self.awaited.get(&layer).is_some_and(is_from);
        if is_awaited && version == self.version() {
            Ok(())
        } else {
            Err(PeerFrameRefusal::Unrequested { layer, version, sender })
        }
    }

    /// A layer arrived, and its digest, if it was hashed.
    pub(super) fn handle_image(
        &mut self,
        image: Arc<LayerImage>,
        digest: Option<Digest>,
    ) -> LoadProgress {
        let is_expected = image.version == self.version();
        if !is_expected || self.awaited.remove(&image.layer).is_none() {
            return LoadProgress::Waiting;
        }
        self.arrived = self.tick;
        self.digests.extend(digest.map(|digest| (image.layer, digest)));
        self.images.insert(image.layer, image);
        if self.awaited.is_empty() { LoadProgress::Complete } else { LoadProgress::Waiting }
    }

    pub(super) fn handle_read(
        &mut self,
        version: Step,
        layer: LayerId,
        read: Option<Box<LoadedLayer>>,
    ) -> LoadProgress {
        let expected: Digest = match self.awaited.get(&layer).map(|awaited| &awaited.source) {
            Some(LayerSource::Checkpoint { version: of, digest }) if *of == version => *digest,
            Some(_) | None => return LoadProgress::Waiting,
        };
        let read = read.filter(|read| {
            let LoadedLayer { image, digest } = &**read;
            image.layer == layer && image.version == version && *digest == expected
        });
        match read {
            Some(read) => self.handle_image(Arc::new(read.image), Some(expected)),
            None => LoadProgress::Failed(layer),
        }
    }
}

impl<M: StageFactory, S: BatchSource + Clone> WorkerRuntime<M, S> {
    pub(super) fn begin_loading(&mut self, command: LoadCommand) {
        self.stop();
        let plan = command.plan.clone();
        let me = plan.stages[command.stage.index()];
        self.me = Some(me);
        // Own ones first; of those whose candidates others send only the weights are kept.
        let mut layers: Vec<LayerId> = plan.layers_of(command.stage).collect();
        layers.extend(copied_layers(&plan, command.stage));
        let trained = plan.layers_at(command.stage).filter(|layer| !layers.contains(layer));
        let gathered: BTreeSet<LayerId> = trained.collect();
        layers.extend(gathered);
        let mut loading = LoadingStage {
            command,
            me,
            images: BTreeMap::new(),
            digests: BTreeMap::new(),
            awaited: BTreeMap::new(),
            tick: 0,
            arrived: 0,
            offered: std::mem::take(&mut self.idle_layers),
        };
        for layer in layers {
            self.begin_layer(&mut loading, layer, &plan.sources[layer.index()]);
        }
        let is_complete = loading.awaited.is_empty();
        self.phase = RuntimePhase::Loading(Box::new(loading));
        if is_complete {
            self.after_loading(LoadProgress::Complete);
        }
    }

    /// A layer that is on standby or held here is there; another one is requested.
    fn begin_layer(&mut self, loading: &mut LoadingStage, layer: LayerId, source: &LayerSource) {
        if let Some(image) = self.take_standby(loading, layer, source) {
            loading.images.insert(layer, image);
        } else if let Some(image) = self.local_image(loading, layer, source) {
            let is_own = names(source, loading.me.node);
            let reported = is_own.then(|| self.inventory.digest(&image)).flatten();
            loading.digests.extend(reported.map(|digest| (layer, digest)));
            loading.images.insert(layer, image);
        } else {
            // A layer on standby needs no request unless its last updates do not come.
            let is_near = self.is_on_standby(loading, layer, source);
            let due = if is_near { UPDATE_TICKS } else { 0 };
            loading.awaited.insert(layer, AwaitedLayer::new(source.clone(), due));
            if !is_near {
                self.outbox.extend(loading.request(layer));
            }
        }
    }

    /// A layer that was kept on standby for this plan, if it is at the version that the plan begins
    /// with: a plan names the nodes that kept it.
    fn take_standby(
        &mut self,
        loading: &LoadingStage,
        layer: LayerId,
        source: &LayerSource,
    ) -> Option<Arc<LayerImage>> {
        let standby = self.standby.as_mut().filter(|_| names(source, loading.me.node))?;
        standby.take(layer, loading.version()).map(Arc::new)
    }

    fn is_on_standby(&self, loading: &LoadingStage, layer: LayerId, source: &LayerSource) -> bool {
        let standby = self.standby.as_ref().filter(|_| names(source, loading.me.node));
        standby.is_some_and(|standby| standby.is_near(layer, loading.version()))
    }

    /// An update of layers on standby came while a plan loads them.
    pub(super) fn await_standby(&mut self) {
        if let RuntimePhase::Loading(loading) = &mut self.phase {
            loading.await_updates();
        }
    }

    /// Moves to the plan that loads those layers on standby that have reached its first version
    /// since.
    pub(super) fn load_standby(&mut self) {
        let (RuntimePhase::Loading(loading), Some(standby)) = (&mut self.phase, &mut self.standby)
        else {
            return;
        };
        let me = loading.me.node;
        let version = loading.version();
        let awaited = loading.awaited.iter().filter(|(_, awaited)| names(&awaited.source, me));
        let layers: Vec<LayerId> = awaited.map(|(layer, _)| *layer).collect();
        let mut progress = LoadProgress::Waiting;
        for image in layers.into_iter().filter_map(|layer| standby.take(layer, version)) {
            progress = loading.handle_image(Arc::new(image), None);
        }
        self.after_loading(progress);
    }

    /// A layer that needs no request: its own if the plan names this node, or from the seed.
    fn local_image(
        &self,
        loading: &LoadingStage,
        layer: LayerId,
        source: &LayerSource,
    ) -> Option<Arc<LayerImage>> {
        match source {
            LayerSource::Nodes(nodes) if nodes.contains(&loading.me.node) => {
                loading.offer(layer, loading.version())
            }
            LayerSource::Nodes(_) | LayerSource::Checkpoint { .. } => None,
            LayerSource::Initial => Some(Arc::new(self.model.initial(layer))),
        }
    }

    pub(super) fn after_loading(&mut self, progress: LoadProgress) {
        let RuntimePhase::Loading(loading) = &self.phase else { return };
        let generation = loading.command.plan.generation;
        match progress {
            LoadProgress::Waiting => {}
            LoadProgress::Failed(layer) => {
                let cause = LoadFault::Source;
                self.report(WorkerEvent::LoadFailed { generation, layer, cause });
            }
            LoadProgress::Complete => self.activate_stage(),
        }
    }

    fn activate_stage(&mut self) {
        let RuntimePhase::Loading(loading) = std::mem::replace(&mut self.phase, RuntimePhase::Idle)
        else {
            return;
        };
        let LoadingStage { command, images, digests, offered, .. } = *loading;
        // It has served, and the active stage needs the memory.
        self.standby = None;
        let generation = command.plan.generation;
        let version = command.turn.step;
        let is_pending = command.is_pending;
        let own: Vec<LayerId> = command.plan.layers_of(command.stage).collect();
        // Every stage trains a layer, if none of a first replica.
        let first = command.plan.layers_at(command.stage).next();
        let digest = |image: &Arc<LayerImage>| {
            let known = digests.get(&image.layer).copied();
            (image.layer, known.unwrap_or_else(|| self.model.digest(image)))
        };
        let copied = copied_layers(&command.plan, command.stage);
        let is_held = |layer: &LayerId| own.contains(layer) || copied.contains(layer);
        let held = images.iter().filter(|(layer, _)| is_held(layer));
        self.idle_layers = offered;
        self.idle_layers.extend(held.clone().map(|(layer, image)| (*layer, image.clone())));
        let (layers, copies) =
            held.map(|(_, image)| digest(image)).partition(|(layer, _)| own.contains(layer));
        let parts = (&self.setup, &self.model, self.source.clone());
        match ActiveStage::new(parts, command, &images) {
            Ok(active) => {
                self.phase = RuntimePhase::Active(Box::new(active));
                self.report(WorkerEvent::Loaded { generation, layers, copies });
                if is_pending {
                    self.write(version);
                }
            }
            Err(refusal) => {
                let layer = first.expect("a stage trains a layer");
                let cause = refusal.fault();
                self.refusal = Some(refusal);
                self.report(WorkerEvent::LoadFailed { generation, layer, cause });
            }
        }
    }
}

/// Whether a source names this node, so that it is to use the layer it holds.
fn names(source: &LayerSource, node: NodeId) -> bool {
    match source {
        LayerSource::Nodes(nodes) => nodes.contains(&node),
        LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
    }
}
