//! The layers that a worker requested of others, and which of those that offer one send it. What
//! nobody requested is not fetched: a member that offers one layer after the other fills no memory
//! and no line.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_types::{Generation, LayerId, NodeId, Step};

/// The most nodes that join fetches under way, of all layers together. Each has a chunk of 1 MiB in
/// hand and another that waits for the fetch: 32 MiB of the 128 MiB that a move may take beside the
/// plan (record 85).
pub const JOINED_MAX: usize = 16;

/// A layer as it is requested, and offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LayerRequest {
    /// The plan that it is for, or the one in force if it is requested ahead.
    pub generation: Generation,
    /// Index of the layer in the model.
    pub layer: LayerId,
    /// Steps sealed before it; none if it is requested ahead, as whichever step finds it.
    pub version: Option<Step>,
}

/// A layer was offered that was not requested, or was offered before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} offers layer {layer} for plan {generation} unrequested")]
pub struct UnrequestedLayer {
    /// The node that offers it.
    pub node: NodeId,
    /// Index of the layer in the model.
    pub layer: LayerId,
    /// The plan that the offer names.
    pub generation: Generation,
}

/// The part in a fetch of a node that offers a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferUse {
    /// It is the first one: the layer is fetched from it.
    First,
    /// The layer is on its way from others, and it sends chunks of it as well.
    Joins,
    /// The layer is on its way, and it sends none: it does already, or [`JOINED_MAX`] nodes do.
    Unused,
}

/// The requests that wait for an offer, and the layers that are on their way. There are as many as
/// this worker's runtime requests for one plan: earlier plans' are dropped when one begins.
#[derive(Debug, Default)]
pub struct LayerRequests {
    /// How often each was requested without an offer since. A request is repeated when none came.
    waiting: BTreeMap<(NodeId, LayerRequest), u32>,
    /// The nodes that send each layer, by the version that they offered; the first began the fetch.
    sending: BTreeMap<(LayerRequest, Step), Vec<NodeId>>,
    /// Those that came whole. One that is requested all the same had other bits than its plan expects.
    whole: BTreeSet<LayerRequest>,
    /// Whether the layers of a plan are on their way: what came of one serves its next fetch.
    is_loading: bool,
}

impl LayerRequests {
    /// A request is sent to a node.
    pub fn record(&mut self, to: NodeId, request: LayerRequest) {
        let count = self.waiting.entry((to, request)).or_default();
        *count = count.saturating_add(1);
    }

    /// A node offers a layer at a version, which answers one request. Yields its part in the fetch.
    ///
    /// # Errors
    /// If no request to it waits for that layer.
    pub fn answer(
        &mut self,
        node: NodeId,
        offered: LayerRequest,
        version: Step,
    ) -> Result<OfferUse, UnrequestedLayer> {
        let LayerRequest { generation, layer, .. } = offered;
        let unrequested = UnrequestedLayer { node, layer, generation };
        let count = self.waiting.get_mut(&(node, offered)).ok_or(unrequested)?;
        *count -= 1;
        if *count == 0 {
            self.waiting.remove(&(node, offered));
        }
        let joined: usize = self.sending.values().map(|nodes| nodes.len() - 1).sum();
        let Some(nodes) = self.sending.get_mut(&(offered, version)) else {
            self.sending.insert((offered, version), vec![node]);
            return Ok(OfferUse::First);
        };
        if nodes.contains(&node) || joined >= JOINED_MAX {
            return Ok(OfferUse::Unused);
        }
        nodes.push(node);
        Ok(OfferUse::Joins)
    }

    /// The fetch of a layer ended. If the layer `is_here`, later offers of it are unrequested; but not
    /// where it is requested ahead: what is offered then is held until it was read.
    ///
    /// Yields whether the next fetch goes on with what came. Not where the plan needs no layer any more.
    /// Nor where the layer is requested ahead: the next offer is of a later version. Nor where it came whole before, with other bits than its
    /// plan expects: each node then sends all of it alone.
    pub fn finish(&mut self, request: LayerRequest, version: Step, is_here: bool) -> bool {
        self.sending.remove(&(request, version));
        if is_here && request.version.is_some() {
            self.waiting.retain(|(_, waiting), _| *waiting != request);
            self.whole.insert(request);
        }
        self.is_loading && request.version.is_some() && !self.whole.contains(&request)
    }

    /// A plan begins: requests for those before it are dropped, and what is on its way is for none.
    pub fn begin_plan(&mut self, generation: Generation) {
        self.waiting.retain(|(_, request), _| request.generation >= generation);
        self.sending.clear();
        self.whole.clear();
        self.is_loading = true;
    }

    /// The plan has its layers, or stops.
    pub fn end_loading(&mut self) {
        self.is_loading = false;
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Generation, LayerId, NodeId, Step};

    use super::{JOINED_MAX, LayerRequest, LayerRequests, OfferUse, UnrequestedLayer};

    const NODE: NodeId = NodeId(4);
    const OTHER: NodeId = NodeId(5);
    const LAYER: LayerId = LayerId(2);
    const VERSION: Step = Step(8);

    fn of(layer: u32, version: u64) -> LayerRequest {
        let version = Some(Step(version));
        LayerRequest { generation: Generation(3), layer: LayerId(layer), version }
    }

    fn at(version: u64) -> LayerRequest {
        of(LAYER.0, version)
    }

