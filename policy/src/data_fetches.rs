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
        let named = self.under_way.remove(&name)?;
        (!is_kept && !named.is_empty()).then(|| named.into_iter().collect())
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
