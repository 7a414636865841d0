//! Zones of a forecast: which layers the loss of one zone would take.

use std::collections::BTreeSet;

use serde::Serialize;
use zbelastic_config::NodeSpec;
use zbelastic_consensus::contact::FailureDomain;
use zbelastic_consensus::duty::copies;
use zbelastic_consensus::plan::counted_holders;
use zbelastic_schedule::Placement;
use zbelastic_types::StageIndex;

/// The zones of a plan's nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ZoneForecast {
    /// Number of zones that nodes with a stage are in.
    pub zones: usize,
    /// Number of nodes whose zone is not known.
    pub unknown: usize,
    /// Nodes whose layers, copies included, are in no known zone but theirs.
    pub exposed: Vec<String>,
}

impl ZoneForecast {
    /// That of nodes in the order of stages, each layer of which has so many copies; `None` if no
    /// zone is known.
    pub fn new(nodes: &[NodeSpec], placement: &Placement, wanted: u32) -> Option<Self> {
        let domain = |node: &NodeSpec| FailureDomain { zone: node.zone.clone(), host: 0 };
        let domains: Vec<FailureDomain> = nodes.iter().map(domain).collect();
        let known: BTreeSet<&str> = domains.iter().map(|domain| &*domain.zone).collect();
        let zones = known.iter().filter(|zone| !zone.is_empty()).count();
        let kept = copies(&domains, placement, (wanted, 0));
        let is_exposed = |(stage, keepers): &(StageIndex, Vec<StageIndex>)| {
            let own = &domains[stage.index()];
            let holders = counted_holders(placement, *stage).into_iter();
            let mut others = holders.chain(keepers.iter().copied()).filter(|other| other != stage);
            !own.zone.is_empty()
                && others.all(|other| {
                    let other = &domains[other.index()];
                    other.zone.is_empty() || own.shares_zone(other)
                })
        };
        let stages = (0..).map(StageIndex).zip(kept);
        let exposed = stages.filter(is_exposed).map(|(stage, _)| nodes[stage.index()].name.clone());
        let unknown = domains.iter().filter(|domain| domain.zone.is_empty()).count();
        (zones > 0).then(|| Self { zones, unknown, exposed: exposed.collect() })
    }
}
