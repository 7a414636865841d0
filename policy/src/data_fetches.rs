//! Fetches of texts, weights and shards that are under way on this node: one of a name at a time,
//! however often members request it. Each reads and hashes the whole copy, or writes a new one.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_types::NodeId;

use crate::data::DataName;

/// The fetches under way. Names are those of runs, or were passed on by a controller, which bounds
/// them.
#[derive(Debug, Default)]
pub struct DataFetches {
    /// Members that were named as holders of such data since its fetch began.
    under_way: BTreeMap<DataName, BTreeSet<NodeId>>,
    /// Data of which a chunk was sound on no node when it was last fetched: a file of the right length
    /// counts for nothing until it is fetched or uploaded whole.
    unsound: BTreeSet<DataName>,
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
        if is_kept {
            self.unsound.remove(&name);
        }
        let named = self.under_way.remove(&name)?;
        (!is_kept && !named.is_empty()).then(|| named.into_iter().collect())
    }

    /// A chunk of it is sound on no node, this one among them.
    pub fn note_unsound(&mut self, name: DataName) {
        self.unsound.insert(name);
    }

    /// All of it was uploaded to this node.
    pub fn note_uploaded(&mut self, name: DataName) {
        self.unsound.remove(&name);
    }

    /// Whether it is to be uploaded again, whatever lies here under its name.
    #[must_use]
    pub fn is_unsound(&self, name: DataName) -> bool {
        self.unsound.contains(&name)
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
            fetches.note_unsound(name);
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