    #[test]
    fn an_offer_answers_one_request_to_that_node() {
        let mut requests = LayerRequests::default();
        let generation = Generation(3);
        let refused = |node| Err(UnrequestedLayer { node, layer: LAYER, generation });
        assert_eq!(requests.answer(NODE, at(8), VERSION), refused(NODE));
        requests.record(NODE, at(8));
        assert_eq!(requests.answer(OTHER, at(8), VERSION), refused(OTHER));
        assert_eq!(requests.answer(NODE, at(9), Step(9)), refused(NODE), "another version");
        let ahead = LayerRequest { version: None, ..at(8) };
        assert_eq!(requests.answer(NODE, ahead, VERSION), refused(NODE), "not requested ahead");
        assert_eq!(requests.answer(NODE, at(8), VERSION), Ok(OfferUse::First));
        assert_eq!(requests.answer(NODE, at(8), VERSION), refused(NODE), "once");
        requests.record(NODE, at(8));
        requests.record(NODE, at(8));
        assert_eq!(requests.answer(NODE, at(8), VERSION), Ok(OfferUse::Unused), "it sends it");
        assert_eq!(requests.answer(NODE, at(8), VERSION), Ok(OfferUse::Unused), "requested twice");
    }

    #[test]
    fn a_later_plan_drops_requests_and_what_is_on_its_way() {
        let mut requests = LayerRequests::default();
        requests.record(NODE, at(8));
        requests.begin_plan(Generation(3));
        assert_eq!(requests.answer(NODE, at(8), VERSION), Ok(OfferUse::First));
        requests.record(NODE, at(8));
        requests.begin_plan(Generation(4));
        assert!(requests.answer(NODE, at(8), VERSION).is_err());
        requests.record(NODE, at(8));
        assert_eq!(requests.answer(NODE, at(8), VERSION), Ok(OfferUse::First));
    }

    #[test]
    fn all_that_offer_a_layer_send_it_until_it_is_here() {
        let mut requests = LayerRequests::default();
        let late = NodeId(6);
        [NODE, OTHER, late].into_iter().for_each(|node| requests.record(node, at(8)));
        assert_eq!(requests.answer(NODE, at(8), VERSION), Ok(OfferUse::First));
        assert_eq!(requests.answer(OTHER, at(8), VERSION), Ok(OfferUse::Joins));
        requests.finish(at(8), VERSION, true);
        assert!(requests.answer(late, at(8), VERSION).is_err(), "the layer is here");
        requests.record(OTHER, at(8));
        let again = requests.answer(OTHER, at(8), VERSION);
        assert_eq!(again, Ok(OfferUse::First), "it was requested again");
    }

    #[test]
    fn a_fetch_that_failed_begins_again_with_the_next_offer() {
        let mut requests = LayerRequests::default();
        [NODE, OTHER].into_iter().for_each(|node| requests.record(node, at(8)));
        assert_eq!(requests.answer(NODE, at(8), VERSION), Ok(OfferUse::First));
        requests.finish(at(8), VERSION, false);
        assert_eq!(requests.answer(OTHER, at(8), VERSION), Ok(OfferUse::First));
    }

    #[test]
    fn the_next_fetch_goes_on_with_a_layer_of_a_plan_that_never_came_whole() {
        let mut requests = LayerRequests::default();
        let ahead = LayerRequest { version: None, ..at(8) };
        assert!(!requests.finish(at(8), VERSION, false), "no plan is loaded");
        requests.begin_plan(Generation(3));
        assert!(requests.finish(at(8), VERSION, false));
        assert!(!requests.finish(ahead, VERSION, false), "a later version is offered next");
        assert!(!requests.finish(at(8), VERSION, true), "all of it is used");
        assert!(!requests.finish(at(8), VERSION, false), "each node sends it alone");
        assert!(requests.finish(of(LAYER.0 + 1, 8), VERSION, false), "another layer");
        requests.begin_plan(Generation(4));
        let next = LayerRequest { generation: Generation(4), ..at(8) };
        assert!(requests.finish(next, VERSION, false));
        requests.end_loading();
        assert!(!requests.finish(next, VERSION, false), "the plan needs it no more");
    }

    /// Ahead of a plan whichever version is sealed is offered, and another one is another body.
    #[test]
    fn another_version_of_a_layer_is_fetched_by_itself() {
        let mut requests = LayerRequests::default();
        let ahead = LayerRequest { version: None, ..at(8) };
        [NODE, OTHER].into_iter().for_each(|node| requests.record(node, ahead));
        assert_eq!(requests.answer(NODE, ahead, Step(8)), Ok(OfferUse::First));
        assert_eq!(requests.answer(OTHER, ahead, Step(9)), Ok(OfferUse::First));
        requests.record(OTHER, ahead);
        requests.finish(ahead, Step(8), true);
        let later = requests.answer(OTHER, ahead, Step(10));
        assert_eq!(later, Ok(OfferUse::First), "it is held for this one until it was read");
    }

    #[test]
    fn so_many_nodes_join_fetches_and_no_more() {
        let mut requests = LayerRequests::default();
        let layers = JOINED_MAX as u32 + 1;
        let offer = |requests: &mut LayerRequests, node, layer| {
            requests.record(node, of(layer, 8));
            requests.answer(node, of(layer, 8), VERSION)
        };
        for layer in 0..layers {
            assert_eq!(offer(&mut requests, NODE, layer), Ok(OfferUse::First));
        }
        for layer in 0..layers - 1 {
            assert_eq!(offer(&mut requests, OTHER, layer), Ok(OfferUse::Joins));
        }
        assert_eq!(offer(&mut requests, OTHER, layers - 1), Ok(OfferUse::Unused));
        requests.finish(of(0, 8), VERSION, true);
        assert_eq!(offer(&mut requests, OTHER, layers - 1), Ok(OfferUse::Joins));
    }
}
