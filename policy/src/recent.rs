//! The newest of many items, for those who request them page by page.

use std::collections::VecDeque;

/// The newest items of a sequence, which are numbered from 0 on.
#[derive(Clone, Debug)]
pub struct Recent<T> {
    kept: VecDeque<T>,
    next: u64,
    kept_max: usize,
}

impl<T: Clone> Recent<T> {
    /// None yet, and at most so many later.
    #[must_use]
    pub const fn new(kept_max: usize) -> Self {
        Self { kept: VecDeque::new(), next: 0, kept_max }
    }

    /// The number of the next item.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Adds one, and forgets the oldest if there are too many.
    pub fn push(&mut self, item: T) {
        self.kept.push_back(item);
        self.next += 1;
        if self.kept.len() > self.kept_max {
            self.kept.pop_front();
        }
    }

    /// At most `max` items from a number on, with the number of the oldest that is kept and the one
    /// to request next.
    #[must_use]
    pub fn page(&self, from: u64, max: usize) -> (u64, u64, Vec<T>) {
        let oldest = self.next - self.kept.len() as u64;
        let first = from.clamp(oldest, self.next);
        let items = self.kept.iter().skip((first - oldest) as usize).take(max);
        let items: Vec<T> = items.cloned().collect();
        (oldest, first + items.len() as u64, items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_read_page_by_page() {
        let mut recent = Recent::new(3);
        assert_eq!(recent.page(0, 9), (0, 0, vec![]));
        "abcde".chars().for_each(|item| recent.push(item));
        assert_eq!(recent.next(), 5);
        assert_eq!(recent.page(0, 2), (2, 4, vec!['c', 'd']));
        assert_eq!(recent.page(4, 2), (2, 5, vec!['e']));
        assert_eq!(recent.page(9, 2), (2, 5, vec![]), "of a journal that has begun again");
    }
}
