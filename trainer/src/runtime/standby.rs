//! Layers that a planned change will need here, copied ahead while others train them.
//!
//! A layer comes once, as its owner has sealed it. From then on its owner sends the gradient of
//! each turn, and with it the seal that led to that turn, so that no other message is needed for
//! the layer to stay one step behind. A layer on standby is used by the plan that it was copied
//! for and by no other; if it is not there in time, the layer is fetched as always.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::member::Holder;
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_consensus::pre_copy::PreCopyPlan;
use zbelastic_consensus::session::WorkerEvent;
use zbelastic_consensus::validation::{Seal, Turn};
use zbelastic_types::{LayerId, NodeId, Step};

use super::RuntimeOutput;
use super::copy_exchange::CopyExchange;
use super::peers::{PeerBody, PeerFrame, PeerFrameRefusal};
use crate::elastic::{
    GradientPart, LayerCopy, LayerGradient, LayerImage, PendingImage, StageFactory,
};
use crate::outer::{OuterRequest, OuterSchedule, OuterWeights};

/// Layers that are requested and have not come, at once: a stage that exports is not training.
const REQUESTS_MAX: usize = 2;
/// Ticks until a layer that does not come is requested again; twice as many each time.
const RETRY_TICKS: u32 = 3;
/// How often they are doubled.
const RETRY_DOUBLINGS: u32 = 6;
/// Updates of a layer that wait for the layer, or for the updates before them. With one more it is
/// too far behind, and is requested anew.
const UPDATES_MAX: usize = 4;
/// Sealed steps whose gradients a layer lacks, with none of a later one there, from which on the way
/// here counts as full: it does not carry in a step what a step's gradients of the layers here are.
const BEHIND_STEPS: u64 = 2;
/// Sealed steps whose gradients may still come when the plan begins: the owner's queue has two, and
/// one was on its way.
const COMING_STEPS: u64 = 3;
/// Seals that wait for gradients; the oldest goes.
const SEALS_MAX: usize = 8;

/// A layer that is kept on standby.
struct StandbyLayer<C> {
    owner: Holder,
    /// The layer, and the turn whose seal it applies next.
    copy: Option<(C, Turn)>,
    /// Memory does not hold it, or the way here does not carry its gradients: it is fetched when
    /// the plan begins.
    is_given_up: bool,
    attempts: u32,
    /// Tick at which it is requested again.
    due: u32,
    updates: BTreeMap<Turn, Vec<Arc<LayerGradient>>>,
}

impl<C: LayerCopy> StandbyLayer<C> {
    fn new(owner: Holder) -> Self {
        let copy = None;
        let updates = BTreeMap::new();
        Self { owner, copy, is_given_up: false, attempts: 0, due: 0, updates }
    }

    fn is_missing(&self) -> bool {
        self.copy.is_none() && !self.is_given_up
    }

    fn hold(&mut self, turn: Turn, gradients: &[Arc<LayerGradient>]) {
        self.updates.insert(turn, gradients.to_vec());
        if self.updates.len() > UPDATES_MAX {
            if self.copy.take().is_some() {
                (self.attempts, self.due) = (0, 0);
            } else if self.attempts > 0 {
                // When it comes it will lack the first of them.
                self.is_given_up = true;
            }
            self.updates.pop_first();
        }
        if self.is_given_up {
            self.updates.clear();
        }
    }

    /// Whether the gradients of several sealed steps are on their way, and none of a later one is here.
    fn is_behind(&self, sealed: Step) -> bool {
        let version = self.copy.as_ref().map(|(copy, _)| copy.version());
        let is_late = version.is_some_and(|version| version.0 + BEHIND_STEPS <= sealed.0);
        is_late && self.updates.is_empty()
    }

