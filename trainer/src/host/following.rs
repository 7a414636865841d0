//! Layers that a planned change will need here, copied ahead while others train them.
//!
//! A layer comes once, as its owner has sealed it. From then on its owner sends the gradient of
//! each turn, and with it the seal that led to that turn, so that no other message is needed for
//! the layer to stay one step behind. What is followed is used by the plan that it was followed
//! for and by no other; if it is not there in time, the layer is fetched as always.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::member::Holder;
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_consensus::rehearsal::Rehearsal;
use zbelastic_consensus::seat::News;
use zbelastic_consensus::validation::{Seal, Turn};
use zbelastic_types::{LayerId, NodeId, Step};

use super::peers::{PeerBody, PeerFrame, PeerRefusal};
use super::{Host, HostOutput, Phase};
use crate::data::BatchSource;
use crate::elastic::{ComputeModel, GradientPart, LayerCopy, LayerGradient, LayerImage};

/// Layers that are requested and have not come, at once: a stage that exports is not training.
const ASKED_MAX: usize = 2;
/// Ticks until a layer that does not come is requested again; twice as many each time.
const ASK_TICKS: u32 = 3;
/// How often they are doubled.
const ASK_DOUBLINGS: u32 = 6;
/// Updates of a layer that wait for the layer, or for what came before them. With one more it is
/// too far behind, and is requested anew.
const UPDATES_MAX: usize = 4;
/// Seals that wait for gradients; the oldest goes.
const SEALS_MAX: usize = 8;

/// A layer that is followed.
struct Followed<C> {
    owner: Holder,
    /// The layer, and the turn whose seal it applies next.
    copy: Option<(C, Turn)>,
    /// Memory does not hold it: it is fetched when the plan begins.
    is_given_up: bool,
    asks: u32,
    /// Tick at which it is requested again.
    due: u32,
    updates: BTreeMap<Turn, Vec<Arc<LayerGradient>>>,
}

impl<C: LayerCopy> Followed<C> {
    fn new(owner: Holder) -> Self {
        let (copy, updates) = (None, BTreeMap::new());
        Self { owner, copy, is_given_up: false, asks: 0, due: 0, updates }
    }

    fn is_wanted(&self) -> bool {
        self.copy.is_none() && !self.is_given_up
    }

    fn hold(&mut self, turn: Turn, gradients: &[Arc<LayerGradient>]) {
        self.updates.insert(turn, gradients.to_vec());
        if self.updates.len() > UPDATES_MAX {
            if self.copy.take().is_some() {
                (self.asks, self.due) = (0, 0);
            }
            self.updates.pop_first();
        }
    }

    /// Applies the seals whose gradients are here. A layer whose gradient does not fit is requested anew.
    fn advance(&mut self, seals: &BTreeMap<Turn, Seal>) {
        let Some((mut copy, mut open)) = self.copy.take() else { return };
        while let Some(seal) = seals.get(&open) {
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
            open = seal.next_turn();
        }
        self.updates = self.updates.split_off(&open);
        self.copy = Some((copy, open));
    }
}

/// What is followed during a plan.
pub(super) struct Following<C> {
    rehearsal: Arc<Rehearsal>,
    me: Holder,
    layers: BTreeMap<LayerId, Followed<C>>,
    seals: BTreeMap<Turn, Seal>,
    tick: u32,
    is_told: bool,
}

impl<C: LayerCopy> Following<C> {
    /// What `me` is to follow, if anything; what was followed `before` is not fetched again.
    fn new(me: Holder, rehearsal: Arc<Rehearsal>, before: Option<Self>) -> Option<Self> {
        let before = before.filter(|before| before.rehearsal.generation == rehearsal.generation);
        let (mut known, seals, tick) = match before {
            Some(before) => (before.layers, before.seals, before.tick),
            None => (BTreeMap::new(), BTreeMap::new(), 0),
        };
        let mut layers = BTreeMap::new();
        for follow in rehearsal.followed_by(me) {
            let kept = known.remove(&follow.layer).filter(|kept| kept.owner == follow.owner);
            layers.insert(follow.layer, kept.unwrap_or_else(|| Followed::new(follow.owner)));
        }
        let is_told = false;
        (!layers.is_empty()).then_some(Self { rehearsal, me, layers, seals, tick, is_told })
    }

