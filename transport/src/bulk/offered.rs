//! The bodies that a process offers, by key. Its tasks that serve them read the list while another
//! thread adds to it; that is all its lock is for.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use super::body::BulkBody;
use super::read_once::ReadOnceBody;

/// A body that is offered.
enum OfferedBody {
    /// Until it is withdrawn.
    Kept(Arc<dyn BulkBody>),
    /// Until those that it is offered to have read it.
    ReadOnce(Arc<ReadOnceBody>),
}

impl OfferedBody {
    fn body(&self) -> Option<Arc<dyn BulkBody>> {
        match self {
            Self::Kept(body) => Some(body.clone()),
            Self::ReadOnce(body) if body.is_here() => Some(body.clone()),
            Self::ReadOnce(_) => None,
        }
    }
}

/// The bodies that a process offers, by key. Copies share them.
pub struct OfferedBodies<K> {
    bodies: Arc<RwLock<BTreeMap<K, OfferedBody>>>,
    count_max: usize,
}

impl<K> Clone for OfferedBodies<K> {
    fn clone(&self) -> Self {
        Self { bodies: self.bodies.clone(), count_max: self.count_max }
    }
}

impl<K: Ord> OfferedBodies<K> {
    /// None yet, and so many at most: beyond that those with the first keys go.
    #[must_use]
    pub fn new(count_max: usize) -> Self {
        Self { bodies: Arc::default(), count_max }
    }

    /// Offers a body until it is withdrawn.
    pub fn offer(&self, key: K, body: Arc<dyn BulkBody>) {
        self.insert(&mut self.write(), key, OfferedBody::Kept(body));
    }

    /// Offers a body to one more reader, and lets it go once all have read it. One that is here
    /// under the key is read by them all.
    pub fn offer_once(&self, key: K, body: Arc<dyn BulkBody>) {
        let mut bodies = self.write();
        bodies.retain(|_, offered| offered.body().is_some());
        if let Some(OfferedBody::ReadOnce(offered)) = bodies.get(&key)
            && offered.add_reader()
        {
            return;
        }
        self.insert(&mut bodies, key, OfferedBody::ReadOnce(Arc::new(ReadOnceBody::new(body))));
    }

    /// Withdraws all bodies but these.
    pub fn retain(&self, mut is_kept: impl FnMut(&K) -> bool) {
        self.write().retain(|key, _| is_kept(key));
    }

    /// Withdraws all bodies that are read once but these.
    pub fn retain_once(&self, mut is_kept: impl FnMut(&K) -> bool) {
        self.write().retain(|key, offered| match offered {
            OfferedBody::Kept(_) => true,
            OfferedBody::ReadOnce(_) => is_kept(key),
        });
    }

    /// Withdraws a body.
    pub fn withdraw(&self, key: &K) {
        self.write().remove(key);
    }

    /// The body that is offered under a key.
    #[must_use]
    pub fn find(&self, key: &K) -> Option<Arc<dyn BulkBody>> {
        let bodies = self.bodies.read().unwrap_or_else(PoisonError::into_inner);
        bodies.get(key).and_then(OfferedBody::body)
    }

    fn insert(&self, bodies: &mut BTreeMap<K, OfferedBody>, key: K, body: OfferedBody) {
        bodies.insert(key, body);
        while bodies.len() > self.count_max {
            bodies.pop_first();
        }
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<K, OfferedBody>> {
        self.bodies.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(content: u8) -> Arc<dyn BulkBody> {
        Arc::new(vec![content; 5])
    }

    fn read(offered: &OfferedBodies<u8>, key: u8) -> Option<u8> {
        let mut bytes = [0; 5];
        offered.find(&key)?.read(0, &mut bytes).expect("it is here");
        Some(bytes[0])
    }

    #[test]
    fn a_body_that_is_read_once_is_let_go_by_its_last_reader_and_others_when_they_are_withdrawn() {
        let offered = OfferedBodies::new(10);
        offered.offer(0, body(7));
        let once = body(8);
        let held = Arc::downgrade(&once);
        offered.offer_once(1, once);
        let again = body(9);
        let unused = Arc::downgrade(&again);
        offered.offer_once(1, again);
        assert!(unused.upgrade().is_none(), "both read the first");
        assert_eq!([read(&offered, 1), read(&offered, 0)], [Some(8), Some(7)]);
        assert!(held.upgrade().is_some(), "one has not read it");
        assert_eq!([read(&offered, 1), read(&offered, 0)], [Some(8), Some(7)]);
        assert!(held.upgrade().is_none());
        assert_eq!(read(&offered, 1), None, "it has to be offered again");
        offered.offer_once(1, body(9));
        assert_eq!(read(&offered, 1), Some(9));
        offered.withdraw(&0);
        assert_eq!(read(&offered, 0), None);
    }

    #[test]
    fn bodies_are_withdrawn_by_key_and_beyond_the_most_the_first_go() {
        let offered = OfferedBodies::new(3);
        for key in 0..4 {
            offered.offer(key, body(key));
        }
        offered.offer_once(9, body(9));
        let here = |offered: &OfferedBodies<u8>| {
            (0..10).filter(|key| offered.find(key).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(here(&offered), [2, 3, 9]);
        offered.clone().retain_once(|_| false);
        assert_eq!(here(&offered), [2, 3]);
        offered.retain(|key| *key == 3);
        assert_eq!(here(&offered), [3]);
    }
}