    /// Applies the seals whose gradients are here. A layer whose gradient does not fit is requested
    /// anew.
    fn advance(&mut self, seals: &BTreeMap<Turn, Seal>, exchange: &mut CopyExchange) {
        let Some((mut copy, mut open)) = self.copy.take() else { return };
        while let Some(seal) = seals.get(&open) {
            let next = seal.next_turn();
            let is_final = seal.verdict.is_final();
            if is_final && !exchange.allows(copy.layer(), next.step) {
                break;
            }
            if seal.verdict.coefficient().is_some() {
                let Some(gradients) = self.updates.get(&open) else { break };
                let own = gradients.iter().find(|gradient| gradient.layer == copy.layer());
                let own = own.cloned().map(GradientPart::whole);
                if own.is_none_or(|gradient| copy.hold(&gradient).is_err()) {
                    return;
                }
            }
            if copy.apply(seal).is_err() {
                return;
            }
            if is_final {
                exchange.advance(&mut copy);
            }
            open = next;
        }
        self.updates = self.updates.split_off(&open);
        self.copy = Some((copy, open));
    }
}

/// The layers that are kept on standby during a plan.
pub(super) struct StandbyLayers<C> {
    pre_copy: Arc<PreCopyPlan>,
    me: Holder,
    layers: BTreeMap<LayerId, StandbyLayer<C>>,
    seals: BTreeMap<Turn, Seal>,
    exchange: CopyExchange,
    tick: u32,
    /// The gradients of the layers here come later than steps are sealed: no further layer is
    /// requested.
    is_full: bool,
    is_reported: bool,
}

impl<C: LayerCopy> StandbyLayers<C> {
    /// The layers that `me` is to keep on standby, if any; those kept `before` are not fetched
    /// again.
    pub(super) fn new(
        me: Holder,
        pre_copy: Arc<PreCopyPlan>,
        before: Option<Self>,
        schedule: Option<Arc<OuterSchedule>>,
    ) -> Option<Self> {
        let before = before.filter(|before| before.pre_copy.generation == pre_copy.generation);
        let (mut known, seals, exchange, tick) = match before {
            Some(before) => (before.layers, before.seals, before.exchange, before.tick),
            None => (BTreeMap::new(), BTreeMap::new(), CopyExchange::new(schedule), 0),
        };
        let mut layers = BTreeMap::new();
        for planned in pre_copy.followed_by(me) {
            let kept = known.remove(&planned.layer).filter(|kept| kept.owner == planned.owner);
            layers.insert(planned.layer, kept.unwrap_or_else(|| StandbyLayer::new(planned.owner)));
        }
        let is_full = false;
        let is_reported = false;
        let standby = Self { pre_copy, me, layers, seals, exchange, tick, is_full, is_reported };
        (!standby.layers.is_empty()).then_some(standby)
    }

    /// The layers, as far as they are here.
    pub(super) fn copies(&self) -> impl Iterator<Item = &C> {
        self.layers.values().filter_map(|standby_layer| Some(&standby_layer.copy.as_ref()?.0))
    }

    /// The layers as they are, each at the version that it has reached: the sealed one if its last
    /// gradient is here.
    pub(super) fn into_images(self) -> impl Iterator<Item = LayerImage> {
        let sealed = self.sealed();
        let copies = self.layers.into_values().filter_map(|standby_layer| standby_layer.copy);
        copies.map(move |(copy, _)| match mutant::is(Mutant::M53FollowedCountsAsSealed) {
            true => LayerImage { version: sealed, ..copy.image() },
            false => copy.image(),
        })
    }

    /// Steps known to be sealed.
    fn sealed(&self) -> Step {
        self.seals.last_key_value().map_or(Step(0), |(_, seal)| seal.next_turn().step)
    }

    /// A layer at this version, taken out.
    pub(super) fn take(&mut self, layer: LayerId, version: Step) -> Option<LayerImage> {
        let (copy, _) = self.layers.get(&layer)?.copy.as_ref()?;
        if copy.version() != version && !mutant::is(Mutant::M28FollowedTooOld) {
            return None;
        }
        let image = copy.image();
        self.layers.remove(&layer);
        Some(LayerImage { version, ..image })
    }

