//! The nodes that a piece of a checkpoint is fetched from: several at once, and one after the other
//! where what they sent together is not the piece.

use std::collections::VecDeque;

use zbelastic_types::NodeId;

/// The most nodes that a piece comes from at once. What one sends lies in two chunks of the store at
/// most, of 4 MiB each, until they are whole: 64 MiB in memory.
pub const PIECE_HOLDERS_MAX: usize = 8;

/// The nodes that a piece is yet to be requested of.
#[derive(Debug)]
pub struct PieceSources {
    attempts: VecDeque<Vec<NodeId>>,
}

impl PieceSources {
    /// All of these nodes may have it; those in front are requested first.
    #[must_use]
    pub fn new(holders: &[NodeId]) -> Self {
        let attempts = holders.chunks(PIECE_HOLDERS_MAX).map(<[NodeId]>::to_vec).collect();
        Self { attempts }
    }

    /// The nodes to request it of next, all at once.
    pub fn poll(&mut self) -> Option<Vec<NodeId>> {
        self.attempts.pop_front()
    }

    /// All its bytes came from these nodes, and it is not kept: one of them has other bytes. Each is
    /// requested by itself, behind all others.
    pub fn split(&mut self, nodes: &[NodeId]) {
        if nodes.len() > 1 {
            self.attempts.extend(nodes.iter().map(|node| vec![*node]));
        }
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::NodeId;

    use super::{PIECE_HOLDERS_MAX, PieceSources};

    #[test]
    fn a_piece_is_requested_of_several_nodes_at_once_and_of_each_where_that_spoils_it() {
        let count = PIECE_HOLDERS_MAX as u64 + 2;
        let nodes: Vec<NodeId> = (1..=count).map(NodeId).collect();
        let mut sources = PieceSources::new(&nodes);
        let first = sources.poll().expect("there are some");
        assert_eq!(first, nodes[..PIECE_HOLDERS_MAX]);
        sources.split(&first);
        let second = sources.poll().expect("there are more");
        assert_eq!(second, nodes[PIECE_HOLDERS_MAX..], "none of these was requested yet");
        for node in &nodes[..PIECE_HOLDERS_MAX] {
            let alone = sources.poll().expect("each by itself");
            assert_eq!(alone, [*node]);
            sources.split(&alone);
        }
        assert_eq!(sources.poll(), None, "one node alone is not requested again");
    }

    #[test]
    fn without_other_nodes_there_is_nothing_to_request() {
        assert_eq!(PieceSources::new(&[]).poll(), None);
    }
}
