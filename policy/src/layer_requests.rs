//! The layers that a worker requested of others. What nobody requested is not fetched: a member that
//! offers one layer after the other fills no memory and no line.

use std::collections::BTreeMap;

use zbelastic_types::{Generation, LayerId, NodeId, Step};

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

/// The requests that wait for an offer. There are as many as this worker's runtime makes for one plan:
/// earlier plans' are dropped when one begins.
#[derive(Debug, Default)]
pub struct LayerRequests {
    /// How often each was requested without an offer since. A request is repeated when none came.
    waiting: BTreeMap<(NodeId, LayerRequest), u32>,
}

impl LayerRequests {
    /// A request is sent to a node.
    pub fn record(&mut self, to: NodeId, request: LayerRequest) {
        let count = self.waiting.entry((to, request)).or_default();
        *count = count.saturating_add(1);
    }

    /// A node offers a layer, which answers one request.
    ///
    /// # Errors
    /// If no request to it waits for that layer.
    pub fn answer(&mut self, node: NodeId, offered: LayerRequest) -> Result<(), UnrequestedLayer> {
        let LayerRequest { generation, layer, .. } = offered;
        let unrequested = UnrequestedLayer { node, layer, generation };
        let count = self.waiting.get_mut(&(node, offered)).ok_or(unrequested)?;
        *count -= 1;
        if *count == 0 {
            self.waiting.remove(&(node, offered));
        }
        Ok(())
    }

    /// A plan begins: requests for those before it are dropped.
    pub fn clear_before(&mut self, generation: Generation) {
        self.waiting.retain(|(_, request), _| request.generation >= generation);
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Generation, LayerId, NodeId, Step};

    use super::{LayerRequest, LayerRequests, UnrequestedLayer};

    const NODE: NodeId = NodeId(4);
    const LAYER: LayerId = LayerId(2);

    fn at(version: u64) -> LayerRequest {
        LayerRequest { generation: Generation(3), layer: LAYER, version: Some(Step(version)) }
    }

    #[test]
    fn an_offer_answers_one_request_to_that_node() {
        let mut requests = LayerRequests::default();
        let generation = Generation(3);
        let refused = |node| Err(UnrequestedLayer { node, layer: LAYER, generation });
        assert_eq!(requests.answer(NODE, at(8)), refused(NODE));
        requests.record(NODE, at(8));
        assert_eq!(requests.answer(NodeId(5), at(8)), refused(NodeId(5)));
        assert_eq!(requests.answer(NODE, at(9)), refused(NODE), "another version");
        let ahead = LayerRequest { version: None, ..at(8) };
        assert_eq!(requests.answer(NODE, ahead), refused(NODE), "it was not requested ahead");
        assert_eq!(requests.answer(NODE, at(8)), Ok(()));
        assert_eq!(requests.answer(NODE, at(8)), refused(NODE), "once");
        requests.record(NODE, at(8));
        requests.record(NODE, at(8));
        assert_eq!(requests.answer(NODE, at(8)), Ok(()));
        assert_eq!(requests.answer(NODE, at(8)), Ok(()), "requested twice");
    }

    #[test]
    fn a_later_plan_drops_requests() {
        let mut requests = LayerRequests::default();
        requests.record(NODE, at(8));
        requests.clear_before(Generation(3));
        assert_eq!(requests.answer(NODE, at(8)), Ok(()));
        requests.record(NODE, at(8));
        requests.clear_before(Generation(4));
        assert!(requests.answer(NODE, at(8)).is_err());
    }
}
