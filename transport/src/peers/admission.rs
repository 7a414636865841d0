//! Whether a new connection of a member, or of a person, is accepted. Pure functions.
//!
//! Of members both ends decide by the same facts, so that they keep the same connection: which
//! start of the peer it is, which end dialled, and the dialler's count of attempts.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use zbelastic_types::NodeId;

use crate::close_code::CloseCode;

/// Which start of a node a process is. Of two processes that claim one identity, the later boot
/// stays; with equal boots and different lives, the one that was there first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessStart {
    /// Counted from 1 in the node's data folder.
    pub boot: u64,
    /// Drawn at the start: it distinguishes this process from one with a copy of the folder.
    pub life: u64,
}

/// The facts of a connection that both ends know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkFacts {
    /// The start of the peer.
    pub(crate) start: ProcessStart,
    /// Whether the node with the lower id dialled.
    pub(crate) dialled_by_lower: bool,
    /// The dialler's count of its attempts.
    pub(crate) attempt: u64,
}

/// The decision on a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkDecision {
    /// It is accepted: the peer has no connection.
    Take,
    /// It replaces the present one, which is closed for the reason.
    Replace(CloseCode),
    /// It is closed for the reason.
    Refuse(CloseCode),
}

/// Decides. `newest_boot` is the latest boot of the peer that was ever seen here.
pub(crate) fn admit(newest_boot: u64, present: Option<LinkFacts>, new: LinkFacts) -> LinkDecision {
    if new.start.boot < newest_boot {
        return LinkDecision::Refuse(CloseCode::DuplicateIdentity);
    }
    let Some(present) = present else {
        return LinkDecision::Take;
    };
    match new.start.boot.cmp(&present.start.boot) {
        Ordering::Greater => LinkDecision::Replace(CloseCode::DuplicateIdentity),
        Ordering::Less => LinkDecision::Refuse(CloseCode::DuplicateIdentity),
        Ordering::Equal if new.start.life != present.start.life => {
            LinkDecision::Refuse(CloseCode::DuplicateIdentity)
        }
        Ordering::Equal => between_same_processes(present, new),
    }
}

/// The connection that the lower id dialled is preferred; of two by the same dialler, the later
/// one.
fn between_same_processes(present: LinkFacts, new: LinkFacts) -> LinkDecision {
    let rank = |facts: LinkFacts| (facts.dialled_by_lower, facts.attempt);
    if rank(new) > rank(present) {
        LinkDecision::Replace(CloseCode::Replaced)
    } else {
        LinkDecision::Refuse(CloseCode::Replaced)
    }
}

/// The decision on a new connection of a person's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientDecision {
    /// It is accepted.
    Take,
    /// It replaces this one, the oldest of the person with the most.
    Replace(u64),
    /// The connections are at their limit, and none is replaced for it.
    Refuse,
}

/// Decides which people keep connections: no person is shut out by the connections of one other.
/// `open` are those that are there, in the order in which they came, with their owners.
pub(crate) fn admit_client(
    open: impl Iterator<Item = (u64, NodeId)>,
    person: NodeId,
    clients_max: usize,
) -> ClientDecision {
    let mut of: BTreeMap<NodeId, Vec<u64>> = BTreeMap::new();
    open.for_each(|(client, owner)| of.entry(owner).or_default().push(client));
    if of.values().map(Vec::len).sum::<usize>() < clients_max {
        return ClientDecision::Take;
    }
    let own = of.get(&person).map_or(0, Vec::len);
    // A person with as many as the newcomer would have keeps them.
    match of.values().max_by_key(|clients| clients.len()) {
        Some(most) if most.len() > own + 1 => ClientDecision::Replace(most[0]),
        Some(_) | None => ClientDecision::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(boot: u64, life: u64, dialled_by_lower: bool, attempt: u64) -> LinkFacts {
        LinkFacts { start: ProcessStart { boot, life }, dialled_by_lower, attempt }
    }

    #[test]
    fn an_empty_place_is_taken_unless_a_later_boot_was_there() {
        assert_eq!(admit(0, None, facts(1, 0, true, 1)), LinkDecision::Take);
        assert_eq!(admit(5, None, facts(5, 0, true, 1)), LinkDecision::Take);
        let refused = LinkDecision::Refuse(CloseCode::DuplicateIdentity);
        assert_eq!(admit(5, None, facts(4, 0, true, 9)), refused);
    }

    #[test]
    fn a_later_boot_takes_the_place_and_a_second_life_of_the_same_boot_does_not() {
        let present = Some(facts(5, 1, true, 1));
        let replaced = LinkDecision::Replace(CloseCode::DuplicateIdentity);
        let refused = LinkDecision::Refuse(CloseCode::DuplicateIdentity);
        assert_eq!(admit(5, present, facts(6, 2, false, 0)), replaced);
        assert_eq!(admit(5, present, facts(5, 2, true, 9)), refused);
        assert_eq!(admit(5, present, facts(4, 1, true, 9)), refused);
    }

    #[test]
    fn two_connections_of_the_same_processes_are_decided_alike_in_any_order() {
        let all = [facts(1, 1, true, 1), facts(1, 1, true, 2), facts(1, 1, false, 7)];
        for first in all {
            for second in all {
                if first == second {
                    continue;
                }
                let one =
                    admit(1, Some(first), second) == LinkDecision::Replace(CloseCode::Replaced);
                let other =
                    admit(1, Some(second), first) == LinkDecision::Replace(CloseCode::Replaced);
                assert_ne!(one, other, "{first:?} {second:?}");
            }
        }
        let by_lower = facts(1, 1, true, 1);
        let by_higher = facts(1, 1, false, 99);
        assert_eq!(admit(1, Some(by_lower), by_higher), LinkDecision::Refuse(CloseCode::Replaced));
    }

    #[test]
    fn the_person_with_the_most_connections_gives_one_to_a_person_with_fewer() {
        let open = |owners: &[u64]| -> Vec<(u64, NodeId)> {
            (10..).zip(owners.iter().map(|owner| NodeId(*owner))).collect()
        };
        let admit = |owners: &[u64], person, max| {
            admit_client(open(owners).into_iter(), NodeId(person), max)
        };
        assert_eq!(admit(&[], 1, 1), ClientDecision::Take);
        assert_eq!(admit(&[1, 1, 2], 1, 4), ClientDecision::Take);
        assert_eq!(admit(&[1, 1, 1], 1, 3), ClientDecision::Refuse, "its own are enough");
        assert_eq!(admit(&[2, 1, 1], 3, 3), ClientDecision::Replace(11));
        assert_eq!(
            admit(&[1, 1, 2, 2], 3, 4),
            ClientDecision::Replace(12),
            "of two the later person"
        );
        assert_eq!(admit(&[1, 1, 2], 2, 3), ClientDecision::Refuse, "it would have as many");
        assert_eq!(admit(&[1, 2, 3], 4, 3), ClientDecision::Refuse, "one each");
    }
}
