//! Which nodes a plan is tried on, and the memory limit of each one's stage. A node with little
//! memory is left out where others suffice, wherever it stands, and limits no other node's stage.

use std::cmp::Reverse;

use zbelastic_consensus::member::Resources;
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_types::{Bytes, NodeId};

/// A node id with the memory, speed and device class of the node.
pub type NodeResources = (NodeId, Resources);

/// Why there is no plan on no node.
pub(crate) const NO_NODE: &str = "no node is available";

/// The limit of a stage that has none: more than any node has, and as much can be added to it.
const UNLIMITED: Bytes = Bytes(1 << 60);

/// The memory that the stage of each node may use: its node's memory, and the limit of the
/// configuration. Empty if no node has a limit.
#[must_use]
pub fn memory_limits(most: Option<Bytes>, nodes: &[NodeResources]) -> Vec<Bytes> {
    let own = |(_, resources): &NodeResources| Some(resources.memory).filter(|memory| memory.0 > 0);
    let limits: Vec<Option<Bytes>> =
        nodes.iter().map(|node| own(node).into_iter().chain(most).min()).collect();
    if limits.iter().all(Option::is_none) {
        return Vec::new();
    }
    limits.into_iter().map(|limit| limit.unwrap_or(UNLIMITED)).collect()
}

/// Indices of the nodes to try for so many stages, in the order of stages: the first ones, as they hold
/// their layers already, and then those with the most memory: in the order in which they stand, and in
/// that of their memory, for the first stage needs the most as a rule, and the last one does with a
/// large head.
fn node_choices(nodes: &[NodeResources], stage_count: usize) -> Vec<Vec<usize>> {
    if stage_count > nodes.len() {
        return Vec::new();
    }
    let memory = |at: &usize| match nodes[*at].1.memory {
        Bytes(0) => UNLIMITED,
        limited => limited,
    };
    let mut largest: Vec<usize> = (0..nodes.len()).collect();
    largest.sort_by_key(|at| Reverse(memory(at)));
    largest.truncate(stage_count);
    let mut in_place = largest.clone();
    in_place.sort_unstable();
    let smallest_first = largest.iter().rev().copied().collect();
    let mut choices: Vec<Vec<usize>> = vec![(0..stage_count).collect()];
    if !mutant::is(Mutant::M34FirstNodesOnly) {
        for choice in [in_place, largest, smallest_first] {
            // Nodes alike are tried once.
            let memory = |choice: &[usize]| choice.iter().map(&memory).collect::<Vec<_>>();
            if choices.iter().all(|tried| memory(tried) != memory(&choice)) {
                choices.push(choice);
            }
        }
    }
    choices
}

/// The first plan that is possible on some of the nodes, with their indices: of the candidates,
/// each with its number of stages, in order; for each number on the nodes that stand first, or on
/// those with the most memory, in several orders.
///
/// # Errors
/// The error of the last candidate.
pub fn first_plan<R: Copy, P>(
    nodes: &[NodeResources],
    tried: impl IntoIterator<Item = (R, u32)>,
    mut plan: impl FnMut(R, &[usize]) -> Result<P, String>,
) -> Result<(P, Vec<usize>), String> {
    let mut reason = NO_NODE.to_owned();
    for (candidate, stage_count) in tried {
        for indices in node_choices(nodes, stage_count as usize) {
            match plan(candidate, &indices) {
                Ok(plan) => return Ok((plan, indices)),
                Err(error) => reason = error,
            }
        }
    }
    Err(reason)
}

#[cfg(test)]
mod tests {
    use zbelastic_consensus::class::DeviceClass;

    use super::*;

    fn nodes(memory: &[u64]) -> Vec<NodeResources> {
        let resources = |memory| Resources {
            memory: Bytes(memory),
            speed_permille: 1000,
            class: DeviceClass::Processors,
        };
        (1..).map(NodeId).zip(memory.iter().map(|memory| resources(*memory))).collect()
    }

    #[test]
    fn each_stage_has_its_nodes_own_limit() {
        assert_eq!(memory_limits(None, &nodes(&[0, 0])), []);
        assert_eq!(memory_limits(None, &nodes(&[0, 5])), [UNLIMITED, Bytes(5)]);
        assert_eq!(memory_limits(Some(Bytes(3)), &nodes(&[0, 5, 2])), [3, 3, 2].map(Bytes));
    }

    #[test]
    fn a_small_node_is_left_out_wherever_it_stands() {
        let needs = |nodes: &[NodeResources], indices: &[usize]| {
            let has_memory = |at: &usize| nodes[*at].1.memory >= Bytes(10);
            if indices.iter().all(has_memory) { Ok(()) } else { Err("no memory".to_owned()) }
        };
        for (memory, expected) in [([1, 10, 10], vec![1, 2]), ([10, 10, 1], vec![0, 1])] {
            let nodes = nodes(&memory);
            let tried = (1..=3).rev().map(|count| ((), count));
            let found = first_plan(&nodes, tried, |(), indices| needs(&nodes, indices));
            assert_eq!(found.expect("two suffice").1, expected);
        }
        // The first stage needs 12 and the last one 6, or the other way round.
        for (memory, needed, expected) in
            [([8, 16], [12, 6], [1, 0]), ([16, 8], [6, 12], [1, 0]), ([16, 8], [12, 6], [0, 1])]
        {
            let nodes = nodes(&memory);
            let has_memory = |indices: &[usize]| {
                let mut pairs = indices.iter().zip(needed);
                let fits = pairs.all(|(at, needed)| nodes[*at].1.memory >= Bytes(needed));
                if fits { Ok(()) } else { Err("no memory".to_owned()) }
            };
            let found = first_plan(&nodes, [((), 2)], |(), indices| has_memory(indices));
            assert_eq!(found.expect("one order fits").1, expected);
        }
        let none = nodes(&[1]);
        let found = first_plan(&none, [((), 1)], |(), indices| needs(&none, indices));
        assert_eq!(found.expect_err("no memory"), "no memory");
    }
}