    /// Whether a layer may reach this version: the missing updates may be on their way.
    pub(super) fn is_near(&self, layer: LayerId, version: Step) -> bool {
        let copy = self.layers.get(&layer).and_then(|standby_layer| standby_layer.copy.as_ref());
        copy.is_some_and(|(copy, _)| {
            let is_older = copy.version() < version;
            is_older && version.0 <= copy.version().0 + COMING_STEPS
        })
    }

    pub(super) fn settle(&mut self, seal: &Seal) {
        self.seals.insert(seal.turn, *seal);
        if self.seals.len() > SEALS_MAX {
            self.seals.pop_first();
        }
        self.advance();
    }

    fn advance(&mut self) {
        let Self { layers, seals, exchange, .. } = self;
        layers.values_mut().for_each(|standby_layer| standby_layer.advance(seals, exchange));
    }

    /// An outer step of all islands has an outcome.
    pub(super) fn handle_outer(&mut self, outer: &OuterWeights) {
        if self.layers.contains_key(&outer.layer) {
            self.exchange.receive(outer.clone());
            self.advance();
        }
    }

    /// What is requested of the exchange between islands.
    pub(super) fn take_requests(&mut self) -> Vec<OuterRequest> {
        self.exchange.take_requests()
    }

    /// Requests the layers that have not come, few at a time; none any more once the way here is full.
    pub(super) fn request_missing(&mut self) -> Vec<RuntimeOutput> {
        let sealed = self.sealed();
        self.is_full |= self.layers.values().any(|standby_layer| standby_layer.is_behind(sealed));
        if self.is_full {
            let is_next = |layer: &&mut StandbyLayer<C>| layer.is_missing() && layer.attempts == 0;
            self.layers.values_mut().filter(is_next).for_each(|layer| layer.is_given_up = true);
        }
        let generation = self.pre_copy.generation;
        let sender = self.me;
        let now = self.tick;
        let missing =
            self.layers.iter_mut().filter(|(_, standby_layer)| standby_layer.is_missing());
        let due = missing.take(REQUESTS_MAX).filter(|(_, standby_layer)| standby_layer.due <= now);
        let request = |(layer, standby_layer): (&LayerId, &mut StandbyLayer<C>)| {
            standby_layer.due = now + (RETRY_TICKS << standby_layer.attempts.min(RETRY_DOUBLINGS));
            standby_layer.attempts += 1;
            let body = PeerBody::StandbyRequest { layer: *layer };
            let frame = PeerFrame { generation, sender, body };
            RuntimeOutput::Peer { to: standby_layer.owner.node, frame }
        };
        due.map(request).collect()
    }

    /// The event that names the layers on standby, once no more are to come: those that memory does
    /// not hold are left out.
    pub(super) fn take_event(&mut self) -> Option<WorkerEvent> {
        let is_over = self.layers.values().all(|standby_layer| !standby_layer.is_missing());
        if !is_over || self.is_reported {
            return None;
        }
        self.is_reported = true;
        let here = self.layers.iter().filter(|(_, standby_layer)| standby_layer.copy.is_some());
        let layers = here.map(|(layer, _)| *layer).collect();
        Some(WorkerEvent::Following { generation: self.pre_copy.generation, layers })
    }

    /// A tick of the node's clock.
    pub(super) fn count_tick(&mut self) {
        self.tick += 1;
    }

    /// A layer that was requested ahead. Of one that memory does not hold no copy is made.
    pub(super) fn handle_layer<M: StageFactory<Copy = C>>(
        &mut self,
        model: &M,
        frame: &PeerFrame,
        open: Turn,
        image: &PendingImage,
    ) -> Result<(), PeerFrameRefusal> {
        let layer = image.layer();
        let version = image.version();
        self.check_sender(frame, layer)?;
        let image = image.wait()?;
        if !model.fits(&image) {
            return Err(PeerFrameRefusal::WrongShape { layer });
        }
        let standby_layer = self.layers.get_mut(&layer).expect("its owner was looked up");
        if !standby_layer.is_missing() || version != open.step {
            return Err(PeerFrameRefusal::Unrequested { layer, version, sender: frame.sender });
        }
        match model.copy(&image) {
            Ok(copy) => standby_layer.copy = Some((copy, open)),
            Err(_) => standby_layer.is_given_up = true,
        }
        self.exchange.begin(layer, version);
        standby_layer.advance(&self.seals, &mut self.exchange);
        Ok(())
    }

