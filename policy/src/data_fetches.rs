//! Fetches of texts, weights and shards that are under way on this node: one of a name at a time,
//! however often members request it. Each reads and hashes the whole copy, or writes a new one; what came
//! of it says whether the copy here is one to begin a run with.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_types::NodeId;

use crate::data::DataName;

/// Bytes of copies that a run waits for until they are compared, at most: a slow disk reads them while
/// the client waits for its answer. Others are compared by the workers, chunk by chunk, and by scrubs.
const COMPARED_BYTES_MAX: u64 = 1 << 30;
/// Copies that are compared side by side for a run, at most: each has a thread.
const COMPARED_COPIES_MAX: usize = 32;

/// The fetches under way. Names are those of runs, or were passed on by a controller, which bounds
/// them.
#[derive(Debug, Default)]
pub struct DataFetches {
    /// Members that were named as holders of such data since its fetch began.
    under_way: BTreeMap<DataName, BTreeSet<NodeId>>,
    /// Data whose copy was compared with its name since the node's start, and whether it is sound since
    /// then: a file of the right length that is not counts for nothing until it is fetched or uploaded.
    compared: BTreeMap<DataName, bool>,
}

impl DataFetches {
    /// Data is to be fetched from these. Yields whether the fetch begins now: one of that name may be
    /// under way.
    pub fn begin(&mut self, name: DataName, holders: &[NodeId]) -> bool {
        if let Some(named) = self.under_way.get_mut(&name) {
            named.extend(holders);
            return false;
        }
        self.under_way.insert(name, BTreeSet::new());
        true
    }

    /// A fetch ended. If it failed, yields the holders that were named meanwhile, if there are any: it
    /// is to be fetched from them.
    pub fn end(&mut self, name: DataName, is_kept: bool) -> Option<Vec<NodeId>> {
        self.compared.insert(name, is_kept);
        let named = self.under_way.remove(&name)?;
        (!is_kept && !named.is_empty()).then(|| named.into_iter().collect())
    }

    /// All of it was uploaded to this node.
    pub fn note_uploaded(&mut self, name: DataName) {
        self.compared.insert(name, true);
    }

    /// Whether a fetch is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Of data whose files are here those that were not compared with their names since the node's start,
    /// as many as a run waits for.
    #[must_use]
    pub fn uncompared(&self, here: &[DataName]) -> Vec<DataName> {
        let mut bytes = 0_u64;
        let new = here.iter().filter(|name| !self.compared.contains_key(name)).copied();
        let fits = |name: &DataName| {
            bytes = bytes.saturating_add(name.length);
            bytes <= COMPARED_BYTES_MAX
        };
        new.take_while(fits).take(COMPARED_COPIES_MAX).collect()
    }

    /// Whether it is to be uploaded again, whatever lies here under its name.
    #[must_use]
    pub fn is_unsound(&self, name: DataName) -> bool {
        self.compared.get(&name) == Some(&false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_fetched_once_at_a_time_however_often_it_is_requested() {
        let name = DataName::of(b"text");
        let mut fetches = DataFetches::default();
        assert!(fetches.begin(name, &[NodeId(1)]));
        assert!((0..1000).all(|_| !fetches.begin(name, &[NodeId(2)])));
        assert!(fetches.begin(DataName::of(b"weights"), &[NodeId(2)]));
        assert_eq!(fetches.end(name, true), None);
        assert!(fetches.begin(name, &[NodeId(1)]));
    }

    #[test]
    fn what_is_sound_nowhere_is_to_be_uploaded_again() {
        let name = DataName::of(b"text");
        let mut fetches = DataFetches::default();
        let failed = |fetches: &mut DataFetches| {
            fetches.begin(name, &[]);
            fetches.end(name, false);
            assert!(fetches.is_unsound(name) && !fetches.is_unsound(DataName::of(b"weights")));
        };
        failed(&mut fetches);
        fetches.note_uploaded(name);
        assert!(!fetches.is_unsound(name));
        failed(&mut fetches);
        fetches.begin(name, &[NodeId(1)]);
        fetches.end(name, true);
        assert!(!fetches.is_unsound(name), "a node that came back had it");
    }

    #[test]
    fn a_run_waits_for_copies_that_were_not_compared_since_the_start_and_fit_in_its_time() {
        let name =
            |byte: u8, length| DataName { hash: zbelastic_types::Digest([byte; 32]), length };
        let here = [name(1, 9), name(2, COMPARED_BYTES_MAX), name(3, 9)];
        let mut fetches = DataFetches::default();
        assert_eq!(fetches.uncompared(&here), here[..1], "the second needs too long");
        assert!(fetches.begin(here[0], &[]) && fetches.is_busy());
        fetches.end(here[0], true);
        assert!(!fetches.is_busy() && !fetches.is_unsound(here[0]));
        assert_eq!(fetches.uncompared(&here), here[1..2]);
        fetches.note_uploaded(here[1]);
        assert_eq!(fetches.uncompared(&here), here[2..]);
        fetches.begin(here[2], &[]);
        fetches.end(here[2], false);
        assert_eq!(fetches.uncompared(&here), [], "it was compared, and is not sound");
        assert!(fetches.is_unsound(here[2]));
        let many: Vec<_> = (0..=COMPARED_COPIES_MAX as u64).map(|bytes| name(4, bytes)).collect();
        assert_eq!(fetches.uncompared(&many), many[..COMPARED_COPIES_MAX]);
    }

    #[test]
    fn a_fetch_that_failed_is_tried_with_the_holders_that_were_named_meanwhile() {
        let name = DataName::of(b"text");
        let mut fetches = DataFetches::default();
        fetches.begin(name, &[NodeId(1)]);
        fetches.begin(name, &[NodeId(3)]);
        fetches.begin(name, &[NodeId(2)]);
        assert_eq!(fetches.end(name, false), Some(vec![NodeId(2), NodeId(3)]));
        fetches.begin(name, &[NodeId(2), NodeId(3)]);
        assert_eq!(fetches.end(name, false), None);
    }
}