    /// The layers, as far as they are here.
    pub(super) fn copies(&self) -> impl Iterator<Item = &C> {
        self.layers.values().filter_map(|followed| Some(&followed.copy.as_ref()?.0))
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

    /// Whether a layer is about to be at this version: what is missing is on its way.
    pub(super) fn is_near(&self, layer: LayerId, version: Step) -> bool {
        let copy = self.layers.get(&layer).and_then(|followed| followed.copy.as_ref());
        copy.is_some_and(|(copy, _)| copy.version().next() == version)
    }

    pub(super) fn settle(&mut self, seal: &Seal) {
        self.seals.insert(seal.turn, *seal);
        if self.seals.len() > SEALS_MAX {
            self.seals.pop_first();
        }
        self.layers.values_mut().for_each(|followed| followed.advance(&self.seals));
    }

    /// Requests the layers that have not come, few at a time.
    fn ask(&mut self) -> Vec<HostOutput> {
        let (generation, sender, now) = (self.rehearsal.generation, self.me, self.tick);
        let wanted = self.layers.iter_mut().filter(|(_, followed)| followed.is_wanted());
        let due = wanted.take(ASKED_MAX).filter(|(_, followed)| followed.due <= now);
        let ask = |(layer, followed): (&LayerId, &mut Followed<C>)| {
            followed.due = now + (ASK_TICKS << followed.asks.min(ASK_DOUBLINGS));
            followed.asks += 1;
            let body = PeerBody::Follow { layer: *layer };
            let frame = PeerFrame { generation, sender, body };
            HostOutput::Peer { to: followed.owner.node, frame }
        };
        due.map(ask).collect()
    }

    /// The news what is followed, once nothing more is to come: what memory does not hold is left out.
    fn news(&mut self) -> Option<News> {
        let is_over = self.layers.values().all(|followed| !followed.is_wanted());
        if !is_over || self.is_told {
            return None;
        }
        self.is_told = true;
        let here = self.layers.iter().filter(|(_, followed)| followed.copy.is_some());
        let layers = here.map(|(layer, _)| *layer).collect();
        Some(News::Following { generation: self.rehearsal.generation, layers })
    }

    /// S3: what is followed comes from the worker that trains it, under the plan in force.
    fn check_sender(&self, frame: &PeerFrame, layer: LayerId) -> Result<(), PeerRefusal> {
        let (expected, found) = (self.rehearsal.generation, frame.generation);
        if expected != found {
            return Err(PeerRefusal::OtherGeneration { expected, found });
        }
        let sender = frame.sender;
        let is_owner = self.layers.get(&layer).is_some_and(|followed| followed.owner == sender);
        if is_owner { Ok(()) } else { Err(PeerRefusal::Stranger { sender }) }
    }
}

impl<M: ComputeModel, S: BatchSource + Clone> Host<M, S> {
    /// Layers that are followed, as far as they are here.
    pub fn followed(&self) -> impl Iterator<Item = &M::Copy> {
        self.following.iter().flat_map(Following::copies)
    }

    pub(super) fn rehearse(&mut self, me: Holder, rehearsal: Option<Arc<Rehearsal>>) {
        if let Phase::Stationed(station) = &mut self.phase {
            station.rehearse(rehearsal.clone());
        }
        let before = self.following.take();
        self.following = rehearsal.and_then(|rehearsal| Following::new(me, rehearsal, before));
        self.drive_following();
    }

    pub(super) fn tick_following(&mut self) {
        if let Some(following) = &mut self.following {
            following.tick += 1;
        }
        self.drive_following();
    }