    /// The gradient of a turn, and the seal that led to it.
    pub(super) fn handle_update(
        &mut self,
        frame: &PeerFrame,
        (turn, before): (Turn, Option<Seal>),
        gradients: &[Arc<LayerGradient>],
    ) -> Result<(), PeerFrameRefusal> {
        for gradient in gradients {
            self.check_sender(frame, gradient.layer)?;
        }
        for gradient in gradients {
            let standby_layer = self.layers.get_mut(&gradient.layer);
            standby_layer.expect("its owner was looked up").hold(turn, gradients);
        }
        match before {
            Some(seal) => self.settle(&seal),
            None => self.advance(),
        }
        Ok(())
    }

    /// S3: a layer on standby comes from the worker that trains it, under the plan in force.
    fn check_sender(&self, frame: &PeerFrame, layer: LayerId) -> Result<(), PeerFrameRefusal> {
        let expected = self.pre_copy.generation;
        let found = frame.generation;
        if expected != found {
            return Err(PeerFrameRefusal::OtherGeneration { expected, found });
        }
        let sender = frame.sender;
        let is_owner =
            self.layers.get(&layer).is_some_and(|standby_layer| standby_layer.owner == sender);
        if is_owner { Ok(()) } else { Err(PeerFrameRefusal::Stranger { sender }) }
    }
}

/// The workers that keep layers of a stage on standby, and whether each layer was sent.
#[derive(Default)]
pub(super) struct StandbyPeers {
    pre_copy: Option<Arc<PreCopyPlan>>,
    served: BTreeMap<(Holder, LayerId), bool>,
}

impl StandbyPeers {
    pub(super) fn set_pre_copy(&mut self, pre_copy: Option<Arc<PreCopyPlan>>) {
        self.pre_copy = pre_copy;
        let Self { pre_copy, served } = self;
        served.retain(|(holder, layer), _| is_named(pre_copy.as_deref(), *holder, *layer));
    }

    /// A worker requests to keep a layer on standby. If it requests it again, the layer is sent
    /// again.
    pub(super) fn admit(&mut self, holder: Holder, layer: LayerId) -> Result<(), PeerFrameRefusal> {
        if !is_named(self.pre_copy.as_deref(), holder, layer) {
            return Err(PeerFrameRefusal::Stranger { sender: holder });
        }
        self.served.insert((holder, layer), false);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.served.is_empty()
    }

    /// The workers that wait for their layer; from now on they do not.
    pub(super) fn take_waiting(&mut self) -> Vec<(Holder, LayerId)> {
        let waiting = self.served.iter_mut().filter(|(_, is_served)| !**is_served);
        let served = waiting.map(|(key, is_served)| {
            *is_served = true;
            *key
        });
        served.collect()
    }

    /// For each node that was sent layers, which it was sent.
    pub(super) fn served(&self) -> BTreeMap<NodeId, Vec<LayerId>> {
        let mut nodes: BTreeMap<NodeId, Vec<LayerId>> = BTreeMap::new();
        for ((holder, layer), _) in self.served.iter().filter(|(_, is_served)| **is_served) {
            nodes.entry(holder.node).or_default().push(*layer);
        }
        nodes
    }
}

fn is_named(pre_copy: Option<&PreCopyPlan>, holder: Holder, layer: LayerId) -> bool {
    let mut planned = pre_copy.into_iter().flat_map(|pre_copy| pre_copy.followed_by(holder));
    planned.any(|planned| planned.layer == layer)
}
