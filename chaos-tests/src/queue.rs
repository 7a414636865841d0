//! Virtual time, and the queue of its events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

/// A moment of a life, in microseconds since its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct VirtualTime(pub u64);

impl VirtualTime {
    /// The moment that many microseconds later.
    #[must_use]
    pub const fn after(self, micros: u64) -> Self {
        Self(self.0 + micros)
    }
}

impl fmt::Display for VirtualTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8}.{:03}s", self.0 / 1_000_000, self.0 / 1000 % 1000)
    }
}

struct QueuedEvent<E> {
    at: VirtualTime,
    number: u64,
    event: E,
}

impl<E> PartialEq for QueuedEvent<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl<E> Eq for QueuedEvent<E> {}

impl<E> PartialOrd for QueuedEvent<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for QueuedEvent<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Events in the order of their moments; those of one moment in the order in which they came.
pub struct VirtualTimeQueue<E> {
    heap: BinaryHeap<Reverse<QueuedEvent<E>>>,
    number: u64,
}

impl<E> Default for VirtualTimeQueue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), number: 0 }
    }
}

impl<E> VirtualTimeQueue<E> {
    /// Adds an event at its moment.
    pub fn push(&mut self, at: VirtualTime, event: E) {
        self.number += 1;
        self.heap.push(Reverse(QueuedEvent { at, number: self.number, event }));
    }

    /// Removes the next event, with its moment.
    pub fn pop(&mut self) -> Option<(VirtualTime, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::{VirtualTime, VirtualTimeQueue};

    #[test]
    fn events_come_by_moment_and_then_as_they_were_added() {
        let mut queue = VirtualTimeQueue::default();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b')] {
            queue.push(VirtualTime(at), event);
        }
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, "abcd");
    }
}
