//! Whether a new connection of a member takes its place. A pure function.
//!
//! Both ends decide by the same facts, so that they keep the same connection: which start of the
//! peer it is, who dialled, and the dialler's count of attempts.

use std::cmp::Ordering;

use crate::endpoint::{CloseCode, ProcessStart};

/// What both ends know of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkFacts {
    /// The start of the peer.
    pub(crate) start: ProcessStart,
    /// Whether the node with the lower id dialled.
    pub(crate) dialled_by_lower: bool,
    /// The dialler's count of its attempts.
    pub(crate) attempt: u64,
}

/// What becomes of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It takes an empty place.
    Take,
    /// It takes the place of the one that is there, which is closed for the reason.
    Replace(CloseCode),
    /// It is closed for the reason.
    Refuse(CloseCode),
}

/// Decides. `newest_boot` is the latest boot of the peer that was ever seen here.
pub(crate) fn admit(newest_boot: u64, present: Option<LinkFacts>, new: LinkFacts) -> Entry {
    if new.start.boot < newest_boot {
        return Entry::Refuse(CloseCode::DuplicateIdentity);
    }
    let Some(present) = present else {
        return Entry::Take;
    };
    match new.start.boot.cmp(&present.start.boot) {
        Ordering::Greater => Entry::Replace(CloseCode::DuplicateIdentity),
        Ordering::Less => Entry::Refuse(CloseCode::DuplicateIdentity),
        Ordering::Equal if new.start.life != present.start.life => {
            Entry::Refuse(CloseCode::DuplicateIdentity)
        }
        Ordering::Equal => between_same_processes(present, new),
    }
}

/// What the lower id dialled is preferred; of two by the same dialler, the later one.
fn between_same_processes(present: LinkFacts, new: LinkFacts) -> Entry {
    let rank = |facts: LinkFacts| (facts.dialled_by_lower, facts.attempt);
    if rank(new) > rank(present) {
        Entry::Replace(CloseCode::Replaced)
    } else {
        Entry::Refuse(CloseCode::Replaced)
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
        assert_eq!(admit(0, None, facts(1, 0, true, 1)), Entry::Take);
        assert_eq!(admit(5, None, facts(5, 0, true, 1)), Entry::Take);
        let refused = Entry::Refuse(CloseCode::DuplicateIdentity);
        assert_eq!(admit(5, None, facts(4, 0, true, 9)), refused);
    }

    #[test]
    fn a_later_boot_takes_the_place_and_a_second_life_of_the_same_boot_does_not() {
        let present = Some(facts(5, 1, true, 1));
        let replaced = Entry::Replace(CloseCode::DuplicateIdentity);
        let refused = Entry::Refuse(CloseCode::DuplicateIdentity);
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
                let one = admit(1, Some(first), second) == Entry::Replace(CloseCode::Replaced);
                let other = admit(1, Some(second), first) == Entry::Replace(CloseCode::Replaced);
                assert_ne!(one, other, "{first:?} {second:?}");
            }
        }
        let by_lower = facts(1, 1, true, 1);
        let by_higher = facts(1, 1, false, 99);
        assert_eq!(admit(1, Some(by_lower), by_higher), Entry::Refuse(CloseCode::Replaced));
    }
}