    /// Requests what is missing, reports when nothing is, and moves layers to a plan that loads them.
    fn drive_following(&mut self) {
        match &self.phase {
            Phase::Idle | Phase::Stationed(_) => {
                let Some(following) = &mut self.following else { return };
                self.outbox.extend(following.ask());
                let news = following.news();
                self.outbox.extend(news.map(HostOutput::News));
            }
            Phase::Loading(_) => self.load_followed(),
        }
    }

    pub(super) fn settle_following(&mut self, seal: &Seal) {
        if let Some(following) = &mut self.following {
            following.settle(seal);
        }
    }

    /// A layer that was requested ahead.
    pub(super) fn handle_ahead(
        &mut self,
        frame: &PeerFrame,
        open: Turn,
        image: &Arc<LayerImage>,
    ) -> Result<(), PeerRefusal> {
        let following = self.following.as_mut().ok_or(PeerRefusal::NoStage)?;
        let (layer, version) = (image.layer, image.version);
        following.check_sender(frame, layer)?;
        if !self.model.fits(image) {
            return Err(PeerRefusal::Form { layer });
        }
        let followed = following.layers.get_mut(&layer).expect("its owner was looked up");
        if !followed.is_wanted() || version != open.step {
            return Err(PeerRefusal::Unasked { layer, version, sender: frame.sender });
        }
        match self.model.copy(image) {
            Ok(copy) => followed.copy = Some((copy, open)),
            Err(_) => followed.is_given_up = true,
        }
        followed.advance(&following.seals);
        self.drive_following();
        Ok(())
    }

    /// The gradient of a turn, and the seal that led to it.
    pub(super) fn handle_update(
        &mut self,
        frame: &PeerFrame,
        (turn, before): (Turn, Option<Seal>),
        gradients: &[Arc<LayerGradient>],
    ) -> Result<(), PeerRefusal> {
        let following = self.following.as_mut().ok_or(PeerRefusal::NoStage)?;
        for gradient in gradients.iter() {
            following.check_sender(frame, gradient.layer)?;
        }
        for gradient in gradients.iter() {
            let followed = following.layers.get_mut(&gradient.layer);
            followed.expect("its owner was looked up").hold(turn, gradients);
        }
        match before {
            Some(seal) => following.settle(&seal),
            None => following.layers.values_mut().for_each(|f| f.advance(&following.seals)),
        }
        self.drive_following();
        Ok(())
    }
}

/// The workers that follow layers of a stage, and whether each layer was sent.
#[derive(Default)]
pub(super) struct Followers {
    rehearsal: Option<Arc<Rehearsal>>,
    served: BTreeMap<(Holder, LayerId), bool>,
}

impl Followers {
    pub(super) fn rehearse(&mut self, rehearsal: Option<Arc<Rehearsal>>) {
        self.rehearsal = rehearsal;
        let Self { rehearsal, served } = self;
        served.retain(|(holder, layer), _| is_named(rehearsal.as_deref(), *holder, *layer));
    }

    /// A worker requests to follow a layer. If it requests it again, the layer is sent again.
    pub(super) fn admit(&mut self, holder: Holder, layer: LayerId) -> Result<(), PeerRefusal> {
        if !is_named(self.rehearsal.as_deref(), holder, layer) {
            return Err(PeerRefusal::Stranger { sender: holder });
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

    /// For each node that follows, its layers.
    pub(super) fn served(&self) -> BTreeMap<NodeId, Vec<LayerId>> {
        let mut nodes: BTreeMap<NodeId, Vec<LayerId>> = BTreeMap::new();
        for ((holder, layer), _) in self.served.iter().filter(|(_, is_served)| **is_served) {
            nodes.entry(holder.node).or_default().push(*layer);
        }
        nodes
    }
}

fn is_named(rehearsal: Option<&Rehearsal>, holder: Holder, layer: LayerId) -> bool {
    let mut follows = rehearsal.into_iter().flat_map(|rehearsal| rehearsal.followed_by(holder));
    follows.any(|follow| follow.layer == layer)
}
